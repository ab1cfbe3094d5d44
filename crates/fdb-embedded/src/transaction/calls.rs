//! The transaction: FoundationDB's calls over one [`State`].

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::base::error::{Error, Result};
use crate::engine::{Core, Engine};
use crate::read::mapped::{self, MappedRange};
use crate::read::range::{KeySelector, Limits, RangeOptions, RangeRead, RangeResult, Rules, get_key};
use crate::read::range_size;
use crate::read::snapshot::lock;
use crate::read::write_map::key_after;
use crate::shared::status;
use crate::shared::timekeeper;
use crate::shared::watch::WatchId;
use crate::transaction::commit::{Started, start_commit, time_out};
use crate::transaction::late;
use crate::transaction::look::{look, read_range, settle, view, view_stored};
use crate::transaction::options::is_known;
use crate::transaction::special;
use crate::transaction::state::{
    Answer, METADATA_VERSION_KEY, MUTATION_OVERHEAD, OwnWatch, RANGE_OVERHEAD, SYSTEM_END, State, cut_range,
    read_key_bytes_max,
};
use crate::transaction::write;

/// Called exactly once, from any thread, or on the caller's before the call returns.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send + 'static>;

/// A FoundationDB transaction.
///
/// Everything takes `&self`, from any thread. A call that FoundationDB answers with nothing (`set`, `clear` ...) keeps
/// its error, and every later call answers that. Dropping a transaction cancels it; a commit in flight still lands, and
/// its callback still comes.
pub struct Transaction {
    engine: Engine,
    state: Arc<Mutex<State>>,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.with(|state, core| {
            if state.in_flight.is_none() {
                state.fail_watches(core, Error::TRANSACTION_CANCELLED);
                state.end(Error::TRANSACTION_CANCELLED);
            }
            state.fail_late(Error::TRANSACTION_CANCELLED);
            // A snapshot held longer than needed keeps LMDB from reusing pages.
            state.read = None;
        });
    }
}

impl Transaction {
    pub(crate) fn new(engine: Engine) -> Transaction {
        let state = Arc::new(Mutex::new(State::new(engine.core())));
        Transaction { engine, state }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.engine.core()
    }

    pub(crate) fn shared(&self) -> &Arc<Mutex<State>> {
        &self.state
    }

    /// Runs `action` on the locked state, then the callbacks that it left, unlocked.
    pub(crate) fn with<T>(&self, action: impl FnOnce(&mut State, &Arc<Core>) -> T) -> T {
        let core = self.engine.core();
        let mut state = lock(&self.state);
        let answer = action(&mut state, core);
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        for call in calls {
            call();
        }
        answer
    }

    /// What a read of keys from `begin` to `end` needs before the transaction is locked.
    fn prepare_read(&self, begin: &[u8], end: &[u8]) {
        if timekeeper::is_read(begin, end)
            && self.with(|state, _| state.read.is_none() && state.options.may_read_system_keys)
        {
            timekeeper::prepare_read(self.engine.core(), begin, end);
        }
    }

    /// Sets an option by its FDBTransactionOption number of 7.3. Options that make no difference in one process
    /// (priorities, tracing) are taken and do nothing. Kept errors: 2006 for a value of the wrong shape, and what single
    /// options refuse ([`crate::check_transaction_option`]).
    ///
    /// # Errors
    /// 2007 for an unknown number.
    pub fn set_option(&self, code: u32, value: Option<&[u8]>) -> Result<()> {
        if !is_known(code) {
            return Err(Error::INVALID_OPTION);
        }
        self.with(|state, core| {
            state.set_option(code, value);
            late::arm_timeout(&self.state, state, core);
        });
        Ok(())
    }

    /// The value of a key, `None` where there is none. A key longer than any may be has no value.
    ///
    /// # Errors
    /// 2004 outside the legal range, 1036 where a versionstamp makes the value unknown, 1007 when the read version is
    /// too old, and whatever ended the transaction.
    pub fn get(&self, key: &[u8], snapshot: bool) -> Result<Option<Vec<u8>>> {
        self.prepare_read(key, key);
        self.with(|state, core| {
            if special::is_special(key) {
                state.deferred.map_or(Ok(()), Err)?;
                return special::get(state, &self.engine, key);
            }
            core.counters.reads.add(1);
            state.check_usable()?;
            if key >= state.max_read_key() && key != METADATA_VERSION_KEY {
                return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            if key.len() > read_key_bytes_max(key) {
                return Ok(None);
            }
            let value = view(state, core, snapshot, |view| Ok(view.get(key)?.map(|value| value.into_owned())))?;
            core.counters.bytes_read.add(value.as_ref().map_or(0, |value| key.len() + value.len()) as u64);
            state.cost.add_read(key.len() + value.as_ref().map_or(0, Vec::len));
            if !snapshot {
                state.add_read_conflict_of(key);
            }
            Ok(value)
        })
    }

    /// The key that a selector means; the empty key before the first, `\xff` (or `\xff\xff`) past the last.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_key(&self, selector: KeySelector<'_>, snapshot: bool) -> Result<Vec<u8>> {
        self.prepare_read(selector.key, selector.key);
        self.with(|state, core| {
            core.counters.key_reads.add(1);
            state.check_usable()?;
            let max_key = state.max_read_key();
            if selector.key > max_key {
                return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            let outcome = view(state, core, snapshot, |view| get_key(view, selector, max_key))?;
            Ok(settle(state, outcome, snapshot))
        })
    }

    /// The pairs between two selectors, in order or in reverse.
    ///
    /// # Errors
    /// As [`Transaction::get`]; 2210, 2012 and 2000 for limits and modes that are not valid.
    pub fn get_range(
        &self,
        begin: KeySelector<'_>,
        end: KeySelector<'_>,
        options: &RangeOptions,
    ) -> Result<RangeResult> {
        let limits = Limits::of(options)?;
        self.prepare_read(begin.key, end.key);
        self.with(|state, core| {
            if special::is_special_range(begin.key, end.key) {
                state.deferred.map_or(Ok(()), Err)?;
                limits.check()?;
                return special::get_range(state, &self.engine, begin, end, limits, options.reverse);
            }
            core.counters.range_reads.add(1);
            state.check_usable()?;
            let max_key = state.max_read_key();
            if begin.key > max_key || end.key > max_key {
                return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            limits.check()?;
            if KeySelector::are_inverted(&begin, &end) {
                return Ok(RangeResult::default());
            }
            let rules = match state.options.read_your_writes_disabled {
                true => Rules::Native,
                false => Rules::ReadYourWrites,
            };
            let read = RangeRead { begin, end, limits, reverse: options.reverse, rules, max_key };
            let result = read_range(state, core, read, options.snapshot)?;
            core.counters.keys_read.add(result.pairs.len() as u64);
            core.counters.bytes_read.add(result.arena.len() as u64);
            state.cost.add_read(result.arena.len());
            Ok(result)
        })
    }

    /// The pairs of an index and the records that a mapper makes of each; see [`MappedRange`].
    ///
    /// # Errors
    /// As [`Transaction::get_range`]; 2108 for a snapshot read and without read-your-writes, 2039 where it would read
    /// what this transaction wrote, 2030, 2032, 2041, 2042 and 2043 for a mapper that is not valid or does not fit.
    pub fn get_mapped_range(
        &self,
        begin: KeySelector<'_>,
        end: KeySelector<'_>,
        mapper: &[u8],
        options: &RangeOptions,
    ) -> Result<MappedRange> {
        let limits = Limits::of(options)?;
        self.with(|state, core| {
            core.counters.range_reads.add(1);
            if special::is_special_range(begin.key, end.key) {
                return Err(state.deferred.unwrap_or(Error::CLIENT_INVALID_OPERATION));
            }
            state.check_usable()?;
            let max_key = state.max_read_key();
            if begin.key > max_key || end.key > max_key {
                return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            limits.check()?;
            if KeySelector::are_inverted(&begin, &end) {
                return Ok(MappedRange::default());
            }
            if options.snapshot || state.options.read_your_writes_disabled {
                return Err(Error::UNSUPPORTED_OPERATION);
            }
            let rules = Rules::ReadYourWrites;
            let index = RangeRead { begin, end, limits, reverse: options.reverse, rules, max_key };
            let read = view_stored(state, core, |view| Ok(mapped::read(view, index, mapper)))??;
            let ranges = || read.answer.records.iter().map(|records| &records.pairs).chain([&read.answer.index]);
            core.counters.keys_read.add(ranges().map(|range| range.pairs.len() as u64).sum());
            core.counters.bytes_read.add(ranges().map(|range| range.arena.len() as u64).sum());
            for (begin, end) in &read.conflicts {
                let touched = state.writes.first_touched(begin, end);
                state.add_read_conflict(begin, touched.as_deref().unwrap_or(end));
                if touched.is_some() {
                    return Err(Error::MAPPED_RANGE_READS_YOUR_WRITES);
                }
            }
            Ok(read.answer)
        })
    }

    /// The read version; the first call fixes it. Others may read at it for five seconds.
    ///
    /// # Errors
    /// Whatever ended the transaction; 1007 or 1009 for a version that was set and cannot be read at.
    pub fn get_read_version(&self) -> Result<i64> {
        self.with(|state, core| {
            if let Some(error) = state.deferred {
                return Err(error);
            }
            state.check_deadline();
            state.ended.map_or(Ok(()), Err)?;
            // One that was set is known: whether it can be read at is the first read's to find out.
            if let (None, Some(version)) = (&state.read, state.requested_version.or(state.ended_version)) {
                return Ok(version);
            }
            if state.read.is_none() && core.faults.on_read_version() {
                return Err(Error::FUTURE_VERSION);
            }
            Ok(state.read_point(core, true)?.version)
        })
    }

    /// Fixes the read version to one that was handed out, or to the version of a commit. The error, if any, is kept:
    /// 2010 if the version is fixed already, 2011 if it is not positive.
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

    /// Sets a key. Kept errors: 2004 outside the legal range, 2102 a key over 10,000 bytes, 2103 a value over 100,000.
    pub fn set(&self, key: &[u8], value: &[u8]) {
        self.with(|state, core| {
            if state.deferred.is_some() {
                return;
            }
            if key == METADATA_VERSION_KEY {
                return state.defer(Error::CLIENT_INVALID_OPERATION);
            }
            if special::is_special(key) {
                if let Err(error) = special::write(state, key, &key_after(key)) {
                    state.defer(error);
                }
                return;
            }
            let conflicts = !std::mem::take(&mut state.options.next_write_no_conflict);
            if !state.check_writable() {
                return;
            }
            if let Err(error) = write::set(state, core, key, value, conflicts) {
                state.defer(error);
            }
        });
    }

    /// Removes a key. Kept error: 2004 outside the legal range. A key longer than any may be is removed by nothing.
    pub fn clear(&self, key: &[u8]) {
        self.with(|state, core| {
            if state.deferred.is_some() {
                return;
            }
            let conflicts = !std::mem::take(&mut state.options.next_write_no_conflict);
            if !state.check_writable() {
                return;
            }
            if special::is_special(key) {
                if let Err(error) = special::write(state, key, &key_after(key)) {
                    state.defer(error);
                }
                return;
            }
            if key >= state.max_write_key() {
                return state.defer(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            if key.len() <= read_key_bytes_max(key) {
                let before = state.approximate_bytes;
                write::clear(state, core, key, &key_after(key), conflicts);
                // FoundationDB counts a single key's removal as a range, or not at all.
                match state.options.read_your_writes_disabled {
                    true => state.approximate_bytes = before,
                    false => state.approximate_bytes -= MUTATION_OVERHEAD - RANGE_OVERHEAD,
                }
            }
        });
    }

    /// Removes the keys in `[begin, end)`. Kept errors: 2005 where begin is above end, 2004 outside the legal range.
    pub fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.with(|state, core| {
            if state.deferred.is_some() {
                return;
            }
            if begin > end {
                return state.defer(Error::INVERTED_RANGE);
            }
            let conflicts = !std::mem::take(&mut state.options.next_write_no_conflict);
            if !state.check_writable() {
                return;
            }
            if special::is_special_range(begin, end) {
                if let Err(error) = special::write(state, begin, end) {
                    state.defer(error);
                }
                return;
            }
            let max_key = state.max_write_key();
            if begin > max_key || end > max_key {
                return state.defer(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            let (begin, end) = cut_range(begin, end);
            if begin < end {
                write::clear(state, core, begin, end, conflicts);
            }
        });
    }

    /// An atomic operation by its FDBMutationType number. Kept errors: 2018 for an unknown number, 2000 for a
    /// versionstamp whose place does not fit, and those of [`Transaction::set`].
    pub fn atomic_op(&self, key: &[u8], operand: &[u8], code: i32) {
        self.with(|state, core| {
            if state.deferred.is_some() {
                return;
            }
            let conflicts = !std::mem::take(&mut state.options.next_write_no_conflict);
            if !state.check_writable() {
                return;
            }
            if let Err(error) = write::atomic_op(state, core, key, operand, code, conflicts) {
                state.defer(error);
            }
        });
    }

    /// Adds `[begin, end)` to the read or the write conflicts.
    ///
    /// # Errors
    /// 2005 where begin is above end. Kept: 2004 outside the legal range.
    pub fn add_conflict_range(&self, begin: &[u8], end: &[u8], write: bool) -> Result<()> {
        if begin > end {
            return Err(Error::INVERTED_RANGE);
        }
        self.with(|state, _| {
            if !state.check_writable() {
                return;
            }
            let max_key = if write { state.max_write_key() } else { state.max_read_key() };
            let is_metadata = !write && begin == METADATA_VERSION_KEY && *end == key_after(METADATA_VERSION_KEY);
            if (begin > max_key || end > max_key) && !is_metadata {
                return state.defer(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            let (begin, end) = cut_range(begin, end);
            if begin >= end {
                return;
            }
            let bytes = begin.len() + end.len() + RANGE_OVERHEAD;
            if !write {
                state.add_read_conflict(begin, end);
                if state.options.read_your_writes_disabled {
                    state.approximate_bytes += bytes;
                }
                return;
            }
            state.approximate_bytes += bytes;
            if state.options.read_your_writes_disabled {
                state.outgoing.conflicts.push(begin, end);
            } else {
                state.writes.add_conflict(begin, end);
            }
        });
        Ok(())
    }

    /// Commits. The answer comes when the commit is on disk; a transaction that wrote nothing is answered at once.
    ///
    /// Errors: 1020 conflict, 1007 too old, 2101 too large, 1021 unknown result, 1510 the disk failed, and whatever
    /// ended the transaction.
    pub fn commit(&self, done: Done<()>) {
        let started = self.with(|state, core| {
            let done = late::after_reads(&self.state, state, done);
            if let Err(error) = state.check_usable() {
                return Started::Answered(done, Err(error));
            }
            start_commit(&self.state, state, core, done)
        });
        match started {
            Started::Answered(done, result) => done(result),
            Started::ReadOnly(done, watches) => {
                self.start_watches(watches);
                done(Ok(()));
            }
            Started::Queued(request) => self.engine.core().queue.push(*request),
        }
    }

    /// Lets watches of a transaction without writes wait, and fires those whose value changed since it read them.
    fn start_watches(&self, watches: Vec<crate::shared::watch::Waiting>) {
        let core = self.engine.core();
        for waiting in watches {
            let (watch, expected) = (Arc::clone(&waiting.watch), waiting.expected.clone());
            core.start_watch(waiting);
            // The committer looks at the table after each commit, so only what was committed before needs a look here.
            let now = core.versions.acquire(false).and_then(|point| {
                point.snapshot.with(|stored| {
                    let value = stored.get(&watch.key).map_err(|_| Error::IO_ERROR)?;
                    Ok(value.map(<[u8]>::to_vec))
                })
            });
            if now != Ok(expected) {
                core.fire(&watch);
            }
        }
    }

    /// The version of the last commit, which `reset` and `on_error` do not take back; -1 before the first, and where the
    /// last wrote nothing.
    ///
    /// # Errors
    /// None today; the shape is the C API's.
    pub fn committed_version(&self) -> Result<i64> {
        Ok(self.with(|state, _| state.committed_version))
    }

    /// The versionstamp of the commit to come. Must be asked before the commit; the answer comes with it: 2021 where
    /// nothing was written, 2020 where the commit failed.
    pub fn get_versionstamp(&self, done: Done<[u8; 10]>) {
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

    /// Watches a key: the callback comes when, after the commit of this transaction, the value differs from what this
    /// transaction saw. Returns `None` where the callback was called already, with an error.
    ///
    /// Errors: 1034 without read-your-writes, 1032 too many watches, 1101 cancelled, 1025 when the transaction is reset,
    /// dropped or fails before its commit, or the error of its commit.
    pub fn watch(&self, key: &[u8], done: Done<()>) -> Option<WatchId> {
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
        self.engine.cancel_watch(id);
    }

    /// Prepares another try after an error: waits a while, then resets the transaction, keeping the options that
    /// persist. An error that a new try cannot mend is answered at once, and the transaction is over (1025).
    pub fn on_error(&self, code: i32, done: Done<()>) {
        let refused = self.with(|state, core| {
            state.check_deadline();
            if let Some(error) = state.ended {
                return Some((done, error));
            }
            let delay = match crate::transaction::retry::delay(state, code, random()) {
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

    /// Bytes of keys and values in `[begin, end)`, system keys included: exact up to 100,000 keys, else an estimate. Makes
    /// no conflict, and does not see what the transaction wrote.
    ///
    /// # Errors
    /// 2005 where begin is above end, and whatever ended the transaction.
    pub fn get_estimated_range_size_bytes(&self, begin: &[u8], end: &[u8]) -> Result<i64> {
        if begin > end {
            return Err(Error::INVERTED_RANGE);
        }
        self.with(|state, _| state.check_usable())?;
        range_size::size(self.engine.core(), begin, end)
    }

    /// Keys that cut `[begin, end)` into pieces of about `chunk_size_bytes`, begin and end included. A piece of more than
    /// 100,000 keys or with values above a page is cut less exactly.
    ///
    /// # Errors
    /// As [`Transaction::get_estimated_range_size_bytes`]; 2000 for a size that is not positive, 2004 outside the legal
    /// range.
    pub fn get_range_split_points(&self, begin: &[u8], end: &[u8], chunk_size_bytes: i64) -> Result<Vec<Vec<u8>>> {
        if begin > end {
            return Err(Error::INVERTED_RANGE);
        }
        self.with(|state, _| {
            state.check_usable()?;
            let max_key = state.max_read_key();
            if begin > max_key || end > max_key { Err(Error::KEY_OUTSIDE_LEGAL_RANGE) } else { Ok(()) }
        })?;
        if chunk_size_bytes <= 0 {
            return Err(Error::CLIENT_INVALID_OPERATION);
        }
        range_size::split_points(self.engine.core(), begin, end, chunk_size_bytes)
    }

    /// Where a key is kept: one made-up address, since it is this process; none for a key past the system keys. It has a
    /// port, as from API version 630 on.
    ///
    /// # Errors
    /// Whatever ended the transaction.
    pub fn get_addresses_for_key(&self, key: &[u8]) -> Result<Vec<String>> {
        self.with(|state, _| state.check_usable())?;
        Ok((key < SYSTEM_END).then(|| status::ADDRESS.to_owned()).into_iter().collect())
    }

    /// Makes the transaction as new, options included; whatever is in flight answers 1025.
    pub fn reset(&self) {
        self.with(|state, core| state.reset(core));
    }

    /// Ends the transaction: every later call but `reset` answers 1025. A commit in flight may land all the same.
    pub fn cancel(&self) {
        self.with(|state, core| {
            state.end(Error::TRANSACTION_CANCELLED);
            state.fail_watches(core, Error::TRANSACTION_CANCELLED);
        });
    }
}

/// The value that a watch starts from; reading it conflicts as any read.
fn watched_value(state: &mut State, core: &Arc<Core>, key: &[u8]) -> Result<Option<Vec<u8>>> {
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
    let value = look(state, core, false, |view| Ok(view.get(key)?.map(|value| value.into_owned())))?;
    state.add_read_conflict_of(key);
    Ok(value)
}

/// From 0 to 1, for the spread of retries; not reproducible, and need not be.
fn random() -> f64 {
    (RandomState::new().hash_one(0u8) >> 11) as f64 / (1u64 << 53) as f64
}
