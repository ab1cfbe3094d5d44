//! What tests on storage share.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use foundationdb::api::NetworkAutoStop;
use foundationdb_sys::backend::Embedded;

use crate::{
    Change, Clock, CollectionName, Limits, ListQuery, Options, Precondition, Record, RecordId, Result, Store,
    Timestamp, Uid,
};

static NETWORK: OnceLock<NetworkAutoStop> = OnceLock::new();

/// Numbers that a seed decides (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// Storage of its own for one test.
pub(crate) struct Storage {
    db: Arc<foundationdb::Database>,
    root: Vec<u8>,
    /// What all stores are opened with.
    pub(crate) clock: TestClock,
    pub(crate) limits: Limits,
    _directory: Option<tempfile::TempDir>,
}

/// A clock that stands still until it is moved.
#[derive(Debug, Clone)]
pub(crate) struct TestClock(Arc<AtomicI64>);

impl TestClock {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_hundredths(self.0.load(Ordering::Relaxed))
    }

    /// By so many hundredths of a second.
    pub(crate) fn advance(&self, hundredths: i64) {
        self.0.fetch_add(hundredths, Ordering::Relaxed);
    }
}

impl Default for TestClock {
    fn default() -> Self {
        TestClock(Arc::new(AtomicI64::new(170_000_000_000)))
    }
}

impl Storage {
    pub(crate) fn new() -> Storage {
        // SAFETY: foundationdb-sys stops the network when the process ends.
        NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
        let (clock, limits) = (TestClock::default(), Limits::default());
        if let Ok(path) = std::env::var("FLATBED_CLUSTER_FILE") {
            static STORES: AtomicU32 = AtomicU32::new(0);
            let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
            let number = STORES.fetch_add(1, Ordering::Relaxed);
            let root = format!("test{now:x}{:x}-{number:x}", std::process::id()).into_bytes();
            let db = Arc::new(foundationdb::Database::from_path(&path).unwrap());
            return Storage { db, root, clock, limits, _directory: None };
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("embedded.cluster");
        std::fs::write(&path, "embedded:test@data\n").unwrap();
        let db = Arc::new(foundationdb::Database::from_path(path.to_str().unwrap()).unwrap());
        Storage { db, root: b"t".to_vec(), clock, limits, _directory: Some(directory) }
    }

    /// On the embedded engine, with faults: conflicts, unknown results of commits, reads that come too late. `None` where a
    /// library answers. `FLATBED_TEST_FAULTS=PROBABILITY,SEED[,SHORT_PAGES]` says which.
    pub(crate) fn with_faults() -> Option<Storage> {
        let faults = std::env::var("FLATBED_TEST_FAULTS").unwrap_or_else(|_| "0.05,1,0.3".to_owned());
        println!("FLATBED_TEST_FAULTS={faults}");
        let mut options = fdb_embedded::OpenOptions::default();
        options.buggify = Some(fdb_embedded::Buggify::parse(&faults).unwrap());
        Some(Storage::on(engine()?, options))
    }

    /// With a cluster's latencies (1 ms a read, 0.5 ms a read version, 2 ms a commit) by a clock that stands still until it is
    /// moved.
    pub(crate) fn simulated(clock: &Arc<fdb_embedded::VirtualClock>) -> Option<Storage> {
        let mut cluster = fdb_embedded::SimulatedCluster::parse("1000,500,2000").unwrap();
        cluster.clock = Some(Arc::clone(clock));
        let mut options = fdb_embedded::OpenOptions::default();
        options.simulated = Some(cluster);
        Some(Storage::on(engine()?, options))
    }

    fn on(engine: Embedded, options: fdb_embedded::OpenOptions) -> Storage {
        // SAFETY: as in `new`.
        NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
        let directory = tempfile::tempdir().unwrap();
        let database = engine.open(directory.path(), options).unwrap();
        // SAFETY: the pointer is a database of what answers, and nobody else destroys it.
        let db = Arc::new(unsafe { foundationdb::Database::new_from_pointer(database) });
        let (clock, limits) = (TestClock::default(), Limits::default());
        Storage { db, root: b"t".to_vec(), clock, limits, _directory: Some(directory) }
    }

    /// A process's store; call it twice for two processes.
    pub(crate) async fn store(&self) -> Store {
        let clock = self.clock.clone();
        self.store_with(Clock::new(move || clock.now())).await
    }

    pub(crate) async fn store_with(&self, clock: Clock) -> Store {
        self.open_again(clock).await.unwrap()
    }

    pub(crate) async fn open_again(&self, clock: Clock) -> Result<Store> {
        let options = Options { root: self.root.clone(), limits: self.limits, clock };
        Store::open(self.db.clone(), options).await
    }
}

/// What only the embedded engine can do; `None` where a library answers.
fn engine() -> Option<Embedded> {
    let engine = foundationdb_sys::backend::embedded();
    if engine.is_none() {
        println!("skipped: needs the embedded engine");
    }
    engine
}

pub(crate) const UID: Uid = Uid(7);

pub(crate) fn name(name: &str) -> CollectionName {
    CollectionName::new(name).unwrap()
}

pub(crate) fn id(id: &str) -> RecordId {
    RecordId::new(id).unwrap()
}

/// A change of a payload alone.
pub(crate) fn change(of: &str, payload: &str) -> Change {
    Change { id: id(of), payload: Some(Bytes::copy_from_slice(payload.as_bytes())), sortindex: None, ttl: None }
}

/// All records of a list.
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

/// Ids of a list in its order.
pub(crate) async fn ids(store: &Store, collection: &CollectionName, query: &ListQuery) -> Vec<String> {
    let list = store.list(UID, collection, query, Precondition::None).await.unwrap();
    list.ids().iter().map(|id| id.to_string()).collect()
}

/// Nothing is wrong with the raw keys.
pub(crate) async fn assert_sound(store: &Store) {
    let checked = store.check().await.unwrap();
    assert_eq!((checked.problems, checked.passed_over), (0, 0), "{:#?}", checked.texts);
}
