//! Labels by which the places of long keys are looked for: of some of those that begin alike, on several levels.
//!
//! Of the labels that an index gives, one in eight is noted on level 1, of these one in eight on level 2, and so on, by chance: who
//! chooses keys cannot choose that. A search asks from the highest level that has any down to the lowest, and is between some eight
//! entries then, whatever the order in which the keys came ([`flatbed_collate::Search`]).
//!
//! They are hints. One that is missing costs a search some steps; one whose entries are gone would do no harm either. So they are read
//! and written without conflicts.

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::store::keys::{KeyRange, Keys, RowPlaces};

/// The highest level: where there are more than some 2 million keys, it has many.
pub(super) const LEVELS: u64 = 6;

/// Of one level one in eight goes up.
const FANOUT_BITS: u32 = if cfg!(test) { 1 } else { 3 };

/// Labels that are read at once.
pub(super) const PAGE: usize = 24;

const HASH_BYTES: usize = 16;

/// Of those that begin alike, in an index.
pub(super) struct Pivots<'k> {
    keys: &'k Keys,
    number: u64,
    hash: Vec<u8>,
}

impl<'k> Pivots<'k> {
    /// `cut`: how the sort keys begin.
    pub(super) fn new(keys: &'k Keys, number: u64, places: RowPlaces<'_>, cut: &[u8]) -> Pivots<'k> {
        let hash = Sha256::digest(places.before_element(cut));
        Pivots { keys, number, hash: hash.iter().take(HASH_BYTES).copied().collect() }
    }

    pub(super) fn key(&self, level: u64, label: &[u8]) -> Vec<u8> {
        self.keys.index_node(self.number, level, &[&self.hash, label].concat())
    }

    /// Those between two labels, or all before or behind one.
    pub(super) fn range(&self, level: u64, (after, before): (Option<&[u8]>, Option<&[u8]>)) -> KeyRange {
        let with = |label: Option<&[u8]>| [&self.hash, label.unwrap_or_default()].concat();
        let all = self.keys.index_nodes(self.number, level, &self.hash);
        let begin = after.map(|_| [&self.keys.index_node(self.number, level, &with(after))[..], &[0]].concat());
        let end = before.map(|_| self.keys.index_node(self.number, level, &with(before)));
        KeyRange { begin: begin.unwrap_or(all.begin), end: end.unwrap_or(all.end) }
    }
}

/// The label of what stands in a pivot's key; `None`: it is not a pivot's key.
pub(super) fn label(from: &[u8]) -> Option<&[u8]> {
    from.get(HASH_BYTES..).filter(|label| !label.is_empty())
}

/// On how many levels a new label is noted.
///
/// # Errors
/// [`Error::NoRandomness`].
pub(super) fn height() -> Result<u64> {
    let mut drawn = [0; 4];
    getrandom::fill(&mut drawn).map_err(|_| Error::NoRandomness)?;
    Ok(u64::from(u32::from_be_bytes(drawn).trailing_zeros() / FANOUT_BITS).min(LEVELS))
}
