//! The running compactions of a process, and their progress.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_clock::Clock;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;

/// A running compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionProgress {
    /// The database.
    pub database: String,
    /// The number of changes scanned.
    pub changes_done: u64,
    /// The approximate number of changes to scan.
    pub total_changes: u64,
    /// The time of its beginning, in seconds of Unix time.
    pub started_at_seconds: u64,
    /// The time of its last progress, in seconds of Unix time.
    pub updated_at_seconds: u64,
}

#[derive(Debug)]
pub struct Compactions {
    all: Arc<Mutex<HashMap<u64, Arc<Progress>>>>,
    clock: Clock,
}

#[derive(Debug)]
struct Progress {
    database: String,
    done: AtomicU64,
    total: AtomicU64,
    started: u64,
    updated: AtomicU64,
}

/// A running compaction. It ends when this is dropped.
#[derive(Debug)]
pub struct RunningCompaction {
    namespace: u64,
    progress: Arc<Progress>,
    all: Arc<Mutex<HashMap<u64, Arc<Progress>>>>,
    clock: Clock,
}

impl State<Inner> for Compactions {
    fn new_of(inner: &Inner) -> Compactions {
        Compactions::new(&inner.clock)
    }
}

impl Compactions {
    pub fn new(clock: &Clock) -> Compactions {
        Compactions { all: Arc::default(), clock: clock.clone() }
    }

    /// Registers a compaction. `None`: this process already runs one for the namespace.
    pub fn begin(&self, namespace: u64, database: &str) -> Option<RunningCompaction> {
        let mut all = lock(&self.all);
        let Entry::Vacant(place) = all.entry(namespace) else { return None };
        let (now, database) = (self.clock.unix_seconds(), database.to_owned());
        let (done, total, updated) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(now));
        let progress = Arc::new(Progress { database, done, total, started: now, updated });
        place.insert(progress.clone());
        Some(RunningCompaction { namespace, progress, all: self.all.clone(), clock: self.clock.clone() })
    }

    pub fn is_running(&self, namespace: u64) -> bool {
        lock(&self.all).contains_key(&namespace)
    }

    pub fn all(&self) -> Vec<CompactionProgress> {
        let of = |progress: &Arc<Progress>| CompactionProgress {
            database: progress.database.clone(),
            changes_done: progress.done.load(Ordering::Relaxed),
            total_changes: progress.total.load(Ordering::Relaxed),
            started_at_seconds: progress.started,
            updated_at_seconds: progress.updated.load(Ordering::Relaxed),
        };
        lock(&self.all).values().map(of).collect()
    }
}

impl RunningCompaction {
    pub fn expect(&self, changes: u64) {
        self.progress.total.store(changes, Ordering::Relaxed);
    }

    pub fn get_on(&self, changes: u64) {
        self.progress.done.fetch_add(changes, Ordering::Relaxed);
        self.progress.updated.store(self.clock.unix_seconds(), Ordering::Relaxed);
    }
}

impl Drop for RunningCompaction {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.namespace);
    }
}

fn lock(all: &Mutex<HashMap<u64, Arc<Progress>>>) -> MutexGuard<'_, HashMap<u64, Arc<Progress>>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
