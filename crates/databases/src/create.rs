//! The creation and deletion of databases.

use flatbed_store::access;
use flatbed_store::buckets::Buckets;
use flatbed_store::database_name::is_replicator_name;
use flatbed_store::error::{Error, Result};
use flatbed_store::features::{check_record, is_replicator, name_features, name_replicator};
use flatbed_store::keys::FORMAT_VERSION;
use flatbed_store::namespaces::Block;
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::record_log::note_change;
use flatbed_store::sync_function::{ChannelsOptions, set_function};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::updated::{note_event, note_replicator, touch_last_seq};
use prost::Message;

use crate::actor::Actor;
use crate::confirmed::DatabaseSecurity;
use crate::instance::incarnation_of;
use crate::server::Inner;

pub struct Create<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub actor: &'a Actor,
    pub run_bytes: u32,
    pub field_ids_max: u32,
    pub leaves_only: bool,
    /// 0: none.
    pub shards: u32,
    /// 0: none.
    pub hinted_shards: u32,
    pub partitioned: bool,
    pub channels: Option<&'a ChannelsOptions>,
    pub security: &'a [u8],
    pub created_at_ms: u64,
    pub once: Once,
    /// The namespace of the last attempts.
    pub namespace: Option<ReservedNamespace>,
}

#[derive(Debug, Clone, Copy)]
pub struct ReservedNamespace {
    number: u64,
    epoch: u32,
    /// The number of namespaces that the transaction takes, and the block that remains.
    taken: Option<(u64, Block)>,
}

impl Create<'_> {
    /// Keeps the remaining block; to be called after the commit.
    pub fn keep_namespaces(&self) {
        if let Some((taken, left)) = self.namespace.and_then(|given| given.taken) {
            self.inner.namespaces.keep(taken, left, &self.inner.clock);
        }
    }

    /// Takes a reserved namespace of this process, or else reserves a block in the store.
    async fn take_namespace(&mut self, trx: &Transaction, epoch: u32, next: Option<u64>) -> Result<u64> {
        // An attempt with an unknown result cannot commit beside a later one: both leave a mark.
        if let Some(given) = self.namespace.filter(|given| given.epoch == epoch && given.taken.is_none()) {
            return Ok(given.number);
        }
        if let Some(number) = self.inner.namespaces.take(epoch) {
            self.namespace = Some(ReservedNamespace { number, epoch, taken: None });
            return Ok(number);
        }
        let number = match next {
            Some(next) => next,
            None => next_namespace(trx.get(&self.inner.keys.next_namespace(), false).await?.as_deref())?,
        };
        let taken = self.inner.namespaces.wanted(&self.inner.clock);
        let left = Block { epoch, from: number + 1, until: number + taken };
        trx.set(&self.inner.keys.next_namespace(), &proto::FieldId { id: left.until }.encode_to_vec());
        self.namespace = Some(ReservedNamespace { number, epoch, taken: Some((taken, left)) });
        Ok(number)
    }
}

fn next_namespace(bytes: Option<&[u8]>) -> Result<u64> {
    bytes.map_or(Ok(1), |bytes| Ok(proto::FieldId::decode(bytes)?.id))
}

impl Operation for Create<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Another client may have deleted it since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            // It is unknown which attempt committed, and so which block remains.
            self.namespace = None;
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let namespace_key = self.inner.keys.next_namespace();
        let (found, next) =
            (trx.get(&key, false), (!self.inner.namespaces.has_some()).then(|| trx.get(&namespace_key, false)));
        let writer = self.inner.writer(trx, self.actor);
        let (writer, epoch) = futures_util::try_join!(writer, self.inner.epoch_for_write(trx))?;
        // A new database has no `_security` yet.
        writer.admitted_by(trx, &DatabaseSecurity::new(&[], 0)).await?;
        if found.await?.is_some() {
            return Err(Error::DatabaseExists);
        }
        let next = match next {
            Some(next) => Some(next_namespace(next.await?.as_deref())?),
            None => None,
        };
        let namespace = self.take_namespace(trx, epoch, next).await?;
        let mut record = proto::DatabaseRecord {
            format_version: FORMAT_VERSION,
            namespace,
            incarnation: incarnation_of(namespace, epoch),
            run_bytes: self.run_bytes,
            field_ids_max: self.field_ids_max,
            created_at_ms: self.created_at_ms,
            leaves_only: self.leaves_only,
            shards: self.shards,
            hinted_shards: self.hinted_shards,
            partitioned: self.partitioned,
            security: self.security.to_vec(),
            ..proto::DatabaseRecord::default()
        };
        if let Some(ChannelsOptions { sync }) = self.channels {
            let keys = self.inner.keys.namespace(namespace);
            set_function(trx, &keys, &mut record, sync.as_deref(), self.created_at_ms);
        }
        if is_replicator_name(self.name) {
            name_replicator(&mut record);
            note_replicator(trx, &self.inner.keys, self.name, true)?;
        }
        name_features(&mut record);
        trx.set(&key, &record.encode_to_vec());
        // Written at creation, so that the deletion of a database without writes changes it as well and wakes
        // followers.
        let buckets = Buckets::of_record(&self.inner.keys.namespace(namespace), &record, self.inner.writer);
        touch_last_seq(trx, buckets.own(), epoch, 0)?;
        // No cache has an absent database; the deletion of an earlier one of the name has invalidated all.
        note_event(trx, &self.inner.keys, epoch, self.name, None)?;
        self.once.mark(trx);
        Ok(())
    }
}

pub struct Delete<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub actor: &'a Actor,
    pub once: Once,
}

impl Operation for Delete<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Another database of the name may exist since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let bytes = trx.get(&key, false);
        let writer = self.inner.writer(trx, self.actor);
        let (writer, epoch) = futures_util::try_join!(writer, self.inner.epoch_for_write(trx))?;
        let bytes = bytes.await?.ok_or(Error::DatabaseNotFound)?;
        let record = proto::DatabaseRecord::decode(&*bytes)?;
        check_record(&record, self.inner.collation)?;
        writer.admitted_by(trx, &DatabaseSecurity::new(&record.security, record.incarnation)).await?;
        let all = self.inner.keys.namespace(record.namespace).all();
        trx.clear(&key);
        trx.clear_range(&all.begin, &all.end);
        note_event(trx, &self.inner.keys, epoch, self.name, Some(record.shards))?;
        if is_replicator(&record) {
            note_replicator(trx, &self.inner.keys, self.name, false)?;
        }
        note_change(trx, &self.inner.keys, self.name)?;
        if record.channels > 0 {
            // Its users lose their rights.
            let _note = access::note(trx, (&self.inner.keys, epoch, self.name))?;
        }
        self.once.mark(trx);
        Ok(())
    }
}
