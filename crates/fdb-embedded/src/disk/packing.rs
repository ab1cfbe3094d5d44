//! Page packing: lets records that arrive in key order fill their pages.
//!
//! LMDB splits a full page in the middle, unless the new record is the page's last: then the old page stays full. A
//! program appends to several ranges (documents, changes, an index), and the records of the next range follow each of
//! them. While the first of those share a page with the end of a growing range, every page of the range stays half
//! empty. After many writes before one record, that record and its followers therefore move to a page of their own.
//! The move changes no stored data, and lasts until LMDB merges pages there.

use std::collections::HashMap;
use std::ops::Bound;

use heed::types::Bytes;
use heed::{Database, RwTxn};

use crate::disk::sealed::seal_into;

type Db = Database<'static, Bytes, Bytes>;

/// The longest LMDB key that is moved; beside a filler a longer one would not fit into a page.
const KEY_BYTES_MAX: usize = 500;
/// Bytes counted for a probe that finds a single new record, because not every record is probed.
const PROBE_BYTES: usize = 1 << 10;
/// Most bytes written between two probes.
const PAUSE_BYTES_MAX: usize = 16 << 10;
/// The number of records for which earlier writes are remembered.
const REMEMBERED_MAX: usize = 256;
/// Bytes of a page's header, and of a record's header with its slot in the page's table.
const PAGE_HEAD_BYTES: usize = 16;
const RECORD_HEAD_BYTES: usize = 8 + 2;

/// Adjacent new records of a batch, before a record that existed.
struct Run {
    /// The LMDB key of the record that follows.
    next: Vec<u8>,
    bytes: usize,
    is_settled: bool,
}

/// The places with many recent writes; see the module. Wrong contents cost page fill, but no correctness.
#[derive(Default)]
pub(crate) struct Packing {
    run: Option<Run>,
    /// Bytes written before an LMDB key, as far as they were probed.
    before: HashMap<Vec<u8>, usize>,
    /// Bytes until the next probe, and the length of the current pause.
    left: usize,
    pause: usize,
    /// Bytes of LMDB's pages; 0 before the first probe.
    page_bytes: usize,
    /// A reused buffer: the last value with its checksum.
    sealed: Vec<u8>,
}

/// The largest buffer that is reused, in bytes.
const SEALED_KEPT_BYTES: usize = 128 << 10;

impl Packing {
    /// Begins a batch in a new LMDB transaction.
    pub(crate) fn begin(&mut self) {
        self.end_run();
    }

    /// Puts a record whose key is in no bucket, with its checksum. Must be called in key order.
    pub(crate) fn put(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8], value: &[u8]) -> heed::Result<()> {
        let mut sealed = std::mem::take(&mut self.sealed);
        seal_into(&mut sealed, key, value);
        let put = self.put_sealed(db, txn, key, &sealed);
        if sealed.capacity() <= SEALED_KEPT_BYTES {
            self.sealed = sealed;
        }
        put
    }

    fn put_sealed(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8], value: &[u8]) -> heed::Result<()> {
        let bytes = key.len() + value.len() + RECORD_HEAD_BYTES;
        if self.run.as_ref().is_some_and(|run| key >= run.next.as_slice()) {
            self.end_run();
        }
        if let Some(run) = &mut self.run {
            db.put(txn, key, value)?;
            run.bytes += bytes;
            return self.settle(db, txn, key);
        }
        if self.left > bytes || key.len() > KEY_BYTES_MAX {
            self.left = self.left.saturating_sub(bytes);
            return db.put(txn, key, value);
        }
        let records = db.len(txn)?;
        db.put(txn, key, value)?;
        if db.len(txn)? > records {
            self.probe(db, txn, key, bytes)?;
        }
        Ok(())
    }

    /// Probes the record that follows a new one.
    fn probe(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8], bytes: usize) -> heed::Result<()> {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let Some((next, _)) = db.range(txn, &behind)?.next().transpose()? else { return Ok(()) };
        self.page_bytes = db.stat(txn)?.page_size as usize;
        let bytes = bytes.max(PROBE_BYTES) + self.before.get(next).copied().unwrap_or_default();
        self.run = Some(Run { next: next.to_vec(), bytes, is_settled: next.len() > KEY_BYTES_MAX });
        self.settle(db, txn, key)
    }

    /// Moves the records that follow the run to a page of their own once the run is longer than a page. `key` is its
    /// last key so far.
    fn settle(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8]) -> heed::Result<()> {
        match &mut self.run {
            Some(run) if !run.is_settled && run.bytes >= self.page_bytes && key.len() <= KEY_BYTES_MAX => {
                run.is_settled = true;
                part(db, txn, key, self.page_bytes)
            }
            _ => Ok(()),
        }
    }

    /// Ends the run: the next record lies past it.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        if run.is_settled {
            self.before.remove(&run.next);
            self.pause = 0;
        } else {
            if self.before.len() >= REMEMBERED_MAX {
                self.before.clear();
            }
            self.before.insert(run.next, run.bytes);
            self.pause = (2 * self.pause + PROBE_BYTES).min(PAUSE_BYTES_MAX);
        }
        self.left = self.pause;
    }
}

/// Ends the page of `key`, which was just put, with that record; the records that follow it on the page move to a new
/// one.
///
/// The new page must begin below all keys that may come between the two. A filler is therefore put just before the
/// following record; with both at half a page, LMDB begins a page with them. Then the filler is removed.
fn part(db: &Db, txn: &mut RwTxn<'_>, key: &[u8], page_bytes: usize) -> heed::Result<()> {
    let lifted = behind_on_page(db, txn, key, page_bytes)?;
    let Some((first, first_value)) = lifted.first() else { return Ok(()) };
    let Some(filler) = just_before(first).filter(|filler| filler.as_slice() > key) else { return Ok(()) };
    for (key, _) in &lifted {
        db.delete(txn, key)?;
    }
    let half_page = ((page_bytes - PAGE_HEAD_BYTES) / 2) & !1;
    let room = vec![0; half_page];
    let half = |key: &[u8]| room.get(..half_page.saturating_sub(key.len() + RECORD_HEAD_BYTES + 2)).unwrap_or_default();
    db.put(txn, &filler, half(&filler))?;
    db.put(txn, first, half(first))?;
    db.delete(txn, &filler)?;
    // From here on LMDB leaves the page alone, however little it holds: it merges pages only where it removes records.
    db.put(txn, first, first_value)?;
    for (key, value) in lifted.iter().skip(1) {
        db.put(txn, key, value)?;
    }
    Ok(())
}

type Record = (Vec<u8>, Vec<u8>);

/// Returns the records behind `key` that are on its page.
///
/// LMDB does not expose pages. The page of `key` was just written to, so it is in memory of its own, and its records
/// are less than a page apart. Records behind it were not written to yet in this transaction, because keys are put in
/// order: on another page they are far away, in the file's map. A wrong guess moves too many records and puts them
/// back.
fn behind_on_page(db: &Db, txn: &RwTxn<'_>, key: &[u8], page_bytes: usize) -> heed::Result<Vec<Record>> {
    let mut records = db.range(txn, &(Bound::Included(key), Bound::Unbounded))?;
    let Some((own, _)) = records.next().transpose()? else { return Ok(Vec::new()) };
    let at = own.as_ptr().addr();
    let (mut lifted, mut bytes) = (Vec::new(), 0);
    while let Some((key, value)) = records.next().transpose()? {
        bytes += key.len() + RECORD_HEAD_BYTES;
        if key.as_ptr().addr().abs_diff(at) >= page_bytes || bytes > page_bytes {
            break;
        }
        lifted.push((key.to_vec(), value.to_vec()));
    }
    Ok(lifted)
}

/// Returns a key below `key` with hardly any other key between them; `None` if there is none.
fn just_before(key: &[u8]) -> Option<Vec<u8>> {
    /// Few real keys that differ before their end have this many of the highest byte.
    const HIGHEST: [u8; 16] = [0xff; 16];
    let (&last, head) = key.split_last()?;
    match last.checked_sub(1) {
        None => Some(head.to_vec()),
        Some(below) => Some([head, &[below], &HIGHEST].concat()),
    }
}
