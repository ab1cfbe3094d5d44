//! The results of futures, in C's layout.

use std::ffi::{CString, c_char};

use fdb_embedded::{Error, MappedRange, RangeResult};

use crate::mapped_answer::MappedAnswer;
use crate::types::{FDBKey, FDBKeyValue, c_len, fdb_error_t};

/// The result of a future. Its pointers point into the memory stored beside them.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Unknown so far, or its memory was released.
    Nothing,
    Error(Error),
    Void,
    Int64(i64),
    UInt64(u64),
    Double(f64),
    Key(Vec<u8>),
    Value(Option<Vec<u8>>),
    KeyValues {
        array: Vec<FDBKeyValue>,
        is_more: bool,
        arena: Vec<u8>,
    },
    MappedKeyValues(MappedAnswer),
    Keys {
        array: Vec<FDBKey>,
        _keys: Vec<Vec<u8>>,
    },
    Strings {
        array: Vec<*const c_char>,
        _strings: Vec<CString>,
    },
}

impl Outcome {
    pub(crate) fn range(result: RangeResult) -> Outcome {
        let arena = result.arena;
        let at = |start: u32, length: u32| {
            let (start, length) = (start as usize, length as usize);
            // A broken invariant of the engine shows as an empty string, not as foreign memory.
            arena.get(start..start + length).unwrap_or_default()
        };
        let pair = |pair: fdb_embedded::PairAt| {
            let (key, value) = (at(pair.key_start, pair.key_len), at(pair.value_start, pair.value_len));
            FDBKeyValue {
                key: key.as_ptr(),
                key_length: c_len(key.len()),
                value: value.as_ptr(),
                value_length: c_len(value.len()),
            }
        };
        // Reuses the allocation of the pairs.
        let array = result.pairs.into_iter().map(pair).collect();
        Outcome::KeyValues { array, is_more: result.more, arena }
    }

    pub(crate) fn mapped(range: MappedRange) -> Outcome {
        Outcome::MappedKeyValues(MappedAnswer::of(range))
    }

    pub(crate) fn keys(keys: Vec<Vec<u8>>) -> Outcome {
        let array = keys.iter().map(|key| FDBKey { key: key.as_ptr(), key_length: c_len(key.len()) }).collect();
        Outcome::Keys { array, _keys: keys }
    }

    /// Converts strings for C; a string with a zero byte inside is left out.
    pub(crate) fn strings(strings: Vec<String>) -> Outcome {
        let strings: Vec<CString> = strings.into_iter().filter_map(|string| CString::new(string).ok()).collect();
        Outcome::Strings { array: strings.iter().map(|string| string.as_ptr()).collect(), _strings: strings }
    }

    /// Bytes of the keys and values in it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Outcome::Key(key) => key.len(),
            Outcome::Value(value) => value.as_ref().map_or(0, Vec::len),
            Outcome::KeyValues { arena, .. } => arena.len(),
            Outcome::MappedKeyValues(answer) => answer.bytes(),
            _ => 0,
        }
    }

    /// The error's code, 0 for any other outcome.
    pub(crate) fn code(&self) -> fdb_error_t {
        if let Outcome::Error(error) = self { error.0 } else { 0 }
    }

    pub(crate) fn of<T>(result: fdb_embedded::Result<T>, ok: impl FnOnce(T) -> Outcome) -> Outcome {
        result.map_or_else(Outcome::Error, ok)
    }
}
