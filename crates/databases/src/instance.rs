//! One instance of a database in this process: its record, keys, field names, and the states of subsystems.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatbed_store::buckets::Buckets;
use flatbed_store::error::Result;
use flatbed_store::keys::{Keys, RootKeys};
use flatbed_store::proto::DatabaseRecord;
use flatbed_store::root::Epochs;
use flatbed_store::seq::{Seq, begin_of};
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
    epoch: u32,
}

impl InstanceId {
    /// Returns the id of the database with this record in an epoch of the store.
    pub fn new(record: &DatabaseRecord, epoch: u32) -> Self {
        InstanceId { namespace: record.namespace, incarnation: record.incarnation, epoch }
    }

    /// Returns whether a record is that of this database, in any epoch.
    pub fn is_of(&self, record: &DatabaseRecord) -> bool {
        (self.namespace, self.incarnation) == (record.namespace, record.incarnation)
    }
}

const EPOCH_BITS: u32 = 24;

/// Returns the incarnation of a new database, which it keeps. The namespace distinguishes it from others of its name,
/// and the bits above are of the epoch, because a restore also reverts which namespaces are taken.
pub fn incarnation_of(namespace: u64, epoch: u32) -> u64 {
    let instance = namespace << 16;
    let free_bits = instance.leading_zeros().min(EPOCH_BITS);
    u64::from(epoch).checked_shl(u64::BITS - free_bits).unwrap_or(0) | instance
}

/// One instance of a database: a database that is deleted and created again is another one, with another namespace and
/// an empty cache.
#[derive(Debug)]
pub struct Instance {
    pub name: String,
    pub record: DatabaseRecord,
    /// The epochs of the store.
    pub epochs: Epochs,
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

    /// Returns the epoch of the stamps that this instance writes.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epochs.now()
    }

    /// Returns the sequence before all changes of the epoch, and after those of the epochs before it.
    pub fn epoch_begin(&self) -> Seq {
        Seq::new(self.incarnation(), begin_of(self.epoch()))
    }

    /// Returns whether a sequence is one of this database's, of an epoch that it has been in.
    pub fn has_seq(&self, seq: &Seq) -> bool {
        seq.incarnation() == self.incarnation() && self.epochs.has(seq.epoch())
    }

    /// Returns a number that differs between databases of the name and between epochs, for caches of this process.
    pub fn cache_number(&self) -> u64 {
        self.incarnation() ^ u64::from(self.epoch()).rotate_left(32)
    }

    /// Returns why the database is closed to its users.
    #[inline]
    pub fn closed(&self) -> ClosedReasons {
        ClosedReasons::of(self.record.closed)
    }

    /// Marks the database as changed in a transaction that affects feeds: moves `last_seq` to the transaction's
    /// stamp with this user version, and updates the list of changed databases.
    pub fn touch(&self, trx: &Transaction, user_version: u16) -> Result<()> {
        touch_last_seq(trx, self.buckets.own(), self.epoch(), user_version)?;
        self.updated.touch(trx)
    }

    #[inline]
    pub fn id(&self) -> InstanceId {
        InstanceId::new(&self.record, self.epoch())
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
    use proptest::prelude::*;

    use super::*;

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
        fn incarnations_differ(namespace in 1..1_u64 << 24, other in 1..1_u64 << 24, epochs: [u32; 2]) {
            let [here, again] = epochs.map(|epoch| incarnation_of(namespace, epoch));
            // A restore has reverted the first creation.
            prop_assert_eq!(here == again, (epochs[0] ^ epochs[1]) << 8 == 0);
            prop_assume!(namespace != other);
            prop_assert!(here != incarnation_of(other, epochs[1]));
        }
    }
}
