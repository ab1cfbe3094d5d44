//! Local documents: `_local/...`, without history, never replicated, in no index.
//!
//! Replicators keep their checkpoints here. As in CouchDB a write checks no revision: the last one stays.

use async_recursion::async_recursion as boxed;
use flatbed_revtree::local_id;
use futures_util::FutureExt;
use prost::Message;

use crate::asker::Asker;
use crate::document::body::{BODY_BYTES_MAX, begin_read};
use crate::document::edit::DOCUMENT_ID_BYTES_MAX;
use crate::error::{Error, Invalid, NotFound, Refusal, Result};
use crate::handle::{Database, Reader};
use crate::instance::{Instance, RUN_BYTES_MAX};
use crate::layer::Inner;
use crate::read::viewer::{Coming, is_judged};
use crate::size_limit::{self, Growth};
use crate::store::keys::{KeyRange, Keys, PrincipalPart};
use crate::store::once::Once;
use crate::store::proto;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

impl Reader {
    /// Reads a local document; `None`: it does not exist. `id` is without `_local/`.
    ///
    /// # Errors
    /// [`Refusal::InvalidDocument`] for an id that no local document can have, as for all local documents.
    #[boxed]
    pub async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        check_local_id(id)?;
        self.read_judged(&mut GetLocal { inner: &self.inner, name: &self.name, asker: self.asker(), id }).await
    }

    /// Reads a page of the ids of local documents in order, from `from` on (with it, or after it), and whether it is the last.
    #[boxed]
    pub async fn list_local(&self, from: Option<(&str, bool)>, descending: bool) -> Result<(Vec<String>, bool)> {
        let (inner, name, asker) = (&self.inner, &self.name, self.asker());
        self.read_judged(&mut ListLocal { inner, name, asker, from, descending }).await
    }
}

impl Database {
    /// Writes a local document over the one of its id.
    ///
    /// # Errors
    /// [`Refusal::DocumentTooLarge`] above [`crate::LOCAL_BYTES_MAX`].
    #[boxed]
    pub async fn put_local(&self, document: &LocalDocument) -> Result<()> {
        check_size(self).await?;
        edit_local(self, LocalEdit::Put(document.clone())).await.map(|_| ())
    }

    /// Removes a local document. Returns false if it does not exist.
    #[boxed]
    pub async fn delete_local(&self, id: &str) -> Result<bool> {
        edit_local(self, LocalEdit::Delete(id.to_owned())).await
    }

    /// Writes and removes local documents one after the other, many in a transaction, and returns the outcome of each in
    /// order. Removing a document that does not exist is [`Refusal::DocumentNotFound`].
    ///
    /// # Errors
    /// An error means that the database is gone or the storage gave up; the outcomes are then unknown.
    #[boxed]
    pub async fn edit_locals(&self, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
        if edits.iter().any(|edit| matches!(edit, LocalEdit::Put(_))) {
            check_size(self).await?;
        }
        edit_locals(self, edits).await
    }
}

/// Refuses users' local documents that a full database does not take. Replicators keep their places here: they are small, and
/// count among what goes on for a while.
async fn check_size(database: &Database) -> Result<()> {
    match database.actor.user() {
        Some(_) => size_limit::check(&database.inner, &database.name, Growth::Reserve).await,
        None => Ok(()),
    }
}

/// The largest local document, in bytes of JSON text: it is written in one transaction.
pub const LOCAL_BYTES_MAX: usize = 900_000;

/// Local documents of one transaction, at most.
const TRANSACTION_EDITS_MAX: usize = 250;

/// What several of them take in a transaction, at most.
const LOCALS_BYTES_MAX: usize = 850_000;

/// The longest name under which somebody has local documents of their own: it stands in keys, beside an id.
const OWNER_BYTES_MAX: usize = 1_000;

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

/// Whose local documents are meant.
enum Owner {
    /// Those of the database, which administrators have, and all in one without channels.
    Database,
    /// Somebody's own, by the name under which they are kept.
    Of(String),
}

impl Owner {
    /// Those of who asks. Nobody has those of a user of the database but the user: accounts of the server, which may be called as
    /// one, stand behind a colon, which is in no user's name, and who has no name under an empty one.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], [`Refusal::Unauthorized`]: they are not to have any.
    async fn find(inner: &Inner, trx: &Transaction, instance: &Instance, asker: &Asker) -> Result<Owner> {
        if !is_judged(instance, asker) {
            return Ok(Owner::Database);
        }
        Coming::begin(inner, trx, instance, asker).viewer().boxed().await?;
        let name = match asker {
            Asker::Principal(name) => name.to_string(),
            Asker::Account { name, .. } => format!(":{name}"),
            Asker::Guest | Asker::All => String::new(),
        };
        if name.len() > OWNER_BYTES_MAX {
            return Err(Refusal::Forbidden("The name is too long to have local documents.".to_owned()).into());
        }
        Ok(Owner::Of(name))
    }

    fn all(&self, keys: &Keys) -> KeyRange {
        match self {
            Owner::Database => keys.locals(),
            Owner::Of(name) => keys.principal_locals(name),
        }
    }

    fn parts(&self, keys: &Keys, id: &str) -> KeyRange {
        match self {
            Owner::Database => keys.local_parts(id),
            Owner::Of(name) => keys.principal_local_parts(name, id),
        }
    }

    fn part(&self, keys: &Keys, id: &str, part: u64) -> Vec<u8> {
        match self {
            Owner::Database => keys.local(id, part),
            Owner::Of(name) => keys.principal_local(name, id, part),
        }
    }

    fn id_of(&self, keys: &Keys, key: &[u8]) -> Result<String> {
        match self {
            Owner::Database => Ok(keys.split_local(key)?.0),
            Owner::Of(_) => match keys.split_principals(key)? {
                PrincipalPart::Local { id, .. } => Ok(id),
                _ => Err(Error::Corrupt("a part of a local document is something else".into())),
            },
        }
    }
}

pub(crate) struct GetLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a Asker,
    pub id: &'a str,
}

impl Operation for GetLocal<'_> {
    type Output = Option<LocalDocument>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<LocalDocument>> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let owner = Owner::find(self.inner, trx, &instance, self.asker).await?;
        let pages = begin_read(trx, owner.parts(&instance.keys, self.id)).finish(trx, BODY_BYTES_MAX).await?;
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
async fn edit_local(database: &Database, edit: LocalEdit) -> Result<bool> {
    edit.check()?;
    let (inner, edits) = (&*database.inner, [edit]);
    let mut operation = EditLocals::new(database, &edits)?;
    Ok(transaction::write(&inner.db, &inner.metrics, &mut operation).await?.contains(&true))
}

/// Does one thing after the other, in as many transactions as their size asks for. What was to be removed and is not there
/// is a refusal of that one.
async fn edit_locals(database: &Database, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
    let inner = &*database.inner;
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
        let mut operation = EditLocals::new(database, batch)?;
        let found = transaction::write(&inner.db, &inner.metrics, &mut operation).await?;
        let missing = Refusal::DocumentNotFound(NotFound::Missing);
        outcomes.extend(found.into_iter().map(|found| if found { Ok(()) } else { Err(missing.clone()) }));
        rest = later;
    }
    Ok(outcomes)
}

/// Local documents that are written or removed together.
pub(crate) struct EditLocals<'a> {
    database: &'a Database,
    edits: &'a [LocalEdit],
    once: Once,
    /// What the attempts that left a mark have found, by the marks' numbers.
    found: Vec<Vec<bool>>,
}

impl<'a> EditLocals<'a> {
    pub(crate) fn new(database: &'a Database, edits: &'a [LocalEdit]) -> Result<EditLocals<'a>> {
        Ok(EditLocals { database, edits, once: database.inner.once()?, found: Vec::new() })
    }
}

impl Operation for EditLocals<'_> {
    /// Whether there was one, of each; not looked at for a write.
    type Output = Vec<bool>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        let Database { actor, .. } = self.database;
        let inner = &*self.database.inner;
        let (instance, writer) = inner.resolve_for(trx, self.database.name(), actor).await?;
        // What an earlier attempt wrote or removed may have been written over, or written anew.
        if let Some(number) = self.once.happened(trx, attempt).await? {
            let found = usize::try_from(number).ok().and_then(|number| self.found.get(number)).cloned();
            return found.ok_or_else(|| Error::Corrupt("a mark of no attempt".into()));
        }
        writer.admitted(trx, &instance).await?;
        let owner = Owner::find(inner, trx, &instance, self.database.asker()).await?;
        let keys = &instance.keys;
        let mut found = Vec::with_capacity(self.edits.len());
        for edit in self.edits {
            let parts = owner.parts(keys, edit.id());
            let LocalEdit::Put(document) = edit else {
                let is_there = trx.get(&owner.part(keys, edit.id(), 0), false).await?.is_some();
                if is_there {
                    trx.clear_range(&parts.begin, &parts.end);
                }
                found.push(is_there);
                continue;
            };
            trx.clear_range(&parts.begin, &parts.end);
            let record = proto::LocalDocument { revision: document.revision, members: document.body.clone() };
            for (part, bytes) in (0..).zip(record.encode_to_vec().chunks(RUN_BYTES_MAX as usize)) {
                trx.set(&owner.part(keys, &document.id, part), bytes);
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
    pub asker: &'a Asker,
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
        let owner = Owner::find(self.inner, trx, &instance, self.asker).await?;
        let mut range = owner.all(keys);
        match self.from {
            Some((id, true)) if self.descending => range.end = owner.parts(keys, id).end,
            Some((id, false)) if self.descending => range.end = owner.parts(keys, id).begin,
            Some((id, true)) => range.begin = owner.parts(keys, id).begin,
            Some((id, false)) => range.begin = owner.parts(keys, id).end,
            None => {}
        }
        let mut ids = Vec::new();
        while ids.len() < PAGE_LOCALS_MAX {
            // A record of many parts is stepped over, not read.
            let first = trx.range(&range, true).reverse(self.descending).first(1).await?;
            let Some(row) = first.first() else { return Ok((ids, true)) };
            let id = owner.id_of(keys, row.key())?;
            let KeyRange { begin, end } = owner.parts(keys, &id);
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
