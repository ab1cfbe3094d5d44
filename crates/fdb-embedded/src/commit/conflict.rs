//! The write history of recent commits, which the conflict check reads.
//!
//! The history is a queue of buckets, each with the writes of half a second. A bucket has two trees: single keys with
//! the version of their last write, and ranges as steps, where a version holds from one step to the next. A tree
//! answers whether anything in a range is newer than a version in logarithmic time, for any width of the range and any
//! version. Writes go into the newest bucket, whose tree is small. The check of a recent reader looks at no other
//! bucket. The oldest bucket is dropped as a whole.

use std::collections::VecDeque;

use crate::base::key_space::is_key_after;
use crate::commit::version_tree::VersionTree;

/// Versions per bucket: half a second.
const BUCKET_VERSIONS: i64 = 500_000;
/// Most entries over all buckets. Past it the oldest bucket is dropped, and older readers get 1007.
const ENTRIES_MAX: usize = 4_000_000;
/// Most bytes over all buckets, with the same effect.
const BYTES_MAX: usize = 256 << 20;

struct Bucket<const N: usize> {
    first_version: i64,
    last_version: i64,
    points: VersionTree<N>,
    /// The version of the last range write, from each key up to the next one.
    steps: VersionTree<N>,
}

impl<const N: usize> Bucket<N> {
    fn new(version: i64) -> Bucket<N> {
        let (points, steps) = (VersionTree::default(), VersionTree::default());
        Bucket { first_version: version, last_version: version, points, steps }
    }

    fn entries(&self) -> usize {
        self.points.len() + self.steps.len()
    }

    fn bytes(&self) -> usize {
        self.points.bytes() + self.steps.bytes()
    }

    /// Inserts a range; `begin` must be below `end`.
    fn insert(&mut self, begin: &[u8], end: &[u8], version: i64) {
        self.last_version = version;
        if is_key_after(begin, end) {
            return self.points.put(begin, version);
        }
        // The part beyond the range keeps its version. Points within it need not be removed: the step over them is
        // newer.
        let (version_after, is_step) = self.steps.at_or_below(end);
        self.steps.remove(begin, end);
        self.steps.put(begin, version);
        if !is_step {
            self.steps.put(end, version_after);
        }
    }

    /// Returns whether the range has a write after `version`; `begin` must be below `end`.
    fn is_written_after(&self, begin: &[u8], end: &[u8], version: i64) -> bool {
        let is_any_point = match is_key_after(begin, end) {
            true => self.points.is_after(begin, version),
            false => self.points.is_any_after(begin, end, version),
        };
        is_any_point
            || self.steps.len() > 0
                && (self.steps.at_or_below(begin).0 > version || self.steps.is_any_after(begin, end, version))
    }
}

/// The writes of recent commits. `N` is the node size of the trees.
pub(crate) struct History<const N: usize = 96> {
    /// Oldest first.
    buckets: VecDeque<Bucket<N>>,
    entries: usize,
    bytes: usize,
    /// Writes up to this version may have been dropped.
    forgotten_to: i64,
    entries_max: usize,
    bytes_max: usize,
}

impl<const N: usize> Default for History<N> {
    fn default() -> Self {
        let (entries_max, bytes_max) = (ENTRIES_MAX, BYTES_MAX);
        History { buckets: VecDeque::new(), entries: 0, bytes: 0, forgotten_to: 0, entries_max, bytes_max }
    }
}

/// The read version is older than the history.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooOld;

impl<const N: usize> History<N> {
    /// Records a write from a begin to an end. Versions must not decrease. An empty range records nothing.
    pub(crate) fn insert(&mut self, (begin, end): (impl AsRef<[u8]>, impl AsRef<[u8]>), version: i64) {
        let (begin, end) = (begin.as_ref(), end.as_ref());
        if begin >= end {
            return;
        }
        if self.buckets.back().is_none_or(|newest| version - newest.first_version >= BUCKET_VERSIONS) {
            let bucket = Bucket::new(version);
            self.bytes += bucket.bytes();
            self.buckets.push_back(bucket);
        }
        if let Some(bucket) = self.buckets.back_mut() {
            let (entries, bytes) = (bucket.entries(), bucket.bytes());
            bucket.insert(begin, end, version);
            self.entries = self.entries + bucket.entries() - entries;
            self.bytes = self.bytes + bucket.bytes() - bytes;
        }
        while self.entries > self.entries_max || self.bytes > self.bytes_max {
            self.pop();
        }
    }

    /// Returns whether anything in `[begin, end)` was written after `version`.
    pub(crate) fn is_written_after(&self, begin: &[u8], end: &[u8], version: i64) -> Result<bool, TooOld> {
        if version < self.forgotten_to {
            return Err(TooOld);
        }
        if begin >= end {
            return Ok(false);
        }
        let mut newer = self.buckets.iter().rev().take_while(|bucket| bucket.last_version > version);
        Ok(newer.any(|bucket| bucket.is_written_after(begin, end, version)))
    }

    /// The number of recorded writes; one range may count more than once.
    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    /// Drops writes that no reader at `oldest_version` or later can conflict with.
    pub(crate) fn forget(&mut self, oldest_version: i64) {
        while self.buckets.front().is_some_and(|bucket| bucket.last_version <= oldest_version) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(bucket) = self.buckets.pop_front() {
            self.entries -= bucket.entries();
            self.bytes -= bucket.bytes();
            self.forgotten_to = self.forgotten_to.max(bucket.last_version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::key_space::KeyRange;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(KeyRange),
        /// Advances the version by this much.
        Pass(i64),
        /// Drops history older than this many versions.
        Forget(i64),
        /// Reads at a version of this age.
        Read(KeyRange, i64),
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..4)
    }

    fn range() -> impl Strategy<Value = KeyRange> {
        let single = |key: Vec<u8>| (key.clone(), [&key[..], &[0]].concat());
        prop_oneof![
            2 => key().prop_map(single),
            // Ranges that are close, touch, or share an end.
            2 => (0u8..20, 0u8..4).prop_map(|(begin, len)| (vec![begin], vec![begin + len])),
            1 => (key(), key()).prop_map(|(a, b)| (a.clone().min(b.clone()), a.max(b))),
            1 => (key(), Just(vec![0xff])),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => range().prop_map(Step::Write),
            2 => (1i64..300_000).prop_map(Step::Pass),
            1 => (0i64..2_000_000).prop_map(Step::Forget),
            8 => (range(), 0i64..2_500_000).prop_map(|(range, age)| Step::Read(range, age)),
        ]
    }

    /// Compares every answer with a list of all writes. Too old is allowed only for dropped history.
    fn check<const N: usize>(steps: &[Step], entries_max: usize) -> Result<(), TestCaseError> {
        let mut history = History::<N> { entries_max, ..History::default() };
        let (mut all, mut version, mut forgotten) = (Vec::new(), 1i64, 0);
        for step in steps {
            match step {
                Step::Pass(versions) => version += versions,
                Step::Write(range) => {
                    version += 1;
                    history.insert(range.clone(), version);
                    all.push((range, version));
                    prop_assert!(history.entries <= entries_max);
                    let measured = history.buckets.iter().map(|bucket| (bucket.entries(), bucket.bytes()));
                    let sums = measured.fold((0, 0), |sums, size| (sums.0 + size.0, sums.1 + size.1));
                    prop_assert_eq!((history.entries, history.bytes), sums);
                }
                Step::Forget(age) => {
                    forgotten = forgotten.max(version - age);
                    history.forget(version - age);
                }
                Step::Read((begin, end), age) => {
                    // A read at the newest version always has an answer, in any history size.
                    prop_assert_eq!(history.is_written_after(begin, end, version), Ok(false));
                    let version = (version - age).max(0);
                    let expected =
                        all.iter().any(|((from, to), written)| *written > version && from.max(begin) < to.min(end));
                    match history.is_written_after(begin, end, version) {
                        Ok(found) => prop_assert_eq!(found, expected, "{:?} to {:?} at {}", begin, end, version),
                        Err(TooOld) => prop_assert!(version < forgotten || entries_max < ENTRIES_MAX),
                    }
                }
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn answers_as_a_list_of_all_writes(steps in prop::collection::vec(step(), 0..600)) {
            check::<4>(&steps, ENTRIES_MAX)?;
            check::<96>(&steps, ENTRIES_MAX)?;
            check::<4>(&steps, 40)?;
        }
    }

    fn point(number: u64) -> KeyRange {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
        let end = [&key[..], &[0]].concat();
        (key, end)
    }

    #[test]
    fn only_what_was_forgotten_goes() {
        let mut history = History::<96>::default();
        for number in 0..100_000u64 {
            let version = number as i64 * 100;
            history.insert(point(number), version);
            if number % 1_000 == 0 {
                history.forget(version - 1_000_000);
            }
            assert!(history.entries <= 16_000, "{} are left of 10,000 in ten tenths of a second", history.entries);
        }
        let last = point(99_999);
        assert_eq!(history.is_written_after(&last.0, &last.1, 9_999_899), Ok(true));
        assert_eq!(history.is_written_after(&last.0, &last.1, 9_999_900), Ok(false));
        assert_eq!(history.is_written_after(b"", b"\xff", 8_000_000), Err(TooOld));
        history.forget(10_000_000);
        assert_eq!((history.entries, history.bytes), (0, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let bytes_max = 4 << 20;
        let mut history = History::<96> { bytes_max, ..History::default() };
        for number in 0..20_000u64 {
            let mut range = point(number);
            range.1 = [&range.0[..], &[7; 1_000]].concat();
            range.0 = range.1.clone();
            range.1.push(0);
            let version = number as i64 * 1_000;
            history.insert(range, version);
            assert!(history.bytes <= bytes_max);
            assert_ne!(history.is_written_after(b"", &[0xff; 9], version - 1), Ok(false));
        }
        assert!(history.entries > 1_000, "{} are left", history.entries);
    }
}
