//! Revision ids of CouchDB 3.5.0, edit by edit.
#![allow(clippy::unwrap_used)]

use flatbed_flatten::etf::{AttachmentDigest, revision};
use flatbed_flatten::json::{Limits, Value, parse};
use md5::{Digest, Md5};

/// An attachment of the line's document: name, type, MD5.
type Attachment = (String, String, [u8; 16]);

/// CouchDB stores texts compressed: the MD5 of zlib 1.3's output (gzip, level 8) by the attachment's data.
const COMPRESSED: [(&str, &str); 3] = [
    ("ZGF0YTBhLnR4dA==", "9c0fda76da814a48561a392c3e6f34ab"),
    ("ZGF0YTFhLnR4dA==", "db1ec41d026b4255d758778aab59cfba"),
    ("ZGF0YTPDqS50eHQ=", "f01f3e226c952d8a5c8c51525b0faf8c"),
];

fn hash_bytes(digits: &str) -> [u8; 16] {
    std::array::from_fn(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut out = Vec::new();
    let mut bits = 0_u32;
    let mut count = 0;
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(digit(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

/// The attachments of an edit: those with data are new, stubs are unchanged.
fn attachments(written: &Value<'_>, before: &[Attachment]) -> Vec<Attachment> {
    let Value::Object(written) = written else { panic!("no object") };
    let one = |(name, value): &(std::borrow::Cow<'_, str>, Value<'_>)| match value.get("data").and_then(Value::as_str) {
        Some(data) => {
            let content_type = value.get("content_type").and_then(Value::as_str).unwrap();
            let compressed = COMPRESSED.iter().find(|(of, _)| content_type == "text/plain" && *of == data);
            let md5 = compressed.map_or_else(|| Md5::digest(base64(data)).into(), |(_, md5)| hash_bytes(md5));
            (name.to_string(), content_type.to_owned(), md5)
        }
        None => before.iter().find(|old| old.0 == **name).unwrap().clone(),
    };
    written.iter().map(one).collect()
}

#[test]
fn every_recorded_id() {
    let mut edits = 0;
    let mut wrong = Vec::new();
    for line in include_str!("../data/revisions.jsonl").lines() {
        let document: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut parent: Option<(u64, Vec<u8>)> = None;
        let mut attached = Vec::new();
        for edit in document["edits"].as_array().unwrap() {
            let text = edit["body"].as_str().unwrap();
            let Value::Object(mut members) = parse(text.as_bytes(), &Limits::default()).unwrap() else { panic!() };
            let written = members.iter().find(|(name, _)| name == "_attachments");
            attached = written.map(|(_, written)| attachments(written, &attached)).unwrap_or_default();
            members.retain(|(name, _)| !name.starts_with('_'));
            let deleted = edit["deleted"].as_bool().unwrap_or(false);
            let digests: Vec<AttachmentDigest<'_>> = attached
                .iter()
                .map(|(name, content_type, md5)| AttachmentDigest { name, content_type, md5: *md5 })
                .collect();
            let raw_parent = parent.as_ref().map(|(generation, hash)| (*generation, hash.as_slice()));
            let hash = revision(raw_parent, deleted, &Value::Object(members), &digests);
            let generation = parent.map_or(0, |(generation, _)| generation) + 1;
            let found = format!("{generation}-{}", hash.map(|byte| format!("{byte:02x}")).concat());
            let expected = edit["rev"].as_str().unwrap();
            if found != expected {
                wrong.push(format!("{text}: {found}, CouchDB {expected}"));
            }
            let digits = expected.split_once('-').unwrap().1;
            parent = Some((generation, hash_bytes(digits).to_vec()));
            edits += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(edits, 162);
}
