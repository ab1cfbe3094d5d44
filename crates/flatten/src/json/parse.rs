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

fn parse_with<'a>(bytes: &'a [u8], limits: &Limits, is_unique: bool) -> Result<Value<'a>, ParseError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ParseError { kind: ParseErrorKind::Utf8, offset: error.valid_up_to() })?;
    let mut parser = Parser { text, bytes, at: 0, depth_left: limits.depth_max.min(DEPTH_MAX_LIMIT), is_unique };
    parser.space();
    let value = parser.value()?;
    parser.space();
    if parser.at < bytes.len() { Err(parser.error(ParseErrorKind::Trailing)) } else { Ok(value) }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth_left: usize,
    is_unique: bool,
}

impl<'a> Parser<'a> {
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
        }
    }

    fn value(&mut self) -> Result<Value<'a>, ParseError> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                Ok(Value::String(self.string()?))
            }
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::Null),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(self.error(ParseErrorKind::Unexpected)),
        }
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, ParseError> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.error(ParseErrorKind::Unexpected));
        }
        self.at += word.len();
        Ok(value)
    }

    fn nested(&mut self, inside: fn(&mut Self) -> Result<Value<'a>, ParseError>) -> Result<Value<'a>, ParseError> {
        self.depth_left = self.depth_left.checked_sub(1).ok_or_else(|| self.error(ParseErrorKind::Depth))?;
        self.at += 1;
        let value = inside(self)?;
        self.depth_left += 1;
        Ok(value)
    }

    fn array(&mut self) -> Result<Value<'a>, ParseError> {
        let mut items = Vec::new();
        self.space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.space();
            items.push(self.value()?);
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.error(ParseErrorKind::Unexpected)),
            }
        }
    }

    fn object(&mut self) -> Result<Value<'a>, ParseError> {
        let mut members = Vec::new();
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Value::Object(members));
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
                    if drop_duplicates(&mut members) && self.is_unique {
                        return Err(self.error(ParseErrorKind::Duplicate));
                    }
                    return Ok(Value::Object(members));
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
            b'/' => '/',
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

    fn number(&mut self) -> Result<Value<'a>, ParseError> {
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
        Ok(Value::Number(Cow::Borrowed(text)))
    }
}

/// Leaves the last member of each name, where it stands (as CouchDB does); whether there were others.
#[expect(clippy::indexing_slicing, reason = "`keep` has a place for each member")]
fn drop_duplicates(members: &mut Vec<(Cow<'_, str>, Value<'_>)>) -> bool {
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
