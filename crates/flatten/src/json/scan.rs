//! Fast scans over plain text in strings, and over numbers.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Returns the length of the plain prefix of a JSON string: no quote, backslash or control character.
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        let found = special(u64::from_le_bytes(*word));
        if found != 0 {
            return bytes.len() - rest.len() + (found.trailing_zeros() / 8) as usize;
        }
        rest = behind;
    }
    // The zeros after a short word's text end it as a control character would.
    bytes.len() - rest.len() + (special(short_word(rest)).trailing_zeros() / 8) as usize
}

/// Fewer than eight bytes as a word, padded with zeros.
fn short_word(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let place = |at: usize| 8 * at;
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << place(len - 4);
    }
    let (Some(first), Some(middle), Some(last)) = (bytes.first(), bytes.get(len / 2), bytes.last()) else { return 0 };
    u64::from(*first) | u64::from(*middle) << place(len / 2) | u64::from(*last) << place(len - 1)
}

/// The high bit of each byte that is not plain (and possibly of some above it).
fn special(word: u64) -> u64 {
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    // A borrow can only mark bytes above a correct mark, and only the lowest mark counts.
    (below_space | zero_bytes(word ^ (ONES * 0x22)) | zero_bytes(word ^ (ONES * 0x5c))) & HIGHS
}

/// The high bit of each zero byte (and possibly of some above it).
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word
}

pub(super) struct NumberShape {
    pub len: usize,
    /// True with a fraction or an exponent.
    pub float: bool,
    pub exponent: bool,
}

/// Returns the number at the start of `bytes`; `None` if RFC 8259's grammar has none there.
pub(super) fn number_shape(bytes: &[u8]) -> Option<NumberShape> {
    let digits = |at: usize| {
        let count = bytes.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 { None } else { Some(at + count) }
    };
    let sign = usize::from(bytes.first() == Some(&b'-'));
    let mut at = if bytes.get(sign) == Some(&b'0') { sign + 1 } else { digits(sign)? };
    let mut float = false;
    if bytes.get(at) == Some(&b'.') {
        float = true;
        at = digits(at + 1)?;
    }
    let exponent = matches!(bytes.get(at), Some(b'e' | b'E'));
    if exponent {
        at += 1;
        at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
        at = digits(at)?;
    }
    Some(NumberShape { len: at, float: float || exponent, exponent })
}

/// Returns whether `bytes` are exactly one number.
pub(crate) fn is_number(bytes: &[u8]) -> bool {
    number_shape(bytes).is_some_and(|shape| shape.len == bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn plain_text_ends_where_a_look_at_each_byte_ends_it(
            bytes in prop::collection::vec(prop_oneof![8 => any::<u8>(), 1 => Just(b'"'), 1 => Just(0), 20 => Just(b'a')], 0..40)
        ) {
            let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(bytes.len());
            prop_assert_eq!(plain_len(&bytes), end);
        }
    }
}
