//! The parts of its snapshot that a transaction has read.
//!
//! FoundationDB's client caches what it has read of a snapshot. A later range read returns the cached part and stops
//! before it would have to ask a server again, with fewer rows than its limit and `more` set. This set decides where
//! the engine's pages end; the pairs themselves are read from the snapshot each time.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::base::key_space::key_after;
use crate::base::range_set::RangeList;
use crate::read::result::RangeResult;

/// The most ranges kept. Further ranges are not kept, so pages over them are as full as those of a first read.
const RANGES_MAX: usize = 1 << 16;

/// Ranges of keys whose stored pairs the transaction has read. Ranges that touch stay separate, as in the client.
#[derive(Debug, Default)]
pub(crate) struct KnownRanges {
    /// Ranges in the order of their reads, not yet in `ranges`: point reads alone never need them sorted.
    recent: RangeList,
    /// Begin to end, disjoint.
    ranges: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl KnownRanges {
    pub(crate) fn add(&mut self, begin: &[u8], end: &[u8]) {
        if begin < end && self.has_room() {
            self.recent.push(begin, end);
        }
    }

    pub(crate) fn add_key(&mut self, key: &[u8]) {
        if self.has_room() {
            self.recent.push_key(key);
        }
    }

    fn has_room(&self) -> bool {
        self.recent.len() + self.ranges.len() < RANGES_MAX
    }

    /// Sorts the recent ranges in; the queries below see only sorted ranges.
    pub(crate) fn order(&mut self) {
        for (begin, end) in std::mem::take(&mut self.recent).iter() {
            self.insert(begin, end);
        }
    }

    /// Adds a range without the parts that earlier ranges hold at its ends, and replaces those inside of it.
    pub(crate) fn insert(&mut self, begin: &[u8], end: &[u8]) {
        let begin = match self.holding(begin) {
            Some((held_begin, held_end)) if held_begin != begin => held_end.to_vec(),
            _ => begin.to_vec(),
        };
        let end = self.holding(end).map_or(end, |(held_begin, _)| held_begin).to_vec();
        if begin >= end {
            return;
        }
        let inside = (Bound::Included(begin.as_slice()), Bound::Excluded(end.as_slice()));
        let inside: Vec<_> = self.ranges.range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect();
        for key in inside {
            self.ranges.remove(&key);
        }
        self.ranges.insert(begin, end);
    }

    pub(crate) fn holding(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let (begin, end) = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        (key < end.as_slice()).then_some((begin, end))
    }

    pub(crate) fn last_below(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let (begin, end) = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back()?;
        Some((begin, end))
    }

    /// Returns the begin of the first range that does not begin below `key`.
    pub(crate) fn begin_from(&self, key: &[u8]) -> Option<&[u8]> {
        let from = self.ranges.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).next()?;
        Some(from.0)
    }

    /// Returns whether a range holds a key of `[begin, end)`.
    pub(crate) fn touches(&self, begin: &[u8], end: &[u8]) -> bool {
        self.last_below(end).is_some_and(|(_, last_end)| begin < last_end)
    }

    /// Adds the rows of a range between key selectors that walk. The client knows more than that; see the design.
    pub(crate) fn add_rows(&mut self, rows: &RangeResult) {
        if let (Some(first), Some(last)) = (rows.first_key(), rows.last_key()) {
            let (lowest, highest) = if first <= last { (first, last) } else { (last, first) };
            self.add(lowest, &key_after(highest));
        }
    }

    /// Adds the keys that a key selector's answer determines.
    pub(crate) fn add_selected(&mut self, base: &[u8], offset: i32, found: &[u8], max_key: &[u8]) {
        match offset {
            1.. if found >= max_key => self.add(base, max_key),
            1.. => self.add(base, &key_after(found)),
            _ => self.add(found, base),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn holds_the_union_of_what_was_added(ranges in prop::collection::vec((0u8..30, 0u8..30), 0..60)) {
            let (mut known, mut model) = (KnownRanges::default(), BTreeSet::new());
            for (begin, end) in ranges {
                known.add(&[begin], &[end]);
                model.extend(begin..end);
            }
            known.order();
            for key in 0..31 {
                let held = known.holding(&[key]);
                prop_assert_eq!(held.is_some(), model.contains(&key), "{}", key);
                if let Some((begin, end)) = held {
                    prop_assert!(begin <= [key].as_slice() && [key].as_slice() < end);
                }
                prop_assert_eq!(known.touches(&[key], &[key + 3]), (key..key + 3).any(|key| model.contains(&key)));
            }
        }
    }

    #[test]
    fn keeps_a_bounded_number_of_ranges() {
        let mut known = KnownRanges::default();
        for key in 0..RANGES_MAX as u32 + 100 {
            known.add_key(&key.to_be_bytes());
        }
        known.order();
        assert_eq!(known.ranges.len(), RANGES_MAX);
    }
}
