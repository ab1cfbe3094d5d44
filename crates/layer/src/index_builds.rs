//! The indexes that a process is building, and how far it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::proto;

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
}

impl IndexBuild {
    /// Of an index that nothing is entered into yet.
    pub(crate) fn of(database: &str, index: proto::Index) -> IndexBuild {
        let proto::Index { number, kind, source, .. } = index;
        IndexBuild { database: database.to_owned(), number, kind, design_document: source, entered: 0 }
    }
}

/// By namespace and number.
type Builds = HashMap<(u64, u64), IndexBuild>;

/// The builds of this process.
#[derive(Debug, Default)]
pub(crate) struct IndexBuilds(Arc<Mutex<Builds>>);

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
        match lock(&self.0).entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                place.insert(build);
                Some(Running { id, all: self.0.clone() })
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<IndexBuild> {
        let mut all: Vec<_> = lock(&self.0).values().cloned().collect();
        all.sort_by(|a, b| (&a.database, a.number).cmp(&(&b.database, b.number)));
        all
    }
}

impl Running {
    /// So many documents more are entered.
    pub(crate) fn get_on(&self, entered: u64) {
        if let Some(build) = lock(&self.all).get_mut(&self.id) {
            build.entered += entered;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.id);
    }
}

fn lock(all: &Mutex<Builds>) -> MutexGuard<'_, Builds> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
