//! Values of json index entries.

use flatbed_clock::Clock;
use flatbed_flatten::json::{self, Limits, Value, parse};
use flatbed_store::error::{Error, Result};
use flatbed_store::records::is_over;

/// Longer keys, as JSON text in bytes, are not repeated in the entry. A reader takes them from the document.
const KEY_BYTES_MAX: usize = 10_000;

const WITH_KEY: u8 = 0;

/// The value of an entry whose key is only in the document.
const IN_DOCUMENT: u8 = 1;

/// The first byte of a value with an expiry: 8 bytes of time follow, then the value without an expiry.
const WITH_END: u8 = 2;

#[derive(Debug, Clone, PartialEq)]
pub enum EntryValue {
    Key(Vec<Value<'static>>),
    InDocument,
}

/// Encodes the value of an entry with a key. `ends_at_ms`: the document's expiry; 0, never.
pub fn encode(key: &Value<'_>, ends_at_ms: u64) -> Vec<u8> {
    let mut value = Vec::with_capacity(64);
    if ends_at_ms > 0 {
        value.push(WITH_END);
        value.extend_from_slice(&ends_at_ms.to_be_bytes());
    }
    let begin = value.len();
    value.push(WITH_KEY);
    json::write(key, &mut value);
    if value.len() - begin > KEY_BYTES_MAX {
        value.truncate(begin);
        value.push(IN_DOCUMENT);
    }
    value
}

/// Splits a value into the expiry (0, never) and the rest.
fn split(value: &[u8]) -> (u64, &[u8]) {
    match value.split_first() {
        Some((&WITH_END, rest)) => match rest.split_first_chunk() {
            Some((at, rest)) => (u64::from_be_bytes(*at), rest),
            None => (0, rest),
        },
        _ => (0, value),
    }
}

/// Returns whether the document of an entry with this value has expired.
pub fn is_expired(value: &[u8], clock: &Clock) -> bool {
    is_over(split(value).0, clock)
}

/// Returns whether two values agree, apart from an expiry that one of them lacks.
pub fn is_same(found: &[u8], expected: &[u8]) -> bool {
    found == expected || split(expected).1 == found
}

/// Returns whether the key of an entry with this value is only in its document.
pub fn is_in_document(value: &[u8]) -> bool {
    split(value).1 == [IN_DOCUMENT]
}

/// Decodes a value.
///
/// # Errors
/// The bytes are not an entry.
pub fn decode(value: &[u8]) -> Result<EntryValue> {
    let corrupt = || Error::Corrupt("an entry of a json index has an invalid value".to_owned());
    match split(value).1 {
        [IN_DOCUMENT] => Ok(EntryValue::InDocument),
        [WITH_KEY, text @ ..] => match parse(text, &limits()).map_err(|_| corrupt())?.into_owned() {
            Value::Array(key) => Ok(EntryValue::Key(key)),
            _ => Err(corrupt()),
        },
        _ => Err(corrupt()),
    }
}

/// Returns limits for a key, which is nested one level deeper than its document.
fn limits() -> Limits {
    Limits { depth_max: Limits::default().depth_max + 1 }
}

/// Returns the largest value of an entry whose key has `key_bytes` of JSON text.
pub fn value_bytes(key_bytes: u64) -> u64 {
    key_bytes.min(KEY_BYTES_MAX as u64) + 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_in_entries_unless_they_are_long() {
        let key = vec![Value::Null, Value::String("x".repeat(KEY_BYTES_MAX - 10).into())];
        let long = Value::Array(vec![Value::String("x".repeat(KEY_BYTES_MAX).into())]);
        for ends_at_ms in [0, 1, u64::MAX] {
            let entry = encode(&Value::Array(key.clone()), ends_at_ms);
            assert_eq!(decode(&entry).unwrap(), EntryValue::Key(key.clone()));
            assert_eq!((is_in_document(&entry), is_expired(&entry, &Clock::system())), (false, ends_at_ms == 1));
            let entry = encode(&long, ends_at_ms);
            assert_eq!(decode(&entry).unwrap(), EntryValue::InDocument);
            assert_eq!((is_in_document(&entry), is_expired(&entry, &Clock::system())), (true, ends_at_ms == 1));
        }
        for foreign in [&b""[..], b"\x00", b"\x00{}", b"\x01[]", b"\x02", b"\x02\0\0\0\0\0\0\0\x01"] {
            assert!(decode(foreign).is_err());
        }
    }
}
