//! Attachments of documents: which of them a job delivers, and as what. A feed's documents have stubs alone; what a job wants of them is
//! asked of the source one by one, by the revision that the stubs stand in.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flatbed_flatten::json::Value;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::rows::Unmappable;
use crate::transform::json_of;

/// Attachments of one document that are delivered.
pub const ATTACHMENTS_MAX: usize = 1_000;

/// What those of a document may have together, as requests or objects of their own.
pub const APART_BYTES_MAX: usize = 48 << 20;

/// ... and in the document itself, where they stand in base64.
pub const WITHIN_BYTES_MAX: usize = 16 << 20;

/// The longest of their names, and of what else a stub says.
const TEXT_BYTES_MAX: usize = 1_000;

/// What a pattern may take, compiled.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// As what attachments are delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the document, as CouchDB has them: `data` in the place of `stub`, in base64.
    #[default]
    Inline,
    /// In the document, as an array of objects with `name`, `content_type`, `digest`, `length` and `data`: for rows of a table.
    List,
    /// Each as a request or an object of its own.
    Individual,
}

impl Mode {
    fn bytes_max(self) -> usize {
        match self {
            Mode::Inline | Mode::List => WITHIN_BYTES_MAX,
            Mode::Individual => APART_BYTES_MAX,
        }
    }
}

/// What becomes of what is not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instead {
    /// The document is delivered with a stub.
    Stub,
    /// The document goes to the queue.
    Dlq,
}

/// Which attachments are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct FilterPart {
    /// Of these types alone, if there are any: `image/*`, `application/pdf`.
    #[serde(default)]
    pub content_types: Vec<String>,
    /// Of none of these.
    #[serde(default)]
    pub reject_content_types: Vec<String>,
    /// Smaller ones stay stubs.
    #[serde(default)]
    pub min_size_bytes: u64,
    /// Larger ones are too large; 0: as large as the mode admits.
    #[serde(default)]
    pub max_size_bytes: u64,
    /// So much of one document.
    #[serde(default)]
    pub max_total_bytes_per_doc: u64,
    /// A regular expression that names have a match of.
    pub name_pattern: Option<String>,
}

/// Where they go, if each goes by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DestinationPart {
    /// What objects of a store are called.
    pub key_template: Option<String>,
    /// The path at an endpoint's server.
    pub url_template: Option<String>,
}

/// What a job says of attachments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct AttachmentsPart {
    /// Whether they are delivered at all.
    #[serde(default)]
    pub enabled: bool,
    /// As what.
    #[serde(default)]
    pub mode: Mode,
    /// Which.
    #[serde(default)]
    pub filter: FilterPart,
    /// Where.
    #[serde(default)]
    pub destination: DestinationPart,
    /// What becomes of documents with too large ones: they go to the queue, where nothing is said.
    pub on_too_large: Option<Instead>,
    /// What becomes of documents with one that the source does not have: they are delivered, where nothing is said.
    pub on_missing_attachment: Option<Instead>,
}

/// What a job wants of attachments.
#[derive(Debug, Clone)]
pub struct Attachments {
    /// As what they are delivered.
    pub mode: Mode,
    /// Of too large ones.
    pub on_too_large: Instead,
    /// Of one that is not there.
    pub on_missing: Instead,
    size_min: u64,
    size_max: usize,
    total_max: usize,
    types: Vec<String>,
    not_types: Vec<String>,
    names: Option<Regex>,
}

/// What a document says of an attachment that is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// Its name.
    pub name: String,
    /// Its type, as whoever wrote it says.
    pub content_type: String,
    /// What tells its bytes from others: `md5-...`.
    pub digest: String,
    /// How long it is, if that is said.
    pub length: Option<usize>,
    /// The generation of the revision that it came with.
    pub revpos: Option<u64>,
}

/// An attachment, for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// What its document says of it.
    pub stub: Stub,
    /// All of it. `None`: the target has it.
    pub body: Option<Bytes>,
}

impl Attachment {
    /// How large it is in memory, about.
    pub fn bytes(&self) -> usize {
        let Stub { name, content_type, digest, .. } = &self.stub;
        let texts = name.len() + content_type.len() + digest.len();
        size_of::<Attachment>() + texts + self.body.as_ref().map_or(0, Bytes::len)
    }
}

impl Attachments {
    /// `None`: the job delivers none.
    ///
    /// # Errors
    /// In words, what is wrong.
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
            on_too_large: part.on_too_large.unwrap_or(Instead::Dlq),
            on_missing: part.on_missing_attachment.unwrap_or(Instead::Stub),
            size_min: part.filter.min_size_bytes,
            size_max: bound(part.filter.max_size_bytes),
            total_max: bound(part.filter.max_total_bytes_per_doc),
            types: types(&part.filter.content_types),
            not_types: types(&part.filter.reject_content_types),
            names,
        }))
    }

    fn means(&self, stub: &Stub) -> bool {
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

    /// Those of a document that are delivered.
    ///
    /// # Errors
    /// [`Unmappable::Attachments`].
    pub fn wanted(&self, document: &Value<'_>) -> Result<Vec<Stub>, Unmappable> {
        let mut stubs = stubs(document)?;
        stubs.retain(|stub| self.means(stub));
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

    /// What comes of attachments that are too large: the document is to blame, or they stay stubs.
    ///
    /// # Errors
    /// [`Unmappable::Attachments`].
    pub fn too_large(&self) -> Result<(), Unmappable> {
        match self.on_too_large {
            Instead::Dlq => Err(Unmappable::Attachments("its attachments are larger than the job takes")),
            Instead::Stub => Ok(()),
        }
    }

    /// What one may have of which a document says so much, where others have taken some.
    pub fn bytes_max(&self, stub: &Stub, taken: usize) -> usize {
        stub.length.unwrap_or(self.size_max).min(self.total_max.saturating_sub(taken))
    }
}

/// What a document says of its attachments. Those whose `data` is there are none.
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
            return Err(Unmappable::Attachments("what it says of an attachment is empty or longer than 1,000 bytes"));
        }
        stubs.push(stub);
    }
    if stubs.len() > ATTACHMENTS_MAX {
        return Err(Unmappable::Attachments("it has more than 1,000 attachments"));
    }
    Ok(stubs)
}

type Member<'d> = (Cow<'d, str>, Value<'d>);

/// What a document says of an attachment, with its data in the place of the stub.
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

/// The same as an object that says the name, too.
fn named<'d>((name, said): Member<'d>) -> Value<'d> {
    let mut all = vec![(Cow::Borrowed("name"), Value::String(name))];
    if let Value::Object(said) = said {
        all.extend(said.into_iter().filter(|(member, _)| member != "name"));
    }
    Value::Object(all)
}

/// The text of a document with attachments in it.
pub fn with_data(document: Value<'_>, attachments: &[Attachment], mode: Mode) -> String {
    let Value::Object(mut members) = document else { return String::new() };
    for (_, value) in members.iter_mut().filter(|(name, _)| name == "_attachments") {
        let Value::Object(all) = std::mem::replace(value, Value::Null) else { continue };
        let all = all.into_iter().map(|member| filled(member, attachments));
        *value = match mode {
            Mode::List => Value::Array(all.map(named).collect()),
            Mode::Inline | Mode::Individual => Value::Object(all.collect()),
        };
    }
    json_of(&Value::Object(members))
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
            let wanted = settings(part).wanted(&document)?;
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
            // 0 is no bound of the job's.
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
        // What nobody says the length of has what the others leave.
        let settings = settings(json!({"filter": {"max_total_bytes_per_doc": 2_500, "max_size_bytes": 2_300}}));
        let stubs = settings.wanted(&document).unwrap();
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
            assert!(settings(json!({})).wanted(&document).is_err());
        }
        for all in ["7", "[]", "null"] {
            let text = format!("{{\"_attachments\":{all}}}");
            let document = parse(text.as_bytes(), &Limits::default()).unwrap();
            assert_eq!(settings(json!({})).wanted(&document), Ok(Vec::new()));
        }
        let part = |part: serde_json::Value| Attachments::of(&serde_json::from_value(part).unwrap());
        assert!(part(json!({})).unwrap().is_none());
        assert!(part(json!({"filter": {"name_pattern": "("}})).is_err());
        assert!(part(json!({"enabled": true, "filter": {"name_pattern": "(a{1000}){1000}"}})).is_err());
    }

    #[test]
    fn data_stands_in_the_place_of_stubs() {
        let made = |mode: Mode| {
            let document = parse(DOCUMENT.as_bytes(), &Limits::default()).unwrap();
            let stubs = settings(json!({})).wanted(&document).unwrap();
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
        assert_eq!(made(Mode::Inline), expected);
        let list = made(Mode::List);
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
