//! Labels: the positions of cut keys among those with the same prefix.
//!
//! The first row with a key gets a label between those of its neighbours, and keeps it. A label is a fraction in words
//! of 8 bytes. A key after all others, or before all, gets a label at a distance of 2^32, so that 2^31 keys in a row
//! fit into one word; a key between two gets the middle. If a word has no room, another word follows; on the side of a
//! neighbour without that word it has the room of a first word. Keys that arrive in order, at any place, therefore
//! need one word for every 2^31. The worst case is keys that each fall between the last two: they need one bit each,
//! and about 6,000 of them fill a label. Then the rows with this prefix need new labels, evenly [`spread`]: the index
//! is rebuilt.

/// The longest label: with it, [`CUT_BYTES`](crate::CUT_BYTES) (zeros counted twice in both) and a document's id fit
/// into a key.
pub const LABEL_BYTES_MAX: usize = 768;

const WORD_BYTES: usize = 8;

/// The distance of a label from its neighbour at the end of a prefix's keys.
const STEP: u128 = 1 << 32;

/// The exclusive upper bound of a word.
const OPEN: u128 = 1 << 64;

/// Returns a new label after the first and before the second, which may be absent and must not be equal. `None` if the
/// label would be longer than [`LABEL_BYTES_MAX`].
pub fn between(after: Option<&[u8]>, before: Option<&[u8]>) -> Option<Vec<u8>> {
    let label = choose(after, before, |low, high, is_open| {
        let half = (high - low) / 2;
        match is_open {
            (true, false) => high - half.min(STEP),
            (false, true) => low + half.min(STEP),
            _ => low + half,
        }
    });
    (label.len() <= LABEL_BYTES_MAX).then_some(label)
}

/// The middle of two labels, used as a pivot of a search and never as a label.
pub(crate) fn middle(after: Option<&[u8]>, before: Option<&[u8]>) -> Vec<u8> {
    choose(after, before, |low, high, _| low + (high - low) / 2)
}

/// Returns `count` evenly spaced labels, for keys that are labelled together.
pub fn spread(count: u32) -> impl Iterator<Item = Vec<u8>> {
    let apart = OPEN / (u128::from(count) + 1);
    (1..=u128::from(count)).map(move |at| word_bytes(at * apart).to_vec())
}

/// Finds the first word with room. `pick` gets exclusive bounds of the word, at least 2 apart, and whether each of
/// them is not a neighbour's word.
fn choose(after: Option<&[u8]>, before: Option<&[u8]>, pick: impl Fn(u128, u128, (bool, bool)) -> u128) -> Vec<u8> {
    let mut label = Vec::with_capacity(WORD_BYTES);
    let mut after = after.unwrap_or_default().chunks(WORD_BYTES);
    let mut before = before.map(|label| label.chunks(WORD_BYTES));
    loop {
        let low = after.next().map(word);
        // A neighbour that has ended here sorts before this one; there is none, because they are not equal.
        let high = before.as_mut().and_then(Iterator::next).map(word);
        let (from, to) = (low.unwrap_or(0), high.unwrap_or(OPEN));
        if from + 1 < to {
            label.extend_from_slice(&word_bytes(pick(from, to, (low.is_none(), high.is_none()))));
            return label;
        }
        label.extend_from_slice(&word_bytes(from));
        if from < to {
            before = None;
        }
        if from > to {
            // The neighbours are out of order: any label is as good.
            return label;
        }
    }
}

fn word(bytes: &[u8]) -> u128 {
    let word = bytes.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    // Pads an incomplete word with zeros.
    word << (8 * WORD_BYTES.saturating_sub(bytes.len()))
}

fn word_bytes(word: u128) -> [u8; WORD_BYTES] {
    (word as u64).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn given(after: Option<&[u8]>, before: Option<&[u8]>) -> Vec<u8> {
        let label = between(after, before).unwrap();
        assert!(after.is_none_or(|after| after < label.as_slice()), "{after:x?} {label:x?}");
        assert!(before.is_none_or(|before| label.as_slice() < before), "{label:x?} {before:x?}");
        // A label must not end with a zero word: nothing could be inserted directly before it.
        assert!(label.chunks(WORD_BYTES).next_back().is_some_and(|last| word(last) > 0));
        label
    }

    proptest! {
        #[test]
        fn labels_lie_where_they_were_asked_for(places in prop::collection::vec(any::<prop::sample::Index>(), 1..300)) {
            let mut labels: Vec<Vec<u8>> = Vec::new();
            for place in places {
                let at = place.index(labels.len() + 1);
                let after = at.checked_sub(1).map(|at| labels[at].as_slice());
                labels.insert(at, given(after, labels.get(at).map(Vec::as_slice)));
            }
            prop_assert!(labels.is_sorted());
            for pair in labels.windows(2) {
                let middle = middle(Some(&pair[0]), Some(&pair[1]));
                prop_assert!(pair[0] < middle && middle < pair[1]);
            }
        }
    }

    #[test]
    fn the_first_labels() {
        let first = given(None, None);
        assert_eq!(first, (1_u64 << 63).to_be_bytes());
        assert_eq!(given(Some(&first), None), ((1_u64 << 63) + (1 << 32)).to_be_bytes());
        assert_eq!(given(None, Some(&first)), ((1_u64 << 63) - (1 << 32)).to_be_bytes());
        let next = given(Some(&first), None);
        assert_eq!(given(Some(&first), Some(&next)), ((1_u64 << 63) + (1 << 31)).to_be_bytes());
        let (low, high) = (4_u64.to_be_bytes(), 5_u64.to_be_bytes());
        let within = [low, (1_u64 << 63).to_be_bytes()].concat();
        assert_eq!(given(Some(&low), Some(&high)), within);
        assert_eq!(given(Some(&low), Some(&within)), [low, ((1_u64 << 63) - (1 << 32)).to_be_bytes()].concat());
        assert_eq!(given(Some(&within), Some(&high)), [low, ((1_u64 << 63) + (1 << 32)).to_be_bytes()].concat());
        let least = 1_u64.to_be_bytes();
        assert_eq!(given(None, Some(&least)), [0_u64.to_be_bytes(), (1_u64 << 63).to_be_bytes()].concat());
    }

    #[test]
    fn keys_in_order_take_little_room() {
        let (first, last) = (given(None, None), given(Some(&given(None, None)), None));
        for is_rising in [true, false] {
            let mut newest = if is_rising { first.clone() } else { last.clone() };
            for _ in 0..10_000 {
                newest = if is_rising { given(Some(&newest), Some(&last)) } else { given(Some(&first), Some(&newest)) };
            }
            assert_eq!(newest.len(), 2 * WORD_BYTES, "{is_rising}");
        }
    }

    #[test]
    fn the_worst_order_is_refused_in_the_end() {
        let (mut low, mut high) = (given(None, None), given(Some(&given(None, None)), None));
        let mut count = 0;
        while let Some(label) = between(Some(&low), Some(&high)) {
            assert!(low < label && label < high);
            if count % 2 == 0 {
                low = label
            } else {
                high = label
            }
            count += 1;
        }
        assert!((3_000..7_000).contains(&count), "{count}");
    }

    #[test]
    fn labels_for_many_are_in_order() {
        for count in [0, 1, 2, 100] {
            let labels: Vec<_> = spread(count).collect();
            assert_eq!(labels.len(), count as usize);
            assert!(labels.is_sorted_by(|a, b| a < b));
            assert!(labels.iter().all(|label| label.len() == WORD_BYTES));
        }
        assert_eq!(spread(1).next().unwrap(), given(None, None));
        assert_eq!(spread(3).nth(2).unwrap(), (3_u64 << 62).to_be_bytes());
    }

    #[test]
    fn labels_that_are_out_of_order_end_the_search_for_one() {
        assert!(between(Some(&[5; 8]), Some(&[4; 8])).is_some());
        assert!(between(Some(&[5, 1]), Some(&[5, 2])).is_some());
    }
}
