//! Changes in the order of commits: the key of by-seq is the order, and each document stands there once.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::feed::query::Scope;
use crate::feed::row::{ChangesPage, change_row};
use crate::feed::source::{Page, Seen, Source, of_incarnation};
use crate::feed::tail::TailRow;
use crate::instance::Instance;
use crate::read::all_docs::count_keys;
use crate::read::get::last_seq;
use crate::store::keys::{Counter, KeyRange};
use crate::store::records::decode_counter;
use crate::store::seq::Seq;
use crate::store::transaction::{Transaction, page_of};

/// Up to here `pending` is counted.
const PENDING_EXACT_MAX: usize = 10_000;

/// About what a by-seq row takes, for the estimate of `pending` beyond that.
const ENTRY_BYTES: u64 = 100;

/// All changes of a database, or those of some documents, by a walk over all.
pub(crate) struct BySeq {
    scope: Scope,
}

impl BySeq {
    pub(super) fn new(scope: Scope) -> BySeq {
        BySeq { scope }
    }

    /// What is to be read, and where the feed stands before it.
    fn range(page: &Page<'_>, instance: &Instance, newest: Seq) -> (KeyRange, Seq) {
        let incarnation = instance.incarnation();
        let since = page.since(newest);
        if page.descending {
            let mut range = instance.keys.by_seq_after(&since);
            if let Some(cursor) = page.cursor {
                range.end = instance.keys.by_seq(&of_incarnation(incarnation, cursor));
            }
            return (range, page.cursor.unwrap_or(newest));
        }
        let at = page.cursor.map_or(since, |cursor| of_incarnation(incarnation, cursor));
        (instance.keys.by_seq_after(&at), at)
    }
}

impl Source for BySeq {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &Page<'_>) -> Result<ChangesPage> {
        let newest = last_seq(trx, instance).await?;
        if page.descending && page.cursor.is_some_and(|cursor| cursor.incarnation() != instance.incarnation()) {
            // What is left of the old one is gone: this must not end as if all had been read.
            return Err(Error::DatabaseNotFound);
        }
        let (range, at) = BySeq::range(page, instance, newest);
        if page.limit == 0 || range.begin >= range.end {
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: at });
        }
        let most = page.rows_max();
        let is_filtered = self.scope != Scope::All;
        let limit = if is_filtered { most } else { most.min(usize::try_from(page.limit).unwrap_or(most)) };
        let metrics = &page.inner.metrics;
        metrics.by_seq_reads.add(1);
        let entries = trx.get_range(&page_of(&range, limit, page.descending), 1, true).await?;
        metrics.by_seq_rows.add(entries.len() as u64);
        let read_all = !entries.more() && entries.len() < limit;
        let mut last_read = at;
        let mut full = false;
        let mut rows = Vec::with_capacity(entries.len());
        for entry in &entries {
            last_read = instance.keys.by_seq_parse(entry.key())?;
            let row = change_row(last_read, entry.value())?;
            if self.scope.has(&row.id) {
                rows.push(row);
                if rows.len() as u64 == page.limit {
                    full = true;
                    break;
                }
            }
        }
        drop(entries);
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
        let range = instance.keys.by_seq_after(&cursor);
        let counted = count_keys(trx, &range, PENDING_EXACT_MAX + 1).await?;
        if counted <= PENDING_EXACT_MAX {
            return Ok(counted as u64);
        }
        let bytes = trx.get_estimated_range_size_bytes(&range.begin, &range.end);
        let mut all = 0;
        for counter in [Counter::Documents, Counter::DeletedDocuments] {
            let count = trx.get(&instance.keys.counter(counter), true).await?;
            all += decode_counter(count.as_deref())?.max(0) as u64;
        }
        let estimate = bytes.await?.max(0) as u64 / ENTRY_BYTES;
        Ok(estimate.clamp(counted as u64, all.max(counted as u64)))
    }
}
