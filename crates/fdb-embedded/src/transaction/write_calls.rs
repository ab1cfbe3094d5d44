//! The write calls and the conflict range calls.

use crate::base::error::{Error, Result};
use crate::base::key_space::{METADATA_VERSION_KEY, cut_range, key_after, read_key_bytes_max};
use crate::transaction::calls::Transaction;
use crate::transaction::outgoing::{MUTATION_OVERHEAD, RANGE_OVERHEAD};
use crate::transaction::{special, write};

impl Transaction {
    /// Sets a key. Kept errors: 2004 outside of the legal range, 2102 a key over 10,000 bytes, 2103 a value over
    /// 100,000.
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

    /// Removes a key. Kept error: 2004 outside of the legal range. A key over the length limit is ignored.
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

    /// Removes the keys in `[begin, end)`. Kept errors: 2005 if begin is above end, 2004 outside of the legal range.
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

    /// Applies an atomic operation by its FDBMutationType number. Kept errors: 2018 for an unknown number, 2000 for a
    /// versionstamp whose offset does not fit, and those of [`Transaction::set`].
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
    /// 2005 if begin is above end. Kept: 2004 outside of the legal range.
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
}
