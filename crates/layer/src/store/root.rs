//! The root's record: the format of everything under it, its features and its epoch, and whether it is being renewed.
//!
//! The epoch is written by renewals alone ([`crate::renew`]). Every transaction that writes has its key as a read conflict,
//! and every refill of a cache reads it: so nobody writes what was thought up in another epoch, or while a renewal goes on.

use futures_util::future::try_join;
use prost::Message;

use crate::error::{Error, Result};
use crate::store::keys::{FORMAT_VERSION, RootKeys};
use crate::store::proto;
use crate::store::records::check_format;
use crate::store::seq::Seq;
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::store::updated::{newest_of, newest_stamps};

/// Settings are stored, and who reads none would let in everyone whom they keep out.
const SETTINGS: &str = "settings";

/// The features that this program knows.
const KNOWN: &[&str] = &[SETTINGS];

/// A renewal's mark: the stamp of the transaction that began it.
const RENEWAL_BYTES: usize = 10;

/// Whether this program may use a store: its format, and the features that its record names.
pub(crate) fn check_store(record: &proto::Instance) -> Result<()> {
    check_format("the store", record.format_version)?;
    match record.features.iter().find(|feature| !KNOWN.contains(&feature.as_str())) {
        Some(feature) => Err(Error::FeatureUnknown { what: "the store".to_owned(), feature: feature.clone() }),
        None => Ok(()),
    }
}

/// The record of a new store.
fn new_store(uuid: Vec<u8>) -> proto::Instance {
    proto::Instance { format_version: FORMAT_VERSION, uuid, ..proto::Instance::default() }
}

/// Whether the record says that settings are stored.
pub(crate) fn has_settings(record: &proto::Instance) -> bool {
    record.features.iter().any(|feature| feature == SETTINGS)
}

/// Says in the record whether settings are stored.
pub(crate) fn name_settings(record: &mut proto::Instance, are_stored: bool) {
    record.features.retain(|feature| feature != SETTINGS);
    if are_stored {
        record.features.push(SETTINGS.to_owned());
        record.features.sort_unstable();
    }
}

/// Whether the record says that a renewal goes on.
pub(crate) fn is_renewing(record: &proto::Instance) -> bool {
    record.renewal.len() == RENEWAL_BYTES
}

/// Says that none goes on.
pub(crate) fn end_renewal(record: &mut proto::Instance) {
    record.renewal.clear();
}

/// The value for SET_VERSIONSTAMPED_VALUE of a record whose renewal the transaction begins, whose stamp is the mark.
pub(crate) fn begin_renewal(record: &mut proto::Instance) -> Vec<u8> {
    record.renewal = vec![0xff; RENEWAL_BYTES];
    // What stands behind it: fields are in the order of their numbers.
    let behind = proto::Instance { features: record.features.clone(), ..proto::Instance::default() }.encoded_len();
    let mut operand = record.encode_to_vec();
    let offset = (operand.len() - behind - RENEWAL_BYTES) as u32;
    operand.extend_from_slice(&offset.to_le_bytes());
    operand
}

/// The root's record, as far as the store may be used: an error while it is being renewed. Where there is none the store is
/// new, or about to be restored.
///
/// It is looked at whenever a cache is refilled: so a process that runs notices a store that another program has brought
/// beyond what it knows.
pub(crate) fn in_use(bytes: Option<&[u8]>) -> Result<proto::Instance> {
    let Some(bytes) = bytes else { return Ok(proto::Instance::default()) };
    let record = proto::Instance::decode(bytes)?;
    check_store(&record)?;
    if is_renewing(&record) { Err(Error::Renewing) } else { Ok(record) }
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
        let key = self.keys.instance();
        let found = trx.get(&key, false);
        let (found, newest) = try_join(async { Ok(found.await?) }, newest_stamps(trx, self.keys)).await?;
        let Some(found) = found else {
            let record = new_store(self.uuid.to_vec());
            trx.set(&key, &record.encode_to_vec());
            return Ok(Opened { uuid: record.uuid, epoch: record.epoch });
        };
        let record = proto::Instance::decode(&*found)?;
        check_store(&record)?;
        if is_renewing(&record) {
            return Err(Error::Renewing);
        }
        // Every commit that stamps anything stamps one of these keys too, so nothing is stamped later. What a cluster has
        // committed is never above a read version that it gives afterwards.
        let newest = Seq::new(0, newest_of(&newest)).number();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_of_a_renewal_has_its_place() {
        let named = |epoch, are_stored| {
            let mut record = proto::Instance { epoch, ..new_store(vec![7; 16]) };
            name_settings(&mut record, are_stored);
            record
        };
        for mut record in [named(0, false), named(5, true), named(u64::MAX, false)] {
            let operand = begin_renewal(&mut record);
            let (value, offset) = operand.split_at(operand.len() - 4);
            let at = u32::from_le_bytes(offset.try_into().unwrap()) as usize;
            let mut value = value.to_vec();
            value[at..at + RENEWAL_BYTES].copy_from_slice(&[0xab; RENEWAL_BYTES]);
            let mut stamped = proto::Instance::decode(value.as_slice()).unwrap();
            assert_eq!(stamped, proto::Instance { renewal: vec![0xab; RENEWAL_BYTES], ..record });
            assert!(is_renewing(&stamped));
            end_renewal(&mut stamped);
            assert!(!is_renewing(&stamped));
        }
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
