//! The commit of a transaction: its request and its result.

use std::sync::{Arc, Mutex, Weak};

use crate::base::call::{Answer, Completion};
use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::base::range_set::RangeList;
use crate::shared::core::Core;
use crate::shared::observer::KeyObserver;
use crate::shared::queue::{CommitFailure, CommitReceipt, CommitRequest, Complete};
use crate::shared::watch::WatchRequest;
use crate::transaction::state::{NO_VERSION, TransactionState};
use crate::transaction::timeout::time_out;

pub(crate) enum CommitStart {
    Answered(Completion<()>, Result<()>),
    ReadOnly(Completion<()>, Vec<WatchRequest>),
    Queued(Box<CommitRequest>),
}

/// Builds the commit request from the transaction's writes.
pub(crate) fn start_commit(
    shared: &Arc<Mutex<TransactionState>>,
    state: &mut TransactionState,
    core: &Arc<Core>,
    done: Completion<()>,
) -> CommitStart {
    state.commit_started = true;
    let writes = std::mem::take(&mut state.writes);
    state.outgoing.take_all(writes);
    let error = if state.writes_tenants { Some(Error::TENANTS_DISABLED) } else { state.failed_read };
    if let Some(error) = error {
        state.end_reads();
        fail_commit(state, core, error);
        return CommitStart::Answered(done, Err(error));
    }
    if state.outgoing.mutations.is_empty() && state.outgoing.conflicts.is_empty() {
        core.counters.read_only_commits.add(1);
        for stamp in std::mem::take(&mut state.stamp_waiters) {
            state.calls.push(Box::new(move || stamp(Err(Error::NO_COMMIT_VERSION))));
        }
        let watches = state.watch_requests();
        state.watches.clear();
        state.committed_version = NO_VERSION;
        state.end_reads();
        return CommitStart::ReadOnly(done, watches);
    }
    let mutations = state.outgoing.mutations.len();
    let simulated = core.simulation.as_ref().map(|simulation| simulation.begin_commit(state.timing(), mutations));
    state.cost.add_writes(&state.outgoing.mutations);
    let bytes = state.outgoing.bytes(&state.read_conflicts);
    let error = match i64::try_from(bytes) {
        _ if state.options.is_read_only => Some(Error::TRANSACTION_READ_ONLY),
        Ok(bytes) if bytes <= state.options.size_bytes_max => None,
        _ => Some(Error::TRANSACTION_TOO_LARGE),
    };
    // The commit is checked at a version that was set, even if no read used it.
    let read = match (state.requested_version, error) {
        (Some(_), None) => state.read_point(core, false).map(|point| Some(point.clone())),
        (_, None) => Ok(state.read.clone()),
        (_, Some(error)) => Err(error),
    };
    // Releases the snapshot, so that LMDB can reuse its pages once the commit was checked.
    state.end_reads();
    let read = match read {
        Ok(read) => read,
        Err(error) => {
            fail_commit(state, core, error);
            return CommitStart::Answered(done, Err(error));
        }
    };
    let answer = Answer::new(done);
    state.in_flight = Some(Arc::clone(&answer));
    let generation = state.generation;
    let timeout = state.deadline().map(|deadline| time_out(shared, generation, core, deadline));
    let (shared, weak_core) = (Arc::clone(shared), Arc::downgrade(core));
    let weak = Weak::clone(&weak_core);
    let complete = move |result: std::result::Result<CommitReceipt, CommitFailure>| {
        if let (Some(timeout), Some(core)) = (timeout, weak_core.upgrade()) {
            core.timer.cancel(timeout);
        }
        let mut state = lock(&shared);
        let answered = result.as_ref().map(|_| ()).map_err(|failure| failure.error);
        if state.generation == generation {
            state.in_flight = None;
            finish_commit(&mut state, weak_core.upgrade().as_ref(), result);
        }
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        calls.into_iter().for_each(|call| call());
        answer.give(answered);
    };
    let complete: Complete = match simulated {
        None => Box::new(complete),
        Some(simulated) => Box::new(move |result| match weak.upgrade() {
            Some(core) => core.deliver(simulated, move || complete(result)),
            None => complete(result),
        }),
    };
    CommitStart::Queued(Box::new(CommitRequest {
        read_conflicts: if read.is_some() { state.read_conflicts.take() } else { RangeList::default() },
        read,
        write_conflicts: std::mem::take(&mut state.outgoing.conflicts),
        mutations: std::mem::take(&mut state.outgoing.mutations),
        reports_conflicts: state.options.report_conflicting_keys,
        is_lock_aware: state.options.is_lock_aware,
        watches: state.watch_requests(),
        caller: core.observer.as_ref().map_or(0, KeyObserver::caller),
        complete,
    }))
}

/// Applies the committer's answer to the state.
fn finish_commit(
    state: &mut TransactionState,
    core: Option<&Arc<Core>>,
    result: std::result::Result<CommitReceipt, CommitFailure>,
) {
    match result {
        Ok(committed) => {
            state.committed = Some(committed);
            state.committed_version = committed.version;
            state.watches.clear();
            for done in std::mem::take(&mut state.stamp_waiters) {
                state.calls.push(Box::new(move || done(Ok(committed.stamp))));
            }
        }
        Err(failure) => {
            if failure.error == Error::NOT_COMMITTED {
                state.conflicting = failure.conflicting;
            }
            if let Some(core) = core {
                fail_commit(state, core, failure.error);
            }
        }
    }
}

fn fail_commit(state: &mut TransactionState, core: &Arc<Core>, error: Error) {
    state.fail_watches(core, error);
    for done in std::mem::take(&mut state.stamp_waiters) {
        state.calls.push(Box::new(move || done(Err(Error(2020)))));
    }
}

/// Delays the callback of a commit until the earlier reads are answered.
pub(crate) fn after_reads(
    shared: &Arc<Mutex<TransactionState>>,
    state: &TransactionState,
    done: Completion<()>,
) -> Completion<()> {
    if state.late.is_empty() {
        return done;
    }
    let shared = Arc::clone(shared);
    Box::new(move |result: Result<()>| {
        let late = std::mem::take(&mut lock(&shared).late);
        late.into_iter().for_each(|late| (late.deliver)(Ok(())));
        done(result);
    })
}
