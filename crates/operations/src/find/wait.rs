//! Waits for an index that is being built.

use flatbed_databases::handles::ReadHandle;
use flatbed_databases::server::Inner;
use flatbed_mango::Index;
use flatbed_store::due::DueKind;
use flatbed_store::error::Result;
use flatbed_store::features::is_outdated;
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::FutureExt;

use crate::index_waits::{IndexWaits, UnbuiltIndexes, WaitingQuery};

pub(super) fn begin_to_wait(database: &ReadHandle, number: u64, index: &Index) -> Result<WaitingQuery> {
    let design = index.ddoc().unwrap_or_default();
    database.inner.state::<IndexWaits>().begin(&database.name, number, design, index.name())
}

pub(super) async fn wait_for(database: &ReadHandle, waiting: &mut WaitingQuery) -> Result<bool> {
    let ReadHandle { inner, name, .. } = database;
    let look = || async { database.read(&mut ReadUnbuilt { inner, name }).await }.boxed();
    waiting.wait(inner.state(), &look).await
}

struct ReadUnbuilt<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for ReadUnbuilt<'_> {
    type Output = UnbuiltIndexes;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<UnbuiltIndexes> {
        let record = &self.inner.resolve(trx, self.name).await?.record;
        // The builder gives indexes of an older collation other numbers.
        let is_outdated = is_outdated(record, self.inner.collation);
        if is_outdated {
            self.inner.due.note(DueKind::Indexes, self.name);
        }
        let is_unbuilt = |index: &&proto::Index| is_outdated || !index.readable;
        let numbers = record.indexes.iter().filter(is_unbuilt).map(|index| index.number).collect();
        Ok(UnbuiltIndexes { namespace: record.namespace, numbers })
    }
}
