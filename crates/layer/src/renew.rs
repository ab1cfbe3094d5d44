//! What a store must go through after a restore, before it is served.
//!
//! What was restored goes on from an older state than the one that followers, replicas and caches have seen, and its stamps
//! may lie ahead of the cluster's versions. So a renewal draws another epoch, which no cache survives, gives every database
//! another incarnation, so that no sequence from before means anything, and gives whatever bears a stamp one of this
//! cluster's own commits, in the order that it had.
//!
//! What users see of a database with channels depends on the order of documents' changes and of what users were given: both are
//! stamped anew together (`channels`).
//!
//! All of it goes in transactions of bounded size, and an interrupted renewal is taken up where it was: entries of by-seq
//! that are done lie in the new incarnation, records, purges and events that are done bear the new epoch. While it goes on the
//! root's record says so, and nobody else reads or writes.

mod channels;
mod database;
mod events;
mod roots;
mod selected;

use std::sync::Arc;
use std::time::Duration;

use foundationdb::Database as Fdb;
use foundationdb::options::MutationType;
use futures_util::future::try_join;
use prost::Message;

use crate::error::{Error, Result};
use crate::feed::updates::sweep_root;
use crate::store::features::{check_record, own_collation};
use crate::store::instruments::Instruments;
use crate::store::keys::{KeyRange, METADATA_VERSION, RootKeys};
use crate::store::once::random_id;
use crate::store::proto;
use crate::store::root::{begin_renewal, check_store, end_renewal, is_renewing};
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::store::updated::{newest_stamps, touch_newest};

pub use roots::roots;

/// What one transaction moves is at most this many entries, and this many bytes of keys and values together (one entry may
/// pass it by its own size of a few kilobytes, in a database with channels by what it has of these): well below FoundationDB's bounds. Each further attempt takes half.
const PAGE_ENTRIES: usize = if cfg!(test) { 7 } else { 2_000 };
const PAGE_BYTES_MAX: usize = 400_000;

/// Records of databases read at once; each may have a `_security` of 50 kB.
const RECORDS_AT_ONCE: usize = 20;

/// What [`renew`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Databases with a new incarnation.
    pub databases: u64,
    /// Documents that have got a new sequence; after an interruption the rest of them.
    pub entries: u64,
}

/// Renews everything under a root. Whoever serves it should be stopped: a layer that is open refuses all work meanwhile.
///
/// `is_copy`: the store was copied with all that the cluster knows beside it, so it cannot be seen whether an interrupted
/// renewal in it was ended elsewhere. After an error or a kill it may be called again. `progress` is called after each
/// transaction that changed something, with the number of documents so far.
///
/// # Errors
/// [`Error::StoreNotFound`], [`Error::FormatTooNew`], [`Error::FormatTooOld`], [`Error::RenewedElsewhere`], [`Error::Corrupt`] for
/// a record that cannot be read, [`Error::Storage`].
pub async fn renew(db: &Fdb, root: &[u8], is_copy: bool, mut progress: impl FnMut(u64) + Send) -> Result<Renewed> {
    let metrics = Arc::new(Instruments::default());
    let keys = RootKeys::new(root);
    let progress: &mut (dyn FnMut(u64) + Send) = &mut progress;
    let mut ended = None;
    loop {
        let mut begin = Begin { keys: &keys, drawn: draw()?, ended, is_copy };
        let Begun { epoch, is_foreign } = transaction::write(db, &metrics, &mut begin).await?;
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

/// A renewal under way.
#[derive(Clone, Copy)]
struct Renewal<'a> {
    db: &'a Fdb,
    metrics: &'a Arc<Instruments>,
    keys: &'a RootKeys,
    epoch: u64,
}

impl Renewal<'_> {
    async fn run(&self, progress: &mut (dyn FnMut(u64) + Send)) -> Result<Renewed> {
        // Of each name one is left: in whatever order they are stamped, none is paired with what was before it.
        let is_own = |bytes: Option<&[u8]>| self.is_own(bytes).map(|()| self.epoch);
        sweep_root(self.db, self.metrics, self.keys, Duration::ZERO, &is_own, &mut |_| progress(0)).await?;
        self.events(&mut || progress(0)).await?;
        let mut renewed = Renewed::default();
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

    /// Whether the root's record, as a transaction finds it, says that this renewal goes on.
    fn is_own(&self, bytes: Option<&[u8]>) -> Result<()> {
        let record = bytes.map(proto::Instance::decode).transpose()?.unwrap_or_default();
        let is_own = record.epoch == self.epoch && is_renewing(&record);
        if is_own { Ok(()) } else { Err(Error::RenewedElsewhere) }
    }
}

struct Begun {
    epoch: u64,
    /// It was begun before, and perhaps ended since, in a state that this one is a copy of: its epoch and incarnations may
    /// be known to others. It must be ended, and another follow.
    is_foreign: bool,
}

/// Says in the root's record that a renewal goes on, with the epoch that it brings; or finds one that was interrupted.
struct Begin<'a> {
    keys: &'a RootKeys,
    drawn: u64,
    /// The epoch of one that has just been ended, which another is to follow.
    ended: Option<u64>,
    is_copy: bool,
}

impl Operation for Begin<'_> {
    type Output = Begun;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Begun> {
        let key = self.keys.instance();
        let (root, metadata) = (trx.get(&key, false), trx.get(METADATA_VERSION, true));
        let mut record = proto::Instance::decode(&*root.await?.ok_or(Error::StoreNotFound)?)?;
        check_store(&record)?;
        if attempt.maybe_committed && record.epoch == self.drawn {
            return Ok(Begun { epoch: self.drawn, is_foreign: false });
        }
        match self.ended {
            Some(ended) if record.epoch != ended || !is_renewing(&record) => return Err(Error::RenewedElsewhere),
            None if is_renewing(&record) => {
                // The transaction that began it has stamped both. A renewal's end changes the other, which no restore of
                // what lies under the root brings back.
                let is_own = !self.is_copy && metadata.await?.as_deref() == Some(&record.renewal);
                return Ok(Begun { epoch: record.epoch, is_foreign: !is_own });
            }
            _ => {}
        }
        record.epoch = self.drawn;
        trx.atomic_op(&key, &begin_renewal(&mut record), MutationType::SetVersionstampedValue);
        trx.update_metadata_version();
        Ok(Begun { epoch: self.drawn, is_foreign: false })
    }
}

/// Lets the store be used.
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
        // Of processes that are gone.
        let leases = self.keys.leases();
        trx.clear_range(&leases.begin, &leases.end);
        trx.set(&key, &record.encode_to_vec());
        // Of all buckets: their databases' stamps are of this cluster now, their own may be of another.
        newest.iter().try_for_each(|(bucket, _)| touch_newest(trx, self.keys, *bucket))?;
        trx.update_metadata_version();
        Ok(())
    }
}

/// A page of databases.
struct Records<'a> {
    keys: &'a RootKeys,
    range: &'a KeyRange,
}

impl Operation for Records<'_> {
    /// Keys, names and records, and what is left.
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
