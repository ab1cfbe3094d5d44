//! The state of a transaction, and the rules for its use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::call::{Answer, Call, Completion};
use crate::base::error::{Error, Result};
use crate::base::key_space::{KeyRange, SYSTEM_END, TENANT_PREFIX_BYTES, USER_END, read_key_bytes_max};
use crate::base::lock::lock;
use crate::base::range_set::RangeSet;
use crate::read::known::KnownRanges;
use crate::read::snapshot::ReadPoint;
use crate::read::write_map::WriteMap;
use crate::shared::core::Core;
use crate::shared::queue::CommitReceipt;
use crate::shared::simulation::{Moment, TransactionTiming};
use crate::shared::watch::{Watch, WatchRequest};
use crate::transaction::cost::Cost;
use crate::transaction::late_answer::LateAnswer;
use crate::transaction::options::{TransactionOptions, is_persistent};
use crate::transaction::outgoing::{MUTATION_OVERHEAD, OutgoingWrites, RANGE_OVERHEAD};

/// The version of a commit before the first and after one without writes.
pub(crate) const NO_VERSION: i64 = -1;
/// The first delay of `on_error`, before its random factor.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(10);

/// A watch of this transaction, before its commit.
pub(crate) struct OwnWatch {
    pub(crate) watch: Arc<Watch>,
    /// The value that the transaction saw when it created the watch.
    pub(crate) value: Option<Vec<u8>>,
}

/// The value that a write leaves in its range, as far as its own transaction knows.
#[derive(Clone, Copy)]
pub(crate) enum WrittenValue<'a> {
    Value(&'a [u8]),
    Cleared,
    /// The value depends on stored data at the commit.
    Unknown,
}

pub(crate) struct TransactionState {
    /// Counts resets, so that an answer from before a reset can be recognised.
    pub(crate) generation: u64,
    pub(crate) options: TransactionOptions,
    /// Options that a retry keeps, in the order in which they were set.
    persistent: Vec<(u32, Option<Vec<u8>>)>,
    pub(crate) created: Instant,
    /// The error of an ended transaction, until it is reset: cancelled, timed out, used during commit.
    pub(crate) ended: Option<Error>,
    /// The first error of a call that cannot return one; every later call returns it.
    pub(crate) deferred: Option<Error>,
    pub(crate) commit_started: bool,
    pub(crate) committed: Option<CommitReceipt>,
    /// The version of the last commit, whatever happened to the transaction since; [`NO_VERSION`] if there was none or
    /// it wrote nothing.
    pub(crate) committed_version: i64,
    pub(crate) requested_version: Option<i64>,
    /// The read version of the commit that ended the reads; the transaction still reports it.
    pub(crate) ended_version: Option<i64>,
    pub(crate) read: Option<ReadPoint>,
    /// The time at which a simulated cluster returns the read version; `None` before the request.
    pub(crate) version_due: Option<Moment>,
    pub(crate) cost: Cost,
    pub(crate) writes: WriteMap,
    pub(crate) known: KnownRanges,
    pub(crate) outgoing: OutgoingWrites,
    pub(crate) read_conflicts: RangeSet,
    /// True if written special keys create or remove tenants.
    pub(crate) writes_tenants: bool,
    /// Written keys with a versionstamp, each with the stamp's offset.
    pub(crate) stamped_keys: Vec<Vec<u8>>,
    pub(crate) approximate_bytes: usize,
    pub(crate) has_read: bool,
    pub(crate) stamp_waiters: Vec<Completion<[u8; 10]>>,
    pub(crate) watches: Vec<OwnWatch>,
    pub(crate) retries: u32,
    pub(crate) backoff: Duration,
    /// The commit or the retry in flight.
    pub(crate) in_flight: Option<Arc<Answer>>,
    pub(crate) late: Vec<LateAnswer>,
    pub(crate) late_ids: u64,
    /// Reads since the last retry.
    pub(crate) reads: u32,
    /// The first error of a read; the commit returns it too.
    pub(crate) failed_read: Option<Error>,
    /// The conflicting ranges of the last conflicting commit with `report_conflicting_keys`; kept over resets.
    pub(crate) conflicting: Vec<KeyRange>,
    /// Callbacks to run after unlocking.
    pub(crate) calls: Vec<Call>,
}

impl TransactionState {
    pub(crate) fn new(core: &Core) -> TransactionState {
        let mut state = TransactionState {
            generation: 0,
            options: TransactionOptions::default(),
            persistent: lock(&core.defaults).clone(),
            created: Instant::now(),
            ended: None,
            deferred: None,
            commit_started: false,
            committed: None,
            committed_version: NO_VERSION,
            requested_version: None,
            ended_version: None,
            cost: Cost::default(),
            version_due: None,
            read: None,
            writes: WriteMap::default(),
            known: KnownRanges::default(),
            outgoing: OutgoingWrites::default(),
            read_conflicts: RangeSet::default(),
            writes_tenants: false,
            stamped_keys: Vec::new(),
            approximate_bytes: 0,
            has_read: false,
            stamp_waiters: Vec::new(),
            watches: Vec::new(),
            retries: 0,
            backoff: FIRST_BACKOFF,
            in_flight: None,
            late: Vec::new(),
            late_ids: 0,
            reads: 0,
            failed_read: None,
            conflicting: Vec::new(),
            calls: Vec::new(),
        };
        state.apply_persistent();
        state
    }

    fn apply_persistent(&mut self) {
        for (code, value) in &self.persistent {
            // Each value was accepted when it was set.
            let _ = self.options.set(*code, value.as_deref());
        }
    }

    pub(crate) fn set_option(&mut self, code: u32, value: Option<&[u8]>) {
        if self.deferred.is_some() {
            return;
        }
        if code == 500 {
            // An expired timeout cannot be revoked.
            self.check_deadline();
        }
        let disables_reads = code == 51 && (self.has_read || !self.writes.is_empty());
        let was_disabled = self.options.read_your_writes_disabled;
        match self.options.set(code, value) {
            Ok(()) if disables_reads => {
                self.options.read_your_writes_disabled = was_disabled;
                self.defer(Error::CLIENT_INVALID_OPERATION);
            }
            Ok(()) if is_persistent(code) => self.persistent.push((code, value.map(<[u8]>::to_vec))),
            Ok(()) => {}
            Err(error) => self.defer(error),
        }
    }

    pub(crate) fn defer(&mut self, error: Error) {
        self.deferred.get_or_insert(error);
    }

    /// The time at which the timeout ends the transaction.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.options.timeout.and_then(|timeout| self.created.checked_add(timeout))
    }

    /// Ends the transaction if its timeout has expired.
    pub(crate) fn check_deadline(&mut self) {
        if self.options.timeout.is_some() && self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            self.end(Error::TRANSACTION_TIMED_OUT);
        }
    }

    /// Ends the transaction unless it has ended; calls in flight get the error.
    pub(crate) fn end(&mut self, error: Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error);
        self.fail_in_flight(error);
    }

    fn fail_in_flight(&mut self, error: Error) {
        if let Some(answer) = self.in_flight.take() {
            self.calls.push(Box::new(move || answer.give(Err(error))));
        }
        for done in std::mem::take(&mut self.stamp_waiters) {
            self.calls.push(Box::new(move || done(Err(error))));
        }
        self.fail_late(error);
    }

    /// Fails the reads whose answer is pending.
    pub(crate) fn fail_late(&mut self, error: Error) {
        self.calls.extend(std::mem::take(&mut self.late).into_iter().map(|late| late.failing(error)));
    }

    /// Returns true from the commit on; using the transaction then ends it.
    pub(crate) fn is_used_during_commit(&mut self) -> bool {
        if self.commit_started && !self.options.used_during_commit_protection_disabled {
            self.end(Error::USED_DURING_COMMIT);
        }
        self.commit_started
    }

    /// Checks whether a call with a result may run.
    pub(crate) fn check_usable(&mut self) -> Result<()> {
        if let Some(error) = self.deferred {
            return Err(error);
        }
        self.check_deadline();
        if self.is_used_during_commit() {
            return Err(Error::USED_DURING_COMMIT);
        }
        self.ended.map_or(Ok(()), Err)
    }

    /// Checks whether a call without a result may run; the error is kept.
    pub(crate) fn check_writable(&mut self) -> bool {
        if self.deferred.is_some() {
            return false;
        }
        if self.is_used_during_commit() {
            self.defer(Error::USED_DURING_COMMIT);
            return false;
        }
        true
    }

    /// Returns the greatest length of a key like this one that may be written or watched.
    pub(crate) fn key_bytes_max(&self, key: &[u8]) -> usize {
        let is_short = !key.starts_with(USER_END) && !self.options.has_raw_access;
        read_key_bytes_max(key) - if is_short { TENANT_PREFIX_BYTES } else { 0 }
    }

    pub(crate) fn max_read_key(&self) -> &'static [u8] {
        if self.options.may_read_system_keys { SYSTEM_END } else { USER_END }
    }

    pub(crate) fn max_write_key(&self) -> &'static [u8] {
        if self.options.may_write_system_keys { SYSTEM_END } else { USER_END }
    }

    /// The inputs of a simulated cluster's time.
    pub(crate) fn timing(&mut self) -> TransactionTiming<'_> {
        let (is_version_set, has_read) = (self.requested_version.is_some(), self.read.is_some());
        TransactionTiming { version_due: &mut self.version_due, is_version_set, has_read }
    }

    /// Returns the read version and the snapshot; the first call fixes them.
    pub(crate) fn read_point(&mut self, core: &Core, retain: bool) -> Result<&ReadPoint> {
        if self.read.is_none() || retain {
            let point = match (self.requested_version, &self.read) {
                (_, Some(point)) => {
                    core.versions.retain(&point.snapshot);
                    point.clone()
                }
                (Some(version), None) => core.versions.acquire_at(version)?,
                (None, None) => {
                    core.check_lock(self.options.is_lock_aware)?;
                    core.counters.read_versions.add(1);
                    core.versions.acquire(retain)?
                }
            };
            self.read = Some(point);
        }
        self.read.as_ref().ok_or(Error::INTERNAL_ERROR)
    }

    pub(crate) fn end_reads(&mut self) {
        if let Some(point) = self.read.take() {
            self.ended_version = Some(point.version);
        }
    }

    /// Returns the read version if it was taken or set; else 0.
    pub(crate) fn known_read_version(&self) -> i64 {
        let taken = self.read.as_ref().map(|point| point.version);
        taken.or(self.requested_version).unwrap_or(0)
    }

    /// Adds a read conflict, except where the read only saw this transaction's own writes.
    pub(crate) fn add_read_conflict(&mut self, begin: &[u8], end: &[u8]) {
        let TransactionState { writes, read_conflicts, approximate_bytes, options, .. } = self;
        // FoundationDB counts the whole range for each part of it, and nothing without read-your-writes.
        let bytes = if options.read_your_writes_disabled { 0 } else { begin.len() + end.len() + RANGE_OVERHEAD };
        writes.for_each_dependent(begin, end, |begin, end| {
            *approximate_bytes += bytes;
            read_conflicts.insert(begin, end);
        });
    }

    /// As [`TransactionState::add_read_conflict`] for one key.
    pub(crate) fn add_read_conflict_of(&mut self, key: &[u8]) {
        if self.writes.is_dependent(key) {
            let bytes = if self.options.read_your_writes_disabled { 0 } else { 2 * key.len() + 1 + RANGE_OVERHEAD };
            self.approximate_bytes += bytes;
            self.read_conflicts.insert_key(key);
        }
    }

    /// Counts a mutation towards the approximate size.
    pub(crate) fn count_mutation(&mut self, key: usize, value: usize, conflict: Option<usize>) {
        self.approximate_bytes += key + value + MUTATION_OVERHEAD + conflict.map_or(0, |bytes| bytes + RANGE_OVERHEAD);
    }

    /// Fires the transaction's own watches in a range that it writes.
    pub(crate) fn trigger_watches(&mut self, core: &Arc<Core>, begin: &[u8], end: &[u8], written: WrittenValue<'_>) {
        if self.watches.is_empty() {
            return;
        }
        let TransactionState { watches, calls, .. } = self;
        watches.retain(|own| {
            let is_inside = begin <= own.watch.key.as_slice() && own.watch.key.as_slice() < end;
            let is_changed = match written {
                WrittenValue::Value(value) => own.value.as_deref() != Some(value),
                WrittenValue::Cleared => own.value.is_some(),
                WrittenValue::Unknown => true,
            };
            if is_inside && is_changed {
                let (core, watch) = (Arc::clone(core), Arc::clone(&own.watch));
                calls.push(Box::new(move || core.watches.finish(&watch, Ok(()))));
            }
            !(is_inside && is_changed)
        });
    }

    /// Returns the watches for the commit; the transaction keeps its list until the commit is answered.
    pub(crate) fn watch_requests(&self) -> Vec<WatchRequest> {
        let request = |own: &OwnWatch| WatchRequest { watch: Arc::clone(&own.watch), expected: own.value.clone() };
        self.watches.iter().map(request).collect()
    }

    pub(crate) fn fail_watches(&mut self, core: &Arc<Core>, error: Error) {
        for own in std::mem::take(&mut self.watches) {
            let core = Arc::clone(core);
            self.calls.push(Box::new(move || core.watches.finish(&own.watch, Err(error))));
        }
    }

    /// Drops reads and writes, as `on_error` does before it waits.
    pub(crate) fn forget(&mut self, core: &Arc<Core>) {
        self.fail_watches(core, Error::TRANSACTION_CANCELLED);
        self.requested_version = None;
        self.ended_version = None;
        self.version_due = None;
        self.cost = Cost::default();
        self.read = None;
        self.writes = WriteMap::default();
        self.known = KnownRanges::default();
        self.outgoing = OutgoingWrites::default();
        self.read_conflicts = RangeSet::default();
        self.reads = 0;
        self.failed_read = None;
        self.stamped_keys = Vec::new();
        self.writes_tenants = false;
        self.committed = None;
    }

    /// Resets the transaction, keeping the persistent options.
    pub(crate) fn restart(&mut self, core: &Arc<Core>) {
        self.fail_in_flight(Error::TRANSACTION_CANCELLED);
        self.forget(core);
        self.generation += 1;
        self.approximate_bytes = 0;
        self.has_read = false;
        self.commit_started = false;
        self.deferred = None;
        self.ended = None;
        self.options = TransactionOptions::default();
        self.apply_persistent();
    }

    /// Resets everything: options, retries, and the start of the timeout.
    pub(crate) fn reset(&mut self, core: &Arc<Core>) {
        self.persistent.clone_from(&lock(&core.defaults));
        self.retries = 0;
        self.backoff = FIRST_BACKOFF;
        self.created = Instant::now();
        self.restart(core);
    }
}
