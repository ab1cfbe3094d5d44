//! The features of a store, and how one that an older program made gets those that it lacks, while older programs run.
//!
//! The upgrade is one transaction, which writes the root's record. Everything that writes has it as a read conflict, and
//! `\xff/metadataVersion` changes with it: so what an older program has under way fails, and what it begins afterwards it
//! refuses, since it looks at the record again. Only then is moved what lies elsewhere from now on, in transactions of
//! bounded size that whoever opens the store next goes on with, and which are through before it is served.

use std::sync::Arc;

use foundationdb::Database as Fdb;
use foundationdb::options::MutationType;
use prost::Message;

use crate::error::{Error, Result};
use crate::store::instruments::Instruments;
use crate::store::keys::{FEATURES_FORMAT_VERSION, FORMAT_VERSION, KeyRange, RootKeys, bucket_of};
use crate::store::proto;
use crate::store::records::check_format;
use crate::store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use crate::store::updated::stamp_of;

/// Newest changes of databases lie in buckets by hash of the name.
const UPDATES_IN_BUCKETS: &str = "updates:buckets";

/// What every store that is served has.
const NEEDED: &[&str] = &[UPDATES_IN_BUCKETS];

/// Settings are stored, and who reads none would let in everyone whom they keep out.
const SETTINGS: &str = "settings";

/// What this program knows.
const KNOWN: &[&str] = &[UPDATES_IN_BUCKETS, SETTINGS];

/// Whether the record says that settings are stored.
pub(crate) fn has_settings(record: &proto::Instance) -> bool {
    record.features.iter().any(|feature| feature == SETTINGS)
}

/// Says in the record of an upgraded store whether settings are stored.
pub(crate) fn name_settings(record: &mut proto::Instance, are_stored: bool) {
    record.features.retain(|feature| feature != SETTINGS);
    if are_stored {
        record.features.push(SETTINGS.to_owned());
        record.features.sort_unstable();
    }
}

/// A renewal's mark: the stamp of the transaction that began it.
pub(crate) const RENEWAL_BYTES: usize = 10;

/// Stands in a renewal's place where none goes on, for programs that know no features.
const NO_RENEWAL: &[u8] = &[0];

/// Entries moved in one transaction: some 300 kB, with names of the greatest length.
const MOVED_AT_ONCE: usize = 500;

/// Whether this program may use a store: its format, and the features that its record names. It may lack some.
pub(crate) fn check_store(record: &proto::Instance) -> Result<()> {
    if record.format_version != FEATURES_FORMAT_VERSION {
        check_format("the store", record.format_version)?;
    }
    match record.features.iter().find(|feature| !KNOWN.contains(&feature.as_str())) {
        Some(feature) => Err(Error::FeatureUnknown { what: "the store".to_owned(), feature: feature.clone() }),
        None => Ok(()),
    }
}

/// The record of a new store.
pub(crate) fn new_store(uuid: Vec<u8>) -> proto::Instance {
    let mut record = proto::Instance { format_version: FORMAT_VERSION, uuid, ..proto::Instance::default() };
    upgrade(&mut record);
    record
}

/// Whether a store has all features that this program needs.
pub(crate) fn is_upgraded(record: &proto::Instance) -> bool {
    NEEDED.iter().all(|needed| record.features.iter().any(|feature| feature == needed))
}

/// Names the features that are missing; false: there are none. What the transaction must do beside is written nowhere:
/// see the module.
pub(crate) fn upgrade(record: &mut proto::Instance) -> bool {
    if is_upgraded(record) {
        return false;
    }
    record.features.extend(NEEDED.iter().map(|feature| (*feature).to_owned()));
    record.features.sort_unstable();
    record.features.dedup();
    record.format_version = FEATURES_FORMAT_VERSION;
    if !is_renewing(record) {
        end_renewal(record);
    }
    true
}

/// Whether the record says that a renewal goes on.
pub(crate) fn is_renewing(record: &proto::Instance) -> bool {
    record.renewal.len() == RENEWAL_BYTES
}

/// Says that none goes on.
pub(crate) fn end_renewal(record: &mut proto::Instance) {
    record.renewal = if record.features.is_empty() { Vec::new() } else { NO_RENEWAL.to_vec() };
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

/// Upgrades the record of a store that is about to be renewed.
pub(crate) struct Upgrade<'a> {
    pub keys: &'a RootKeys,
}

impl Operation for Upgrade<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let key = self.keys.instance();
        let mut record = proto::Instance::decode(&*trx.get(&key, false).await?.ok_or(Error::StoreNotFound)?)?;
        check_store(&record)?;
        if upgrade(&mut record) {
            trx.set(&key, &record.encode_to_vec());
            // An interrupted renewal is distinguished by this key from one that was ended elsewhere, and older programs refuse the
            // store for its sake anyway.
            if !is_renewing(&record) {
                trx.update_metadata_version();
            }
        }
        Ok(())
    }
}

/// Moves what an upgraded store still has in its old places. Several may do so at once.
pub(crate) async fn move_updates(db: &Fdb, metrics: &Arc<Instruments>, keys: &RootKeys) -> Result<()> {
    let mut rest = Some(keys.old_updates());
    while let Some(range) = rest {
        rest = transaction::write(db, metrics, &mut Move { keys, range }).await?;
    }
    Ok(())
}

struct Move<'a> {
    keys: &'a RootKeys,
    range: KeyRange,
}

impl Operation for Move<'_> {
    /// What is left.
    type Output = Option<KeyRange>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        // Read with conflict: another one may have moved it since, and what was moved may have been deleted since then.
        let page = trx.range(&self.range, false).page(MOVED_AT_ONCE).await?;
        let quiet = Quiet(trx);
        for row in &page {
            // What comes later than what is moved is greater.
            let max = |key: Vec<u8>| quiet.atomic(&key, row.value(), MutationType::ByteMax);
            if row.key() == self.keys.old_newest_update() {
                max(self.keys.newest_update(0))?;
            } else if let (Ok(name), Ok(_)) = (self.keys.old_database_updated_name(row.key()), stamp_of(row.value())) {
                max(self.keys.database_updated(&name, 0))?;
                max(self.keys.newest_update(bucket_of(&name, 0)))?;
            } else {
                // For the checker to report.
                continue;
            }
            trx.clear(row.key());
        }
        Ok(page.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record as programs from before features read it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct OldInstance {
        #[prost(uint32, tag = "1")]
        format_version: u32,
        #[prost(bytes = "vec", tag = "2")]
        uuid: Vec<u8>,
        #[prost(fixed64, tag = "3")]
        epoch: u64,
        #[prost(bytes = "vec", tag = "4")]
        renewal: Vec<u8>,
    }

    fn old(epoch: u64, renewal: &[u8]) -> proto::Instance {
        let record = OldInstance { format_version: 2, uuid: vec![7; 16], epoch, renewal: renewal.to_vec() };
        proto::Instance::decode(record.encode_to_vec().as_slice()).unwrap()
    }

    #[test]
    fn an_older_program_refuses_what_is_upgraded() {
        for (renewal, is_renewing_now) in [(&[][..], false), (&[9; RENEWAL_BYTES], true)] {
            let mut record = old(5, renewal);
            assert!(check_store(&record).is_ok() && !is_upgraded(&record));
            assert_eq!(is_renewing(&record), is_renewing_now);
            assert!(upgrade(&mut record) && is_upgraded(&record) && !upgrade(&mut record));
            assert_eq!((is_renewing(&record), record.epoch), (is_renewing_now, 5));
            assert!(check_store(&record).is_ok());
            let seen = OldInstance::decode(record.encode_to_vec().as_slice()).unwrap();
            assert_eq!(seen.format_version, 3, "it does not open it");
            assert!(!seen.renewal.is_empty(), "and refuses it while it runs");
            end_renewal(&mut record);
            assert!(!is_renewing(&record));
            assert!(!OldInstance::decode(record.encode_to_vec().as_slice()).unwrap().renewal.is_empty());
        }
    }

    #[test]
    fn the_stamp_of_a_renewal_has_its_place() {
        for mut record in [old(0, &[]), old(u64::MAX, &[1]), new_store(vec![1; 16])] {
            let operand = begin_renewal(&mut record);
            let (value, offset) = operand.split_at(operand.len() - 4);
            let at = u32::from_le_bytes(offset.try_into().unwrap()) as usize;
            let mut value = value.to_vec();
            value[at..at + RENEWAL_BYTES].copy_from_slice(&[0xab; RENEWAL_BYTES]);
            let stamped = proto::Instance::decode(value.as_slice()).unwrap();
            assert_eq!(stamped, proto::Instance { renewal: vec![0xab; RENEWAL_BYTES], ..record });
        }
    }

    #[test]
    fn an_unknown_feature_is_refused() {
        let mut record = new_store(vec![1; 16]);
        assert!(check_store(&record).is_ok());
        record.features.push("shards".to_owned());
        let refused = check_store(&record).unwrap_err().to_string();
        assert_eq!(refused, "the store uses \"shards\", which this flatbed does not know: use a newer flatbed");
        assert!(check_store(&proto::Instance { format_version: 4, ..new_store(Vec::new()) }).is_err());
    }
}
