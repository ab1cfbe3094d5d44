//! The lines of a dump, beside its documents.
//!
//! A full dump begins with a head, which holds the settings of the database, and ends with a tail, so that a dump that
//! was cut off is known as such. The data of large attachments follow their document on lines of their own. A dump
//! without these lines, as older versions wrote it, is loaded too. No document has these members: CouchDB's API refuses
//! names that begin with an underscore and are not its own.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use flatbed_client::{
    encode_segment,
    split::{member, without},
};
use flatbed_layer::json::{self as exact, Limits};
use serde_json::{Value, json};

/// The bytes of an attachment on one line, a multiple of three.
pub(crate) const DATA_BYTES: usize = 3 << 16;

const VERSION: u64 = 1;

/// The beginning of every line that is no document.
const PREFIX: &[u8] = b"{\"_flatbed_";

/// The settings of a dumped database.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Head {
    pub database: String,
    pub is_partitioned: bool,
    pub has_channels: bool,
    /// The sync function of a database with channels.
    pub sync: Option<String>,
    pub revs_limit: Option<u64>,
    /// The content of `_security`, as JSON text: a float would round large numbers.
    pub security: Option<String>,
}

/// A line of a dump.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    Document,
    Head(Head),
    /// A piece of the document's current attachment.
    Data(Vec<u8>),
    /// The document that was begun no longer exists.
    Void,
    /// The end of the dump, with the numbers of revisions that it has and that it leaves out.
    Tail {
        revisions: Option<u64>,
        left_out: u64,
    },
    /// A line of a later version, or a damaged one.
    Unknown,
}

/// An attachment whose data follow their document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FollowingAttachment {
    pub name: String,
    pub content_type: String,
    pub length: u64,
}

impl Head {
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut head = json!({ "version": VERSION, "database": self.database });
        if self.is_partitioned {
            head["partitioned"] = true.into();
        }
        if self.has_channels {
            head["channels"] = true.into();
        }
        if let Some(function) = &self.sync {
            head["sync"] = function.as_str().into();
        }
        if let Some(limit) = self.revs_limit {
            head["revs_limit"] = limit.into();
        }
        let mut text = head.to_string();
        if let Some(security) = &self.security {
            text.pop();
            text.extend([",\"security\":", security.as_str(), "}"]);
        }
        format!("{{\"_flatbed_dump\":{text}}}\n").into_bytes()
    }

    /// `text`: the line of `head`.
    fn read(head: &Value, text: &[u8]) -> Option<Head> {
        (head["version"].as_u64()? == VERSION).then(|| Head {
            database: head["database"].as_str().unwrap_or_default().to_owned(),
            is_partitioned: head["partitioned"] == true,
            has_channels: head["channels"] == true,
            sync: head["sync"].as_str().map(str::to_owned),
            revs_limit: head["revs_limit"].as_u64(),
            security: security(text),
        })
    }
}

/// Returns the content of `_security` in the line of a head.
fn security(line: &[u8]) -> Option<String> {
    let head = line.get(member(line, "_flatbed_dump")?.value)?;
    compact_object(head.get(member(head, "security")?.value)?)
}

/// Returns an object as compact JSON text, with numbers as written; `None`: the text is not an object.
pub(crate) fn compact_object(text: &[u8]) -> Option<String> {
    let value = exact::parse(text, &Limits::default()).ok()?;
    let mut compact = Vec::new();
    exact::write(&value, &mut compact);
    String::from_utf8(compact).ok().filter(|_| matches!(value, exact::Value::Object(_)))
}

/// Writes a piece of an attachment, of at most [`DATA_BYTES`].
pub(crate) fn data_line(data: &[u8]) -> Vec<u8> {
    format!("{{\"_flatbed_data\":\"{}\"}}\n", BASE64_STANDARD.encode(data)).into_bytes()
}

/// The line behind a document whose attachments cannot be read to their end.
pub(crate) const VOID_LINE: &[u8] = b"{\"_flatbed_void\":true}\n";

/// Writes the last line.
pub(crate) fn tail_line(revisions: u64, left_out: u64) -> Vec<u8> {
    format!("{{\"_flatbed_end\":{{\"revisions\":{revisions},\"left_out\":{left_out}}}}}\n").into_bytes()
}

/// Tells the lines of a dump apart.
pub(crate) fn line(text: &[u8]) -> Line {
    if !text.starts_with(PREFIX) {
        return Line::Document;
    }
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return Line::Unknown };
    if let Some(data) = value.get("_flatbed_data").and_then(Value::as_str) {
        return BASE64_STANDARD.decode(data).map_or(Line::Unknown, Line::Data);
    }
    if let Some(head) = value.get("_flatbed_dump") {
        return Head::read(head, text).map_or(Line::Unknown, Line::Head);
    }
    if let Some(end) = value.get("_flatbed_end") {
        return Line::Tail { revisions: end["revisions"].as_u64(), left_out: end["left_out"].as_u64().unwrap_or(0) };
    }
    if value.get("_flatbed_void").is_some() { Line::Void } else { Line::Unknown }
}

/// Returns the attachments of a document, ordered by name; empty if it has none.
pub(crate) fn attachments(document: &[u8]) -> Option<BTreeMap<String, Value>> {
    match member(document, "_attachments") {
        None => Some(BTreeMap::new()),
        Some(found) => serde_json::from_slice(document.get(found.value)?).ok(),
    }
}

/// Returns a document whose attachments follow, with these in their order. `document` has stubs, with `encoding` for
/// those that are stored compressed. `None`: it is malformed.
pub(crate) fn with_following(document: &[u8]) -> Option<(Vec<u8>, Vec<FollowingAttachment>)> {
    let mut written = serde_json::Map::new();
    let mut following = Vec::new();
    for (name, stub) in attachments(document)? {
        let length = stub["length"].as_u64()?;
        let content_type = stub["content_type"].as_str().unwrap_or("application/octet-stream").to_owned();
        let mut attachment = json!({ "content_type": content_type, "length": length, "follows": true });
        for kept in ["revpos", "digest"] {
            // The digest of a compressed attachment does not match the data that follow.
            if let Some(value) = stub.get(kept).filter(|_| kept == "revpos" || stub.get("encoding").is_none()) {
                attachment[kept] = value.clone();
            }
        }
        written.insert(name.clone(), attachment);
        following.push(FollowingAttachment { name, content_type, length });
    }
    let rest = without(document.trim_ascii(), "_attachments");
    let mut text = rest.strip_suffix(b"}")?.trim_ascii_end().to_vec();
    if !text.ends_with(b"{") {
        text.push(b',');
    }
    text.extend_from_slice(format!("\"_attachments\":{}}}", Value::Object(written)).as_bytes());
    Some((text, following))
}

/// Returns the attachments that follow a document of a dump, in their order; empty if its attachments are in it.
pub(crate) fn following(document: &[u8]) -> Option<Vec<FollowingAttachment>> {
    let mut following = Vec::new();
    for (name, stub) in attachments(document)? {
        if stub["follows"] != true {
            continue;
        }
        let length = stub["length"].as_u64()?;
        let content_type = stub["content_type"].as_str().unwrap_or("application/octet-stream").to_owned();
        following.push(FollowingAttachment { name, content_type, length });
    }
    Some(following)
}

/// Returns the path of a document below its database.
pub(crate) fn document_path(id: &str) -> String {
    match id.split_once('/') {
        Some((kind @ ("_design" | "_local"), name)) => format!("{kind}/{}", encode_segment(name)),
        _ => encode_segment(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_written() {
        let head = Head {
            database: "a/b".into(),
            is_partitioned: true,
            has_channels: true,
            sync: Some("function (doc) {}".into()),
            revs_limit: Some(7),
            security: Some(r#"{"admins":{"names":["anna"]},"n":123456789012345678901234567890}"#.into()),
        };
        let trimmed = |text: Vec<u8>| line(text.trim_ascii());
        assert_eq!(trimmed(head.line()), Line::Head(head));
        assert_eq!(trimmed(Head::default().line()), Line::Head(Head::default()));
        assert_eq!(trimmed(data_line(&[0, 255, 7])), Line::Data(vec![0, 255, 7]));
        assert_eq!(trimmed(VOID_LINE.to_vec()), Line::Void);
        assert_eq!(trimmed(tail_line(5, 2)), Line::Tail { revisions: Some(5), left_out: 2 });
        for unknown in
            ["{\"_flatbed_dump\":{\"version\":2}}", "{\"_flatbed_data\":\"%\"}", "{\"_flatbed_x\":1}", "{\"_flatbed_"]
        {
            assert_eq!(line(unknown.as_bytes()), Line::Unknown, "{unknown}");
        }
        assert_eq!(line(br#"{"_id":"_flatbed_dump"}"#), Line::Document);
    }

    #[test]
    fn attachments_follow_in_the_order_of_their_names() {
        let document = br#"{"_id":"a","_attachments":{"b":{"content_type":"x/y","revpos":2,"length":5,"digest":"md5-b",
            "stub":true},"a":{"length":3,"digest":"md5-a","encoding":"gzip","revpos":0,"stub":true}},"n":1.0}
"#;
        let (text, parts) = with_following(document).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("{\"_id\":\"a\",\"n\":1.0,\"_attachments\":{\"a\":"), "{text}");
        assert!(text.contains("md5-b") && !text.contains("md5-a") && text.contains("\"revpos\":0"), "{text}");
        let names: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.length)).collect();
        assert_eq!(names, [("a", 3), ("b", 5)]);
        assert_eq!(following(text.as_bytes()), Some(parts));
        assert_eq!(following(document), Some(Vec::new()));
        assert_eq!(with_following(br#"{"_id":"a","_attachments":{"a":{}}}"#), None);
        assert_eq!((attachments(b"{\"_attachments\":1}"), attachments(b"{}")), (None, Some(BTreeMap::new())));
    }

    #[test]
    fn paths_of_documents() {
        for (id, path) in [("a/b", "a%2Fb"), ("_design/a/b", "_design/a%2Fb"), ("_local/x", "_local/x"), ("_id", "_id")]
        {
            assert_eq!(document_path(id), path);
        }
    }
}
