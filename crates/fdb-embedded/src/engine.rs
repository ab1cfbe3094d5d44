//! An opened data directory: its threads, and what transactions share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heed::{Env, WithoutTls};

use crate::base::error::{Error, Result};
use crate::commit::committer::{CLEAR_RECORDS_MAX, CommitQueue, Committer};
use crate::disk::directory::{self, DirectoryLock};
use crate::disk::failure::describe;
use crate::disk::format;
use crate::disk::open_error::OpenError;
use crate::disk::store::{Store, StoreError};
use crate::read::snapshot::{READ_AGE_MAX, Versions, lock};
use crate::shared::buggify::{Buggify, ClientBuggify, Faults};
use crate::shared::connection::Connection;
use crate::shared::simulation::{SimulatedCluster, Simulation};
use crate::shared::stats::{Counters, Stats};
use crate::shared::status::{self, Rates};
use crate::shared::timekeeper::TimeKeeper;
use crate::shared::timer::{self, Timer};
use crate::shared::watch::{Waiting, Watch, WatchId, Watches};
use crate::transaction::calls::Transaction;
use crate::transaction::late::PendingReads;
use crate::transaction::options::{TransactionOptions, default_for};

/// How an engine is opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Faults to inject; `None` for none. Of two openings of one directory in one process the first decides.
    pub buggify: Option<Buggify>,
    /// FoundationDB's network options for faults, which hold instead of `buggify` while they are enabled.
    pub client_buggify: Option<&'static ClientBuggify>,
    /// Every how many reads [`Transaction::next_delivery`] tells to answer one from another thread, as all of a
    /// cluster's are; 0 for none. `None`: 257.
    pub pending_read_every: Option<u32>,
    /// A cluster's latencies and the work of its server; `None` for none. Of two openings of one directory in one process the
    /// first decides.
    pub simulated: Option<SimulatedCluster>,
    /// Most records that the clears of one batch of commits remove at once, the rest in the background; `None`: 4,096.
    pub clear_records_max: Option<usize>,
    /// Address space to begin with, in bytes; it grows by itself. `None`: as much as the system gives, up to 1 TiB.
    pub map_bytes: Option<usize>,
    /// For tests: the background removal rests, so that what it would remove stays hidden by its pending clear.
    pub is_removal_paused: bool,
}

/// What the engine's threads and all transactions share.
pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    pub(crate) store: Store,
    pub(crate) versions: Versions,
    pub(crate) queue: CommitQueue,
    pub(crate) watches: Watches,
    pub(crate) timer: Timer,
    pub(crate) time_keeper: TimeKeeper,
    pub(crate) counters: Counters,
    pub(crate) rates: Rates,
    pub(crate) faults: Faults,
    pub(crate) pending_reads: PendingReads,
    pub(crate) simulation: Option<Simulation>,
    pub(crate) clear_records_max: usize,
    pub(crate) is_removal_paused: bool,
    /// Bytes of the file in use, as of the last batch.
    pub(crate) data_bytes: AtomicU64,
    /// Bytes of address space that the file has, as of the last batch.
    map_bytes: AtomicU64,
    /// Database options that hold for every transaction, as (transaction option, value).
    pub(crate) defaults: Mutex<Vec<(u32, Option<Vec<u8>>)>>,
    opened: Instant,
    is_reaper_armed: AtomicBool,
    is_reader_check_armed: AtomicBool,
    me: Weak<Core>,
    // Dropped in this order: LMDB is closed before the lock is released, and that before the directory is free.
    pub(crate) env: Env<WithoutTls>,
    _lock: DirectoryLock,
    _registration: Registration,
}

impl Core {
    /// Ends all commits.
    pub(crate) fn fail(&self, error: &StoreError) {
        self.queue.failure.fail(describe(error, &self.dir));
    }

    /// Calls a watch's callback because of a change.
    pub(crate) fn fire(&self, watch: &Arc<Watch>) {
        match (self.faults.on_fire(), self.me.upgrade()) {
            (Some(delay), Some(core)) => {
                let watch = Arc::clone(watch);
                self.timer.schedule(Instant::now() + delay, move || core.watches.finish(&watch, Ok(())));
            }
            _ => self.watches.finish(watch, Ok(())),
        }
    }

    /// Lets a committed transaction's watch wait.
    pub(crate) fn start_watch(&self, waiting: Waiting) {
        if let (Some(delay), Some(core)) = (self.faults.on_watch(), self.me.upgrade()) {
            let watch = Arc::clone(&waiting.watch);
            self.timer.schedule(Instant::now() + delay, move || core.watches.finish(&watch, Ok(())));
        }
        self.watches.wait(waiting);
    }

    /// Sees to it that outdated snapshots are closed in time.
    pub(crate) fn arm_reaper(&self) {
        const EVERY: Duration = Duration::from_millis(250);
        self.arm_reader_check();
        if self.is_reaper_armed.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.me.clone();
        self.timer.schedule(Instant::now() + EVERY, move || {
            let Some(core) = me.upgrade() else { return };
            core.is_reaper_armed.store(false, Ordering::Release);
            if core.versions.reap() && !core.queue.is_closed() {
                core.arm_reaper();
            }
        });
    }

    /// Sees to it that a backup which was killed does not keep pages from being used again for longer than a reader here
    /// may: its place among LMDB's readers outlives it. Armed by commits, since only they need pages.
    fn arm_reader_check(&self) {
        if self.is_reader_check_armed.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.me.clone();
        self.timer.schedule(Instant::now() + READ_AGE_MAX, move || {
            let Some(core) = me.upgrade() else { return };
            core.is_reader_check_armed.store(false, Ordering::Release);
            // Where it fails the next commit arms it again.
            let _ = core.env.clear_stale_readers();
        });
    }
}

/// Ends the threads when the last [`Engine`] and the last transaction are gone.
struct Owner {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.queue.close();
        let current = std::thread::current().id();
        // The committer first: it may still schedule tasks. A callback may drop the last handle on either thread, which
        // then cannot wait for itself and ends soon after.
        for (at, thread) in std::mem::take(&mut *lock(&self.threads)).into_iter().enumerate() {
            if at == 1 {
                self.core.watches.cancel_all();
                self.core.timer.close();
            }
            if thread.thread().id() != current {
                let _ = thread.join();
            }
        }
    }
}

/// An open data directory. Clones share it; it closes with the last clone and the last transaction.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
    connection: Arc<Connection>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("dir", &self.owner.core.dir).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens a directory, and makes it if there is none.
    ///
    /// A process has one engine a directory: opening it again gives the same one. A second process is refused.
    ///
    /// # Errors
    /// Each variant of [`OpenError`] says what to do about it.
    pub fn open(dir: &Path, options: OpenOptions) -> std::result::Result<Engine, OpenError> {
        let dir = directory::make(dir)?;
        let registration = match Registration::of(&dir) {
            Registered::Open(engine) => return Ok(engine),
            Registered::New(registration) => registration,
        };
        let lock_file = DirectoryLock::take(&dir)?;
        let opened = format::open(&dir, options.map_bytes)?;
        let clears = Arc::new(opened.clears);
        let core = Arc::new_cyclic(|me| Core {
            dir: dir.clone(),
            store: opened.store,
            versions: Versions::new(opened.env.clone(), opened.store, opened.start, Arc::clone(&clears)),
            queue: CommitQueue::default(),
            watches: Watches::default(),
            timer: Timer::default(),
            time_keeper: TimeKeeper::default(),
            counters: Counters::default(),
            rates: Rates::default(),
            faults: Faults::new(options.buggify, options.client_buggify),
            pending_reads: PendingReads::new(options.pending_read_every),
            simulation: options.simulated.map(Simulation::new),
            clear_records_max: options.clear_records_max.unwrap_or(CLEAR_RECORDS_MAX),
            is_removal_paused: options.is_removal_paused,
            data_bytes: AtomicU64::new(0),
            map_bytes: AtomicU64::new(0),
            defaults: Mutex::default(),
            opened: Instant::now(),
            is_reaper_armed: AtomicBool::new(false),
            is_reader_check_armed: AtomicBool::new(false),
            me: me.clone(),
            env: opened.env,
            _lock: lock_file,
            _registration: registration,
        });
        core.measure_data();
        let owner = Arc::new(Owner { core: Arc::clone(&core), threads: Mutex::default() });
        let committer = Committer::new(Arc::clone(&core), clears);
        let threads = [
            std::thread::Builder::new().name("fdb-committer".into()).spawn(move || committer.run()),
            std::thread::Builder::new().name("fdb-timer".into()).spawn({
                let core = Arc::clone(&core);
                move || {
                    if core.simulation.is_some() {
                        timer::wake_exactly();
                    }
                    core.timer.run();
                }
            }),
        ];
        for thread in threads {
            lock(&owner.threads).push(thread.map_err(|error| OpenError::io(&dir, &error))?);
        }
        core._registration.complete(&owner);
        Ok(Engine { owner, connection: Arc::default() })
    }

    /// A new transaction with the default options.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.clone())
    }

    /// Sets a database option by its FDBDatabaseOption number: the ones that set a default for later transactions
    /// (500 to 506, 700 to 702, 26, 27) and `max_watches` (20).
    ///
    /// # Errors
    /// 2007 for another number, 2006 for a value of the wrong shape.
    pub fn set_default_option(&self, code: u32, value: Option<&[u8]>) -> Result<()> {
        let core = &self.owner.core;
        if code == 20 {
            let bytes = value.and_then(|value| value.try_into().ok()).ok_or(Error::INVALID_OPTION_VALUE)?;
            let max = usize::try_from(i64::from_le_bytes(bytes)).ok().filter(|&max| max <= 1_000_000);
            core.watches.set_max(max.ok_or(Error::INVALID_OPTION_VALUE)?);
            return Ok(());
        }
        let option = default_for(code)?;
        TransactionOptions::default().set(option, value)?;
        let mut defaults = lock(&core.defaults);
        defaults.retain(|(other, _)| *other != option);
        defaults.push((option, value.map(<[u8]>::to_vec)));
        Ok(())
    }

    /// Ends a watch with 1101, whether its transaction still exists or not.
    pub fn cancel_watch(&self, id: WatchId) {
        self.owner.core.watches.cancel(id);
    }

    /// Calls `told` when an I/O error has stopped all commits, with the reason and what to do about it; at once if that has
    /// happened already. The call comes once, from the thread that commits, and must be short. It does not keep the
    /// engine open.
    pub fn on_failure(&self, told: impl FnOnce(&str) + Send + 'static) {
        self.owner.core.queue.failure.listen(Box::new(told));
    }

    /// What the engine counted.
    pub fn stats(&self) -> Stats {
        self.owner.core.stats()
    }

    /// The document of `\xff\xff/status/json`: FoundationDB's shape as far as it says something true of one process.
    pub fn status_json(&self) -> String {
        status::document(self.core(), &self.connection)
    }

    /// The same engine, for a program that came to it this way.
    pub fn with_connection(&self, connection: Connection) -> Engine {
        Engine { owner: Arc::clone(&self.owner), connection: Arc::new(connection) }
    }

    /// How the program came to the engine.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The canonical path of the data directory.
    pub fn directory(&self) -> &Path {
        &self.owner.core.dir
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }
}

impl Core {
    pub(crate) fn stats(&self) -> Stats {
        let (open_snapshots, retained_snapshots, snapshots_opened) = self.versions.snapshot_counts();
        let counters = &self.counters;
        let faults = self.faults.counts();
        let failure = self.queue.failure.reason();
        Stats {
            reads: counters.reads.get(),
            range_reads: counters.range_reads.get(),
            key_reads: counters.key_reads.get(),
            keys_read: counters.keys_read.get(),
            bytes_read: counters.bytes_read.get(),
            read_versions: counters.read_versions.get(),
            commits: counters.commits.get(),
            read_only_commits: counters.read_only_commits.get(),
            batches: counters.batches.get(),
            mutations: counters.mutations.get(),
            mutation_bytes: counters.mutation_bytes.get(),
            conflicts: counters.conflicts.get(),
            too_old: counters.too_old.get(),
            retries: counters.retries.get(),
            watches_set: self.watches.set_count.load(Ordering::Relaxed),
            watches_fired: self.watches.fired_count.load(Ordering::Relaxed),
            open_watches: self.watches.open_count() as u64,
            open_snapshots: open_snapshots as u64,
            retained_snapshots: retained_snapshots as u64,
            snapshots_opened,
            pending_reads: self.pending_reads.chosen(),
            faults_injected: faults.iter().map(|fault| fault.count).sum(),
            faults,
            last_committed_version: self.versions.committed(),
            pending_clears: self.versions.pending_clears() as u64,
            conflict_ranges: self.counters.conflict_ranges.get(),
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            map_bytes: self.map_bytes.load(Ordering::Relaxed),
            is_failed: failure.is_some(),
            failure,
        }
    }

    /// Takes down how large the file is. For the committer alone: whoever else asks LMDB's environment might do so while
    /// its map is being replaced.
    pub(crate) fn measure_data(&self) {
        let page_bytes = u64::from(self.env.unnamed_database_stat().page_size);
        let info = self.env.info();
        self.data_bytes.store((info.last_page_number as u64 + 1) * page_bytes, Ordering::Relaxed);
        self.map_bytes.store(info.map_size as u64, Ordering::Relaxed);
    }

    /// The time since the engine was opened.
    pub(crate) fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }
}

/// One process has one engine a directory. This is the one thing that is global to the process, because the lock of a
/// file is: a second LMDB environment on one file in one process would break it.
static REGISTRY: Mutex<Option<HashMap<PathBuf, Entry>>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

enum Entry {
    /// Being opened or closed by another thread.
    Busy,
    Open(Weak<Owner>),
}

/// Keeps a directory's place in the registry until the engine is closed.
pub(crate) struct Registration(PathBuf);

pub(crate) enum Registered {
    Open(Engine),
    New(Registration),
}

impl Registration {
    /// The engine of a directory, or the right to open it. Waits while another thread opens or closes it.
    pub(crate) fn of(dir: &Path) -> Registered {
        let mut registry = lock(&REGISTRY);
        loop {
            let entries = registry.get_or_insert_default();
            match entries.get(dir) {
                None => {
                    entries.insert(dir.to_owned(), Entry::Busy);
                    return Registered::New(Registration(dir.to_owned()));
                }
                Some(Entry::Open(owner)) => {
                    if let Some(owner) = owner.upgrade() {
                        return Registered::Open(Engine { owner, connection: Arc::default() });
                    }
                }
                Some(Entry::Busy) => {}
            }
            registry = CHANGED.wait(registry).unwrap_or_else(|broken| broken.into_inner());
        }
    }

    fn complete(&self, owner: &Arc<Owner>) {
        let mut registry = lock(&REGISTRY);
        registry.get_or_insert_default().insert(self.0.clone(), Entry::Open(Arc::downgrade(owner)));
        CHANGED.notify_all();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&REGISTRY).get_or_insert_default().remove(&self.0);
        CHANGED.notify_all();
    }
}
