//! The text of a row that many followers are sent: written by the first of them, and sent by all.

use bytes::Bytes;
use flatbed_layer::{ChangeRow, Document, Documents, RevId, Seq, TEXTS, TailDocument, TailRow};

use crate::json_out;

/// What a follower's rows look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub all_leaves: bool,
    pub documents: Documents,
}

impl Form {
    /// Which of a row's texts it is.
    fn place(self) -> usize {
        let documents = match self.documents {
            Documents::No => 0,
            Documents::Yes => 1,
            Documents::WithConflicts => 2,
        };
        (2 * documents + usize::from(self.all_leaves)) % TEXTS
    }
}

/// The row as a line of JSON, with the line's end. A document's attachments are stubs.
pub(crate) fn line(row: &TailRow, form: Form) -> Bytes {
    let write = || {
        let mut out = Vec::with_capacity(256);
        let leaves = if form.all_leaves { &row.row.leaves[..] } else { std::slice::from_ref(&row.row.rev) };
        open(&row.row, Some(&row.row.seq), leaves, &mut out);
        if let (Documents::Yes | Documents::WithConflicts, TailDocument::Read { document, .. }) =
            (form.documents, &row.document)
        {
            out.extend_from_slice(b",\"doc\":");
            // Conflicts may have been read for others.
            if form.documents == Documents::Yes && document.conflicts.is_some() {
                json_out::document(&Document { conflicts: None, ..Document::clone(document) }, &mut out);
            } else {
                json_out::document(document, &mut out);
            }
        }
        out.extend_from_slice(b"}\n");
        Bytes::from(out)
    };
    match row.texts.get(form.place()) {
        Some(text) => text.get_or_init(write).clone(),
        None => write(),
    }
}

/// A row up to its document, left open. Without its sequence it says `null` there.
pub(crate) fn open(row: &ChangeRow, seq: Option<&Seq>, leaves: &[RevId], out: &mut Vec<u8>) {
    match seq {
        // A sequence has no character that needs an escape.
        Some(seq) => {
            out.extend_from_slice(b"{\"seq\":\"");
            seq.write(out);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"{\"seq\":null"),
    }
    out.extend_from_slice(b",\"id\":");
    json_out::string(&row.id, out);
    out.extend_from_slice(b",\"changes\":[");
    for (at, rev) in leaves.iter().enumerate() {
        json_out::comma(at, out);
        out.extend_from_slice(b"{\"rev\":");
        json_out::rev(rev, out);
        out.push(b'}');
    }
    out.push(b']');
    if row.deleted {
        out.extend_from_slice(b",\"deleted\":true");
    }
}
