//! The checksum of a stored record: the last four bytes of its LMDB value.
//!
//! LMDB's pages have no checksums. This one covers the LMDB key and the value, so a flipped byte in either is found
//! when the record is read. It is CRC-32C, for which processors have instructions: some 20 ns for a record of 100
//! bytes.

use crc32c::{crc32c, crc32c_append};

pub(crate) const CHECKSUM_BYTES: usize = 4;

/// Returns the value as it is stored under this LMDB key.
pub(crate) fn seal(lmdb_key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(value.len() + CHECKSUM_BYTES);
    seal_into(&mut sealed, lmdb_key, value);
    sealed
}

/// Replaces the content of a buffer by the value as it is stored under this LMDB key.
pub(crate) fn seal_into(sealed: &mut Vec<u8>, lmdb_key: &[u8], value: &[u8]) {
    sealed.clear();
    sealed.extend_from_slice(value);
    sealed.extend_from_slice(&checksum(lmdb_key, value));
}

/// Returns the value that is stored under this LMDB key; `None` if the record is damaged.
// Hot: called for every pair that is read.
#[inline]
pub(crate) fn unseal<'v>(lmdb_key: &[u8], sealed: &'v [u8]) -> Option<&'v [u8]> {
    let (value, found) = sealed.split_last_chunk::<CHECKSUM_BYTES>()?;
    (*found == checksum(lmdb_key, value)).then_some(value)
}

/// Returns the value without a look at its checksum, for records that are being removed. Reading the checksum of a
/// large value would read its pages from the disk.
pub(crate) fn unseal_unchecked(sealed: &[u8]) -> &[u8] {
    sealed.split_last_chunk::<CHECKSUM_BYTES>().map_or(&[], |(value, _)| value)
}

#[inline]
fn checksum(lmdb_key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    // Key and value are adjacent on a page. The key's length keeps a byte from moving between them unnoticed.
    let of_key = crc32c(lmdb_key) ^ lmdb_key.len() as u32;
    crc32c_append(of_key, value).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_key_or_value_is_found() {
        for bytes in [0, 1, 7, 100, 300, 5_000] {
            let (key, value) = (b"\x01key".to_vec(), vec![b'v'; bytes]);
            let sealed = seal(&key, &value);
            assert_eq!(unseal(&key, &sealed), Some(&value[..]));
            assert_eq!(unseal_unchecked(&sealed), value);
            for at in 0..8 * sealed.len() {
                let mut flipped = sealed.clone();
                flipped[at / 8] ^= 1 << (at % 8);
                assert_eq!(unseal(&key, &flipped), None, "bit {at} of {bytes} bytes");
            }
            for at in 0..8 * key.len() {
                let mut flipped = key.clone();
                flipped[at / 8] ^= 1 << (at % 8);
                assert_eq!(unseal(&flipped, &sealed), None, "bit {at} of the key, {bytes} bytes");
            }
            assert_eq!(unseal(&key, &sealed[..sealed.len() - 1]), None);
        }
        assert_eq!(unseal(b"", b"abc"), None);
    }

    #[test]
    fn a_byte_that_moves_between_key_and_value_is_found() {
        let record = b"\x01a key and its value";
        for at in 1..record.len() {
            let (key, value) = record.split_at(at);
            let sealed = seal(key, value);
            let stored = [key, &sealed].concat();
            for other in (1..=record.len()).filter(|&other| other != at) {
                let (key, sealed) = stored.split_at(other);
                assert_eq!(unseal(key, sealed), None, "{at} and {other}");
            }
        }
    }

    /// The checksum is part of the format on disk.
    #[test]
    fn the_checksum_stays() {
        // The check value of CRC-32C (RFC 3720, appendix B.4: 32 bytes of zeros).
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(checksum(b"\x01k", b""), (crc32c(b"\x01k") ^ 2).to_le_bytes());
    }
}
