//! A set of keys as disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::conflict::KeyRange;

/// Disjoint half-open ranges that do not touch, by their begins.
#[derive(Debug, Default)]
pub(crate) struct RangeSet(BTreeMap<Vec<u8>, Vec<u8>>);

impl RangeSet {
    /// Adds `[begin, end)`; an empty range adds nothing.
    pub(crate) fn insert(&mut self, begin: &[u8], end: &[u8]) {
        if begin >= end {
            return;
        }
        let mut from = begin;
        let touching = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(begin))).next_back();
        if let Some((other_begin, other_end)) = touching
            && other_end.as_slice() >= begin
        {
            if other_end.as_slice() >= end {
                return;
            }
            from = other_begin;
        }
        let from = from.to_vec();
        let mut to = end.to_vec();
        loop {
            let inside = (Bound::Excluded(from.as_slice()), Bound::Included(to.as_slice()));
            let Some((other_begin, other_end)) = self.0.range::<[u8], _>(inside).next() else { break };
            let other_begin = other_begin.clone();
            if *other_end > to {
                to.clone_from(other_end);
            }
            self.0.remove(&other_begin);
        }
        self.0.insert(from, to);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(begin, end)| (begin.as_slice(), end.as_slice()))
    }

    pub(crate) fn take(&mut self) -> Vec<KeyRange> {
        std::mem::take(&mut self.0).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn holds_the_union(ranges in prop::collection::vec((0u8..20, 0u8..20), 0..12)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (begin, end) in ranges {
                set.insert(&[begin], &[end]);
                model.extend(begin..end);
            }
            let mut held = BTreeSet::new();
            let mut last = None;
            for (begin, end) in set.iter() {
                prop_assert!(last < Some(begin[0]), "ranges touch or overlap");
                last = Some(end[0]);
                held.extend(begin[0]..end[0]);
            }
            prop_assert_eq!(held, model);
        }
    }
}
