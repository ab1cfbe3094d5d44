//! Sees to it that records which come in order fill their pages.
//!
//! LMDB cuts a full page in the middle, unless the new record is the page's last: then the old page stays full. A program
//! writes several ranges at their ends (documents, what changed, an index), and behind each lie the records of the next
//! range. While the first of those share a page with the end of what grows, every page of the range stays half empty. So
//! where much is written before one record, that record and those behind it are given a page of their own, which does not
//! change what is stored, and lasts until LMDB joins pages there.

use std::collections::HashMap;
use std::ops::Bound;

use heed::types::Bytes;
use heed::{Database, RwTxn};

type Db = Database<'static, Bytes, Bytes>;

/// Records with longer LMDB keys are left where they are: beside a filler such a key would not fit into a page.
const KEY_BYTES_MAX: usize = 500;
/// A look that finds one record alone counts for as many bytes, as not every record is looked at.
const LOOK_BYTES: usize = 1 << 10;
/// So much is put at most before the next look.
const PAUSE_BYTES_MAX: usize = 16 << 10;
/// So many records are remembered that something was written before.
const REMEMBERED_MAX: usize = 256;
/// Bytes of a page's head, and of a record's head with its place in the page's table.
const PAGE_HEAD_BYTES: usize = 16;
const RECORD_HEAD_BYTES: usize = 8 + 2;

/// New records of a batch, next to each other, before a record that was there.
struct Run {
    /// The LMDB key of the record behind.
    next: Vec<u8>,
    bytes: usize,
    is_settled: bool,
}

/// Where much is being written; see the module. What it knows may be wrong: then pages are less full, and nothing else.
#[derive(Default)]
pub(crate) struct Packing {
    run: Option<Run>,
    /// Bytes written before an LMDB key, as far as they were looked at.
    before: HashMap<Vec<u8>, usize>,
    /// Bytes to be put before the next look, and the last such pause.
    left: usize,
    pause: usize,
    /// Bytes of LMDB's pages; 0 before the first look.
    page_bytes: usize,
}

impl Packing {
    /// A batch begins, in another LMDB transaction than the last.
    pub(crate) fn begin(&mut self) {
        self.end_run();
    }

    /// Puts a record, whose key belongs into no bucket. Called in the order of the keys.
    pub(crate) fn put(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8], value: &[u8]) -> heed::Result<()> {
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
            self.look(db, txn, key, bytes)?;
        }
        Ok(())
    }

    /// Looks what lies behind a record that was just added.
    fn look(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8], bytes: usize) -> heed::Result<()> {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let Some((next, _)) = db.range(txn, &behind)?.next().transpose()? else { return Ok(()) };
        self.page_bytes = db.stat(txn)?.page_size as usize;
        let bytes = bytes.max(LOOK_BYTES) + self.before.get(next).copied().unwrap_or_default();
        self.run = Some(Run { next: next.to_vec(), bytes, is_settled: next.len() > KEY_BYTES_MAX });
        self.settle(db, txn, key)
    }

    /// Gives what lies behind the run a page of its own once the run is longer than a page. `key` is its last so far.
    fn settle(&mut self, db: &Db, txn: &mut RwTxn<'_>, key: &[u8]) -> heed::Result<()> {
        match &mut self.run {
            Some(run) if !run.is_settled && run.bytes >= self.page_bytes && key.len() <= KEY_BYTES_MAX => {
                run.is_settled = true;
                part(db, txn, key, self.page_bytes)
            }
            _ => Ok(()),
        }
    }

    /// The next record to be put lies past the run.
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
            self.pause = (2 * self.pause + LOOK_BYTES).min(PAUSE_BYTES_MAX);
        }
        self.left = self.pause;
    }
}

/// Lets the page of `key`, which was just put, end with it: what lies behind it on the page goes to a new one.
///
/// The new page has to begin below all that may come between the two, so a filler is put there first, just before the
/// record behind; with both of half a page, LMDB begins a page with them. Then the filler goes again.
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
    // From here on LMDB leaves the page be, however little is on it: it joins pages where it removes records.
    db.put(txn, first, first_value)?;
    for (key, value) in lifted.iter().skip(1) {
        db.put(txn, key, value)?;
    }
    Ok(())
}

type Record = (Vec<u8>, Vec<u8>);

/// The records behind `key` that lie on its page.
///
/// LMDB does not tell pages apart, but that of `key` was just written to, so it lies in memory of its own, and what is on
/// it is less than a page away. What lies behind was not written to yet in this transaction, as keys are put in order: if it
/// is on another page, that one is in the file's map, far away. Where this is wrong too much is lifted, and put back.
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

/// A key below `key` that hardly any other lies between; `None` where there is none.
fn just_before(key: &[u8]) -> Option<Vec<u8>> {
    /// No key of a program's that differs before its end is likely to have as many of the highest byte.
    const HIGHEST: [u8; 16] = [0xff; 16];
    let (&last, head) = key.split_last()?;
    match last.checked_sub(1) {
        None => Some(head.to_vec()),
        Some(below) => Some([head, &[below], &HIGHEST].concat()),
    }
}
