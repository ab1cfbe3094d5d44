//! The line of ancestors of a leaf, kept so that an edit rewrites a bounded part of it.
//!
//! A leaf may have a thousand ancestors (`_revs_limit`), and each edit makes its parent one more. The recent ones stand
//! in the leaf's own record; when they reach [`ANCESTORS_INLINE_MAX`], the older half is sealed: written once as a
//! segment of its own, never changed again, and dropped whole when all of it lies beyond the limit.

use crate::RevId;

/// Most ancestors in a leaf's own record.
pub const ANCESTORS_INLINE_MAX: usize = 64;

/// Ancestors of a leaf, newest first: its parent, the parent's parent, and so on, without a gap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ancestry {
    /// The newest, at most [`ANCESTORS_INLINE_MAX`].
    pub recent: Vec<RevId>,
    /// How many older ones lie in sealed segments.
    pub sealed_count: u64,
}

/// A run of ancestors that leaves the record, newest first; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed(pub Vec<RevId>);

impl Sealed {
    /// The newest generation in it, by which it is named.
    pub fn generation(&self) -> u64 {
        self.0.first().map_or(0, RevId::generation)
    }
}

impl Ancestry {
    /// The ancestry of a child of `leaf`, whose ancestry this is: `leaf` comes first. When the recent ones would be too
    /// many, the older half comes back to be written as a segment.
    pub fn extend(mut self, leaf: RevId) -> (Ancestry, Option<Sealed>) {
        self.recent.insert(0, leaf);
        if self.recent.len() <= ANCESTORS_INLINE_MAX {
            return (self, None);
        }
        let older = self.recent.split_off(ANCESTORS_INLINE_MAX / 2);
        self.sealed_count += older.len() as u64;
        (self, Some(Sealed(older)))
    }

    /// How many ancestors there are, sealed ones included.
    pub fn len(&self) -> u64 {
        self.recent.len() as u64 + self.sealed_count
    }

    /// A first revision has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_record_stays_bounded(edits in 1..400_u64) {
            let rev = |generation| RevId::from_parts(generation, "a").unwrap();
            let (mut ancestry, mut segments) = (Ancestry::default(), Vec::new());
            for generation in 1..edits {
                let (next, sealed) = ancestry.extend(rev(generation));
                ancestry = next;
                segments.extend(sealed);
                prop_assert!(ancestry.recent.len() <= ANCESTORS_INLINE_MAX);
            }
            let mut all = ancestry.recent.clone();
            for segment in segments.iter().rev() {
                prop_assert_eq!(segment.generation(), segment.0[0].generation());
                all.extend(segment.0.iter().cloned());
            }
            prop_assert_eq!(all.len() as u64, ancestry.len());
            let expected: Vec<RevId> = (1..edits).rev().map(rev).collect();
            prop_assert_eq!(all, expected);
        }
    }
}
