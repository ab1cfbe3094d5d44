//! FoundationDB's tuple encoding, with the store's errors.

use flatbed_kit::tuple;
pub(crate) use flatbed_kit::tuple::{BYTES, STRING as TEXT, put_int, put_text};

use crate::error::{Error, Result};

/// Takes an integer. Returns it and the rest.
pub(crate) fn take_int(key: &[u8]) -> Result<(u64, &[u8])> {
    tuple::take_int(key).ok_or_else(bad_key)
}

/// Takes a byte string or a text, by `code`. Returns it and the rest.
pub(crate) fn take_text(key: &[u8], code: u8) -> Result<(Vec<u8>, &[u8])> {
    tuple::take_bytes(key, code).ok_or_else(bad_key)
}

pub(crate) fn bad_key() -> Error {
    Error::Corrupt("a key is not of Firefox Sync's form")
}
