//! The root's record: the format of everything under it, its epoch, and whether it is being renewed.
//!
//! The epoch is written by renewals alone ([`crate::renew`]). Every transaction that writes has its key as a read conflict,
//! and every refill of a cache reads it: so nobody writes what was thought up in another epoch, or while a renewal goes on.

use prost::Message;

use crate::error::{Error, Result};
use crate::store::due::{self, Kind};
use crate::store::keys::{FORMAT_VERSION, RootKeys};
use crate::store::proto;
use crate::store::records::check_format;
use crate::store::seq::Seq;
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::store::updated::stamp_of;

/// The root's record, as far as the store may be used: an error while it is being renewed. Where there is none the store is
/// new, or about to be restored.
pub(crate) fn in_use(bytes: Option<&[u8]>) -> Result<proto::Instance> {
    let record = bytes.map(proto::Instance::decode).transpose()?.unwrap_or_default();
    if record.renewal.is_empty() { Ok(record) } else { Err(Error::Renewing) }
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
}

/// Makes the root's record the first time.
pub(crate) struct OpenRoot<'a> {
    pub keys: &'a RootKeys,
    pub uuid: [u8; 16],
}

impl Operation for OpenRoot<'_> {
    type Output = Opened;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Opened> {
        let (key, newest_key, due_key) = (self.keys.instance(), self.keys.newest_update(), self.keys.due_from());
        let (found, newest, due) = (trx.get(&key, false), trx.get(&newest_key, true), trx.get(&due_key, false));
        let is_noted = due.await?.is_some();
        if !is_noted {
            trx.set(&due_key, &[]);
        }
        let Some(found) = found.await? else {
            let uuid = self.uuid.to_vec();
            let record = proto::Instance { format_version: FORMAT_VERSION, uuid, ..proto::Instance::default() };
            trx.set(&key, &record.encode_to_vec());
            return Ok(Opened { uuid: record.uuid, epoch: record.epoch });
        };
        let record = proto::Instance::decode(&*found)?;
        check_format("the store", record.format_version)?;
        let mut record = in_use(Some(&found)).map(|_| record)?;
        if !is_noted {
            // Programs from before wrote here, and noted nothing of what became due.
            due::mark(trx, self.keys, Kind::Survey, "", 0)?;
        }
        if record.format_version < FORMAT_VERSION {
            // What lies under it is upgraded database by database: see `upgrade`.
            record.format_version = FORMAT_VERSION;
            trx.set(&key, &record.encode_to_vec());
        }
        // Every commit that stamps anything stamps this key too, so nothing is stamped later. What a cluster has committed
        // is never above a read version that it gives afterwards.
        let newest = Seq::new(0, stamp_of(newest.await?.as_deref().unwrap_or_default())?).number();
        // Not asked for where nothing is stamped: a version that was handed out is kept readable for 5 s.
        if newest > 0 {
            let now = u64::try_from(trx.get_read_version().await?).unwrap_or_default();
            if newest > now {
                return Err(Error::StampsAhead { newest, now });
            }
        }
        Ok(Opened { uuid: record.uuid, epoch: record.epoch })
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
