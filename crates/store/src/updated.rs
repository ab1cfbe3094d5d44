//! The last change of each database, and the log of created and deleted databases: the data of `_db_updates`.

use foundationdb::options::MutationType;
use prost::Message;

use crate::error::Result;
use crate::keys::{BUCKETS, BucketKeys, RootKeys, bucket_of};
use crate::proto;
use crate::seq::{STAMP_BYTES, Seq};
use crate::transaction::{Quiet, Transaction};

/// A transaction's versionstamp, with two bytes of user version.
pub type Stamp = [u8; STAMP_BYTES];

/// A value that starts with the placeholder of the transaction's stamp, two bytes of user version, and the
/// placeholder's offset.
const STAMP_AS_VALUE: [u8; STAMP_BYTES + 4] =
    [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0];

pub fn touch_newest(trx: &Transaction, keys: &RootKeys, bucket: u8) -> Result<()> {
    Quiet(trx).atomic(&keys.newest_update(bucket), &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)
}

/// Reads the newest stamp of each bucket that has one, at the transaction's read version. A change of a database is no
/// newer than the stamp of its bucket.
pub async fn newest_stamps(trx: &Transaction, keys: &RootKeys) -> Result<Vec<(u8, Stamp)>> {
    let rows = newest_rows(trx, keys).await?;
    rows.iter().map(|(key, value)| Ok((keys.newest_update_bucket(key)?, stamp_of(value)?))).collect()
}

/// Reads the rows of [`newest_stamps`] as stored.
pub async fn newest_rows(trx: &Transaction, keys: &RootKeys) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut rows = Vec::with_capacity(BUCKETS);
    let mut rest = Some(keys.newest_updates());
    while let Some(range) = rest {
        let page = trx.range(&range, true).page(BUCKETS + 1).await?;
        rows.extend(page.to_vec());
        rest = page.rest;
    }
    Ok(rows)
}

pub fn newest_of(stamps: &[(u8, Stamp)]) -> Stamp {
    stamps.iter().map(|(_, stamp)| *stamp).max().unwrap_or_default()
}

/// The keys that every write of documents to one database, or one of its shards, overwrites.
#[derive(Debug)]
pub struct UpdatedKeys {
    database: Vec<u8>,
    newest: Vec<u8>,
}

impl UpdatedKeys {
    /// Creates the keys. A database without shards has shard 0.
    pub fn new(keys: &RootKeys, name: &str, shard: u32) -> Self {
        let (database, newest) = (keys.database_updated(name, shard), keys.newest_update(bucket_of(name, shard)));
        UpdatedKeys { database, newest }
    }

    /// Returns whether its documents have ever changed.
    pub async fn is_there(&self, trx: &Transaction) -> Result<bool> {
        Ok(trx.get(&self.database, true).await?.is_some())
    }

    /// Writes the keys, in a transaction that changes documents.
    pub fn touch(&self, trx: &Transaction) -> Result<()> {
        let quiet = Quiet(trx);
        quiet.atomic(&self.database, &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)?;
        quiet.atomic(&self.newest, &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)
    }

    /// Records that its documents have never changed.
    pub fn clear(&self, trx: &Transaction) -> Result<()> {
        Quiet(trx).clear(&self.database)
    }
}

/// Logs a creation or, with `deleted`, a deletion of a database with this many shards, in its transaction.
pub fn note_event(trx: &Transaction, keys: &RootKeys, name: &str, deleted: Option<u32>) -> Result<()> {
    let quiet = Quiet(trx);
    let (name_of, at_ms) = (name.to_owned(), trx.clock().unix_ms());
    let event = proto::DatabaseEvent { name: name_of, deleted: deleted.is_some(), at_ms, renewed: 0 };
    let key = keys.database_event_stamped(0);
    quiet.atomic(&key, &event.encode_to_vec(), MutationType::SetVersionstampedKey)?;
    if let Some(shards) = deleted {
        (0..shards.max(1)).try_for_each(|shard| quiet.clear(&keys.database_updated(name, shard)))?;
    }
    touch_newest(trx, keys, bucket_of(name, 0))
}

/// Adds or removes the list entry of a replicator database, in the transaction that creates or deletes it, and wakes
/// the followers.
pub fn note_replicator(trx: &Transaction, keys: &RootKeys, name: &str, is_there: bool) -> Result<()> {
    let quiet = Quiet(trx);
    let key = keys.replicator(name);
    if is_there {
        quiet.set(&key, &[])?
    } else {
        quiet.clear(&key)?
    }
    quiet.atomic(&keys.replicators_changed(), &STAMP_AS_VALUE, MutationType::SetVersionstampedValue)
}

/// Decodes a stamp. An empty value precedes all stamps.
pub fn stamp_of(value: &[u8]) -> Result<Stamp> {
    if value.is_empty() { Ok([0; STAMP_BYTES]) } else { Ok(*Seq::from_slice(0, value)?.stamp()) }
}

/// Sets a bucket's `last_seq` to the transaction's versionstamp and its greatest user version, without a read and
/// without a write conflict range.
pub fn touch_last_seq(trx: &Transaction, bucket: &BucketKeys, user_version: u16) -> Result<()> {
    let mut value = vec![0xff; 10];
    value.extend_from_slice(&user_version.to_be_bytes());
    value.extend_from_slice(&0_u32.to_le_bytes());
    Quiet(trx).atomic(&bucket.last_seq(), &value, MutationType::SetVersionstampedValue)
}
