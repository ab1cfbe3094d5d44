//! The process that a group's progress names as its holder.

use flatbed_databases::handles::ReadHandle;
use flatbed_store::error::Result;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::group::steps::{begin_standing, group_of};
use crate::view_updates::GroupId;

/// Releases a group if this process holds it, at any position. It needs no job, since a group whose last attempt failed
/// may have none.
pub struct Release<'a> {
    pub reader: &'a ReadHandle,
    pub id: GroupId,
}

impl Operation for Release<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let ReadHandle { inner, name, .. } = self.reader;
        let instance = inner.resolve_for_write(trx, name).await?;
        if group_of(&instance, self.id).is_none() {
            return Ok(());
        }
        let (progress, ..) = begin_standing(trx, &instance, self.id.1, true).await?;
        if let Some(mut progress) = progress.filter(|progress| progress.holder == inner.process) {
            progress.holder.clear();
            trx.set(&instance.keys.index_progress(self.id.1), &progress.encode_to_vec());
        }
        Ok(())
    }
}
