//! The root's record: the format of everything under it, its features, its epoch, and whether a renewal is under way.
//!
//! Only renewals write the epoch (`renew` of the layer). Every transaction that writes has the record's key as a read
//! conflict. Each change of the record changes `\xff/metadataVersion`, and a process reads the record once for each
//! value of that. So a write that was prepared in another epoch, or that meets a renewal, fails.

use foundationdb::options::MutationType;
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

/// The bytes of a renewal's mark: the stamp of the transaction that began it.
const RENEWAL_BYTES: usize = 10;

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

/// Returns whether the record says that a renewal is under way.
pub fn is_renewing(record: &proto::Instance) -> bool {
    record.renewal.len() == RENEWAL_BYTES
}

/// Records that no renewal is under way.
pub fn end_renewal(record: &mut proto::Instance) {
    record.renewal.clear();
}

/// Writes the record, and changes `\xff/metadataVersion`: a process that has read the record under one value of it does
/// not read the record again.
pub fn write_root(trx: &Transaction, keys: &RootKeys, record: &proto::Instance) {
    trx.set(&keys.instance(), &record.encode_to_vec());
    trx.update_metadata_version();
}

/// As [`write_root`], in the transaction that begins a renewal. The transaction's stamp is the mark.
pub fn begin_renewal(trx: &Transaction, keys: &RootKeys, record: &mut proto::Instance) {
    trx.atomic_op(&keys.instance(), &renewal_operand(record), MutationType::SetVersionstampedValue);
    trx.update_metadata_version();
}

/// Encodes the record for SET_VERSIONSTAMPED_VALUE.
fn renewal_operand(record: &mut proto::Instance) -> Vec<u8> {
    record.renewal = vec![0xff; RENEWAL_BYTES];
    // The length of the fields behind it: fields are in the order of their numbers.
    let behind = proto::Instance { features: record.features.clone(), ..proto::Instance::default() }.encoded_len();
    let mut operand = record.encode_to_vec();
    let offset = (operand.len() - behind - RENEWAL_BYTES) as u32;
    operand.extend_from_slice(&offset.to_le_bytes());
    operand
}

/// Decodes the root's record and checks that the store can be used; a renewal under way is an error. Without a record
/// the store is new, or about to be restored.
///
/// Each process calls this once for each value of `\xff/metadataVersion`, so a running process notices a store that another program has changed beyond its
/// knowledge.
pub fn in_use(bytes: Option<&[u8]>) -> Result<proto::Instance> {
    let Some(bytes) = bytes else { return Ok(proto::Instance::default()) };
    let record = proto::Instance::decode(bytes)?;
    check_store(&record)?;
    if is_renewing(&record) { Err(Error::Renewing) } else { Ok(record) }
}

/// Returns the epoch, in a transaction that writes. The transaction fails if another epoch begins before its commit.
pub async fn epoch_for_write(trx: &Transaction, keys: &RootKeys) -> Result<u64> {
    let key = keys.instance();
    transaction::conflict_with(trx, &key)?;
    Ok(in_use(trx.get(&key, true).await?.as_deref())?.epoch)
}

/// The identity of an opened root.
pub struct RootIdentity {
    pub uuid: Vec<u8>,
    pub epoch: u64,
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
        if is_renewing(&record) {
            return Err(Error::Renewing);
        }
        // Every commit that writes a stamp also writes one of these keys, so no stamp is newer. A cluster returns no
        // read version below one that it has committed.
        let newest = Seq::new(0, newest_of(&newest)).number();
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
    fn the_stamp_of_a_renewal_has_its_place() {
        let named = |epoch, are_stored| {
            let mut record = proto::Instance { epoch, ..new_store(vec![7; 16]) };
            name_settings(&mut record, are_stored);
            record
        };
        for mut record in [named(0, false), named(5, true), named(u64::MAX, false)] {
            let operand = renewal_operand(&mut record);
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
