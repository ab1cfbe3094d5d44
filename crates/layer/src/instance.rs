//! One instance of a database as this process knows it: its record, its keys, its field names, its followers.

use std::collections::HashSet;
use std::sync::Arc;

use flatbed_flatten::json::Value;
use tokio::sync::OnceCell;

use crate::error::Result;
use crate::fields::{Allocate, FIRST_ID, Fields, NAME_BYTES_MAX};
use crate::hub::Hub;
use crate::keys::Keys;
use crate::layer::{Inner, REVS_LIMIT};
use crate::proto::DatabaseRecord;
use crate::transaction;
use crate::updates::UpdatedKeys;
use crate::validate::Validators;

/// Most bytes in one value. FoundationDB allows 100,000; it recommends less.
pub(crate) const RUN_BYTES_MAX: u32 = 60_000;

/// Most names that one transaction gives ids to, so that it stays small.
const ALLOCATED_AT_ONCE_MAX: usize = 256;

/// One instance: a database that is deleted and created again is another one, with another namespace and nothing cached.
#[derive(Debug)]
pub(crate) struct Instance {
    pub name: String,
    pub record: DatabaseRecord,
    pub record_key: Vec<u8>,
    pub keys: Keys,
    pub updated: UpdatedKeys,
    pub fields: Fields,
    pub hub: Arc<Hub>,
    /// Those of this version of the record.
    pub validators: OnceCell<Validators>,
}

impl Instance {
    pub(crate) fn incarnation(&self) -> u64 {
        self.record.incarnation
    }

    /// How many revisions of each branch are kept, its leaf included.
    pub(crate) fn revs_limit(&self) -> u64 {
        if self.record.revs_limit == 0 { REVS_LIMIT } else { self.record.revs_limit }
    }

    /// Makes sure that the names in `members` are cached as far as the database may have ids for them: what stays
    /// unknown afterwards stands literally.
    pub(crate) async fn prepare_names<'b, 'v: 'b>(
        &self,
        inner: &Inner,
        bodies: impl Iterator<Item = &'b Value<'v>> + Send + Clone,
    ) -> Result<()> {
        let unknown = |instance: &Instance| {
            let view = instance.fields.view();
            let mut seen = HashSet::new();
            let mut unknown: Vec<String> = Vec::new();
            let room = (instance.record.field_ids_max as usize).saturating_sub(view.len());
            for body in bodies.clone() {
                for name in flatbed_flatten::unknown_names(body, &view) {
                    if unknown.len() == room {
                        return unknown;
                    }
                    if name.len() <= NAME_BYTES_MAX && seen.insert(name.to_owned()) {
                        unknown.push(name.to_owned());
                    }
                }
            }
            unknown
        };
        if unknown(self).is_empty() {
            inner.metrics.mapping_hits.add(1);
            return Ok(());
        }
        inner.metrics.mapping_misses.add(1);
        let _alone = self.fields.allocation.lock().await;
        // Looked up again for each transaction: who held the lock, or another server, may have allocated the same names.
        loop {
            // Before the look: what another task enters after it comes with the allocation's own load.
            let known_until = FIRST_ID + self.fields.len() as u64;
            let mut names = unknown(self);
            names.truncate(ALLOCATED_AT_ONCE_MAX);
            if names.is_empty() {
                return Ok(());
            }
            let mut allocate = Allocate {
                keys: &self.keys,
                namespace: self.record.namespace,
                record_key: &self.record_key,
                names: &names,
                known_until,
                ids_max: u64::from(self.record.field_ids_max),
                attempted: 0,
            };
            let done = transaction::write(&inner.db, &inner.metrics, &mut allocate).await?;
            // Another instance: the transaction that writes the documents finds out too, and begins anew.
            let Some((entered, allocated)) = done else { return Ok(()) };
            inner.metrics.field_ids_allocated.add(allocated);
            if entered.is_empty() {
                return Ok(());
            }
            self.fields.enter(known_until, &entered);
        }
    }

    /// Loads the names that other processes have allocated since.
    pub(crate) async fn reload_names(&self, inner: &Inner) -> Result<()> {
        struct Load<'a>(&'a Keys, u64);
        impl transaction::Operation for Load<'_> {
            type Output = Vec<String>;
            async fn attempt(
                &mut self,
                trx: &transaction::Transaction,
                _: transaction::Attempt,
            ) -> Result<Vec<String>> {
                crate::fields::load(trx, self.0, self.1).await
            }
        }
        let from = FIRST_ID + self.fields.len() as u64;
        let names = transaction::read(&inner.db, &inner.metrics, &mut Load(&self.keys, from)).await?;
        // None, where another task has loaded them since the caller looked: whoever misses one still finds out then.
        self.fields.enter(from, &names);
        Ok(())
    }
}

/// What the cache of databases holds for a name: valid as long as `\xff/metadataVersion` is `seen`.
#[derive(Debug, Clone)]
pub(crate) struct Cached {
    pub seen: Vec<u8>,
    pub instance: Arc<Instance>,
}
