//! The state shared by the engine's threads and all transactions.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use heed::{Env, WithoutTls};

use crate::base::call::run_shielded;
use crate::base::error::{Error, Result};
use crate::base::key_space::DATABASE_LOCKED_KEY;
use crate::disk::failure::DiskFailure;
use crate::disk::format::OpenDataFile;
use crate::disk::store::{Store, StoreError};
use crate::read::snapshot::{READ_AGE_MAX, Versions};
use crate::shared::buggify::Faults;
use crate::shared::observer::{KeyAccess, KeyObserver};
use crate::shared::open_options::{CLEAR_RECORDS_MAX, OpenOptions};
use crate::shared::pending_reads::PendingReads;
use crate::shared::queue::{CommitFailure, CommitQueue, CommitReceipt, Complete};
use crate::shared::rates::Rates;
use crate::shared::simulation::{CommitAnswer, Moment, Simulation, fraction};
use crate::shared::stats::{Counters, Stats};
use crate::shared::timekeeper::TimeKeeper;
use crate::shared::timer::Timer;
use crate::shared::watch::{Watch, WatchRequest, Watches};

/// The state shared by the engine's threads and all transactions.
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
    /// True if the newest commit's state has a value under [`DATABASE_LOCKED_KEY`].
    pub(crate) is_locked: AtomicBool,
    pub(crate) observer: Option<KeyObserver>,
    pub(crate) clear_records_max: usize,
    pub(crate) is_removal_paused: bool,
    /// Bytes of the file in use after the last batch.
    pub(crate) data_bytes: AtomicU64,
    /// Bytes of the file's address space after the last batch.
    map_bytes: AtomicU64,
    /// Defaults for every transaction, as (transaction option, value).
    pub(crate) defaults: Mutex<Vec<(u32, Option<Vec<u8>>)>>,
    opened: Instant,
    is_reaper_armed: AtomicBool,
    is_reader_check_armed: AtomicBool,
    me: Weak<Core>,
    // Drop order: LMDB closes before the directory can be opened again.
    pub(crate) env: Env<WithoutTls>,
    /// Resources released after that, such as the lock of the directory.
    _held: Box<dyn Send + Sync>,
}

impl Core {
    /// Creates the shared state of a data file opened in `dir`. `held` is dropped after the file is closed.
    pub(crate) fn new(
        dir: PathBuf,
        opened: OpenDataFile,
        options: OpenOptions,
        held: Box<dyn Send + Sync>,
    ) -> Arc<Core> {
        let OpenDataFile { env, store, start, clears, .. } = opened;
        let failure = Arc::new(DiskFailure::new(dir.clone()));
        let core = Arc::new_cyclic(|me| Core {
            dir,
            store,
            versions: Versions::new(env.clone(), store, start, clears, Arc::clone(&failure)),
            queue: CommitQueue::new(failure),
            watches: Watches::default(),
            timer: Timer::default(),
            time_keeper: TimeKeeper::default(),
            counters: Counters::default(),
            rates: Rates::default(),
            faults: Faults::new(options.buggify, options.client_buggify),
            pending_reads: PendingReads::new(options.pending_read_every),
            simulation: options.simulated.map(Simulation::new),
            is_locked: AtomicBool::new(false),
            observer: options.observer,
            clear_records_max: options.clear_records_max.unwrap_or(CLEAR_RECORDS_MAX),
            is_removal_paused: options.is_removal_paused,
            data_bytes: AtomicU64::new(0),
            map_bytes: AtomicU64::new(0),
            defaults: Mutex::default(),
            opened: Instant::now(),
            is_reaper_armed: AtomicBool::new(false),
            is_reader_check_armed: AtomicBool::new(false),
            me: me.clone(),
            env,
            _held: held,
        });
        core.measure_data();
        core
    }

    /// Shows a read of the calling thread to the observer of a test, if there is one.
    pub(crate) fn observe_read(&self, access: KeyAccess<'_>) {
        if let Some(observer) = &self.observer {
            observer.observe(observer.caller(), access);
        }
    }

    /// Reads whether the database was locked when it was closed.
    pub(crate) fn load_lock(&self) -> Result<()> {
        let point = self.versions.acquire(false)?;
        let found = point.snapshot.with(|stored| {
            let value = stored.get(DATABASE_LOCKED_KEY).map_err(|_| Error::IO_ERROR)?;
            Ok(value.is_some_and(|value| !value.is_empty()))
        });
        self.is_locked.store(found?, Ordering::Release);
        Ok(())
    }

    /// Refuses a transaction that is not lock-aware while the database is locked.
    pub(crate) fn check_lock(&self, is_lock_aware: bool) -> Result<()> {
        if !is_lock_aware && self.is_locked.load(Ordering::Acquire) { Err(Error::DATABASE_LOCKED) } else { Ok(()) }
    }

    pub(crate) fn fail(&self, error: &StoreError) {
        self.queue.failure.note_write(error);
    }

    pub(crate) fn newest_value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.versions.acquire(false)?.snapshot.with(|stored| {
            let value = stored.get(key).map_err(|_| Error::IO_ERROR)?;
            Ok(value.map(<[u8]>::to_vec))
        })
    }

    /// Calls a watch's callback because of a change; a fault may delay it. If the key has its old value again by then,
    /// the watch keeps waiting, as on a cluster, which misses a change that it checks too late.
    pub(crate) fn fire(&self, watch: &Arc<Watch>) {
        match (self.faults.on_fire(), self.me.upgrade()) {
            (Some(delay), Some(core)) => {
                let watch = Arc::clone(watch);
                self.timer.schedule(Instant::now() + delay, move || match core.newest_value(&watch.key) {
                    // A watch that does not wait yet gets no second check, so it must fire now.
                    Ok(value) if core.watches.expects(&watch, value.as_deref()) => core.faults.count_unnoticed(),
                    _ => core.watches.finish(&watch, Ok(())),
                });
            }
            _ => self.watches.finish(watch, Ok(())),
        }
    }

    /// Starts a committed transaction's watch.
    pub(crate) fn start_watch(&self, waiting: WatchRequest) {
        if let (Some(fault), Some(core)) = (self.faults.on_watch(), self.me.upgrade()) {
            let watch = Arc::clone(&waiting.watch);
            self.timer.schedule(Instant::now() + fault.after, move || core.watches.finish(&watch, fault.result));
        }
        self.watches.wait(waiting);
    }

    /// Schedules the closing of outdated snapshots.
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

    /// Schedules the release of the reader slot of a killed backup, which would otherwise keep LMDB from reusing
    /// pages. Commits schedule it, because only they need pages.
    fn arm_reader_check(&self) {
        if self.is_reader_check_armed.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.me.clone();
        self.timer.schedule(Instant::now() + READ_AGE_MAX, move || {
            let Some(core) = me.upgrade() else { return };
            core.is_reader_check_armed.store(false, Ordering::Release);
            // After a failure the next commit schedules it again.
            let _ = core.env.clear_stale_readers();
        });
    }

    /// Completes a commit, whose writes are visible by now. A fault may delay the answer. A simulated cluster adds
    /// that delay to its own ([`Core::deliver`]).
    pub(crate) fn complete(&self, complete: Complete, answer: std::result::Result<CommitReceipt, CommitFailure>) {
        let delay = if self.simulation.is_some() { None } else { self.faults.on_commit_answer() };
        match delay {
            Some(delay) => {
                self.timer.schedule(Instant::now() + delay, move || complete(answer));
            }
            None => run_shielded(|| complete(answer)),
        }
    }

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
            pending_reads: self.pending_reads.selected(),
            faults_injected: faults.iter().map(|fault| fault.count).sum(),
            faults,
            last_committed_version: self.versions.committed(),
            pending_clears: self.versions.pending_clears() as u64,
            conflict_ranges: self.counters.conflict_ranges.load(Ordering::Relaxed),
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            map_bytes: self.map_bytes.load(Ordering::Relaxed),
            is_failed: failure.is_some(),
            failure,
        }
    }

    /// Records the file's size. Only the committer may call this: on another thread it could access LMDB's environment
    /// while the map is being replaced.
    pub(crate) fn measure_data(&self) {
        let page_bytes = u64::from(self.env.unnamed_database_stat().page_size);
        let info = self.env.info();
        self.data_bytes.store((info.last_page_number as u64 + 1) * page_bytes, Ordering::Relaxed);
        self.map_bytes.store(info.map_size as u64, Ordering::Relaxed);
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }
}

impl Core {
    /// Runs `call` at a moment of the simulation's time, on the engine's thread or on the thread that moves the clock.
    pub(crate) fn at(&self, moment: Moment, call: impl FnOnce() + Send + 'static) {
        match &self.simulation {
            Some(simulation) => simulation.at(&self.timer, moment, call),
            None => call(),
        }
    }

    /// Converts a moment of the simulation's time to the machine's; `None` with a virtual clock.
    pub(crate) fn instant(&self, moment: Moment) -> Option<Instant> {
        self.simulation.as_ref()?.instant(moment)
    }

    /// Runs `call` after a delay, measured by the virtual clock if there is one.
    pub(crate) fn after(&self, delay: Duration, call: impl FnOnce() + Send + 'static) {
        match &self.simulation {
            Some(simulation) => simulation.after(&self.timer, delay, call),
            None => {
                self.timer.schedule(Instant::now() + delay, call);
            }
        }
    }

    /// Runs `call` when a simulated cluster answers a commit; a fault may delay that.
    pub(crate) fn deliver(&self, answer: CommitAnswer, call: impl FnOnce() + Send + 'static) {
        let delay = self.faults.on_commit_answer().unwrap_or_default();
        self.at(answer.due + delay, call);
    }

    /// Returns a number from 0 to 1 that spreads retries; reproducible only with a virtual clock.
    pub(crate) fn spread(&self) -> f64 {
        let by_clock = self.simulation.as_ref().and_then(Simulation::spread);
        by_clock.unwrap_or_else(|| fraction(RandomState::new().hash_one(0u8)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use flatbed_testkit::{PATIENCE, until_blocking};

    use crate::shared::watch::WatchRequest;
    use crate::{Buggify, Engine, OpenOptions};

    #[test]
    fn a_change_that_was_taken_back_may_go_unnoticed() {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenOptions { buggify: Some(Buggify::new(1.0, 1)), ..OpenOptions::default() };
        let engine = Engine::open(dir.path(), options).unwrap();
        let core = engine.core();
        let (sender, receiver) = channel();
        let done = move |result| sender.send(result).unwrap_or_default();
        let watch = core.watches.create(b"k", Box::new(done)).map_err(|(error, _)| error).unwrap();
        core.watches.wait(WatchRequest { watch: watch.clone(), expected: None });
        core.fire(&watch);
        let count = || core.faults.counts().iter().find(|fault| fault.kind == "unnoticed_change").unwrap().count;
        until_blocking("the change goes unnoticed", || count() == 1);
        assert!(receiver.try_recv().is_err());
        core.watches.cancel(watch.id);
        // A watch that does not wait yet fires.
        let (sender, receiver) = channel();
        let done = move |result| sender.send(result).unwrap_or_default();
        let early = core.watches.create(b"k", Box::new(done)).map_err(|(error, _)| error).unwrap();
        core.fire(&early);
        assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Ok(()));
    }
}
