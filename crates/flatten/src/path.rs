//! Paths: FoundationDB-tuple-encoded elements from a body's root to a row.
//!
//! Only two types of the tuple layer are used: integers from 0 up (`14` plus the number of bytes, then the bytes,
//! big-endian) and strings (`02`, the UTF-8 with each `00` as `00 ff`, `00`).

use std::borrow::Cow;

use crate::flatten::FieldIds;

/// Marks array positions: an index follows (design/data-model.md).
pub const ARRAY: u64 = 0;
/// Marks a part of a large string: the part's number follows (design/data-model.md).
pub const PART: u64 = 1;
/// Marks a part of an object's permutation: the part's number follows.
pub const PERMUTATION: u64 = 2;
/// Marks a part of a subtree stored packed: the part's number follows.
pub const PACKED: u64 = 3;
/// The first field id; 4 to 9 are reserved (design/data-model.md).
pub const FIRST_FIELD_ID: u64 = 10;

/// Never the first byte of an element. After a literal's end it marks an escaped NUL instead.
pub(crate) const ESCAPE: u8 = 0xff;

const STRING: u8 = 0x02;
const INT_ZERO: u8 = 0x14;

/// An element of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element<'p> {
    /// A marker, an array position, a part's number or a field id.
    Int(u64),
    /// A field name without an id.
    Literal(Cow<'p, str>),
}

/// Appends an integer element: 1 to 9 bytes.
pub fn put_int(path: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let shortest = bytes.get((value.leading_zeros() / 8) as usize..).unwrap_or_default();
    path.push(INT_ZERO + shortest.len() as u8);
    path.extend_from_slice(shortest);
}

/// Appends a literal element: [`literal_len`] bytes.
pub fn put_literal(path: &mut Vec<u8>, name: &str) {
    path.push(STRING);
    for (at, piece) in name.as_bytes().split(|byte| *byte == 0).enumerate() {
        if at > 0 {
            path.extend_from_slice(&[0, ESCAPE]);
        }
        path.extend_from_slice(piece);
    }
    path.push(0);
}

/// Returns the number of bytes that [`put_literal`] appends.
pub fn literal_len(name: &str) -> usize {
    2 + name.len() + name.bytes().filter(|byte| *byte == 0).count()
}

/// Parses the first element of a path. Returns it with its length; `None` if flattening does not produce it: another
/// type, an integer that is not in its shortest form, a name that is not UTF-8.
pub fn take(path: &[u8]) -> Option<(Element<'_>, usize)> {
    if path.first() != Some(&STRING) {
        return take_int(path).map(|(value, used)| (Element::Int(value), used));
    }
    let mut name: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    let mut at = 1;
    loop {
        let rest = path.get(at..)?;
        let piece = rest.get(..rest.iter().position(|byte| *byte == 0)?)?;
        if name.is_empty() {
            name = Cow::Borrowed(piece);
        } else {
            name.to_mut().extend_from_slice(piece);
        }
        at += piece.len() + 1;
        if path.get(at) != Some(&ESCAPE) {
            break;
        }
        name.to_mut().push(0);
        at += 1;
    }
    let name = match name {
        Cow::Borrowed(name) => Cow::Borrowed(std::str::from_utf8(name).ok()?),
        Cow::Owned(name) => Cow::Owned(String::from_utf8(name).ok()?),
    };
    Some((Element::Literal(name), at))
}

/// As [`take`], for an integer.
pub fn take_int(path: &[u8]) -> Option<(u64, usize)> {
    let (&code, rest) = path.split_first()?;
    let len = usize::from(code.checked_sub(INT_ZERO)?);
    if len > 8 || rest.first().is_some_and(|first| len > 0 && *first == 0) {
        return None;
    }
    let value = rest.get(..len)?.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    Some((value, 1 + len))
}

/// A step into a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'s> {
    /// To the member with this name.
    Name(&'s str),
    /// To the array item at this position, from 0.
    Index(u64),
}

/// Returns the path of the value that `steps` lead to.
pub fn of_steps(steps: &[Step<'_>], ids: &impl FieldIds) -> Vec<u8> {
    let mut path = Vec::new();
    for step in steps {
        match step {
            Step::Name(name) => match ids.id_of(name).filter(|id| *id >= FIRST_FIELD_ID) {
                Some(id) => put_int(&mut path, id),
                None => put_literal(&mut path, name),
            },
            Step::Index(index) => {
                put_int(&mut path, ARRAY);
                put_int(&mut path, *index);
            }
        }
    }
    path
}

/// Formats a path for people: ids, markers and positions as numbers, literal names quoted, `/` between them; invalid
/// bytes as hexadecimal digits.
pub fn display(path: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        if rest.len() < path.len() {
            out.push('/');
        }
        // Writing into a String cannot fail.
        let (written, used) = match take(rest) {
            Some((Element::Int(value), used)) => (write!(out, "{value}"), used),
            Some((Element::Literal(name), used)) => (write!(out, "{name:?}"), used),
            None => (rest.iter().try_for_each(|byte| write!(out, "{byte:02x}")), rest.len()),
        };
        debug_assert!(written.is_ok());
        rest = rest.get(used..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn int(value: u64) -> Vec<u8> {
        let mut path = Vec::new();
        put_int(&mut path, value);
        path
    }

    fn literal(name: &str) -> Vec<u8> {
        let mut path = Vec::new();
        put_literal(&mut path, name);
        path
    }

    proptest! {
        #[test]
        fn integers_are_as_in_the_tuple_layer(a: u64, bits_a in 0..64_u32, b: u64, bits_b in 0..64_u32) {
            let (a, b) = (a >> bits_a, b >> bits_b);
            prop_assert_eq!(int(a), foundationdb_tuple::pack(&a));
            prop_assert_eq!(int(a).cmp(&int(b)), a.cmp(&b));
            let path = int(a);
            prop_assert_eq!(take(&path), Some((Element::Int(a), path.len())));
        }

        #[test]
        fn literals_are_as_in_the_tuple_layer(a in "[\\x00a]{0,4}|.{0,12}", b in "[\\x00a]{0,4}|.{0,12}") {
            prop_assert_eq!(literal(&a), foundationdb_tuple::pack(&a));
            prop_assert_eq!(literal(&a).cmp(&literal(&b)), a.as_bytes().cmp(b.as_bytes()));
            prop_assert_eq!(literal(&a).len(), literal_len(&a));
            let both = [literal(&a), literal(&b)].concat();
            prop_assert_eq!(take(&both), Some((Element::Literal(a.as_str().into()), literal_len(&a))));
        }

        #[test]
        fn foreign_bytes_do_not_panic(path in proptest::collection::vec(prop_oneof![0..0x20_u8, any::<u8>()], 0..20)) {
            let _ = take(&path);
            let _ = display(&path);
        }
    }

    #[test]
    fn only_the_shortest_form_is_taken() {
        for path in
            [&[0x15, 0][..], &[0x16, 0, 10], &[0x15], &[0x1d, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[0x13, 0xfe], &[2, 97]]
        {
            assert_eq!(take(path), None, "{path:02x?}");
        }
        assert_eq!(take(&[2, 0xff, 0]), None);
    }

    #[test]
    fn paths_for_people() {
        let path = [int(10), literal("a\"b"), int(ARRAY), int(300), vec![0x33, 1]].concat();
        assert_eq!(display(&path), r#"10/"a\"b"/0/300/3301"#);
    }
}
