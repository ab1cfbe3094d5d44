//! User keys and values as LMDB records: lookups, scans in both directions, writes. [`StoredState`] adds the pending
//! clears, which readers see.
//!
//! [`StoredState`]: crate::disk::stored::StoredState

use std::borrow::Cow;
use std::ops::Bound;

use heed::types::Bytes;
use heed::{AnyTls, Database, RoTxn, RwTxn};

use crate::disk::clears::{Change, Clears};
use crate::disk::keys::{BadBucket, Bucket, BucketEntry, KeyPlace, META_TAG, USER_TAG, is_bucket, push_entry};
use crate::disk::packing::Packing;
use crate::disk::page::LeafRest;
use crate::disk::sealed::{seal, unseal, unseal_unchecked};

/// A storage error: LMDB's, or a value that only a damaged file can hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("LMDB: {0}")]
    Lmdb(#[from] heed::Error),
    #[error("a record does not match its checksum")]
    Record,
    #[error("a bucket of long keys is damaged")]
    Bucket,
    #[error("the record of a pending clear is damaged")]
    Clear,
}

impl StoreError {
    /// Returns whether only a damaged file explains the error.
    pub(crate) fn is_damage(&self) -> bool {
        use heed::MdbError::{Corrupted, CursorFull, PageNotFound};
        match self {
            StoreError::Lmdb(heed::Error::Mdb(Corrupted | CursorFull | PageNotFound)) => true,
            StoreError::Lmdb(_) => false,
            StoreError::Record | StoreError::Bucket | StoreError::Clear => true,
        }
    }
}

impl From<BadBucket> for StoreError {
    fn from(_: BadBucket) -> Self {
        StoreError::Bucket
    }
}

pub(crate) type StoreResult<T> = Result<T, StoreError>;

/// A key and its value from a scan; long keys are assembled, others borrowed.
pub(crate) type Pair<'t> = (Cow<'t, [u8]>, &'t [u8]);

/// The name prefix of the records of pending clears; the id follows, eight bytes big-endian.
const CLEAR: &str = "clear";
/// From this many remaining records on a page, reading them off the page and searching for the next one is faster than
/// asking LMDB for each.
const WALKED_LEAST: usize = 12;

/// The number of records that may still be removed, and their bytes.
pub(crate) struct Allowance {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

impl Allowance {
    /// Counts one record; false once the allowance is used up.
    fn take(&mut self, bytes: usize) -> bool {
        let is_left = self.records > 0 && self.bytes > 0;
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        is_left
    }
}

/// The one LMDB database: the engine's records under [`META_TAG`], user keys under [`USER_TAG`].
#[derive(Clone, Copy)]
pub(crate) struct Store {
    db: Database<'static, Bytes, Bytes>,
}

impl Store {
    pub(crate) fn new(db: Database<'static, Bytes, Bytes>) -> Store {
        Store { db }
    }

    /// Returns a record of the engine itself.
    pub(crate) fn meta<'t>(&self, txn: &'t RoTxn<'_, AnyTls>, name: &str) -> StoreResult<Option<&'t [u8]>> {
        let key = meta_key(name);
        self.db.get(txn, &key)?.map(|sealed| checked(&key, sealed)).transpose()
    }

    /// Returns a record of the engine itself as it is stored, with its checksum.
    pub(crate) fn sealed_meta<'t>(&self, txn: &'t RoTxn<'_, AnyTls>, name: &str) -> StoreResult<Option<&'t [u8]>> {
        Ok(self.db.get(txn, &meta_key(name))?)
    }

    pub(crate) fn put_meta(&self, txn: &mut RwTxn<'_>, name: &str, value: &[u8]) -> StoreResult<()> {
        let key = meta_key(name);
        Ok(self.db.put(txn, &key, &seal(&key, value))?)
    }

    /// Returns whether the database has no record at all.
    pub(crate) fn is_empty(&self, txn: &RoTxn<'_, AnyTls>) -> StoreResult<bool> {
        Ok(self.db.is_empty(txn)?)
    }

    /// Returns the value of a key, even if a pending clear hides it.
    pub(crate) fn record<'t>(&self, txn: &'t RoTxn<'_, AnyTls>, key: &[u8]) -> StoreResult<Option<&'t [u8]>> {
        let place = KeyPlace::of(key);
        let Some(sealed) = self.db.get(txn, place.lmdb_key())? else { return Ok(None) };
        let found = checked(place.lmdb_key(), sealed)?;
        match place.rest {
            Some(rest) => Ok(Bucket(found).find(rest)?),
            None => Ok(Some(found)),
        }
    }

    /// Returns all records from `begin` on, ascending.
    pub(crate) fn records_from<'t>(
        &self,
        txn: &'t RoTxn<'_, AnyTls>,
        begin: &[u8],
    ) -> StoreResult<RecordsAscending<'t>> {
        let place = KeyPlace::of(begin);
        let bounds = (Bound::Included(place.lmdb_key()), Bound::Unbounded);
        let range = self.db.range(txn, &bounds)?;
        let start = place.rest.map(|_| begin.to_vec());
        Ok(RecordsAscending { range, bucket: None, start, is_checked: true })
    }

    /// Returns all records after an LMDB key from a scan, ascending.
    pub(crate) fn records_behind<'t>(
        &self,
        txn: &'t RoTxn<'_, AnyTls>,
        lmdb_key: &[u8],
    ) -> StoreResult<RecordsAscending<'t>> {
        let bounds = (Bound::Excluded(lmdb_key), Bound::Unbounded);
        Ok(RecordsAscending { range: self.db.range(txn, &bounds)?, bucket: None, start: None, is_checked: true })
    }

    /// Returns all records below `end`, descending.
    pub(crate) fn records_below<'t>(
        &self,
        txn: &'t RoTxn<'_, AnyTls>,
        end: &[u8],
    ) -> StoreResult<RecordsDescending<'t>> {
        let place = KeyPlace::of(end);
        let upper = match place.rest {
            None => Bound::Excluded(place.lmdb_key()),
            Some(_) => Bound::Included(place.lmdb_key()),
        };
        let bounds = (Bound::Included(&[USER_TAG][..]), upper);
        let range = self.db.rev_range(txn, &bounds)?;
        Ok(RecordsDescending { range, bucket: None, end: place.rest.map(|_| end.to_vec()) })
    }

    /// Puts a record. A batch must put its records in key order.
    pub(crate) fn put(&self, txn: &mut RwTxn<'_>, packing: &mut Packing, key: &[u8], value: &[u8]) -> StoreResult<()> {
        let place = KeyPlace::of(key);
        match place.rest {
            None => Ok(packing.put(&self.db, txn, place.lmdb_key(), value)?),
            Some(rest) => self.rewrite_bucket(txn, place.lmdb_key(), rest, Some(value)),
        }
    }

    pub(crate) fn delete(&self, txn: &mut RwTxn<'_>, key: &[u8]) -> StoreResult<()> {
        let place = KeyPlace::of(key);
        match place.rest {
            None => {
                self.db.delete(txn, place.lmdb_key())?;
                Ok(())
            }
            Some(rest) => self.rewrite_bucket(txn, place.lmdb_key(), rest, None),
        }
    }

    /// Removes the records in `[begin, end)` within the allowance. Returns the begin of the rest.
    pub(crate) fn remove_some(
        &self,
        txn: &mut RwTxn<'_>,
        begin: &[u8],
        end: &[u8],
        allowance: &mut Allowance,
    ) -> StoreResult<Option<Vec<u8>>> {
        let mut left = None;
        let mut records = self.records_from(txn, begin)?.unchecked();
        let mut is_any = false;
        while let Some((key, value)) = records.next()?.filter(|(key, _)| key.as_ref() < end) {
            if !allowance.take(key.len() + value.len()) {
                left = Some(key.into_owned());
                break;
            }
            is_any = true;
        }
        drop(records);
        if is_any {
            self.remove_range(txn, begin, left.as_deref().unwrap_or(end))?;
        }
        Ok(left)
    }

    pub(crate) fn is_range_empty(&self, txn: &RoTxn<'_, AnyTls>, begin: &[u8], end: &[u8]) -> StoreResult<bool> {
        let first = self.records_from(txn, begin)?.unchecked().next()?;
        Ok(first.is_none_or(|(key, _)| key.as_ref() >= end))
    }

    pub(crate) fn clears(&self, txn: &RoTxn<'_, AnyTls>) -> StoreResult<Clears> {
        let prefix = meta_key(CLEAR);
        let mut found = Vec::new();
        for record in self.db.prefix_iter(txn, &prefix)? {
            let (key, sealed) = record?;
            let value = checked(key, sealed)?;
            let id = key.get(prefix.len()..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            let ends = value
                .split_first_chunk::<4>()
                .and_then(|(begin_len, ends)| ends.split_at_checked(u32::from_le_bytes(*begin_len) as usize));
            let (Some(id), Some((begin, end))) = (id, ends) else { return Err(StoreError::Clear) };
            found.push((id, begin.to_vec(), end.to_vec()));
        }
        Ok(Clears::from_records(found))
    }

    pub(crate) fn put_clears(&self, txn: &mut RwTxn<'_>, changes: Vec<Change>) -> StoreResult<()> {
        for (id, ends) in changes {
            let key = [&meta_key(CLEAR)[..], &id.to_be_bytes()].concat();
            match ends {
                // The length of a key is bounded far below 32 bits.
                Some((begin, end)) => {
                    let value = [&(begin.len() as u32).to_le_bytes()[..], &begin, &end].concat();
                    self.db.put(txn, &key, &seal(&key, &value))?;
                }
                None => {
                    self.db.delete(txn, &key)?;
                }
            }
        }
        Ok(())
    }

    fn remove_range(&self, txn: &mut RwTxn<'_>, begin: &[u8], end: &[u8]) -> StoreResult<()> {
        // Whole LMDB keys strictly between the two ends are removed by the cursor; a bucket at either end may be cut
        // in the middle and is rewritten.
        let (from, to) = (KeyPlace::of(begin), KeyPlace::of(end));
        for (place, lower_end) in [(&from, true), (&to, false)] {
            if place.rest.is_none() || (!lower_end && from.lmdb_key() == to.lmdb_key() && from.rest.is_some()) {
                continue;
            }
            let Some(sealed) = self.db.get(txn, place.lmdb_key())? else { continue };
            let bucket = checked(place.lmdb_key(), sealed)?;
            let mut kept = Vec::with_capacity(bucket.len());
            for (rest, value) in Bucket(bucket).entries()? {
                let at = (place.lmdb_key(), Some(rest));
                let cleared = at >= (from.lmdb_key(), from.rest) && at < (to.lmdb_key(), to.rest);
                if !cleared {
                    push_entry(&mut kept, rest, value);
                }
            }
            self.put_bucket(txn, place.lmdb_key(), &kept)?;
        }
        let lower = match from.rest {
            None => Bound::Included(from.lmdb_key()),
            Some(_) => Bound::Excluded(from.lmdb_key()),
        };
        if from.lmdb_key() < to.lmdb_key() {
            let range = (lower, Bound::Excluded(to.lmdb_key()));
            self.db.delete_range(txn, &range)?;
        }
        Ok(())
    }

    fn rewrite_bucket(
        &self,
        txn: &mut RwTxn<'_>,
        lmdb_key: &[u8],
        rest: &[u8],
        value: Option<&[u8]>,
    ) -> StoreResult<()> {
        let old = self.db.get(txn, lmdb_key)?.map(|sealed| checked(lmdb_key, sealed)).transpose()?;
        let old = old.unwrap_or_default();
        let mut new = Vec::with_capacity(old.len() + rest.len() + value.map_or(0, <[u8]>::len) + 8);
        let mut value = value;
        for (other, kept) in Bucket(old).entries()? {
            if other >= rest
                && let Some(value) = value.take()
            {
                push_entry(&mut new, rest, value);
            }
            if other != rest {
                push_entry(&mut new, other, kept);
            }
        }
        if let Some(value) = value {
            push_entry(&mut new, rest, value);
        }
        self.put_bucket(txn, lmdb_key, &new)
    }

    fn put_bucket(&self, txn: &mut RwTxn<'_>, lmdb_key: &[u8], bucket: &[u8]) -> StoreResult<()> {
        if bucket.is_empty() {
            self.db.delete(txn, lmdb_key)?;
        } else {
            self.db.put(txn, lmdb_key, &seal(lmdb_key, bucket))?;
        }
        Ok(())
    }
}

/// Returns the value of a record if its checksum matches.
#[inline]
fn checked<'t>(lmdb_key: &[u8], sealed: &'t [u8]) -> StoreResult<&'t [u8]> {
    unseal(lmdb_key, sealed).ok_or(StoreError::Record)
}

fn meta_key(name: &str) -> Vec<u8> {
    [&[META_TAG], name.as_bytes()].concat()
}

/// Takes the records after `last` on its page. Returns the last record taken, if `take` wants more.
fn walk<'t>(
    mut last: &'t [u8],
    behind: LeafRest<'t>,
    end: &[u8],
    take: &mut impl FnMut(&[u8], &[u8]) -> bool,
) -> StoreResult<Option<&'t [u8]>> {
    let is_all_below = user_part(behind.last_key()) < end;
    for (lmdb_key, sealed) in behind {
        let Some(sealed) = sealed.filter(|_| !is_bucket(lmdb_key)) else { break };
        // Before the comparison with the end: a damaged key must not end the walk early.
        let value = checked(lmdb_key, sealed)?;
        let key = user_part(lmdb_key);
        if (!is_all_below && key >= end) || take(key, value) {
            return Ok(None);
        }
        last = lmdb_key;
    }
    Ok(Some(last))
}

fn user_part(lmdb_key: &[u8]) -> &[u8] {
    lmdb_key.get(1..).unwrap_or_default()
}

pub(crate) struct RecordsAscending<'t> {
    range: heed::RoRange<'t, Bytes, Bytes>,
    bucket: Option<(&'t [u8], Bucket<'t>)>,
    /// A long start, which may cut the first bucket; `None` after the first record.
    start: Option<Vec<u8>>,
    is_checked: bool,
}

impl<'t> RecordsAscending<'t> {
    /// Ignores the checksums, for records that are removed or only counted.
    fn unchecked(self) -> Self {
        RecordsAscending { is_checked: false, ..self }
    }

    /// Gives the records below `end` to `take` until it returns true. [`RecordsAscending::next`] does the same for
    /// one record; this avoids the per-record checks, and reads pages with many records without LMDB. In that case it
    /// returns the LMDB key after which to continue.
    ///
    /// # Safety
    /// With `page_bytes`, LMDB's transaction must be a read transaction, and its pages must have that many bytes.
    pub(crate) unsafe fn for_each_below(
        &mut self,
        end: &[u8],
        map_page_bytes: Option<usize>,
        take: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> StoreResult<Option<&'t [u8]>> {
        let mut looked_at = None;
        loop {
            while self.start.is_some() || self.bucket.is_some() {
                let Some((key, value)) = self.next()? else { return Ok(None) };
                if key.as_ref() >= end || take(&key, value) {
                    return Ok(None);
                }
            }
            let Some((lmdb_key, sealed)) = self.range.next().transpose()? else { return Ok(None) };
            let value = checked(lmdb_key, sealed)?;
            let key = user_part(lmdb_key);
            if is_bucket(lmdb_key) {
                self.bucket = Some((key, Bucket(value)));
                continue;
            }
            if key >= end || take(key, value) {
                return Ok(None);
            }
            let Some(page_bytes) = map_page_bytes else { continue };
            let page = lmdb_key.as_ptr().addr().checked_div(page_bytes);
            if looked_at == page {
                continue;
            }
            looked_at = page;
            // SAFETY: the caller's promise holds here too; LMDB returned the key.
            let Some(behind) = (unsafe { LeafRest::of(lmdb_key, page_bytes) }) else { continue };
            if behind.len() >= WALKED_LEAST {
                return walk(lmdb_key, behind, end, take);
            }
        }
    }

    // Hot: called for every pair that is read.
    #[inline]
    pub(crate) fn next(&mut self) -> StoreResult<Option<Pair<'t>>> {
        loop {
            if let Some((head, bucket)) = &mut self.bucket {
                match bucket.next()? {
                    Some((rest, value)) => return Ok(Some((Cow::Owned([*head, rest].concat()), value))),
                    None => self.bucket = None,
                }
            }
            let Some((lmdb_key, sealed)) = self.range.next().transpose()? else { return Ok(None) };
            let value = if self.is_checked { checked(lmdb_key, sealed)? } else { unseal_unchecked(sealed) };
            let key = user_part(lmdb_key);
            let start = self.start.take();
            if !is_bucket(lmdb_key) {
                return Ok(Some((Cow::Borrowed(key), value)));
            }
            let mut bucket = Bucket(value);
            if let Some(below) = start.as_deref().and_then(|start| start.strip_prefix(key)) {
                let mut ahead = bucket.clone();
                while let Some((rest, _)) = ahead.next()? {
                    if rest >= below {
                        break;
                    }
                    bucket = ahead.clone();
                }
            }
            self.bucket = Some((key, bucket));
        }
    }
}

pub(crate) struct RecordsDescending<'t> {
    range: heed::RoRevRange<'t, Bytes, Bytes>,
    bucket: Option<(&'t [u8], Vec<BucketEntry<'t>>)>,
    /// A long end, which may cut the first bucket; `None` after the first record.
    end: Option<Vec<u8>>,
}

impl<'t> RecordsDescending<'t> {
    pub(crate) fn next(&mut self) -> StoreResult<Option<Pair<'t>>> {
        loop {
            if let Some((head, entries)) = &mut self.bucket {
                match entries.pop() {
                    Some((rest, value)) => return Ok(Some((Cow::Owned([*head, rest].concat()), value))),
                    None => self.bucket = None,
                }
            }
            let Some((lmdb_key, sealed)) = self.range.next().transpose()? else { return Ok(None) };
            let value = checked(lmdb_key, sealed)?;
            let key = user_part(lmdb_key);
            let end = self.end.take();
            if !is_bucket(lmdb_key) {
                return Ok(Some((Cow::Borrowed(key), value)));
            }
            let mut entries = Bucket(value).entries()?;
            if let Some(from) = end.as_deref().and_then(|end| end.strip_prefix(key)) {
                entries.truncate(entries.partition_point(|(rest, _)| *rest < from));
            }
            self.bucket = Some((key, entries));
        }
    }
}
