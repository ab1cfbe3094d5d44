//! Cuts JSON text into its objects without parsing it.
//!
//! A dump can exceed memory, and numbers must arrive as written, so documents pass through `load` and `dump` as bytes.
//! The splitter checks just enough that a piece inserted into a larger JSON text cannot change that text's structure:
//! strings end, brackets match. The server validates the rest.

use std::{borrow::Cow, ops::Range};

/// The reason why an input cannot be cut into objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Another character at the start of an object.
    #[error("line {line}: expected a JSON object, found {found:?}")]
    NoObject {
        /// Counted from 1.
        line: u64,
        /// The character.
        found: char,
    },
    /// A bracket closes another kind of bracket.
    #[error("line {line}: the brackets do not match")]
    Brackets {
        /// The line on which the object starts, counted from 1.
        line: u64,
    },
    /// The object is larger than allowed, or its end is missing.
    #[error("line {line}: the object is larger than {bytes_max} bytes, or its end is missing")]
    TooLarge {
        /// The line on which the object starts, counted from 1.
        line: u64,
        /// The largest allowed object.
        bytes_max: usize,
    },
    /// The input ends inside an object or array.
    #[error("line {line}: the input ends in the middle")]
    Unfinished {
        /// The line on which the object starts, counted from 1.
        line: u64,
    },
}

/// The most capacity that an empty buffer keeps.
const KEPT_BYTES: usize = 256 << 10;

/// An object of the input.
#[derive(Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// The line on which it starts, counted from 1.
    pub line: u64,
    /// From `{` to `}`.
    pub text: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Enclosure {
    /// Objects separated by white space: JSON Lines, or a single object.
    Nothing,
    /// Inside an array of objects.
    Array,
    /// After the array's end.
    Ended,
}

/// Cuts an input that arrives in pieces: consecutive objects (JSON Lines, but an object may also span lines), or one
/// array of objects.
pub struct Splitter {
    buffer: Vec<u8>,
    /// The end of the part that was returned.
    taken: usize,
    scanned: usize,
    around: Enclosure,
    started: bool,
    /// The open brackets, from the object's own on.
    open: Vec<u8>,
    in_string: bool,
    escaped: bool,
    line: u64,
    object_line: u64,
    object_start: usize,
    object_bytes_max: usize,
}

impl Splitter {
    /// Creates a splitter for a whole input with objects of at most `object_bytes_max` bytes.
    pub fn new(object_bytes_max: usize) -> Splitter {
        Splitter {
            buffer: Vec::new(),
            taken: 0,
            scanned: 0,
            around: Enclosure::Nothing,
            started: false,
            open: Vec::new(),
            in_string: false,
            escaped: false,
            line: 1,
            object_line: 1,
            object_start: 0,
            object_bytes_max,
        }
    }

    /// Creates a splitter for an input that begins after the `[` of an array. The text after the array's `]` is
    /// ignored.
    pub fn inside_array(object_bytes_max: usize) -> Splitter {
        Splitter { around: Enclosure::Array, started: true, ..Splitter::new(object_bytes_max) }
    }

    /// Returns the capacity in bytes after a piece of this length is pushed.
    pub fn room_with(&self, piece_length: usize) -> usize {
        let needed = self.buffer.len() - self.taken + piece_length;
        if needed <= self.buffer.capacity() { self.buffer.capacity() } else { needed.max(2 * self.buffer.capacity()) }
    }

    /// Adds the next piece of the input.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.drain(..self.taken);
        // Releases the capacity of a large object before small ones.
        if self.buffer.capacity() > KEPT_BYTES && self.buffer.len() + piece.len() < self.buffer.capacity() / 4 {
            self.buffer.shrink_to(KEPT_BYTES);
        }
        self.scanned -= self.taken;
        self.object_start = self.object_start.saturating_sub(self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next whole object; `None` if more input is needed first.
    ///
    /// # Errors
    /// [`SplitError`]. The splitter cannot continue after it.
    pub fn next_object(&mut self) -> Result<Option<Object<'_>>, SplitError> {
        while self.scanned < self.buffer.len() {
            if self.around == Enclosure::Ended {
                self.scanned = self.buffer.len();
                self.taken = self.scanned;
            } else if self.open.is_empty() {
                self.between()?;
            } else if self.scan_object()? {
                self.taken = self.scanned;
                let text = self.buffer.get(self.object_start..self.scanned).unwrap_or_default();
                return Ok(Some(Object { line: self.object_line, text }));
            }
        }
        if !self.open.is_empty() && self.scanned - self.object_start > self.object_bytes_max {
            return Err(SplitError::TooLarge { line: self.object_line, bytes_max: self.object_bytes_max });
        }
        Ok(None)
    }

    /// Checks that the input has ended at a valid position.
    ///
    /// # Errors
    /// [`SplitError::Unfinished`] if it ended inside an object or an array.
    pub fn finish(&self) -> Result<(), SplitError> {
        if self.open.is_empty() && self.around != Enclosure::Array {
            return Ok(());
        }
        let line = if self.open.is_empty() { self.line } else { self.object_line };
        Err(SplitError::Unfinished { line })
    }

    /// Processes a byte outside of objects.
    fn between(&mut self) -> Result<(), SplitError> {
        let Some(&byte) = self.buffer.get(self.scanned) else { return Ok(()) };
        match byte {
            b'{' => {
                self.object_start = self.scanned;
                self.object_line = self.line;
                self.open.push(byte);
            }
            b'\n' => self.line += 1,
            b' ' | b'\t' | b'\r' => {}
            b'[' if !self.started => self.around = Enclosure::Array,
            b',' if self.around == Enclosure::Array => {}
            b']' if self.around == Enclosure::Array => self.around = Enclosure::Ended,
            // A byte order mark, which some editors write.
            0xEF | 0xBB | 0xBF if !self.started && self.line == 1 => {
                self.scanned += 1;
                self.taken = self.scanned;
                return Ok(());
            }
            _ => return Err(SplitError::NoObject { line: self.line, found: char::from(byte) }),
        }
        if !matches!(byte, b'\n' | b' ' | b'\t' | b'\r') {
            self.started = true;
        }
        self.scanned += 1;
        if self.open.is_empty() {
            self.taken = self.scanned;
        }
        Ok(())
    }

    /// Scans inside an object and returns whether its end was reached.
    fn scan_object(&mut self) -> Result<bool, SplitError> {
        let Splitter { buffer, scanned, open, in_string, escaped, line, .. } = self;
        while let Some(&byte) = buffer.get(*scanned) {
            *scanned += 1;
            if *in_string {
                match byte {
                    _ if *escaped => *escaped = false,
                    b'\\' => *escaped = true,
                    b'"' => *in_string = false,
                    b'\n' => *line += 1,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => *in_string = true,
                b'\n' => *line += 1,
                b'{' | b'[' => open.push(byte),
                b'}' | b']' => {
                    // In ASCII each closing bracket is the opening one plus 2.
                    if open.pop().is_none_or(|opened| opened + 2 != byte) {
                        return Err(SplitError::Brackets { line: self.object_line });
                    }
                    if open.is_empty() {
                        return Ok(true);
                    }
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The value, without white space around it.
    pub value: Range<usize>,
    /// The member with the comma that is removed with it.
    pub cut: Range<usize>,
}

/// Finds the first member called `name` (which needs no escapes) of an object that [`Splitter`] returned, without
/// members of nested objects. Also `None` for a malformed object.
pub fn member(object: &[u8], name: &str) -> Option<Member> {
    let mut at = skip_space(object, 0);
    if object.get(at) != Some(&b'{') {
        return None;
    }
    at += 1;
    let mut comma = None;
    loop {
        let key_start = skip_space(object, at);
        let key_end = skip_value(object, key_start)?;
        let colon = skip_space(object, key_end);
        if object.get(colon) != Some(&b':') {
            return None;
        }
        let value_start = skip_space(object, colon + 1);
        let value_end = skip_value(object, value_start)?;
        let after = skip_space(object, value_end);
        let key = object.get(key_start + 1..key_end.checked_sub(1)?)?;
        if object.get(key_start) == Some(&b'"') && key == name.as_bytes() {
            let cut = match (comma, object.get(after)) {
                (Some(comma), _) => comma..value_end,
                (None, Some(b',')) => key_start..after + 1,
                (None, _) => key_start..value_end,
            };
            return Some(Member { value: value_start..value_end, cut });
        }
        if object.get(after) != Some(&b',') {
            return None;
        }
        comma = Some(after);
        at = after + 1;
    }
}

/// Returns the object without its member `name`.
pub fn without<'a>(object: &'a [u8], name: &str) -> Cow<'a, [u8]> {
    match member(object, name) {
        Some(Member { cut, .. }) => {
            let (before, after) =
                (object.get(..cut.start).unwrap_or_default(), object.get(cut.end..).unwrap_or_default());
            Cow::Owned([before, after].concat())
        }
        None => Cow::Borrowed(object),
    }
}

fn skip_space(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest.iter().position(|b| !matches!(b, b' ' | b'\t' | b'\r' | b'\n')).unwrap_or(rest.len())
}

/// Returns the end of the value that starts at `from`; `None` if it is missing or unterminated.
fn skip_value(text: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = from;
    loop {
        match *text.get(at)? {
            b'"' => {
                at = skip_string(text, at)?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Some(at + 1),
            b',' | b'}' | b']' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => {
                return (at > from).then_some(at);
            }
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
}

fn skip_string(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(splitter: &mut Splitter, pieces: &[&[u8]]) -> Result<Vec<(u64, String)>, SplitError> {
        let mut found = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            while let Some(object) = splitter.next_object()? {
                found.push((object.line, String::from_utf8_lossy(object.text).into_owned()));
            }
        }
        splitter.finish()?;
        Ok(found)
    }

    fn check(input: &str, expected: Result<&[(u64, &str)], SplitError>) {
        let expected =
            expected.map(|rows| rows.iter().map(|(line, text)| (*line, (*text).to_owned())).collect::<Vec<_>>());
        assert_eq!(split(&mut Splitter::new(64), &[input.as_bytes()]), expected, "{input}");
        let bytes: Vec<&[u8]> = input.as_bytes().chunks(1).collect();
        assert_eq!(split(&mut Splitter::new(64), &bytes), expected, "byte by byte: {input}");
    }

    #[test]
    fn inputs() {
        check("", Ok(&[]));
        check("{}\n{\"a\":[1,{}]}\r\n\n", Ok(&[(1, "{}"), (2, "{\"a\":[1,{}]}")]));
        check("{\n\"a\":\n1}{}", Ok(&[(1, "{\n\"a\":\n1}"), (3, "{}")]));
        check(" [ {\"a\":\"]}\\\"\"},\n{} ] junk", Ok(&[(1, "{\"a\":\"]}\\\"\"}"), (2, "{}")]));
        check("\u{FEFF}{}", Ok(&[(1, "{}")]));
        check("{}\n1", Err(SplitError::NoObject { line: 2, found: '1' }));
        check("{},{}", Err(SplitError::NoObject { line: 1, found: ',' }));
        check("{}[{}]", Err(SplitError::NoObject { line: 1, found: '[' }));
        check("\n{\"a\":[}]", Err(SplitError::Brackets { line: 2 }));
        check("\n{\"a\":1", Err(SplitError::Unfinished { line: 2 }));
        check("[{}", Err(SplitError::Unfinished { line: 1 }));
        check("{\"a\":\"\\", Err(SplitError::Unfinished { line: 1 }));
    }

    #[test]
    fn an_object_without_end_is_not_collected() {
        let mut splitter = Splitter::new(64);
        let error = (0..).find_map(|_| {
            splitter.push(b"{\"a\":");
            splitter.next_object().err()
        });
        assert_eq!(error, Some(SplitError::TooLarge { line: 1, bytes_max: 64 }));
    }

    #[test]
    fn rows_of_an_answer() {
        let mut splitter = Splitter::inside_array(64);
        let found = split(&mut splitter, &[b"\r\n{\"id\":\"a\"},\r\n{\"id\":\"b\"}\r\n]}\n"]).unwrap();
        assert_eq!(found, [(2, "{\"id\":\"a\"}".to_owned()), (3, "{\"id\":\"b\"}".to_owned())]);
    }

    #[test]
    fn members() {
        for (object, value, rest) in [
            (r#"{"_rev":"1-a"}"#, Some(r#""1-a""#), "{}"),
            (r#"{"_rev":"1-a","b":2}"#, Some(r#""1-a""#), r#"{"b":2}"#),
            (r#"{ "a" : {"_rev":1} , "_rev" : "1-a" , "b":2}"#, Some(r#""1-a""#), r#"{ "a" : {"_rev":1}  , "b":2}"#),
            (r#"{"a":"_rev","_rev":[1,"]"]}"#, Some(r#"[1,"]"]"#), r#"{"a":"_rev"}"#),
            (r#"{"a":"\"_rev\":1"}"#, None, r#"{"a":"\"_rev\":1"}"#),
            (r#"{"a":{"_rev":1}}"#, None, r#"{"a":{"_rev":1}}"#),
            ("{}", None, "{}"),
            ("{\"_rev\"", None, "{\"_rev\""),
            ("{:,}", None, "{:,}"),
        ] {
            let found = member(object.as_bytes(), "_rev").map(|m| &object[m.value]);
            assert_eq!(found, value, "{object}");
            assert_eq!(String::from_utf8_lossy(&without(object.as_bytes(), "_rev")), rest, "{object}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(prop::sample::select(&b"{}[]\",:\\_a1 \n"[..]), 0..60)) {
            let _ = split(&mut Splitter::new(32), &[&bytes]);
            let _ = member(&bytes, "a");
        }

        #[test]
        fn pieces_do_not_matter(objects in prop::collection::vec("\\{\"[a-z]{0,8}\":(1|\\{\\}|\"[ -!#-\\[\\]-~]{0,9}\")\\}", 0..6), at in 0usize..200) {
            let input = objects.join("\n");
            let (head, tail) = input.as_bytes().split_at(at.min(input.len()));
            let found = split(&mut Splitter::new(64), &[head, tail]).unwrap();
            prop_assert_eq!(found.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), objects);
        }
    }
}
