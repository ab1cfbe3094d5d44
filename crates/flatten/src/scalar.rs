//! The values of single rows: a tag byte, then what it says.

/// First byte of a plain run.
pub(crate) const RUN_PLAIN: u8 = 0x00;
/// First byte of a run compressed with lz4.
pub(crate) const RUN_LZ4: u8 = 0x01;

/// `null`
pub(crate) const NULL: u8 = 0x10;
/// `false`
pub(crate) const FALSE: u8 = 0x11;
/// `true`
pub(crate) const TRUE: u8 = 0x12;
/// An integer of 64 bits written canonically: zigzag, as a varint.
pub(crate) const INT: u8 = 0x13;
/// Any other number: its text.
pub(crate) const NUMBER: u8 = 0x14;
/// A string: UTF-8.
pub(crate) const STRING: u8 = 0x15;
/// `{}`
pub(crate) const EMPTY_OBJECT: u8 = 0x16;
/// `[]`
pub(crate) const EMPTY_ARRAY: u8 = 0x17;
/// Part of a large string: UTF-8, cut between characters.
pub(crate) const STRING_PART: u8 = 0x18;
/// Part of a packed subtree: compact JSON text, cut between characters.
pub(crate) const PACKED_PART: u8 = 0x19;
/// Part of a permutation: for each member in the order written, its place among the sorted ones, as varints.
pub(crate) const PERMUTATION: u8 = 0x1a;

/// Appends an unsigned LEB128 varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A varint and how many bytes it takes; `None` when it is cut or beyond 64 bits.
pub(crate) fn take_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        let part = u64::from(byte & 0x7f);
        if at == 9 && part > 1 {
            return None;
        }
        value |= part << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

pub(crate) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(value: u64, signed: i64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(take_varint(&out), Some((value, out.len())));
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }
}
