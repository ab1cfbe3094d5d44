//! The running index builds of a process, with progress and failures.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::proto;
use tokio::time::Instant;

/// A failure that does not recur within this time is dropped: another process may have built the index, or it is gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

/// An index that is being built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexBuild {
    /// The database.
    pub database: String,
    /// The index's number in the database.
    pub number: u64,
    /// The kind that maintains it.
    pub kind: String,
    /// The design document that defines it.
    pub design_document: String,
    /// The approximate number of entered documents, those of other processes included.
    pub entered: u64,
    /// The number of documents in the database when this process began or resumed; at least `entered`.
    pub total: u64,
    /// Unix time, in milliseconds.
    pub started_at_ms: u64,
    /// Unix time, in milliseconds.
    pub updated_at_ms: u64,
}

impl IndexBuild {
    /// Returns a build that begins now, of an index without entries.
    pub fn of(database: &str, index: proto::Index, total: u64, now: u64) -> IndexBuild {
        let proto::Index { number, kind, source, .. } = index;
        IndexBuild {
            database: database.to_owned(),
            number,
            kind,
            design_document: source,
            entered: 0,
            total,
            started_at_ms: now,
            updated_at_ms: now,
        }
    }
}

/// By namespace and number.
type Builds = HashMap<(u64, u64), IndexBuild>;

#[derive(Debug)]
struct BuildFailure {
    since: Instant,
    last: Instant,
    reason: String,
}

#[derive(Debug)]
pub struct IndexBuilds {
    clock: Clock,
    builds: Arc<Mutex<Builds>>,
    /// By namespace and number.
    failing: Mutex<HashMap<(u64, u64), BuildFailure>>,
}

/// A running build. It ends when this is dropped.
#[derive(Debug)]
pub struct RunningBuild {
    id: (u64, u64),
    clock: Clock,
    all: Arc<Mutex<Builds>>,
}

impl State<Inner> for IndexBuilds {
    fn new_of(inner: &Inner) -> IndexBuilds {
        IndexBuilds::new(&inner.clock)
    }
}

impl IndexBuilds {
    pub fn new(clock: &Clock) -> IndexBuilds {
        IndexBuilds { clock: clock.clone(), builds: Arc::default(), failing: Mutex::default() }
    }

    pub fn begin(&self, namespace: u64, build: IndexBuild) -> Option<RunningBuild> {
        let id = (namespace, build.number);
        match lock(&self.builds).entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                place.insert(build);
                Some(RunningBuild { id, clock: self.clock.clone(), all: self.builds.clone() })
            }
        }
    }

    pub fn all(&self) -> Vec<IndexBuild> {
        let mut all: Vec<_> = lock(&self.builds).values().cloned().collect();
        all.sort_by(|a, b| (&a.database, a.number).cmp(&(&b.database, b.number)));
        all
    }

    pub fn record_failure(&self, namespace: u64, number: u64, reason: &str) {
        let (mut failing, now) = (lock(&self.failing), self.clock.now());
        failing.retain(|_, failing| self.clock.since(failing.last) < FORGOTTEN_AFTER);
        let begins = || BuildFailure { since: now, last: now, reason: String::new() };
        let found = failing.entry((namespace, number)).or_insert_with(begins);
        (found.last, found.reason) = (now, reason.to_owned());
    }

    pub fn clear_failure(&self, namespace: u64, number: u64) {
        lock(&self.failing).remove(&(namespace, number));
    }

    /// Returns the reason if the build of an index has failed for at least `long`.
    pub fn failing(&self, namespace: u64, number: u64, long: Duration) -> Option<String> {
        let failing = lock(&self.failing);
        let found = failing.get(&(namespace, number))?;
        let is_so = self.clock.since(found.since) >= long && self.clock.since(found.last) < FORGOTTEN_AFTER;
        is_so.then(|| found.reason.clone())
    }
}

impl RunningBuild {
    pub fn set_entered(&self, entered: u64) {
        if let Some(build) = lock(&self.all).get_mut(&self.id) {
            build.entered = entered.max(build.entered);
            build.total = build.total.max(build.entered);
            build.updated_at_ms = self.clock.unix_ms();
        }
    }
}

impl Drop for RunningBuild {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.id);
    }
}

fn lock<T>(all: &Mutex<T>) -> MutexGuard<'_, T> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
