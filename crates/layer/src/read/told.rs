//! What the records of a document's revisions tell readers.
//!
//! A record may have 40,000 bytes of channels and grants, and a document thousands of revisions, all as its writers choose. So the records
//! are gone through newest first and no further than [`RECORDS_BYTES_MAX`], and of each only what is asked for is kept. What is
//! older than these is as if compaction had taken it, which may happen to any revision that is no leaf; leaves are read one by one.

use std::collections::HashMap;

use flatbed_revtree::RevId;

use crate::error::Result;
use crate::store::keys::{DocumentKeys, KeyRange, take_rev};
use crate::store::records::RevisionRecord;
use crate::store::transaction::Transaction;

/// Bytes of a document's records, about, that are gone through at most: of common ones 25,000, of the largest that there are 100.
pub(crate) const RECORDS_BYTES_MAX: u64 = if cfg!(test) { 50_000 } else { 4_000_000 };

/// The same of those that are read one by one behind them.
const NAMED_BYTES_MAX: u64 = if cfg!(test) { 500_000 } else { 16_000_000 };

/// How many of them are read at once.
const NAMED_AT_ONCE: usize = 256;

/// What a reader needs of a revision's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub deleted: bool,
    pub body_dropped: bool,
    /// Its end had come when the records were read.
    pub has_ended: bool,
    /// What the caller asks of it: that it is seen, say.
    pub is_given: bool,
}

/// What a caller asks of each record.
pub(crate) type Asked<'a> = &'a (dyn Fn(&RevisionRecord) -> bool + Sync);

impl Told {
    fn of(record: &[u8], now_ms: u64, asked: Asked<'_>) -> Result<Told> {
        let record = RevisionRecord::decode(record)?;
        let RevisionRecord { deleted, body_dropped, .. } = record;
        Ok(Told { deleted, body_dropped, has_ended: record.has_ended(now_ms), is_given: asked(&record) })
    }
}

/// What is known of the revisions of a document that were written here.
#[derive(Debug, Default)]
pub(crate) struct Records {
    told: HashMap<RevId, Told>,
    /// Of lower generations than this not all were read.
    complete_from: u64,
    bytes: u64,
}

impl Records {
    /// Reads those of revisions of this generation and of newer ones, as a snapshot; what has ended is as of a moment, in milliseconds
    /// of Unix time.
    pub(crate) async fn read(
        trx: &Transaction,
        keys: &DocumentKeys,
        from_generation: u64,
        now_ms: u64,
        asked: Asked<'_>,
    ) -> Result<Records> {
        let mut rest = Some(KeyRange { begin: keys.revisions_from(from_generation), end: keys.revisions().end });
        let prefix_bytes = keys.revisions().begin.len();
        let mut records = Records { complete_from: from_generation, ..Records::default() };
        while let Some(range) = rest {
            let page = trx.range(&range, true).reverse(true).reply().await?;
            let mut last = from_generation;
            for row in &page {
                let rev = take_rev(row.key().get(prefix_bytes..).unwrap_or_default())?.0;
                records.bytes += (row.key().len() + row.value().len()) as u64;
                last = rev.generation();
                records.told.insert(rev, Told::of(row.value(), now_ms, asked)?);
            }
            if !page.is_all() && records.bytes >= RECORDS_BYTES_MAX {
                records.complete_from = last.saturating_add(1);
                return Ok(records);
            }
            rest = page.rest;
        }
        Ok(records)
    }

    /// Reads those of revisions that were too old, one by one, as far as room goes: those behind are as if there were none.
    pub(crate) async fn complete<'r>(
        &mut self,
        trx: &Transaction,
        keys: &DocumentKeys,
        revs: impl IntoIterator<Item = &'r RevId>,
        now_ms: u64,
        asked: Asked<'_>,
    ) -> Result<()> {
        let unread =
            revs.into_iter().filter(|rev| rev.generation() < self.complete_from && !self.told.contains_key(rev));
        let unread: Vec<&RevId> = unread.collect();
        let mut bytes = 0;
        for revs in unread.chunks(NAMED_AT_ONCE) {
            let reads: Vec<_> = revs.iter().map(|rev| trx.get(&keys.revision(rev), true)).collect();
            for (rev, read) in revs.iter().zip(reads) {
                if let Some(record) = read.await? {
                    bytes += record.len() as u64;
                    self.told.insert((*rev).clone(), Told::of(&record, now_ms, asked)?);
                }
            }
            if bytes >= NAMED_BYTES_MAX {
                break;
            }
        }
        self.bytes += bytes;
        Ok(())
    }

    pub(crate) fn get(&self, rev: &RevId) -> Option<&Told> {
        self.told.get(rev)
    }

    /// Those that have ended.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &RevId> {
        self.told.iter().filter(|(_, told)| told.has_ended).map(|(rev, _)| rev)
    }

    /// From this generation on what came of each revision is known.
    pub(crate) fn known_from(&self) -> u64 {
        self.complete_from.saturating_sub(1)
    }

    /// Bytes that were read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
