//! The sync function of a database, stored beside the database's record.

use prost::Message;

use crate::features::{name_features, name_verdicts};
use crate::keys::Keys;
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
