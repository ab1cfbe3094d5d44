//! The features that a program must know to open a database. The database's record names them.
//!
//! A change that an older program would miss, or undo by its writes, names a feature in the record, in the transaction
//! that adds the change. The name is removed with the last use of the feature. A program refuses a record with an
//! unknown name. Format versions are kept for the parts that every database has.

use std::sync::OnceLock;

use flatbed_collate::Collation;

use crate::buckets::SHARDS_MAX;
use crate::error::{Error, Result};
use crate::proto;
use crate::records::check_format;

/// The features that this program knows. Each kind of index is one.
const KNOWN: &[&str] = &[
    CHANNELS,
    CLOSED,
    PARTITIONED,
    REPLICATOR_MARK,
    SHARDS,
    VERDICTS,
    "index:json",
    "index:selector",
    // A program that does not know view groups would not wake their followers and would leave their positions behind.
    "index:view",
    #[cfg(feature = "test-kinds")]
    "index:member",
];

/// Documents are in channels: a program that does not know them would show all documents to all users, and route none.
const CHANNELS: &str = "channels";

/// The database is closed to its users for a while: a program that does not know this would admit them.
const CLOSED: &str = "closed";

/// By-seq, `last_seq` and counters lie in buckets.
const SHARDS: &str = "shards";

/// Ids begin with partitions, which have their own counters.
const PARTITIONED: &str = "partitioned";

/// The feature of a replicator database. A program that does not know it would let members write any owner into its
/// documents.
const REPLICATOR_MARK: &str = "replicator";

/// Records of revisions have verdicts: a program that does not know them would drop them when it rewrites a record.
const VERDICTS: &str = "verdicts";

/// The prefix of the signature of a collation that indexes are sorted by.
const COLLATION: &str = "collation:";

pub fn collation(signature: &str) -> String {
    format!("{COLLATION}{signature}")
}

/// Returns the signature of this program's collation.
pub fn own_collation() -> &'static str {
    static OWN: OnceLock<String> = OnceLock::new();
    OWN.get_or_init(|| Collation::unicode().map(|order| order.signature()).unwrap_or_default())
}

/// The prefix of the name of a kind of index.
const INDEX: &str = "index:";

/// Checks that a program with this collation may open a database, by its format and features. The database may have
/// indexes of an older collation, which this one supersedes: see [`is_outdated`].
pub fn check_record(record: &proto::DatabaseRecord, own: &str) -> Result<()> {
    check_format("the database", record.format_version)?;
    if record.shards == 1 || record.shards > SHARDS_MAX {
        return Err(Error::Corrupt(format!("a database has {} shards", record.shards)));
    }
    let is_sorted_by = |found: &str| found == own || Collation::supersedes(own, found);
    let is_known =
        |feature: &str| KNOWN.contains(&feature) || feature.strip_prefix(COLLATION).is_some_and(is_sorted_by);
    match record.features.iter().find(|feature| !is_known(feature)) {
        Some(feature) => Err(Error::FeatureUnknown { what: "the database".to_owned(), feature: feature.clone() }),
        None => Ok(()),
    }
}

/// Returns whether a database that this program may open has indexes of an older collation. Until they are rebuilt,
/// neither they nor the documents are read or written.
pub fn is_outdated(record: &proto::DatabaseRecord, own: &str) -> bool {
    record.features.iter().filter_map(|feature| feature.strip_prefix(COLLATION)).any(|found| found != own)
}

/// Names the feature of verdicts. Returns whether the record did not name it before.
pub fn name_verdicts(record: &mut proto::DatabaseRecord) -> bool {
    let is_new = !record.features.iter().any(|feature| feature == VERDICTS);
    if is_new {
        record.features.push(VERDICTS.to_owned());
    }
    is_new
}

/// Marks the record of a new database as that of a replicator database. The mark is never removed.
pub fn name_replicator(record: &mut proto::DatabaseRecord) {
    if !is_replicator(record) {
        record.features.push(REPLICATOR_MARK.to_owned());
    }
}

pub fn is_replicator(record: &proto::DatabaseRecord) -> bool {
    record.features.iter().any(|feature| feature == REPLICATOR_MARK)
}

pub fn name_collations(record: &mut proto::DatabaseRecord, features: Vec<String>) {
    record.features.retain(|feature| !feature.starts_with(COLLATION));
    record.features.extend(features);
}

/// Names the features of a record's shards, partitions, channels and indexes, and keeps other names.
pub fn name_features(record: &mut proto::DatabaseRecord) {
    let is_derived = |feature: &String| {
        [SHARDS, PARTITIONED, CHANNELS, CLOSED].contains(&feature.as_str()) || feature.starts_with(INDEX)
    };
    record.features.retain(|feature| !is_derived(feature));
    record.features.extend((record.channels > 0).then(|| CHANNELS.to_owned()));
    record.features.extend((record.closed > 0).then(|| CLOSED.to_owned()));
    record.features.extend(record.partitioned.then(|| PARTITIONED.to_owned()));
    record.features.extend((record.shards > 0).then(|| SHARDS.to_owned()));
    record.features.extend(record.indexes.iter().map(|index| format!("{INDEX}{}", index.kind)));
    record.features.sort_unstable();
    record.features.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::FORMAT_VERSION;

    #[test]
    fn an_unknown_feature_is_refused() {
        let mut record = proto::DatabaseRecord { format_version: FORMAT_VERSION, ..Default::default() };
        assert!(check_record(&record, own_collation()).is_ok());
        record.indexes = vec![proto::Index { kind: "member".to_owned(), ..Default::default() }];
        name_features(&mut record);
        assert_eq!(record.features, ["index:member"]);
        assert!(check_record(&record, own_collation()).is_ok());
        record.features.push("rooms".to_owned());
        let refused = check_record(&record, own_collation()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the database uses \"rooms\", which this flatbed does not know: use a newer flatbed"
        );
        // The features of other parts stay.
        record.indexes.clear();
        name_features(&mut record);
        assert_eq!(record.features, ["rooms"]);
        record.features.clear();
        record.channels = 1;
        name_features(&mut record);
        assert_eq!(record.features, ["channels"]);
        assert!(check_record(&record, own_collation()).is_ok());
        record.channels = 0;
        name_features(&mut record);
        assert!(record.features.is_empty());
        for format_version in [0, FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
            assert!(
                check_record(&proto::DatabaseRecord { format_version, ..Default::default() }, own_collation()).is_err()
            );
        }
    }

    #[test]
    fn what_makes_a_database_of_replications_stays() {
        let mut record = proto::DatabaseRecord { format_version: FORMAT_VERSION, ..Default::default() };
        assert!(!is_replicator(&record));
        name_replicator(&mut record);
        name_replicator(&mut record);
        name_features(&mut record);
        assert_eq!(record.features, ["replicator"]);
        name_verdicts(&mut record);
        name_collations(&mut record, Vec::new());
        name_features(&mut record);
        assert!(is_replicator(&record) && check_record(&record, own_collation()).is_ok());
    }

    #[test]
    fn another_order_is_refused_unless_it_is_an_older_one() {
        let of = |signature: &str| proto::DatabaseRecord {
            format_version: FORMAT_VERSION,
            features: vec![collation(signature)],
            ..Default::default()
        };
        let [older, own, newer] = ["icu_collator 2.4.0 1 00", "icu_collator 2.5.0 1 01", "icu_collator 2.6.0 1 02"];
        for (signature, is_open, outdated) in
            [(older, true, true), (own, true, false), (newer, false, true), ("icu_collator 2.5.0 1 99", false, true)]
        {
            assert_eq!(check_record(&of(signature), own).is_ok(), is_open, "{signature}");
            assert_eq!(is_outdated(&of(signature), own), outdated, "{signature}");
        }
        assert!(!is_outdated(&proto::DatabaseRecord::default(), own));
    }
}
