//! Writers of JSON: documents and the small objects around them.

pub use flatbed_layer::json::write_number as number;
use flatbed_layer::json::{Object, name, write_string};
pub use flatbed_layer::text::{
    attachment, attachment_head, begin_document, digest, document, encoding, go_on_with_document, history, rev, revs,
};
use flatbed_layer::{FeedPosition, RevId, Seq};

/// Writes `"name":"text"`, for objects that are written piece by piece.
pub fn member(name: &str, text: &str, out: &mut Vec<u8>) {
    write_string(name, out);
    out.push(b':');
    write_string(text, out);
}

/// Writes the comma before any item but the first, for lists that are written piece by piece.
pub fn comma(at: usize, out: &mut Vec<u8>) {
    if at > 0 {
        out.push(b',');
    }
}

/// Writes a sequence with quotes. It has no character that needs an escape.
pub fn seq(seq: &Seq, out: &mut Vec<u8>) {
    out.push(b'"');
    seq.write(out);
    out.push(b'"');
}

/// Writes a position with quotes. It has no character that needs an escape.
pub fn place(place: &FeedPosition, out: &mut Vec<u8>) {
    out.push(b'"');
    place.write(out);
    out.push(b'"');
}

/// Writes `{"ok":true,"id":...,"rev":...}`.
pub fn written(id: &str, revision: &RevId, out: &mut Vec<u8>) {
    let mut object = Object::new(out);
    rev(revision, object.bool(name!("ok"), true).string(name!("id"), id).place(name!("rev")));
}
