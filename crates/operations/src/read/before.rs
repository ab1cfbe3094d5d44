//! Counts the documents before the start of a scan.

use async_recursion::async_recursion as boxed;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_revtree::DESIGN_IDS;
use flatbed_store::error::Result;
use flatbed_store::keys::{Counter, KeyRange};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::future::try_join4;

use crate::read::all_docs::{AllDocs, AllDocsQuery, of_partition, whole_range};

/// Limit of the ids and of the counters of partitions that are read.
const COUNTED_MAX: Limit<usize> = Limit::new(1_000, 20);

impl AllDocs {
    /// Counts the documents before the start of a scan, in the order of the scan and without deleted ones. For other
    /// partitions than the scan's it adds up their counters. `None` if there are too many partitions, or too many ids
    /// before the start, within the partition of a scan of one: more than 1,000, or more than fit one reply of
    /// FoundationDB.
    ///
    /// # Errors
    /// [`flatbed_store::error::Error::DatabaseNotFound`], and those of the storage.
    #[boxed]
    pub async fn rows_before(&self) -> Result<Option<u64>> {
        let (inner, name) = (&self.database.inner, &self.database.name);
        self.database.read(&mut RowsBefore { inner, name, query: &self.query }).await
    }
}

struct RowsBefore<'a> {
    inner: &'a Inner,
    name: &'a str,
    query: &'a AllDocsQuery,
}

impl Operation for RowsBefore<'_> {
    type Output = Option<u64>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<u64>> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let Some(partition) = self.query.partition.as_deref().filter(|_| instance.record.partitioned) else {
            let (all, walked) = (instance.keys.all_docs(), whole_range(&instance.keys, self.query));
            let before = match self.query.descending {
                true => KeyRange { begin: walked.end, end: all.end },
                false => KeyRange { begin: all.begin, end: walked.begin },
            };
            return count(trx, before).await;
        };
        let (keys, buckets) = (&instance.keys, &instance.buckets);
        let (ids, walked) = (of_partition(keys, partition), whole_range(keys, self.query));
        let descending = self.query.descending;
        let place = if descending { walked.end } else { walked.begin };
        // All ids before the start.
        let own = KeyRange { begin: ids.begin.clone(), end: place.clamp(ids.begin, ids.end) };
        let (first, behind) = DESIGN_IDS;
        // No partition starts where its ids do.
        let behind = if partition > first { behind } else { first };
        let designs = KeyRange { begin: keys.all_docs_entry(first), end: keys.all_docs_entry(behind) };
        let total = async {
            match descending {
                true => buckets.begin_count(trx, Counter::Documents).await.map(Some),
                false => Ok(None),
            }
        };
        let others = buckets.begin_partitions_before(trx, partition, COUNTED_MAX.get());
        let (own, designs, others, total) = try_join4(count(trx, own), count(trx, designs), others, total).await?;
        let (Some(own), Some(designs), Some(others)) = (own, designs, others) else { return Ok(None) };
        let before = own + designs + others;
        Ok(Some(match total {
            Some(total) => (total.max(0) as u64).saturating_sub(before),
            None => before,
        }))
    }
}

/// Counts the keys of a range; `None` if they are over the limit.
async fn count(trx: &Transaction, range: KeyRange) -> Result<Option<u64>> {
    if range.begin >= range.end {
        return Ok(Some(0));
    }
    let count = trx.range(&range, true).first(COUNTED_MAX.get()).await?.len();
    Ok((count < COUNTED_MAX.get()).then_some(count as u64))
}
