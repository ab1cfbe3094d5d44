//! The transaction: FoundationDB's calls over one [`TransactionState`].

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::base::call::{Answer, Completion};
use crate::base::error::{Error, Result};
use crate::base::key_space::METADATA_VERSION_KEY;
use crate::base::lock::lock;
use crate::shared::core::Core;
use crate::shared::owner::Handle;
use crate::shared::watch::{WatchId, WatchRequest};
use crate::transaction::commit::{CommitStart, after_reads, start_commit};
use crate::transaction::look::{get, peek};
use crate::transaction::options::is_known;
use crate::transaction::state::{OwnWatch, TransactionState};
use crate::transaction::timeout::{arm_timeout, time_out};

/// A FoundationDB transaction.
///
/// All methods take `&self` and may be called from any thread. A call without a result in FoundationDB's API (`set`,
/// `clear` ...) keeps its error, and every later call returns it. Dropping a transaction cancels it; a commit in
/// flight still completes, and its callback still runs.
pub struct Transaction {
    handle: Handle,
    state: Arc<Mutex<TransactionState>>,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.with(|state, core| {
            if state.in_flight.is_none() {
                state.fail_watches(core, Error::TRANSACTION_CANCELLED);
                state.end(Error::TRANSACTION_CANCELLED);
            }
            state.fail_late(Error::TRANSACTION_CANCELLED);
            // A snapshot kept too long prevents LMDB from reusing pages.
            state.read = None;
        });
    }
}

impl Transaction {
    pub(crate) fn new(handle: Handle) -> Transaction {
        let state = Arc::new(Mutex::new(TransactionState::new(handle.core())));
        Transaction { handle, state }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.handle.core()
    }

    pub(crate) fn shared(&self) -> &Arc<Mutex<TransactionState>> {
        &self.state
    }

    /// Runs `action` on the locked state, then runs the callbacks that it queued without the lock.
    pub(crate) fn with<T>(&self, action: impl FnOnce(&mut TransactionState, &Arc<Core>) -> T) -> T {
        let core = self.handle.core();
        let mut state = lock(&self.state);
        let answer = action(&mut state, core);
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        for call in calls {
            call();
        }
        answer
    }

    /// Sets an option by its FDBTransactionOption number of 7.3. Options without effect in one process (priorities,
    /// tracing) are accepted and ignored. Kept errors: 2006 for a value of the wrong shape, and those of single
    /// options ([`crate::check_transaction_option`]).
    ///
    /// # Errors
    /// 2007 for an unknown number.
    pub fn set_option(&self, code: u32, value: Option<&[u8]>) -> Result<()> {
        if !is_known(code) {
            return Err(Error::INVALID_OPTION);
        }
        self.with(|state, core| {
            state.set_option(code, value);
            arm_timeout(&self.state, state, core);
        });
        Ok(())
    }

    /// Returns the read version; the first call fixes it. Other transactions may read at it for five seconds.
    ///
    /// # Errors
    /// The error that ended the transaction; 1007 or 1009 for a set version that is not readable.
    pub fn get_read_version(&self) -> Result<i64> {
        self.with(|state, core| {
            if let Some(error) = state.deferred {
                return Err(error);
            }
            state.check_deadline();
            state.ended.map_or(Ok(()), Err)?;
            // A set version is known; the first read checks whether it is readable.
            if let (None, Some(version)) = (&state.read, state.requested_version.or(state.ended_version)) {
                return Ok(version);
            }
            if state.read.is_none()
                && let Some(error) = core.faults.on_read_version(state.options.is_batch, state.options.has_tags())
            {
                return Err(error);
            }
            Ok(state.read_point(core, true)?.version)
        })
    }

    /// Sets the read version to one that was handed out, or to the version of a commit. Kept errors: 2010 if the
    /// version is fixed already, 2011 if it is not positive.
    pub fn set_read_version(&self, version: i64) {
        self.with(|state, _| {
            if state.deferred.is_some() {
            } else if state.read.is_some() || state.requested_version.is_some() {
                state.defer(Error::READ_VERSION_ALREADY_SET);
            } else if version <= 0 {
                state.defer(Error::VERSION_INVALID);
            } else {
                state.requested_version = Some(version);
            }
        });
    }

    /// Commits. The answer comes when the commit is on disk, and at once for a transaction without writes.
    ///
    /// Errors: 1020 conflict, 1007 too old, 2101 too large, 1021 unknown result, 1510 disk failure, and the error that
    /// ended the transaction.
    pub fn commit(&self, done: Completion<()>) {
        let started = self.with(|state, core| {
            let done = after_reads(&self.state, state, done);
            if let Err(error) = state.check_usable() {
                return CommitStart::Answered(done, Err(error));
            }
            start_commit(&self.state, state, core, done)
        });
        match started {
            CommitStart::Answered(done, result) => done(result),
            CommitStart::ReadOnly(done, watches) => {
                self.start_watches(watches);
                done(Ok(()));
            }
            CommitStart::Queued(request) => self.handle.core().queue.push(*request),
        }
    }

    /// Starts the watches of a transaction without writes, and fires those whose value has changed since it read them.
    fn start_watches(&self, watches: Vec<WatchRequest>) {
        let core = self.handle.core();
        for waiting in watches {
            let (watch, expected) = (Arc::clone(&waiting.watch), waiting.expected.clone());
            core.start_watch(waiting);
            // The committer checks the table after each commit, so only earlier commits need a check here.
            if core.newest_value(&watch.key) != Ok(expected) {
                core.fire(&watch);
            }
        }
    }

    /// Returns the version of the last commit, which `reset` and `on_error` keep; -1 before the first commit and after
    /// a commit without writes.
    ///
    /// # Errors
    /// None today; the signature is the C API's.
    pub fn committed_version(&self) -> Result<i64> {
        Ok(self.with(|state, _| state.committed_version))
    }

    /// Requests the versionstamp of the coming commit. Must be called before the commit, which answers it: 2021 if
    /// nothing was written, 2020 if the commit failed.
    pub fn get_versionstamp(&self, done: Completion<[u8; 10]>) {
        let refused = self.with(|state, _| match state.check_usable() {
            Err(error) => Some((done, error)),
            Ok(()) => {
                state.stamp_waiters.push(done);
                None
            }
        });
        if let Some((done, error)) = refused {
            done(Err(error));
        }
    }

    /// Watches a key. After this transaction's commit, the callback runs when the value differs from the one that this
    /// transaction saw. Returns `None` if the callback has run already, with an error.
    ///
    /// Errors: 1034 without read-your-writes, 1032 too many watches, 1101 cancelled, 1025 if the transaction is reset,
    /// dropped or fails before its commit, or the error of its commit.
    pub fn watch(&self, key: &[u8], done: Completion<()>) -> Option<WatchId> {
        let made = self.with(|state, core| {
            let value = match watched_value(state, core, key) {
                Ok(value) => value,
                Err(error) => return Err((error, done)),
            };
            let watch = core.watches.create(key, done)?;
            let id = watch.id;
            state.watches.push(OwnWatch { watch, value });
            Ok(id)
        });
        match made {
            Ok(id) => Some(id),
            Err((error, done)) => {
                done(Err(error));
                None
            }
        }
    }

    /// Ends a watch with 1101.
    pub fn cancel_watch(&self, id: WatchId) {
        self.core().watches.cancel(id);
    }

    /// Prepares a retry after an error: backs off, then resets the transaction, keeping the persistent options. An
    /// error that is not retryable is returned at once, and ends the transaction (1025).
    pub fn on_error(&self, code: i32, done: Completion<()>) {
        let refused = self.with(|state, core| {
            state.check_deadline();
            if let Some(error) = state.ended {
                return Some((done, error));
            }
            let delay = match crate::transaction::retry::delay(state, code, core.spread()) {
                Ok(delay) => delay,
                Err(error) => {
                    state.end(Error::TRANSACTION_CANCELLED);
                    return Some((done, error));
                }
            };
            core.counters.retries.add(1);
            state.forget(core);
            let answer = Answer::new(done);
            state.in_flight = Some(Arc::clone(&answer));
            let (now, generation) = (Instant::now(), state.generation);
            let at = now + delay;
            if let Some(deadline) = state.deadline().filter(|&deadline| deadline < at) {
                time_out(&self.state, generation, core, deadline);
                return None;
            }
            let (state, weak_core) = (Arc::clone(&self.state), Arc::downgrade(core));
            core.after(delay, move || {
                let Some(core) = weak_core.upgrade() else { return answer.give(Err(Error::TRANSACTION_CANCELLED)) };
                let mut state = lock(&state);
                if state.generation == generation && state.ended.is_none() {
                    state.in_flight = None;
                    state.restart(&core);
                }
                let calls = std::mem::take(&mut state.calls);
                drop(state);
                calls.into_iter().for_each(|call| call());
                answer.give(Ok(()));
            });
            None
        });
        if let Some((done, error)) = refused {
            done(Err(error));
        }
    }

    /// Returns the approximate size of the transaction in bytes, as a commit would count it, even if the transaction
    /// has ended.
    ///
    /// # Errors
    /// A kept one.
    pub fn get_approximate_size(&self) -> Result<i64> {
        self.with(|state, _| {
            state.deferred.map_or(Ok(()), Err)?;
            Ok(i64::try_from(state.approximate_bytes).unwrap_or(i64::MAX))
        })
    }

    /// Returns the bytes read, and the bytes written by a commit, since the begin or the last reset, in whole pages.
    ///
    /// # Errors
    /// A kept one.
    pub fn get_total_cost(&self) -> Result<i64> {
        self.with(|state, _| {
            state.deferred.map_or(Ok(()), Err)?;
            Ok(i64::try_from(state.cost.bytes()).unwrap_or(i64::MAX))
        })
    }

    /// Resets the transaction with its options; calls in flight get 1025.
    pub fn reset(&self) {
        self.with(|state, core| state.reset(core));
    }

    /// Ends the transaction: every later call but `reset` gets 1025. A commit in flight may still be applied.
    pub fn cancel(&self) {
        self.with(|state, core| {
            state.end(Error::TRANSACTION_CANCELLED);
            state.fail_watches(core, Error::TRANSACTION_CANCELLED);
        });
    }
}

/// Returns the value that a watch starts from; reading it conflicts as any read.
fn watched_value(state: &mut TransactionState, core: &Arc<Core>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    state.check_usable()?;
    if state.options.read_your_writes_disabled {
        return Err(Error::WATCHES_DISABLED);
    }
    if key >= state.max_read_key() && key != METADATA_VERSION_KEY {
        return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
    }
    if key.len() > state.key_bytes_max(key) {
        return Err(Error::KEY_TOO_LARGE);
    }
    let value = peek(state, core, false, |view, known| get(view, known, key))?;
    state.add_read_conflict_of(key);
    Ok(value)
}
