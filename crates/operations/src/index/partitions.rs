//! Document counts and sizes of each partition of a partitioned database.

use std::collections::BTreeMap;

use flatbed_databases::document::edit::partition_of;
use flatbed_store::error::Result;
use flatbed_store::keys::Counter;
use flatbed_store::records::Info;

use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, PendingWork, PurgedDocument};

/// The counters of a partition. The size of bodies is not among them, as attachments may be shared by documents of
/// several partitions.
pub const COUNTED: [Counter; 3] = [Counter::Documents, Counter::DeletedDocuments, Counter::ExternalBytes];

/// The sums of a partition, in the order of [`COUNTED`].
pub type PartitionSums = [i64; COUNTED.len()];

pub fn sums_of(info: &Info) -> PartitionSums {
    let [live, deleted] = if info.deleted { [0, 1] } else { [1, 0] };
    [live, deleted, info.external_bytes as i64]
}

/// The changes of one transaction, applied by one atomic ADD per counter.
#[derive(Default)]
pub struct Partitions {
    deltas: BTreeMap<String, PartitionSums>,
}

impl Partitions {
    fn add(&mut self, id: &str, old: Option<&Info>, new: Option<&Info>) {
        let Some(partition) = partition_of(id) else { return };
        let (old, new) = (old.map_or([0; 3], sums_of), new.map_or([0; 3], sums_of));
        let deltas = self.deltas.entry(partition.to_owned()).or_default();
        for (delta, (old, new)) in deltas.iter_mut().zip(old.into_iter().zip(new)) {
            *delta += new - old;
        }
    }
}

impl IndexMaintainer for Partitions {
    fn document<'a>(&'a mut self, _: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        self.add(change.id, change.old, Some(change.new));
        Ok(None)
    }

    fn purged<'a>(&'a mut self, _: &'a IndexContext<'a>, purged: &'a PurgedDocument<'a>) -> Result<PendingWork<'a>> {
        self.add(purged.id, Some(purged.old), None);
        Ok(None)
    }

    fn finish(&mut self, within: &IndexContext<'_>) -> Result<()> {
        for (partition, deltas) in &self.deltas {
            for (counter, delta) in COUNTED.into_iter().zip(*deltas) {
                if delta != 0 {
                    within.instance.buckets.add_of_partition(within.trx, partition, counter, delta)?;
                }
            }
        }
        Ok(())
    }
}
