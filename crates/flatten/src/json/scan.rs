//! Looking for the end of what needs no care: plain text in strings, and numbers.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// How many bytes at the start stand for themselves in a JSON string: no quote, backslash or control character.
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let below_space = word.wrapping_sub(ONES * 0x20) & !word;
        // A borrow can only mark bytes above a true one, and the lowest is what counts.
        let found = (below_space | zero_bytes(word ^ (ONES * 0x22)) | zero_bytes(word ^ (ONES * 0x5c))) & HIGHS;
        if found != 0 {
            return bytes.len() - rest.len() + (found.trailing_zeros() / 8) as usize;
        }
        rest = behind;
    }
    let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
    bytes.len() - rest.len() + plain
}

/// The high bit of each byte that is zero (and perhaps of some above it).
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word
}

/// The shape of a number's text.
pub(super) struct NumberShape {
    pub len: usize,
    /// Has a fraction or an exponent.
    pub float: bool,
    pub exponent: bool,
}

/// The number at the start of `bytes`; `None` if there is none by the grammar of RFC 8259.
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

/// Whether `bytes` are one number and nothing else.
pub(crate) fn is_number(bytes: &[u8]) -> bool {
    number_shape(bytes).is_some_and(|shape| shape.len == bytes.len())
}
