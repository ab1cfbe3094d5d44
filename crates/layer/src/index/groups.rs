//! The groups of views that a database has, in its record: which there are, and which design documents name them.
//!
//! A group is no kind of index that the writes of documents keep: it is followed ([`crate::group`]). It is entered in the
//! transaction that writes the design document which defines it, and stays when the last document that names it goes:
//! design documents are swapped by writing the new one under another name first, and who goes back finds the old group as
//! it was. What nobody names goes with `_view_cleanup`, or after a day.

use prost::Message;

use crate::error::Result;
use crate::index::definitions::{ENTRY_BYTES, RECORD_BYTES_MAX, write_record};
use crate::index::maintainers::Within;
use crate::layer::Inner;
use crate::store::due::{self, Kind};
use crate::store::keys::Keys;
use crate::store::proto;
use crate::store::transaction::{Attempt, Operation, Quiet, Transaction};
use crate::view_definition::Signature;

/// In records, and in the feature `index:view`.
pub(crate) const VIEW: &str = "view";

/// Groups of one database. They take no part in writes.
pub(crate) const GROUPS_MAX: usize = 1_000;

/// What their design documents' ids take in the record, all together: it is one value, and read whole. 40 for each of so many.
const NAMES_BYTES_MAX: usize = 40_000;

/// A group that nobody names is kept for so long.
pub(crate) const UNNAMED_KEPT_FOR_MS: u64 = 24 * 60 * 60 * 1_000;

/// A database that was written to is looked at after a time that is rounded up to this.
const FOLLOWED_BY_MS: u64 = 60 * 1_000;

/// Whether an index is a group of views.
pub(crate) fn is_group(index: &proto::Index) -> bool {
    index.kind == VIEW
}

/// The groups of a database.
pub(crate) fn groups_of(record: &proto::DatabaseRecord) -> impl Iterator<Item = &proto::Index> {
    record.indexes.iter().filter(|index| is_group(index))
}

/// The group that a design document names.
pub(crate) fn group_named_by<'r>(record: &'r proto::DatabaseRecord, design: &str) -> Option<&'r proto::Index> {
    groups_of(record).find(|group| group.named_by.iter().any(|name| name == design))
}

/// A design document defines the group of this signature from now on, or none.
pub(crate) fn name_group(record: &mut proto::DatabaseRecord, design: &str, signature: Option<&Signature>, now_ms: u64) {
    let is_this = |index: &proto::Index| signature.is_some_and(|signature| index.definition == signature);
    for group in record.indexes.iter_mut().filter(|index| is_group(index) && !is_this(index)) {
        let before = group.named_by.len();
        group.named_by.retain(|name| name != design);
        if before > 0 && group.named_by.is_empty() {
            group.unnamed_since_ms = now_ms;
        }
    }
    let Some(signature) = signature else { return };
    let taken: usize = groups_of(record).flat_map(|group| &group.named_by).map(|name| name_bytes(name)).sum();
    let more = name_bytes(design);
    let has_room = taken + more <= NAMES_BYTES_MAX && record.encoded_len() + more + ENTRY_BYTES <= RECORD_BYTES_MAX;
    if let Some(group) = record.indexes.iter_mut().find(|index| is_group(index) && is_this(index)) {
        if let (Err(at), true) = (group.named_by.binary_search_by(|name| (**name).cmp(design)), has_room) {
            group.named_by.insert(at, design.to_owned());
            group.unnamed_since_ms = 0;
        }
        return;
    }
    // Without room the document names a group that there is not, and who asks for its views gets an error.
    if has_room && groups_of(record).count() < GROUPS_MAX {
        record.indexes_defined += 1;
        record.indexes.push(proto::Index {
            number: record.indexes_defined,
            kind: VIEW.to_owned(),
            definition: signature.to_vec(),
            // Whether anything may be read of it is said by its own progress.
            readable: true,
            named_by: vec![design.to_owned()],
            ..proto::Index::default()
        });
    }
}

/// What a design document's id takes in the record, at most.
fn name_bytes(name: &str) -> usize {
    name.len() + 4
}

/// A write changes a database with groups: whatever becomes of this process, somebody looks whether they have followed.
pub(crate) fn mark_followed(within: &Within<'_>) -> Result<()> {
    let Within { trx, instance, .. } = *within;
    if groups_of(&instance.record).next().is_none() {
        return Ok(());
    }
    let at_ms = due::rounded_to(trx.clock().unix_ms().saturating_add(FOLLOWED_BY_MS), FOLLOWED_BY_MS);
    due::mark(trx, &instance.root, Kind::Views, &instance.name, at_ms)
}

/// Notes in the transaction that writes a record what is to be done because its groups have changed.
pub(crate) fn mark_changed(
    within: &Within<'_>,
    before: &proto::DatabaseRecord,
    after: &proto::DatabaseRecord,
) -> Result<()> {
    let mark = |at_ms| due::mark(within.trx, &within.instance.root, Kind::Views, &within.instance.name, at_ms);
    for group in groups_of(after) {
        let known = before.indexes.iter().find(|index| index.number == group.number);
        if known.is_none() {
            mark(0)?;
        } else if group.unnamed_since_ms > 0 && known.is_some_and(|known| known.unnamed_since_ms == 0) {
            mark(due::rounded_ms(group.unnamed_since_ms + UNNAMED_KEPT_FOR_MS))?;
        }
    }
    Ok(())
}

/// Takes the groups that no design document has named since some time out of a record, which is to be written, and clears what they
/// have. Returns their numbers.
pub(crate) fn remove_unnamed(
    trx: &Transaction,
    keys: &Keys,
    record: &mut proto::DatabaseRecord,
    until_ms: u64,
) -> Result<Vec<u64>> {
    let goes =
        |index: &proto::Index| is_group(index) && index.named_by.is_empty() && index.unnamed_since_ms <= until_ms;
    let gone: Vec<u64> = record.indexes.iter().filter(|index| goes(index)).map(|index| index.number).collect();
    record.indexes.retain(|index| !goes(index));
    // Whoever writes into a group has the record as a read conflict.
    gone.iter().try_for_each(|number| Quiet(trx).clear_range(&keys.index(*number)))?;
    Ok(gone)
}

/// Drops the groups that no design document has named since some time. Returns the numbers of those that are gone.
pub(crate) struct DropUnnamed<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    /// Unix time.
    pub until_ms: u64,
}

impl Operation for DropUnnamed<'_> {
    type Output = Vec<u64>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u64>> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let mut record = instance.record.clone();
        let gone = remove_unnamed(trx, &instance.keys, &mut record, self.until_ms)?;
        if gone.is_empty() {
            return Ok(gone);
        }
        write_record(&Within { inner: self.inner, trx, instance: &instance }, record);
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(record: &proto::DatabaseRecord) -> Vec<(u64, Vec<&str>, bool)> {
        groups_of(record)
            .map(|group| {
                let names = group.named_by.iter().map(String::as_str).collect();
                (group.number, names, group.unnamed_since_ms > 0)
            })
            .collect()
    }

    #[test]
    fn equal_definitions_are_one_group_which_stays_unnamed() {
        let mut record = proto::DatabaseRecord::default();
        let (one, two) = ([1; 16], [2; 16]);
        name_group(&mut record, "_design/b", Some(&one), 1);
        name_group(&mut record, "_design/a", Some(&one), 1);
        name_group(&mut record, "_design/a", Some(&one), 1);
        assert_eq!(names(&record), [(1, vec!["_design/a", "_design/b"], false)]);
        assert_eq!(group_named_by(&record, "_design/a").map(|group| group.number), Some(1));
        name_group(&mut record, "_design/a", Some(&two), 1);
        name_group(&mut record, "_design/b", None, 1);
        assert_eq!(names(&record), [(1, vec![], true), (2, vec!["_design/a"], false)]);
        // Back again.
        name_group(&mut record, "_design/a", Some(&one), 1);
        assert_eq!(names(&record), [(1, vec!["_design/a"], false), (2, vec![], true)]);
        assert!(group_named_by(&record, "_design/b").is_none());
    }

    #[test]
    fn the_record_stays_small() {
        let mut record = proto::DatabaseRecord::default();
        let signature = |number: u16| {
            let mut signature = [0; 16];
            signature[..2].copy_from_slice(&number.to_be_bytes());
            signature
        };
        for number in 0..1_100 {
            name_group(&mut record, &format!("_design/{number:028}"), Some(&signature(number)), 1);
        }
        assert_eq!(groups_of(&record).count(), GROUPS_MAX);
        assert!(record.encoded_len() < 83_000, "{}", record.encoded_len());
        name_group(&mut record, "_design/one-more", Some(&signature(1)), 1);
        assert!(group_named_by(&record, "_design/one-more").is_none(), "the names take all of their room");
        let mut record = proto::DatabaseRecord::default();
        for number in 0..100 {
            name_group(&mut record, &format!("_design/{number:02000}"), Some(&signature(number % 3)), 1);
        }
        assert!(record.encoded_len() < 70_000);
    }
}
