//! The subset of FoundationDB's tuple layer that its servers parse: splitting an encoded tuple into encoded elements,
//! byte strings and integers.
//!
//! A server accepts less than the bindings write. It refuses nested tuples and integers of more than eight bytes. It
//! accepts a truncated last element.

/// Type code of a byte string.
const BYTES: u8 = 0x01;
/// Type code of a Unicode string.
const STRING: u8 = 0x02;
/// Type code of the integer 0; an integer of n bytes has this code plus or minus n.
const ZERO: u8 = 0x14;

/// The bytes are no tuple that a server parses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotATuple;

/// Splits a tuple into its encoded elements.
pub(crate) fn elements(tuple: &[u8]) -> Result<Vec<&[u8]>, NotATuple> {
    let (mut found, mut rest) = (Vec::new(), tuple);
    while let Some(&code) = rest.first() {
        let len = match code {
            0x00 | 0x26 | 0x27 => 1,
            BYTES | STRING => string_len(rest),
            0x0c..=0x1c => 1 + usize::from(code.abs_diff(ZERO)),
            0x20 => 5,
            0x21 => 9,
            0x33 => 13,
            _ => return Err(NotATuple),
        };
        let (element, after) = rest.split_at(len.min(rest.len()));
        found.push(element);
        rest = after;
    }
    Ok(found)
}

/// Returns the encoded length of the string at the start of `encoded`: up to a zero byte that is not followed by 0xff.
fn string_len(encoded: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match (encoded.get(at), encoded.get(at + 1)) {
            (Some(0), Some(0xff)) => at += 2,
            (Some(0), _) | (None, _) => return at + 1,
            _ => at += 1,
        }
    }
}

/// Returns the bytes of a string element; `None` for any other element.
pub(crate) fn string(element: &[u8]) -> Option<Vec<u8>> {
    let (&code, encoded) = element.split_first()?;
    if code != BYTES && code != STRING {
        return None;
    }
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.iter();
    while let Some(&byte) = bytes.next() {
        // A zero byte is either escaped, and the escape is dropped, or ends the string.
        if byte == 0 && bytes.next().is_none() {
            break;
        }
        decoded.push(byte);
    }
    Some(decoded)
}

pub(crate) fn push_bytes(tuple: &mut Vec<u8>, bytes: &[u8]) {
    tuple.push(BYTES);
    for &byte in bytes {
        tuple.push(byte);
        if byte == 0 {
            tuple.push(0xff);
        }
    }
    tuple.push(0);
}

pub(crate) fn push_integer(tuple: &mut Vec<u8>, number: i64) {
    let magnitude = number.unsigned_abs();
    let len = 8 - magnitude.leading_zeros() as usize / 8;
    // A negative number is stored as its complement, so that bytes and numbers sort alike.
    let stored = if number < 0 { !magnitude } else { magnitude };
    tuple.push(if number < 0 { ZERO - len as u8 } else { ZERO + len as u8 });
    tuple.extend_from_slice(stored.to_be_bytes().get(8 - len..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes with a high share of those that are special inside of a tuple.
    fn tricky() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 0x14, 0x15, b'a', 0xfe, 0xff]), 0..7)
    }

    #[derive(Clone, Debug, PartialEq, PartialOrd)]
    enum Element {
        Bytes(Vec<u8>),
        Integer(i64),
    }

    fn element() -> impl Strategy<Value = Element> {
        prop_oneof![tricky().prop_map(Element::Bytes), any::<i64>().prop_map(Element::Integer)]
    }

    fn encode(elements: &[Element]) -> Vec<u8> {
        elements.iter().fold(Vec::new(), |mut tuple, element| {
            match element {
                Element::Bytes(bytes) => push_bytes(&mut tuple, bytes),
                Element::Integer(number) => push_integer(&mut tuple, *number),
            }
            tuple
        })
    }

    #[test]
    fn elements_are_those_of_the_layer() {
        // (null, b"a\0b", "é", -1, 0, 300, 1.5f32, 2.0f64, false, true, a versionstamp)
        let parts: [&[u8]; 11] = [
            b"\x00",
            b"\x01a\x00\xffb\x00",
            "\x02é\0".as_bytes(),
            b"\x13\xfe",
            b"\x14",
            b"\x16\x01\x2c",
            b"\x20\xbf\xc0\0\0",
            b"\x21\xc0\0\0\0\0\0\0\0",
            b"\x26",
            b"\x27",
            b"\x33\0\0\0\0\0\0\0\0\0\0\0\0",
        ];
        assert_eq!(elements(&parts.concat()).as_deref(), Ok(&parts[..]));
        assert_eq!(string(parts[1]).as_deref(), Some(&b"a\0b"[..]));
        assert_eq!(string(parts[2]).as_deref(), Some("é".as_bytes()));
        assert_eq!(string(parts[3]), None);
    }

    #[test]
    fn what_servers_refuse() {
        // A nested tuple, integers of more than eight bytes, and unassigned type codes.
        for bytes in [&b"\x05\x14\x00"[..], b"\x1d\x09123456789", b"\x0b\xf6123456789", b"\x14\x35", b"\xff"] {
            assert_eq!(elements(bytes), Err(NotATuple), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_cut_short_is_taken() {
        assert_eq!(elements(b"\x14\x17\x01"), Ok(vec![&b"\x14"[..], b"\x17\x01"]));
        assert_eq!(elements(b"\x01ab"), Ok(vec![&b"\x01ab"[..]]));
        assert_eq!(string(b"\x01ab").as_deref(), Some(&b"ab"[..]));
        assert_eq!(elements(b"\x01"), Ok(vec![&b"\x01"[..]]));
        assert_eq!(string(b"\x01a\x00\xff").as_deref(), Some(&b"a\0"[..]));
    }

    proptest! {
        #[test]
        fn a_tuple_gives_back_its_elements(given in prop::collection::vec(element(), 0..6)) {
            let tuple = encode(&given);
            let found = elements(&tuple).unwrap();
            prop_assert_eq!(found.len(), given.len());
            prop_assert_eq!(found.concat(), &tuple[..]);
            for (encoded, element) in found.iter().zip(&given) {
                prop_assert_eq!(*encoded, &encode(std::slice::from_ref(element))[..]);
                if let Element::Bytes(bytes) = element {
                    prop_assert_eq!(string(encoded), Some(bytes.clone()));
                }
            }
        }

        #[test]
        fn order_is_kept(a in prop::collection::vec(element(), 0..4), b in prop::collection::vec(element(), 0..4)) {
            prop_assert_eq!(Some(encode(&a).cmp(&encode(&b))), a.partial_cmp(&b));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop_oneof![tricky(), any::<Vec<u8>>()]) {
            if let Ok(found) = elements(&bytes) {
                prop_assert_eq!(found.concat(), &bytes[..]);
                for element in found {
                    let _ = string(element);
                }
            }
        }
    }
}
