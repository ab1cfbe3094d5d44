//! Watches: callbacks that wait for a key to change.
//!
//! A watch is made by a transaction with the value that the transaction saw, and waits from the transaction's commit on.
//! The committer asks this table about the keys that it changed; with no watches that is one atomic load.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::snapshot::lock;
use crate::transaction::Done;

/// Names a watch, for [`crate::Engine::cancel_watch`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WatchId(pub u64);

/// One watch; its callback is called once, by whoever comes first.
pub(crate) struct Watch {
    pub(crate) id: WatchId,
    pub(crate) key: Vec<u8>,
    done: Mutex<Option<Done<()>>>,
    is_waiting: AtomicBool,
}

/// A watch and the value whose change it waits for.
pub(crate) struct Waiting {
    pub(crate) watch: Arc<Watch>,
    pub(crate) expected: Option<Vec<u8>>,
}

/// All watches of an engine.
pub(crate) struct Watches {
    /// Every watch whose callback was not called yet.
    open: Mutex<HashMap<WatchId, Arc<Watch>>>,
    /// Those that wait for a commit, by key.
    waiting: Mutex<BTreeMap<Vec<u8>, Vec<Waiting>>>,
    waiting_count: AtomicUsize,
    next_id: AtomicU64,
    max: AtomicUsize,
    pub(crate) set_count: AtomicU64,
    pub(crate) fired_count: AtomicU64,
}

/// FoundationDB's default for the database option `max_watches`.
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

    /// A new watch that does not wait yet; 1032, and the callback given back, when there are too many.
    pub(crate) fn create(&self, key: &[u8], done: Done<()>) -> std::result::Result<Arc<Watch>, (Error, Done<()>)> {
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

    /// Calls the callback if nobody did.
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

    /// Ends a watch with 1101.
    pub(crate) fn cancel(&self, id: WatchId) {
        let watch = lock(&self.open).get(&id).cloned();
        if let Some(watch) = watch {
            self.finish(&watch, Err(Error::OPERATION_CANCELLED));
        }
    }

    /// Ends all watches with 1101: the engine closes.
    pub(crate) fn cancel_all(&self) {
        let all: Vec<_> = lock(&self.open).values().cloned().collect();
        for watch in all {
            self.finish(&watch, Err(Error::OPERATION_CANCELLED));
        }
    }

    /// Lets a watch wait. Whoever calls this compares the stored value with the expected one afterwards.
    pub(crate) fn wait(&self, waiting: Waiting) {
        let watch = Arc::clone(&waiting.watch);
        watch.is_waiting.store(true, Ordering::Release);
        lock(&self.waiting).entry(watch.key.clone()).or_default().push(waiting);
        self.waiting_count.fetch_add(1, Ordering::Release);
        if lock(&watch.done).is_none() {
            // Cancelled in the meantime, perhaps before it was in the table.
            self.forget(&watch);
        }
    }

    fn forget(&self, watch: &Watch) {
        let mut waiting = lock(&self.waiting);
        if let Some(list) = waiting.get_mut(&watch.key) {
            let before = list.len();
            list.retain(|other| other.watch.id != watch.id);
            self.waiting_count.fetch_sub(before - list.len(), Ordering::Release);
            if list.is_empty() {
                waiting.remove(&watch.key);
            }
        }
    }

    pub(crate) fn is_any_waiting(&self) -> bool {
        self.waiting_count.load(Ordering::Acquire) > 0
    }

    /// The watches on `key` that expect another value than `value`.
    pub(crate) fn changed(&self, key: &[u8], value: Option<&[u8]>, found: &mut Vec<Arc<Watch>>) {
        if let Some(list) = lock(&self.waiting).get(key) {
            let changed = list.iter().filter(|waiting| waiting.expected.as_deref() != value);
            found.extend(changed.map(|waiting| Arc::clone(&waiting.watch)));
        }
    }

    /// The watched keys in `[begin, end)`.
    pub(crate) fn keys_in(&self, begin: &[u8], end: &[u8]) -> Vec<Vec<u8>> {
        let inside = (Bound::Included(begin), Bound::Excluded(end));
        lock(&self.waiting).range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect()
    }
}
