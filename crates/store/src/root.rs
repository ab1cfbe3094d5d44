//! The root's record: the format of everything under it, its features, and its epochs.
//!
//! Only renewals write the epoch (`renew` of the layer). Every transaction that writes has the record's key as a read
//! conflict. Each change of the record changes `\xff/metadataVersion`, and a process reads the record once for each
//! value of that. So a write that was prepared in another epoch fails, and all stamps of an epoch precede those of the
//! next.

use std::sync::Arc;

use futures_util::future::try_join;
use prost::Message;

use crate::error::{Error, Result};
use crate::keys::{FORMAT_VERSION, RootKeys};
use crate::proto;
use crate::records::check_format;
use crate::seq::Seq;
use crate::transaction::{self, Attempt, Operation, Transaction};
use crate::updated::{newest_of, newest_stamps};

/// Settings are stored. A program that does not read them would admit users that they exclude.
const SETTINGS: &str = "settings";

/// The features that this program knows.
const KNOWN: &[&str] = &[SETTINGS];

/// The most earlier epochs that are kept. Positions of older ones are not known any more.
const EARLIER_MAX: usize = 64;

/// The epochs of a store: 0 at its creation, and a higher one from each renewal on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Epochs {
    now: u32,
    earlier: Arc<[u32]>,
}

impl Epochs {
    pub fn of(record: &proto::Instance) -> Epochs {
        Epochs { now: record.epoch, earlier: record.earlier.as_slice().into() }
    }

    /// Returns the epoch of new stamps.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Returns whether the store has a history in an epoch. It has none in the epoch of a store that was lost and
    /// replaced by an older backup: what a position there has seen of this store is not known.
    pub fn has(&self, epoch: u32) -> bool {
        epoch == 0 || epoch == self.now || self.earlier.contains(&epoch)
    }
}

/// Begins the next epoch: the time in seconds of Unix time, so that it differs from each epoch that a lost state of the
/// store has begun, but higher than the last one in any case.
///
/// # Errors
/// [`Error::Corrupt`] if there is no higher one.
pub fn raise_epoch(record: &mut proto::Instance, unix_s: u64) -> Result<()> {
    let least = record.epoch.checked_add(1).ok_or_else(|| Error::Corrupt("the epochs are used up".to_owned()))?;
    if record.epoch > 0 {
        record.earlier.push(record.epoch);
        record.earlier.drain(..record.earlier.len().saturating_sub(EARLIER_MAX));
    }
    record.epoch = u32::try_from(unix_s).unwrap_or(least).max(least);
    Ok(())
}

/// Checks that this program may use a store, by the format and the features of its record.
pub fn check_store(record: &proto::Instance) -> Result<()> {
    check_format("the store", record.format_version)?;
    match record.features.iter().find(|feature| !KNOWN.contains(&feature.as_str())) {
        Some(feature) => Err(Error::FeatureUnknown { what: "the store".to_owned(), feature: feature.clone() }),
        None => Ok(()),
    }
}

fn new_store(uuid: Vec<u8>) -> proto::Instance {
    proto::Instance { format_version: FORMAT_VERSION, uuid, ..proto::Instance::default() }
}

/// Returns whether the record says that settings are stored.
pub fn has_settings(record: &proto::Instance) -> bool {
    record.features.iter().any(|feature| feature == SETTINGS)
}

pub fn name_settings(record: &mut proto::Instance, are_stored: bool) {
    record.features.retain(|feature| feature != SETTINGS);
    if are_stored {
        record.features.push(SETTINGS.to_owned());
        record.features.sort_unstable();
    }
}

/// Writes the record, and changes `\xff/metadataVersion`: a process that has read the record under one value of it does
/// not read the record again.
pub fn write_root(trx: &Transaction, keys: &RootKeys, record: &proto::Instance) {
    trx.set(&keys.instance(), &record.encode_to_vec());
    trx.update_metadata_version();
}

/// Decodes the root's record and checks that the store can be used. Without a record the store is new, or about to be
/// restored.
///
/// Each process calls this once for each value of `\xff/metadataVersion`, so a running process notices a store that
/// another program has changed beyond its knowledge.
pub fn in_use(bytes: Option<&[u8]>) -> Result<proto::Instance> {
    let Some(bytes) = bytes else { return Ok(proto::Instance::default()) };
    let record = proto::Instance::decode(bytes)?;
    check_store(&record)?;
    Ok(record)
}

/// Returns the epoch, in a transaction that writes. The transaction fails if another epoch begins before its commit.
pub async fn epoch_for_write(trx: &Transaction, keys: &RootKeys) -> Result<u32> {
    let key = keys.instance();
    transaction::conflict_with(trx, &key)?;
    Ok(in_use(trx.get(&key, true).await?.as_deref())?.epoch)
}

/// The identity of an opened root.
pub struct RootIdentity {
    pub uuid: Vec<u8>,
    pub epoch: u32,
}

/// Opens a root, and creates its record the first time.
pub struct OpenRoot<'a> {
    pub keys: &'a RootKeys,
    pub uuid: [u8; 16],
}

impl Operation for OpenRoot<'_> {
    type Output = RootIdentity;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<RootIdentity> {
        let key = self.keys.instance();
        let found = trx.get(&key, false);
        let (found, newest) = try_join(async { Ok(found.await?) }, newest_stamps(trx, self.keys)).await?;
        let Some(found) = found else {
            let record = new_store(self.uuid.to_vec());
            // No process takes a missing record for known, so `\xff/metadataVersion` may stay.
            trx.set(&key, &record.encode_to_vec());
            return Ok(RootIdentity { uuid: record.uuid, epoch: record.epoch });
        };
        let record = proto::Instance::decode(&*found)?;
        check_store(&record)?;
        // Every commit that writes a stamp also writes one of these keys, so no stamp is newer. A cluster returns no
        // read version below one that it has committed. Stamps of earlier epochs may be of other clusters.
        let newest = Seq::new(0, newest_of(&newest));
        let newest = if newest.epoch() == record.epoch { newest.version() } else { 0 };
        // An empty store needs no read version.
        if newest > 0 {
            let now = u64::try_from(trx.get_read_version().await?).unwrap_or_default();
            if newest > now {
                return Err(Error::StampsAhead { newest, now });
            }
        }
        Ok(RootIdentity { uuid: record.uuid, epoch: record.epoch })
    }
}

/// Checks that the storage answers.
pub struct Ping<'a> {
    pub keys: &'a RootKeys,
}

impl Operation for Ping<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        in_use(trx.get(&self.keys.instance(), true).await?.as_deref()).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_rise_and_are_known_in_part() {
        let mut record = new_store(vec![7; 16]);
        assert!(Epochs::of(&record).has(0) && !Epochs::of(&record).has(1));
        raise_epoch(&mut record, 1_000).unwrap();
        assert_eq!((record.epoch, record.earlier.as_slice()), (1_000, &[][..]));
        // A clock that has moved back, and one beyond the year 2106.
        for (unix_s, epoch) in [(999, 1_001), (1_001, 1_002), (u64::MAX, 1_003), (2_000, 2_000)] {
            raise_epoch(&mut record, unix_s).unwrap();
            assert_eq!(record.epoch, epoch);
        }
        let epochs = Epochs::of(&record);
        assert_eq!((epochs.now(), &*epochs.earlier), (2_000, &[1_000, 1_001, 1_002, 1_003][..]));
        assert!([0, 1_000, 1_003, 2_000].into_iter().all(|epoch| epochs.has(epoch)));
        assert!(![1, 999, 1_500, 2_001, u32::MAX].into_iter().any(|epoch| epochs.has(epoch)));
        for unix_s in 3_000..3_100 {
            raise_epoch(&mut record, unix_s).unwrap();
        }
        let epochs = Epochs::of(&record);
        assert_eq!(
            (epochs.earlier.len(), epochs.has(3_098), epochs.has(2_000), epochs.has(0)),
            (64, true, false, true)
        );
        record.epoch = u32::MAX;
        assert!(raise_epoch(&mut record, 5).is_err());
    }

    #[test]
    fn an_unknown_feature_is_refused() {
        let mut record = new_store(vec![1; 16]);
        assert!(check_store(&record).is_ok());
        record.features.push("shards".to_owned());
        let refused = check_store(&record).unwrap_err().to_string();
        assert_eq!(refused, "the store uses \"shards\", which this flatbed does not know: use a newer flatbed");
    }

    #[test]
    fn another_format_is_refused() {
        let of =
            |format_version| check_store(&proto::Instance { format_version, ..new_store(Vec::new()) }).unwrap_err();
        assert!(matches!(of(0), Error::Corrupt(_)));
        assert!(matches!(of(FORMAT_VERSION + 1), Error::FormatTooNew { .. }));
        assert_eq!(
            of(FORMAT_VERSION - 1).to_string(),
            format!(
                "the store has format {}, and this flatbed reads only {FORMAT_VERSION}: dump the databases with the \
                 flatbed that wrote them, and load them into a new store",
                FORMAT_VERSION - 1
            )
        );
    }
}
