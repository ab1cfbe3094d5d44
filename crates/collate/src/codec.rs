//! A codec of unsigned numbers and byte strings in as few bytes as they need.

/// Appends a number, seven bits per byte, the lowest first.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number from the start; `None` if the bytes are invalid.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        value |= bits.checked_shl(7 * at as u32).filter(|shifted| shifted >> (7 * at) == bits)?;
        if byte & 0x80 == 0 {
            *bytes = bytes.get(at + 1..)?;
            return Some(value);
        }
    }
    None
}

/// Appends bytes after their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads the output of [`put_bytes`].
pub(crate) fn take_bytes<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = usize::try_from(take(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_put_is_taken(
            value in prop_oneof![any::<u64>(), 0..300_u64, Just(u64::MAX)],
            text in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            let mut out = Vec::new();
            put(&mut out, value);
            put_bytes(&mut out, &text);
            let mut rest = out.as_slice();
            prop_assert_eq!(take(&mut rest), Some(value));
            prop_assert_eq!(take_bytes(&mut rest), Some(text.as_slice()));
            prop_assert!(rest.is_empty());
            for len in 0..out.len() {
                let mut cut = &out[..len];
                prop_assert!(take(&mut cut).and_then(|_| take_bytes(&mut cut)).is_none());
            }
        }
    }

    #[test]
    fn numbers_are_short_and_have_bounds() {
        let bytes = |value| {
            let mut out = Vec::new();
            put(&mut out, value);
            out
        };
        assert_eq!(bytes(0), [0]);
        assert_eq!(bytes(127), [127]);
        assert_eq!(bytes(128), [128, 1]);
        assert_eq!(take(&mut [0xff; 11].as_slice()), None);
        assert_eq!(take(&mut [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02].as_slice()), None);
        assert_eq!(take_bytes(&mut [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0].as_slice()), None);
    }
}
