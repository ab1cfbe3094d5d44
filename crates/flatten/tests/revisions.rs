//! Revision ids that CouchDB 3.5.0 gave, edit by edit; those of documents with attachments come with attachments.

use flatbed_flatten::etf::body_revision;
use flatbed_flatten::json::{Limits, Value, parse};

#[test]
fn every_recorded_id() {
    let mut edits = 0;
    let mut wrong = Vec::new();
    for line in include_str!("data/revisions.jsonl").lines() {
        let document: serde_json::Value = serde_json::from_str(line).unwrap();
        if line.contains("_attachments") {
            continue;
        }
        let mut parent: Option<(u64, Vec<u8>)> = None;
        for edit in document["edits"].as_array().unwrap() {
            let text = edit["body"].as_str().unwrap();
            let Value::Object(mut members) = parse(text.as_bytes(), &Limits::default()).unwrap() else { panic!() };
            members.retain(|(name, _)| name != "_deleted");
            let deleted = edit["deleted"].as_bool().unwrap_or(false);
            let body = Value::Object(members);
            let hash = body_revision(parent.as_ref().map(|(g, h)| (*g, h.as_slice())), deleted, &body);
            let generation = parent.map_or(0, |(generation, _)| generation) + 1;
            let found = format!("{generation}-{}", hash.map(|byte| format!("{byte:02x}")).concat());
            let expected = edit["rev"].as_str().unwrap();
            if found != expected {
                wrong.push(format!("{text}: {found}, CouchDB {expected}"));
            }
            let digits = expected.split_once('-').unwrap().1;
            let raw = (0..16).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect();
            parent = Some((generation, raw));
            edits += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(edits > 150, "{edits}");
}
