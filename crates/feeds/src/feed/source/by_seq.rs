//! All changes in the order of commits: by-seq has that order, with one entry for each document.

use std::sync::Arc;

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::by_seq;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{BucketKeys, Counter, KeyRange};
use flatbed_store::merge::Shares;
use flatbed_store::transaction::Transaction;
use futures_util::future::{try_join, try_join_all};

use crate::feed::query::Scope;
use crate::feed::row::{ChangeRow, ChangesPage, change_row};
use crate::feed::source::{FeedPage, PendingCount, RowVerdict, Source, known_seq};
use crate::feed::tail::TailRow;

/// Limit up to which `pending` counts exactly: one answer of the storage.
const PENDING_EXACT_MAX: usize = 500;

/// The smallest number of entries to request from each of several ranges at once.
const COUNTED_AT_ONCE_MIN: usize = 16;

/// All changes of a database, or those of some documents, by a scan of by-seq.
pub struct BySeq {
    scope: Scope,
    active_only: bool,
    shares: Shares,
}

impl BySeq {
    pub(super) fn new(scope: Scope) -> BySeq {
        BySeq { scope, active_only: false, shares: Shares::default() }
    }

    pub(super) fn without_tombstones(self) -> BySeq {
        BySeq { active_only: true, ..self }
    }

    fn has(&self, row: &ChangeRow) -> bool {
        self.scope.has(&row.id) && !(self.active_only && row.deleted)
    }
}

impl Source for BySeq {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &FeedPage<'_>) -> Result<ChangesPage> {
        let cursor = page.cursor();
        if page.descending && cursor.is_some_and(|cursor| !instance.has_seq(&cursor)) {
            // The old database is gone; its feed must not end as if it had been read completely.
            return Err(Error::DatabaseNotFound);
        }
        // Requested with the entries, and awaited after them. All reads of a transaction have one read version, and
        // each commit writes its entries and its bucket's `last_seq` together. So no entry of the page lies behind the
        // newest sequence, and if the page is the last one, no other entry lies before it.
        let newest = instance.buckets.begin_last_seq(trx, instance.epoch_begin());
        let begin = cursor.filter(|_| !page.descending).map(|cursor| known_seq(instance, cursor));
        let Some(after) = begin.or(page.since(instance)) else {
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: newest.await?.into() });
        };
        let range = |bucket: &BucketKeys| {
            let mut range = bucket.by_seq_after(&after);
            if let Some(cursor) = cursor.filter(|_| page.descending) {
                range.end = bucket.by_seq(&cursor);
            }
            range
        };
        let ranges: Vec<_> = instance.buckets.all().iter().map(range).collect();
        if page.limit == 0 || ranges.iter().all(|range| range.begin >= range.end) {
            let last_seq = match page.descending {
                true => cursor.unwrap_or(newest.await?),
                false => after,
            };
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: last_seq.into() });
        }
        let most = page.rows_max();
        let is_filtered = self.scope != Scope::All || self.active_only;
        let limit = if is_filtered { most } else { most.min(usize::try_from(page.limit).unwrap_or(most)) };
        let (metrics, extent) = (&page.inner.metrics, (limit, page.descending));
        let row = |seq, value: &[u8]| change_row(seq, value, trx.clock());
        let read = by_seq::begin(trx, metrics, &instance.buckets, &ranges, extent, &self.shares, row);
        let (read, newest) = try_join(read, newest).await?;
        let read_all = read.is_all;
        self.shares = read.shares;
        let mut rows = read.rows;
        let stands = if page.descending { cursor.unwrap_or(newest) } else { after };
        let mut last_read = rows.last().map_or(stands, |row| row.seq);
        if is_filtered {
            rows.retain(|row| self.has(row));
        }
        rows.truncate(usize::try_from(page.limit).unwrap_or(usize::MAX));
        let full = rows.len() as u64 == page.limit;
        if let (true, Some(last)) = (full, rows.last()) {
            last_read = last.seq;
        }
        // At the end the feed is at the newest sequence, also if a filter dropped its row.
        let last_seq = if read_all && !full && !page.descending { newest.max(last_read) } else { last_read };
        page.complete(trx, instance, rows, read_all || full, last_seq).await
    }

    fn sees(&self, row: &TailRow) -> RowVerdict {
        if self.has(&row.row) { RowVerdict::Changed } else { RowVerdict::Other }
    }

    async fn pending(
        &self,
        trx: &Transaction,
        _: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        // A cursor of another incarnation means the beginning.
        let cursor = known_seq(instance, behind.cursor.seq());
        let ranges: Vec<_> = instance.buckets.all().iter().map(|bucket| bucket.by_seq_after(&cursor)).collect();
        pending_in(trx, instance, &ranges).await.map(Some)
    }
}

/// Counts the entries of all ranges, at most one for each document: see [`crate::feed::changes::Changes::pending`].
pub(super) async fn pending_in(trx: &Transaction, instance: &Instance, ranges: &[KeyRange]) -> Result<u64> {
    let (counted, bytes) = count(trx, ranges, PENDING_EXACT_MAX + 1).await?;
    if counted <= PENDING_EXACT_MAX as u64 {
        return Ok(counted);
    }
    let sizes = ranges.iter().map(|range| trx.get_estimated_range_size_bytes(&range.begin, &range.end));
    let sizes: Vec<_> = sizes.collect();
    let counters = [Counter::Documents, Counter::DeletedDocuments];
    let counters = counters.map(|counter| instance.buckets.begin_count(trx, counter));
    let mut all = 0;
    for counter in counters {
        all += counter.await?.max(0) as u64;
    }
    let size: i64 = try_join_all(sizes).await?.into_iter().sum();
    Ok(estimate(counted, bytes, size.max(0) as u64, all))
}

/// Estimates the entries in a range of `size` bytes, whose first `counted` entries take `bytes`, in a database of `all`
/// documents with one entry each. The result is at least `counted`, whatever size the storage reports.
fn estimate(counted: u64, bytes: u64, size: u64, all: u64) -> u64 {
    let entry_bytes = (bytes / counted.max(1)).max(1);
    (size / entry_bytes).clamp(counted, all.max(counted))
}

/// Counts the entries of all ranges and their bytes. Stops at `most` entries, plus some of the last pages. The reads
/// are snapshots, and first ask each range for an equal share.
async fn count(trx: &Transaction, ranges: &[KeyRange], most: usize) -> Result<(u64, u64)> {
    let mut limit = most.div_ceil(ranges.len().max(1)).max(COUNTED_AT_ONCE_MIN);
    let (mut count, mut bytes, mut rest) = (0, 0, ranges.to_vec());
    while count < most && !rest.is_empty() {
        let left = limit.min(most - count);
        let pages = try_join_all(rest.iter().map(|range| trx.range(range, true).page(left))).await?;
        let mut cut = Vec::new();
        for page in pages {
            count += page.len();
            bytes += page.iter().map(|row| row.key().len() + row.value().len()).sum::<usize>() as u64;
            cut.extend(page.rest);
        }
        (rest, limit) = (cut, limit.saturating_mul(2));
    }
    Ok((count as u64, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn estimates_are_never_below_what_was_counted(counted in 1..1_000_u64, bytes: u64, size: u64, all: u64) {
            let estimated = estimate(counted, bytes, size, all);
            prop_assert!(estimated >= counted && estimated <= all.max(counted));
        }
    }

    #[test]
    fn estimates_follow_the_size_of_entries() {
        assert_eq!(estimate(501, 501 * 60, 6_000_000, 200_000), 100_000);
        assert_eq!(estimate(501, 501 * 60, 6_000_000, 40_000), 40_000, "there are no more documents");
        assert_eq!(estimate(501, 501 * 60, 0, 40_000), 501, "the storage knows of none yet");
    }
}
