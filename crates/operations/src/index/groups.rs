//! The groups of views in a database's record, and the design documents that name them.
//!
//! Writes of documents do not maintain a group: it follows them (the crate `views`). The transaction that writes a
//! design document enters its group. The group stays when the last document that names it is removed: design documents
//! are swapped by writing the new one under another name first, and a return to the old one finds its group intact.
//! Unnamed groups are removed by `_view_cleanup`, or after a day.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::Result;
use flatbed_store::keys::Keys;
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Quiet, Transaction};
use flatbed_store::view_definition::Signature;
use prost::Message;

use crate::index::definitions::{ENTRY_BYTES, RECORD_BYTES_MAX, write_record};
use crate::index::maintainers::IndexContext;

/// The name of groups in records, and in the feature `index:view`.
pub const VIEW: &str = "view";

/// The most groups of one database. They take no part in writes.
pub const GROUPS_MAX: usize = 1_000;

/// The most bytes of all groups' design document ids in the record, which is one value and read whole: 40 bytes for
/// each of [`GROUPS_MAX`].
const NAMES_BYTES_MAX: usize = 40_000;

/// The time for which an unnamed group is kept.
pub const UNNAMED_KEPT_FOR_MS: u64 = 24 * 60 * 60 * 1_000;

/// The interval to which the time of the next check of a written database is rounded up, and the least time until then.
const FOLLOWED_BY_MS: u64 = 60 * 1_000;

pub fn is_group(index: &proto::Index) -> bool {
    index.kind == VIEW
}

pub fn groups_of(record: &proto::DatabaseRecord) -> impl Iterator<Item = &proto::Index> {
    record.indexes.iter().filter(|index| is_group(index))
}

pub fn group_named_by<'r>(record: &'r proto::DatabaseRecord, design: &str) -> Option<&'r proto::Index> {
    groups_of(record).find(|group| group.named_by.iter().any(|name| name == design))
}

/// Makes a design document name the group of this signature, or none.
pub fn name_group(record: &mut proto::DatabaseRecord, design: &str, signature: Option<&Signature>, now_ms: u64) {
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
    // Without room the document names a missing group, and queries of its views fail.
    if has_room && groups_of(record).count() < GROUPS_MAX {
        record.indexes_defined += 1;
        record.indexes.push(proto::Index {
            number: record.indexes_defined,
            kind: VIEW.to_owned(),
            definition: signature.to_vec(),
            // The group's own progress says whether it may be read.
            readable: true,
            named_by: vec![design.to_owned()],
            ..proto::Index::default()
        });
    }
}

fn name_bytes(name: &str) -> usize {
    name.len() + 4
}

/// The time of the newest entry of [`mark_followed`] that this process has committed for a database, in milliseconds of
/// Unix time; 0: none. It goes with the database's place in the cache, and then the entry is written once more.
#[derive(Default)]
struct NotedFollowing(AtomicU64);

impl State<Instance> for NotedFollowing {
    fn new_of(_: &Instance) -> NotedFollowing {
        NotedFollowing::default()
    }
}

/// Lists a written database with groups, so that some process checks whether they have followed: once for each process,
/// database and minute.
///
/// A commit relies on an entry that this process has committed. The entry's time is at least [`FOLLOWED_BY_MS`] ahead,
/// by the clock that this call reads after the transaction has its read version, and the transaction commits at most
/// 5 s after that version. So it commits before the entry may be removed, unless the clocks of two servers differ by
/// more than 55 s.
pub fn mark_followed(within: &IndexContext<'_>) -> Result<()> {
    let IndexContext { trx, instance, .. } = *within;
    if groups_of(&instance.record).next().is_none() {
        return Ok(());
    }
    let at_ms = due::rounded_to(trx.clock().unix_ms().saturating_add(FOLLOWED_BY_MS), FOLLOWED_BY_MS);
    let states = &instance.of_incarnation;
    if states.get::<NotedFollowing>(instance).0.load(Ordering::Relaxed) == at_ms {
        return Ok(());
    }
    due::mark(trx, &instance.root, DueKind::Views, &instance.name, at_ms)?;
    let states = Arc::clone(states);
    trx.on_commit(move || {
        if let Some(noted) = states.find::<NotedFollowing>() {
            noted.0.store(at_ms, Ordering::Relaxed);
        }
    });
    Ok(())
}

pub fn mark_changed(
    within: &IndexContext<'_>,
    before: &proto::DatabaseRecord,
    after: &proto::DatabaseRecord,
) -> Result<()> {
    let mark = |at_ms| due::mark(within.trx, &within.instance.root, DueKind::Views, &within.instance.name, at_ms);
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

/// Removes groups that have been unnamed since before `until_ms` from a record that the caller writes, and clears their
/// data. Returns their numbers.
pub fn remove_unnamed(
    trx: &Transaction,
    keys: &Keys,
    record: &mut proto::DatabaseRecord,
    until_ms: u64,
) -> Result<Vec<u64>> {
    let goes =
        |index: &proto::Index| is_group(index) && index.named_by.is_empty() && index.unnamed_since_ms <= until_ms;
    let gone: Vec<u64> = record.indexes.iter().filter(|index| goes(index)).map(|index| index.number).collect();
    record.indexes.retain(|index| !goes(index));
    // Every writer of a group has the record as a read conflict.
    gone.iter().try_for_each(|number| Quiet(trx).clear_range(&keys.index(*number)))?;
    Ok(gone)
}

pub struct DropUnnamed<'a> {
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
        write_record(&IndexContext { inner: self.inner, trx, instance: &instance }, record)?;
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
        // The document returns to the first group.
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
