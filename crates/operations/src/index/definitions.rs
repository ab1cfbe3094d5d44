//! The list of a database's indexes, changed in the transaction that writes a design document.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_mango::Selector;
use flatbed_revtree::DocumentId;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, Result};
use flatbed_store::features::{is_outdated, name_collations, name_features, name_verdicts};
use flatbed_store::proto;
use flatbed_store::record_log::note_change;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use flatbed_store::view_definition::{GroupDefinition, Signature};
use prost::Message;

use crate::index::apart::{add, digest_in, run_in_turn};
use crate::index::build::unbuilt;
use crate::index::groups::{self, group_named_by, groups_of, is_group, name_group};
use crate::index::kinds::KINDS;
use crate::index::maintainers::{Change, IndexContext, PurgedDocument};
use crate::index::selector::definition::MEMBER;

/// The most indexes of one database. A write costs the entries of the indexes that the document is in, and a check of
/// each other one.
const INDEXES_MAX: usize = 1_000;

/// The largest total of a database's definitions, in bytes: all of them are stored in its record.
const DEFINITIONS_BYTES_MAX: usize = 60_000;

/// The record's size limit for adding an index or a group, in bytes. The record is one value of at most 100,000 bytes.
/// The rest is kept for later notes: features, indexes that become readable, groups that lose their names.
pub const RECORD_BYTES_MAX: usize = 90_000;

/// The largest size of an index or group in the record beside its definition and names, in bytes.
pub const ENTRY_BYTES: usize = 50;

/// The time limit for compiling the selectors of a design document that no judge has compiled: a replica's, or the
/// server's own. Judges give users' documents 2 s, so theirs are all compiled here.
const COMPILED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Definitions {
    changed: Vec<DesignChange>,
    has_verdicts: bool,
    /// True if a document was written or purged. A transaction in which every edit was refused stays read-only.
    is_changed: bool,
}

struct DesignChange {
    id: String,
    indexes: Vec<Definition>,
    group: Option<Signature>,
    /// The number of definitions that are too long, plus one if some were not compiled in time.
    left_out: usize,
    /// True for a group of fields. It is named if it exists, or else by the first query of its views.
    is_of_fields: bool,
}

/// A kind's name, and a definition in its format.
type Definition = (&'static str, Vec<u8>);

impl DesignChange {
    fn nothing(id: &str) -> DesignChange {
        DesignChange { id: id.to_owned(), indexes: Vec::new(), group: None, left_out: 0, is_of_fields: false }
    }
}

impl Definitions {
    /// Takes the definitions of a document's new winner, whether an edit or a replication wrote it.
    pub async fn document(&mut self, within: &IndexContext<'_>, change: &Change<'_>) -> Result<()> {
        self.is_changed = true;
        self.has_verdicts |= change.judged.is_some_and(|(_, verdict)| !verdict.is_empty());
        if !DocumentId::of(change.id).is_design() {
            return Ok(());
        }
        let mut changed = DesignChange::nothing(change.id);
        if !change.new.deleted {
            let text = [b"{", change.new_body(within).await?.as_slice(), b"}"].concat();
            // Unparsable bodies were refused when they arrived.
            if let Ok(body) = parse(&text, &Limits::default()) {
                (changed.indexes, changed.left_out) = defined(within, &body, &text).await?;
                // Queries of its views report its errors.
                let group = GroupDefinition::of_design(&body, within.instance.record.partitioned);
                if let Ok(Some(group)) = group {
                    (changed.group, changed.is_of_fields) = (Some(group.signature), group.is_of_fields());
                }
            }
        }
        self.changed.push(changed);
        Ok(())
    }

    pub fn purged(&mut self, _within: &IndexContext<'_>, purged: &PurgedDocument<'_>) {
        self.is_changed = true;
        if DocumentId::of(purged.id).is_design() {
            self.changed.push(DesignChange::nothing(purged.id));
        }
    }

    /// Writes the database's record if the list of indexes or the rules of writes have changed. Every write has the
    /// record as a read conflict, so no write that used the old list commits later. `worn_out`: the numbers of indexes
    /// to rebuild.
    pub fn finish(&self, within: &IndexContext<'_>, changes_rules: bool, worn_out: &[u64]) -> Result<()> {
        let IndexContext { inner, trx, instance } = *within;
        if is_outdated(&instance.record, inner.collation) {
            return Err(Error::Corrupt("a write met an index of an older collation".to_owned()));
        }
        if self.is_changed {
            groups::mark_followed(within)?;
        }
        let mut record = None;
        if !self.changed.is_empty() || self.has_verdicts || !worn_out.is_empty() {
            let mut new = self.redefined(&instance.record, trx.clock().unix_ms());
            self.log_left_out(within, &new);
            renumber(&mut new, worn_out);
            let names_verdicts = self.has_verdicts && name_verdicts(&mut new);
            record = Some(new).filter(|new| names_verdicts || new.indexes != instance.record.indexes);
        }
        let Some(mut record) = record else {
            if changes_rules {
                return change_rules(within);
            }
            return Ok(());
        };
        record.rules += u64::from(changes_rules);
        replace_indexes(within, record)
    }

    /// Logs definitions beyond the limits. The design document is written nevertheless, and the log explains why a
    /// query does not find them.
    fn log_left_out(&self, within: &IndexContext<'_>, record: &proto::DatabaseRecord) {
        for DesignChange { id, indexes, group, left_out, is_of_fields } in &self.changed {
            let is_kept = |defined: &&Definition| {
                let is_it = |index: &proto::Index| (&*index.kind, &index.definition) == (defined.0, &defined.1);
                record.indexes.iter().any(|index| index.source == *id && is_it(index))
            };
            let indexes = left_out + indexes.len() - indexes.iter().filter(is_kept).count();
            let views = group.is_some() && !is_of_fields && group_named_by(record, id).is_none();
            if indexes > 0 || views {
                within.inner.metrics.design_documents_left_out.add(1);
                let (database, design_document) = (&within.instance.name, id);
                tracing::warn!(
                    database,
                    design_document,
                    indexes,
                    views,
                    "a design document defines indexes or views beyond the limits of a database: they are not kept"
                );
            }
        }
    }

    fn redefined(&self, record: &proto::DatabaseRecord, now_ms: u64) -> proto::DatabaseRecord {
        let mut record = record.clone();
        for DesignChange { id, indexes, group, is_of_fields, .. } in &self.changed {
            redefine(&mut record, id, indexes);
            let is_there = |signature: &&Signature| groups_of(&record).any(|group| group.definition == **signature);
            let group = group.as_ref().filter(|group| !is_of_fields || is_there(group));
            name_group(&mut record, id, group, now_ms);
        }
        record
    }
}

fn change_rules(within: &IndexContext<'_>) -> Result<()> {
    let record = &within.instance.record;
    put_record(within, &proto::DatabaseRecord { rules: record.rules + 1, ..record.clone() })
}

/// Writes a record with a new list of indexes, clears removed indexes, and marks new ones to be built.
fn replace_indexes(within: &IndexContext<'_>, record: proto::DatabaseRecord) -> Result<()> {
    let IndexContext { trx, instance, .. } = *within;
    for gone in &instance.record.indexes {
        if !record.indexes.iter().any(|index| index.number == gone.number) {
            Quiet(trx).clear_range(&instance.keys.index(gone.number))?;
        }
    }
    if unbuilt(record.clone()).next().is_some() {
        due::mark(trx, &instance.root, DueKind::Indexes, &instance.name, 0)?;
    }
    groups::mark_changed(within, &instance.record, &record)?;
    write_record(within, record)
}

/// Replaces an index by a new one with another number, as its labels have no room. Entries written by this transaction
/// are cleared, too.
pub fn renew_worn_out(within: &IndexContext<'_>, number: u64) -> Result<()> {
    let mut record = within.instance.record.clone();
    renumber(&mut record, &[number]);
    replace_indexes(within, record)
}

/// Held while this process replaces a database's indexes of another collation.
#[derive(Default)]
struct ReorderGuard(tokio::sync::Mutex<()>);

impl State<Instance> for ReorderGuard {
    fn new_of(_: &Instance) -> ReorderGuard {
        ReorderGuard::default()
    }
}

/// Returns the lock of [`reorder_alone`].
pub fn reordering(instance: &Instance) -> &tokio::sync::Mutex<()> {
    &instance.of_version.get::<ReorderGuard>(instance).0
}

/// Replaces a database's indexes of another collation by this program's, one call at a time in each process.
#[boxed]
pub async fn reorder_alone(inner: &Inner, name: &str) -> Result<()> {
    let instance = inner.cached(name);
    let _alone = match &instance {
        Some(instance) => Some(reordering(instance).lock().await),
        None => None,
    };
    reorder(inner, name).await
}

/// Replaces indexes that an older program sorted by another collation: the same definitions get new numbers and are to
/// be built. All transactions have the record as a read conflict, so those of older programs conflict and then find a
/// collation that they do not know. The replacement is thus done once, and never reverted.
///
/// # Errors
/// [`Error::FeatureUnknown`]: the record's collation is newer.
pub async fn reorder(inner: &Inner, name: &str) -> Result<()> {
    transaction::write(&inner.db, &inner.metrics, &mut Reorder { inner, name }).await
}

struct Reorder<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for Reorder<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let Reorder { inner, name } = *self;
        let instance = inner.resolve(trx, name).await?;
        if !is_outdated(&instance.record, inner.collation) {
            return Ok(());
        }
        transaction::conflict_with(trx, &instance.record_key)?;
        transaction::conflict_with(trx, &inner.keys.instance())?;
        let (mut record, mut numbers) = (instance.record.clone(), Vec::new());
        for index in &mut record.indexes {
            let kind = KINDS.iter().find(|kind| kind.name() == index.kind);
            if let Some(definition) = kind.and_then(|kind| kind.reordered(index, inner.collation)) {
                index.definition = definition;
                numbers.push(index.number);
            }
        }
        renumber(&mut record, &numbers);
        tracing::info!(database = name, indexes = numbers.len(), "indexes of an older collation are rebuilt");
        replace_indexes(&IndexContext { inner, trx, instance: &instance }, record)
    }
}

/// Writes a record with changed indexes, and notifies every process.
pub fn write_record(within: &IndexContext<'_>, mut record: proto::DatabaseRecord) -> Result<()> {
    let of_kinds = record.indexes.iter().filter_map(|index| {
        let kind = KINDS.iter().find(|kind| kind.name() == index.kind)?;
        kind.feature(index)
    });
    let of_kinds: Vec<String> = of_kinds.collect();
    name_collations(&mut record, of_kinds);
    name_features(&mut record);
    put_record(within, &record)
}

fn put_record(within: &IndexContext<'_>, record: &proto::DatabaseRecord) -> Result<()> {
    let IndexContext { inner, trx, instance } = *within;
    trx.set(&instance.record_key, &record.encode_to_vec());
    // The entry of the log is removed with old marks.
    inner.due.note_mark();
    note_change(trx, &instance.root, &instance.name)
}

/// Returns whether a design document may contain selectors that are slow to compile.
pub fn has_selectors(body: &Value<'_>) -> bool {
    let is_of_query = body.get("language").and_then(Value::as_str) == Some("query");
    (is_of_query || body.get(MEMBER).is_some()) && !Selector::is_quick(body)
}

/// Like [`defined_by`]; selectors that may take long to compile are compiled before the attempt. `text`: the body's
/// text.
async fn defined(within: &IndexContext<'_>, body: &Value<'_>, text: &[u8]) -> Result<(Vec<Definition>, usize)> {
    let IndexContext { inner, instance, .. } = *within;
    let (is_partitioned, collation) = (instance.record.partitioned, inner.collation);
    if !has_selectors(body) {
        return Ok(defined_by(body, is_partitioned, collation, &|| false));
    }
    let mut digest = digest_in(instance, "definitions");
    add(&mut digest, text);
    let (body, clock) = (body.clone().into_owned(), inner.clock.clone());
    let work = move || {
        let until = clock.now() + COMPILED_WITHIN;
        defined_by(&body, is_partitioned, collation, &|| clock.now() >= until)
    };
    run_in_turn(within, digest, Duration::ZERO, work).await
}

/// Returns the definitions of a design document, and the number of definitions that are too long. That number is at
/// least 1 if `stop` left definitions uncompiled.
fn defined_by(
    body: &Value<'_>,
    is_partitioned: bool,
    collation: &str,
    stop: &dyn Fn() -> bool,
) -> (Vec<Definition>, usize) {
    let (mut all, mut left_out): (Vec<Definition>, usize) = (Vec::new(), 0);
    for kind in KINDS {
        for definition in kind.defined_by(body, is_partitioned, collation, stop) {
            let defined = (kind.name(), definition);
            if defined.1.len() > kind.definition_bytes_max() {
                left_out += 1;
            } else if !all.contains(&defined) {
                all.push(defined);
            }
        }
    }
    left_out += usize::from(stop());
    (all, left_out)
}

/// Gives indexes new numbers. They are then new indexes that are not built.
fn renumber(record: &mut proto::DatabaseRecord, numbers: &[u64]) {
    for index in record.indexes.iter_mut().filter(|index| numbers.contains(&index.number)) {
        record.indexes_defined += 1;
        index.number = record.indexes_defined;
        index.readable = false;
    }
}

/// The room that is left in a database's record for definitions.
#[derive(Debug, Clone, Copy)]
pub struct DefinitionRoom {
    indexes: usize,
    definition_bytes: usize,
    record_bytes: usize,
}

impl DefinitionRoom {
    pub fn of(record: &proto::DatabaseRecord) -> DefinitionRoom {
        let (mut indexes, mut bytes) = (0, 0);
        for index in record.indexes.iter().filter(|index| !is_group(index)) {
            indexes += 1;
            bytes += index.definition.len();
        }
        DefinitionRoom {
            indexes: INDEXES_MAX.saturating_sub(indexes),
            definition_bytes: DEFINITIONS_BYTES_MAX.saturating_sub(bytes),
            record_bytes: RECORD_BYTES_MAX.saturating_sub(record.encoded_len()),
        }
    }

    /// Takes the room of one more index, given the bytes of its definition and of its design document's id. Returns
    /// whether it fits.
    #[must_use]
    pub fn take(&mut self, definition_bytes: usize, source_bytes: usize) -> bool {
        let left = |room: DefinitionRoom| {
            Some(DefinitionRoom {
                indexes: room.indexes.checked_sub(1)?,
                definition_bytes: room.definition_bytes.checked_sub(definition_bytes)?,
                record_bytes: room.record_bytes.checked_sub(definition_bytes + source_bytes + ENTRY_BYTES)?,
            })
        };
        let left = left(*self);
        *self = left.unwrap_or(*self);
        left.is_some()
    }
}

/// Replaces the definitions of `source`. A definition that stays keeps its number and state.
fn redefine(record: &mut proto::DatabaseRecord, source: &str, defined: &[Definition]) {
    let is = |index: &proto::Index, defined: &Definition| index.kind == defined.0 && index.definition == defined.1;
    record.indexes.retain(|index| index.source != source || defined.iter().any(|defined| is(index, defined)));
    let mut room = DefinitionRoom::of(record);
    for new in defined {
        let is_there = record.indexes.iter().any(|index| index.source == source && is(index, new));
        if is_there || !room.take(new.1.len(), source.len()) {
            continue;
        }
        record.indexes_defined += 1;
        record.indexes.push(proto::Index {
            number: record.indexes_defined,
            kind: new.0.to_owned(),
            source: source.to_owned(),
            definition: new.1.clone(),
            ..proto::Index::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::groups::GROUPS_MAX;

    fn full(groups_first: bool) -> proto::DatabaseRecord {
        let mut record = proto::DatabaseRecord { security: vec![b'x'; 3_000], ..Default::default() };
        let id = |n: usize| format!("_design/{n:02000}");
        let groups = |record: &mut proto::DatabaseRecord| {
            for n in 0..GROUPS_MAX {
                let mut signature = [0; 16];
                signature[..8].copy_from_slice(&n.to_be_bytes());
                name_group(record, &id(n), Some(&signature), u64::MAX);
            }
        };
        if groups_first {
            groups(&mut record);
        }
        for n in 0..INDEXES_MAX {
            redefine(&mut record, &id(n), &[("json", vec![b'x'; 900])]);
        }
        groups(&mut record);
        record
    }

    #[test]
    fn what_is_not_compiled_in_time_is_left_out() {
        let body = r#"{"language":"query","views":{
            "one":{"map":{"fields":{"a":"asc"},"partial_filter_selector":{"a":{"$regex":"^b+$"}}},"options":{}},
            "two":{"map":{"fields":{"a":"asc"}},"options":{}}},"selector_indexes":{"i":{"a":{"$regex":"^c+$"}}}}"#;
        let body = parse(body.as_bytes(), &Limits::default()).unwrap();
        let kept = |is_over: bool| {
            let (defined, left_out) = defined_by(&body, false, "icu 1", &|| is_over);
            (defined.len(), left_out)
        };
        assert_eq!((kept(false), kept(true)), ((3, 0), (1, 1)));
    }

    #[test]
    fn small_definitions_are_kept_by_the_hundred() {
        let defined = |count: usize, bytes: usize| -> Vec<Definition> {
            (0..count).map(|n| ("json", format!("{n:0bytes$}").into_bytes())).collect()
        };
        // The length of a definition with a name generated by `_index`.
        for (count, bytes, kept) in [(300, 170, 300), (1_100, 20, INDEXES_MAX), (500, 170, DEFINITIONS_BYTES_MAX / 170)]
        {
            let mut record = proto::DatabaseRecord::default();
            let defined = defined(count, bytes);
            redefine(&mut record, "_design/d", &defined);
            assert_eq!(record.indexes.len(), kept, "{count} of {bytes} bytes");
            assert!(record.encoded_len() <= RECORD_BYTES_MAX);
            // Existing indexes are kept.
            let before = record.clone();
            redefine(&mut record, "_design/d", &defined);
            assert_eq!(record, before);
        }
    }

    #[test]
    fn the_record_fits_a_value_whatever_is_defined() {
        for groups_first in [false, true] {
            let mut record = full(groups_first);
            let bytes = record.encoded_len();
            assert!(bytes > RECORD_BYTES_MAX - 4_000 && bytes <= RECORD_BYTES_MAX, "{bytes}");
            assert!(!DefinitionRoom::of(&record).take(900, 2_048));
            // Later notes must fit.
            record.indexes.iter_mut().for_each(|index| index.readable = true);
            let designs: Vec<String> = record.indexes.iter().flat_map(|index| index.named_by.clone()).collect();
            designs.iter().for_each(|design| name_group(&mut record, design, None, u64::MAX));
            assert!(record.encoded_len() <= RECORD_BYTES_MAX);
        }
    }
}
