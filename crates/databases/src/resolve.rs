//! The resolution of a database's name in a transaction: from the cache, or from its record.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use flatbed_store::buckets::Buckets;
use flatbed_store::due::DueKind;
use flatbed_store::error::{Error, Result};
use flatbed_store::features::{check_record, is_outdated, is_replicator};
use flatbed_store::keys::METADATA_VERSION;
use flatbed_store::proto;
use flatbed_store::record_log::read_changes;
use flatbed_store::root::{Epochs, in_use};
use flatbed_store::transaction::{self, NOT_COMMITTED, Transaction};
use flatbed_store::updated::UpdatedKeys;
use foundationdb::FdbError;
use futures_util::future::try_join;
use prost::Message;

use crate::cache::CachedDatabase;
use crate::confirmed::{ClosedReasons, ConfirmedVersion, DatabaseSecurity};
use crate::instance::{Instance, InstanceId};
use crate::server::Inner;
use crate::slots::Slots;

impl Inner {
    /// Returns the database's instance as of the transaction's read version: from the cache if its record is known to
    /// be the same, else from its record. An older instance than the cached one is not cached.
    pub async fn resolve(&self, trx: &Transaction, name: &str) -> Result<Arc<Instance>> {
        let version = trx.get(METADATA_VERSION, true).await?;
        let version: &[u8] = version.as_deref().unwrap_or_default();
        let as_of_us = self.as_of_us(trx);
        if let Some(cached) = self.databases.get(name)
            && cached.seen.version() == version
        {
            cached.seen.confirm(as_of_us);
            self.metrics.database_cache_hits.add(1);
            return Ok(cached.instance);
        }
        if let Some(newest) = self.confirmed.known(version, as_of_us)
            && let Some(instance) = self.databases.carry(name, &newest)
        {
            self.metrics.database_cache_hits.add(1);
            return Ok(instance);
        }
        self.metrics.database_cache_misses.add(1);
        let record_key = self.keys.database(name);
        let record = trx.get(&record_key, true);
        let seen = self.learn(trx, version).await?;
        if let Some(instance) = self.databases.carry(name, &seen) {
            return Ok(instance);
        }
        let Some(bytes) = record.await? else {
            if !trx.is_pinned() {
                self.databases.remove_if(name, |cached| cached.seen.version() <= version);
            }
            return Err(Error::DatabaseNotFound);
        };
        let record = proto::DatabaseRecord::decode(&*bytes)?;
        check_record(&record, self.collation)?;
        Ok(self.enter(trx, name, record, &seen))
    }

    /// Returns the value of `\xff/metadataVersion` that a transaction has read, as the process knows it, after a check
    /// that the store is in use. Unless the process has read the root's record under this value, the transaction reads
    /// it, and at the same time the names of the databases whose records have changed since the value before: all other
    /// cached databases stay current. Transactions that begin while another one does so read the same.
    ///
    /// # Errors
    /// [`Error::Storage`], and errors of a store that may not be used.
    pub async fn learn(&self, trx: &Transaction, version: &[u8]) -> Result<Arc<ConfirmedVersion>> {
        let as_of_us = self.as_of_us(trx);
        if let Some(known) = self.confirmed.known(version, as_of_us) {
            return Ok(known);
        }
        self.metrics.root_records_read.add(1);
        let before = self.confirmed.newest();
        let continues = !trx.is_pinned() && before.is_in_series() && before.version() < version;
        let root = trx.get(&self.keys.instance(), true);
        let changed =
            async { if continues { read_changes(trx, &self.keys, before.version()).await } else { Ok(None) } };
        // The range first: its read begins with the first poll.
        let (changed, root) = try_join(changed, async { Ok(root.await?) }).await?;
        let epochs = Epochs::of(&in_use(root.as_deref())?);
        // A read of the past says nothing of the present, and no key is a store that is about to be made.
        if trx.is_pinned() || root.is_none() {
            return Ok(ConfirmedVersion::aside(version, epochs, as_of_us));
        }
        let _changing = self.databases.lock();
        if let Some(known) = self.confirmed.known(version, as_of_us) {
            return Ok(known);
        }
        let newest = self.confirmed.newest();
        if newest.is_in_series() && newest.version() > version {
            return Ok(ConfirmedVersion::aside(version, epochs, as_of_us));
        }
        let is_same_epoch = self.enter_epoch(epochs.now());
        // The newest value may be a later one than `before`: what has changed in between is only marked once more.
        for name in changed.iter().flatten() {
            self.databases.outdate(name);
        }
        Ok(self.confirmed.advance(version, epochs, as_of_us, is_same_epoch && changed.is_some()))
    }

    /// Returns the root's epoch, in a transaction that writes. The transaction fails if another epoch begins before its
    /// commit. Reads the root's record only as [`Inner::learn`] does.
    ///
    /// # Errors
    /// As [`Inner::learn`].
    pub async fn epoch_for_write(&self, trx: &Transaction) -> Result<u32> {
        transaction::conflict_with(trx, &self.keys.instance())?;
        let version = trx.get(METADATA_VERSION, true).await?;
        Ok(self.learn(trx, version.as_deref().unwrap_or_default()).await?.epochs().now())
    }

    /// Returns the moment as of which what a transaction reads is confirmed. 0 for a read of the past.
    fn as_of_us(&self, trx: &Transaction) -> u64 {
        if trx.is_pinned() { 0 } else { self.confirmed.us(trx.began()) }
    }

    /// Caches the instance of a record that a transaction has read.
    fn enter(
        &self,
        trx: &Transaction,
        name: &str,
        record: proto::DatabaseRecord,
        seen: &ConfirmedVersion,
    ) -> Arc<Instance> {
        // One at a time, so that transactions that read the same record get the same instance.
        let _changing = self.databases.lock();
        let cached = self.databases.get(name);
        let known = cached.as_ref().map(|cached| Arc::clone(&cached.instance));
        let instance = match &known {
            Some(instance) if instance.record == record && instance.epochs == *seen.epochs() => Arc::clone(instance),
            _ => self.new_instance(name, record, seen.epochs(), known.as_ref()),
        };
        let is_past = trx.is_pinned() || cached.is_some_and(|cached| cached.seen.version() > seen.version());
        if !is_past {
            let as_of_us = self.as_of_us(trx);
            // If another transaction has learned of later changes meanwhile, this record may be among them.
            let known_now = self.confirmed.known(seen.version(), as_of_us);
            let seen =
                known_now.unwrap_or_else(|| ConfirmedVersion::aside(seen.version(), seen.epochs().clone(), as_of_us));
            if !known.is_some_and(|known| Arc::ptr_eq(&known.security, &instance.security)) {
                (self.note_security)(self, &instance);
            }
            self.databases.insert(CachedDatabase::new(seen, Arc::clone(&instance)));
        }
        instance
    }

    /// Makes the instance of a record, with what it shares with the cached instance of its name.
    fn new_instance(
        &self,
        name: &str,
        record: proto::DatabaseRecord,
        epochs: &Epochs,
        known: Option<&Arc<Instance>>,
    ) -> Arc<Instance> {
        let keys = self.keys.namespace(record.namespace);
        let id = InstanceId::new(&record, epochs.now());
        let of_this = known.filter(|known| known.id() == id);
        let (fields, size) = of_this.map(|known| (known.fields.clone(), known.size.clone())).unwrap_or_default();
        let has_channels = record.channels > 0;
        let same = of_this.filter(|known| {
            let is_same = known.record.security == record.security && known.record.closed == record.closed;
            is_same && known.security.has_channels() == has_channels
        });
        let security = same.map(|known| known.security.clone());
        let of_record = || {
            let security = DatabaseSecurity::new(&record.security, record.incarnation);
            let security = security.of_replicator(is_replicator(&record));
            security.with_channels(has_channels, ClosedReasons::of(record.closed))
        };
        let security = security.unwrap_or_else(|| Arc::new(of_record()));
        let is_resynced =
            |known: &Arc<Instance>| (known.record.channels, known.record.closed) != (record.channels, record.closed);
        if record.indexes.iter().any(|index| !index.readable) || of_this.is_some_and(is_resynced) {
            // New indexes or a new sync function may have been defined, by any process: look for work at once.
            self.due.wake.notify_one();
        }
        if is_outdated(&record, self.collation) {
            self.due.note(DueKind::Indexes, name);
        }
        // Running selectors continue.
        let of_name = known.map(|known| known.of_name.clone()).unwrap_or_default();
        // Settings change without effect on followers.
        let of_incarnation = of_this.map(|known| known.of_incarnation.clone()).unwrap_or_default();
        let buckets = Buckets::of_record(&keys, &record, self.writer);
        let updated = UpdatedKeys::new(&self.keys, name, buckets.own_number(), epochs.now());
        Arc::new(Instance {
            name: name.to_owned(),
            keys,
            buckets,
            updated,
            root: self.keys.clone(),
            record_key: self.keys.database(name),
            record,
            epochs: epochs.clone(),
            fields,
            size,
            security,
            of_name,
            of_incarnation,
            of_version: Slots::default(),
        })
    }

    /// Evicts the entries of another epoch. Returns whether the epoch is the same.
    fn enter_epoch(&self, epoch: u32) -> bool {
        let mut entered = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if *entered == epoch {
            return true;
        }
        *entered = epoch;
        self.databases.clear();
        self.states.enter_epoch();
        false
    }

    /// As [`Inner::resolve`], for a writing transaction: it conflicts if the database is deleted or changed, or the
    /// store renewed, before the commit.
    pub async fn resolve_for_write(&self, trx: &Transaction, name: &str) -> Result<Arc<Instance>> {
        let instance = self.resolve(trx, name).await?;
        if is_outdated(&instance.record, self.collation) {
            (self.reorder_indexes)(self, name).await.map_err(transaction::of_nested)?;
            // This transaction has read an older state: it must retry.
            return Err(Error::Storage(FdbError::from_code(NOT_COMMITTED)));
        }
        transaction::conflict_with(trx, &instance.record_key)?;
        transaction::conflict_with(trx, &self.keys.instance())?;
        Ok(instance)
    }

    /// Returns the cached instance of a name, which may be outdated: a transaction that resolves it checks.
    pub fn cached(&self, name: &str) -> Option<Arc<Instance>> {
        self.databases.get(name).map(|cached| cached.instance)
    }

    /// Records that this process has changed a database's record, so that it sees its own change of `_security` at
    /// once, and not a second later.
    pub fn note_own_change(&self, name: &str) {
        let _changing = self.databases.lock();
        self.databases.outdate(name);
    }

    /// Returns the cached instance of a name if its record is known to be current as of less than this time ago.
    pub fn current_within(&self, name: &str, within: Duration) -> Option<Arc<Instance>> {
        let cached = self.databases.get(name)?;
        if cached.is_outdated {
            return None;
        }
        // After the lookup, since the entry may have been confirmed meanwhile.
        let now_us = self.confirmed.us(self.clock.now());
        if cached.seen.is_confirmed(now_us, within) {
            return Some(cached.instance);
        }
        let newest = self.confirmed.newest();
        if newest.is_confirmed(now_us, within) { self.databases.carry(name, &newest) } else { None }
    }
}
