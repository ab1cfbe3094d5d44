//! Finds a group by its design document.

use std::sync::Arc;

use flatbed_databases::document::edit::{Document, GetOptions};
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::index::definitions::write_record;
use flatbed_operations::index::groups::{group_named_by, mark_changed, name_group, remove_unnamed};
use flatbed_operations::index::maintainers::IndexContext;
use flatbed_operations::read::get;
use flatbed_store::error::{Error, Refusal, Result, ViewFailure};
use flatbed_store::proto;
use flatbed_store::records::Info;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::view_definition::{DefinitionError, GroupDefinition, Signature};

use crate::view_updates::{LoadedGroup, views};

/// The most reads of a design document that changes concurrently.
const READS_MAX: usize = 30;

pub struct CurrentGroup {
    pub instance: Arc<Instance>,
    pub number: u64,
    pub loaded: Arc<LoadedGroup>,
}

pub(super) enum GroupLookup {
    Group(CurrentGroup),
    NotKept(GroupDefinition),
    Nothing,
}

/// Finds the group of a design document, and creates it if needed; `None`: the document defines no group.
///
/// # Errors
/// As [`look_up`].
pub async fn find(reader: &ReadHandle, design: &str) -> Result<Option<CurrentGroup>> {
    match look_up(reader, design, |_| true).await? {
        GroupLookup::Group(found) => Ok(Some(found)),
        GroupLookup::NotKept(_) | GroupLookup::Nothing => Ok(None),
    }
}

/// Returns the group of a design document from this process's cache, without a read. The document may have changed
/// since.
pub(super) fn known(reader: &ReadHandle, design: &str) -> Option<CurrentGroup> {
    let instance = reader.inner.cached(&reader.name)?;
    let group = group_named_by(&instance.record, design)?;
    let signature = Signature::try_from(group.definition.as_slice()).ok()?;
    let (number, loaded) = (group.number, views(&reader.inner).loaded(instance.record.namespace, &signature)?);
    Some(CurrentGroup { instance, number, loaded })
}

/// Finds the group of a design document. `keeps`: whether to create a missing one.
///
/// # Errors
/// [`Refusal::DocumentNotFound`]; [`ViewFailure::Definition`], [`ViewFailure::TooManyGroups`],
/// [`ViewFailure::Changed`].
pub(super) async fn look_up(
    reader: &ReadHandle,
    design: &str,
    keeps: impl Fn(&GroupDefinition) -> bool,
) -> Result<GroupLookup> {
    let ReadHandle { inner, name, .. } = reader;
    for _ in 0..READS_MAX {
        let (instance, number) = reader.read(&mut FindNamed { inner, name, design }).await?;
        if let Some((number, signature)) = number
            && let Some(loaded) = views(inner).loaded(instance.record.namespace, &signature)
        {
            return Ok(GroupLookup::Group(CurrentGroup { instance, number, loaded }));
        }
        let document = get::document(reader, design, &GetOptions { local_seq: true, ..GetOptions::default() }).await?;
        let Some(definition) = definition_of(&instance, &document).map_err(ViewFailure::Definition)? else {
            return Ok(GroupLookup::Nothing);
        };
        if let Some((number, signature)) = number
            && signature == definition.signature
        {
            let loaded = views(inner).load(inner, instance.record.namespace, &database_of(&instance), definition);
            return Ok(GroupLookup::Group(CurrentGroup { instance, number, loaded }));
        }
        if !keeps(&definition) {
            return Ok(GroupLookup::NotKept(definition));
        }
        // The document has changed meanwhile, or was written by a program without groups.
        let mut enter = Enter { inner, name, document: &document, signature: &definition.signature };
        match transaction::write(&inner.db, &inner.metrics, &mut enter).await? {
            EnterOutcome::Named | EnterOutcome::Changed => {}
            EnterOutcome::NoRoom => return Err(ViewFailure::TooManyGroups.into()),
        }
    }
    Err(ViewFailure::Changed.into())
}

/// Loads the group with a number, which the record has, and its functions; `None`: its design documents have changed.
pub(super) async fn load(
    reader: &ReadHandle,
    instance: &Instance,
    group: &proto::Index,
) -> Result<Option<Arc<LoadedGroup>>> {
    let namespace = instance.record.namespace;
    let Ok(signature) = Signature::try_from(group.definition.as_slice()) else {
        return Err(Error::Corrupt(format!("the signature of group {} is not 16 bytes", group.number)));
    };
    if let Some(loaded) = views(&reader.inner).loaded(namespace, &signature) {
        return Ok(Some(loaded));
    }
    for design in &group.named_by {
        let document = match get::document(reader, design, &GetOptions::default()).await {
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => continue,
            document => document?,
        };
        if let Ok(Some(definition)) = definition_of(instance, &document)
            && definition.signature == signature
        {
            return Ok(Some(views(&reader.inner).load(&reader.inner, namespace, &database_of(instance), definition)));
        }
    }
    Ok(None)
}

/// Identifies a database, and distinguishes it from earlier ones of the same name.
fn database_of(instance: &Instance) -> String {
    format!("{}/{}", instance.name, instance.cache_number())
}

fn definition_of(
    instance: &Instance,
    document: &Document,
) -> std::result::Result<Option<GroupDefinition>, DefinitionError> {
    let text = [b"{", document.body.as_slice(), b"}"].concat();
    // Unparsable bodies were refused when they arrived.
    parse(&text, &Limits::default())
        .map_or(Ok(None), |body| GroupDefinition::of_design(&body, instance.record.partitioned))
}

/// The group that a design document names, by the record.
struct FindNamed<'a> {
    inner: &'a Inner,
    name: &'a str,
    design: &'a str,
}

impl Operation for FindNamed<'_> {
    type Output = (Arc<Instance>, Option<(u64, Signature)>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let group = group_named_by(&instance.record, self.design);
        let group = group.and_then(|group| Some((group.number, group.definition.as_slice().try_into().ok()?)));
        Ok((instance, group))
    }
}

struct Enter<'a> {
    inner: &'a Inner,
    name: &'a str,
    document: &'a Document,
    signature: &'a Signature,
}

enum EnterOutcome {
    Named,
    Changed,
    NoRoom,
}

impl Operation for Enter<'_> {
    type Output = EnterOutcome;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<EnterOutcome> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let id = &self.document.id;
        let Some(info) = trx.get(&instance.keys.document(id).info(), false).await? else {
            return Ok(EnterOutcome::Changed);
        };
        let info = Info::decode(&info)?;
        let stands = self.document.local_seq.as_ref().map(|seq| (seq.incarnation(), *seq.stamp()));
        if info.deleted || stands != Some((instance.incarnation(), info.stamp)) {
            return Ok(EnterOutcome::Changed);
        }
        let mut record = instance.record.clone();
        name_group(&mut record, id, Some(self.signature), trx.clock().unix_ms());
        if group_named_by(&record, id).is_none() {
            // Unnamed groups make room: each change of a signature leaves one behind.
            remove_unnamed(trx, &instance.keys, &mut record, u64::MAX)?;
            name_group(&mut record, id, Some(self.signature), trx.clock().unix_ms());
        }
        if group_named_by(&record, id).is_none() {
            return Ok(EnterOutcome::NoRoom);
        }
        if record != instance.record {
            let within = IndexContext { inner: self.inner, trx, instance: &instance };
            mark_changed(&within, &instance.record, &record)?;
            write_record(&within, record)?;
        }
        Ok(EnterOutcome::Named)
    }
}
