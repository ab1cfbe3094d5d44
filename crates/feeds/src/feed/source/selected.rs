//! A feed of a selector index: the entries of by-seq whose documents the selector takes, in the order of commits. Other
//! entries are not read.
//!
//! A shared row names the indexes that took the change, so a follower reads no document. Rows older than the index do
//! not name it, so a feed begins with a page. When the design document that defines the index changes, a page is read,
//! which finds out whether the index is still the same.

use std::sync::Arc;

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::index::selector::definition::IndexName;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::transaction::Transaction;

use crate::feed::row::{ChangeRow, ChangesPage, change_row};
use crate::feed::source::by_seq::pending_in;
use crate::feed::source::{FeedPage, PendingCount, RowVerdict, Source, known_seq};
use crate::feed::tail::TailRow;

/// The index that a feed began with.
struct BoundIndex {
    number: u64,
    /// The design document that defines it.
    design: String,
}

pub struct BySelector {
    name: Arc<IndexName>,
    active_only: bool,
    known: Option<BoundIndex>,
}

impl BySelector {
    pub(super) fn new(name: Arc<IndexName>, active_only: bool) -> BySelector {
        BySelector { name, active_only, known: None }
    }

    /// Returns the index's number, if the feed has begun.
    pub(super) fn known(&self) -> Option<u64> {
        self.known.as_ref().map(|known| known.number)
    }

    /// Returns the index's number, which stays the same for the whole feed.
    pub(super) fn number(&mut self, inner: &Inner, instance: &Instance) -> Result<u64> {
        let found = self.name.find(&instance.record, inner.collation)?;
        match &self.known {
            Some(known) if known.number != found.number => Err(Refusal::IndexGone.into()),
            Some(known) => Ok(known.number),
            None => {
                self.known = Some(BoundIndex { number: found.number, design: found.source.clone() });
                Ok(found.number)
            }
        }
    }

    fn has(&self, row: &ChangeRow) -> bool {
        !(self.active_only && row.deleted)
    }
}

impl Source for BySelector {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &FeedPage<'_>) -> Result<ChangesPage> {
        let number = self.number(page.inner, instance)?;
        let cursor = page.cursor();
        if page.descending && cursor.is_some_and(|cursor| !instance.has_seq(&cursor)) {
            // The old database is gone; its feed must not end as if it had been read completely.
            return Err(Error::DatabaseNotFound);
        }
        // It has the read version of the entries, so no entry lies behind it.
        let newest = instance.buckets.begin_last_seq(trx, instance.epoch_begin());
        let begin = cursor.filter(|_| !page.descending).map(|cursor| known_seq(instance, cursor));
        let Some(after) = begin.or(page.since(instance)) else {
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: newest.await?.into() });
        };
        let mut range = instance.keys.index_changes_after(number, &after);
        if let Some(cursor) = cursor.filter(|_| page.descending) {
            range.end = instance.keys.index_change(number, &cursor);
        }
        if page.limit == 0 || range.begin >= range.end {
            let last_seq = match page.descending {
                true => cursor.unwrap_or(newest.await?),
                false => after,
            };
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: last_seq.into() });
        }
        let most = page.rows_max();
        let limit = if self.active_only { most } else { most.min(usize::try_from(page.limit).unwrap_or(most)) };
        let entries = trx.range(&range, true).reverse(page.descending).page(limit);
        let (entries, newest) = (entries.await?, newest.await?);
        page.inner.metrics.selector_index_reads.add(1);
        page.inner.metrics.selector_index_rows.add(entries.len() as u64);
        let read_all = entries.is_all();
        let mut rows = Vec::with_capacity(entries.len());
        for entry in &entries {
            let seq = instance.keys.index_change_seq(entry.key())?;
            rows.push(change_row(seq, entry.value(), trx.clock())?);
        }
        let stands = if page.descending { cursor.unwrap_or(newest) } else { after };
        let mut last_read = rows.last().map_or(stands, |row| row.seq);
        rows.retain(|row| self.has(row));
        rows.truncate(usize::try_from(page.limit).unwrap_or(usize::MAX));
        let full = rows.len() as u64 == page.limit;
        if let (true, Some(last)) = (full, rows.last()) {
            last_read = last.seq;
        }
        // At the end the feed is at the newest sequence, also if the index does not have its row.
        let last_seq = if read_all && !full && !page.descending { newest.max(last_read) } else { last_read };
        page.complete(trx, instance, rows, read_all || full, last_seq).await
    }

    fn sees(&self, row: &TailRow) -> RowVerdict {
        let Some(known) = &self.known else { return RowVerdict::Unknown };
        if row.row.id == known.design {
            return RowVerdict::Unknown;
        }
        let is_taken = row.channels.selected.contains(&known.number);
        if is_taken && self.has(&row.row) { RowVerdict::Changed } else { RowVerdict::Other }
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        let number = self.name.find(&instance.record, inner.collation)?.number;
        let cursor = known_seq(instance, behind.cursor.seq());
        pending_in(trx, instance, &[instance.keys.index_changes_after(number, &cursor)]).await.map(Some)
    }
}
