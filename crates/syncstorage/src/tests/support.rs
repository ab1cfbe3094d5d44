//! Shared helpers of the tests on storage.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_clock::{Clock, ManualClock};
pub(crate) use flatbed_testkit::Random;
use flatbed_testkit::pass;

use crate::{
    Change, CollectionName, Limits, ListQuery, Options, Precondition, Record, RecordId, Result, Store, Timestamp, Uid,
};

/// Storage of its own for one test.
pub(crate) struct Storage {
    storage: flatbed_testkit::Storage,
    pub(crate) clock: ManualClock,
    pub(crate) limits: Limits,
}

/// A task that moves the clock until it is dropped.
pub(crate) struct Ticks(tokio::task::JoinHandle<()>);

impl Ticks {
    pub(crate) async fn stop(mut self) {
        self.0.abort();
        // The task was aborted.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Storage {
    pub(crate) fn new() -> Storage {
        Storage::on(flatbed_testkit::Storage::new())
    }

    /// Creates storage with faults. `None` on a cluster.
    pub(crate) fn with_faults() -> Option<Storage> {
        flatbed_testkit::Storage::with_faults().map(Storage::on)
    }

    /// Creates storage with a cluster's latencies (1 ms a read, 0.5 ms a read version, 2 ms a commit), by a clock that
    /// stands still until it is moved. `None` on a cluster.
    pub(crate) fn simulated(clock: &Arc<fdb_embedded::VirtualClock>) -> Option<Storage> {
        flatbed_testkit::Storage::simulated(clock, None).map(Storage::on)
    }

    fn on(storage: flatbed_testkit::Storage) -> Storage {
        Storage { storage, clock: ManualClock::default(), limits: Limits::default() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now(&self.clock.clock())
    }

    /// Moves the stores' clock by hundredths of a second.
    pub(crate) fn advance(&self, hundredths: u64) {
        self.clock.advance(Duration::from_millis(hundredths * 10));
    }

    /// Moves the stores' clock about as fast as time passes, for operations that wait for each other.
    pub(crate) fn tick(&self) -> Ticks {
        const TICK: Duration = Duration::from_millis(10);
        let clock = self.clock.clone();
        Ticks(tokio::spawn(async move {
            loop {
                pass(TICK).await;
                clock.advance(TICK);
            }
        }))
    }

    /// Returns the store of a process. Two calls make two processes.
    pub(crate) async fn store(&self) -> Store {
        self.store_with(self.clock.clock()).await
    }

    pub(crate) async fn store_with(&self, clock: Clock) -> Store {
        self.open_again(clock).await.unwrap()
    }

    pub(crate) async fn open_again(&self, clock: Clock) -> Result<Store> {
        let options = Options { root: self.storage.root.clone(), limits: self.limits, clock };
        Store::open(self.storage.fdb.clone(), options).await
    }
}

pub(crate) const UID: Uid = Uid(7);

pub(crate) fn name(name: &str) -> CollectionName {
    CollectionName::new(name).unwrap()
}

pub(crate) fn id(id: &str) -> RecordId {
    RecordId::new(id).unwrap()
}

pub(crate) fn change(of: &str, payload: &str) -> Change {
    Change { id: id(of), payload: Some(Bytes::copy_from_slice(payload.as_bytes())), sortindex: None, ttl: None }
}

pub(crate) async fn listed(store: &Store, collection: &CollectionName, query: &ListQuery) -> Vec<Record> {
    let query = ListQuery { full: true, ..query.clone() };
    let mut list = store.list(UID, collection, &query, Precondition::None).await.unwrap();
    let mut out = Vec::new();
    while let Some(records) = list.next().await.unwrap() {
        out.extend(records);
    }
    assert_eq!(out.iter().map(|record| &record.id).collect::<Vec<_>>(), list.ids().iter().collect::<Vec<_>>());
    out
}

pub(crate) async fn ids(store: &Store, collection: &CollectionName, query: &ListQuery) -> Vec<String> {
    let list = store.list(UID, collection, query, Precondition::None).await.unwrap();
    list.ids().iter().map(|id| id.to_string()).collect()
}

/// Checks that the raw keys have no problem.
pub(crate) async fn assert_sound(store: &Store) {
    let checked = store.check().await.unwrap();
    assert_eq!((checked.problems, checked.passed_over), (0, 0), "{:#?}", checked.texts);
}
