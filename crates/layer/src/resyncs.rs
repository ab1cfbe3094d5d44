//! The resyncs that a process is at, and how far they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A resync under way: a database's documents are brought to where its sync function puts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResyncTask {
    /// The database.
    pub database: String,
    /// How many documents it has come to, whichever process brought it there.
    pub documents: u64,
    /// About how many there are, tombstones among them.
    pub total: u64,
    /// Of those that it has come to, such as have changed.
    pub changed: u64,
    /// Leaves that the function has refused.
    pub refused: u64,
    /// When it began, in milliseconds of Unix time.
    pub started_at_ms: u64,
    /// When it got on last.
    pub updated_at_ms: u64,
}

/// Those of this process, by namespace.
#[derive(Debug, Default)]
pub(crate) struct Resyncs(Arc<Mutex<HashMap<u64, ResyncTask>>>);

/// One of them; it has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    namespace: u64,
    all: Arc<Mutex<HashMap<u64, ResyncTask>>>,
}

impl Resyncs {
    /// Notes how far one is. Another of the same namespace is the same: it stands once.
    pub(crate) fn begin(&self, namespace: u64, task: ResyncTask) -> Running {
        lock(&self.0).insert(namespace, task);
        Running { namespace, all: Arc::clone(&self.0) }
    }

    pub(crate) fn all(&self) -> Vec<ResyncTask> {
        lock(&self.0).values().cloned().collect()
    }
}

impl Running {
    /// It got on.
    pub(crate) fn get_on(&self, change: impl FnOnce(&mut ResyncTask)) {
        if let Some(task) = lock(&self.all).get_mut(&self.namespace) {
            change(task);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.namespace);
    }
}

fn lock(all: &Mutex<HashMap<u64, ResyncTask>>) -> MutexGuard<'_, HashMap<u64, ResyncTask>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
