//! Pending clears: cleared ranges whose records are still on disk.
//!
//! Clearing a range costs a cluster nothing, but LMDB has to remove each record. A commit removes a bounded number
//! itself and leaves the rest of a larger range pending. Reads hide every record in a pending range, a write into it
//! splits the range, and the committer removes the records between batches. The ranges are records of the database,
//! written in the LMDB transaction of their commit, so a restart resumes the removal.

use std::collections::BTreeMap;
use std::ops::Bound;

/// A changed pending range: its id and its ends, or `None` if it was removed.
pub(crate) type Change = (u64, Option<(Vec<u8>, Vec<u8>)>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingClear {
    end: Vec<u8>,
    id: u64,
}

/// Disjoint ranges whose records are hidden.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clears {
    by_begin: BTreeMap<Vec<u8>, PendingClear>,
    next_id: u64,
    /// Changes to write to the ranges' records, in order.
    changes: Vec<Change>,
}

impl Clears {
    pub(crate) fn from_records(records: impl IntoIterator<Item = (u64, Vec<u8>, Vec<u8>)>) -> Clears {
        let mut clears = Clears::default();
        for (id, begin, end) in records {
            clears.next_id = clears.next_id.max(id.saturating_add(1));
            clears.by_begin.insert(begin, PendingClear { end, id });
        }
        clears
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_begin.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_begin.len()
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Takes the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the range that hides `key`.
    pub(crate) fn hiding(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        if self.is_empty() {
            return None;
        }
        let not_above = (Bound::Unbounded, Bound::Included(key));
        let (begin, pending) = self.by_begin.range::<[u8], _>(not_above).next_back()?;
        (pending.end.as_slice() > key).then_some((begin.as_slice(), pending.end.as_slice()))
    }

    /// Returns the range that hides `key`, else the first one above it.
    pub(crate) fn at_or_above(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let above = || self.by_begin.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).next();
        self.hiding(key).or_else(|| above().map(|(begin, pending)| (begin.as_slice(), pending.end.as_slice())))
    }

    /// Returns the last range that begins below `key`.
    pub(crate) fn below(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let below = (Bound::Unbounded, Bound::Excluded(key));
        let (begin, pending) = self.by_begin.range::<[u8], _>(below).next_back()?;
        Some((begin.as_slice(), pending.end.as_slice()))
    }

    pub(crate) fn first(&self) -> Option<(&[u8], &[u8])> {
        let (begin, pending) = self.by_begin.first_key_value()?;
        Some((begin.as_slice(), pending.end.as_slice()))
    }

    /// Adds a range, merged with those that it touches.
    pub(crate) fn insert(&mut self, begin: Vec<u8>, end: Vec<u8>) {
        let (mut begin, mut end) = (begin, end);
        if begin >= end {
            return;
        }
        while let Some((other_begin, other_end)) = self.last_touching(&begin, &end) {
            self.remove(&other_begin);
            begin = begin.min(other_begin);
            end = end.max(other_end);
        }
        self.put(begin, end);
    }

    fn last_touching(&self, begin: &[u8], end: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let up_to_end = (Bound::Unbounded, Bound::Included(end));
        let (other_begin, pending) = self.by_begin.range::<[u8], _>(up_to_end).next_back()?;
        (pending.end.as_slice() >= begin).then(|| (other_begin.clone(), pending.end.clone()))
    }

    /// Removes one key from its range before the key is written. `is_empty_below`: the range has no record below the
    /// key.
    pub(crate) fn uncover(&mut self, key: &[u8], is_empty_below: bool) {
        let Some((begin, end)) = self.hiding(key).map(|(begin, end)| (begin.to_vec(), end.to_vec())) else { return };
        self.remove(&begin);
        let after = [key, &[0]].concat();
        if !is_empty_below && begin.as_slice() < key {
            self.put(begin, key.to_vec());
        }
        if after < end {
            self.put(after, end);
        }
    }

    /// Shortens the first range, whose records below `to` are removed; `None`: all of them.
    pub(crate) fn shorten_first(&mut self, to: Option<Vec<u8>>) {
        let Some((begin, end)) = self.first().map(|(begin, end)| (begin.to_vec(), end.to_vec())) else { return };
        self.remove(&begin);
        if let Some(to) = to.filter(|to| *to < end) {
            self.put(to, end);
        }
    }

    fn put(&mut self, begin: Vec<u8>, end: Vec<u8>) {
        let id = self.next_id;
        self.next_id += 1;
        self.changes.push((id, Some((begin.clone(), end.clone()))));
        self.by_begin.insert(begin, PendingClear { end, id });
    }

    fn remove(&mut self, begin: &[u8]) {
        if let Some(pending) = self.by_begin.remove(begin) {
            self.changes.push((pending.id, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u8),
        Uncover(u8),
        Shorten(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..20, 0u8..20).prop_map(|(a, b)| Step::Insert(a.min(b), a.max(b))),
            (0u8..20).prop_map(Step::Uncover),
            (0u8..20).prop_map(Step::Shorten),
        ]
    }

    proptest! {
        /// One-byte keys suffice: a hole only tells a key and its successor apart.
        #[test]
        fn hides_what_a_set_of_keys_says(steps in prop::collection::vec(step(), 0..40)) {
            let (mut clears, mut hidden) = (Clears::default(), BTreeSet::new());
            let mut records: BTreeMap<u64, (Vec<u8>, Vec<u8>)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(a, b) => {
                        clears.insert(vec![a], vec![b]);
                        hidden.extend(a..b);
                    }
                    Step::Uncover(key) => {
                        clears.uncover(&[key], false);
                        hidden.remove(&key);
                    }
                    Step::Shorten(to) => {
                        let first = clears.first().map(|(begin, end)| (begin.to_vec(), end.to_vec()));
                        if let Some((begin, end)) = first {
                            let to = vec![to].max(begin);
                            clears.shorten_first(Some(to.clone()));
                            hidden.retain(|key| vec![*key] >= to || vec![*key] >= end);
                        }
                    }
                }
                for (id, ends) in clears.take_changes() {
                    match ends {
                        Some(ends) => records.insert(id, ends),
                        None => records.remove(&id),
                    };
                }
                for key in 0..20u8 {
                    prop_assert_eq!(clears.hiding(&[key]).is_some(), hidden.contains(&key), "{} in {:?}", key, &clears);
                    if let Some((begin, end)) = clears.at_or_above(&[key]) {
                        prop_assert!(end > &[key][..] && begin < end);
                    }
                }
                let ranges: Vec<_> = clears.by_begin.iter().map(|(begin, pending)| (begin, &pending.end)).collect();
                prop_assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0), "{:?}", ranges);
            }
            let again = Clears::from_records(records.into_iter().map(|(id, (begin, end))| (id, begin, end)));
            prop_assert_eq!(again.by_begin, clears.by_begin);
        }
    }
}
