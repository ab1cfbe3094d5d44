//! The text of a row for many followers: the first one writes it, and all send it.

use bytes::Bytes;
use flatbed_layer::json::{Object, name};
use flatbed_layer::{ChangeRow, Document, Documents, FeedPosition, RevId, RowKind, TEXTS, TailDocument, TailRow};

use crate::json_out;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub all_leaves: bool,
    pub documents: Documents,
}

impl Form {
    /// Returns the index of this form among a row's cached texts.
    fn place(self) -> usize {
        let documents = match self.documents {
            Documents::No => 0,
            Documents::Yes => 1,
            Documents::WithConflicts | Documents::WithAllLeaves => 2,
        };
        (2 * documents + usize::from(self.all_leaves)) % TEXTS
    }
}

/// Returns the row as a line of JSON with a line end. Attachments are stubs.
pub(crate) fn line(row: &TailRow, form: Form) -> Bytes {
    let write = || {
        let mut out = Vec::with_capacity(256);
        let leaves = if form.all_leaves { &row.row.leaves[..] } else { std::slice::from_ref(&row.row.rev) };
        open(&row.row, Some(&row.row.place()), leaves, &mut out);
        let document = match (row.row.kind, form.documents, &row.document) {
            (RowKind::Changed, Documents::Yes | Documents::WithConflicts | Documents::WithAllLeaves, read) => {
                match read {
                    TailDocument::Read { document, .. } => Some(document),
                    TailDocument::NotRead => None,
                }
            }
            (RowKind::Changed | RowKind::Lost | RowKind::Revoked | RowKind::User, _, _) => None,
        };
        if let Some(document) = document {
            out.extend_from_slice(b",\"doc\":");
            // Another follower may have requested the conflicts.
            let passes_over = form.documents == Documents::Yes && document.conflicts.is_some();
            if passes_over || document.deleted_conflicts.is_some() {
                let conflicts = document.conflicts.clone().filter(|_| !passes_over);
                let shown = Document { conflicts, deleted_conflicts: None, ..Document::clone(document) };
                json_out::document(&shown, &mut out);
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

/// Writes a row up to its document, without the closing brace. Without a `place` the sequence is `null`.
pub(crate) fn open(row: &ChangeRow, place: Option<&FeedPosition>, leaves: &[RevId], out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    match place {
        Some(place) => json_out::place(place, open.place(name!("seq"))),
        None => {
            open.null(name!("seq"));
        }
    }
    open.string(name!("id"), &row.id);
    let mut changes = open.array(name!("changes"));
    for rev in leaves {
        json_out::rev(rev, changes.object().place(name!("rev")));
    }
    changes.end();
    if row.deleted {
        open.bool(name!("deleted"), true);
    }
    if row.kind == RowKind::Revoked {
        open.bool(name!("revoked"), true);
    }
    if !row.removed.is_empty() {
        open.array(name!("removed")).strings(row.removed.iter().map(String::as_str));
    }
    open.leave_open();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQ: &str = "0000000000000005-000000000000000700000000";

    fn changed() -> ChangeRow {
        let rev: RevId = "2-b".parse().unwrap();
        let leaves = vec![rev.clone(), "1-a".parse().unwrap()];
        let (seq, id) = (SEQ.parse().unwrap(), "d".to_owned());
        let (kind, because, removed) = (RowKind::Changed, None, Vec::new());
        let (leaf_count, deleted, doc, ends_at_ms) = (2, true, None, None);
        ChangeRow { kind, seq, because, id, rev, leaves, leaf_count, deleted, removed, doc, ends_at_ms }
    }

    fn document() -> TailDocument {
        let document = Document {
            id: "d".to_owned(),
            rev: "2-b".parse().unwrap(),
            deleted: true,
            body: b"\"secret\":1".to_vec(),
            revisions: None,
            revs_info: None,
            born: None,
            conflicts: None,
            deleted_conflicts: None,
            attachments: Vec::new(),
            local_seq: None,
            ends_at_ms: None,
        };
        TailDocument::Read { document: Box::new(document), with_conflicts: true }
    }

    /// A lost or revoked document shows its id and a revision, but no content, in all forms.
    #[test]
    fn what_is_lost_is_named_and_not_shown() {
        for documents in [Documents::No, Documents::Yes, Documents::WithConflicts] {
            for all_leaves in [false, true] {
                let form = Form { all_leaves, documents };
                let row_of = |row| TailRow::new(row, document(), tokio::time::Instant::now());
                let text = |row| String::from_utf8(line(&row_of(row), form).to_vec()).unwrap();
                let lost = text(changed().lost());
                assert_eq!(lost, format!("{{\"seq\":\"{SEQ}\",\"id\":\"d\",\"changes\":[{{\"rev\":\"2-b\"}}]}}\n"));
                let revoked = ChangeRow {
                    kind: RowKind::Revoked,
                    because: Some("0000000000000006-000000000000000700000000".parse().unwrap()),
                    removed: vec!["A".to_owned(), "\"".to_owned()],
                    deleted: false,
                    ..changed().lost()
                };
                let place = format!("0000000000000006-000000000000000700000000:{SEQ}");
                let members = r#""id":"d","changes":[{"rev":"2-b"}],"revoked":true,"removed":["A","\""]"#;
                assert_eq!(text(revoked), format!("{{\"seq\":\"{place}\",{members}}}\n"));
                let changed = text(changed());
                assert_eq!(changed.contains("secret"), documents != Documents::No, "{changed}");
                assert_eq!(changed.contains("1-a"), all_leaves, "{changed}");
            }
        }
    }
}
