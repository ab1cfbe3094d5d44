//! Rows of a source's feed.

use flatbed_flatten::json::{Limits, Value, as_written, parse, to_string};

use crate::checkpoint::Seq;

/// The longest id of a document, in bytes.
pub const ID_BYTES_MAX: usize = 8_000;

/// The content of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeContent {
    /// The new state: the document as JSON text in this program's form, with its `_id` and `_rev`.
    Changed(String),
    /// A new state that the row does not carry. It is read before delivery.
    ToBeRead,
    /// The document is deleted.
    Deleted,
    /// The reader lost access to the document: it was `removed` from the last of the reader's channels, or `revoked`.
    Removed,
}

/// A row of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The document's id.
    pub id: String,
    /// Its newest revision.
    pub rev: String,
    /// Its position in the feed.
    pub seq: Seq,
    /// The content.
    pub what: ChangeContent,
}

/// A page of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePage {
    /// The rows, in the feed's order, without those that concern no document.
    pub changes: Vec<Change>,
    /// The number of rows that the page had, including those left out of `changes`.
    pub rows: usize,
    /// The position at which the next page begins.
    pub last_seq: Seq,
    /// The number of rows after this page, if the source reports it.
    pub pending: Option<u64>,
}

/// The error for an answer that is not a page of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the source's answer is not a page of changes: {0}")]
pub struct MalformedAnswer(pub &'static str);

impl ChangePage {
    /// Parses an answer of `_changes` row by row, because a tree of the whole would be many times as large as the text.
    /// Skips Sync Gateway's rows of users (`_user/...`).
    ///
    /// # Errors
    /// [`MalformedAnswer`] if any row is malformed. Skipping a malformed row would lose its change.
    pub fn read(text: &[u8]) -> Result<ChangePage, MalformedAnswer> {
        let no_json = || MalformedAnswer("it is no JSON");
        let mut found: Option<(Vec<Change>, usize)> = None;
        let (mut last_seq, mut pending) = (None, None);
        let mut at = Spans { text, at: 0 };
        let mut members = at.enter(b'{').ok_or_else(no_json)?;
        while at.advance(&mut members).ok_or_else(no_json)? {
            let name = at.name().ok_or_else(no_json)?;
            match name {
                b"\"results\"" => {
                    let mut changes = Vec::new();
                    let mut count = 0;
                    let mut rows = at.enter(b'[').ok_or(MalformedAnswer("it has no `results`"))?;
                    while at.advance(&mut rows).ok_or_else(no_json)? {
                        count += 1;
                        let mut ahead = at;
                        if let Some(change) = usual_row(&mut ahead) {
                            at = ahead;
                            changes.push(change);
                            continue;
                        }
                        let row = at.span().ok_or_else(no_json)?;
                        let row = parse(row, &Limits::default()).map_err(|_| no_json())?;
                        changes.extend(read_row(&row)?);
                    }
                    found = Some((changes, count));
                }
                b"\"last_seq\"" => last_seq = Seq::of(&at.parsed().ok_or_else(no_json)?),
                b"\"pending\"" => {
                    pending = match at.parsed().ok_or_else(no_json)? {
                        Value::Number(text) => text.parse().ok(),
                        _ => None,
                    };
                }
                _ => drop(at.span().ok_or_else(no_json)?),
            }
        }
        if at.peek().is_some() {
            return Err(no_json());
        }
        let (changes, rows) = found.ok_or(MalformedAnswer("it has no `results`"))?;
        let last_seq = last_seq.ok_or(MalformedAnswer("it has no `last_seq`"))?;
        Ok(ChangePage { changes, rows, last_seq, pending })
    }
}

/// The bytes at the end of an answer that are searched for the position of the next page.
const TAIL_BYTES: usize = 2 * crate::checkpoint::SEQ_BYTES_MAX;

/// Returns the position of the next page from the members after the rows of an answer of `_changes`, before the rows
/// are parsed. `None`: no rows follow, or the source has another form.
pub(crate) fn next_page(text: &[u8]) -> Option<Seq> {
    let tail = text.get(text.len().saturating_sub(TAIL_BYTES)..)?;
    // The name inside a row would be followed by unbalanced brackets.
    let members = tail.get(memchr::memmem::rfind(tail, b"\"last_seq\"")?..)?;
    let mut object = Vec::with_capacity(members.len() + 1);
    object.push(b'{');
    object.extend_from_slice(members);
    let object = parse(&object, &Limits::default()).ok()?;
    let is_more = matches!(object.get("pending"), Some(Value::Number(pending)) if pending.parse::<u64>().is_ok_and(|rows| rows > 0));
    object.get("last_seq").and_then(Seq::of).filter(|_| is_more)
}

/// A cursor over a JSON text. It recognizes only brackets, strings and commas; the parser of each part checks the rest.
#[derive(Clone, Copy)]
struct Spans<'t> {
    text: &'t [u8],
    at: usize,
}

/// The state of iteration over an array or object.
struct Container {
    end: u8,
    is_first: bool,
}

impl<'t> Spans<'t> {
    /// Returns the next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.get(self.at)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    fn pass(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Enters an array or object that begins with `bracket`. `None`: the next value begins otherwise.
    fn enter(&mut self, bracket: u8) -> Option<Container> {
        self.pass(bracket)?;
        Some(Container { end: if bracket == b'{' { b'}' } else { b']' }, is_first: true })
    }

    /// Moves to the next element or name. False: the closing bracket was passed. `None`: malformed JSON.
    fn advance(&mut self, inside: &mut Container) -> Option<bool> {
        match self.peek()? {
            byte if byte == inside.end => {
                self.at += 1;
                return Some(false);
            }
            b',' if !inside.is_first => self.at += 1,
            _ if inside.is_first => {}
            _ => return None,
        }
        inside.is_first = false;
        Some(true)
    }

    /// Reads a name and moves to its value.
    fn name(&mut self) -> Option<&'t [u8]> {
        let name = self.span()?;
        self.pass(b':')?;
        Some(name)
    }

    /// Parses the value at the cursor, which is small.
    fn parsed(&mut self) -> Option<Value<'t>> {
        parse(self.span()?, &Limits::default()).ok()
    }

    /// Returns the span of the value at the cursor and moves past it.
    fn span(&mut self) -> Option<&'t [u8]> {
        self.peek()?;
        let begin = self.at;
        let mut depth = 0_usize;
        loop {
            match *self.text.get(self.at)? {
                b'"' => self.string()?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth > 0 => depth -= 1,
                // The end of the enclosing array or object.
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

    /// Moves to the closing quotation mark of a string.
    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.at += memchr::memchr2(b'"', b'\\', self.text.get(self.at..)?)?;
            if *self.text.get(self.at)? == b'"' {
                return Some(());
            }
            self.at += 2;
        }
    }
}

/// Parses a row of the usual form, whose document is in this program's form: copies its text without building a tree.
/// `None`: [`read_row`] decides.
fn usual_row(at: &mut Spans<'_>) -> Option<Change> {
    let mut members = at.enter(b'{')?;
    let (mut id, mut seq, mut changes, mut doc) = (None, None, None, None);
    while at.advance(&mut members)? {
        let is_first = match at.name()? {
            b"\"id\"" => id.replace(at.parsed()?).is_none(),
            b"\"seq\"" => seq.replace(at.parsed()?).is_none(),
            b"\"changes\"" => changes.replace(at.parsed()?).is_none(),
            b"\"doc\"" => doc.replace(at.span()?).is_none(),
            _ => false,
        };
        if !is_first {
            return None;
        }
    }
    let (id, doc) = (id.as_ref().and_then(Value::as_str)?, doc.filter(|doc| doc.starts_with(b"{"))?);
    let is_usual = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.starts_with('_');
    let says = |name: &str| memchr::memmem::find(doc, name.as_bytes()).is_some();
    if !is_usual || says("\"_deleted\"") || says("\"_removed\"") {
        return None;
    }
    let rev = first_rev(changes.as_ref()).filter(|rev| !rev.is_empty())?.to_owned();
    let text = as_written(doc, &Limits::default()).ok()??.to_owned();
    Some(Change { id: id.to_owned(), rev, seq: seq.as_ref().and_then(Seq::of)?, what: ChangeContent::Changed(text) })
}

fn first_rev<'v>(changes: Option<&'v Value<'_>>) -> Option<&'v str> {
    let Some(Value::Array(changes)) = changes else { return None };
    changes.first()?.get("rev").and_then(Value::as_str)
}

pub(crate) fn read_row(row: &Value<'_>) -> Result<Option<Change>, MalformedAnswer> {
    let id = row.get("id").and_then(Value::as_str).ok_or(MalformedAnswer("a row has no `id`"))?;
    let seq = row.get("seq").and_then(Seq::of).ok_or(MalformedAnswer("a row has no `seq`"))?;
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(MalformedAnswer("an id is empty or longer than 8,000 bytes"));
    }
    if id.starts_with("_user/") || id.starts_with("_role/") {
        return Ok(None);
    }
    let rev = first_rev(row.get("changes")).unwrap_or_default();
    let is = |name: &str| row.get(name) == Some(&Value::Bool(true));
    let has_left = matches!(row.get("removed"), Some(Value::Array(of)) if !of.is_empty());
    let doc = row.get("doc").filter(|doc| matches!(doc, Value::Object(_)));
    let what = match doc {
        _ if is("deleted") => ChangeContent::Deleted,
        _ if is("revoked") => ChangeContent::Removed,
        // The document may still be in another channel of the reader. Only reading the document tells.
        None if has_left && rev.is_empty() => ChangeContent::Removed,
        Some(doc) if doc.get("_deleted") == Some(&Value::Bool(true)) => ChangeContent::Deleted,
        Some(doc) if doc.get("_removed") == Some(&Value::Bool(true)) => ChangeContent::Removed,
        Some(doc) => ChangeContent::Changed(to_string(doc)),
        None => ChangeContent::ToBeRead,
    };
    if rev.is_empty() && what != ChangeContent::Removed {
        return Err(MalformedAnswer("a row has no revision"));
    }
    Ok(Some(Change { id: id.to_owned(), rev: rev.to_owned(), seq, what }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn where_the_next_page_begins_is_known_before_the_rows() {
        let of = |tail: &str| next_page(tail.as_bytes()).map(|seq| seq.as_str().to_owned());
        let row = r#"{"results":[{"seq":"1-a","id":"a","changes":[],"doc":{"_id":"a"#;
        for (tail, seq) in [
            (r#""}}],"last_seq":"7-x","pending":3}"#, Some("7-x")),
            ("\"}}],\n\"last_seq\": 7 , \"pending\":3}\n", Some("7")),
            // No rows follow, or `pending` is missing.
            (r#""}}],"last_seq":"7-x","pending":0}"#, None),
            (r#""}}],"last_seq":"7-x"}"#, None),
            (r#""}}],"pending":3,"last_seq":"7-x"}"#, None),
            (r#""}}],"last_seq":null,"pending":3}"#, None),
            (r#""}}],"last_seq":"7-x","pending":"#, None),
            // A document can contain the same text.
            (r#"","last_seq":"7-x","pending":3}}]}"#, None),
            (r#"","last_seq":"7-x","pending":3}}],"last_seq":"8-x","pending":3}"#, Some("8-x")),
            (r#"","t":"\"last_seq\":\"7-x\",\"pending\":3}"}}]}"#, None),
            ("", None),
        ] {
            assert_eq!(of(&format!("{row}{tail}")).as_deref(), seq, "{tail}");
        }
        assert_eq!(of(&format!("{row}\"}}}}],\"last_seq\":\"{}\",\"pending\":3}}", "x".repeat(9_000))), None);
    }

    #[test]
    fn rows_of_couchdb_and_sync_gateway() {
        let page = br#"{"results":[
            {"seq":"1-a","id":"a","changes":[{"rev":"1-x"},{"rev":"1-w"}],"doc":{"_id":"a","_rev":"1-x","n":1.50}},
            {"seq":2,"id":"b","changes":[{"rev":"2-x"}],"deleted":true,"doc":{"_id":"b","_rev":"2-x","_deleted":true}},
            {"seq":"12:34","id":"c","changes":[{"rev":"3-x"}],"removed":["ch"],"doc":{"_id":"c","_removed":true}},
            {"seq":5,"id":"d","changes":[],"revoked":true},
            {"seq":6,"id":"_user/anna","changes":[]},
            {"seq":7,"id":"e","changes":[{"rev":"1-y"}],"doc":null},
            {"seq":8,"id":"f","changes":[{"rev":"2-z"}],"removed":["ch"],"doc":{"_id":"f","_rev":"2-z"}},
            {"seq":9,"id":"g","changes":[{"rev":"2-z"}],"removed":["ch"]}
        ],"last_seq":"9-z","pending":0}"#;
        let page = ChangePage::read(page).unwrap();
        let found: Vec<_> =
            page.changes.iter().map(|change| (change.id.as_str(), change.seq.as_str(), change.what.clone())).collect();
        assert_eq!(
            found,
            [
                ("a", "1-a", ChangeContent::Changed(r#"{"_id":"a","_rev":"1-x","n":1.50}"#.to_owned())),
                ("b", "2", ChangeContent::Deleted),
                ("c", "12:34", ChangeContent::Removed),
                ("d", "5", ChangeContent::Removed),
                ("e", "7", ChangeContent::ToBeRead),
                ("f", "8", ChangeContent::Changed(r#"{"_id":"f","_rev":"2-z"}"#.to_owned())),
                ("g", "9", ChangeContent::ToBeRead),
            ]
        );
        assert_eq!((page.rows, page.last_seq.as_str(), page.pending), (8, "9-z", Some(0)));
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
            assert!(ChangePage::read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn rows_are_cut_as_they_stand() {
        let page = ChangePage::read(
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
            assert!(ChangePage::read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn rows_are_what_they_are_however_they_are_written() {
        let rows = [
            r#"{"seq":"1","id":"a","changes":[{"rev":"1-a"}],"doc":{"_id":"a","n":1.50}}"#,
            r#"{"seq":1,"id":"a\u0062","changes":[{"rev":"1-a"}],"doc":{"n": 1}}"#,
            r#"{"seq":[1,"x"],"id":"a","changes":[{"rev":"1-a"}],"doc":{"n":1,"n":2,"x":"\/"}}"#,
            r#"{"seq":1,"\u0069d":"a","changes":[{"rev":"1-a"}],"doc":{"_removed":true}}"#,
            r#"{"seq":1,"id":"a","id":"b","changes":[{"rev":"1-a"}],"doc":{"\u005fdeleted":true}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{"_deleted":false,"x":{"_deleted":true}}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{},"deleted":true}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":null}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}]}"#,
            r#"{"seq":1,"id":"_design/a","changes":[{"rev":"1-a"}],"doc":{"views":{}}}"#,
            r#"{"seq":1,"id":"_user/a","changes":[],"doc":{}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{"n":01}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{"n":1],"x":"}"}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"},],"doc":{}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":""}],"doc":{}}"#,
            r#"{"seq":1,"id":"a","changes":[],"doc":{}}"#,
            r#"{"seq":null,"id":"a","changes":[{"rev":"1-a"}],"doc":{}}"#,
            r#"{"seq":1,"id":"","changes":[{"rev":"1-a"}],"doc":{}}"#,
            r#"{"seq":1,"changes":[{"rev":"1-a"}],"doc":{}}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{}"#,
            r#"{"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{"x":"\x"}}"#,
        ];
        for row in rows {
            let whole = parse(row.as_bytes(), &Limits::default()).map_err(|_| ());
            let expected = whole.and_then(|row| read_row(&row).map_err(|_| ()));
            let page = ChangePage::read(format!("{{\"results\":[{row}],\"last_seq\":1}}").as_bytes());
            assert_eq!(page.map(|page| page.changes.into_iter().next()).map_err(|_| ()), expected, "{row}");
        }
    }

    proptest! {
        /// The page equals the result of parsing the whole answer at once.
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
            let page = ChangePage::read(text.as_bytes()).unwrap();
            let whole = parse(text.as_bytes(), &Limits::default()).unwrap();
            let Some(Value::Array(rows)) = whole.get("results") else { panic!() };
            let expected: Vec<_> = rows.iter().filter_map(|row| read_row(row).unwrap()).collect();
            prop_assert_eq!(page.changes, expected);
        }
    }

    proptest! {
        #[test]
        fn anything_is_a_page_or_nonsense(text in "[{}\\[\\]\":,a-z_0-9]{0,80}") {
            let _ = ChangePage::read(text.as_bytes());
        }
    }
}
