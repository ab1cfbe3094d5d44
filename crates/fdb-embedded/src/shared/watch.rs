//! Watches: callbacks that wait for a key to change.
//!
//! A transaction creates a watch with the value that it saw, and the watch waits from the transaction's commit on. The
//! committer looks up its changed keys in this table once per batch. Without watches that is one atomic load, and an
//! unwatched key costs one hash. A waiting watch stores a digest of the value that it expects.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::call::Completion;
use crate::base::error::{Error, Result};
use crate::base::key_space::KeyRange;
use crate::base::lock::lock;

/// The id of a watch, for [`crate::Engine::cancel_watch`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WatchId(pub u64);

/// A watch; its callback is called once, at the first completion.
pub(crate) struct Watch {
    pub(crate) id: WatchId,
    pub(crate) key: Vec<u8>,
    done: Mutex<Option<Completion<()>>>,
    is_waiting: AtomicBool,
}

/// A watch and the value whose change it waits for.
pub(crate) struct WatchRequest {
    pub(crate) watch: Arc<Watch>,
    pub(crate) expected: Option<Vec<u8>>,
}

/// A 128-bit digest of a value, `None` for no value. Values may be long. The digests are keyed anew in every run, so
/// that a client cannot search for two values with one digest.
type Digest = Option<(u64, u64)>;

/// A waiting watch, and the digest of the value that it expects.
struct WaitingWatch {
    watch: Arc<Watch>,
    expected: Digest,
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| hash << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Default)]
struct Table {
    by_key: BTreeMap<Vec<u8>, Vec<WaitingWatch>>,
    /// The number of watched keys by hash.
    hashes: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    hasher: RandomState,
    second_hasher: RandomState,
}

impl Table {
    fn digest(&self, value: Option<&[u8]>) -> Digest {
        value.map(|value| (self.hasher.hash_one(value), self.second_hasher.hash_one(value)))
    }

    fn insert(&mut self, waiting: WatchRequest) {
        let expected = self.digest(waiting.expected.as_deref());
        let hash = self.hasher.hash_one(&waiting.watch.key);
        let list = self.by_key.entry(waiting.watch.key.clone()).or_insert_with(|| {
            *self.hashes.entry(hash).or_default() += 1;
            // Few keys have two watches.
            Vec::with_capacity(1)
        });
        list.push(WaitingWatch { watch: waiting.watch, expected });
    }

    /// Removes a watch. Returns whether it was in the table.
    fn remove(&mut self, watch: &Watch) -> bool {
        let Some(list) = self.by_key.get_mut(&watch.key) else { return false };
        let before = list.len();
        list.retain(|other| other.watch.id != watch.id);
        let is_removed = list.len() < before;
        if list.is_empty() {
            self.by_key.remove(&watch.key);
            let hash = self.hasher.hash_one(&watch.key);
            if let Some(count) = self.hashes.get_mut(&hash) {
                *count -= 1;
                if *count == 0 {
                    self.hashes.remove(&hash);
                }
            }
        }
        is_removed
    }

    /// Returns whether a watch waits for a change from `value`.
    fn expects(&self, watch: &Watch, value: Option<&[u8]>) -> bool {
        let waiting = self.by_key.get(&watch.key).and_then(|list| list.iter().find(|other| other.watch.id == watch.id));
        waiting.is_some_and(|waiting| waiting.expected == self.digest(value))
    }

    /// Adds the watches on `key` that expect another value to `found`.
    fn changed(&self, key: &[u8], value: Option<&[u8]>, found: &mut Vec<Arc<Watch>>) {
        if !self.hashes.contains_key(&self.hasher.hash_one(key)) {
            return;
        }
        if let Some(list) = self.by_key.get(key) {
            let now = self.digest(value);
            let changed = list.iter().filter(|waiting| waiting.expected != now);
            found.extend(changed.map(|waiting| Arc::clone(&waiting.watch)));
        }
    }
}

pub(crate) struct Watches {
    /// Watches whose callback was not called yet.
    open: Mutex<HashMap<WatchId, Arc<Watch>>>,
    waiting: Mutex<Table>,
    waiting_count: AtomicUsize,
    next_id: AtomicU64,
    max: AtomicUsize,
    pub(crate) set_count: AtomicU64,
    pub(crate) fired_count: AtomicU64,
}

/// FoundationDB's default of the database option `max_watches`.
const WATCHES_MAX_DEFAULT: usize = 10_000;

impl Default for Watches {
    fn default() -> Self {
        Watches {
            open: Mutex::default(),
            waiting: Mutex::default(),
            waiting_count: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            max: AtomicUsize::new(WATCHES_MAX_DEFAULT),
            set_count: AtomicU64::new(0),
            fired_count: AtomicU64::new(0),
        }
    }
}

impl Watches {
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn open_count(&self) -> usize {
        lock(&self.open).len()
    }

    /// Creates a watch that does not wait yet. Over the limit it fails with 1032 and returns the callback.
    pub(crate) fn create(
        &self,
        key: &[u8],
        done: Completion<()>,
    ) -> std::result::Result<Arc<Watch>, (Error, Completion<()>)> {
        let mut open = lock(&self.open);
        if open.len() >= self.max.load(Ordering::Relaxed) {
            return Err((Error::TOO_MANY_WATCHES, done));
        }
        let id = WatchId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (key, done) = (key.to_vec(), Mutex::new(Some(done)));
        let watch = Arc::new(Watch { id, key, done, is_waiting: AtomicBool::new(false) });
        open.insert(id, Arc::clone(&watch));
        self.set_count.fetch_add(1, Ordering::Relaxed);
        Ok(watch)
    }

    /// Calls the callback unless it was called.
    pub(crate) fn finish(&self, watch: &Watch, result: Result<()>) {
        let Some(done) = lock(&watch.done).take() else { return };
        lock(&self.open).remove(&watch.id);
        if watch.is_waiting.load(Ordering::Acquire) {
            self.forget(watch);
        }
        if result.is_ok() {
            self.fired_count.fetch_add(1, Ordering::Relaxed);
        }
        done(result);
    }

    pub(crate) fn cancel(&self, id: WatchId) {
        let watch = lock(&self.open).get(&id).cloned();
        if let Some(watch) = watch {
            self.finish(&watch, Err(Error::OPERATION_CANCELLED));
        }
    }

    /// Ends all watches with 1101 because the engine closes.
    pub(crate) fn cancel_all(&self) {
        let all: Vec<_> = lock(&self.open).values().cloned().collect();
        for watch in all {
            self.finish(&watch, Err(Error::OPERATION_CANCELLED));
        }
    }

    /// Starts a watch. The caller must compare the stored value with the expected one afterwards.
    pub(crate) fn wait(&self, waiting: WatchRequest) {
        let watch = Arc::clone(&waiting.watch);
        watch.is_waiting.store(true, Ordering::Release);
        lock(&self.waiting).insert(waiting);
        self.waiting_count.fetch_add(1, Ordering::Release);
        if lock(&watch.done).is_none() {
            // Cancelled in the meantime, perhaps before it was in the table.
            self.forget(&watch);
        }
    }

    fn forget(&self, watch: &Watch) {
        if lock(&self.waiting).remove(watch) {
            self.waiting_count.fetch_sub(1, Ordering::Release);
        }
    }

    pub(crate) fn is_any_waiting(&self) -> bool {
        self.waiting_count.load(Ordering::Acquire) > 0
    }

    /// Returns whether a watch waits for a change from `value`.
    pub(crate) fn expects(&self, watch: &Watch, value: Option<&[u8]>) -> bool {
        lock(&self.waiting).expects(watch, value)
    }

    /// Adds the watches on a key that expect another value than its current one.
    pub(crate) fn changed(&self, key: &[u8], value: Option<&[u8]>, found: &mut Vec<Arc<Watch>>) {
        lock(&self.waiting).changed(key, value, found);
    }

    /// Adds the changed watches of all keys that a batch set or cleared singly. Returns the watched keys in its
    /// cleared ranges, whose values the caller must read.
    pub(crate) fn changed_by<'b>(
        &self,
        values: impl Iterator<Item = (&'b [u8], Option<&'b [u8]>)>,
        cleared: &[KeyRange],
        found: &mut Vec<Arc<Watch>>,
    ) -> Vec<Vec<u8>> {
        let table = lock(&self.waiting);
        let (Some((first, _)), Some((last, _))) = (table.by_key.first_key_value(), table.by_key.last_key_value())
        else {
            return Vec::new();
        };
        for (key, value) in values.filter(|(key, _)| first.as_slice() <= *key && *key <= last.as_slice()) {
            table.changed(key, value, found);
        }
        let inside = |(begin, end): &KeyRange| (Bound::Included(begin.clone()), Bound::Excluded(end.clone()));
        let keys = cleared.iter().flat_map(|range| table.by_key.range(inside(range)));
        keys.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_batch_finds_the_watches_that_it_changed(
            watches in prop::collection::vec((0u8..12, prop::option::of(0u8..3), any::<bool>()), 0..20),
            values in prop::collection::btree_map(0u8..14, prop::option::of(0u8..3), 0..8),
            cleared in prop::collection::vec((0u8..14, 1u8..4), 0..2),
        ) {
            let table = Watches::default();
            let mut left = Vec::new();
            for (key, expected, is_cancelled) in watches {
                let watch = table.create(&[key], Box::new(drop)).map_err(|(error, _)| error).unwrap();
                let id = watch.id;
                table.wait(WatchRequest { watch, expected: expected.map(|value| vec![value]) });
                if is_cancelled {
                    table.cancel(id);
                } else {
                    left.push((id, key, expected));
                }
            }
            prop_assert_eq!(table.is_any_waiting(), !left.is_empty());
            let (keys, bytes): (Vec<_>, Vec<_>) = values.iter().map(|(key, value)| ([*key], value.map(|v| [v]))).unzip();
            let pairs = keys.iter().zip(&bytes).map(|(key, value)| (&key[..], value.as_ref().map(|value| &value[..])));
            let ranges: Vec<KeyRange> = cleared.iter().map(|(from, len)| (vec![*from], vec![from + len])).collect();
            let mut found = Vec::new();
            let inside = table.changed_by(pairs, &ranges, &mut found);
            let found: BTreeSet<_> = found.iter().map(|watch| watch.id.0).collect();
            let expected = left.iter().filter(|(_, key, expected)| values.get(key).is_some_and(|value| value != expected));
            prop_assert_eq!(found, expected.map(|(id, ..)| id.0).collect::<BTreeSet<_>>());
            let watched: BTreeSet<_> = left.iter().map(|(_, key, _)| *key).collect();
            let is_cleared = |key: u8| cleared.iter().any(|(from, len)| (*from..from + len).contains(&key));
            let expected: BTreeSet<_> = watched.into_iter().filter(|key| is_cleared(*key)).map(|key| vec![key]).collect();
            prop_assert_eq!(inside.into_iter().collect::<BTreeSet<_>>(), expected);
            table.cancel_all();
            prop_assert!(!table.is_any_waiting() && lock(&table.waiting).hashes.is_empty());
        }
    }
}
