//! Local documents: `_local/...`, without history, never replicated, in no index.
//!
//! Replicators keep their checkpoints here. As in CouchDB a write checks no revision: the last one stays.

use flatbed_revtree::local_id;
use prost::Message;

use crate::actor::Actor;
use crate::document::body::{BODY_BYTES_MAX, begin_read};
use crate::document::edit::DOCUMENT_ID_BYTES_MAX;
use crate::error::{Error, Invalid, NotFound, Refusal, Result};
use crate::instance::RUN_BYTES_MAX;
use crate::layer::Inner;
use crate::store::keys::KeyRange;
use crate::store::once::Once;
use crate::store::proto;
use crate::store::transaction::page_of;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// The largest local document, in bytes of JSON text: it is written in one transaction.
pub const LOCAL_BYTES_MAX: usize = 900_000;

/// Local documents of one transaction, at most.
const TRANSACTION_EDITS_MAX: usize = 250;

/// What several of them take in a transaction, at most.
const LOCALS_BYTES_MAX: usize = 850_000;

/// Local documents that a page of a list shows.
const PAGE_LOCALS_MAX: usize = 100;

/// A local document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDocument {
    /// Without `_local/`.
    pub id: String,
    /// The number in its revision `0-N`.
    pub revision: u64,
    /// The body's members as JSON text without braces; may be empty.
    pub body: Vec<u8>,
}

pub(crate) struct GetLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub id: &'a str,
}

impl Operation for GetLocal<'_> {
    type Output = Option<LocalDocument>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<LocalDocument>> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let pages = begin_read(trx, instance.keys.local_parts(self.id)).finish(trx, BODY_BYTES_MAX).await?;
        let mut record = Vec::new();
        pages.iter().flat_map(|page| page.iter()).for_each(|row| record.extend_from_slice(row.value()));
        if pages.iter().all(|page| page.is_empty()) {
            return Ok(None);
        }
        let record = proto::LocalDocument::decode(&*record)?;
        Ok(Some(LocalDocument { id: self.id.to_owned(), revision: record.revision, body: record.members }))
    }
}

/// Checks the id of a local document, without `_local/`: not empty, at most [`DOCUMENT_ID_BYTES_MAX`] bytes.
///
/// # Errors
/// [`Refusal::InvalidDocument`].
pub fn check_local_id(id: &str) -> std::result::Result<(), Refusal> {
    if id.is_empty() || id.len() > DOCUMENT_ID_BYTES_MAX {
        let reason = format!("Document id is 1 to {DOCUMENT_ID_BYTES_MAX} bytes long");
        return Err(Refusal::invalid(Invalid::Id, reason));
    }
    Ok(())
}

/// What is done to a local document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalEdit {
    /// It is written, whatever was there.
    Put(LocalDocument),
    /// The one of this id, without `_local/`, is removed.
    Delete(String),
}

/// What became of one of several.
pub type LocalOutcome = std::result::Result<(), Refusal>;

impl LocalEdit {
    fn id(&self) -> &str {
        match self {
            LocalEdit::Put(document) => &document.id,
            LocalEdit::Delete(id) => id,
        }
    }

    fn check(&self) -> std::result::Result<(), Refusal> {
        check_local_id(self.id())?;
        match self {
            LocalEdit::Put(document) if document.body.len() > LOCAL_BYTES_MAX => {
                let document_id = local_id(&document.id);
                Err(Refusal::DocumentTooLarge { document_id, bytes_max: LOCAL_BYTES_MAX as u64 })
            }
            _ => Ok(()),
        }
    }

    /// What it takes in a transaction, about: its id stands in the key of each part and in the cleared range.
    fn bytes(&self) -> usize {
        let body = if let LocalEdit::Put(document) = self { document.body.len() } else { 0 };
        body + (4 + body / RUN_BYTES_MAX as usize) * (self.id().len() + 50)
    }
}

/// Does one thing. Whether there was one, if it is removed; true if it is written.
pub(crate) async fn edit_local(inner: &Inner, name: &str, actor: &Actor, edit: LocalEdit) -> Result<bool> {
    edit.check()?;
    let edits = [edit];
    let mut operation = EditLocals::new(inner, name, actor, &edits)?;
    Ok(transaction::write(&inner.db, &inner.metrics, &mut operation).await?.contains(&true))
}

/// Does one thing after the other, in as many transactions as their size asks for. What was to be removed and is not there
/// is a refusal of that one.
pub(crate) async fn edit_locals(
    inner: &Inner,
    name: &str,
    actor: &Actor,
    edits: &[LocalEdit],
) -> Result<Vec<LocalOutcome>> {
    let mut outcomes = Vec::with_capacity(edits.len());
    let mut rest = edits;
    while let Some(first) = rest.first() {
        if let Err(refusal) = first.check() {
            outcomes.push(Err(refusal));
            rest = &rest[1..];
            continue;
        }
        let mut bytes = 0;
        let fits = |edit: &&LocalEdit| {
            bytes += edit.bytes();
            edit.check().is_ok() && bytes <= LOCALS_BYTES_MAX
        };
        let count = rest.iter().take(TRANSACTION_EDITS_MAX).take_while(fits).count().max(1);
        let (batch, later) = rest.split_at(count);
        let mut operation = EditLocals::new(inner, name, actor, batch)?;
        let found = transaction::write(&inner.db, &inner.metrics, &mut operation).await?;
        let missing = Refusal::DocumentNotFound(NotFound::Missing);
        outcomes.extend(found.into_iter().map(|found| if found { Ok(()) } else { Err(missing.clone()) }));
        rest = later;
    }
    Ok(outcomes)
}

/// Local documents that are written or removed together.
pub(crate) struct EditLocals<'a> {
    inner: &'a Inner,
    name: &'a str,
    actor: &'a Actor,
    edits: &'a [LocalEdit],
    once: Once,
    /// What the attempts that left a mark have found, by the marks' numbers.
    found: Vec<Vec<bool>>,
}

impl<'a> EditLocals<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        name: &'a str,
        actor: &'a Actor,
        edits: &'a [LocalEdit],
    ) -> Result<EditLocals<'a>> {
        Ok(EditLocals { inner, name, actor, edits, once: inner.once()?, found: Vec::new() })
    }
}

impl Operation for EditLocals<'_> {
    /// Whether there was one, of each; not looked at for a write.
    type Output = Vec<bool>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        let (instance, writer) = self.inner.resolve_for(trx, self.name, self.actor).await?;
        // What an earlier attempt wrote or removed may have been written over, or written anew.
        if let Some(number) = self.once.happened(trx, attempt).await? {
            let found = usize::try_from(number).ok().and_then(|number| self.found.get(number)).cloned();
            return found.ok_or_else(|| Error::Corrupt("a mark of no attempt".into()));
        }
        writer.admitted(trx, &instance).await?;
        let mut found = Vec::with_capacity(self.edits.len());
        for edit in self.edits {
            let parts = instance.keys.local_parts(edit.id());
            let LocalEdit::Put(document) = edit else {
                let is_there = trx.get(&instance.keys.local(edit.id(), 0), false).await?.is_some();
                if is_there {
                    trx.clear_range(&parts.begin, &parts.end);
                }
                found.push(is_there);
                continue;
            };
            trx.clear_range(&parts.begin, &parts.end);
            let record = proto::LocalDocument { revision: document.revision, members: document.body.clone() };
            for (part, bytes) in (0..).zip(record.encode_to_vec().chunks(RUN_BYTES_MAX as usize)) {
                trx.set(&instance.keys.local(&document.id, part), bytes);
            }
            found.push(true);
        }
        // Where there is nothing to remove, nothing is written, and no commit can be in doubt.
        if found.contains(&true) {
            self.once.mark(trx);
            self.found.push(found.clone());
        }
        Ok(found)
    }
}

/// Ids of local documents in a range.
pub(crate) struct ListLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    /// The first id, and whether it belongs to the list itself.
    pub from: Option<(&'a str, bool)>,
    /// Downwards.
    pub descending: bool,
}

impl Operation for ListLocal<'_> {
    /// One page; fewer than [`PAGE_LOCALS_MAX`] at the end.
    type Output = (Vec<String>, bool);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let keys = &instance.keys;
        let mut range = keys.locals();
        match self.from {
            Some((id, true)) if self.descending => range.end = keys.local_parts(id).end,
            Some((id, false)) if self.descending => range.end = keys.local_parts(id).begin,
            Some((id, true)) => range.begin = keys.local_parts(id).begin,
            Some((id, false)) => range.begin = keys.local_parts(id).end,
            None => {}
        }
        let mut ids = Vec::new();
        while ids.len() < PAGE_LOCALS_MAX {
            // A record of many parts is stepped over, not read.
            let first = trx.get_range(&page_of(&range, 1, self.descending), 1, true).await?;
            let Some(row) = first.first() else { return Ok((ids, true)) };
            let (id, _) = keys.split_local(row.key())?;
            let KeyRange { begin, end } = keys.local_parts(&id);
            if self.descending {
                range.end = begin;
            } else {
                range.begin = end;
            }
            ids.push(id);
        }
        Ok((ids, false))
    }
}
