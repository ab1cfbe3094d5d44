//! The bound of a partition's size, CouchDB's `max_partition_size`.
//!
//! The sizes are read before a write, those of many partitions in one transaction. So a partition can exceed the bound
//! by what concurrent requests write, and by the request that reaches it.

use std::collections::{BTreeSet, HashSet};

use flatbed_databases::document::edit::{Edit, partition_of};
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::keys::Counter;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::future::try_join_all;

/// The largest number of partitions whose sizes are read for a request. The bound does not hold for further ones.
const PARTITIONS_MAX: usize = 1_000;

/// The largest number of partitions whose sizes one transaction reads, all at once.
const PARTITIONS_AT_ONCE: usize = 100;

/// Partitions that take no documents.
#[derive(Debug, Default)]
pub struct FullPartitions(HashSet<String>);

impl FullPartitions {
    /// Finds the full partitions among those that the edits of these places enlarge.
    pub async fn of(
        database: &WriteHandle,
        instance: &Instance,
        edits: &[Edit<'_>],
        places: &[usize],
    ) -> Result<FullPartitions> {
        let mut full = FullPartitions::default();
        let bytes_max = database.inner.sizes.partition();
        if bytes_max == 0 || !instance.record.partitioned {
            return Ok(full);
        }
        let edits = places.iter().filter_map(|at| edits.get(*at));
        let partitions: BTreeSet<&str> = edits.filter_map(enlarged).collect();
        let partitions: Vec<&str> = partitions.into_iter().take(PARTITIONS_MAX).collect();
        for partitions in partitions.chunks(PARTITIONS_AT_ONCE) {
            let mut sizes = ReadSizes { inner: &database.inner, name: &database.name, partitions };
            let sizes = database.read_about(&mut sizes).await?;
            let are_full = partitions.iter().zip(sizes).filter(|(_, bytes)| *bytes >= bytes_max);
            full.0.extend(are_full.map(|(partition, _)| (*partition).to_owned()));
        }
        Ok(full)
    }

    /// True if the edit adds to a full partition.
    pub fn refuses(&self, edit: &Edit<'_>) -> bool {
        enlarged(edit).is_some_and(|partition| self.0.contains(partition))
    }
}

/// Reads the external sizes of partitions, in bytes.
struct ReadSizes<'a> {
    inner: &'a Inner,
    name: &'a str,
    partitions: &'a [&'a str],
}

impl Operation for ReadSizes<'_> {
    type Output = Vec<u64>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u64>> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let reads: Vec<_> =
            self.partitions.iter().map(|partition| instance.buckets.begin_partition(trx, partition)).collect();
        let counters = try_join_all(reads).await?;
        let bytes_of = |counters: &Vec<(Counter, i64)>| {
            let bytes = counters.iter().filter(|(counter, _)| *counter == Counter::ExternalBytes);
            // The counter of a single bucket may be negative.
            bytes.fold(0_i64, |sum, (_, value)| sum.wrapping_add(*value)).max(0) as u64
        };
        Ok(counters.iter().map(bytes_of).collect())
    }
}

/// The partition that an edit may enlarge. As in CouchDB, deletions and replicated revisions are always accepted.
fn enlarged<'e>(edit: &'e Edit<'_>) -> Option<&'e str> {
    partition_of(&edit.id).filter(|_| !edit.deleted && edit.history.is_none())
}
