//! The commit thread: takes the queued commits, checks conflicts, and writes one durable LMDB transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use heed::RwTxn;

use crate::base::call::run_shielded;
use crate::base::error::Error;
use crate::base::key_space::{DATABASE_LOCKED_KEY, is_single_key, key_after};
use crate::base::mutation::{Mutation, place_versionstamp};
use crate::commit::batch::Batch;
use crate::commit::conflict::History;
use crate::commit::map_room::make_room;
use crate::disk::clears::Clears;
use crate::disk::format;
use crate::disk::packing::Packing;
use crate::disk::store::{Allowance, StoreError, StoreResult};
use crate::shared::buggify::CommitFault;
use crate::shared::core::Core;
use crate::shared::observer::{KeyAccess, KeyObserver};
use crate::shared::open_options::CLEAR_RECORDS_MAX;
use crate::shared::queue::{CommitFailure, CommitReceipt, CommitRequest, Complete};
use crate::shared::timekeeper;
use crate::shared::watch::{Watch, WatchRequest};

/// Most bytes of records that the clears of one batch remove themselves; the rest stays pending.
const CLEAR_BYTES_MAX: usize = 16 << 20;
/// The longest time that one removal of pending clears delays commits.
const REMOVAL_TIME_MAX: Duration = Duration::from_millis(10);
/// Above this number of pending clears, removal takes precedence over commits until half of them are left.
const PENDING_CLEARS_MAX: usize = 1_024;
/// The distance of the persisted ceiling from the clock, in versions: ten seconds. A restart begins at the ceiling.
const CEILING_STEP: i64 = 10_000_000;
/// The least distance of the ceiling from the newest commit, in versions, used while versions are ahead of the clock
/// after a restart. It is small, so that repeated kills do not move versions ever further ahead.
const CEILING_LEAST: i64 = 100_000;

/// A commit that passed its checks and is being written.
struct AcceptedCommit {
    committed: CommitReceipt,
    watches: Vec<WatchRequest>,
    complete: Complete,
    /// True if the answer is 1021 although the commit is written.
    is_answered_unknown: bool,
}

pub(crate) struct Committer {
    core: Arc<Core>,
    history: History,
    clears: Arc<Clears>,
    packing: Packing,
    /// The version above which a restart begins.
    ceiling: i64,
    last_forgotten: Instant,
}

impl Committer {
    pub(crate) fn new(core: Arc<Core>, clears: Arc<Clears>) -> Committer {
        Committer {
            core,
            history: History::default(),
            clears,
            packing: Packing::default(),
            ceiling: 0,
            last_forgotten: Instant::now(),
        }
    }

    pub(crate) fn run(mut self) {
        timekeeper::mark_committer();
        let mut requests = Vec::new();
        while self.core.queue.take(&mut requests, self.has_records_to_remove()) {
            let done = catch_unwind(AssertUnwindSafe(|| {
                if !requests.is_empty() {
                    self.commit(&mut requests);
                }
                self.remove_cleared();
            }));
            if done.is_err() {
                // A panic is a bug of the engine and leaves its state unknown, so nothing more is acknowledged.
                requests.clear();
                self.core
                    .queue
                    .failure
                    .fail("a defect of the engine: its committer panicked; please report it".to_owned());
            }
            self.forget_history();
        }
    }

    fn has_records_to_remove(&self) -> bool {
        !self.clears.is_empty() && !self.core.is_removal_paused && !self.core.queue.is_failed()
    }

    /// Removes records of pending clears, for at most [`REMOVAL_TIME_MAX`], or until few clears are left.
    fn remove_cleared(&mut self) {
        let mut is_urgent = self.clears.len() > PENDING_CLEARS_MAX;
        while self.has_records_to_remove() {
            if let Err(error) = self.remove_some_cleared() {
                return self.core.fail(&error);
            }
            is_urgent &= self.clears.len() > PENDING_CLEARS_MAX / 2;
            if !is_urgent {
                return;
            }
        }
    }

    /// Removes records of pending clears in one LMDB transaction. Readers see no change.
    fn remove_some_cleared(&mut self) -> StoreResult<()> {
        let core = Arc::clone(&self.core);
        make_room(&core, &[])?;
        let started = Instant::now();
        let mut txn = core.env.write_txn()?;
        let mut clears = Arc::clone(&self.clears);
        while started.elapsed() < REMOVAL_TIME_MAX {
            let Some((begin, end)) = clears.first() else { break };
            let mut allowance = Allowance { records: CLEAR_RECORDS_MAX / 4, bytes: CLEAR_BYTES_MAX / 4 };
            let left = core.store.remove_some(&mut txn, begin, end, &mut allowance)?;
            Arc::make_mut(&mut clears).shorten_first(left);
        }
        let changes = Arc::make_mut(&mut clears).take_changes();
        core.store.put_clears(&mut txn, changes)?;
        core.versions.hold_newest();
        txn.commit()?;
        core.versions.publish_clears(&clears);
        core.measure_data();
        self.clears = clears;
        Ok(())
    }

    fn commit(&mut self, requests: &mut Vec<CommitRequest>) {
        let core = Arc::clone(&self.core);
        if core.queue.is_failed() {
            for request in requests.drain(..) {
                core.complete(request.complete, Err(Error::IO_ERROR.into()));
            }
            return;
        }
        let begun = make_room(&core, requests).and_then(|()| Ok(core.env.write_txn()?));
        let mut txn = match begun {
            Ok(txn) => txn,
            Err(error) => {
                core.fail(&error);
                return self.commit(requests);
            }
        };
        let version = core.versions.begin_commit(txn.id());
        let allowance = Allowance { records: core.clear_records_max, bytes: CLEAR_BYTES_MAX };
        let mut batch = Batch::new(core.store, Arc::clone(&self.clears), allowance);
        let mut accepted = Vec::with_capacity(requests.len());
        let mut refused = Vec::new();
        let (mut broken, mut touches_lock) = (None, false);
        for request in requests.drain(..) {
            if broken.is_some() {
                refused.push((request.complete, Error::IO_ERROR.into()));
                continue;
            }
            match self.check(&request) {
                Err(failure) => refused.push((request.complete, failure)),
                Ok(fault) => {
                    touches_lock |= request.mutations.iter().any(|mutation| mutation.touches(DATABASE_LOCKED_KEY));
                    let committed = CommitReceipt { version, stamp: stamp(version, accepted.len()) };
                    let result = self.apply(&mut batch, &mut txn, request, committed, fault);
                    match result {
                        Ok(commit) => accepted.push(commit),
                        Err((complete, error)) => {
                            refused.push((complete, Error::IO_ERROR.into()));
                            broken = Some(error);
                        }
                    }
                }
            }
        }
        if broken.is_none() && !batch.is_empty() {
            broken = self.keep_time(&mut batch, &mut txn, version).err();
        }
        let is_locked = match broken {
            None if touches_lock => batch.value(&txn, DATABASE_LOCKED_KEY).map(Some),
            _ => Ok(None),
        };
        let is_locked = is_locked.unwrap_or_else(|error| {
            broken = Some(error);
            None
        });
        let mut fired = Vec::new();
        let written = match broken {
            None if accepted.is_empty() => None,
            None => Some(self.write(&mut batch, txn, version, &accepted, &mut fired)),
            Some(error) => Some(Err((error, false))),
        };
        match written {
            None => core.versions.abandon_commit(),
            Some(Ok(())) => {
                core.versions.publish(version);
                if let Some(value) = is_locked {
                    core.is_locked.store(value.is_some_and(|value| !value.is_empty()), Ordering::Release);
                }
                core.arm_reaper();
                core.counters.commits.add(accepted.len() as u64);
                // Checked after publishing: a watch that was set before saw the old value.
                if core.watches.is_any_waiting() {
                    self.find_changed(&batch, &mut fired);
                }
                for watch in fired {
                    run_shielded(|| core.fire(&watch));
                }
                for commit in accepted {
                    for waiting in commit.watches {
                        core.start_watch(waiting);
                    }
                    let answer = if commit.is_answered_unknown {
                        Err(Error::COMMIT_UNKNOWN_RESULT.into())
                    } else {
                        Ok(commit.committed)
                    };
                    core.complete(commit.complete, answer);
                }
            }
            Some(Err((error, may_be_written))) => {
                core.fail(&error);
                core.versions.abandon_commit();
                let answer = if may_be_written { Error::COMMIT_UNKNOWN_RESULT } else { Error::IO_ERROR };
                for commit in accepted {
                    core.complete(commit.complete, Err(answer.into()));
                }
            }
        }
        for (complete, failure) in refused {
            core.complete(complete, Err(failure));
        }
    }

    /// Checks whether the transaction may commit, by its age and its reads. Returns the fault to inject.
    fn check(&self, request: &CommitRequest) -> Result<Option<CommitFault>, CommitFailure> {
        let core = &self.core;
        let fault = core.faults.on_commit();
        match fault {
            Some(CommitFault::Refused(error)) => return Err(error.into()),
            Some(CommitFault::UnknownNotApplied) => return Err(Error::COMMIT_UNKNOWN_RESULT.into()),
            Some(CommitFault::UnknownApplied) | None => {}
        }
        core.check_lock(request.is_lock_aware)?;
        let Some(read_version) = request.read.as_ref().map(|read| read.version) else { return Ok(fault) };
        let too_old = || {
            core.counters.too_old.add(1);
            CommitFailure::from(Error::TRANSACTION_TOO_OLD)
        };
        if core.versions.is_too_old(read_version) {
            return Err(too_old());
        }
        let mut conflicting = Vec::new();
        for (begin, end) in request.read_conflicts.iter() {
            if self.history.is_written_after(begin, end, read_version).map_err(|_| too_old())? {
                conflicting.push((begin.to_vec(), end.to_vec()));
                if !request.reports_conflicts {
                    break;
                }
            }
        }
        if conflicting.is_empty() {
            return Ok(fault);
        }
        core.counters.conflicts.add(1);
        Err(CommitFailure { error: Error::NOT_COMMITTED, conflicting })
    }

    fn apply(
        &mut self,
        batch: &mut Batch,
        txn: &mut RwTxn<'_>,
        request: CommitRequest,
        committed: CommitReceipt,
        fault: Option<CommitFault>,
    ) -> Result<AcceptedCommit, (Complete, StoreError)> {
        let core = &self.core;
        core.counters.mutations.add(request.mutations.len() as u64);
        core.counters.mutation_bytes.add(request.bytes() as u64);
        for range in request.write_conflicts.iter() {
            self.history.insert(range, committed.version);
        }
        for mutation in request.mutations {
            if let Some(observer) = &core.observer {
                observe(observer, request.caller, &mutation, committed.stamp);
            }
            if let Mutation::StampKey(key, _) = &mutation {
                let key = place_versionstamp(key.clone(), committed.stamp);
                let end = key_after(&key);
                self.history.insert((key, end), committed.version);
            }
            if let Err(error) = batch.apply(txn, mutation, committed.stamp) {
                return Err((request.complete, error));
            }
        }
        let is_answered_unknown = fault == Some(CommitFault::UnknownApplied);
        Ok(AcceptedCommit { committed, watches: request.watches, complete: request.complete, is_answered_unknown })
    }

    /// Adds the time keeper's entry if it is due.
    fn keep_time(&mut self, batch: &mut Batch, txn: &mut RwTxn<'_>, version: i64) -> Result<(), StoreError> {
        let core = &self.core;
        let is_disabled = || !matches!(batch.value(txn, timekeeper::DISABLE_KEY), Ok(None));
        let is_empty = |begin: &[u8], end: &[u8]| core.store.is_range_empty(txn, begin, end).unwrap_or(true);
        for mutation in core.time_keeper.entry(version, is_disabled, is_empty) {
            if let Mutation::Set(key, _) = &mutation {
                self.history.insert((key.clone(), key_after(key)), version);
            }
            batch.apply(txn, mutation, stamp(version, 0))?;
        }
        Ok(())
    }

    /// Writes and syncs the batch. A failure says whether the batch may be on disk.
    fn write(
        &mut self,
        batch: &mut Batch,
        mut txn: RwTxn<'_>,
        version: i64,
        accepted: &[AcceptedCommit],
        fired: &mut Vec<Arc<Watch>>,
    ) -> Result<(), (StoreError, bool)> {
        let core = &self.core;
        let not_written = |error: StoreError| (error, false);
        // A later commit of the same batch may have changed a watched key of this batch.
        for waiting in accepted.iter().flat_map(|commit| &commit.watches) {
            let value = batch.value(&txn, &waiting.watch.key).map_err(not_written)?;
            if value != waiting.expected {
                fired.push(Arc::clone(&waiting.watch));
            }
        }
        let needs_ceiling = version >= self.ceiling;
        if batch.is_empty() && !needs_ceiling {
            return Ok(());
        }
        batch.write(&mut txn, &mut self.packing).map_err(not_written)?;
        if needs_ceiling {
            self.ceiling =
                core.versions.clock().saturating_add(CEILING_STEP).max(version.saturating_add(CEILING_LEAST));
            format::put_ceiling(&core.store, &mut txn, self.ceiling).map_err(not_written)?;
        }
        core.versions.will_commit(batch.clears());
        txn.commit().map_err(|error| (error.into(), true))?;
        self.clears = Arc::clone(batch.clears());
        core.measure_data();
        core.counters.batches.add(1);
        Ok(())
    }

    /// Finds the watches whose keys a published batch changed. A key whose value cannot be read counts as removed: a
    /// watch may fire without a change, but must not miss one.
    fn find_changed(&self, batch: &Batch, fired: &mut Vec<Arc<Watch>>) {
        let core = &self.core;
        for key in core.watches.changed_by(batch.values(), &batch.cleared, fired) {
            let now = core.newest_value(&key);
            core.watches.changed(&key, now.ok().flatten().as_deref(), fired);
        }
    }

    /// Drops history that no reader can conflict with, at most four times a second.
    fn forget_history(&mut self) {
        self.core.counters.conflict_ranges.store(self.history.len() as u64, Ordering::Relaxed);
        let now = Instant::now();
        if now.duration_since(self.last_forgotten).as_millis() >= 250 {
            self.last_forgotten = now;
            self.history.forget(self.core.versions.oldest_readable());
        }
    }
}

/// Shows a mutation's keys to the observer of a test.
fn observe(observer: &KeyObserver, caller: u64, mutation: &Mutation, stamp: [u8; 10]) {
    let stamped;
    let access = match mutation {
        Mutation::Set(key, _) | Mutation::Atomic(_, key, _) | Mutation::StampValue(key, _) => KeyAccess::Write(key),
        Mutation::StampKey(key, _) => {
            stamped = place_versionstamp(key.clone(), stamp);
            KeyAccess::Write(&stamped)
        }
        Mutation::Clear(range) if is_single_key(range) => KeyAccess::Write(&range.0),
        Mutation::Clear((begin, end)) => KeyAccess::ClearRange(begin, end),
    };
    observer.observe(caller, access);
}

/// Eight bytes of version and two of the order within it, both big-endian.
fn stamp(version: i64, order: usize) -> [u8; 10] {
    let mut stamp = [0; 10];
    stamp[..8].copy_from_slice(&version.to_be_bytes());
    stamp[8..].copy_from_slice(&(order as u16).to_be_bytes());
    stamp
}
