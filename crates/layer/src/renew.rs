//! Renewal of a store after a restore, before it is served.
//!
//! A restored store continues from an older state than followers, replicas and caches have seen, and its stamps may be
//! ahead of the cluster's versions. So a renewal draws another epoch, which invalidates all caches; gives each database
//! another incarnation, which invalidates all earlier sequences; and replaces each stamp by one of this cluster's
//! commits, in the same order.
//!
//! The documents that users of a database with channels see depend on the order of document changes and grants, so both
//! are stamped together (`channels`).
//!
//! It works in transactions of bounded size, and an interrupted renewal resumes: finished by-seq entries are in the new
//! incarnation, and finished records, purges and events have the new epoch. While it runs the root's record says so,
//! and other processes neither read nor write.

mod channels;
mod database;
mod events;
mod roots;
mod selected;

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::limits::Limit;
use flatbed_feeds::updates::sweep_root;
use flatbed_store::access;
use flatbed_store::error::{Error, Result};
use flatbed_store::features::{check_record, own_collation};
use flatbed_store::instruments::Instruments;
use flatbed_store::keys::{KeyRange, METADATA_VERSION, RootKeys};
use flatbed_store::once::random_id;
use flatbed_store::proto;
use flatbed_store::root::{begin_renewal, check_store, end_renewal, is_renewing, write_root};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::updated::{newest_stamps, touch_newest};
use foundationdb::Database as Fdb;
use futures_util::future::try_join;
use prost::Message;

pub use roots::{Roots, roots};

/// Limits of one transaction: entries, and bytes of keys and values together. A last entry may exceed them by its own
/// size of a few kilobytes, and in a database with channels by its channel entries. Both are well below FoundationDB's
/// limits. Each failed attempt of a transaction halves them.
const PAGE_ENTRIES: Limit<usize> = Limit::new(2_000, 7);
const PAGE_BYTES_MAX: usize = 400_000;

/// Database records that are read at once; each may have a `_security` of 50 kB.
const RECORDS_AT_ONCE: usize = 20;

/// The result of [`renew`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenewalReport {
    /// Databases with a new incarnation.
    pub databases: u64,
    /// Documents with a new sequence; after an interruption, the rest of them.
    pub entries: u64,
}

/// Renews all databases under a root. Stop its servers before: an open layer refuses all work during a renewal.
///
/// `is_copy`: the store was copied together with the cluster's other keys, so an interrupted renewal in it may have
/// ended elsewhere, which it cannot detect. After an error or a kill it may be called again. `progress` is called after
/// each transaction that changed something, with the number of documents so far.
///
/// # Errors
/// [`Error::StoreNotFound`], [`Error::FormatTooNew`], [`Error::FormatTooOld`], [`Error::RenewedElsewhere`],
/// [`Error::Corrupt`] for a record that cannot be decoded, [`Error::Storage`].
pub async fn renew(
    db: &Fdb,
    root: &[u8],
    is_copy: bool,
    mut progress: impl FnMut(u64) + Send,
) -> Result<RenewalReport> {
    renew_all(db, root, is_copy, &mut progress).await
}

#[boxed]
async fn renew_all(
    db: &Fdb,
    root: &[u8],
    is_copy: bool,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<RenewalReport> {
    let metrics = Arc::new(Instruments::default());
    let keys = RootKeys::new(root);
    let mut ended = None;
    loop {
        let mut begin = BeginRenewal { keys: &keys, drawn: draw()?, ended, is_copy };
        let RenewalStart { epoch, is_foreign } = transaction::write(db, &metrics, &mut begin).await?;
        if epoch == begin.drawn {
            progress(0);
        }
        let renewal = Renewal { db, metrics: &metrics, keys: &keys, epoch };
        let renewed = renewal.run(progress).await?;
        if is_foreign {
            ended = Some(epoch);
            continue;
        }
        transaction::write(db, &metrics, &mut Finish { keys: &keys, epoch }).await?;
        progress(renewed.entries);
        return Ok(renewed);
    }
}

fn draw() -> Result<u64> {
    let random = random_id()?;
    Ok(random.iter().fold(0, |drawn, byte| drawn << 8 | u64::from(*byte)))
}

#[derive(Clone, Copy)]
struct Renewal<'a> {
    db: &'a Fdb,
    metrics: &'a Arc<Instruments>,
    keys: &'a RootKeys,
    epoch: u64,
}

impl Renewal<'_> {
    async fn run(&self, progress: &mut (dyn FnMut(u64) + Send)) -> Result<RenewalReport> {
        // One event of each name is left, so in any order none is paired with an earlier one.
        let is_own = |bytes: Option<&[u8]>| self.is_own(bytes).map(|()| self.epoch);
        sweep_root(self.db, self.metrics, self.keys, Duration::ZERO, &is_own, &mut |_| progress(0)).await?;
        self.events(&mut || progress(0)).await?;
        let mut renewed = RenewalReport::default();
        let mut rest = Some(self.keys.databases());
        while let Some(range) = rest {
            let mut page = Records { keys: self.keys, range: &range };
            let (records, next) = transaction::read(self.db, self.metrics, &mut page).await?;
            for (key, name, record) in records {
                renewed.databases += 1;
                if record.epoch != self.epoch {
                    self.database(&key, &name, &record, &mut renewed.entries, progress).await?;
                }
            }
            rest = next;
        }
        Ok(renewed)
    }

    /// Checks that the root's record names this renewal.
    fn is_own(&self, bytes: Option<&[u8]>) -> Result<()> {
        let record = bytes.map(proto::Instance::decode).transpose()?.unwrap_or_default();
        let is_own = record.epoch == self.epoch && is_renewing(&record);
        if is_own { Ok(()) } else { Err(Error::RenewedElsewhere) }
    }
}

struct RenewalStart {
    epoch: u64,
    /// True if it began before, in a state of which this one is a copy, and may have ended there: its epoch and
    /// incarnations may be known to clients. Then it must be completed, and another one must follow.
    is_foreign: bool,
}

/// Marks the root's record with a renewal and its new epoch, or finds an interrupted renewal.
struct BeginRenewal<'a> {
    keys: &'a RootKeys,
    drawn: u64,
    /// The epoch of a renewal that has just ended and that another one follows.
    ended: Option<u64>,
    is_copy: bool,
}

impl Operation for BeginRenewal<'_> {
    type Output = RenewalStart;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<RenewalStart> {
        let key = self.keys.instance();
        let (root, metadata) = (trx.get(&key, false), trx.get(METADATA_VERSION, true));
        let mut record = proto::Instance::decode(&*root.await?.ok_or(Error::StoreNotFound)?)?;
        check_store(&record)?;
        if attempt.maybe_committed && record.epoch == self.drawn {
            return Ok(RenewalStart { epoch: self.drawn, is_foreign: false });
        }
        match self.ended {
            Some(ended) if record.epoch != ended || !is_renewing(&record) => return Err(Error::RenewedElsewhere),
            None if is_renewing(&record) => {
                // The transaction that began it stamped both. The end of a renewal changes the metadata version, which
                // a restore of the root's keys does not revert.
                let is_own = !self.is_copy && metadata.await?.as_deref() == Some(&record.renewal);
                return Ok(RenewalStart { epoch: record.epoch, is_foreign: !is_own });
            }
            _ => {}
        }
        record.epoch = self.drawn;
        begin_renewal(trx, self.keys, &mut record);
        Ok(RenewalStart { epoch: self.drawn, is_foreign: false })
    }
}

/// Marks the store as usable.
struct Finish<'a> {
    keys: &'a RootKeys,
    epoch: u64,
}

impl Operation for Finish<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        let key = self.keys.instance();
        let (root, newest) = try_join(async { Ok(trx.get(&key, false).await?) }, newest_stamps(trx, self.keys)).await?;
        let mut record = proto::Instance::decode(&*root.ok_or(Error::StoreNotFound)?)?;
        if record.epoch != self.epoch {
            return Err(Error::RenewedElsewhere);
        }
        if !is_renewing(&record) {
            return if attempt.maybe_committed { Ok(()) } else { Err(Error::RenewedElsewhere) };
        }
        end_renewal(&mut record);
        // Their processes are gone.
        let leases = self.keys.leases();
        trx.clear_range(&leases.begin, &leases.end);
        write_root(trx, self.keys, &record);
        let changes = self.keys.record_changes();
        trx.clear_range(&changes.begin, &changes.end);
        // All buckets: their databases have stamps of this cluster, and their own may be of another.
        newest.iter().try_for_each(|(bucket, _)| touch_newest(trx, self.keys, *bucket))?;
        access::note_all(trx, self.keys).await?;
        Ok(())
    }
}

struct Records<'a> {
    keys: &'a RootKeys,
    range: &'a KeyRange,
}

impl Operation for Records<'_> {
    /// Keys, names and records, and the remaining range.
    type Output = (Vec<(Vec<u8>, String, proto::DatabaseRecord)>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.range(self.range, true).page(RECORDS_AT_ONCE).await?;
        let mut records = Vec::with_capacity(page.len());
        for row in &page {
            let record = proto::DatabaseRecord::decode(row.value())?;
            check_record(&record, own_collation())?;
            records.push((row.key().to_vec(), self.keys.database_name(row.key())?, record));
        }
        Ok((records, page.rest))
    }
}
