//! Documents as CouchDB's JSON text, for clients and for map functions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_flatten::json::{Array, Object, name, write_string};
use flatbed_revtree::{Hash, RevId};

use crate::document::attachments::Attachment;
use crate::document::edit::Document;

/// Appends a revision id with quotes. Only foreign ids need escapes.
pub fn rev(rev: &RevId, out: &mut Vec<u8>) {
    match rev.hash() {
        Hash::Md5(_) => {
            out.push(b'"');
            rev.write(out);
            out.push(b'"');
        }
        Hash::Text(_) => write_string(&rev.to_string(), out),
    }
}

/// Appends a list of revision ids.
pub fn revs(revisions: &[RevId], out: &mut Vec<u8>) {
    let mut array = Array::new(out);
    for revision in revisions {
        rev(revision, array.place());
    }
}

/// Appends a document as CouchDB writes it: `_id`, `_rev`, `_deleted`, the body, requested members, stubs of
/// attachments.
pub fn document(document: &Document, out: &mut Vec<u8>) {
    open_document(document, out);
    let mut open = Object::reopen(out);
    if !document.attachments.is_empty() {
        let mut attachments = open.object(name!("_attachments"));
        for found in &document.attachments {
            attachment(found, "stub", false, &mut attachments);
        }
    }
}

/// Adds `"name":{"content_type":...,"revpos":...,"digest":...,"length":...,"stub":true}` to `_attachments`; `place`:
/// `stub` or `follows`.
pub fn attachment(attachment: &Attachment, place: &str, with_encoding: bool, attachments: &mut Object<'_>) {
    let mut object = attachment_head(attachment, attachments);
    object.number("length", attachment.length).bool(place, true);
    if with_encoding {
        encoding(attachment, &mut object);
    }
}

/// Adds `"encoding":...,"encoded_length":...` to an attachment that is stored compressed.
pub fn encoding(attachment: &Attachment, object: &mut Object<'_>) {
    if attachment.gzip {
        object.string("encoding", "gzip").number("encoded_length", attachment.stored_length);
    }
}

/// Begins an attachment's object with its members up to its length.
pub fn attachment_head<'a>(attachment: &Attachment, attachments: &'a mut Object<'_>) -> Object<'a> {
    let mut object = attachments.object(attachment.name.as_str());
    object.string("content_type", &attachment.content_type).number("revpos", attachment.revpos);
    object.string("digest", &digest(attachment));
    object
}

/// Returns CouchDB's digest of an attachment.
pub fn digest(attachment: &Attachment) -> String {
    format!("md5-{}", BASE64.encode(attachment.md5))
}

/// Begins a document, up to its attachments, and leaves it open.
fn open_document(document: &Document, out: &mut Vec<u8>) {
    out.reserve(document.body.len() + document.id.len() + 80);
    begin_document(document, out);
    out.extend_from_slice(&document.body);
    go_on_with_document(document, true, out);
}

/// Appends the part of a document before its body.
pub fn begin_document(document: &Document, out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    rev(&document.rev, open.string(name!("_id"), &document.id).place(name!("_rev")));
    if document.deleted {
        open.bool(name!("_deleted"), true);
    }
    open.leave_open();
    if !document.body.is_empty() {
        out.push(b',');
    }
}

/// Appends the part of a document behind its body up to its attachments, and leaves it open.
pub fn go_on_with_document(document: &Document, with_revisions: bool, out: &mut Vec<u8>) {
    let mut open = Object::reopen(out);
    if let Some(revisions) = document.revisions.as_ref().filter(|_| with_revisions) {
        history(revisions, open.object(name!("_revisions")));
    }
    if let Some(revs_info) = &document.revs_info {
        let mut array = open.array("_revs_info");
        for (revision, available) in revs_info {
            let mut object = array.object();
            rev(revision, object.place(name!("rev")));
            object.string(name!("status"), if *available { "available" } else { "missing" });
        }
    }
    for (name, leaves) in [("_conflicts", &document.conflicts), ("_deleted_conflicts", &document.deleted_conflicts)] {
        if let Some(leaves) = leaves.as_ref().filter(|leaves| !leaves.is_empty()) {
            revs(leaves, open.place(name));
        }
    }
    if let Some(seq) = &document.local_seq {
        open.string("_local_seq", &seq.to_string());
    }
    open.leave_open();
}

/// Appends the value of `_revisions`: a revision and its ancestors.
pub fn history(revisions: &[RevId], mut object: Object<'_>) {
    object.number(name!("start"), revisions.first().map_or(0, RevId::generation));
    let mut ids = object.array(name!("ids"));
    for revision in revisions {
        ids.string(&revision.hash_text());
    }
}
