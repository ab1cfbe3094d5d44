//! The shared setup: the data set, the engine through the crate `foundationdb`, and plain LMDB.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fdb_embedded::{Engine, OpenOptions, Stats};
use foundationdb::Database;
use foundationdb::api::NetworkAutoStop;
use futures::executor::block_on;
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvOpenOptions, RwTxn, WithoutTls};

pub const KEY_BYTES: usize = 32;
pub const VALUE_BYTES: usize = 100;
pub const KEYS_PER_COMMIT: u64 = 10;
/// Keys in each transaction that fills a data set.
const FILL_STEP: usize = 2_000;
const PREFIX: &[u8; 24] = b"engine-bench/data-set/k/";

/// The key of a number; keys sort as their numbers.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..24].copy_from_slice(PREFIX);
    key[24..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Bounds of all keys of the data set.
pub const ENDS: (&[u8], &[u8]) = (PREFIX, b"engine-bench/data-set/k0");

/// A value that no other write of this run has.
pub fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [b'v'; VALUE_BYTES];
    value[..8].copy_from_slice(&number.to_be_bytes());
    value
}

/// A small random number generator (SplitMix64): the same numbers for both sides, and cheap beside a read.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

pub struct Settings {
    /// The length of one round of one side.
    pub round: Duration,
    pub rounds: usize,
    pub keys: u64,
    /// Name prefixes of the measurements to run; empty: all.
    pub parts: Vec<String>,
    /// True to leave the other side out, for a profile of the engine.
    pub engine_alone: bool,
}

impl Settings {
    pub fn wants(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| name.starts_with(part.as_str()))
    }

    /// Returns whether any measurement of a part is to run.
    pub fn wants_part(&self, part: &str) -> bool {
        let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        self.parts.is_empty() || self.parts.iter().any(|wanted| first(wanted) == part)
    }
}

/// Both sides, filled with the data set.
pub struct Bench {
    pub settings: Settings,
    pub database: Arc<Database>,
    pub engine: Engine,
    pub raw: Raw,
    pub runtime: tokio::runtime::Runtime,
    pub directory: PathBuf,
    /// CPUs that this process may use.
    pub cpus: usize,
    _network: NetworkAutoStop,
}

impl Bench {
    pub fn open(settings: Settings, directory: &Path) -> Bench {
        let cluster_file = directory.join("fdb.cluster");
        std::fs::write(&cluster_file, "embedded:bench@engine\n").expect("the cluster file is written");
        foundationdb_sys::backend::select(foundationdb_sys::backend::Backend::Embedded).expect("chosen first");
        // SAFETY: called once per process; foundationdb-sys stops the network when the process ends.
        let network = unsafe { foundationdb::boot() };
        let database = Database::from_path(cluster_file.to_str().expect("UTF-8")).expect("the engine opens");
        let database = Arc::new(database);
        // A process has one engine per directory: this is the one behind `database`, for its counters.
        let engine = Engine::open(&directory.join("engine"), OpenOptions::default()).expect("the same engine");
        let raw = Raw::open(&directory.join("raw"));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cpus).enable_time().build();
        let runtime = runtime.expect("a runtime");
        let directory = directory.to_owned();
        let bench = Bench { settings, database, engine, raw, runtime, directory, cpus, _network: network };
        bench.fill();
        bench
    }

    /// Writes the data set to both sides, in key order and in transactions of the same size, so that both files have
    /// their pages in the same places.
    pub fn fill(&self) {
        let keys = self.settings.keys;
        for first in (0..keys).step_by(FILL_STEP) {
            let trx = self.database.create_trx().expect("a transaction");
            let mut txn = self.raw.write_txn();
            for number in first..keys.min(first + FILL_STEP as u64) {
                trx.set(&key(number), &value(number));
                self.raw.put(&mut txn, number, number);
            }
            block_on(trx.commit()).expect("a commit");
            txn.commit().expect("a commit");
        }
    }

    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Runs the sides alternately for several rounds. Returns the median rate of each, and the median share that the
    /// first side reached of each other one within a round.
    pub fn alternate(&self, sides: &mut [&mut dyn FnMut(Duration) -> f64]) -> Vec<SideRate> {
        let count = if self.settings.engine_alone { 1 } else { sides.len() };
        let mut rates = vec![Vec::new(); sides.len()];
        let mut shares = vec![Vec::new(); sides.len()];
        for _ in 0..self.settings.rounds {
            for (at, side) in sides.iter_mut().enumerate().take(count) {
                rates[at].push(side(self.settings.round));
            }
            for at in 0..count {
                let (own, other) = (rates[0][rates[0].len() - 1], rates[at][rates[at].len() - 1]);
                shares[at].push(own / other);
            }
        }
        let measured = |(rates, shares): (Vec<f64>, Vec<f64>)| SideRate { rate: median(rates), share: median(shares) };
        rates.into_iter().zip(shares).map(measured).collect()
    }
}

/// A separate database for work that must not meet other parts' writes. Dropping it removes its directory.
pub struct Fresh {
    pub database: Arc<Database>,
    pub directory: PathBuf,
}

impl Fresh {
    /// Creates a database with this many keys.
    pub fn open(bench: &Bench, name: &str, keys: u64) -> Fresh {
        let cluster_file = bench.directory.join(format!("{name}.cluster"));
        std::fs::write(&cluster_file, format!("embedded:bench@{name}\n")).expect("the cluster file is written");
        let database = Database::from_path(cluster_file.to_str().expect("UTF-8")).expect("the engine opens");
        let fresh = Fresh { database: Arc::new(database), directory: bench.directory.join(name) };
        fresh.fill(keys);
        fresh
    }

    pub fn fill(&self, keys: u64) {
        for first in (0..keys).step_by(FILL_STEP) {
            let trx = self.database.create_trx().expect("a transaction");
            for number in first..keys.min(first + FILL_STEP as u64) {
                trx.set(&key(number), &value(number));
            }
            block_on(trx.commit()).expect("a commit");
        }
    }

    pub fn file_bytes(&self) -> u64 {
        std::fs::metadata(self.directory.join("data.mdb")).map_or(0, |metadata| metadata.len())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // The file disappears when the engine, which another thread may still use, closes it.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The rate of a side, and the share of it that the first side reached. NaN if it did not run.
#[derive(Clone, Copy, Debug)]
pub struct SideRate {
    pub rate: f64,
    pub share: f64,
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len => (values[(len - 1) / 2] + values[len / 2]) / 2.0,
    }
}

/// Plain LMDB through heed, with the engine's own options.
pub struct Raw {
    pub env: heed::Env<WithoutTls>,
    pub db: heed::Database<'static, Bytes, Bytes>,
}

impl Raw {
    fn open(directory: &Path) -> Raw {
        std::fs::create_dir_all(directory).expect("a directory");
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.max_readers(16_384);
        // As in the engine: valgrind provides less address space.
        let open = |bits: u32| {
            options.map_size(1 << bits);
            // SAFETY: the directory is this process's own.
            unsafe { options.open(directory) }
        };
        let env = [40, 36, 32].into_iter().map(open).find_map(Result::ok).expect("LMDB");
        let txn = env.write_txn().expect("a transaction");
        let created = env.create_databases_and_commit(txn, |opener, txn| {
            let db = opener.create_database::<Bytes, Bytes>(txn, None)?;
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(db))
        });
        let db = created.expect("a database").unwrap_commit();
        Raw { env: env.clone(), db }
    }

    pub fn write_txn(&self) -> RwTxn<'_> {
        self.env.write_txn().expect("a transaction")
    }

    pub fn put(&self, txn: &mut RwTxn<'_>, number: u64, written: u64) {
        self.db.put(txn, &key(number), &value(written)).expect("a write");
    }
}

/// Reads the first and the last byte, so that the compiler keeps the read.
pub fn look_at(bytes: &[u8]) {
    black_box((bytes.first(), bytes.last()));
}

/// Calls `work`, which returns its number of calls, until the time is over. Returns calls a second.
pub fn rate(duration: Duration, mut work: impl FnMut() -> u64) -> f64 {
    let (started, mut count) = (Instant::now(), 0);
    while started.elapsed() < duration {
        count += work();
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// A stopwatch for work that does not wait.
pub struct Stopwatch {
    started: Instant,
    cpu_time: Option<f64>,
}

impl Stopwatch {
    /// Starts a stopwatch for work on this many threads. One thread is measured by the CPU time of the process, which
    /// shows what one core does even beside other processes; several threads by elapsed time, because they may wait
    /// for each other.
    pub fn start(threads: usize) -> Stopwatch {
        Stopwatch { started: Instant::now(), cpu_time: (threads == 1).then(cpu_time) }
    }

    /// Returns whether a round is over.
    pub fn is_over(&self, round: Duration) -> bool {
        self.started.elapsed() >= round
    }

    pub fn seconds(&self) -> f64 {
        self.cpu_time.map_or_else(|| self.started.elapsed().as_secs_f64(), |before| cpu_time() - before)
    }
}

pub fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`; every supported system has this clock.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(answer, 0, "the process has a clock");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// [`rate`] by a stopwatch for `threads` threads.
pub fn rate_without_waits(threads: usize, round: Duration, mut work: impl FnMut() -> u64) -> f64 {
    let (watch, mut count) = (Stopwatch::start(threads), 0);
    while !watch.is_over(round) {
        count += work();
    }
    count as f64 / watch.seconds()
}
