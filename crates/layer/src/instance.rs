//! One instance of a database in this process: its record, keys, field names and followers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatbed_flatten::json::Value;
use flatbed_flatten::path::FIRST_FIELD_ID;
use foundationdb::FdbError;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::confirmed::{ClosedReasons, ConfirmedVersion, SecurityOf};
use crate::document::fields::{Allocate, AllocationOutcome, FIELD_NAME_BYTES_MAX, Fields, NamesPage, load};
use crate::error::{Error, Result};
use crate::feed::hub::Hub;
use crate::judge::ask::Rules;
use crate::layer::{Inner, REVS_LIMIT};
use crate::store::buckets::Buckets;
use crate::store::keys::{Keys, RootKeys};
use crate::store::proto::DatabaseRecord;
use crate::store::transaction::{self, Transaction};
use crate::store::updated::{UpdatedKeys, touch_last_seq};

/// Byte limit of one value. FoundationDB allows 100,000 and recommends less.
pub(crate) const RUN_BYTES_MAX: u32 = 60_000;

/// FoundationDB's error for a read version that is too old: the reader retries.
const TRANSACTION_TOO_OLD: i32 = 1007;

const ALLOCATED_AT_ONCE_MAX: usize = 256;

/// The default limit of recorded purges (CouchDB's default).
const PURGED_INFOS_LIMIT: u64 = 1_000;

/// The cached size of all keys of a database by the storage's estimate, which costs a cluster's servers more than a
/// counter.
#[derive(Debug, Default)]
pub(crate) struct RangeSize {
    newest: Mutex<Option<(Instant, u64)>>,
    /// Held by the task that reads the size for the bound of the database.
    pub reading: tokio::sync::Mutex<()>,
}

const SIZE_KEPT: Duration = Duration::from_secs(60);

impl RangeSize {
    /// Returns the size, if it is less than a minute old.
    pub(crate) fn known(&self, now: Instant) -> Option<u64> {
        self.known_within(now, SIZE_KEPT)
    }

    /// The newest size, if it is younger than `age`.
    pub(crate) fn known_within(&self, now: Instant, age: Duration) -> Option<u64> {
        let known = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|(since, _)| now.saturating_duration_since(*since) < age).map(|(_, bytes)| bytes)
    }

    pub(crate) fn enter(&self, now: Instant, bytes: u64) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, bytes));
    }
}

/// Identifies an instance of a database. A database that was deleted and created again, or restored, is another
/// instance, and data prepared for one is never written into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InstanceId {
    pub namespace: u64,
    incarnation: u64,
    epoch: u64,
}

impl From<&DatabaseRecord> for InstanceId {
    fn from(record: &DatabaseRecord) -> Self {
        InstanceId { namespace: record.namespace, incarnation: record.incarnation, epoch: record.epoch }
    }
}

const EPOCH_BITS: u32 = 24;

/// Returns the incarnation of a new database. The namespace distinguishes it from others of its name. The bits below
/// count renewals, and the bits above are of the epoch, because a restore also reverts which namespaces are taken.
pub(crate) fn first_incarnation(namespace: u64, epoch: u64) -> u64 {
    let instance = namespace << 16;
    let free_bits = instance.leading_zeros().min(EPOCH_BITS);
    epoch.checked_shl(u64::BITS - free_bits).unwrap_or(0) | instance
}

/// Returns the incarnation of a database after a renewal.
pub(crate) fn next_incarnation(record: &DatabaseRecord, epoch: u64) -> u64 {
    first_incarnation(record.namespace, epoch) | ((record.incarnation & 0xffff) % 0xffff + 1)
}

/// One instance of a database: a database that is deleted and created again is another one, with another namespace and
/// an empty cache.
#[derive(Debug)]
pub(crate) struct Instance {
    pub name: String,
    pub record: DatabaseRecord,
    pub record_key: Vec<u8>,
    pub keys: Keys,
    pub buckets: Buckets,
    pub updated: UpdatedKeys,
    pub root: RootKeys,
    /// The names of fields, shared by all versions of the record.
    pub fields: Arc<Fields>,
    pub size: Arc<RangeSize>,
    /// The `_security`, shared by all versions of the record with the same one.
    pub security: Arc<SecurityOf>,
    pub hub: Arc<Hub>,
    /// The rules of this version of the record.
    pub rules: OnceCell<Rules>,
    /// Held while this process replaces indexes of another collation.
    pub reordering: tokio::sync::Mutex<()>,
    /// Held while this process runs slow selectors of the database's indexes.
    pub selecting: Arc<tokio::sync::Mutex<()>>,
    /// Bytes that this process has superseded, from a random start: each of many processes sees only a part, and
    /// together they reach thresholds as often as a single one would.
    pub superseded_bytes: AtomicU64,
}

impl Instance {
    pub(crate) fn incarnation(&self) -> u64 {
        self.record.incarnation
    }

    /// Returns why the database is closed to its users.
    pub(crate) fn closed(&self) -> ClosedReasons {
        ClosedReasons::of(self.record.closed)
    }

    /// Marks the database as changed in a transaction that affects feeds: moves `last_seq` to the transaction's
    /// versionstamp with this user version, and updates the list of changed databases.
    pub(crate) fn touch(&self, trx: &Transaction, user_version: u16) -> Result<()> {
        touch_last_seq(trx, self.buckets.own(), user_version)?;
        self.updated.touch(trx)
    }

    pub(crate) fn id(&self) -> InstanceId {
        InstanceId::from(&self.record)
    }

    /// Returns the number of the rule that routes documents to channels, which each new sync function increments; 0 if
    /// the database has no channels.
    pub(crate) fn channels(&self) -> u64 {
        self.record.channels
    }

    /// Returns the limit of revisions in each branch, its leaf included.
    pub(crate) fn revs_limit(&self) -> u64 {
        if self.record.revs_limit == 0 { REVS_LIMIT } else { self.record.revs_limit }
    }

    pub(crate) fn purged_infos_limit(&self) -> u64 {
        if self.record.purged_infos_limit == 0 { PURGED_INFOS_LIMIT } else { self.record.purged_infos_limit }
    }

    /// Caches the ids of the names in `bodies`, and allocates missing ones up to the limit of the database. Names
    /// without an id are stored literally.
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
                    if name.len() <= FIELD_NAME_BYTES_MAX && seen.insert(name.to_owned()) {
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
        // Each round looks again: another task or server may have allocated the same names.
        loop {
            // Before the look: names that another task adds later come with the allocation's own load.
            let known_until = FIRST_FIELD_ID + self.fields.len() as u64;
            let mut names = unknown(self);
            names.truncate(ALLOCATED_AT_ONCE_MAX);
            if names.is_empty() {
                return Ok(());
            }
            let mut allocate = Allocate {
                inner,
                instance: self,
                names: &names,
                known_until,
                ids_max: u64::from(self.record.field_ids_max),
                attempted: 0,
            };
            let done = transaction::write(&inner.db, &inner.metrics, &mut allocate).await?;
            let (entered, allocated) = match done {
                AllocationOutcome::Names(entered, allocated) => (entered, allocated),
                // The transaction that writes the documents notices as well, and the write starts again.
                AllocationOutcome::OtherInstance => return Ok(()),
                AllocationOutcome::Behind => {
                    self.reload_names(inner).await?;
                    continue;
                }
            };
            inner.metrics.field_ids_allocated.add(allocated);
            if entered.is_empty() {
                return Ok(());
            }
            self.fields.enter(known_until, &entered);
        }
    }

    /// Loads the names that other processes have allocated, in as many transactions as needed; names stay cached if a
    /// later transaction fails. Concurrent callers share a load, but only one that began after their call: an earlier
    /// one may have read before the missing names existed, or may have been dropped.
    pub(crate) async fn reload_names(&self, inner: &Inner) -> Result<()> {
        struct Load<'a>(&'a Inner, &'a Instance, u64);
        impl transaction::Operation for Load<'_> {
            type Output = Option<NamesPage>;
            async fn attempt(
                &mut self,
                trx: &transaction::Transaction,
                _: transaction::Attempt,
            ) -> Result<Option<NamesPage>> {
                let Load(inner, instance, from) = *self;
                let names = load(trx, &instance.keys, from);
                let (found, names) = futures_util::try_join!(inner.resolve(trx, &instance.name), names)?;
                Ok((found.id() == instance.id()).then_some(names))
            }
        }
        let begun_before = self.fields.loads.load(Ordering::Relaxed);
        let mut gone_through = self.fields.loading.lock().await;
        if *gone_through > begun_before {
            return Ok(());
        }
        let number = self.fields.loads.fetch_add(1, Ordering::Relaxed) + 1;
        loop {
            let from = FIRST_FIELD_ID + self.fields.len() as u64;
            let loaded = transaction::read(&inner.db, &inner.metrics, &mut Load(inner, self, from)).await?;
            // The caller has read a state that was replaced: it must retry.
            let loaded = loaded.ok_or(Error::Storage(FdbError::from_code(TRANSACTION_TOO_OLD)))?;
            self.fields.enter(from, &loaded.names);
            if loaded.are_all {
                *gone_through = number;
                return Ok(());
            }
        }
    }
}

/// A cached database, which is current while `\xff/metadataVersion` has the value `seen`.
#[derive(Debug, Clone)]
pub(crate) struct CachedDatabase {
    pub seen: Arc<ConfirmedVersion>,
    pub instance: Arc<Instance>,
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use flatbed_flatten::json::{Limits, parse};
    use futures_util::future::try_join;
    use proptest::prelude::*;

    use super::*;
    use crate::fenced::database;
    use crate::store::proto;
    use crate::{Edit, GetOptions};

    fn record(namespace: u64, incarnation: u64) -> proto::DatabaseRecord {
        proto::DatabaseRecord { namespace, incarnation, ..proto::DatabaseRecord::default() }
    }

    #[test]
    fn a_size_is_remembered_for_a_minute() {
        let (size, now) = (RangeSize::default(), Instant::now());
        assert_eq!(size.known(now), None);
        size.enter(now, 7);
        assert_eq!(size.known(now + Duration::from_secs(59)), Some(7));
        assert_eq!(size.known(now + Duration::from_secs(60)), None);
        // A clock that moves back.
        size.enter(now + Duration::from_secs(1), 8);
        assert_eq!(size.known(now), Some(8));
    }

    /// A load that began before a body's names existed, or was dropped, loads only some of them.
    #[tokio::test]
    async fn who_misses_names_does_not_rely_on_a_load_that_began_before() {
        let (db, _storage) = database().await;
        let body = parse(br#"{"a":1,"b":2,"c":3}"#, &Limits::default()).unwrap();
        let id = "d".into();
        let edit =
            Edit { expiry: None, id, parent: None, history: None, deleted: false, attachments: Vec::new(), body };
        db.update(&edit).await.unwrap();
        // As a process that does not know the names.
        db.inner.databases.remove(&*db.name);
        db.exists().await.unwrap();
        let instance = db.inner.cached(&db.name).expect("an instance");
        assert_eq!(instance.fields.len(), 0);
        let loading = instance.fields.loading.lock().await;
        let options = GetOptions::default();
        let mut reads = pin!(try_join(db.get("d", &options), db.get("d", &options)));
        let waits = tokio::time::timeout(Duration::from_millis(300), &mut reads).await;
        assert!(waits.is_err(), "they wait for who loads");
        instance.fields.enter(FIRST_FIELD_ID, &["a".to_owned()]);
        drop(loading);
        let (one, two) = reads.await.unwrap();
        assert_eq!([one.body, two.body], [br#""a":1,"b":2,"c":3"#; 2]);
        // One load for both.
        assert_eq!(instance.fields.loads.load(Ordering::Relaxed), 1);
    }

    proptest! {
        #[test]
        fn incarnations_differ(
            namespace in 1..1_u64 << 40, other in 1..1_u64 << 24, restores in 0..0x1_0000_u64, epochs: [u64; 3]
        ) {
            let first = namespace << 16 | restores;
            let second = next_incarnation(&record(namespace, first), epochs[0]);
            let third = next_incarnation(&record(namespace, second), epochs[1]);
            prop_assert!(first != second && second != third);
            let twice = next_incarnation(&record(namespace, first), epochs[0] ^ 1);
            prop_assert!(twice != second, "two restores of one backup");
            // A database that was deleted and created again.
            let namespace = namespace & 0xff_ffff;
            prop_assume!(namespace != other);
            let here = next_incarnation(&record(namespace, first), epochs[0]);
            let there = next_incarnation(&record(other, other << 16), epochs[2]);
            prop_assert!(here != there && here != first_incarnation(other, epochs[2]));
        }
    }
}
