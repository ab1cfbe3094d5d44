//! Text to values.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Value;
use super::number::float_of;
use super::scan::{number_shape, plain_len};

/// Deepest nesting accepted by default, the outermost value being 1.
pub const DEPTH_MAX: usize = 500;

/// Deepest nesting that [`Limits`] can allow: values are recursed, and threads have small stacks.
pub const DEPTH_MAX_LIMIT: usize = 1_000;

/// Longest number text accepted: arithmetic on longer ones (a revision hash needs the binary form) grows with its square.
pub const NUMBER_BYTES_MAX: usize = 4_096;

/// A decimal text with at most this many bytes and no exponent is below the largest 64-bit float.
const FINITE_BYTES_MAX: usize = 300;

/// Objects up to this many members are searched for duplicate names pair by pair.
const PAIRWISE_MAX: usize = 16;

/// What is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Deepest nesting; more than [`DEPTH_MAX_LIMIT`] counts as that.
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth_max: DEPTH_MAX }
    }
}

/// The text is not acceptable JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct ParseError {
    /// What is wrong.
    pub kind: ParseErrorKind,
    /// Where, from 0.
    pub offset: usize,
}

/// What can be wrong with a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseErrorKind {
    /// Bytes that are not UTF-8.
    #[error("invalid UTF-8")]
    Utf8,
    /// The text ends too early, or is empty.
    #[error("unexpected end")]
    End,
    /// A byte that cannot stand there.
    #[error("unexpected character")]
    Unexpected,
    /// A number that is none, is longer than [`NUMBER_BYTES_MAX`], or is beyond what a 64-bit float reaches.
    #[error("bad number")]
    Number,
    /// An escape that is none, or half of a surrogate pair.
    #[error("bad escape")]
    Escape,
    /// A control character inside a string.
    #[error("control character in a string")]
    Control,
    /// Nested deeper than the limit.
    #[error("nested too deep")]
    Depth,
    /// Something follows the value.
    #[error("trailing characters")]
    Trailing,
    /// An object has two members of one name; [`parse_unique()`] alone minds it.
    #[error("a name stands twice")]
    Duplicate,
}

/// Parses a text that holds one value: any size, time and memory in proportion to it.
///
/// # Errors
/// [`ParseError`] with the byte where it went wrong.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Value<'a>, ParseError> {
    parse_with(bytes, limits, false)
}

/// As [`parse()`], but for texts that nobody writes with two members of one name in an object: such a one is refused.
///
/// # Errors
/// [`ParseError`] with the byte where it went wrong.
pub fn parse_unique<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Value<'a>, ParseError> {
    parse_with(bytes, limits, true)
}

/// The text, if it is what [`write()`](super::write()) makes of it: one value that [`parse()`] takes, without white space, with strings
/// escaped as they are written and no name twice in an object. `None`: it is acceptable, and another one than would be written. No tree
/// is made of it.
///
/// # Errors
/// [`ParseError`], as of [`parse()`].
pub fn as_written<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Option<&'a str>, ParseError> {
    let mut parser = Parser::of(bytes, limits, false)?;
    let Seen = parser.whole()?;
    Ok(parser.is_as_written.then_some(parser.text))
}

fn parse_with<'a>(bytes: &'a [u8], limits: &Limits, is_unique: bool) -> Result<Value<'a>, ParseError> {
    Parser::of(bytes, limits, is_unique)?.whole()
}

/// What is made of a text.
trait Made<'a>: Sized {
    fn null() -> Self;
    fn bool(value: bool) -> Self;
    fn number(text: &'a str) -> Self;
    fn string(text: Cow<'a, str>) -> Self;
    fn array(items: Vec<Self>) -> Self;
    fn object(members: Vec<(Cow<'a, str>, Self)>) -> Self;
}

impl<'a> Made<'a> for Value<'a> {
    fn null() -> Self {
        Value::Null
    }

    fn bool(value: bool) -> Self {
        Value::Bool(value)
    }

    fn number(text: &'a str) -> Self {
        Value::Number(Cow::Borrowed(text))
    }

    fn string(text: Cow<'a, str>) -> Self {
        Value::String(text)
    }

    fn array(items: Vec<Self>) -> Self {
        Value::Array(items)
    }

    fn object(members: Vec<(Cow<'a, str>, Self)>) -> Self {
        Value::Object(members)
    }
}

/// A value of which nothing is kept: a vector of them takes no room.
struct Seen;

impl<'a> Made<'a> for Seen {
    fn null() -> Self {
        Seen
    }

    fn bool(_: bool) -> Self {
        Seen
    }

    fn number(_: &'a str) -> Self {
        Seen
    }

    fn string(_: Cow<'a, str>) -> Self {
        Seen
    }

    fn array(_: Vec<Self>) -> Self {
        Seen
    }

    fn object(_: Vec<(Cow<'a, str>, Self)>) -> Self {
        Seen
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth_left: usize,
    is_unique: bool,
    /// Nothing was seen so far that would be written otherwise.
    is_as_written: bool,
}

impl<'a> Parser<'a> {
    fn of(bytes: &'a [u8], limits: &Limits, is_unique: bool) -> Result<Parser<'a>, ParseError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| ParseError { kind: ParseErrorKind::Utf8, offset: error.valid_up_to() })?;
        let depth_left = limits.depth_max.min(DEPTH_MAX_LIMIT);
        Ok(Parser { text, bytes, at: 0, depth_left, is_unique, is_as_written: true })
    }

    /// The one value of the text.
    fn whole<V: Made<'a>>(&mut self) -> Result<V, ParseError> {
        self.space();
        let value = self.value()?;
        self.space();
        if self.at < self.bytes.len() { Err(self.error(ParseErrorKind::Trailing)) } else { Ok(value) }
    }

    fn error(&self, kind: ParseErrorKind) -> ParseError {
        ParseError { kind, offset: self.at }
    }

    fn peek(&self) -> Result<u8, ParseError> {
        self.bytes.get(self.at).copied().ok_or_else(|| self.error(ParseErrorKind::End))
    }

    /// What is not read yet.
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
            self.is_as_written = false;
        }
    }

    fn value<V: Made<'a>>(&mut self) -> Result<V, ParseError> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                Ok(V::string(self.string()?))
            }
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b't' => self.word("true", V::bool(true)),
            b'f' => self.word("false", V::bool(false)),
            b'n' => self.word("null", V::null()),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(self.error(ParseErrorKind::Unexpected)),
        }
    }

    fn word<V: Made<'a>>(&mut self, word: &str, value: V) -> Result<V, ParseError> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.error(ParseErrorKind::Unexpected));
        }
        self.at += word.len();
        Ok(value)
    }

    fn nested<V: Made<'a>>(&mut self, inside: fn(&mut Self) -> Result<V, ParseError>) -> Result<V, ParseError> {
        self.depth_left = self.depth_left.checked_sub(1).ok_or_else(|| self.error(ParseErrorKind::Depth))?;
        self.at += 1;
        let value = inside(self)?;
        self.depth_left += 1;
        Ok(value)
    }

    fn array<V: Made<'a>>(&mut self) -> Result<V, ParseError> {
        let mut items = Vec::new();
        self.space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(V::array(items));
        }
        loop {
            self.space();
            items.push(self.value()?);
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(V::array(items));
                }
                _ => return Err(self.error(ParseErrorKind::Unexpected)),
            }
        }
    }

    fn object<V: Made<'a>>(&mut self) -> Result<V, ParseError> {
        let mut members = Vec::new();
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(V::object(members));
        }
        loop {
            self.space();
            self.expect(b'"')?;
            let name = self.string()?;
            self.space();
            self.expect(b':')?;
            self.space();
            members.push((name, self.value()?));
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    if drop_duplicates(&mut members) {
                        if self.is_unique {
                            return Err(self.error(ParseErrorKind::Duplicate));
                        }
                        self.is_as_written = false;
                    }
                    return Ok(V::object(members));
                }
                _ => return Err(self.error(ParseErrorKind::Unexpected)),
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), ParseError> {
        if self.peek()? != byte {
            return Err(self.error(ParseErrorKind::Unexpected));
        }
        self.at += 1;
        Ok(())
    }

    /// A string whose opening quote is passed.
    fn string(&mut self) -> Result<Cow<'a, str>, ParseError> {
        let start = self.at;
        self.plain();
        if self.peek()? == b'"' {
            let text = &self.text[start..self.at];
            self.at += 1;
            return Ok(Cow::Borrowed(text));
        }
        let mut out = self.text[start..self.at].to_owned();
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(Cow::Owned(out));
                }
                b'\\' => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(self.error(ParseErrorKind::Control)),
            }
            let plain = self.at;
            self.plain();
            out.push_str(&self.text[plain..self.at]);
        }
    }

    /// Passes over what stands for itself in a string.
    fn plain(&mut self) {
        self.at += plain_len(self.rest());
    }

    fn escape(&mut self) -> Result<char, ParseError> {
        let code = self.peek()?;
        self.at += 1;
        Ok(match code {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => {
                self.is_as_written = false;
                '/'
            }
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(self.error(ParseErrorKind::Escape)),
        })
    }

    fn unicode(&mut self) -> Result<char, ParseError> {
        let first = self.four_digits()?;
        let code = match first {
            0xd800..=0xdbff => {
                if !self.rest().starts_with(b"\\u") {
                    return Err(self.error(ParseErrorKind::Escape));
                }
                self.at += 2;
                let second = self.four_digits()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(self.error(ParseErrorKind::Escape));
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            other => other,
        };
        // Control characters without a short form alone are written so, in small digits.
        let is_written = code < 0x20 && !matches!(code, 0x8 | 0x9 | 0xa | 0xc | 0xd);
        let has_capitals = self.bytes.get(self.at - 1).is_some_and(u8::is_ascii_uppercase);
        self.is_as_written &= is_written && !has_capitals;
        char::from_u32(code).ok_or_else(|| self.error(ParseErrorKind::Escape))
    }

    fn four_digits(&mut self) -> Result<u32, ParseError> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or_else(|| self.error(ParseErrorKind::End))?;
        let mut value = 0;
        for digit in digits {
            let digit = char::from(*digit).to_digit(16).ok_or_else(|| self.error(ParseErrorKind::Escape))?;
            value = value << 4 | digit;
        }
        self.at += 4;
        Ok(value)
    }

    fn number<V: Made<'a>>(&mut self) -> Result<V, ParseError> {
        let start = self.at;
        let error = ParseError { kind: ParseErrorKind::Number, offset: start };
        let shape = number_shape(self.rest()).ok_or(error)?;
        if shape.len > NUMBER_BYTES_MAX {
            return Err(error);
        }
        let text = &self.text[start..start + shape.len];
        // CouchDB answers 400 to a float beyond 64 bits, and takes integers of any length.
        let may_be_infinite = shape.exponent || (shape.float && shape.len > FINITE_BYTES_MAX);
        if may_be_infinite && float_of(text).is_none() {
            return Err(error);
        }
        self.at += shape.len;
        Ok(V::number(text))
    }
}

/// Leaves the last member of each name, where it stands (as CouchDB does); whether there were others.
#[expect(clippy::indexing_slicing, reason = "`keep` has a place for each member")]
fn drop_duplicates<V>(members: &mut Vec<(Cow<'_, str>, V)>) -> bool {
    let mut keep: Option<Vec<bool>> = None;
    if members.len() <= PAIRWISE_MAX {
        for (at, (name, _)) in members.iter().enumerate() {
            if members[at + 1..].iter().any(|(later, _)| later == name) {
                keep.get_or_insert_with(|| vec![true; members.len()])[at] = false;
            }
        }
    } else {
        let mut seen = HashSet::with_capacity(members.len());
        for (at, (name, _)) in members.iter().enumerate().rev() {
            if !seen.insert(name.as_ref()) {
                keep.get_or_insert_with(|| vec![true; members.len()])[at] = false;
            }
        }
    }
    let Some(keep) = keep else { return false };
    let mut at = 0;
    members.retain(|_| {
        at += 1;
        keep[at - 1]
    });
    true
}
