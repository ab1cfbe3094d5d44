//! The parser of one feed: HTTP/1.1's chunks, lines, and the facts of each row, read without parsing its JSON.

use memchr::{memchr, memmem};

use crate::documents;

/// The defect of a feed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// An answer other than a 200 with chunks.
    #[error("not a streamed answer: {0}")]
    Head(String),
    /// A chunk's length or end is malformed.
    #[error("a malformed HTTP/1.1 chunk")]
    Chunk,
    /// A line is neither a row nor empty.
    #[error("not a row: {0}")]
    Row(String),
    /// A row's sequence does not follow that of the row before.
    #[error("{0} came after {1}")]
    Order(String, String),
    /// The server ended the feed.
    #[error("the feed ended")]
    Ended,
}

pub(crate) struct Row<'a> {
    /// The number of its document in the load.
    pub number: usize,
    /// The text from its first brace to its last.
    pub text: &'a [u8],
}

/// Returns the value of the first member `name` (`"name":"`) of a text.
pub(crate) fn member<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = line.get(memmem::find(line, name)? + name.len()..)?;
    rest.get(..memchr(b'"', rest)?)
}

/// Assembles lines of rows from pieces, and checks the order of their sequences.
#[derive(Default)]
pub(crate) struct Rows {
    /// An incomplete line.
    rest: Vec<u8>,
    newest: Vec<u8>,
}

impl Rows {
    /// Takes more of the text, and passes each complete row to `row`. Empty lines are heartbeats.
    pub(crate) fn take(&mut self, mut data: &[u8], mut row: impl FnMut(Row<'_>)) -> Result<(), StreamError> {
        while let Some(end) = memchr(b'\n', data) {
            let (line, behind) = (&data[..end], &data[end + 1..]);
            data = behind;
            if self.rest.is_empty() {
                one(&mut self.newest, line, &mut row)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                one(&mut self.newest, &whole, &mut row)?;
            }
        }
        self.rest.extend_from_slice(data);
        Ok(())
    }
}

fn one(newest: &mut Vec<u8>, line: &[u8], row: &mut impl FnMut(Row<'_>)) -> Result<(), StreamError> {
    // In `_changes` without a feed a comma separates rows, and CouchDB's line ends have two characters.
    let line = line.trim_ascii();
    let line = line.strip_suffix(b",").unwrap_or(line);
    if line.is_empty() {
        return Ok(());
    }
    let shown = |text: &[u8]| String::from_utf8_lossy(text).chars().take(200).collect::<String>();
    let id = member(line, b"\"id\":\"");
    // A row of a user's feed announces changed grants, behind the rows that came with them.
    if id.is_some_and(|id| id.starts_with(b"_user/")) {
        return Ok(());
    }
    let number = id.and_then(documents::number);
    let (Some(seq), Some(number)) = (member(line, b"\"seq\":\""), number) else {
        return Err(StreamError::Row(shown(line)));
    };
    // Texts of sequences sort in commit order.
    if seq <= newest.as_slice() {
        return Err(StreamError::Order(shown(seq), shown(newest)));
    }
    newest.clear();
    newest.extend_from_slice(seq);
    row(Row { number, text: line });
    Ok(())
}

/// The position in an answer over HTTP/1.1.
enum Part {
    Head,
    Length,
    Data(usize),
    DataEnd,
}

/// An answer over HTTP/1.1 with a chunked body.
pub(crate) struct ChunkedAnswer {
    part: Part,
    /// An incomplete head or chunk length.
    rest: Vec<u8>,
    rows: Rows,
}

impl ChunkedAnswer {
    /// Creates the parser, before the head.
    pub(crate) fn new() -> ChunkedAnswer {
        ChunkedAnswer { part: Part::Head, rest: Vec::new(), rows: Rows::default() }
    }

    /// Returns whether the head has come. The server has then read the position of `now`.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.part, Part::Head)
    }

    /// Takes the data read, and passes the rows in them to `row`.
    pub(crate) fn take(&mut self, mut data: &[u8], mut row: impl FnMut(Row<'_>)) -> Result<(), StreamError> {
        while !data.is_empty() {
            match self.part {
                Part::Head => {
                    let Some(head) = self.until(b"\r\n\r\n", &mut data) else { return Ok(()) };
                    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
                    if !text.starts_with("http/1.1 200 ") || !text.contains("transfer-encoding: chunked") {
                        return Err(StreamError::Head(text));
                    }
                    self.part = Part::Length;
                }
                Part::Length => {
                    let Some(line) = self.until(b"\r\n", &mut data) else { return Ok(()) };
                    let length = std::str::from_utf8(&line).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
                    match length {
                        Some(0) => return Err(StreamError::Ended),
                        Some(length) => self.part = Part::Data(length),
                        None => return Err(StreamError::Chunk),
                    }
                }
                Part::Data(length) => {
                    let (piece, behind) = data.split_at(length.min(data.len()));
                    data = behind;
                    self.rows.take(piece, &mut row)?;
                    self.part = if piece.len() == length { Part::DataEnd } else { Part::Data(length - piece.len()) };
                }
                Part::DataEnd => {
                    let Some(line) = self.until(b"\r\n", &mut data) else { return Ok(()) };
                    if !line.is_empty() {
                        return Err(StreamError::Chunk);
                    }
                    self.part = Part::Length;
                }
            }
        }
        Ok(())
    }

    /// Returns the text before `end`; `None` if more data are needed.
    fn until(&mut self, end: &[u8], data: &mut &[u8]) -> Option<Vec<u8>> {
        if self.rest.is_empty()
            && let Some(at) = memmem::find(data, end)
        {
            let found = data[..at].to_vec();
            *data = &data[at + end.len()..];
            return Some(found);
        }
        let before = self.rest.len();
        self.rest.extend_from_slice(data);
        let Some(at) = memmem::find(&self.rest, end) else {
            *data = &[];
            return None;
        };
        *data = data.get(at + end.len() - before..).unwrap_or_default();
        self.rest.truncate(at);
        Some(std::mem::take(&mut self.rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        26\r\n{\"seq\":\"1-a\",\"id\":\"doc00000001\",\"b\":1}\r\n1\r\n\n\r\n1\r\n\n\r\n\
        4a\r\n{\"seq\":\"2-a\",\"id\":\"doc00000007\",\"b\":1}\n{\"seq\":\"3-a\",\"id\":\"doc00000003\"},\r\n\r\n0\r\n\r\n";

    #[test]
    fn rows_come_out_however_the_answer_is_cut() {
        for size in 1..ANSWER.len() + 1 {
            let mut answer = ChunkedAnswer::new();
            let mut numbers = Vec::new();
            let mut ended = Ok(());
            for piece in ANSWER.chunks(size) {
                ended = answer.take(piece, |row| numbers.push(row.number));
                if ended.is_err() {
                    break;
                }
            }
            assert_eq!((numbers, ended), (vec![1, 7, 3], Err(StreamError::Ended)), "{size}");
        }
    }

    #[test]
    fn what_is_no_feed_is_told() {
        let wrong = |data: &[u8]| ChunkedAnswer::new().take(data, |_| ()).unwrap_err();
        assert!(matches!(wrong(b"HTTP/1.1 404 Object Not Found\r\n\r\n"), StreamError::Head(_)));
        let mut rows = Rows::default();
        assert!(matches!(rows.take(b"{\"last_seq\":\"9\"}\n", |_| ()), Err(StreamError::Row(_))));
        let row = b"{\"seq\":\"5-a\",\"id\":\"doc00000001\"}\n";
        rows.take(row, |_| ()).unwrap();
        assert!(matches!(rows.take(row, |_| ()), Err(StreamError::Order(..))));
    }
}
