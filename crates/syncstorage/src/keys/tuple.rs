//! FoundationDB's tuple encoding, as far as keys here use it.

use crate::error::{Error, Result};

pub(crate) const BYTES: u8 = 0x01;
pub(crate) const TEXT: u8 = 0x02;
const INT_ZERO: u8 = 0x14;

pub(crate) fn put_int(key: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let shortest = bytes.get((value.leading_zeros() / 8) as usize..).unwrap_or_default();
    key.push(INT_ZERO + shortest.len() as u8);
    key.extend_from_slice(shortest);
}

/// A byte string, or with [`TEXT`] a text.
pub(crate) fn put_text(key: &mut Vec<u8>, code: u8, text: &[u8]) {
    key.push(code);
    for &byte in text {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.push(0);
}

/// An integer and what follows it.
pub(crate) fn take_int(key: &[u8]) -> Result<(u64, &[u8])> {
    let (&code, rest) = key.split_first().ok_or_else(bad_key)?;
    let len = code.checked_sub(INT_ZERO).filter(|len| *len <= 8).ok_or_else(bad_key)?;
    let (bytes, rest) = rest.split_at_checked(usize::from(len)).ok_or_else(bad_key)?;
    Ok((bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)), rest))
}

/// A byte string or a text, as `code` says, and what follows it.
pub(crate) fn take_text(key: &[u8], code: u8) -> Result<(Vec<u8>, &[u8])> {
    let (_, mut rest) = key.split_first().filter(|(first, _)| **first == code).ok_or_else(bad_key)?;
    let mut out = Vec::new();
    while let Some(at) = rest.iter().position(|byte| *byte == 0) {
        let (piece, behind) = rest.split_at(at);
        out.extend_from_slice(piece);
        rest = match behind {
            [0, 0xff, behind @ ..] => {
                out.push(0);
                behind
            }
            [0, behind @ ..] => return Ok((out, behind)),
            _ => break,
        };
    }
    Err(bad_key())
}

pub(crate) fn bad_key() -> Error {
    Error::Corrupt("a key is not of Firefox Sync's form")
}
