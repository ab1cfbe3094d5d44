//! Renewal of a store after a restore, before it is served.
//!
//! A restored store continues from an older state than followers, replicas and caches have seen, and its stamps may be
//! ahead of the cluster's versions. So a renewal begins another epoch, which precedes the versionstamp in all stamps:
//! new changes sort after all old ones, and nothing is rewritten. All caches are of the old epoch, and writes that began
//! in it conflict. It is one transaction, whatever the store holds.

mod roots;

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_clock::Clock;
use flatbed_store::access;
use flatbed_store::error::{Error, Result};
use flatbed_store::instruments::Instruments;
use flatbed_store::keys::RootKeys;
use flatbed_store::proto;
use flatbed_store::root::{check_store, raise_epoch, write_root};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use foundationdb::Database as Fdb;
use prost::Message;

pub use roots::{Roots, roots};

/// The result of [`renew`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenewalReport {
    /// The epoch that has begun.
    pub epoch: u32,
}

/// Begins the next epoch of the store under a root. `clock` gives the epoch, which must be later than the restored
/// state. Stop the store's servers before: what they have in memory of the lost state may be shown until they read again.
/// A further call begins a further epoch, and does no harm.
///
/// # Errors
/// [`Error::StoreNotFound`], [`Error::FormatTooNew`], [`Error::FormatTooOld`], [`Error::FeatureUnknown`],
/// [`Error::Storage`].
#[boxed]
pub async fn renew(db: &Fdb, root: &[u8], clock: &Clock) -> Result<RenewalReport> {
    let metrics = Arc::new(Instruments::default());
    let mut begin = BeginEpoch { keys: &RootKeys::new(root), clock, begun: None };
    let epoch = transaction::write(db, &metrics, &mut begin).await?;
    Ok(RenewalReport { epoch })
}

struct BeginEpoch<'a> {
    keys: &'a RootKeys,
    clock: &'a Clock,
    /// The epoch of the last attempt.
    begun: Option<u32>,
}

impl Operation for BeginEpoch<'_> {
    type Output = u32;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<u32> {
        let key = self.keys.instance();
        let mut record = proto::Instance::decode(&*trx.get(&key, false).await?.ok_or(Error::StoreNotFound)?)?;
        check_store(&record)?;
        if attempt.maybe_committed && self.begun == Some(record.epoch) {
            return Ok(record.epoch);
        }
        raise_epoch(&mut record, self.clock.unix_ms() / 1_000)?;
        self.begun = Some(record.epoch);
        write_root(trx, self.keys, &record);
        // Their versionstamps may be ahead of this cluster.
        let changes = self.keys.record_changes();
        trx.clear_range(&changes.begin, &changes.end);
        // A restore also reverts rights, without a change.
        access::note_all(trx, self.keys, record.epoch).await?;
        // Their processes are gone.
        let leases = self.keys.leases();
        trx.clear_range(&leases.begin, &leases.end);
        Ok(record.epoch)
    }
}
