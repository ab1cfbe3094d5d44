//! The checksum of a stored record: the last four bytes of its LMDB value.
//!
//! LMDB's pages have no checksums. This one covers the LMDB key and the value, so a flipped byte in either is found
//! when the record is read. It is half of a 64-bit xxHash3, whose cost for a record of 100 bytes is that of one missed
//! cache line.

use twox_hash::XxHash3_64;

pub(crate) const CHECKSUM_BYTES: usize = 4;

/// Returns the value as it is stored under this LMDB key.
pub(crate) fn seal(lmdb_key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(value.len() + CHECKSUM_BYTES);
    sealed.extend_from_slice(value);
    sealed.extend_from_slice(&checksum(lmdb_key, value));
    sealed
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
    let hash = XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(lmdb_key), value);
    ((hash ^ (hash >> 32)) as u32).to_le_bytes()
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

    /// The checksum is part of the format on disk.
    #[test]
    fn the_checksum_stays() {
        assert_eq!(XxHash3_64::oneshot(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(seal(b"\x01k", b"").len(), CHECKSUM_BYTES);
    }
}
