//! Writing JSON: documents and the small objects around them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_layer::{Attachment, Document, RevId};

/// A string with its quotes.
pub fn string(text: &str, out: &mut Vec<u8>) {
    flatbed_layer::json::write_string(text, out);
}

/// A string, or `null`.
pub fn string_or_null(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => string(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// `"name":"text"`
pub fn member(name: &str, text: &str, out: &mut Vec<u8>) {
    string(name, out);
    out.push(b':');
    string(text, out);
}

/// A revision id with quotes. Its text has no need of escapes but for foreign ids, which get them.
pub fn rev(rev: &RevId, out: &mut Vec<u8>) {
    match rev.hash() {
        flatbed_layer::Hash::Md5(_) => {
            out.push(b'"');
            rev.write(out);
            out.push(b'"');
        }
        flatbed_layer::Hash::Text(_) => string(&rev.to_string(), out),
    }
}

/// A list of revision ids.
pub fn revs(revisions: &[RevId], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, revision) in revisions.iter().enumerate() {
        comma(at, out);
        rev(revision, out);
    }
    out.push(b']');
}

/// A number.
pub fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(value.to_string().as_bytes());
}

/// A document as CouchDB writes it: `_id`, `_rev`, `_deleted`, the body, what was asked for, stubs of attachments.
pub fn document(document: &Document, out: &mut Vec<u8>) {
    open_document(document, out);
    if !document.attachments.is_empty() {
        out.extend_from_slice(b",\"_attachments\":{");
        for (at, found) in document.attachments.iter().enumerate() {
            comma(at, out);
            attachment(found, "stub", false, out);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

/// `"name":{"content_type":...,"revpos":...,"digest":...,"length":...,"stub":true}`; `place`: `stub` or `follows`.
pub fn attachment(attachment: &Attachment, place: &str, with_encoding: bool, out: &mut Vec<u8>) {
    attachment_head(attachment, out);
    out.extend_from_slice(b",\"length\":");
    number(attachment.length, out);
    out.push(b',');
    string(place, out);
    out.extend_from_slice(b":true");
    if with_encoding && attachment.gzip {
        out.extend_from_slice(b",\"encoding\":\"gzip\",\"encoded_length\":");
        number(attachment.stored_length, out);
    }
    out.push(b'}');
}

/// An attachment's name and what is told of it up to its length, left open.
pub fn attachment_head(attachment: &Attachment, out: &mut Vec<u8>) {
    string(&attachment.name, out);
    out.extend_from_slice(b":{");
    member("content_type", &attachment.content_type, out);
    out.extend_from_slice(b",\"revpos\":");
    number(attachment.revpos, out);
    out.push(b',');
    member("digest", &digest(attachment), out);
}

/// CouchDB's digest of an attachment.
pub fn digest(attachment: &Attachment) -> String {
    format!("md5-{}", BASE64.encode(attachment.md5))
}

/// A document up to its attachments, left open.
fn open_document(document: &Document, out: &mut Vec<u8>) {
    out.reserve(document.body.len() + document.id.len() + 80);
    begin_document(document, out);
    out.extend_from_slice(&document.body);
    go_on_with_document(document, true, out);
}

/// What stands before a document's body.
pub fn begin_document(document: &Document, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"_id\":");
    string(&document.id, out);
    out.extend_from_slice(b",\"_rev\":");
    rev(&document.rev, out);
    if document.deleted {
        out.extend_from_slice(b",\"_deleted\":true");
    }
    if !document.body.is_empty() {
        out.push(b',');
    }
}

/// What stands behind a document's body up to its attachments, left open.
pub fn go_on_with_document(document: &Document, with_revisions: bool, out: &mut Vec<u8>) {
    if let Some(revisions) = document.revisions.as_ref().filter(|_| with_revisions) {
        out.extend_from_slice(b",\"_revisions\":{\"start\":");
        number(revisions.first().map_or(0, RevId::generation), out);
        out.extend_from_slice(b",\"ids\":[");
        for (at, rev) in revisions.iter().enumerate() {
            comma(at, out);
            string(&rev.hash_text(), out);
        }
        out.extend_from_slice(b"]}");
    }
    if let Some(revs_info) = &document.revs_info {
        out.extend_from_slice(b",\"_revs_info\":[");
        for (at, (revision, available)) in revs_info.iter().enumerate() {
            comma(at, out);
            out.extend_from_slice(b"{\"rev\":");
            rev(revision, out);
            out.extend_from_slice(b",\"status\":");
            string(if *available { "available" } else { "missing" }, out);
            out.push(b'}');
        }
        out.push(b']');
    }
    for (name, leaves) in [("_conflicts", &document.conflicts), ("_deleted_conflicts", &document.deleted_conflicts)] {
        if let Some(leaves) = leaves.as_ref().filter(|leaves| !leaves.is_empty()) {
            out.push(b',');
            string(name, out);
            out.push(b':');
            revs(leaves, out);
        }
    }
    if let Some(seq) = &document.local_seq {
        out.extend_from_slice(b",\"_local_seq\":");
        string(&seq.to_string(), out);
    }
}

/// A comma, but before the first.
pub fn comma(at: usize, out: &mut Vec<u8>) {
    if at > 0 {
        out.push(b',');
    }
}

/// `{"ok":true,"id":...,"rev":...}`
pub fn written(id: &str, revision: &RevId, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"ok\":true,\"id\":");
    string(id, out);
    out.extend_from_slice(b",\"rev\":");
    rev(revision, out);
    out.push(b'}');
}
