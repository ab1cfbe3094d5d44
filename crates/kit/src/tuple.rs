//! FoundationDB's tuple encoding, as far as the stores' keys use it.
//!
//! Not the crate `foundationdb-tuple`: its readers take twice as long for a short key, and need a type of ours to return
//! the rest of one. The tests compare both.
//!
//! The `take_` functions return an element and the rest of the key, or `None` if the bytes are no such element.

use memchr::memchr;

/// The code of a byte string.
pub const BYTES: u8 = 0x01;
/// The code of a string.
pub const STRING: u8 = 0x02;
const INT_ZERO: u8 = 0x14;

/// Appends an integer.
pub fn put_int(key: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let shortest = bytes.get((value.leading_zeros() / 8) as usize..).unwrap_or_default();
    key.push(INT_ZERO + shortest.len() as u8);
    key.extend_from_slice(shortest);
}

/// Appends a byte string, or with [`STRING`] a string.
pub fn put_text(key: &mut Vec<u8>, code: u8, text: &[u8]) {
    key.push(code);
    let mut rest = text;
    while let Some(at) = memchr(0, rest) {
        let (piece, behind) = rest.split_at(at + 1);
        key.extend_from_slice(piece);
        key.push(0xff);
        rest = behind;
    }
    key.extend_from_slice(rest);
    key.push(0);
}

/// Takes an integer.
pub fn take_int(key: &[u8]) -> Option<(u64, &[u8])> {
    let (&code, rest) = key.split_first()?;
    let len = code.checked_sub(INT_ZERO).filter(|len| *len <= 8)?;
    let (bytes, rest) = rest.split_at_checked(usize::from(len))?;
    Some((bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)), rest))
}

/// Takes a byte string, or with [`STRING`] the bytes of a string.
pub fn take_bytes(key: &[u8], code: u8) -> Option<(Vec<u8>, &[u8])> {
    let (_, mut rest) = key.split_first().filter(|(first, _)| **first == code)?;
    let mut out = Vec::new();
    // Copied in pieces, since each view reader decodes the key of each row.
    while let Some(at) = memchr(0, rest) {
        let (piece, behind) = rest.split_at(at);
        out.extend_from_slice(piece);
        rest = match behind {
            [0, 0xff, behind @ ..] => {
                out.push(0);
                behind
            }
            [0, behind @ ..] => return Some((out, behind)),
            _ => break,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use foundationdb::tuple::{Bytes, pack};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_put_is_a_tuple_and_is_taken(
            number: u64, bits in 0..64_u32, bytes in prop::collection::vec(any::<u8>(), 0..20),
            text in "[\\x00a]{0,4}|.{0,12}",
        ) {
            let (number, mut key) = (number >> bits, Vec::new());
            put_int(&mut key, number);
            put_text(&mut key, BYTES, &bytes);
            put_text(&mut key, STRING, text.as_bytes());
            prop_assert_eq!(&key, &pack(&(number, Bytes::from(bytes.clone()), text.as_str())));
            let (taken, rest) = take_int(&key).unwrap();
            prop_assert_eq!(taken, number);
            let (taken, rest) = take_bytes(rest, BYTES).unwrap();
            prop_assert_eq!(taken, bytes);
            prop_assert_eq!(take_bytes(rest, STRING), Some((text.into_bytes(), &b""[..])));
        }

        #[test]
        fn foreign_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = (take_int(&bytes), take_bytes(&bytes, BYTES), take_bytes(&bytes, STRING));
        }
    }
}
