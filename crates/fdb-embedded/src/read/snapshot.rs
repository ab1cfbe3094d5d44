//! Read versions, and the LMDB read transactions behind them.
//!
//! A version is a number of microseconds: the clock at opening, plus the time since. If an earlier run used higher
//! versions, versions stand still until the clock has caught up, so that they never decrease. A commit takes the
//! clock's version, or one more than any version handed out. A read version is the clock's too, so its age is its
//! distance from the clock; it sees the newest commit not above it. All read versions between two commits share one
//! snapshot.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use heed::{Env, WithoutTls};

use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::disk::clears::Clears;
use crate::disk::failure::DiskFailure;
use crate::disk::format::VersionStart;
use crate::disk::store::Store;
use crate::disk::stored::StoredState;
use crate::read::readers::{MapGate, Readers};

/// The age from which a read version answers 1007, in versions (microseconds).
pub(crate) const READ_VERSIONS_MAX_AGE: i64 = 5_000_000;
/// The same as a time.
pub(crate) const READ_AGE_MAX: Duration = Duration::from_micros(READ_VERSIONS_MAX_AGE as u64);
/// The most snapshots kept only because their version was handed out; past it the oldest is dropped.
const RETAINED_MAX: usize = 8_192;

/// One state of the database, shared by all transactions that read it.
pub(crate) struct Snapshot {
    readers: Readers,
    store: Store,
    clears: Arc<Clears>,
    /// The version of the commit that made this state.
    pub(crate) committed: i64,
    page_bytes: usize,
    failure: Arc<DiskFailure>,
}

impl Snapshot {
    /// Calls `read` with the stored pairs; 1007 if the snapshot was closed because of its age.
    pub(crate) fn with<T>(&self, read: impl FnOnce(StoredState<'_>) -> Result<T>) -> Result<T> {
        let map_page_bytes = Some(self.page_bytes);
        let (store, clears, failure) = (self.store, &*self.clears, Some(&*self.failure));
        self.readers.with(|txn| read(StoredState { store, txn, clears, map_page_bytes, failure }))
    }

    fn close(&self) {
        self.readers.close();
    }
}

/// A read version and the snapshot that it sees.
#[derive(Clone)]
pub(crate) struct ReadPoint {
    pub(crate) version: i64,
    pub(crate) snapshot: Arc<Snapshot>,
}

/// The newest state, or an earlier one.
struct LiveSnapshot {
    snapshot: Weak<Snapshot>,
    /// Set when the version was handed out, so that other transactions may read at it.
    retained: Option<Arc<Snapshot>>,
    /// The time and the version of the next commit.
    superseded: Option<(Instant, i64)>,
}

struct Inner {
    /// The newest commit that readers may see.
    committed: i64,
    /// The pending clears in that commit's state.
    clears: Arc<Clears>,
    pending: Option<PendingBatch>,
    /// The greatest read version handed out.
    read: i64,
    /// True if LMDB's environment must not be touched again.
    is_closed: bool,
    /// The newest state, once a transaction read it.
    current: Option<Arc<Snapshot>>,
    /// All states that may still be read, by the version of their commit.
    live: BTreeMap<i64, LiveSnapshot>,
}

struct PendingBatch {
    version: i64,
    /// The LMDB transaction that it is written in.
    txn_id: usize,
    /// The pending clears after the batch; set just before LMDB's commit.
    clears: Option<Arc<Clears>>,
}

/// Hands out read versions and commit versions.
pub(crate) struct Versions {
    env: Env<WithoutTls>,
    gate: MapGate,
    store: Store,
    page_bytes: usize,
    started: Instant,
    start: VersionStart,
    failure: Arc<DiskFailure>,
    inner: Mutex<Inner>,
    snapshots_opened: AtomicU64,
}

impl Versions {
    pub(crate) fn new(
        env: Env<WithoutTls>,
        store: Store,
        start: VersionStart,
        clears: Arc<Clears>,
        failure: Arc<DiskFailure>,
    ) -> Versions {
        let inner = Inner {
            committed: start.version,
            clears,
            pending: None,
            read: start.version,
            is_closed: false,
            current: None,
            live: BTreeMap::new(),
        };
        let (started, inner) = (Instant::now(), Mutex::new(inner));
        let page_bytes = env.unnamed_database_stat().page_size as usize;
        let (gate, snapshots_opened) = (MapGate::default(), AtomicU64::new(0));
        Versions { env, gate, store, page_bytes, started, start, failure, inner, snapshots_opened }
    }

    /// The version of the clock, or the one that the clock has to catch up with.
    pub(crate) fn now(&self) -> i64 {
        self.clock().max(self.start.version)
    }

    /// The clock's version. Setting the system clock does not change it while the engine is open.
    pub(crate) fn clock(&self) -> i64 {
        self.start.clock.saturating_add(i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Returns whether reads at this version are refused. The newest readable version is never refused, even if a slow
    /// disk makes it older than five seconds.
    pub(crate) fn is_too_old(&self, version: i64) -> bool {
        self.now() - version > READ_VERSIONS_MAX_AGE
            && self.newest(&lock(&self.inner)) - version > READ_VERSIONS_MAX_AGE
    }

    pub(crate) fn committed(&self) -> i64 {
        lock(&self.inner).committed
    }

    /// The number of pending clears after the newest commit.
    pub(crate) fn pending_clears(&self) -> usize {
        lock(&self.inner).clears.len()
    }

    /// The counts of readable states, of those retained for their version, and of states ever opened.
    pub(crate) fn snapshot_counts(&self) -> (usize, usize, u64) {
        let inner = lock(&self.inner);
        let retained = inner.live.values().filter(|live| live.retained.is_some()).count();
        let open = inner.live.values().filter(|live| live.snapshot.strong_count() > 0).count();
        (open, retained, self.snapshots_opened.load(Ordering::Relaxed))
    }

    /// The time since the oldest readable state was superseded; 0 if only the newest is read.
    pub(crate) fn oldest_age(&self) -> Duration {
        let inner = lock(&self.inner);
        let live = inner.live.values().filter(|live| live.snapshot.strong_count() > 0);
        let superseded = live.filter_map(|live| live.superseded.map(|(at, _)| at.elapsed()));
        superseded.max().unwrap_or_default()
    }

    /// Returns the newest read version. With `retain` the version is given to the caller and stays readable.
    pub(crate) fn acquire(&self, retain: bool) -> Result<ReadPoint> {
        let mut inner = lock(&self.inner);
        let snapshot = self.current(&mut inner)?;
        let version = self.read_version(&mut inner);
        if retain {
            inner.retain(&snapshot);
        }
        Ok(ReadPoint { version, snapshot })
    }

    /// Returns the state that a version of `set_read_version` sees: 1009 above the newest, 1007 if it is gone.
    pub(crate) fn acquire_at(&self, version: i64) -> Result<ReadPoint> {
        if self.is_too_old(version) {
            return Err(Error::TRANSACTION_TOO_OLD);
        }
        let mut inner = lock(&self.inner);
        let snapshot = self.current(&mut inner)?;
        if version > self.read_version(&mut inner) {
            return Err(Error::FUTURE_VERSION);
        }
        if version >= inner.committed {
            return Ok(ReadPoint { version, snapshot });
        }
        let older = inner.live.range(..=version).next_back();
        let found = older.and_then(|(_, live)| match live.superseded {
            Some((_, next)) if version < next => live.snapshot.upgrade(),
            _ => None,
        });
        Ok(ReadPoint { version, snapshot: found.ok_or(Error::TRANSACTION_TOO_OLD)? })
    }

    /// Keeps a snapshot readable until it is five seconds old, because its version was handed out.
    pub(crate) fn retain(&self, snapshot: &Arc<Snapshot>) {
        lock(&self.inner).retain(snapshot);
    }

    fn current(&self, inner: &mut Inner) -> Result<Arc<Snapshot>> {
        if let Some(current) = &inner.current {
            return Ok(Arc::clone(current));
        }
        if inner.is_closed {
            return Err(Error::IO_ERROR);
        }
        let txn = self.env.clone().static_read_txn().map_err(|error| match error {
            // LMDB's reader table is full; slots are released soon.
            heed::Error::Mdb(heed::MdbError::ReadersFull) => Error::PROCESS_BEHIND,
            _ => Error::IO_ERROR,
        })?;
        self.snapshots_opened.fetch_add(1, Ordering::Relaxed);
        // LMDB may have committed the pending batch before the committer published it.
        if let Some(pending) = inner.pending.take_if(|pending| pending.txn_id == txn.id()) {
            inner.committed = pending.version;
            inner.clears = pending.clears.unwrap_or_else(|| Arc::clone(&inner.clears));
        }
        let (committed, clears) = (inner.committed, Arc::clone(&inner.clears));
        let readers = Readers::new(self.env.clone(), Arc::clone(&self.gate), txn);
        let (store, page_bytes, failure) = (self.store, self.page_bytes, Arc::clone(&self.failure));
        let snapshot = Arc::new(Snapshot { readers, store, clears, committed, page_bytes, failure });
        let live = LiveSnapshot { snapshot: Arc::downgrade(&snapshot), retained: None, superseded: None };
        inner.live.insert(committed, live);
        inner.current = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// The clock's version, but below the batch being written, which readers do not see yet.
    fn newest(&self, inner: &Inner) -> i64 {
        let now = self.now();
        let version = inner.pending.as_ref().map_or(now, |pending| now.min(pending.version - 1));
        version.max(inner.committed)
    }

    fn read_version(&self, inner: &mut Inner) -> i64 {
        let version = self.newest(inner);
        inner.read = inner.read.max(version);
        version
    }

    /// Opens the newest state. After a failed write of its meta page LMDB opens no further transactions, and reads
    /// continue on this one.
    pub(crate) fn hold_newest(&self) {
        // If LMDB's reader table is full now, other states are being read.
        let _ = self.current(&mut lock(&self.inner));
    }

    /// Begins the batch that the committer writes in the LMDB transaction `txn_id`. Returns its version.
    pub(crate) fn begin_commit(&self, txn_id: usize) -> i64 {
        self.hold_newest();
        let mut inner = lock(&self.inner);
        let version = self.now().max(inner.read + 1).max(inner.committed + 1);
        inner.pending = Some(PendingBatch { version, txn_id, clears: None });
        version
    }

    /// Announces that LMDB is about to commit the batch; from the commit on these clears are pending.
    pub(crate) fn will_commit(&self, clears: &Arc<Clears>) {
        if let Some(pending) = &mut lock(&self.inner).pending {
            pending.clears = Some(Arc::clone(clears));
        }
    }

    /// Publishes the clears after records of pending clears were removed. A reader of an older state keeps its own
    /// clears; a reader of the new state needs no more than these.
    pub(crate) fn publish_clears(&self, clears: &Arc<Clears>) {
        let mut inner = lock(&self.inner);
        inner.clears = Arc::clone(clears);
        // A state without readers would keep LMDB from reusing the freed pages.
        let unused = inner.current.take_if(|current| Arc::strong_count(current) == 1);
        if let Some(unused) = &unused {
            inner.live.remove(&unused.committed);
        }
        drop(inner);
        drop(unused);
    }

    pub(crate) fn abandon_commit(&self) {
        lock(&self.inner).pending = None;
    }

    /// Publishes the batch, which is on disk: later read versions see it.
    pub(crate) fn publish(&self, version: i64) {
        let mut inner = lock(&self.inner);
        let pending = inner.pending.take();
        if inner.committed < version {
            inner.committed = version;
            if let Some(clears) = pending.and_then(|pending| pending.clears) {
                inner.clears = clears;
            }
        }
        let outdated = match &inner.current {
            Some(current) if current.committed < version => inner.current.take(),
            _ => None,
        };
        if let Some(outdated) = &outdated {
            let is_wanted = Arc::strong_count(outdated) > 1;
            if is_wanted {
                if let Some(live) = inner.live.get_mut(&outdated.committed) {
                    live.superseded = Some((Instant::now(), version));
                }
            } else {
                inner.live.remove(&outdated.committed);
            }
        }
        drop(inner);
        // Closing an LMDB read transaction does not need the lock.
        drop(outdated);
    }

    /// Closes every state, so that its readers get 1007 and retry, and lets no state be opened during `action`; if
    /// `action` fails, none is ever opened again.
    pub(crate) fn with_all_closed<T, E>(
        &self,
        action: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut inner = lock(&self.inner);
        inner.current = None;
        for live in std::mem::take(&mut inner.live).into_values() {
            if let Some(snapshot) = live.snapshot.upgrade() {
                snapshot.close();
            }
        }
        // A thread that opens another transaction on a closed state has finished, or finds the state closed.
        let alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let done = action();
        drop(alone);
        inner.is_closed = done.is_err();
        done
    }

    /// Returns the version below which no transaction reads from now on.
    pub(crate) fn oldest_readable(&self) -> i64 {
        let inner = lock(&self.inner);
        let oldest = inner.live.iter().find(|(_, live)| live.snapshot.strong_count() > 0);
        oldest.map_or(inner.committed, |(&committed, _)| committed)
    }

    /// Closes the states superseded five seconds ago. Returns whether any superseded state is left.
    pub(crate) fn reap(&self) -> bool {
        let now = Instant::now();
        let mut closed = Vec::new();
        let mut inner = lock(&self.inner);
        inner.live.retain(|_, live| {
            let Some((at, _)) = live.superseded else { return true };
            if now.duration_since(at) >= READ_AGE_MAX {
                closed.extend(live.snapshot.upgrade());
                closed.extend(live.retained.take());
                return false;
            }
            live.snapshot.strong_count() > 0
        });
        let is_any_left = inner.live.values().any(|live| live.superseded.is_some());
        drop(inner);
        for snapshot in closed {
            snapshot.close();
        }
        is_any_left
    }
}

impl Inner {
    fn retain(&mut self, snapshot: &Arc<Snapshot>) {
        let Some(live) = self.live.get_mut(&snapshot.committed) else { return };
        if live.retained.is_none() {
            live.retained = Some(Arc::clone(snapshot));
            if self.live.len() > RETAINED_MAX {
                self.release_oldest();
            }
        }
    }

    /// Releases the oldest state that is kept only for its version.
    fn release_oldest(&mut self) {
        let oldest = self.live.iter_mut().find_map(|(&committed, live)| Some((committed, live.retained.take()?)));
        let Some((committed, snapshot)) = oldest else { return };
        if Arc::strong_count(&snapshot) == 1 {
            self.live.remove(&committed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, OpenOptions};

    #[test]
    fn the_newest_version_can_be_read_however_long_a_batch_takes() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(dir.path(), OpenOptions::default()).unwrap();
        let versions = &engine.core().versions;
        let started = versions.now() - 6_000_000;
        {
            let mut inner = lock(&versions.inner);
            inner.committed = started - 1_000_000;
            inner.pending = Some(PendingBatch { version: started, txn_id: usize::MAX, clears: None });
        }
        assert_eq!(engine.transaction().get(b"k", false), Ok(None));
        assert!(!versions.is_too_old(started - READ_VERSIONS_MAX_AGE));
        assert!(versions.is_too_old(started - READ_VERSIONS_MAX_AGE - 2));
        versions.abandon_commit();
        assert!(versions.is_too_old(started - 1));
    }
}
