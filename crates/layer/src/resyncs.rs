//! The running resyncs of a process, and their progress.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;

/// A running resync of a database's documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResyncTask {
    /// The database.
    pub database: String,
    /// The number of documents processed, by all processes.
    pub documents: u64,
    /// The approximate number of documents, tombstones included.
    pub total: u64,
    /// The number of processed documents that have changed.
    pub changed: u64,
    /// The number of leaves that the function has refused.
    pub refused: u64,
    /// The time of its beginning, in milliseconds of Unix time.
    pub started_at_ms: u64,
    /// The time of its last progress, in milliseconds of Unix time.
    pub updated_at_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Resyncs(Arc<Mutex<HashMap<u64, ResyncTask>>>);

/// A running resync. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningResync {
    namespace: u64,
    all: Arc<Mutex<HashMap<u64, ResyncTask>>>,
}

impl State<Inner> for Resyncs {
    fn new_of(_: &Inner) -> Resyncs {
        Resyncs::default()
    }
}

impl Resyncs {
    /// Registers this process's part in a resync. `None`: it takes part already.
    pub(crate) fn begin(&self, namespace: u64, task: ResyncTask) -> Option<RunningResync> {
        match lock(&self.0).entry(namespace) {
            Entry::Vacant(place) => drop(place.insert(task)),
            Entry::Occupied(_) => return None,
        }
        Some(RunningResync { namespace, all: Arc::clone(&self.0) })
    }

    pub(crate) fn all(&self) -> Vec<ResyncTask> {
        lock(&self.0).values().cloned().collect()
    }
}

impl RunningResync {
    pub(crate) fn update(&self, change: impl FnOnce(&mut ResyncTask)) {
        if let Some(task) = lock(&self.all).get_mut(&self.namespace) {
            change(task);
        }
    }
}

impl Drop for RunningResync {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.namespace);
    }
}

fn lock(all: &Mutex<HashMap<u64, ResyncTask>>) -> MutexGuard<'_, HashMap<u64, ResyncTask>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
