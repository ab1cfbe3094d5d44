//! Looking at the database for a read of a transaction: at its own writes, and at what is stored where those do not tell.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::key_space::key_after;
use crate::read::range::{RangeRead, Rules};
use crate::read::result::RangeResult;
use crate::read::selector::{KeySelector, Outcome, get_key};
use crate::read::view::{View, ViewError, ViewResult};
use crate::shared::buggify::ReadFault;
use crate::shared::core::Core;
use crate::transaction::state::State;

/// Runs a read on what the transaction sees. A commit after a read that failed answers the read's error.
pub(crate) fn view<T>(
    state: &mut State,
    core: &Arc<Core>,
    snapshot: bool,
    read: impl Fn(&View<'_>) -> ViewResult<T>,
) -> Result<T> {
    let answer = look(state, core, snapshot, read);
    keep_error(state, answer)
}

/// Runs a read on what is stored alone.
pub(crate) fn view_stored<T>(
    state: &mut State,
    core: &Arc<Core>,
    read: impl FnOnce(&View<'_>) -> ViewResult<T>,
) -> Result<T> {
    let answer = look_at(state, core, false, read);
    keep_error(state, answer)
}

fn keep_error<T>(state: &mut State, answer: Result<T>) -> Result<T> {
    if let Err(error) = &answer {
        state.failed_read.get_or_insert(*error);
    }
    answer
}

/// As [`view`], for what the commit does not depend on.
pub(crate) fn look<T>(
    state: &mut State,
    core: &Arc<Core>,
    snapshot: bool,
    read: impl Fn(&View<'_>) -> ViewResult<T>,
) -> Result<T> {
    state.has_read = true;
    let options = &state.options;
    let sees_writes = !options.read_your_writes_disabled && (!snapshot || options.snapshot_ryw > 0);
    if sees_writes && state.read.is_none() {
        // What the writes alone answer takes no read version: that may be of a later time then.
        let view = View { stored: None, writes: Some(&state.writes), bypass_unreadable: options.bypass_unreadable };
        match read(&view) {
            Err(ViewError::NeedsStored) => {}
            answer => return Ok(answer?),
        }
    }
    look_at(state, core, sees_writes, read)
}

fn look_at<T>(
    state: &mut State,
    core: &Arc<Core>,
    sees_writes: bool,
    read: impl FnOnce(&View<'_>) -> ViewResult<T>,
) -> Result<T> {
    state.has_read = true;
    state.reads = state.reads.saturating_add(1);
    match core.faults.on_read(state.reads) {
        Some(ReadFault::TooOld) => return Err(Error::TRANSACTION_TOO_OLD),
        Some(ReadFault::FutureVersion) => return Err(Error::FUTURE_VERSION),
        None => {}
    }
    state.read_point(core, false)?;
    let State { read: Some(point), writes, options, .. } = &*state else { return Err(Error::INTERNAL_ERROR) };
    if core.versions.is_too_old(point.version) {
        return Err(Error::TRANSACTION_TOO_OLD);
    }
    let writes = sees_writes.then_some(writes);
    point.snapshot.with(|stored| {
        let view = View { stored: Some(stored), writes, bypass_unreadable: options.bypass_unreadable };
        Ok(read(&view)?)
    })
}

/// Reads a range and takes over its conflict.
///
/// Without the read-your-writes layer, the client first asks for the key of an end selector that goes on over keys, if it
/// reads in reverse: a read like any, with a conflict of its own.
pub(crate) fn read_range(
    state: &mut State,
    core: &Arc<Core>,
    read: RangeRead<'_>,
    snapshot: bool,
) -> Result<RangeResult> {
    if state.writes.is_empty()
        && let Some((begin, end)) = read.keys()
    {
        return read_keys(state, core, &read, (&begin, &end), snapshot);
    }
    if read.rules != Rules::Native || !read.reverse || read.end.offset <= 1 {
        let outcome = view(state, core, snapshot, |view| read.run(view))?;
        return Ok(settle(state, outcome, snapshot));
    }
    let outcome = view(state, core, snapshot, |view| get_key(view, read.end, read.max_key))?;
    let last = settle(state, outcome, snapshot);
    let read = RangeRead { end: KeySelector::first_greater_or_equal(&last), ..read };
    if KeySelector::are_inverted(&read.begin, &read.end) {
        return Ok(RangeResult::default());
    }
    let outcome = view(state, core, snapshot, |view| read.run(view))?;
    Ok(settle(state, outcome, snapshot))
}

/// Reads from a key to another where the transaction wrote nothing: what most reads of ranges are, by a short way. The
/// read conflicts with what it went over, by either set of rules.
fn read_keys(
    state: &mut State,
    core: &Arc<Core>,
    read: &RangeRead<'_>,
    (begin, end): (&[u8], &[u8]),
    snapshot: bool,
) -> Result<RangeResult> {
    let answer = look_at(state, core, false, |view| read.run_keys(&view.stored()?, begin, end));
    let result = keep_error(state, answer)?;
    if !snapshot {
        match result.last_key().filter(|_| result.more) {
            Some(last) => state.add_read_conflict(begin, &key_after(last)),
            None => state.add_read_conflict(begin, end),
        }
    }
    Ok(result)
}

/// Takes over the conflict of a read, unless it is a snapshot read.
pub(crate) fn settle<T>(state: &mut State, outcome: Outcome<T>, snapshot: bool) -> T {
    if let (false, Some((begin, end))) = (snapshot, &outcome.conflict) {
        state.add_read_conflict(begin, end);
    }
    outcome.answer
}
