//! Reads of a transaction: from its own writes, and from stored pairs where the writes do not suffice.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::read::known::KnownRanges;
use crate::read::page::PageRead;
use crate::read::range::{RangeRead, Rules};
use crate::read::result::RangeResult;
use crate::read::selector::{KeySelector, Outcome, get_key};
use crate::read::view::{View, ViewError, ViewResult};
use crate::shared::core::Core;
use crate::transaction::state::TransactionState;

/// Runs a read on the transaction's view. A commit after a failed read returns the read's error.
pub(crate) fn view<T>(
    state: &mut TransactionState,
    core: &Arc<Core>,
    snapshot: bool,
    read: impl Fn(&View<'_>, &mut KnownRanges) -> ViewResult<T>,
) -> Result<T> {
    let answer = peek(state, core, snapshot, read);
    keep_error(state, answer)
}

/// Runs a read on stored pairs alone.
pub(crate) fn view_stored<T>(
    state: &mut TransactionState,
    core: &Arc<Core>,
    read: impl FnOnce(&View<'_>) -> ViewResult<T>,
) -> Result<T> {
    let answer = look_at(state, core, false, |view, _| read(view));
    keep_error(state, answer)
}

fn keep_error<T>(state: &mut TransactionState, answer: Result<T>) -> Result<T> {
    if let Err(error) = &answer {
        state.failed_read.get_or_insert(*error);
    }
    answer
}

/// As [`view`], for reads that do not affect the commit.
pub(crate) fn peek<T>(
    state: &mut TransactionState,
    core: &Arc<Core>,
    snapshot: bool,
    read: impl Fn(&View<'_>, &mut KnownRanges) -> ViewResult<T>,
) -> Result<T> {
    state.has_read = true;
    let options = &state.options;
    let sees_writes = !options.read_your_writes_disabled && (!snapshot || options.snapshot_ryw > 0);
    if sees_writes && state.read.is_none() {
        // A read answered by the writes alone takes no read version, so a later read may get a newer one.
        let view = View { stored: None, writes: Some(&state.writes), bypass_unreadable: options.bypass_unreadable };
        match read(&view, &mut state.known) {
            Err(ViewError::NeedsStored) => {}
            answer => return Ok(answer?),
        }
    }
    look_at(state, core, sees_writes, read)
}

fn look_at<T>(
    state: &mut TransactionState,
    core: &Arc<Core>,
    sees_writes: bool,
    read: impl FnOnce(&View<'_>, &mut KnownRanges) -> ViewResult<T>,
) -> Result<T> {
    state.has_read = true;
    state.reads = state.reads.saturating_add(1);
    if let Some(error) = core.faults.on_read(state.reads) {
        return Err(error);
    }
    state.read_point(core, false)?;
    let TransactionState { read: Some(point), writes, options, known, .. } = state else {
        return Err(Error::INTERNAL_ERROR);
    };
    if core.versions.is_too_old(point.version) {
        return Err(Error::TRANSACTION_TOO_OLD);
    }
    let writes = sees_writes.then_some(&*writes);
    point.snapshot.with(|stored| {
        let view = View { stored: Some(stored), writes, bypass_unreadable: options.bypass_unreadable };
        Ok(read(&view, known)?)
    })
}

pub(crate) fn get(view: &View<'_>, known: &mut KnownRanges, key: &[u8]) -> ViewResult<Option<Vec<u8>>> {
    let value = view.get(key)?.map(|value| value.into_owned());
    if view.needs_stored(key) {
        known.add_key(key);
    }
    Ok(value)
}

/// Reads a range and adds its conflict.
///
/// For a reverse read without the read-your-writes layer, the client first resolves an end selector that walks over
/// keys: a read with a conflict of its own.
pub(crate) fn read_range(
    state: &mut TransactionState,
    core: &Arc<Core>,
    read: RangeRead<'_>,
    snapshot: bool,
) -> Result<RangeResult> {
    if read.rules == Rules::ReadYourWrites {
        if let Some((begin, end)) = read.keys() {
            let RangeRead { limits, reverse, max_key, .. } = read;
            let page = PageRead { begin: &begin, end: &end, limits, reverse, max_key };
            let answer = view(state, core, snapshot, |view, known| page.run(view, known))?;
            let conflict = page.conflict(&answer);
            return Ok(settle(state, Outcome { answer, conflict: Some(conflict) }, snapshot));
        }
        let outcome = view(state, core, snapshot, |view, known| {
            let outcome = read.run(view)?;
            if view.stored.is_some() {
                known.add_rows(&outcome.answer);
            }
            Ok(outcome)
        })?;
        return Ok(settle(state, outcome, snapshot));
    }
    if !read.reverse || read.end.offset <= 1 {
        let outcome = view(state, core, snapshot, |view, _| read.run(view))?;
        return Ok(settle(state, outcome, snapshot));
    }
    let outcome = view(state, core, snapshot, |view, _| get_key(view, read.end, read.max_key))?;
    let last = settle(state, outcome, snapshot);
    let read = RangeRead { end: KeySelector::first_greater_or_equal(&last), ..read };
    if KeySelector::are_inverted(&read.begin, &read.end) {
        return Ok(RangeResult::default());
    }
    let outcome = view(state, core, snapshot, |view, _| read.run(view))?;
    Ok(settle(state, outcome, snapshot))
}

/// Adds the conflict of a read, unless it is a snapshot read.
pub(crate) fn settle<T>(state: &mut TransactionState, outcome: Outcome<T>, snapshot: bool) -> T {
    if let (false, Some((begin, end))) = (snapshot, &outcome.conflict) {
        state.add_read_conflict(begin, end);
    }
    outcome.answer
}
