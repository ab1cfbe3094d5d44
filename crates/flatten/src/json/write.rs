//! Values as compact JSON text.

use std::borrow::Cow;

use super::Value;
use super::scan::plain_len;

/// Appends a value as compact JSON text.
///
/// Strings are escaped as in CouchDB: `"` and `\` with a backslash, control characters in the short form if they have
/// one and as `\u00XX` otherwise, everything else (also `/`, DEL and all of Unicode) as it is.
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

/// Returns a value as compact JSON text, formatted as by [`write()`].
pub fn to_vec(value: &Value<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// Returns a value as compact JSON text, formatted as by [`write()`].
pub fn to_string(value: &Value<'_>) -> String {
    // All parts of the text come from strings.
    String::from_utf8(to_vec(value)).unwrap_or_default()
}

/// Returns an object's members as compact JSON text without the braces; for any other value nothing.
pub fn members_to_vec(value: &Value<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    if let Value::Object(members) = value {
        write_members(members, &mut out);
    }
    out
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

/// Appends a string with its quotes.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    write_escaped(text, out);
    out.push(b'"');
}

pub(crate) fn write_escaped(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    loop {
        let (plain, special) = rest.split_at_checked(plain_len(rest)).unwrap_or((rest, &[]));
        out.extend_from_slice(plain);
        let Some((special, behind)) = special.split_first() else { return };
        match special {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x8 => out.extend_from_slice(b"\\b"),
            0xc => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                out.extend_from_slice(b"\\u00");
                let digit = |half: u8| char::from_digit(u32::from(half), 16).map_or(b'0', |digit| digit as u8);
                out.extend_from_slice(&[digit(control >> 4), digit(control & 15)]);
            }
        }
        rest = behind;
    }
}

/// Returns the number of bytes that [`write()`] appends.
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
    let mut rest = text.as_bytes();
    let mut len = 2 + rest.len();
    loop {
        let Some((special, behind)) = rest.get(plain_len(rest)..).and_then(<[u8]>::split_first) else { return len };
        len += match special {
            b'"' | b'\\' | 0x8 | 0xc | b'\n' | b'\r' | b'\t' => 1,
            _ => 5,
        };
        rest = behind;
    }
}
