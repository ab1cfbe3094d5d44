//! What recent commits wrote, so that a commit can tell whether it read something that changed since.
//!
//! The history is a queue of buckets, each with the writes of a span of versions; only the bucket that a read version
//! falls into is searched by version, in all newer ones any overlap is a conflict. So a check costs the logarithm of the
//! recent writes, and old writes go away a bucket at a time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// A bucket takes the commits of this many versions, which is a tenth of a second.
const BUCKET_VERSIONS: i64 = 100_000;
/// Entries kept over all buckets; past it the oldest bucket goes and older readers are too old.
const ENTRIES_MAX: usize = 4_000_000;

/// A half-open range of keys.
pub(crate) type KeyRange = (Vec<u8>, Vec<u8>);

/// The range holds exactly one key.
pub(crate) fn is_single_key((begin, end): &KeyRange) -> bool {
    end.strip_prefix(begin.as_slice()).is_some_and(|rest| rest == [0])
}

struct Bucket {
    first_version: i64,
    last_version: i64,
    /// Single keys and the version of their last write.
    points: BTreeMap<Vec<u8>, i64>,
    /// Disjoint ranges by begin: end, and the version of the last write.
    ranges: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
}

impl Bucket {
    fn len(&self) -> usize {
        self.points.len() + self.ranges.len()
    }

    fn insert(&mut self, range: KeyRange, version: i64) {
        self.last_version = version;
        let (begin, end) = range;
        if end.strip_prefix(begin.as_slice()).is_some_and(|rest| rest == [0]) {
            self.points.insert(begin, version);
            return;
        }
        // The newest write hides what it covers; what sticks out of it on either side stays.
        let mut covered: Vec<Vec<u8>> = Vec::new();
        let below_end = (Bound::Unbounded, Bound::Excluded(end.as_slice()));
        for (other_begin, (other_end, _)) in self.ranges.range::<[u8], _>(below_end).rev() {
            if *other_end <= begin {
                break;
            }
            covered.push(other_begin.clone());
        }
        for other_begin in covered {
            let Some((other_end, other_version)) = self.ranges.remove(&other_begin) else { continue };
            if other_end > end {
                self.ranges.insert(end.clone(), (other_end, other_version));
            }
            if other_begin < begin {
                self.ranges.insert(other_begin, (begin.clone(), other_version));
            }
        }
        self.ranges.insert(begin, (end, version));
    }

    fn written_after(&self, begin: &[u8], end: &[u8], version: i64) -> bool {
        let inside = (Bound::Included(begin), Bound::Excluded(end));
        if self.points.range::<[u8], _>(inside).any(|(_, &written)| written > version) {
            return true;
        }
        let below_end = (Bound::Unbounded, Bound::Excluded(end));
        let overlapping = self.ranges.range::<[u8], _>(below_end).rev();
        overlapping
            .take_while(|(_, (other_end, _))| other_end.as_slice() > begin)
            .any(|(_, &(_, written))| written > version)
    }
}

/// The writes of recent commits.
#[derive(Default)]
pub(crate) struct History {
    /// Oldest first.
    buckets: VecDeque<Bucket>,
    entries: usize,
    /// Writes up to this version may have been forgotten.
    forgotten_to: i64,
}

/// The read version is older than the history goes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooOld;

impl History {
    /// Records a write; versions must not fall from call to call. An empty range records nothing.
    pub(crate) fn insert(&mut self, range: KeyRange, version: i64) {
        if range.0 >= range.1 {
            return;
        }
        let needs_bucket = self.buckets.back().is_none_or(|last| version - last.first_version >= BUCKET_VERSIONS);
        if needs_bucket {
            let (points, ranges) = (BTreeMap::new(), BTreeMap::new());
            self.buckets.push_back(Bucket { first_version: version, last_version: version, points, ranges });
        }
        if let Some(bucket) = self.buckets.back_mut() {
            let before = bucket.len();
            bucket.insert(range, version);
            self.entries = self.entries + bucket.len() - before;
        }
        while self.entries > ENTRIES_MAX && self.buckets.len() > 1 {
            self.pop();
        }
    }

    /// Whether anything in `[begin, end)` was written after `version`.
    pub(crate) fn written_after(&self, begin: &[u8], end: &[u8], version: i64) -> Result<bool, TooOld> {
        if version < self.forgotten_to {
            return Err(TooOld);
        }
        if begin >= end {
            return Ok(false);
        }
        let newer = self.buckets.iter().rev().take_while(|bucket| bucket.last_version > version);
        Ok(newer.into_iter().any(|bucket| bucket.written_after(begin, end, version)))
    }

    /// Forgets the writes that no reader at `oldest_version` or later can conflict with.
    pub(crate) fn forget(&mut self, oldest_version: i64) {
        while self.buckets.front().is_some_and(|bucket| bucket.last_version <= oldest_version) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(bucket) = self.buckets.pop_front() {
            self.entries -= bucket.len();
            self.forgotten_to = self.forgotten_to.max(bucket.last_version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..3)
    }

    proptest! {
        #[test]
        fn answers_as_a_list_of_all_writes(
            writes in prop::collection::vec((key(), key(), any::<bool>(), 1i64..200_000), 0..40),
            reads in prop::collection::vec((key(), key(), 0i64..3_000_000), 0..40),
            forget in 0i64..1_000_000,
        ) {
            let (mut history, mut all, mut version) = (History::default(), Vec::new(), 0);
            for (a, b, single, step) in writes {
                version += step;
                let range = if single { (a.clone(), [&a[..], &[0]].concat()) } else { (a.clone().min(b.clone()), a.max(b)) };
                history.insert(range.clone(), version);
                all.push((range, version));
            }
            history.forget(forget);
            for (a, b, version) in reads {
                let (begin, end) = (a.clone().min(b.clone()), a.max(b));
                let expected = all.iter().any(|((from, to), written)| {
                    *written > version && from.max(&begin) < to.min(&end)
                });
                match history.written_after(&begin, &end, version) {
                    Ok(found) => prop_assert_eq!(found, expected),
                    Err(TooOld) => prop_assert!(version < forget),
                }
            }
        }
    }
}
