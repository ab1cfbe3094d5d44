//! The storage of a test.

#![allow(clippy::expect_used, reason = "a test without storage has failed")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use fdb_embedded::{Buggify, KeyObserver, OpenOptions, SimulatedCluster, VirtualClock};
use foundationdb::Database;
use foundationdb::api::NetworkAutoStop;
use foundationdb_sys::backend::Embedded;

use crate::neighbour;

/// The default faults of tests: their probability, the seed, and the share of short pages. `FLATBED_TEST_FAULTS`
/// overrides them.
const FAULTS: &str = "0.05,1,0.3";

/// The latencies of a cluster, in microseconds: of a read, a read version and a commit.
const CLUSTER: &str = "1000,500,2000";

/// Starts FoundationDB's client, once for all tests of the process.
pub fn boot() {
    static NETWORK: OnceLock<NetworkAutoStop> = OnceLock::new();
    // SAFETY: foundationdb-sys stops the network when the process ends.
    NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
}

/// Returns the embedded engine. Returns `None`, and prints that the test is skipped, on a cluster.
pub fn engine() -> Option<Embedded> {
    let engine = foundationdb_sys::backend::embedded();
    if engine.is_none() {
        println!("skipped: needs the embedded engine");
    }
    engine
}

/// Returns whether range pages are full, so that reads can be counted exactly. `FLATBED_FDB_BUGGIFY` cuts pages short.
pub fn pages_are_full() -> bool {
    std::env::var_os("FLATBED_FDB_BUGGIFY").is_none()
}

/// The faults that an engine injects.
#[derive(Debug, Clone)]
pub struct Faults(Buggify);

impl Faults {
    /// Returns the faults of `FLATBED_TEST_FAULTS=PROBABILITY,SEED[,SHORT_PAGES]`, or the default, and prints them.
    ///
    /// # Panics
    /// The variable has another form.
    pub fn of_environment() -> Faults {
        Faults(parse(&Faults::text()))
    }

    /// Returns the text of [`Faults::of_environment`], for the environment of a server, and prints it.
    pub fn text() -> String {
        let text = std::env::var("FLATBED_TEST_FAULTS").unwrap_or_else(|_| FAULTS.to_owned());
        println!("FLATBED_TEST_FAULTS={text}");
        text
    }

    /// Returns the probability and the seed in `FLATBED_TEST_FAULTS`, if it is set.
    ///
    /// # Panics
    /// The variable has another form.
    pub fn given() -> Option<(f64, u64)> {
        let given = parse(&std::env::var("FLATBED_TEST_FAULTS").ok()?);
        Some((given.probability, given.seed))
    }

    /// Creates faults of this probability and seed, with the environment's share of short pages.
    ///
    /// # Panics
    /// `FLATBED_TEST_FAULTS` has another form.
    pub fn new(probability: f64, seed: u64) -> Faults {
        let text = std::env::var("FLATBED_TEST_FAULTS").unwrap_or_else(|_| FAULTS.to_owned());
        Faults(Buggify::new(probability, seed).with_short_pages(parse(&text).short_pages))
    }
}

/// Parses faults in the environment's form.
fn parse(text: &str) -> Buggify {
    Buggify::parse(text).expect("FLATBED_TEST_FAULTS is PROBABILITY,SEED[,SHORT_PAGES]")
}

/// The storage of one test, removed with it: the embedded engine in a temporary directory, or a root of its own on the
/// cluster that `FLATBED_CLUSTER_FILE` names.
#[derive(Clone)]
pub struct Storage {
    /// The database.
    pub fdb: Arc<Database>,
    /// The prefix of all keys of the test.
    pub root: Vec<u8>,
    _directory: Option<Arc<tempfile::TempDir>>,
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Storage").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Default for Storage {
    fn default() -> Self {
        Storage::new()
    }
}

impl Storage {
    /// Opens new storage. The environment may request a [neighbour](crate::start_neighbour) on it.
    ///
    /// # Panics
    /// The storage cannot be opened.
    pub fn new() -> Storage {
        let storage = Storage::open();
        neighbour::start_if_asked(&storage.fdb);
        storage
    }

    fn open() -> Storage {
        boot();
        if let Ok(path) = std::env::var("FLATBED_CLUSTER_FILE") {
            let fdb = Database::from_path(&path).expect("the cluster file opens");
            return Storage::of(fdb, new_root(), None);
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("embedded.cluster");
        std::fs::write(&path, "embedded:test@data\n").expect("the cluster file is written");
        let fdb = Database::from_path(path.to_str().expect("a path in UTF-8")).expect("the engine opens");
        Storage::of(fdb, b"t".to_vec(), Some(directory))
    }

    /// Opens an engine with these options. No other process or test uses it.
    ///
    /// # Panics
    /// The engine cannot be opened.
    pub fn on(engine: Embedded, options: OpenOptions) -> Storage {
        boot();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let database = engine.open(directory.path(), options).expect("the engine opens");
        // SAFETY: the pointer is a database of the engine, and only this destroys it.
        let fdb = unsafe { Database::new_from_pointer(database) };
        Storage::of(fdb, b"t".to_vec(), Some(directory))
    }

    fn of(fdb: Database, root: Vec<u8>, directory: Option<tempfile::TempDir>) -> Storage {
        Storage { fdb: Arc::new(fdb), root, _directory: directory.map(Arc::new) }
    }

    /// Opens an engine whose reads and writes an observer sees. `None` on a cluster.
    pub fn observed(observer: KeyObserver) -> Option<Storage> {
        let mut options = options(None, None);
        options.observer = Some(observer);
        engine().map(|engine| Storage::on(engine, options))
    }

    /// Opens an engine that injects the faults of the environment. `None` on a cluster.
    pub fn with_faults() -> Option<Storage> {
        engine().map(|engine| Storage::on(engine, options(None, Some(Faults::of_environment()))))
    }

    /// Opens an engine that injects these faults. `None` on a cluster.
    pub fn with(faults: Faults) -> Option<Storage> {
        engine().map(|engine| Storage::on(engine, options(None, Some(faults))))
    }

    /// Opens an engine with the latencies of a cluster by the machine's clock and one server that works for all
    /// transactions, which also injects `faults`. `None` on a cluster.
    pub fn as_a_cluster(faults: Faults) -> Option<Storage> {
        let mut cluster = latencies(CLUSTER);
        cluster.has_server = true;
        engine().map(|engine| Storage::on(engine, options(Some(cluster), Some(faults))))
    }

    /// Opens an engine with short latencies and one server that works for all transactions. `None` on a cluster.
    pub fn slow() -> Option<Storage> {
        let mut cluster = latencies("100,50,200");
        cluster.has_server = true;
        engine().map(|engine| Storage::on(engine, options(Some(cluster), None)))
    }

    /// Opens an engine with the latencies of a cluster by a clock that the test moves, and with `faults`, if any. If
    /// only one thread calls, the faults follow from their seed alone. `None` on a cluster.
    pub fn simulated(clock: &Arc<VirtualClock>, faults: Option<Faults>) -> Option<Storage> {
        let mut cluster = latencies(CLUSTER);
        cluster.clock = Some(Arc::clone(clock));
        engine().map(|engine| Storage::on(engine, options(Some(cluster), faults)))
    }
}

fn latencies(text: &str) -> SimulatedCluster {
    SimulatedCluster::parse(text).expect("three latencies")
}

fn options(simulated: Option<SimulatedCluster>, faults: Option<Faults>) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.simulated = simulated;
    options.buggify = faults.map(|Faults(buggify)| buggify);
    options
}

/// Returns a root that no other test has. It is short, since every key contains it.
fn new_root() -> Vec<u8> {
    static ROOTS: AtomicU32 = AtomicU32::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock behind 1970").as_micros();
    let number = ROOTS.fetch_add(1, Ordering::Relaxed);
    format!("test{now:x}{:x}-{number:x}", std::process::id()).into_bytes()
}

/// Moves the versions of all stamps of epoch 0 in these keys and values, as in a backup of a cluster whose versions are
/// higher. `versions`: those that the rows may have.
pub fn shift_stamps(rows: &mut [(Vec<u8>, Vec<u8>)], versions: std::ops::RangeInclusive<u64>, by: u64) {
    // In keys the epoch and the version are elements of a tuple, in values four bytes precede the version.
    let shift = |bytes: &mut [u8], before: &[u8]| {
        for at in before.len()..bytes.len().saturating_sub(7) {
            let version = u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            if versions.contains(&version) && bytes[..at].ends_with(before) {
                bytes[at..at + 8].copy_from_slice(&(version + by).to_be_bytes());
            }
        }
    };
    for (key, value) in rows {
        shift(key, &[0x14, 0x33]);
        shift(value, &[0; 4]);
    }
}
