//! Chunks whose sizes are written with the digits 0 to 9.
//!
//! Hyper writes the size of a chunk in upper-case hexadecimal. CouchDB writes lower case, and some clients read only
//! that. Hyper has no setting for it, and rewriting its output would take a second parser. So a chunked answer is cut
//! into chunks whose sizes have no letters: such a size is the same in both cases.
//!
//! The cost is a further chunk, 6 to 10 bytes without a copy, for most pieces, and up to four further chunks for a
//! few. A cut never splits a UTF-8 character, since clients decode each chunk by itself. Lines of a feed are not cut:
//! clients read each chunk as whole lines. Padding rows with empty lines, which clients take for heartbeats, would
//! add up to 60 % to every feed.

use bytes::Buf;

use crate::outlet::OutgoingText;

/// The most attempts to end on a character boundary. Sizes without letters come in runs of ten, and at least one of
/// four adjacent offsets is a boundary.
const PROBES_MAX: usize = 8;

pub(crate) fn cut(piece: &mut OutgoingText) -> Option<OutgoingText> {
    if piece.is_whole {
        return None;
    }
    let at = first_chunk(&piece.bytes);
    (at < piece.remaining())
        .then(|| OutgoingText::new(piece.bytes.split_off(at), piece.outlet.clone(), piece.room.clone()))
}

/// Returns the length of the first chunk of a text, in bytes.
fn first_chunk(text: &[u8]) -> usize {
    let longest = without_letters(text.len());
    let mut at = longest;
    for _ in 0..PROBES_MAX {
        // A byte `10xxxxxx` continues a character.
        let is_within = text.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
        if !is_within {
            return at;
        }
        at = without_letters(at.saturating_sub(1));
    }
    // The bytes are not UTF-8.
    longest
}

fn without_letters(number: usize) -> usize {
    let (mut found, mut is_below) = (0, false);
    for shift in (0..usize::BITS).step_by(4).rev() {
        let digit = (number >> shift) & 0xf;
        is_below |= digit > 9;
        found |= (if is_below { 9 } else { digit }) << shift;
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn chunks(text: &Bytes) -> Vec<Bytes> {
        let mut chunks = Vec::new();
        let mut next = Some(OutgoingText::new(text.clone(), None, None));
        while let Some(mut piece) = next {
            next = cut(&mut piece);
            chunks.push(piece.bytes.clone());
        }
        chunks
    }

    #[test]
    fn sizes_have_no_letters() {
        let ascii = Bytes::from(vec![b'x'; 0x1_0000]);
        let wide: Bytes = "a\u{e9}\u{20ac}\u{1f6cf}".repeat(1_000).into();
        for length in (0..4_000).chain([0x9999, 0xaaaa, 0xffff]) {
            let text = ascii.slice(..length);
            let chunks = chunks(&text);
            assert_eq!(chunks.concat(), text, "{length}");
            assert!(chunks.len() <= 4, "{length}: {}", chunks.len());
            assert!(chunks.iter().all(|chunk| !format!("{:x}", chunk.len()).contains(char::is_alphabetic)), "{length}");
        }
        for length in 0..2_000 {
            let text = String::from_utf8_lossy(&wide[..length]).into_owned();
            let chunks = chunks(&text.clone().into());
            assert_eq!(chunks.concat(), text.as_bytes());
            for chunk in chunks {
                assert!(std::str::from_utf8(&chunk).is_ok(), "{length}: {chunk:?}");
                assert!(!format!("{:x}", chunk.len()).contains(char::is_alphabetic), "{length}");
            }
        }
    }

    #[test]
    fn what_is_no_text_is_cut_all_the_same() {
        let bytes = Bytes::from(vec![0x80; 0xabc]);
        let chunks = chunks(&bytes);
        assert_eq!(chunks.concat(), bytes);
        assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
    }

    #[test]
    fn lines_stay_whole() {
        let mut line = OutgoingText::new(Bytes::from(vec![b'x'; 0xab]), None, None);
        line.is_whole = true;
        assert!(cut(&mut line).is_none());
        assert_eq!(line.remaining(), 0xab);
    }
}
