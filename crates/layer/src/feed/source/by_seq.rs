//! Changes in the order of commits: the key of by-seq is the order, and each document stands there once.

use std::sync::Arc;

use futures_util::future::try_join_all;

use crate::error::{Error, Result};
use crate::feed::query::Scope;
use crate::feed::row::{ChangesPage, change_row};
use crate::feed::source::{Page, Seen, Source, of_incarnation};
use crate::feed::tail::TailRow;
use crate::instance::Instance;
use crate::read::all_docs::count_keys;
use crate::store::by_seq;
use crate::store::keys::{BucketKeys, Counter};
use crate::store::merge::Shares;
use crate::store::seq::Seq;
use crate::store::transaction::Transaction;

/// Up to here `pending` is counted.
const PENDING_EXACT_MAX: usize = 10_000;

/// About what a by-seq row takes, for the estimate of `pending` beyond that.
const ENTRY_BYTES: u64 = 100;

/// All changes of a database, or those of some documents, by a walk over all.
pub(crate) struct BySeq {
    scope: Scope,
    shares: Shares,
}

impl BySeq {
    pub(super) fn new(scope: Scope) -> BySeq {
        BySeq { scope, shares: Shares::default() }
    }

    /// Where the feed stands before a page, and behind what it reads.
    fn place(page: &Page<'_>, incarnation: u64, newest: Seq) -> (Seq, Seq) {
        let since = page.since(newest);
        if page.descending {
            return (page.cursor.unwrap_or(newest), since);
        }
        let at = page.cursor.map_or(since, |cursor| of_incarnation(incarnation, cursor));
        (at, at)
    }
}

impl Source for BySeq {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &Page<'_>) -> Result<ChangesPage> {
        let incarnation = instance.incarnation();
        let newest = instance.buckets.begin_last_seq(trx, incarnation).await?;
        if page.descending && page.cursor.is_some_and(|cursor| cursor.incarnation() != incarnation) {
            // What is left of the old one is gone: this must not end as if all had been read.
            return Err(Error::DatabaseNotFound);
        }
        let (at, after) = BySeq::place(page, incarnation, newest);
        let range = |bucket: &BucketKeys| {
            let mut range = bucket.by_seq_after(&after);
            if let Some(cursor) = page.cursor.filter(|_| page.descending) {
                range.end = bucket.by_seq(&cursor);
            }
            range
        };
        let ranges: Vec<_> = instance.buckets.all().iter().map(range).collect();
        if page.limit == 0 || ranges.iter().all(|range| range.begin >= range.end) {
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: at });
        }
        let most = page.rows_max();
        let is_filtered = self.scope != Scope::All;
        let limit = if is_filtered { most } else { most.min(usize::try_from(page.limit).unwrap_or(most)) };
        let (metrics, extent) = (&page.inner.metrics, (limit, page.descending));
        let read = by_seq::begin(trx, metrics, &instance.buckets, &ranges, extent, &self.shares, change_row).await?;
        let read_all = read.is_all;
        self.shares = read.shares;
        let mut last_read = at;
        let mut full = false;
        let mut rows = Vec::with_capacity(read.rows.len());
        for row in read.rows {
            last_read = row.seq;
            if self.scope.has(&row.id) {
                rows.push(row);
                if rows.len() as u64 == page.limit {
                    full = true;
                    break;
                }
            }
        }
        // At the end the feed stands at the newest sequence, whatever a filter passed.
        let last_seq = if read_all && !full && !page.descending { newest.max(last_read) } else { last_read };
        page.complete(trx, instance, rows, read_all || full, last_seq).await
    }

    fn sees(&self, row: &TailRow) -> Seen {
        if self.scope.has(&row.row.id) { Seen::Changed } else { Seen::Other }
    }

    async fn pending(&self, trx: &Transaction, instance: &Instance, cursor: Seq) -> Result<u64> {
        if cursor.incarnation() != instance.incarnation() {
            return Ok(0);
        }
        let ranges: Vec<_> = instance.buckets.all().iter().map(|bucket| bucket.by_seq_after(&cursor)).collect();
        let counted = ranges.iter().map(|range| count_keys(trx, range, PENDING_EXACT_MAX + 1));
        let counted: usize = try_join_all(counted).await?.into_iter().sum();
        if counted <= PENDING_EXACT_MAX {
            return Ok(counted as u64);
        }
        let bytes = ranges.iter().map(|range| trx.get_estimated_range_size_bytes(&range.begin, &range.end));
        let bytes: Vec<_> = bytes.collect();
        let mut all = 0;
        for counter in [Counter::Documents, Counter::DeletedDocuments] {
            all += instance.buckets.begin_count(trx, counter).await?.max(0) as u64;
        }
        let bytes: i64 = try_join_all(bytes).await?.into_iter().sum();
        let estimate = bytes.max(0) as u64 / ENTRY_BYTES;
        Ok(estimate.clamp(counted as u64, all.max(counted as u64)))
    }
}
