//! The sync function of a database, stored beside the database's record.

use prost::Message;

use crate::error::Result;
use crate::features::{name_features, name_verdicts};
use crate::keys::Keys;
use crate::once::random_id;
use crate::proto;
use crate::transaction::Transaction;

/// The channels of a new database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelsOptions {
    /// The sync function; `None`: the documents' own `channels` members.
    pub sync: Option<String>,
}

/// Gives a record channels, or another function. A write that was judged by the former function then finds a changed
/// record.
pub fn set_function(
    trx: &Transaction,
    keys: &Keys,
    record: &mut proto::DatabaseRecord,
    source: Option<&str>,
    now_ms: u64,
) {
    record.channels += 1;
    record.rules += 1;
    name_verdicts(record);
    name_features(record);
    match source {
        Some(source) => {
            let function = proto::SyncFunction { source: source.to_owned(), number: record.channels, since_ms: now_ms };
            trx.set(&keys.sync_function(), &function.encode_to_vec());
        }
        None => trx.clear(&keys.sync_function()),
    }
}

/// Draws the number of a resync, before the transaction that begins it.
pub fn draw_run() -> Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = random_id()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// Begins a resync with the database's current function, in place of an earlier one. No range is written yet.
pub fn begin_resync(trx: &Transaction, keys: &Keys, resync: &proto::Resync) {
    let ranges = keys.resync_ranges();
    trx.clear_range(&ranges.begin, &ranges.end);
    trx.set(&keys.resync(), &resync.encode_to_vec());
}
