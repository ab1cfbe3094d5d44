//! The root's record: the format of everything under it, its epoch, and whether it is being renewed.
//!
//! The epoch is written by renewals alone ([`crate::renew`]). Every transaction that writes has its key as a read conflict,
//! and every refill of a cache reads it: so nobody writes what was thought up in another epoch, or while a renewal goes on.

use futures_util::future::try_join;
use prost::Message;

use crate::error::{Error, Result};
use crate::store::due::{self, Kind};
use crate::store::keys::RootKeys;
use crate::store::proto;
use crate::store::root_upgrade::{check_store, is_renewing, is_upgraded, new_store, upgrade};
use crate::store::seq::Seq;
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::store::updated::{newest_of, newest_stamps, stamp_of};

/// The root's record, as far as the store may be used: an error while it is being renewed. Where there is none the store is
/// new, or about to be restored.
///
/// It is looked at whenever a cache is refilled: so a process that runs notices a store that another program has upgraded
/// beyond what it knows, and one that was restored from before an upgrade.
pub(crate) fn in_use(bytes: Option<&[u8]>) -> Result<proto::Instance> {
    let Some(bytes) = bytes else { return Ok(proto::Instance::default()) };
    let record = proto::Instance::decode(bytes)?;
    check_store(&record)?;
    match (is_renewing(&record), is_upgraded(&record)) {
        (true, _) => Err(Error::Renewing),
        (false, false) => Err(Error::NotUpgraded),
        (false, true) => Ok(record),
    }
}

/// The epoch, in a transaction that writes: it fails where another one begins before its commit.
pub(crate) async fn epoch_for_write(trx: &Transaction, keys: &RootKeys) -> Result<u64> {
    let key = keys.instance();
    transaction::conflict_with(trx, &key)?;
    Ok(in_use(trx.get(&key, true).await?.as_deref())?.epoch)
}

/// What is found when a root is opened.
pub(crate) struct Opened {
    pub uuid: Vec<u8>,
    pub epoch: u64,
    /// There is still something where a store that was not upgraded has it.
    pub is_unmoved: bool,
}

/// The value of [`RootKeys::due_from`] once expired documents have been surveyed, or will be. Earlier versions write an empty value;
/// they could clear the due work of an expired document that had no tombstone.
const ENDS_NOTED: &[u8] = &[1];

/// The time after which the store is surveyed once more. While processes are replaced one by one, an older one may do the first survey,
/// which does not look for expired documents, or may still clear the due work of one.
const SURVEYED_AGAIN_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;

/// Makes the root's record the first time, and upgrades one that an older program made.
pub(crate) struct OpenRoot<'a> {
    pub keys: &'a RootKeys,
    pub uuid: [u8; 16],
}

impl Operation for OpenRoot<'_> {
    type Output = Opened;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Opened> {
        let (key, due_key, old) = (self.keys.instance(), self.keys.due_from(), self.keys.old_updates());
        let old = trx.range(&old, true).reverse(true).first(1);
        let (found, due) = (trx.get(&key, false), trx.get(&due_key, false));
        let (found, newest) = try_join(async { Ok(found.await?) }, newest_stamps(trx, self.keys)).await?;
        let is_noted = due.await?.as_deref() == Some(ENDS_NOTED);
        if !is_noted {
            trx.set(&due_key, ENDS_NOTED);
        }
        let Some(found) = found else {
            let record = new_store(self.uuid.to_vec());
            trx.set(&key, &record.encode_to_vec());
            return Ok(Opened { uuid: record.uuid, epoch: record.epoch, is_unmoved: false });
        };
        let mut record = proto::Instance::decode(&*found)?;
        check_store(&record)?;
        if is_renewing(&record) {
            return Err(Error::Renewing);
        }
        if !is_noted {
            // Earlier versions wrote to this store, and listed no due work or only a part of it.
            for at_ms in [0, due::after_ms(trx.clock(), SURVEYED_AGAIN_AFTER_MS)] {
                due::mark(trx, self.keys, Kind::Survey, "", at_ms)?;
            }
        }
        // Every commit that stamps anything stamps one of these keys too, so nothing is stamped later. What a cluster has
        // committed is never above a read version that it gives afterwards.
        let old = old.await?;
        let old_newest = old.first().filter(|row| row.key() == self.keys.old_newest_update());
        let old_newest = stamp_of(old_newest.map(|row| row.value()).unwrap_or_default())?;
        let newest = Seq::new(0, newest_of(&newest).max(old_newest)).number();
        // Not asked for where nothing is stamped: a version that was handed out is kept readable for 5 s.
        if newest > 0 {
            let now = u64::try_from(trx.get_read_version().await?).unwrap_or_default();
            if newest > now {
                return Err(Error::StampsAhead { newest, now });
            }
        }
        if upgrade(&mut record) {
            trx.set(&key, &record.encode_to_vec());
            trx.update_metadata_version();
        }
        Ok(Opened { uuid: record.uuid, epoch: record.epoch, is_unmoved: !old.is_empty() })
    }
}

/// Whether the storage answers.
pub(crate) struct Ping<'a> {
    pub keys: &'a RootKeys,
}

impl Operation for Ping<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        in_use(trx.get(&self.keys.instance(), true).await?.as_deref()).map(|_| ())
    }
}
