//! Paths: FoundationDB-tuple-encoded elements from a document's root to a leaf.

/// Marks array positions: an index follows (seed 002).
pub const ARRAY: u64 = 0;
/// Marks a part of a large string: the part's number follows (seed 002).
pub const PART: u64 = 1;
/// The permutation of an object; further parts of it have a number from 1 up behind.
pub const PERMUTATION: u64 = 2;
/// Marks a part of a subtree stored packed: the part's number follows.
pub const PACKED: u64 = 3;
/// The first field id; 4 to 9 are reserved.
pub const FIRST_FIELD_ID: u64 = 10;

const STRING: u8 = 0x02;
const INT_ZERO: u8 = 0x14;

/// One element of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// A marker, an array position, a part's number or a field id.
    Int(u64),
    /// A field name that has no id.
    Literal(String),
}

/// Appends an integer element.
pub fn put_int(path: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let skip = (value.leading_zeros() / 8) as usize;
    path.push(INT_ZERO + (8 - skip) as u8);
    path.extend_from_slice(&bytes[skip..]);
}

/// Appends a literal element.
pub fn put_literal(path: &mut Vec<u8>, name: &str) {
    path.push(STRING);
    for &byte in name.as_bytes() {
        path.push(byte);
        if byte == 0 {
            path.push(0xff);
        }
    }
    path.push(0);
}

/// How many bytes [`put_literal`] appends.
pub fn literal_len(name: &str) -> usize {
    2 + name.len() + name.bytes().filter(|byte| *byte == 0).count()
}

/// The first element of a path and how many bytes it takes; `None` for what is none.
pub fn take(path: &[u8]) -> Option<(Element, usize)> {
    let (&code, rest) = path.split_first()?;
    if code != STRING {
        return take_int(path).map(|(value, used)| (Element::Int(value), used));
    }
    let mut name = Vec::new();
    let mut at = 0;
    loop {
        match (rest.get(at)?, rest.get(at + 1)) {
            (0, Some(0xff)) => {
                name.push(0);
                at += 2;
            }
            (0, _) => return Some((Element::Literal(String::from_utf8(name).ok()?), at + 2)),
            (byte, _) => {
                name.push(*byte);
                at += 1;
            }
        }
    }
}

/// As [`take`], of an integer in its shortest form.
pub fn take_int(path: &[u8]) -> Option<(u64, usize)> {
    let (&code, rest) = path.split_first()?;
    let len = usize::from(code.checked_sub(INT_ZERO)?);
    if len > 8 || rest.first().is_some_and(|first| len > 0 && *first == 0) {
        return None;
    }
    let value = rest.get(..len)?.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    Some((value, 1 + len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_keep_their_order(a: u64, b: u64) {
            let pack = |value| { let mut path = Vec::new(); put_int(&mut path, value); path };
            prop_assert_eq!(pack(a).cmp(&pack(b)), a.cmp(&b));
            prop_assert_eq!(take(&pack(a)), Some((Element::Int(a), pack(a).len())));
        }

        #[test]
        fn literals_keep_their_order_and_come_back(a in ".{0,12}", b in ".{0,12}") {
            let pack = |name: &str| { let mut path = Vec::new(); put_literal(&mut path, name); path };
            prop_assert_eq!(pack(&a).cmp(&pack(&b)), a.as_bytes().cmp(b.as_bytes()));
            prop_assert_eq!(pack(&a).len(), literal_len(&a));
            prop_assert_eq!(take(&pack(&a)), Some((Element::Literal(a.clone()), literal_len(&a))));
        }

        #[test]
        fn foreign_bytes_do_not_panic(path in proptest::collection::vec(any::<u8>(), 0..20)) {
            let _ = take(&path);
        }
    }
}
