//! All changes of a database, in the order of commits.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::feed::query::{ChangesQuery, Documents, Scope, Since};
use crate::feed::row::{ChangeRow, ChangesPage, change_row};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::read::all_docs::count_keys;
use crate::read::get::{last_seq, show_documents};
use crate::store::keys::{Counter, KeyRange};
use crate::store::records::decode_counter;
use crate::store::seq::Seq;
use crate::store::transaction::{Attempt, Operation, Transaction, page_of};

/// Rows of a page without documents.
pub(super) const PAGE_ROWS_MAX: usize = 2_000;

/// Rows of a page with documents; it ends early at [`crate::read::get::READ_BYTES_MAX`].
pub(super) const PAGE_DOCUMENTS_MAX: usize = 200;

/// Up to here `pending` is counted.
const PENDING_EXACT_MAX: usize = 10_000;

/// About what a by-seq row takes, for the estimate of `pending` beyond that.
const ROW_BYTES: u64 = 100;

pub(in crate::feed) struct Page<'a> {
    pub(in crate::feed) inner: &'a Inner,
    pub(in crate::feed) name: &'a str,
    pub(in crate::feed) query: &'a ChangesQuery,
    pub(in crate::feed) cursor: Option<Seq>,
    pub(in crate::feed) limit: u64,
}

impl Operation for Page<'_> {
    type Output = (Arc<Instance>, ChangesPage);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let newest = last_seq(trx, &instance).await?;
        if self.query.descending && self.cursor.is_some_and(|cursor| cursor.incarnation() != instance.incarnation()) {
            // What is left of the old one is gone: this must not end as if all had been read.
            return Err(Error::DatabaseNotFound);
        }
        let (range, at) = self.range(&instance, newest);
        let done = |rows, at_end, last_seq| Ok((instance.clone(), ChangesPage { rows, at_end, last_seq }));
        if self.limit == 0 || range.begin >= range.end {
            return done(Vec::new(), true, at);
        }
        let most = if self.query.extras.has_documents() { PAGE_DOCUMENTS_MAX } else { PAGE_ROWS_MAX };
        let limit =
            if self.query.scope != Scope::All { most } else { most.min(usize::try_from(self.limit).unwrap_or(most)) };
        self.inner.metrics.by_seq_reads.add(1);
        let page = trx.get_range(&page_of(&range, limit, self.query.descending), 1, true).await?;
        self.inner.metrics.by_seq_rows.add(page.len() as u64);
        let read_all = !page.more() && page.len() < limit;
        let mut last_read = at;
        let mut full = false;
        let mut rows = Vec::with_capacity(page.len());
        for entry in &page {
            last_read = instance.keys.by_seq_parse(entry.key())?;
            let row = change_row(last_read, entry.value())?;
            if self.query.scope.has(&row.id) {
                rows.push(row);
                if rows.len() as u64 == self.limit {
                    full = true;
                    break;
                }
            }
        }
        drop(page);
        // At the end the feed stands at the newest sequence, whatever a filter passed.
        let last_seq = if read_all && !full && !self.query.descending { newest.max(last_read) } else { last_read };
        self.with_documents(trx, &instance, rows, read_all || full, last_seq).await
    }
}

impl Page<'_> {
    /// What is to be read, and where the feed stands before it.
    fn range(&self, instance: &Instance, newest: Seq) -> (KeyRange, Seq) {
        let incarnation = instance.incarnation();
        let zero = Seq::zero(incarnation);
        let of_this = |seq: Seq| if seq.incarnation() == incarnation { seq } else { zero };
        let since = match self.query.since {
            Since::Beginning => zero,
            Since::Now => newest,
            Since::After(seq) => of_this(seq),
        };
        let mut range = instance.keys.by_seq_after(&since);
        if self.query.descending {
            if let Some(cursor) = self.cursor {
                range.end = instance.keys.by_seq(&of_this(cursor));
            }
            return (range, self.cursor.unwrap_or(newest));
        }
        let at = self.cursor.map_or(since, of_this);
        (instance.keys.by_seq_after(&at), at)
    }

    pub(super) async fn with_documents(
        &self,
        trx: &Transaction,
        instance: &Arc<Instance>,
        mut rows: Vec<ChangeRow>,
        mut at_end: bool,
        mut last_seq: Seq,
    ) -> Result<(Arc<Instance>, ChangesPage)> {
        if self.query.extras.leaves {
            for row in rows.iter_mut().filter(|row| row.lacks_leaves()) {
                row.read_leaves(trx, instance).await?;
            }
        } else {
            rows.iter_mut().for_each(|row| row.leaves.truncate(1));
        }
        if self.query.extras.has_documents()
            && show_documents(
                trx,
                self.inner,
                instance,
                &mut rows,
                self.query.extras.documents == Documents::WithConflicts,
            )
            .await?
        {
            at_end = false;
            last_seq = rows.last().map_or(last_seq, |row| row.seq);
        }
        Ok((instance.clone(), ChangesPage { rows, at_end, last_seq }))
    }
}

pub(in crate::feed) struct Pending<'a> {
    pub(in crate::feed) inner: &'a Inner,
    pub(in crate::feed) name: &'a str,
    pub(in crate::feed) cursor: Seq,
}

impl Operation for Pending<'_> {
    type Output = u64;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if self.cursor.incarnation() != instance.incarnation() {
            return Ok(0);
        }
        let range = instance.keys.by_seq_after(&self.cursor);
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
        let estimate = bytes.await?.max(0) as u64 / ROW_BYTES;
        Ok(estimate.clamp(counted as u64, all.max(counted as u64)))
    }
}
