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
    /// From the answer of `_changes`, one row after the other: a tree of all of them would be many times as large as the text. Sync
    /// Gateway's rows of users (`_user/...`) are left out.
    ///
    /// # Errors
    /// [`Nonsense`]. A single row that is none makes the page none: whatever it meant would be lost.
    pub fn read(text: &[u8]) -> Result<Page, Nonsense> {
        let no_json = || Nonsense("it is no JSON");
        let mut found: Option<(Vec<Change>, usize)> = None;
        let (mut last_seq, mut pending) = (None, None);
        let mut members = Spans::of(text, b'{').ok_or_else(no_json)?;
        while let Some(name) = members.next().ok_or_else(no_json)? {
            let value = members.value().ok_or_else(no_json)?;
            let small = || parse(value, &Limits::default()).map_err(|_| no_json());
            match name {
                b"\"results\"" => {
                    let mut changes = Vec::new();
                    let mut count = 0;
                    let mut rows = Spans::of(value, b'[').ok_or(Nonsense("it has no `results`"))?;
                    while let Some(row) = rows.next().ok_or_else(no_json)? {
                        count += 1;
                        let row = parse(row, &Limits::default()).map_err(|_| no_json())?;
                        changes.extend(read_row(&row)?);
                    }
                    found = Some((changes, count));
                }
                b"\"last_seq\"" => last_seq = Seq::of(&small()?),
                b"\"pending\"" => {
                    pending = match small()? {
                        Value::Number(text) => text.parse().ok(),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        let (changes, rows) = found.ok_or(Nonsense("it has no `results`"))?;
        let last_seq = last_seq.ok_or(Nonsense("it has no `last_seq`"))?;
        Ok(Page { changes, rows, last_seq, pending })
    }
}

/// The elements of an array or the names of an object with their values, as they stand in the text. What each of them is its parser says;
/// here only brackets, strings and commas are seen.
struct Spans<'t> {
    text: &'t [u8],
    at: usize,
    is_first: bool,
    is_object: bool,
}

impl<'t> Spans<'t> {
    /// `None`: it does not begin so.
    fn of(text: &'t [u8], bracket: u8) -> Option<Spans<'t>> {
        let mut spans = Spans { text, at: 0, is_first: true, is_object: bracket == b'{' };
        (spans.peek()? == bracket).then(|| spans.at += 1)?;
        Some(spans)
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.get(self.at)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// The next element or name. `Some(None)`: it was the last, and nothing stands behind. `None`: it is no JSON.
    fn next(&mut self) -> Option<Option<&'t [u8]>> {
        let end = if self.is_object { b'}' } else { b']' };
        match self.peek()? {
            byte if byte == end => {
                self.at += 1;
                return if self.peek().is_none() { Some(None) } else { None };
            }
            b',' if !self.is_first => self.at += 1,
            _ if self.is_first => {}
            _ => return None,
        }
        self.is_first = false;
        self.span().map(Some)
    }

    /// The value of the name that came last.
    fn value(&mut self) -> Option<&'t [u8]> {
        (self.peek()? == b':').then(|| self.at += 1)?;
        self.span()
    }

    /// To the end of what begins here.
    fn span(&mut self) -> Option<&'t [u8]> {
        self.peek()?;
        let begin = self.at;
        let mut depth = 0_usize;
        loop {
            match *self.text.get(self.at)? {
                b'"' => self.string()?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth > 0 => depth -= 1,
                // The end of what it is in.
                b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => break,
                _ => {}
            }
            let last = *self.text.get(self.at)?;
            self.at += 1;
            if depth == 0 && matches!(last, b'"' | b'}' | b']') {
                break;
            }
        }
        self.text.get(begin..self.at).filter(|span| !span.is_empty())
    }

    /// To the last quotation mark of a string.
    fn string(&mut self) -> Option<()> {
        loop {
            self.at += 1;
            match *self.text.get(self.at)? {
                b'"' => return Some(()),
                b'\\' => self.at += 1,
                _ => {}
            }
        }
    }
}

pub(crate) fn read_row(row: &Value<'_>) -> Result<Option<Change>, Nonsense> {
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

    #[test]
    fn rows_are_cut_as_they_stand() {
        let page = Page::read(
            b" { \"x\" : {\"a\":[\"}\\\"\"]} , \"results\":[ {\"id\":\"a]}\\\\\",\"seq\":1,\"changes\":[{\"rev\":\"1-a\"}]} , {\"seq\":\"2,\",\"id\":\"b\",\"changes\":[{\"rev\":\"1-b\"}]}\n],\n\"last_seq\":\"2,\",\"pending\" : 7 }\n",
        )
        .unwrap();
        let ids: Vec<_> = page.changes.iter().map(|change| change.id.as_str()).collect();
        assert_eq!((ids, page.last_seq.as_str(), page.pending, page.rows), (vec!["a]}\\", "b"], "2,", Some(7), 2));
        for text in [
            "{\"results\":[],\"last_seq\":1}x",
            "{\"results\":[,],\"last_seq\":1}",
            "{\"results\":[] \"last_seq\":1}",
            "{\"results\":[],\"last_seq\":1",
            "{\"results\":[],\"last_seq\":}",
            "{\"results\" [],\"last_seq\":1}",
            "{\"results\":[}],\"last_seq\":1}",
        ] {
            assert!(Page::read(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        /// A page is what a parser of the whole would make of it.
        #[test]
        fn cut_rows_are_those_of_the_whole(
            rows in proptest::collection::vec(("[a-c\"\\\\{}\\[\\],: ]{1,8}", 0_u32..1000, any::<bool>()), 0..8), is_pretty in any::<bool>(),
        ) {
            let of = |(id, n, has_doc): &(String, u32, bool)| {
                let doc = if *has_doc { serde_json::json!({"_id": id, id.as_str(): [n, {"x": id}]}) } else { serde_json::Value::Null };
                serde_json::json!({"id": id, "seq": n, "changes": [{"rev": "1-x"}], "doc": doc})
            };
            let whole = serde_json::json!({"results": rows.iter().map(of).collect::<Vec<_>>(), "last_seq": "9"});
            let text = if is_pretty { serde_json::to_string_pretty(&whole).unwrap() } else { whole.to_string() };
            let page = Page::read(text.as_bytes()).unwrap();
            let found: Vec<_> = page.changes.iter().map(|change| (change.id.clone(), change.seq.as_str().to_owned())).collect();
            let expected: Vec<_> = rows.iter().map(|(id, n, _)| (id.clone(), n.to_string())).collect();
            prop_assert_eq!(found, expected);
        }
    }

    proptest! {
        #[test]
        fn anything_is_a_page_or_nonsense(text in "[{}\\[\\]\":,a-z_0-9]{0,80}") {
            let _ = Page::read(text.as_bytes());
        }
    }
}
