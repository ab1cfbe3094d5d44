//! One instance of a database in this process: its record, keys, field names, and the states of subsystems.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatbed_store::buckets::Buckets;
use flatbed_store::error::Result;
use flatbed_store::keys::{Keys, RootKeys};
use flatbed_store::proto::DatabaseRecord;
use flatbed_store::transaction::Transaction;
use flatbed_store::updated::{UpdatedKeys, touch_last_seq};
use tokio::time::Instant;

use crate::confirmed::{ClosedReasons, DatabaseSecurity};
use crate::field_names::Fields;
use crate::slots::Slots;

/// The default limit of revisions in a branch (CouchDB's default `_revs_limit`).
pub const REVS_LIMIT: u64 = 1_000;

/// Byte limit of one value. FoundationDB allows 100,000 and recommends less.
pub const RUN_BYTES_MAX: u32 = 60_000;

/// The default limit of recorded purges (CouchDB's default).
const PURGED_INFOS_LIMIT: u64 = 1_000;

/// The cached size of all keys of a database by the storage's estimate, which costs a cluster's servers more than a
/// counter.
#[derive(Debug, Default)]
pub struct RangeSize {
    newest: Mutex<Option<(Instant, u64)>>,
    /// Held by the task that reads the size for the bound of the database.
    pub reading: tokio::sync::Mutex<()>,
}

const SIZE_KEPT: Duration = Duration::from_secs(60);

impl RangeSize {
    /// Returns the size, if it is less than a minute old.
    #[inline]
    pub fn known(&self, now: Instant) -> Option<u64> {
        self.known_within(now, SIZE_KEPT)
    }

    /// The newest size, if it is younger than `age`.
    pub fn known_within(&self, now: Instant, age: Duration) -> Option<u64> {
        let known = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|(since, _)| now.saturating_duration_since(*since) < age).map(|(_, bytes)| bytes)
    }

    pub fn enter(&self, now: Instant, bytes: u64) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, bytes));
    }
}

/// Identifies an instance of a database. A database that was deleted and created again, or restored, is another
/// instance, and data prepared for one is never written into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId {
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
pub fn first_incarnation(namespace: u64, epoch: u64) -> u64 {
    let instance = namespace << 16;
    let free_bits = instance.leading_zeros().min(EPOCH_BITS);
    epoch.checked_shl(u64::BITS - free_bits).unwrap_or(0) | instance
}

/// Returns the incarnation of a database after a renewal.
pub fn next_incarnation(record: &DatabaseRecord, epoch: u64) -> u64 {
    first_incarnation(record.namespace, epoch) | ((record.incarnation & 0xffff) % 0xffff + 1)
}

/// One instance of a database: a database that is deleted and created again is another one, with another namespace and
/// an empty cache.
#[derive(Debug)]
pub struct Instance {
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
    pub security: Arc<DatabaseSecurity>,
    /// The states of subsystems that all databases of the name share, one after the other.
    pub of_name: Arc<Slots<Instance>>,
    /// The states of subsystems that all versions of the record of one database share.
    pub of_incarnation: Arc<Slots<Instance>>,
    /// The states of subsystems for this version of the record.
    pub of_version: Slots<Instance>,
}

impl Instance {
    #[inline]
    pub fn incarnation(&self) -> u64 {
        self.record.incarnation
    }

    /// Returns why the database is closed to its users.
    #[inline]
    pub fn closed(&self) -> ClosedReasons {
        ClosedReasons::of(self.record.closed)
    }

    /// Marks the database as changed in a transaction that affects feeds: moves `last_seq` to the transaction's
    /// versionstamp with this user version, and updates the list of changed databases.
    pub fn touch(&self, trx: &Transaction, user_version: u16) -> Result<()> {
        touch_last_seq(trx, self.buckets.own(), user_version)?;
        self.updated.touch(trx)
    }

    #[inline]
    pub fn id(&self) -> InstanceId {
        InstanceId::from(&self.record)
    }

    /// Returns the number of the rule that routes documents to channels, which each new sync function increments; 0 if
    /// the database has no channels.
    #[inline]
    pub fn channels(&self) -> u64 {
        self.record.channels
    }

    /// Returns the limit of revisions in each branch, its leaf included.
    #[inline]
    pub fn revs_limit(&self) -> u64 {
        if self.record.revs_limit == 0 { REVS_LIMIT } else { self.record.revs_limit }
    }

    #[inline]
    pub fn purged_infos_limit(&self) -> u64 {
        if self.record.purged_infos_limit == 0 { PURGED_INFOS_LIMIT } else { self.record.purged_infos_limit }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_store::proto;
    use proptest::prelude::*;

    use super::*;

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
