//! Entries of json indexes: their values.

use flatbed_flatten::json::{self, Limits, Value, parse};

use crate::error::{Error, Result};

/// A key that takes more than this as JSON text is not repeated in its entry: it is read from the document.
const KEY_BYTES_MAX: usize = 10_000;

/// The first byte of an entry whose value goes on with its key.
const WITH_KEY: u8 = 0;

/// All of an entry whose key only the document has.
const IN_DOCUMENT: u8 = 1;

/// What an entry's value says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EntryValue {
    /// The values of the index's fields.
    Key(Vec<Value<'static>>),
    /// They are too long to stand here.
    InDocument,
}

/// The value of an entry with a key.
pub(crate) fn encode(key: &Value<'_>) -> Vec<u8> {
    let mut value = Vec::with_capacity(64);
    value.push(WITH_KEY);
    json::write(key, &mut value);
    if value.len() > KEY_BYTES_MAX {
        return vec![IN_DOCUMENT];
    }
    value
}

/// Whether only the document has the key of an entry with this value.
pub(crate) fn is_in_document(value: &[u8]) -> bool {
    value == [IN_DOCUMENT]
}

/// # Errors
/// The bytes are not an entry.
pub(crate) fn decode(value: &[u8]) -> Result<EntryValue> {
    let corrupt = || Error::Corrupt("an entry of a json index has a value that is none".to_owned());
    match value {
        [IN_DOCUMENT] => Ok(EntryValue::InDocument),
        [WITH_KEY, text @ ..] => match parse(text, &limits()).map_err(|_| corrupt())?.into_owned() {
            Value::Array(key) => Ok(EntryValue::Key(key)),
            _ => Err(corrupt()),
        },
        _ => Err(corrupt()),
    }
}

/// A key is nested one level deeper than the document that it is of.
fn limits() -> Limits {
    Limits { depth_max: Limits::default().depth_max + 1 }
}

/// What an entry whose key takes so many bytes as JSON text has for its value, at most.
pub(crate) fn value_bytes(key_bytes: u64) -> u64 {
    key_bytes.min(KEY_BYTES_MAX as u64) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_in_entries_unless_they_are_long() {
        let key = vec![Value::Null, Value::String("x".repeat(KEY_BYTES_MAX - 10).into())];
        assert_eq!(decode(&encode(&Value::Array(key.clone()))).unwrap(), EntryValue::Key(key));
        let long = Value::Array(vec![Value::String("x".repeat(KEY_BYTES_MAX).into())]);
        assert_eq!(decode(&encode(&long)).unwrap(), EntryValue::InDocument);
        for foreign in [&b""[..], b"\x00", b"\x00{}", b"\x01[]", b"\x02"] {
            assert!(decode(foreign).is_err());
        }
    }
}
