//! Selects the attachments of documents that a job delivers, and their form. A feed's documents carry only stubs; the
//! worker fetches the bytes from the source one by one, by the revision that has the stubs.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flatbed_flatten::json::{Value, to_string};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::rows::Unmappable;

/// The most attachments of one document that are delivered. More make the document poison.
pub const ATTACHMENTS_MAX: usize = 1_000;

/// The most bytes that the attachments of a document have together, delivered as requests or objects of their own.
pub const APART_BYTES_MAX: usize = 48 << 20;

/// The most bytes that they have together inside the document, before base64.
pub const WITHIN_BYTES_MAX: usize = 16 << 20;

/// The longest attachment name, and the longest other text of a stub, in bytes.
const TEXT_BYTES_MAX: usize = 1_000;

const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The form in which attachments are delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentMode {
    /// In the document, as CouchDB returns them: `data` instead of `stub`, in base64.
    #[default]
    Inline,
    /// In the document, as an array of objects with `name`, `content_type`, `digest`, `length` and `data`: for rows of
    /// a table.
    List,
    /// Each as a request or object of its own.
    Individual,
}

impl AttachmentMode {
    fn bytes_max(self) -> usize {
        match self {
            AttachmentMode::Inline | AttachmentMode::List => WITHIN_BYTES_MAX,
            AttachmentMode::Individual => APART_BYTES_MAX,
        }
    }
}

/// The treatment of attachments that are not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentFallback {
    /// The document is delivered with a stub.
    Stub,
    /// The document goes to the queue.
    Dlq,
}

/// The selection of attachments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct FilterPart {
    /// Accepted types (`image/*`, `application/pdf`). Empty: all.
    #[serde(default)]
    pub content_types: Vec<String>,
    /// Rejected types.
    #[serde(default)]
    pub reject_content_types: Vec<String>,
    /// The smallest size, in bytes. Smaller attachments stay stubs.
    #[serde(default)]
    pub min_size_bytes: u64,
    /// The largest size, in bytes. Larger attachments are handled by `on_too_large`. 0: the limit of the mode.
    #[serde(default)]
    pub max_size_bytes: u64,
    /// The largest total size per document, in bytes. 0: the limit of the mode.
    #[serde(default)]
    pub max_total_bytes_per_doc: u64,
    /// A regular expression that must match within the name.
    pub name_pattern: Option<String>,
}

/// The destination of attachments that are delivered individually.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DestinationPart {
    /// The template of object keys in a store.
    pub key_template: Option<String>,
    /// The template of paths at an HTTP endpoint.
    pub url_template: Option<String>,
}

/// A job's settings for attachments, as they are written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct AttachmentsPart {
    /// True if attachments are delivered at all.
    #[serde(default)]
    pub enabled: bool,
    /// The form of delivery.
    #[serde(default)]
    pub mode: AttachmentMode,
    /// The selection.
    #[serde(default)]
    pub filter: FilterPart,
    /// The destination.
    #[serde(default)]
    pub destination: DestinationPart,
    /// The treatment of documents with too large attachments. Default: the queue.
    pub on_too_large: Option<AttachmentFallback>,
    /// The treatment of documents with an attachment that the source does not have. Default: they are delivered.
    pub on_missing_attachment: Option<AttachmentFallback>,
}

/// A job's settings for attachments, validated.
#[derive(Debug, Clone)]
pub struct Attachments {
    /// The form of delivery.
    pub mode: AttachmentMode,
    /// The treatment of too large attachments.
    pub on_too_large: AttachmentFallback,
    /// The treatment of missing attachments.
    pub on_missing: AttachmentFallback,
    size_min: u64,
    size_max: usize,
    total_max: usize,
    types: Vec<String>,
    not_types: Vec<String>,
    names: Option<Regex>,
}

/// The metadata of an attachment that its document carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// Its name.
    pub name: String,
    /// The content type, as the writer of the attachment declared it.
    pub content_type: String,
    /// The digest of the bytes: `md5-...`.
    pub digest: String,
    /// The length in bytes, if the stub has it.
    pub length: Option<usize>,
    /// The generation of the revision that added the attachment.
    pub revpos: Option<u64>,
}

/// An attachment to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The metadata.
    pub stub: Stub,
    /// The whole body. `None`: the target already has it.
    pub body: Option<Bytes>,
}

impl Attachment {
    /// Returns the approximate size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let Stub { name, content_type, digest, .. } = &self.stub;
        let texts = name.len() + content_type.len() + digest.len();
        size_of::<Attachment>() + texts + self.body.as_ref().map_or(0, Bytes::len)
    }
}

impl Attachments {
    /// Validates the settings. `None`: the job delivers no attachments.
    ///
    /// # Errors
    /// A message that names the defect.
    pub fn of(part: &AttachmentsPart) -> Result<Option<Attachments>, String> {
        let FilterPart { name_pattern, .. } = &part.filter;
        let compile = |pattern: &String| RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
        let names = name_pattern.as_ref().map(compile).transpose();
        let names = names.map_err(|error| format!("`name_pattern`: {error}"))?;
        let bound = |wanted: u64| {
            let max = part.mode.bytes_max();
            usize::try_from(wanted).ok().filter(|wanted| *wanted > 0).map_or(max, |wanted| wanted.min(max))
        };
        let types = |of: &[String]| of.iter().map(|of| of.to_ascii_lowercase()).collect();
        Ok(part.enabled.then(|| Attachments {
            mode: part.mode,
            on_too_large: part.on_too_large.unwrap_or(AttachmentFallback::Dlq),
            on_missing: part.on_missing_attachment.unwrap_or(AttachmentFallback::Stub),
            size_min: part.filter.min_size_bytes,
            size_max: bound(part.filter.max_size_bytes),
            total_max: bound(part.filter.max_total_bytes_per_doc),
            types: types(&part.filter.content_types),
            not_types: types(&part.filter.reject_content_types),
            names,
        }))
    }

    fn is_wanted(&self, stub: &Stub) -> bool {
        let kind = stub.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is = |of: &String| match of.strip_suffix('*') {
            Some(begin) => kind.starts_with(begin),
            None => kind == *of,
        };
        let is_long_enough = stub.length.is_none_or(|length| length as u64 >= self.size_min);
        (self.types.is_empty() || self.types.iter().any(is))
            && !self.not_types.iter().any(is)
            && is_long_enough
            && self.names.as_ref().is_none_or(|names| names.is_match(&stub.name))
    }

    /// Returns the stubs of a document's attachments that are to be delivered.
    ///
    /// # Errors
    /// [`Unmappable::Attachments`].
    pub fn select_stubs(&self, document: &Value<'_>) -> Result<Vec<Stub>, Unmappable> {
        let mut stubs = stubs(document)?;
        stubs.retain(|stub| self.is_wanted(stub));
        let is_too_large = |stub: &Stub| stub.length.is_some_and(|length| length > self.size_max);
        if stubs.iter().any(is_too_large) {
            self.too_large()?;
            stubs.retain(|stub| !is_too_large(stub));
        }
        let total = stubs.iter().fold(0_usize, |sum, stub| sum.saturating_add(stub.length.unwrap_or(0)));
        if total > self.total_max {
            self.too_large()?;
            stubs.clear();
        }
        Ok(stubs)
    }

    /// Decides about too large attachments: the document is poison, or the attachments stay stubs.
    ///
    /// # Errors
    /// [`Unmappable::Attachments`].
    pub fn too_large(&self) -> Result<(), Unmappable> {
        match self.on_too_large {
            AttachmentFallback::Dlq => Err(Unmappable::Attachments("its attachments are larger than the job takes")),
            AttachmentFallback::Stub => Ok(()),
        }
    }

    /// Returns the size limit of an attachment after `taken` bytes of other attachments of the same document.
    pub fn bytes_max(&self, stub: &Stub, taken: usize) -> usize {
        stub.length.unwrap_or(self.size_max).min(self.total_max.saturating_sub(taken))
    }
}

/// Parses a document's stubs. Attachments that carry `data` are not stubs.
fn stubs(document: &Value<'_>) -> Result<Vec<Stub>, Unmappable> {
    let Some(Value::Object(members)) = document.get("_attachments") else { return Ok(Vec::new()) };
    let mut stubs = Vec::new();
    for (name, said) in members.iter().filter(|(_, said)| said.get("data").is_none()) {
        let text = |member: &str| said.get(member).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |member: &str| match said.get(member) {
            Some(Value::Number(text)) => text.parse::<u64>().ok(),
            _ => None,
        };
        let stub = Stub {
            name: name.clone().into_owned(),
            content_type: text("content_type"),
            digest: text("digest"),
            length: number("length").map(|length| usize::try_from(length).unwrap_or(usize::MAX)),
            revpos: number("revpos"),
        };
        let texts = [&stub.name, &stub.content_type, &stub.digest];
        if stub.name.is_empty() || texts.iter().any(|text| text.len() > TEXT_BYTES_MAX) {
            return Err(Unmappable::Attachments("a stub has an empty text or one longer than 1,000 bytes"));
        }
        stubs.push(stub);
    }
    if stubs.len() > ATTACHMENTS_MAX {
        return Err(Unmappable::Attachments("it has more than 1,000 attachments"));
    }
    Ok(stubs)
}

type Member<'d> = (Cow<'d, str>, Value<'d>);

/// Replaces the stub of an attachment by its data.
fn filled<'d>((name, said): Member<'d>, attachments: &[Attachment]) -> Member<'d> {
    let found = attachments.iter().find(|attachment| attachment.stub.name == name);
    match (said, found.and_then(|found| found.body.as_ref())) {
        (Value::Object(mut said), Some(body)) => {
            said.retain(|(member, _)| member != "stub" && member != "data");
            said.push((Cow::Borrowed("data"), Value::String(Cow::Owned(BASE64.encode(body)))));
            (name, Value::Object(said))
        }
        (said, _) => (name, said),
    }
}

/// Returns an attachment as an object that includes its name.
fn named<'d>((name, said): Member<'d>) -> Value<'d> {
    let mut all = vec![(Cow::Borrowed("name"), Value::String(name))];
    if let Value::Object(said) = said {
        all.extend(said.into_iter().filter(|(member, _)| member != "name"));
    }
    Value::Object(all)
}

/// Returns the JSON text of a document with its attachments inside.
pub fn with_data(document: Value<'_>, attachments: &[Attachment], mode: AttachmentMode) -> String {
    let Value::Object(mut members) = document else { return String::new() };
    for (_, value) in members.iter_mut().filter(|(name, _)| name == "_attachments") {
        let Value::Object(all) = std::mem::replace(value, Value::Null) else { continue };
        let all = all.into_iter().map(|member| filled(member, attachments));
        *value = match mode {
            AttachmentMode::List => Value::Array(all.map(named).collect()),
            AttachmentMode::Inline | AttachmentMode::Individual => Value::Object(all.collect()),
        };
    }
    to_string(&Value::Object(members))
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use serde_json::json;

    use super::*;

    fn settings(part: serde_json::Value) -> Attachments {
        let mut whole = json!({"enabled": true});
        whole.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        Attachments::of(&serde_json::from_value(whole).unwrap()).unwrap().unwrap()
    }

    const DOCUMENT: &str = r#"{"_id":"a","_rev":"3-x","_attachments":{
        "a.png":{"content_type":"image/png","digest":"md5-A==","length":100,"revpos":2,"stub":true},
        "b.txt":{"content_type":"Text/Plain; charset=utf-8","digest":"md5-B==","length":2000,"revpos":3,"stub":true},
        "c":{"stub":true},
        "here":{"content_type":"image/png","data":"eHg="}},"n":1}"#;

    #[test]
    fn which_are_wanted() {
        let document = parse(DOCUMENT.as_bytes(), &Limits::default()).unwrap();
        let wanted = |part: serde_json::Value| {
            let wanted = settings(part).select_stubs(&document)?;
            Ok::<_, Unmappable>(wanted.into_iter().map(|stub| stub.name).collect::<Vec<_>>().join(" "))
        };
        let of = |filter: serde_json::Value| wanted(json!({"filter": filter}));
        for (filter, expected) in [
            (json!({}), "a.png b.txt c"),
            (json!({"content_types": ["image/*"]}), "a.png"),
            (json!({"content_types": ["text/PLAIN"]}), "b.txt"),
            (json!({"reject_content_types": ["text/*"]}), "a.png c"),
            (json!({"min_size_bytes": 101}), "b.txt c"),
            (json!({"name_pattern": "^[a-c]\\.[a-z]"}), "a.png b.txt"),
            // A setting of 0 sets no limit.
            (json!({"max_size_bytes": 0, "max_total_bytes_per_doc": 2_100}), "a.png b.txt c"),
        ] {
            assert_eq!(of(filter.clone()).as_deref(), Ok(expected), "{filter}");
        }
        for filter in [json!({"max_size_bytes": 1_999}), json!({"max_total_bytes_per_doc": 2_099})] {
            assert!(matches!(of(filter), Err(Unmappable::Attachments(_))));
        }
        let stubs = |filter: serde_json::Value| wanted(json!({"on_too_large": "stub", "filter": filter}));
        assert_eq!(stubs(json!({"max_size_bytes": 1_999})).as_deref(), Ok("a.png c"));
        assert_eq!(stubs(json!({"max_total_bytes_per_doc": 2_099})).as_deref(), Ok(""));
        // An attachment of unknown length gets what the others leave.
        let settings = settings(json!({"filter": {"max_total_bytes_per_doc": 2_500, "max_size_bytes": 2_300}}));
        let stubs = settings.select_stubs(&document).unwrap();
        let bounds: Vec<usize> = stubs.iter().map(|stub| settings.bytes_max(stub, 600)).collect();
        assert_eq!(bounds, [100, 1_900, 1_900]);
    }

    #[test]
    fn what_no_document_may_say() {
        let too_many: Vec<String> = (0..=ATTACHMENTS_MAX).map(|at| format!("\"{at}\":{{}}")).collect();
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for all in [too_many.join(","), r#""":{}"#.to_owned(), format!(r#""a":{{"digest":"{long}"}}"#)] {
            let text = format!("{{\"_attachments\":{{{all}}}}}");
            let document = parse(text.as_bytes(), &Limits::default()).unwrap();
            assert!(settings(json!({})).select_stubs(&document).is_err());
        }
        for all in ["7", "[]", "null"] {
            let text = format!("{{\"_attachments\":{all}}}");
            let document = parse(text.as_bytes(), &Limits::default()).unwrap();
            assert_eq!(settings(json!({})).select_stubs(&document), Ok(Vec::new()));
        }
        let part = |part: serde_json::Value| Attachments::of(&serde_json::from_value(part).unwrap());
        assert!(part(json!({})).unwrap().is_none());
        assert!(part(json!({"filter": {"name_pattern": "("}})).is_err());
        assert!(part(json!({"enabled": true, "filter": {"name_pattern": "(a{1000}){1000}"}})).is_err());
    }

    #[test]
    fn data_stands_in_the_place_of_stubs() {
        let made = |mode: AttachmentMode| {
            let document = parse(DOCUMENT.as_bytes(), &Limits::default()).unwrap();
            let stubs = settings(json!({})).select_stubs(&document).unwrap();
            let fetched: Vec<Attachment> = stubs
                .into_iter()
                .take(1)
                .map(|stub| Attachment { stub, body: Some(Bytes::from_static(b"xy\0")) })
                .collect();
            serde_json::from_str::<serde_json::Value>(&with_data(document, &fetched, mode)).unwrap()
        };
        let mut expected: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
        expected["_attachments"]["a.png"] =
            json!({"content_type": "image/png", "digest": "md5-A==", "length": 100, "revpos": 2, "data": "eHkA"});
        assert_eq!(made(AttachmentMode::Inline), expected);
        let list = made(AttachmentMode::List);
        assert_eq!(list["n"], 1);
        let list = list["_attachments"].as_array().unwrap();
        let names: Vec<_> = list.iter().map(|of| of["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a.png", "b.txt", "c", "here"]);
        assert_eq!(
            (&list[0]["data"], &list[2]["stub"], &list[3]["data"]),
            (&json!("eHkA"), &json!(true), &json!("eHg="))
        );
    }
}
