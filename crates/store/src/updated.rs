//! The last change of each database, and the log of created and deleted databases: the data of `_db_updates`.

use foundationdb::options::MutationType;
use prost::Message;

use crate::error::Result;
use crate::keys::{BUCKETS, BucketKeys, RootKeys, bucket_of};
use crate::proto;
use crate::seq::{STAMP_BYTES, Seq, Stamp, own_stamp, stamped_value};
use crate::transaction::{Quiet, Transaction};

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
    stamp: Vec<u8>,
}

impl UpdatedKeys {
    /// Creates the keys, which this epoch stamps. A database without shards has shard 0.
    pub fn new(keys: &RootKeys, name: &str, shard: u32, epoch: u32) -> Self {
        let (database, newest) = (keys.database_updated(name, shard), keys.newest_update(bucket_of(name, shard)));
        UpdatedKeys { database, newest, stamp: stamped_value(&own_stamp(epoch, 0)) }
    }

    /// Returns whether its documents have ever changed.
    pub async fn is_there(&self, trx: &Transaction) -> Result<bool> {
        Ok(trx.get(&self.database, true).await?.is_some())
    }

    /// Writes the keys, in a transaction that changes documents.
    pub fn touch(&self, trx: &Transaction) -> Result<()> {
        let quiet = Quiet(trx);
        quiet.atomic(&self.database, &self.stamp, MutationType::SetVersionstampedValue)?;
        quiet.atomic(&self.newest, &self.stamp, MutationType::SetVersionstampedValue)
    }

    /// Records that its documents have never changed.
    pub fn clear(&self, trx: &Transaction) -> Result<()> {
        Quiet(trx).clear(&self.database)
    }
}

/// Logs a creation or, with `deleted`, a deletion of a database with this many shards, in its transaction of this epoch.
pub fn note_event(trx: &Transaction, keys: &RootKeys, epoch: u32, name: &str, deleted: Option<u32>) -> Result<()> {
    let quiet = Quiet(trx);
    let (name_of, at_ms) = (name.to_owned(), trx.clock().unix_ms());
    let event = proto::DatabaseEvent { name: name_of, deleted: deleted.is_some(), at_ms };
    let key = keys.database_event_stamped(epoch);
    quiet.atomic(&key, &event.encode_to_vec(), MutationType::SetVersionstampedKey)?;
    if let Some(shards) = deleted {
        (0..shards.max(1)).try_for_each(|shard| quiet.clear(&keys.database_updated(name, shard)))?;
    }
    let stamp = stamped_value(&own_stamp(epoch, 0));
    quiet.atomic(&keys.newest_update(bucket_of(name, 0)), &stamp, MutationType::SetVersionstampedValue)
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
    // Only watched.
    let stamp = stamped_value(&own_stamp(0, 0));
    quiet.atomic(&keys.replicators_changed(), &stamp, MutationType::SetVersionstampedValue)
}

/// Decodes a stamp. An empty value precedes all stamps.
pub fn stamp_of(value: &[u8]) -> Result<Stamp> {
    if value.is_empty() { Ok([0; STAMP_BYTES]) } else { Ok(*Seq::from_slice(0, value)?.stamp()) }
}

/// Sets a bucket's `last_seq` to the transaction's stamp of this epoch with its greatest user version, without a read
/// and without a write conflict range.
pub fn touch_last_seq(trx: &Transaction, bucket: &BucketKeys, epoch: u32, user_version: u16) -> Result<()> {
    let value = stamped_value(&own_stamp(epoch, user_version));
    Quiet(trx).atomic(&bucket.last_seq(), &value, MutationType::SetVersionstampedValue)
}
