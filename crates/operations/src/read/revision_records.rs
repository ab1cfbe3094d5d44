//! The parts of revision records that readers need.
//!
//! A record may have 40,000 bytes of channels and grants, and a document thousands of revisions, all chosen by its
//! writers. So records are scanned newest first up to [`RECORDS_BYTES_MAX`], and only the needed parts are kept. Older
//! revisions count as removed by compaction, which may happen to any revision that is not a leaf. Leaves are read one
//! by one.

use std::collections::HashMap;

use flatbed_databases::limits::Limit;
use flatbed_revtree::RevId;
use flatbed_store::error::Result;
use flatbed_store::keys::{DocumentKeys, KeyRange, take_rev};
use flatbed_store::records::RevisionRecord;
use flatbed_store::transaction::Transaction;

/// Approximate bytes of a document's records to scan: 25,000 common records, or 100 of the largest.
pub const RECORDS_BYTES_MAX: Limit<u64> = Limit::new(4_000_000, 50_000);

/// As [`RECORDS_BYTES_MAX`], for the records that are read one by one afterwards.
const NAMED_BYTES_MAX: Limit<u64> = Limit::new(16_000_000, 500_000);

const NAMED_AT_ONCE: usize = 256;

/// The needed parts of a revision's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFacts {
    pub deleted: bool,
    pub body_dropped: bool,
    /// True if it had expired when the records were read.
    pub has_ended: bool,
    /// True if it passes the caller's check, such as visibility.
    pub is_given: bool,
}

pub type RecordCheck<'a> = &'a (dyn Fn(&RevisionRecord) -> bool + Sync);

impl RecordFacts {
    fn of(record: &[u8], now_ms: u64, asked: RecordCheck<'_>) -> Result<RecordFacts> {
        let record = RevisionRecord::decode(record)?;
        let RevisionRecord { deleted, body_dropped, .. } = record;
        Ok(RecordFacts { deleted, body_dropped, has_ended: record.has_ended(now_ms), is_given: asked(&record) })
    }
}

/// Records of a document's revisions that were written here.
#[derive(Debug, Default)]
pub struct Records {
    told: HashMap<RevId, RecordFacts>,
    complete_from: u64,
    bytes: u64,
}

impl Records {
    /// Reads the records of this generation and newer ones, as a snapshot. Expiry is judged at `now_ms`, in
    /// milliseconds of Unix time.
    pub async fn read(
        trx: &Transaction,
        keys: &DocumentKeys,
        from_generation: u64,
        now_ms: u64,
        asked: RecordCheck<'_>,
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
                records.told.insert(rev, RecordFacts::of(row.value(), now_ms, asked)?);
            }
            if !page.is_all() && records.bytes >= RECORDS_BYTES_MAX.get() {
                records.complete_from = last.saturating_add(1);
                return Ok(records);
            }
            rest = page.rest;
        }
        Ok(records)
    }

    /// Reads the records of named older revisions one by one up to the limit: further ones count as absent.
    pub async fn complete<'r>(
        &mut self,
        trx: &Transaction,
        keys: &DocumentKeys,
        revs: impl IntoIterator<Item = &'r RevId>,
        now_ms: u64,
        asked: RecordCheck<'_>,
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
                    self.told.insert((*rev).clone(), RecordFacts::of(&record, now_ms, asked)?);
                }
            }
            if bytes >= NAMED_BYTES_MAX.get() {
                break;
            }
        }
        self.bytes += bytes;
        Ok(())
    }

    pub fn get(&self, rev: &RevId) -> Option<&RecordFacts> {
        self.told.get(rev)
    }

    /// Returns the expired revisions.
    pub fn ended(&self) -> impl Iterator<Item = &RevId> {
        self.told.iter().filter(|(_, told)| told.has_ended).map(|(rev, _)| rev)
    }

    /// Returns the generation from which all descendants are known.
    pub fn known_from(&self) -> u64 {
        self.complete_from.saturating_sub(1)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
