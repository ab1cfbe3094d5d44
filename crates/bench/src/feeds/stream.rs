//! What one feed gets: HTTP/1.1's chunks taken apart, lines found, each row's facts read without parsing its JSON.

use memchr::{memchr, memmem};

use crate::documents;

/// What is wrong with a feed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// Something else than a 200 with chunks.
    #[error("not a streamed answer: {0}")]
    Head(String),
    /// A chunk's length or end is wrong.
    #[error("a chunk is not as HTTP/1.1 has it")]
    Chunk,
    /// A line that is neither a row nor empty.
    #[error("not a row: {0}")]
    Row(String),
    /// A row's sequence is not behind that of the one before.
    #[error("{0} came after {1}")]
    Order(String, String),
    /// The server ended the feed.
    #[error("the feed ended")]
    Ended,
}

/// A row.
pub(crate) struct Row<'a> {
    /// Its document's number in the load.
    pub number: usize,
    /// From its first brace to its last.
    pub text: &'a [u8],
}

/// The value of the first member `name` (`"name":"`) of a text.
pub(crate) fn member<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = line.get(memmem::find(line, name)? + name.len()..)?;
    rest.get(..memchr(b'"', rest)?)
}

/// Lines of rows, however they are cut into pieces; the order of their sequences is checked.
#[derive(Default)]
pub(crate) struct Rows {
    /// A line that is not whole yet.
    rest: Vec<u8>,
    newest: Vec<u8>,
}

impl Rows {
    /// Takes more of the text and hands over each row that is whole. Empty lines are heartbeats.
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
    // Inside `_changes` without a feed a comma stands between rows, and CouchDB's line ends are of two characters.
    let line = line.trim_ascii();
    let line = line.strip_suffix(b",").unwrap_or(line);
    if line.is_empty() {
        return Ok(());
    }
    let shown = |text: &[u8]| String::from_utf8_lossy(text).chars().take(200).collect::<String>();
    let id = member(line, b"\"id\":\"");
    // A user's feed tells them that what they have has changed, behind what came with that.
    if id.is_some_and(|id| id.starts_with(b"_user/")) {
        return Ok(());
    }
    let number = id.and_then(documents::number);
    let (Some(seq), Some(number)) = (member(line, b"\"seq\":\""), number) else {
        return Err(StreamError::Row(shown(line)));
    };
    // Texts of sequences sort as they were committed.
    if seq <= newest.as_slice() {
        return Err(StreamError::Order(shown(seq), shown(newest)));
    }
    newest.clear();
    newest.extend_from_slice(seq);
    row(Row { number, text: line });
    Ok(())
}

/// Where an answer over HTTP/1.1 stands.
enum Part {
    Head,
    Length,
    Data(usize),
    DataEnd,
}

/// An answer over HTTP/1.1 whose body comes in chunks.
pub(crate) struct Chunked {
    part: Part,
    /// A head or a chunk's length that is not whole yet.
    rest: Vec<u8>,
    rows: Rows,
}

impl Chunked {
    /// Before the head.
    pub(crate) fn new() -> Chunked {
        Chunked { part: Part::Head, rest: Vec::new(), rows: Rows::default() }
    }

    /// Whether the head has come: the server has then read where `now` is.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.part, Part::Head)
    }

    /// Takes what was read and hands over the rows in it.
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

    /// What stands before `end`, without it; `None` where more must be read first.
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
            let mut answer = Chunked::new();
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
        let wrong = |data: &[u8]| Chunked::new().take(data, |_| ()).unwrap_err();
        assert!(matches!(wrong(b"HTTP/1.1 404 Object Not Found\r\n\r\n"), StreamError::Head(_)));
        let mut rows = Rows::default();
        assert!(matches!(rows.take(b"{\"last_seq\":\"9\"}\n", |_| ()), Err(StreamError::Row(_))));
        let row = b"{\"seq\":\"5-a\",\"id\":\"doc00000001\"}\n";
        rows.take(row, |_| ()).unwrap();
        assert!(matches!(rows.take(row, |_| ()), Err(StreamError::Order(..))));
    }
}
