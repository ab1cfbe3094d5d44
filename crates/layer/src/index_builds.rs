//! The indexes that a process is building, how far it is, and which queries wait for one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::once::now_ms;
use crate::store::proto;

/// Waits that are shown at most.
const WAITS_SHOWN_MAX: usize = 500;

/// An index that is being built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexBuild {
    /// The database.
    pub database: String,
    /// The index's number in it.
    pub number: u64,
    /// What keeps it.
    pub kind: String,
    /// The design document that defines it.
    pub design_document: String,
    /// Documents that this process has entered since it began, or went on.
    pub entered: u64,
    /// Unix time.
    pub started_at_ms: u64,
    /// Unix time.
    pub updated_at_ms: u64,
}

/// Queries that wait for an index until it is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexWait {
    /// The database.
    pub database: String,
    /// The index's number in it.
    pub number: u64,
    /// The design document that defines it.
    pub design_document: String,
    /// The index's name.
    pub name: String,
    /// How many queries of this process wait.
    pub waiting: u64,
    /// Unix time since when there is always one.
    pub since_ms: u64,
    /// What this process does for it, if anything.
    pub build: Option<IndexBuild>,
}

impl IndexBuild {
    /// Of an index that nothing is entered into yet.
    pub(crate) fn of(database: &str, index: proto::Index) -> IndexBuild {
        let proto::Index { number, kind, source, .. } = index;
        let now = now_ms();
        IndexBuild {
            database: database.to_owned(),
            number,
            kind,
            design_document: source,
            entered: 0,
            started_at_ms: now,
            updated_at_ms: now,
        }
    }
}

/// By namespace and number.
type Builds = HashMap<(u64, u64), IndexBuild>;

/// By the database's name and the index's number.
type Waits = HashMap<(String, u64), IndexWait>;

/// The builds of this process, and its queries that wait for any.
#[derive(Debug, Default)]
pub(crate) struct IndexBuilds {
    builds: Arc<Mutex<Builds>>,
    waits: Arc<Mutex<Waits>>,
}

/// A query that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    of: (String, u64),
    all: Arc<Mutex<Waits>>,
}

/// One of them; it has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    id: (u64, u64),
    all: Arc<Mutex<Builds>>,
}

impl IndexBuilds {
    /// Notes that one begins. `None`: this process is at it already.
    pub(crate) fn begin(&self, namespace: u64, build: IndexBuild) -> Option<Running> {
        let id = (namespace, build.number);
        match lock(&self.builds).entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                place.insert(build);
                Some(Running { id, all: self.builds.clone() })
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<IndexBuild> {
        let mut all: Vec<_> = lock(&self.builds).values().cloned().collect();
        all.sort_by(|a, b| (&a.database, a.number).cmp(&(&b.database, b.number)));
        all
    }

    /// A query begins to wait for an index.
    pub(crate) fn wait(&self, database: &str, number: u64, design_document: &str, name: &str) -> Waiting {
        let of = (database.to_owned(), number);
        let begins = || IndexWait {
            database: database.to_owned(),
            number,
            design_document: design_document.to_owned(),
            name: name.to_owned(),
            waiting: 0,
            since_ms: now_ms(),
            build: None,
        };
        lock(&self.waits).entry(of.clone()).or_insert_with(begins).waiting += 1;
        Waiting { of, all: self.waits.clone() }
    }

    /// Queries that wait, those that have waited the longest first; and how many more wait than these.
    pub(crate) fn waits(&self) -> (Vec<IndexWait>, u64) {
        let mut waits: Vec<_> = lock(&self.waits).values().cloned().collect();
        waits.sort_by(|a, b| (a.since_ms, &a.database, a.number).cmp(&(b.since_ms, &b.database, b.number)));
        let rest = waits.split_off(waits.len().min(WAITS_SHOWN_MAX));
        let builds = self.all();
        for wait in &mut waits {
            let is_its = |build: &&IndexBuild| (&build.database, build.number) == (&wait.database, wait.number);
            wait.build = builds.iter().find(is_its).cloned();
        }
        (waits, rest.iter().map(|wait| wait.waiting).sum())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Entry::Occupied(mut found) = lock(&self.all).entry(self.of.clone()) {
            found.get_mut().waiting = found.get().waiting.saturating_sub(1);
            if found.get().waiting == 0 {
                found.remove();
            }
        }
    }
}

impl Running {
    /// So many documents more are entered.
    pub(crate) fn get_on(&self, entered: u64) {
        if let Some(build) = lock(&self.all).get_mut(&self.id) {
            build.entered += entered;
            build.updated_at_ms = now_ms();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.id);
    }
}

fn lock<T>(all: &Mutex<T>) -> MutexGuard<'_, T> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
