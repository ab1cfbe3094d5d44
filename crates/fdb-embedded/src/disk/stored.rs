//! The stored pairs as a reader sees them: the records that no pending clear hides.

use heed::{AnyTls, RoTxn};

use crate::disk::clears::Clears;
use crate::disk::failure::DiskFailure;
use crate::disk::store::{Pair, RecordsAscending, RecordsDescending, Store, StoreResult};

/// One state of the database on disk.
#[derive(Clone, Copy)]
pub(crate) struct StoredState<'t> {
    pub(crate) store: Store,
    pub(crate) txn: &'t RoTxn<'t, AnyTls>,
    pub(crate) clears: &'t Clears,
    /// The page size if the transaction only reads, so that its records are in the file's map; else `None`.
    pub(crate) map_page_bytes: Option<usize>,
    /// Hears of damage that a read finds. `None`: the caller reports it.
    pub(crate) failure: Option<&'t DiskFailure>,
}

impl<'t> StoredState<'t> {
    pub(crate) fn get(&self, key: &[u8]) -> StoreResult<Option<&'t [u8]>> {
        if self.clears.hiding(key).is_some() {
            return Ok(None);
        }
        self.noted(self.store.record(self.txn, key))
    }

    /// Reports damage.
    #[inline]
    fn noted<T>(&self, done: StoreResult<T>) -> StoreResult<T> {
        if let (Err(error), Some(failure)) = (&done, self.failure) {
            failure.note_read(error);
        }
        done
    }

    pub(crate) fn ascend(&self, begin: &[u8]) -> StoreResult<Ascend<'t>> {
        let records = self.noted(self.store.records_from(self.txn, begin))?;
        Ok(Ascend { stored: *self, records, hidden: self.clears.at_or_above(begin) })
    }

    pub(crate) fn descend(&self, end: &[u8]) -> StoreResult<Descend<'t>> {
        let records = self.noted(self.store.records_below(self.txn, end))?;
        Ok(Descend { stored: *self, records, hidden: self.clears.below(end) })
    }
}

/// A walk over stored pairs, in either direction.
pub(crate) trait Cursor<'t>: Sized {
    /// Starts at a key; a descending cursor excludes it.
    fn place(stored: &StoredState<'t>, from: &[u8]) -> StoreResult<Self>;
    fn next(&mut self) -> StoreResult<Option<Pair<'t>>>;
}

impl<'t> Cursor<'t> for Ascend<'t> {
    fn place(stored: &StoredState<'t>, from: &[u8]) -> StoreResult<Self> {
        stored.ascend(from)
    }

    fn next(&mut self) -> StoreResult<Option<Pair<'t>>> {
        self.next()
    }
}

impl<'t> Cursor<'t> for Descend<'t> {
    fn place(stored: &StoredState<'t>, from: &[u8]) -> StoreResult<Self> {
        stored.descend(from)
    }

    fn next(&mut self) -> StoreResult<Option<Pair<'t>>> {
        self.next()
    }
}

pub(crate) struct Ascend<'t> {
    stored: StoredState<'t>,
    records: RecordsAscending<'t>,
    /// The next pending clear that may hide a record.
    hidden: Option<(&'t [u8], &'t [u8])>,
}

impl<'t> Ascend<'t> {
    /// Gives the pairs below `end` to `take` until it returns true.
    pub(crate) fn for_each_below(mut self, end: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> bool) -> StoreResult<()> {
        if self.hidden.is_none() {
            let done = self.walk_below(end, &mut take);
            return self.stored.noted(done);
        }
        while let Some((key, value)) = self.next()? {
            if key.as_ref() >= end || take(&key, value) {
                break;
            }
        }
        Ok(())
    }

    /// The same where no pending clear hides a record.
    fn walk_below(&mut self, end: &[u8], take: &mut impl FnMut(&[u8], &[u8]) -> bool) -> StoreResult<()> {
        let StoredState { store, txn, map_page_bytes, .. } = self.stored;
        // SAFETY: the field's invariant is the function's requirement.
        while let Some(last) = unsafe { self.records.for_each_below(end, map_page_bytes, take) }? {
            self.records = store.records_behind(txn, last)?;
        }
        Ok(())
    }

    // Hot: called for every pair that is read.
    #[inline]
    pub(crate) fn next(&mut self) -> StoreResult<Option<Pair<'t>>> {
        loop {
            let found = self.records.next();
            let Some(pair) = self.stored.noted(found)? else { return Ok(None) };
            if self.hidden.is_some_and(|(_, end)| end <= pair.0.as_ref()) {
                self.hidden = self.stored.clears.at_or_above(&pair.0);
            }
            match self.hidden {
                Some((begin, end)) if begin <= pair.0.as_ref() => {
                    // The range may hide thousands of records; a search skips them at once.
                    self.records = self.stored.noted(self.stored.store.records_from(self.stored.txn, end))?;
                }
                _ => return Ok(Some(pair)),
            }
        }
    }
}

pub(crate) struct Descend<'t> {
    stored: StoredState<'t>,
    records: RecordsDescending<'t>,
    /// The next pending clear, downwards, that may hide a record.
    hidden: Option<(&'t [u8], &'t [u8])>,
}

impl<'t> Descend<'t> {
    pub(crate) fn next(&mut self) -> StoreResult<Option<Pair<'t>>> {
        loop {
            let found = self.records.next();
            let Some(pair) = self.stored.noted(found)? else { return Ok(None) };
            // Only the last range that begins at or below the key can hide it.
            while self.hidden.is_some_and(|(begin, _)| begin > pair.0.as_ref()) {
                self.hidden = self.hidden.and_then(|(begin, _)| self.stored.clears.below(begin));
            }
            match self.hidden {
                Some((begin, end)) if pair.0.as_ref() < end => {
                    self.records = self.stored.noted(self.stored.store.records_below(self.stored.txn, begin))?;
                    self.hidden = self.stored.clears.below(begin);
                }
                _ => return Ok(Some(pair)),
            }
        }
    }
}
