//! A row of a source's feed, as the worker takes it in.

use flatbed_flatten::json::{Limits, Value, parse};

use crate::checkpoint::Seq;
use crate::transform::json_of;

/// The longest id of a document, in bytes.
pub const ID_BYTES_MAX: usize = 8_000;

/// What a row says of its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It has a new state: the document as JSON text, its `_id` and `_rev` included.
    Changed(String),
    /// It has one that the row does not carry.
    ToBeRead,
    /// It is deleted.
    Deleted,
    /// The reader may no longer see it: `removed` or `revoked`.
    Removed,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The document's id.
    pub id: String,
    /// Its newest revision.
    pub rev: String,
    /// Its place in the feed.
    pub seq: Seq,
    /// What it says.
    pub what: What,
}

/// A page of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Its rows, in the feed's order, without those that are about no document.
    pub changes: Vec<Change>,
    /// How many rows it had.
    pub rows: usize,
    /// Where the next page begins.
    pub last_seq: Seq,
    /// Rows behind it, where the source tells.
    pub pending: Option<u64>,
}

/// An answer that is no page of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the source's answer is no page of changes: {0}")]
pub struct Nonsense(pub &'static str);

impl Page {
    /// From the answer of `_changes`. Sync Gateway's rows of users (`_user/...`) are left out.
    ///
    /// # Errors
    /// [`Nonsense`]. A single row that is none makes the page none: whatever it meant would be lost.
    pub fn read(text: &[u8]) -> Result<Page, Nonsense> {
        let value = parse(text, &Limits::default()).map_err(|_| Nonsense("it is no JSON"))?;
        let Some(Value::Array(rows)) = value.get("results") else { return Err(Nonsense("it has no `results`")) };
        let last_seq = value.get("last_seq").and_then(Seq::of).ok_or(Nonsense("it has no `last_seq`"))?;
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(change) = read_row(row)? {
                changes.push(change);
            }
        }
        let pending = match value.get("pending") {
            Some(Value::Number(text)) => text.parse().ok(),
            _ => None,
        };
        Ok(Page { changes, rows: rows.len(), last_seq, pending })
    }
}

fn read_row(row: &Value<'_>) -> Result<Option<Change>, Nonsense> {
    let id = row.get("id").and_then(Value::as_str).ok_or(Nonsense("a row has no `id`"))?;
    let seq = row.get("seq").and_then(Seq::of).ok_or(Nonsense("a row has no `seq`"))?;
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(Nonsense("an id is empty or longer than 8,000 bytes"));
    }
    if id.starts_with("_user/") || id.starts_with("_role/") {
        return Ok(None);
    }
    let first = match row.get("changes") {
        Some(Value::Array(changes)) => changes.first(),
        _ => None,
    };
    let rev = first.and_then(|change| change.get("rev")).and_then(Value::as_str).unwrap_or_default();
    let is = |name: &str| row.get(name) == Some(&Value::Bool(true));
    let is_removed = is("revoked") || matches!(row.get("removed"), Some(Value::Array(of)) if !of.is_empty());
    let doc = row.get("doc").filter(|doc| matches!(doc, Value::Object(_)));
    let what = match doc {
        _ if is("deleted") => What::Deleted,
        _ if is_removed => What::Removed,
        Some(doc) if doc.get("_deleted") == Some(&Value::Bool(true)) => What::Deleted,
        Some(doc) if doc.get("_removed") == Some(&Value::Bool(true)) => What::Removed,
        Some(doc) => What::Changed(json_of(doc)),
        None => What::ToBeRead,
    };
    if rev.is_empty() && what != What::Removed {
        return Err(Nonsense("a row has no revision"));
    }
    Ok(Some(Change { id: id.to_owned(), rev: rev.to_owned(), seq, what }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_of_couchdb_and_sync_gateway() {
        let page = br#"{"results":[
            {"seq":"1-a","id":"a","changes":[{"rev":"1-x"},{"rev":"1-w"}],"doc":{"_id":"a","_rev":"1-x","n":1.50}},
            {"seq":2,"id":"b","changes":[{"rev":"2-x"}],"deleted":true,"doc":{"_id":"b","_rev":"2-x","_deleted":true}},
            {"seq":"12:34","id":"c","changes":[{"rev":"3-x"}],"removed":["ch"],"doc":{"_id":"c","_removed":true}},
            {"seq":5,"id":"d","changes":[],"revoked":true},
            {"seq":6,"id":"_user/anna","changes":[]},
            {"seq":7,"id":"e","changes":[{"rev":"1-y"}],"doc":null}
        ],"last_seq":"9-z","pending":0}"#;
        let page = Page::read(page).unwrap();
        let found: Vec<_> =
            page.changes.iter().map(|change| (change.id.as_str(), change.seq.as_str(), change.what.clone())).collect();
        assert_eq!(
            found,
            [
                ("a", "1-a", What::Changed(r#"{"_id":"a","_rev":"1-x","n":1.50}"#.to_owned())),
                ("b", "2", What::Deleted),
                ("c", "12:34", What::Removed),
                ("d", "5", What::Removed),
                ("e", "7", What::ToBeRead),
            ]
        );
        assert_eq!((page.rows, page.last_seq.as_str(), page.pending), (6, "9-z", Some(0)));
    }

    #[test]
    fn nonsense() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"results":[]}"#,
            r#"{"results":{},"last_seq":1}"#,
            r#"{"results":[{}],"last_seq":1}"#,
            r#"{"results":[{"id":"a","changes":[{"rev":"1-a"}]}],"last_seq":1}"#,
            r#"{"results":[{"id":"a","seq":1,"changes":[]}],"last_seq":1}"#,
            r#"{"results":[{"id":"","seq":1,"changes":[{"rev":"1-a"}]}],"last_seq":1}"#,
            r#"{"results":[7],"last_seq":1}"#,
        ] {
            assert!(Page::read(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_a_page_or_nonsense(text in "[{}\\[\\]\":,a-z_0-9]{0,80}") {
            let _ = Page::read(text.as_bytes());
        }
    }
}
