//! The JSON parser.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Value;
use super::number::float_of;
use super::scan::{number_shape, plain_len};

/// The default limit on nesting; the outermost value has depth 1.
pub const DEPTH_MAX: usize = 500;

/// The highest limit on nesting that [`Limits`] allows: functions on values recurse, and threads have small stacks.
pub const DEPTH_MAX_LIMIT: usize = 1_000;

/// The longest number text, in bytes: the time of arithmetic on it (a revision hash needs the binary form) grows with
/// its square.
pub const NUMBER_BYTES_MAX: usize = 4_096;

/// A decimal text of at most this many bytes without exponent is below the largest 64-bit float.
const FINITE_BYTES_MAX: usize = 300;

/// Objects up to this many members are searched for duplicate names pairwise.
const PAIRWISE_MAX: usize = 16;

/// Limits of the parser.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The deepest nesting; at most [`DEPTH_MAX_LIMIT`].
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth_max: DEPTH_MAX }
    }
}

/// The text is not valid JSON, or exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct ParseError {
    /// The kind of error.
    pub kind: ParseErrorKind,
    /// The byte offset, from 0.
    pub offset: usize,
}

/// The kinds of JSON errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseErrorKind {
    /// Invalid UTF-8.
    #[error("invalid UTF-8")]
    Utf8,
    /// The text ends too early, or is empty.
    #[error("unexpected end")]
    End,
    /// A byte that is not allowed at its position.
    #[error("unexpected character")]
    Unexpected,
    /// An invalid number, one longer than [`NUMBER_BYTES_MAX`], or one beyond the range of a 64-bit float.
    #[error("bad number")]
    Number,
    /// An invalid escape, or half of a surrogate pair.
    #[error("bad escape")]
    Escape,
    /// A control character inside a string.
    #[error("control character in a string")]
    Control,
    /// Nested deeper than the limit.
    #[error("nested too deep")]
    Depth,
    /// Text after the value.
    #[error("trailing characters")]
    Trailing,
    /// Two members of one name in an object; only [`parse_unique()`] reports it.
    #[error("duplicate name")]
    Duplicate,
}

/// Parses a text with one value. Time and memory are proportional to its size.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Value<'a>, ParseError> {
    parse_with(bytes, limits, false)
}

/// As [`parse()`], but refuses an object with two members of one name; for texts that programs write.
pub fn parse_unique<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Value<'a>, ParseError> {
    parse_with(bytes, limits, true)
}

/// Returns the text if it equals the output of [`write()`](super::write()) for its value: no white space, strings
/// escaped as written, no duplicate names. `None`: valid, but written otherwise. Builds no tree.
pub fn as_written<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Option<&'a str>, ParseError> {
    let mut parser = Parser::of(bytes, limits, false)?;
    let NoValue = parser.whole()?;
    Ok(parser.is_as_written.then_some(parser.text))
}

fn parse_with<'a>(bytes: &'a [u8], limits: &Limits, is_unique: bool) -> Result<Value<'a>, ParseError> {
    Parser::of(bytes, limits, is_unique)?.whole()
}

/// The product of the parser.
trait ParseOutput<'a>: Sized {
    fn null() -> Self;
    fn bool(value: bool) -> Self;
    fn number(text: &'a str) -> Self;
    fn string(text: Cow<'a, str>) -> Self;
    fn array(items: Vec<Self>) -> Self;
    fn object(members: Vec<(Cow<'a, str>, Self)>) -> Self;
}

impl<'a> ParseOutput<'a> for Value<'a> {
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

/// A product that keeps nothing: a vector of them allocates nothing.
struct NoValue;

impl<'a> ParseOutput<'a> for NoValue {
    fn null() -> Self {
        NoValue
    }

    fn bool(_: bool) -> Self {
        NoValue
    }

    fn number(_: &'a str) -> Self {
        NoValue
    }

    fn string(_: Cow<'a, str>) -> Self {
        NoValue
    }

    fn array(_: Vec<Self>) -> Self {
        NoValue
    }

    fn object(_: Vec<(Cow<'a, str>, Self)>) -> Self {
        NoValue
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth_left: usize,
    is_unique: bool,
    /// True while no text was seen that would be written otherwise.
    is_as_written: bool,
}

impl<'a> Parser<'a> {
    fn of(bytes: &'a [u8], limits: &Limits, is_unique: bool) -> Result<Parser<'a>, ParseError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| ParseError { kind: ParseErrorKind::Utf8, offset: error.valid_up_to() })?;
        let depth_left = limits.depth_max.min(DEPTH_MAX_LIMIT);
        Ok(Parser { text, bytes, at: 0, depth_left, is_unique, is_as_written: true })
    }

    /// Parses the only value of the text.
    fn whole<V: ParseOutput<'a>>(&mut self) -> Result<V, ParseError> {
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

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
            self.is_as_written = false;
        }
    }

    fn value<V: ParseOutput<'a>>(&mut self) -> Result<V, ParseError> {
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

    fn word<V: ParseOutput<'a>>(&mut self, word: &str, value: V) -> Result<V, ParseError> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.error(ParseErrorKind::Unexpected));
        }
        self.at += word.len();
        Ok(value)
    }

    fn nested<V: ParseOutput<'a>>(&mut self, inside: fn(&mut Self) -> Result<V, ParseError>) -> Result<V, ParseError> {
        self.depth_left = self.depth_left.checked_sub(1).ok_or_else(|| self.error(ParseErrorKind::Depth))?;
        self.at += 1;
        let value = inside(self)?;
        self.depth_left += 1;
        Ok(value)
    }

    fn array<V: ParseOutput<'a>>(&mut self) -> Result<V, ParseError> {
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

    fn object<V: ParseOutput<'a>>(&mut self) -> Result<V, ParseError> {
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

    /// Parses a string after its opening quote.
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

    /// Skips characters that need no escape.
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
        // Only control characters without a short form are written this way, in lower-case digits.
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

    fn number<V: ParseOutput<'a>>(&mut self) -> Result<V, ParseError> {
        let start = self.at;
        let error = ParseError { kind: ParseErrorKind::Number, offset: start };
        let shape = number_shape(self.rest()).ok_or(error)?;
        if shape.len > NUMBER_BYTES_MAX {
            return Err(error);
        }
        let text = &self.text[start..start + shape.len];
        // CouchDB answers 400 to a float beyond 64 bits, and accepts integers of any length.
        let may_be_infinite = shape.exponent || (shape.float && shape.len > FINITE_BYTES_MAX);
        if may_be_infinite && float_of(text).is_none() {
            return Err(error);
        }
        self.at += shape.len;
        Ok(V::number(text))
    }
}

/// Keeps the last member of each name at its position (as CouchDB does). Returns whether any was removed.
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
