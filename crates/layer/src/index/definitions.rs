//! Which indexes a database has: what its design documents define, in the transaction that writes them.

use std::time::Duration;

use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_mango::Selector;
use flatbed_revtree::DocumentId;
use prost::Message;

use crate::error::{Error, Result};
use crate::index::apart::{add, digest_in, in_turn};
use crate::index::build::unbuilt;
use crate::index::groups::{self, group_named_by, groups_of, is_group, name_group};
use crate::index::kinds::KINDS;
use crate::index::maintainers::{Change, Purged, Within};
use crate::index::selector::definition::MEMBER;
use crate::layer::Inner;
use crate::store::due::{self, Kind};
use crate::store::features::{is_outdated, name_collations, name_features, name_verdicts};
use crate::store::proto;
use crate::store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use crate::view_definition::{GroupDefinition, Signature};

/// The most indexes of one database. A write costs the entries of the indexes that the document is in, and a check of each other one.
const INDEXES_MAX: usize = 1_000;

/// What the definitions of a database take altogether, in bytes: all of them stand in its record.
const DEFINITIONS_BYTES_MAX: usize = 60_000;

/// What the whole record may take for one more index or group, in bytes: it is one value, of at most 100,000. The rest is left to
/// what is noted in it later: features, indexes that become readable, groups that lose their names.
pub(crate) const RECORD_BYTES_MAX: usize = 90_000;

/// What an index or a group takes in the record beside its definition and names, at most.
pub(crate) const ENTRY_BYTES: usize = 50;

/// For so long the selectors of a design document are compiled that is written without a look at how long that takes: a replica's, or
/// the server's own. Those of users have 2 s when they are judged, so all of theirs are compiled here.
const COMPILED_WITHIN: Duration = Duration::from_secs(10);

/// What the design documents of one transaction define.
#[derive(Default)]
pub(crate) struct Definitions {
    changed: Vec<Changed>,
    /// A revision has a verdict.
    has_verdicts: bool,
}

/// What a design document defines from now on.
struct Changed {
    id: String,
    indexes: Vec<Defined>,
    /// Its group of views.
    group: Option<Signature>,
    /// Definitions that are longer than one may be, and one more where some were not compiled in time.
    left_out: usize,
    /// They are of fields: the group is named where there is one, and else by the first who asks for its views.
    is_of_fields: bool,
}

/// A kind's name, and a definition in its words.
type Defined = (&'static str, Vec<u8>);

impl Changed {
    /// It defines nothing any more.
    fn nothing(id: &str) -> Changed {
        Changed { id: id.to_owned(), indexes: Vec::new(), group: None, left_out: 0, is_of_fields: false }
    }
}

impl Definitions {
    /// A document has changed, by an edit here or on a replica: what its winner says holds.
    pub(crate) async fn document(&mut self, within: &Within<'_>, change: &Change<'_>) -> Result<()> {
        self.has_verdicts |= change.judged.is_some_and(|(_, verdict)| !verdict.is_empty());
        if !DocumentId::of(change.id).is_design() {
            return Ok(());
        }
        let mut changed = Changed::nothing(change.id);
        if !change.new.deleted {
            let text = [b"{", change.new_body(within).await?.as_slice(), b"}"].concat();
            // What no parser takes was refused when it came.
            if let Ok(body) = parse(&text, &Limits::default()) {
                (changed.indexes, changed.left_out) = defined(within, &body, &text).await?;
                // What is wrong with it is said to who asks for its views.
                let group = GroupDefinition::of_design(&body, within.instance.record.partitioned);
                if let Ok(Some(group)) = group {
                    (changed.group, changed.is_of_fields) = (Some(group.signature), group.is_of_fields());
                }
            }
        }
        self.changed.push(changed);
        Ok(())
    }

    /// A document has gone without a trace.
    pub(crate) fn purged(&mut self, _within: &Within<'_>, purged: &Purged<'_>) {
        if DocumentId::of(purged.id).is_design() {
            self.changed.push(Changed::nothing(purged.id));
        }
    }

    /// Writes the database's record, where the list is another one now or what judges writes has changed. Every write has
    /// the record as a read conflict: none that knows the old list is committed behind it.
    /// `worn_out`: indexes that are to be built anew, by their numbers.
    pub(crate) fn finish(&self, within: &Within<'_>, changes_rules: bool, worn_out: &[u64]) -> Result<()> {
        let Within { inner, trx, instance } = *within;
        if is_outdated(&instance.record, inner.collation) {
            return Err(Error::Corrupt("an index of an older collation is written to".to_owned()));
        }
        groups::mark_followed(within)?;
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
                instance.change_rules(trx);
            }
            return Ok(());
        };
        record.rules += u64::from(changes_rules);
        replace_indexes(within, record)
    }

    /// Design documents that define more than there is room for are written all the same: who looks at the log sees why a query
    /// does not find what they define.
    fn log_left_out(&self, within: &Within<'_>, record: &proto::DatabaseRecord) {
        for Changed { id, indexes, group, left_out, is_of_fields } in &self.changed {
            let is_kept = |defined: &&Defined| {
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
                    "a design document defines indexes or views beyond what a database may have: they are not kept"
                );
            }
        }
    }

    fn redefined(&self, record: &proto::DatabaseRecord, now_ms: u64) -> proto::DatabaseRecord {
        let mut record = record.clone();
        for Changed { id, indexes, group, is_of_fields, .. } in &self.changed {
            redefine(&mut record, id, indexes);
            let is_there = |signature: &&Signature| groups_of(&record).any(|group| group.definition == **signature);
            let group = group.as_ref().filter(|group| !is_of_fields || is_there(group));
            name_group(&mut record, id, group, now_ms);
        }
        record
    }
}

/// Writes a record with another list of indexes, clears those that are gone, and notes that others are to be built.
fn replace_indexes(within: &Within<'_>, record: proto::DatabaseRecord) -> Result<()> {
    let Within { trx, instance, .. } = *within;
    for gone in &instance.record.indexes {
        if !record.indexes.iter().any(|index| index.number == gone.number) {
            Quiet(trx).clear_range(&instance.keys.index(gone.number))?;
        }
    }
    if unbuilt(record.clone()).next().is_some() {
        due::mark(trx, &instance.root, Kind::Indexes, &instance.name, 0)?;
    }
    groups::mark_changed(within, &instance.record, &record)?;
    write_record(within, record);
    Ok(())
}

/// Begins an index anew under another number, as its labels have no room. What this transaction has written to it goes with the rest.
pub(crate) fn renew_worn_out(within: &Within<'_>, number: u64) -> Result<()> {
    let mut record = within.instance.record.clone();
    renumber(&mut record, &[number]);
    replace_indexes(within, record)
}

/// Puts indexes of this program's collation in the place of those that an older program has sorted by another one: the same
/// definitions under new numbers, of which nothing is built. The transactions of older programs conflict with it, as all have the
/// record as a read conflict, and then find a collation that they do not know; so it is done once, and never back.
///
/// # Errors
/// [`Error::FeatureUnknown`]: the other is the newer.
pub(crate) async fn reorder(inner: &Inner, name: &str) -> Result<()> {
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
        tracing::info!(database = name, indexes = numbers.len(), "indexes of an older collation are built anew");
        replace_indexes(&Within { inner, trx, instance: &instance }, record)
    }
}

/// Writes a record with another list of indexes, or another state of one; every process notices.
pub(crate) fn write_record(within: &Within<'_>, mut record: proto::DatabaseRecord) {
    let of_kinds = record.indexes.iter().filter_map(|index| {
        let kind = KINDS.iter().find(|kind| kind.name() == index.kind)?;
        kind.feature(index)
    });
    let of_kinds: Vec<String> = of_kinds.collect();
    name_collations(&mut record, of_kinds);
    name_features(&mut record);
    within.trx.set(&within.instance.record_key, &record.encode_to_vec());
    within.trx.update_metadata_version();
}

/// Whether a design document may contain selectors that are slow to compile.
pub(crate) fn has_selectors(body: &Value<'_>) -> bool {
    let is_of_query = body.get("language").and_then(Value::as_str) == Some("query");
    (is_of_query || body.get(MEMBER).is_some()) && !Selector::is_quick(body)
}

/// See [`defined_by`], with selectors compiled before the attempt where that may take long. `text`: the body's.
async fn defined(within: &Within<'_>, body: &Value<'_>, text: &[u8]) -> Result<(Vec<Defined>, usize)> {
    let Within { inner, instance, .. } = *within;
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
    in_turn(within, digest, Duration::ZERO, work).await
}

/// What a design document defines; and how many definitions are too long for that, or at least one where `stop` has said that those that
/// are left are not compiled.
fn defined_by(
    body: &Value<'_>,
    is_partitioned: bool,
    collation: &str,
    stop: &dyn Fn() -> bool,
) -> (Vec<Defined>, usize) {
    let (mut all, mut left_out): (Vec<Defined>, usize) = (Vec::new(), 0);
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

/// Gives indexes other numbers: they are other indexes from now on, of which nothing is built.
fn renumber(record: &mut proto::DatabaseRecord, numbers: &[u64]) {
    for index in record.indexes.iter_mut().filter(|index| numbers.contains(&index.number)) {
        record.indexes_defined += 1;
        index.number = record.indexes_defined;
        index.readable = false;
    }
}

/// The room that a database's record has left for further definitions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DefinitionRoom {
    indexes: usize,
    definition_bytes: usize,
    record_bytes: usize,
}

impl DefinitionRoom {
    pub(crate) fn of(record: &proto::DatabaseRecord) -> DefinitionRoom {
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

    /// Reserves room for one more index, with the bytes of its definition and of its design document's id. Returns whether there was room.
    #[must_use]
    pub(crate) fn take(&mut self, definition_bytes: usize, source_bytes: usize) -> bool {
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

/// Replaces what `source` defined: what it still defines keeps its number and its state.
fn redefine(record: &mut proto::DatabaseRecord, source: &str, defined: &[Defined]) {
    let is = |index: &proto::Index, defined: &Defined| index.kind == defined.0 && index.definition == defined.1;
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

    /// As much as can be, of indexes and of groups, the one or the other first.
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
        let defined = |count: usize, bytes: usize| -> Vec<Defined> {
            (0..count).map(|n| ("json", format!("{n:0bytes$}").into_bytes())).collect()
        };
        // As long as a definition with a name generated by `_index`.
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
            // What is noted later.
            record.indexes.iter_mut().for_each(|index| index.readable = true);
            let designs: Vec<String> = record.indexes.iter().flat_map(|index| index.named_by.clone()).collect();
            designs.iter().for_each(|design| name_group(&mut record, design, None, u64::MAX));
            assert!(record.encoded_len() <= RECORD_BYTES_MAX);
        }
    }
}
