//! The bound of a partition's size, CouchDB's `max_partition_size`.
//!
//! The sizes are read before a write, in a transaction for each partition. So a partition can exceed the bound by what
//! concurrent requests write, and by the request that reaches it.

use std::collections::{BTreeSet, HashSet};

use flatbed_databases::document::edit::{Edit, partition_of};
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_store::error::Result;

use crate::read::partition::partition_info;

/// The largest number of partitions whose sizes are read for a request. The bound does not hold for further ones.
const PARTITIONS_MAX: usize = 1_000;

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
        for partition in partitions.into_iter().take(PARTITIONS_MAX) {
            let info = partition_info(database, partition).await?;
            if info.is_some_and(|info| info.external_size_bytes >= bytes_max) {
                full.0.insert(partition.to_owned());
            }
        }
        Ok(full)
    }

    /// True if the edit adds to a full partition.
    pub fn refuses(&self, edit: &Edit<'_>) -> bool {
        enlarged(edit).is_some_and(|partition| self.0.contains(partition))
    }
}

/// The partition that an edit may enlarge. As in CouchDB, deletions and replicated revisions are always accepted.
fn enlarged<'e>(edit: &'e Edit<'_>) -> Option<&'e str> {
    partition_of(&edit.id).filter(|_| !edit.deleted && edit.history.is_none())
}
