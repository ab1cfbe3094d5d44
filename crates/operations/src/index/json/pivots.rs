//! Pivots: labels at which a search for the position of a long key begins, on several levels.
//!
//! One in eight of an index's labels is also stored on level 1, one in eight of these on level 2, and so on. The choice
//! is random, so that clients who choose keys cannot skew it. A search reads from the highest populated level down to
//! the lowest, and is then between about eight entries, in whatever order the keys arrived
//! ([`flatbed_collate::Search`]).
//!
//! Pivots are hints. A missing one costs a search some steps, and one without entries does no harm. They are therefore
//! read and written without conflicts.

use flatbed_databases::limits::Limit;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{KeyRange, Keys, RowPlaces};
use sha2::{Digest, Sha256};

/// The highest level. It grows long beyond some 2 million keys.
pub(super) const LEVELS: u64 = 6;

/// One label in 2 to this power goes up a level.
const FANOUT_BITS: Limit<u32> = Limit::new(3, 1);

pub(super) const PAGE: usize = 24;

const HASH_BYTES: usize = 16;

/// The pivots of keys with the same beginning in an index.
pub(super) struct Pivots<'k> {
    keys: &'k Keys,
    number: u64,
    hash: Vec<u8>,
}

impl<'k> Pivots<'k> {
    /// `cut`: the common beginning of the sort keys.
    pub(super) fn new(keys: &'k Keys, number: u64, places: RowPlaces<'_>, cut: &[u8]) -> Pivots<'k> {
        let hash = Sha256::digest(places.before_element(cut));
        Pivots { keys, number, hash: hash.iter().take(HASH_BYTES).copied().collect() }
    }

    pub(super) fn key(&self, level: u64, label: &[u8]) -> Vec<u8> {
        self.keys.index_node(self.number, level, &[&self.hash, label].concat())
    }

    /// Returns the pivots between two labels; an open side has no bound.
    pub(super) fn range(&self, level: u64, (after, before): (Option<&[u8]>, Option<&[u8]>)) -> KeyRange {
        let with = |label: Option<&[u8]>| [&self.hash, label.unwrap_or_default()].concat();
        let all = self.keys.index_nodes(self.number, level, &self.hash);
        let begin = after.map(|_| [&self.keys.index_node(self.number, level, &with(after))[..], &[0]].concat());
        let end = before.map(|_| self.keys.index_node(self.number, level, &with(before)));
        KeyRange { begin: begin.unwrap_or(all.begin), end: end.unwrap_or(all.end) }
    }
}

/// Returns the label in a pivot's key; `None`: it is not a pivot's key.
pub(super) fn label(from: &[u8]) -> Option<&[u8]> {
    from.get(HASH_BYTES..).filter(|label| !label.is_empty())
}

/// Draws the number of levels on which a new label is stored.
///
/// # Errors
/// [`Error::NoRandomness`].
pub(super) fn height() -> Result<u64> {
    let mut drawn = [0; 4];
    getrandom::fill(&mut drawn).map_err(|_| Error::NoRandomness)?;
    Ok(u64::from(u32::from_be_bytes(drawn).trailing_zeros() / FANOUT_BITS.get()).min(LEVELS))
}
