//! Statistics of a partition.

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::edit::partition_ids;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::keys::Counter;
use flatbed_store::transaction::{Attempt, Operation, Transaction};

/// Statistics of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Documents that are not deleted.
    pub doc_count: u64,
    /// Documents whose winner is a tombstone.
    pub doc_del_count: u64,
    /// Bytes of the winners' bodies as JSON text, and of their decoded attachments.
    pub external_size_bytes: u64,
    /// FoundationDB's estimate for its documents in bytes, without attachments and bodies in blobs.
    pub active_size_bytes: u64,
}

/// Performs `Reader::partition_info` of the layer.
#[boxed]
pub async fn partition_info(reader: &ReadHandle, partition: &str) -> Result<Option<PartitionInfo>> {
    reader.read(&mut ReadPartition { inner: &reader.inner, name: &reader.name, partition }).await
}

struct ReadPartition<'a> {
    inner: &'a Inner,
    name: &'a str,
    partition: &'a str,
}

impl Operation for ReadPartition<'_> {
    type Output = Option<PartitionInfo>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if !instance.record.partitioned {
            return Ok(None);
        }
        let counters = instance.buckets.begin_partition(trx, self.partition);
        let [begin, end] = partition_ids(self.partition).map(|id| instance.keys.document(&id).whole().begin);
        let size = trx.get_estimated_range_size_bytes(&begin, &end);
        let mut info = PartitionInfo::default();
        for (counter, value) in counters.await? {
            let sum = match counter {
                Counter::Documents => &mut info.doc_count,
                Counter::DeletedDocuments => &mut info.doc_del_count,
                Counter::ExternalBytes => &mut info.external_size_bytes,
                _ => continue,
            };
            // The counter of a single bucket may be negative.
            *sum = sum.wrapping_add_signed(value);
        }
        if info != PartitionInfo::default() {
            info.active_size_bytes = size.await?.max(0) as u64;
        }
        Ok(Some(info))
    }
}
