//! The read calls: keys, ranges and sizes.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::key_space::{METADATA_VERSION_KEY, SYSTEM_END, read_key_bytes_max};
use crate::read::limits::{Limits, RangeOptions};
use crate::read::mapped::MappedRange;
use crate::read::range::{RangeRead, Rules};
use crate::read::range_size::SizeSource;
use crate::read::result::RangeResult;
use crate::read::selector::{KeySelector, get_key};
use crate::read::{mapped, range_size};
use crate::shared::core::Core;
use crate::shared::observer::KeyAccess;
use crate::shared::{status, timekeeper};
use crate::transaction::calls::Transaction;
use crate::transaction::look::{get, read_range, settle, view, view_stored};
use crate::transaction::special;
use crate::transaction::state::TransactionState;

impl Transaction {
    fn size_source(&self) -> SizeSource<'_> {
        SizeSource { versions: &self.core().versions, dir: &self.core().dir }
    }

    /// Does what a read from `begin` to `end` needs before the transaction is locked.
    fn prepare_read(&self, begin: &[u8], end: &[u8]) {
        if timekeeper::is_read(begin, end)
            && self.with(|state, _| state.read.is_none() && state.options.may_read_system_keys)
        {
            let core = self.core();
            timekeeper::prepare_read(&core.time_keeper, &core.queue, begin, end);
        }
    }

    /// Returns the value of a key, `None` if it has none. A key over the length limit has no value.
    ///
    /// # Errors
    /// 2004 outside of the legal range, 1036 if a versionstamp makes the value unknown, 1007 if the read version is
    /// too old, and the error that ended the transaction.
    pub fn get(&self, key: &[u8], snapshot: bool) -> Result<Option<Vec<u8>>> {
        self.prepare_read(key, key);
        self.with(|state, core| {
            if special::is_special(key) {
                state.deferred.map_or(Ok(()), Err)?;
                return special::get(state, self.handle(), key);
            }
            core.counters.reads.add(1);
            core.observe_read(KeyAccess::Read(key));
            state.check_usable()?;
            if key >= state.max_read_key() && key != METADATA_VERSION_KEY {
                return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            if key.len() > read_key_bytes_max(key) {
                return Ok(None);
            }
            let value = view(state, core, snapshot, |view, known| get(view, known, key))?;
            core.counters.bytes_read.add(value.as_ref().map_or(0, |value| key.len() + value.len()) as u64);
            state.cost.add_read(key.len() + value.as_ref().map_or(0, Vec::len));
            if !snapshot {
                state.add_read_conflict_of(key);
            }
            Ok(value)
        })
    }

    /// Resolves a selector; the empty key before the first, `\xff` (or `\xff\xff`) past the last.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_key(&self, selector: KeySelector<'_>, snapshot: bool) -> Result<Vec<u8>> {
        self.prepare_read(selector.key, selector.key);
        self.with(|state, core| {
            core.counters.key_reads.add(1);
            core.observe_read(KeyAccess::ReadRange(selector.key, selector.key));
            state.check_usable()?;
            let max_key = state.max_read_key();
            if selector.key > max_key {
                return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
            }
            let outcome = view(state, core, snapshot, |view, known| {
                let outcome = get_key(view, selector, max_key)?;
                if view.stored.is_some() {
                    known.add_selected(&selector.base(), selector.offset, &outcome.answer, max_key);
                }
                Ok(outcome)
            })?;
            Ok(settle(state, outcome, snapshot))
        })
    }

    /// Returns the pairs between two selectors, in order or in reverse.
    ///
    /// # Errors
    /// As [`Transaction::get`]; 2210, 2012 and 2000 for invalid limits and modes.
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
                return special::get_range(state, self.handle(), begin, end, limits, options.reverse);
            }
            core.counters.range_reads.add(1);
            core.observe_read(KeyAccess::ReadRange(begin.key, end.key));
            let Some(max_key) = check_range(state, begin, end, limits)? else { return Ok(RangeResult::default()) };
            let rules = match state.options.read_your_writes_disabled {
                true => Rules::Native,
                false => Rules::ReadYourWrites,
            };
            let mut read = RangeRead { begin, end, limits, reverse: options.reverse, rules, max_key };
            let rows_max = shorten(core, &mut read.limits);
            let result = match rows_max {
                Some(0) => RangeResult { more: read_nothing(state, core)?, ..RangeResult::default() },
                _ => read_range(state, core, read, options.snapshot)?,
            };
            count_page(core, rows_max, &result);
            core.counters.keys_read.add(result.pairs.len() as u64);
            core.counters.bytes_read.add(result.arena.len() as u64);
            state.cost.add_read(result.arena.len());
            Ok(result)
        })
    }

    /// Returns the pairs of an index and the records that a mapper derives from each; see [`MappedRange`].
    ///
    /// # Errors
    /// As [`Transaction::get_range`]; 2108 for a snapshot read and without read-your-writes, 2039 if it would read
    /// this transaction's writes, 2030, 2032, 2041, 2042 and 2043 for a mapper that is invalid or does not fit.
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
            let Some(max_key) = check_range(state, begin, end, limits)? else { return Ok(MappedRange::default()) };
            if options.snapshot || state.options.read_your_writes_disabled {
                return Err(Error::UNSUPPORTED_OPERATION);
            }
            let rules = Rules::ReadYourWrites;
            let mut index = RangeRead { begin, end, limits, reverse: options.reverse, rules, max_key };
            let rows_max = shorten(core, &mut index.limits);
            if rows_max == Some(0) {
                let mut nothing = MappedRange::default();
                nothing.index.more = read_nothing(state, core)?;
                count_page(core, rows_max, &nothing.index);
                return Ok(nothing);
            }
            let read = view_stored(state, core, |view| Ok(mapped::read(view, index, mapper)))??;
            count_page(core, rows_max, &read.answer.index);
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

    /// Returns the bytes of keys and values in `[begin, end)`, system keys included: exact up to 100,000 keys, else an
    /// estimate. It adds no conflict and ignores the transaction's writes.
    ///
    /// # Errors
    /// 2005 if begin is above end, and the error that ended the transaction.
    pub fn get_estimated_range_size_bytes(&self, begin: &[u8], end: &[u8]) -> Result<i64> {
        if begin > end {
            return Err(Error::INVERTED_RANGE);
        }
        self.with(|state, _| state.check_usable())?;
        let size = range_size::size(self.size_source(), begin, end)?;
        Ok(self.core().faults.on_size(size))
    }

    /// Returns keys that split `[begin, end)` into pieces of about `chunk_size_bytes`, begin and end included. Pieces
    /// are less exact above 100,000 keys and with values above a page.
    ///
    /// # Errors
    /// As [`Transaction::get_estimated_range_size_bytes`]; 2000 for a size that is not positive, 2004 outside of the
    /// legal range.
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
        let mut points = range_size::split_points(self.size_source(), begin, end, chunk_size_bytes)?;
        self.core().faults.on_split_points(&mut points);
        Ok(points)
    }

    /// Returns the address of a key: one fixed address, because this process stores all keys; none for a key past the
    /// system keys. The address has a port, as from API version 630 on.
    pub fn get_addresses_for_key(&self, key: &[u8]) -> Result<Vec<String>> {
        self.with(|state, _| state.check_usable())?;
        Ok((key < SYSTEM_END).then(|| status::ADDRESS.to_owned()).into_iter().collect())
    }
}

/// Lets a fault lower the rows of a page, which then sets `more` and conflicts with its rows alone, as at a limit.
/// Returns the remaining rows; 0: the page is empty, and nothing is read.
fn shorten(core: &Core, limits: &mut Limits) -> Option<u32> {
    let rows = core.faults.on_page(limits.rows)?;
    limits.rows = Some(rows);
    Some(rows)
}

/// Replaces the read of an empty page: it needs a read version and fails as any read, but conflicts with nothing.
/// Returns `more`.
fn read_nothing(state: &mut TransactionState, core: &Arc<Core>) -> Result<bool> {
    view_stored(state, core, |_| Ok(()))?;
    Ok(true)
}

/// Counts a page that a fault ended.
fn count_page(core: &Core, rows_max: Option<u32>, page: &RangeResult) {
    if rows_max.is_some_and(|rows| page.more && page.pairs.len() == rows as usize) {
        core.faults.count_page(page.pairs.len());
    }
}

/// Returns the end of the keys that a range read may see; `None` if its selectors are inverted, so that nothing is
/// between.
fn check_range(
    state: &mut TransactionState,
    begin: KeySelector<'_>,
    end: KeySelector<'_>,
    limits: Limits,
) -> Result<Option<&'static [u8]>> {
    state.check_usable()?;
    let max_key = state.max_read_key();
    if begin.key > max_key || end.key > max_key {
        return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
    }
    limits.check()?;
    Ok((!KeySelector::are_inverted(&begin, &end)).then_some(max_key))
}
