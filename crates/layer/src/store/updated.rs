//! When each database was changed last, and which were created and deleted: what `_db_updates` reads.

use foundationdb::options::MutationType;
use prost::Message;

use crate::error::Result;
use crate::store::keys::{BucketKeys, RootKeys};
use crate::store::once::now_ms;
use crate::store::proto;
use crate::store::seq::{STAMP_BYTES, Seq};
use crate::store::transaction::{Quiet, Transaction};

/// A transaction's versionstamp, with two bytes of user version.
pub(crate) type Stamp = [u8; STAMP_BYTES];

/// The place of a transaction's stamp at the beginning of a value, two bytes of user version, and where the place is.
const STAMP_AS_VALUE: [u8; STAMP_BYTES + 4] =
    [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0];

/// Sets the newest stamp of all to the transaction's.
pub(crate) fn touch_newest(trx: &Transaction, keys: &RootKeys) -> Result<()> {
    Quiet(trx).atomic(&keys.newest_update(), &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)
}

/// What every write of documents to one database overwrites.
#[derive(Debug)]
pub(crate) struct UpdatedKeys {
    database: Vec<u8>,
    newest: Vec<u8>,
}

impl UpdatedKeys {
    pub(crate) fn new(keys: &RootKeys, name: &str) -> Self {
        UpdatedKeys { database: keys.database_updated(name), newest: keys.newest_update() }
    }

    /// Whether the database's documents have ever changed.
    pub(crate) async fn is_there(&self, trx: &Transaction) -> Result<bool> {
        Ok(trx.get(&self.database, true).await?.is_some())
    }

    /// In a transaction that changes documents.
    pub(crate) fn touch(&self, trx: &Transaction) -> Result<()> {
        let quiet = Quiet(trx);
        quiet.atomic(&self.database, &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)?;
        quiet.atomic(&self.newest, &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)
    }
}

/// In the transaction that creates or deletes a database.
pub(crate) fn note_event(trx: &Transaction, keys: &RootKeys, name: &str, deleted: bool) -> Result<()> {
    let quiet = Quiet(trx);
    let event = proto::DatabaseEvent { name: name.to_owned(), deleted, at_ms: now_ms(), renewed: 0 };
    let key = keys.database_event_stamped(0);
    quiet.atomic(&key, &event.encode_to_vec(), MutationType::SetVersionstampedKey)?;
    if deleted {
        quiet.clear(&keys.database_updated(name))?;
    }
    touch_newest(trx, keys)
}

/// An empty value: before all stamps.
pub(crate) fn stamp_of(value: &[u8]) -> Result<Stamp> {
    if value.is_empty() { Ok([0; STAMP_BYTES]) } else { Ok(*Seq::from_slice(0, value)?.stamp()) }
}

/// Sets a bucket's `last_seq` to the transaction's versionstamp and the greatest user version in it: blindly, and quietly.
pub(crate) fn touch_last_seq(trx: &Transaction, bucket: &BucketKeys, user_version: u16) -> Result<()> {
    let mut value = vec![0xff; 10];
    value.extend_from_slice(&user_version.to_be_bytes());
    value.extend_from_slice(&0_u32.to_le_bytes());
    Quiet(trx).atomic(&bucket.last_seq(), &value, MutationType::SetVersionstampedValue)
}
