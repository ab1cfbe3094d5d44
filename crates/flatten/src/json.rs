//! JSON text, strictly as RFC 8259 has it, with what CouchDB keeps: the order of names, and numbers as written.

use std::borrow::Cow;
use std::collections::HashSet;

/// Deepest nesting accepted by default, the outermost value being 1.
pub const DEPTH_MAX: usize = 500;

/// Longest number text accepted: arithmetic on longer ones (a revision hash needs the binary form) grows with its square.
pub const NUMBER_BYTES_MAX: usize = 4_096;

/// Objects up to this many members are searched for duplicate names pair by pair.
const PAIRWISE_MAX: usize = 16;

/// A JSON value; strings borrow from the text where they have no escapes.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it is written.
    Number(Cow<'a, str>),
    /// A string, unescaped.
    String(Cow<'a, str>),
    /// `[...]`
    Array(Vec<Value<'a>>),
    /// `{...}` in the order written; of duplicate names only the last is left.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// The value of a member; `None` for what is no object, or has no such member.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        match self {
            Value::Object(members) => members.iter().find(|(found, _)| found == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value without what it borrows from.
    pub fn into_owned(self) -> Value<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        match self {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Number(text) => Value::Number(own(text)),
            Value::String(text) => Value::String(own(text)),
            Value::Array(items) => Value::Array(items.into_iter().map(Value::into_owned).collect()),
            Value::Object(members) => {
                Value::Object(members.into_iter().map(|(name, value)| (own(name), value.into_owned())).collect())
            }
        }
    }
}

/// What is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Deepest nesting, at most some thousand: it is recursed.
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
}

/// Parses a text that holds one value.
///
/// # Errors
/// [`ParseError`] with the byte where it went wrong.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Value<'a>, ParseError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ParseError { kind: ParseErrorKind::Utf8, offset: error.valid_up_to() })?;
    let mut parser = Parser { text, bytes, at: 0, depth_left: limits.depth_max };
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
}

impl<'a> Parser<'a> {
    fn error(&self, kind: ParseErrorKind) -> ParseError {
        ParseError { kind, offset: self.at }
    }

    fn peek(&self) -> Result<u8, ParseError> {
        self.bytes.get(self.at).copied().ok_or_else(|| self.error(ParseErrorKind::End))
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
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
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
                    drop_duplicates(&mut members);
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
        let rest = &self.bytes[self.at..];
        let special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
        self.at += rest.iter().position(special).unwrap_or(rest.len());
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
                if !self.bytes[self.at..].starts_with(b"\\u") {
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
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        let mut fraction = false;
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            fraction = true;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            fraction = true;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        let beyond = fraction && !text.parse::<f64>().is_ok_and(f64::is_finite);
        if text.len() > NUMBER_BYTES_MAX || beyond {
            return Err(ParseError { kind: ParseErrorKind::Number, offset: start });
        }
        Ok(Value::Number(Cow::Borrowed(text)))
    }

    fn digits(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start { Err(self.error(ParseErrorKind::Number)) } else { Ok(()) }
    }
}

/// Leaves the last member of each name, where it stands (as CouchDB does).
fn drop_duplicates(members: &mut Vec<(Cow<'_, str>, Value<'_>)>) {
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
    if let Some(keep) = keep {
        let mut at = 0;
        members.retain(|_| {
            at += 1;
            keep[at - 1]
        });
    }
}

/// Appends a value as compact JSON text.
pub fn write(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(text) => out.extend_from_slice(text.as_bytes()),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            out.push(b'{');
            write_members(members, out);
            out.push(b'}');
        }
    }
}

/// Appends an object's members without the braces.
pub fn write_members(members: &[(Cow<'_, str>, Value<'_>)], out: &mut Vec<u8>) {
    for (at, (name, value)) in members.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_string(name, out);
        out.push(b':');
        write(value, out);
    }
}

/// Appends a string with its quotes; escaped is what must be, in the short form where there is one.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    write_escaped(text, out);
    out.push(b'"');
}

/// Appends a string's text without quotes.
pub(crate) fn write_escaped(text: &str, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut rest = text.as_bytes();
    let special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
    while let Some(at) = rest.iter().position(special) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x8 => out.extend_from_slice(b"\\b"),
            0xc => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[DIGITS[usize::from(control >> 4)], DIGITS[usize::from(control & 15)]]);
            }
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// How many bytes [`write()`] appends.
pub fn text_len(value: &Value<'_>) -> usize {
    match value {
        Value::Null | Value::Bool(true) => 4,
        Value::Bool(false) => 5,
        Value::Number(text) => text.len(),
        Value::String(text) => string_len(text),
        Value::Array(items) => 2 + items.len().saturating_sub(1) + items.iter().map(text_len).sum::<usize>(),
        Value::Object(members) => {
            let each = members.iter().map(|(name, value)| string_len(name) + 1 + text_len(value));
            2 + members.len().saturating_sub(1) + each.sum::<usize>()
        }
    }
}

fn string_len(text: &str) -> usize {
    let more = |byte: u8| match byte {
        b'"' | b'\\' | 0x8 | 0xc | b'\n' | b'\r' | b'\t' => 1,
        0..0x20 => 5,
        _ => 0,
    };
    2 + text.len() + text.bytes().map(more).sum::<usize>()
}
