//! Local documents: `_local/...`, without history, never replicated, in no index.
//!
//! Replicators keep their checkpoints here. As in CouchDB a write checks no revision: the last one wins. No validation
//! function judges these writes, so the bytes of local documents are counted and bounded.

use std::collections::{HashMap, VecDeque};

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::body::{BODY_BYTES_MAX, begin_read};
use flatbed_databases::document::edit::DOCUMENT_ID_BYTES_MAX;
use flatbed_databases::handles::{ReadHandle, WriteHandle};
use flatbed_databases::instance::{Instance, RUN_BYTES_MAX};
use flatbed_databases::server::Inner;
use flatbed_databases::size_limit::{self, Growth};
use flatbed_revtree::local_id;
use flatbed_store::error::{Error, Invalid, NotFound, Refusal, Result};
use flatbed_store::keys::{KeyRange, Keys, PrincipalPart};
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::records::decode_counter;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use foundationdb::FdbResult;
use foundationdb::future::FdbSlice;
use foundationdb::options::MutationType;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use prost::Message;

use crate::read::viewer::{PendingViewer, is_judged};

/// Performs `Reader::get_local` of the layer.
#[boxed]
pub async fn get_local(database: &ReadHandle, id: &str) -> Result<Option<LocalDocument>> {
    check_local_id(id)?;
    database
        .read_judged(&mut GetLocal { inner: &database.inner, name: &database.name, asker: database.asker(), id })
        .await
}

/// Performs `Reader::list_local` of the layer.
#[boxed]
pub async fn list_local(
    database: &ReadHandle,
    from: Option<(&str, bool)>,
    descending: bool,
) -> Result<(Vec<String>, bool)> {
    let (inner, name, asker) = (&database.inner, &database.name, database.asker());
    database.read_judged(&mut ListLocal { inner, name, asker, from, descending }).await
}

/// Performs `Database::put_local` of the layer.
#[boxed]
pub async fn put_local(database: &WriteHandle, document: &LocalDocument) -> Result<()> {
    check_size(database).await?;
    edit_local(database, LocalEdit::Put(document.clone())).await.map(|_| ())
}

/// Performs `Database::delete_local` of the layer.
#[boxed]
pub async fn delete_local(database: &WriteHandle, id: &str) -> Result<bool> {
    edit_local(database, LocalEdit::Delete(id.to_owned())).await
}

/// Performs `Database::edit_locals` of the layer.
#[boxed]
pub async fn edit_locals(database: &WriteHandle, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
    if edits.iter().any(|edit| matches!(edit, LocalEdit::Put(_))) {
        check_size(database).await?;
    }
    edit_each(database, edits).await
}

/// Refuses a user's write of local documents to a full database. Checkpoints of replicators are small, so the reserve
/// is open to them ([`Growth::Reserve`]).
async fn check_size(database: &WriteHandle) -> Result<()> {
    match database.actor.user() {
        Some(_) => size_limit::check(&database.inner, &database.name, Growth::Reserve).await,
        None => Ok(()),
    }
}

/// The largest local document, in bytes of JSON text: it is written in one transaction.
pub const LOCAL_BYTES_MAX: usize = 900_000;

/// Limit of local documents in one transaction.
const TRANSACTION_EDITS_MAX: usize = 250;

/// Byte limit of several local documents in one transaction.
const LOCALS_BYTES_MAX: usize = 850_000;

/// First parts of local documents that a transaction reads at once. Each has up to 60,000 bytes.
const READS_AT_ONCE: usize = 16;

/// The longest owner name of local documents in bytes: it is part of keys, beside an id.
const OWNER_BYTES_MAX: usize = 1_000;

/// Each user of a database with channels may have [`flatbed_databases::server::LayerOptions::local_bytes_max`] divided
/// by this, and anonymous writers may fill a database up to that.
const LOCAL_BYTES_PART: u64 = 8;

/// The bytes that a local document counts beside its id and record, for keys and small values in the storage.
const LOCAL_OVERHEAD_BYTES: u64 = 256;

/// The protobuf tag of the member `counted` of a record.
const COUNTED_TAG: u8 = 3 << 3;

const PAGE_LOCALS_MAX: usize = 100;

/// A local document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDocument {
    /// The id without `_local/`.
    pub id: String,
    /// The number in its revision `0-N`.
    pub revision: u64,
    /// The body's members as JSON text without braces; may be empty.
    pub body: Vec<u8>,
}

/// The owner of local documents.
enum Owner {
    /// The database: for administrators, and for all users of a database without channels.
    Database,
    /// A user, by the name in the keys.
    Of(String),
}

impl Owner {
    /// Finds the owner for a principal. A database user's documents are for that user alone: an account of the server,
    /// which may have the same name, is stored behind a colon, which no user's name has, and an anonymous user under
    /// the empty name.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], [`Refusal::Unauthorized`]: the principal may not have local documents.
    async fn find(inner: &Inner, trx: &Transaction, instance: &Instance, asker: &ReadPrincipal) -> Result<Owner> {
        if !is_judged(instance, asker) {
            return Ok(Owner::Database);
        }
        PendingViewer::begin(inner, trx, instance, asker).viewer().boxed().await?;
        let name = match asker {
            ReadPrincipal::Principal(name) => name.to_string(),
            ReadPrincipal::Account { name, .. } => format!(":{name}"),
            ReadPrincipal::Guest | ReadPrincipal::All => String::new(),
        };
        if name.len() > OWNER_BYTES_MAX {
            return Err(Refusal::Forbidden("The name is too long to have local documents.".to_owned()).into());
        }
        Ok(Owner::Of(name))
    }

    /// The user's name. `None`: the documents belong to the database.
    fn name(&self) -> Option<&str> {
        match self {
            Owner::Database => None,
            Owner::Of(name) => Some(name),
        }
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

pub struct GetLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
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

/// An edit of a local document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalEdit {
    /// Writes the document, over an existing one.
    Put(LocalDocument),
    /// Removes the document of this id, without `_local/`.
    Delete(String),
}

/// The outcome of one edit.
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

    /// Returns the approximate bytes in a transaction: the id is in the key of each part and in the cleared range.
    fn bytes(&self) -> usize {
        let body = if let LocalEdit::Put(document) = self { document.body.len() } else { 0 };
        body + (4 + body / RUN_BYTES_MAX as usize) * (self.id().len() + 50)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalEffect {
    /// The document was written or removed.
    Applied,
    /// The document to remove does not exist.
    Missing,
    /// The write would exceed the bound of bytes.
    OverLimit,
}

/// Applies one edit. Returns `true` for a write, and for a removal whether the document existed.
async fn edit_local(database: &WriteHandle, edit: LocalEdit) -> Result<bool> {
    edit.check()?;
    let (inner, edits) = (&*database.inner, [edit]);
    let mut operation = EditLocals::new(database, &edits)?;
    let effects = transaction::write(&inner.db, &inner.metrics, &mut operation).await?;
    if effects.contains(&LocalEffect::OverLimit) {
        return Err(over_limit(&database.actor).into());
    }
    Ok(effects.contains(&LocalEffect::Applied))
}

/// The refusal of a write beyond the bound of bytes. Clients such as PouchDB continue without a checkpoint of the
/// source if they may not write it (4xx), and fail if the storage is full (507). Anonymous clients are refused with the
/// former: any of them can fill the bound.
fn over_limit(actor: &Actor) -> Refusal {
    if actor.is_anonymous() {
        Refusal::Forbidden("There is no room for more local documents of anonymous clients.".to_owned())
    } else {
        Refusal::LocalDocumentsFull
    }
}

/// Applies edits in order, in as many transactions as their size needs. Only the edit itself is refused if it removes a
/// document that does not exist, or exceeds the bound of bytes.
async fn edit_each(database: &WriteHandle, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
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
        let effects = transaction::write(&inner.db, &inner.metrics, &mut operation).await?;
        outcomes.extend(effects.into_iter().map(|effect| match effect {
            LocalEffect::Applied => Ok(()),
            LocalEffect::Missing => Err(Refusal::DocumentNotFound(NotFound::Missing)),
            LocalEffect::OverLimit => Err(over_limit(&database.actor)),
        }));
        rest = later;
    }
    Ok(outcomes)
}

/// Encodes a local document. Returns the record and its counted bytes. `counted` comes first, so that part 0 contains
/// it.
fn record_of(document: &LocalDocument) -> (Vec<u8>, i64) {
    let LocalDocument { id, revision, body } = document;
    let record = proto::LocalDocument { revision: *revision, members: body.clone(), counted: 0 }.encode_to_vec();
    let counted = LOCAL_OVERHEAD_BYTES + record.len() as u64 + id.len() as u64;
    let count = proto::LocalDocument { counted, ..proto::LocalDocument::default() }.encode_to_vec();
    ([count, record].concat(), i64::try_from(counted).unwrap_or(i64::MAX))
}

/// Decodes the counted bytes from part 0 of a record; 0 if there are none.
pub fn counted_in(first_part: &[u8]) -> i64 {
    let Some((&COUNTED_TAG, rest)) = first_part.split_first() else { return 0 };
    let length = rest.iter().position(|byte| byte & 0x80 == 0).map_or(0, |last| last + 1);
    let varint = rest.iter().take(length).rev();
    let counted = varint.fold(0_u64, |sum, byte| sum << 7 | u64::from(byte & 0x7f));
    i64::try_from(counted).unwrap_or(0)
}

/// A pending read of one key.
type PointRead = BoxFuture<'static, FdbResult<Option<FdbSlice>>>;

/// A pending read of each item, in order. At most [`READS_AT_ONCE`] are begun and not yet taken, so that many edits do
/// not hold as many values in memory.
struct ReadsAhead<'e, T, F> {
    begun: VecDeque<F>,
    rest: std::slice::Iter<'e, T>,
}

impl<'e, T, F> ReadsAhead<'e, T, F> {
    fn begin(items: &'e [T], read: impl FnMut(&'e T) -> F) -> ReadsAhead<'e, T, F> {
        let mut rest = items.iter();
        let begun = rest.by_ref().take(READS_AT_ONCE).map(read).collect();
        ReadsAhead { begun, rest }
    }

    /// Takes the next read, to be awaited before another is begun. `None`: all are taken.
    fn take(&mut self) -> Option<F> {
        self.begun.pop_front()
    }

    /// Begins the read of the next item, if there is one.
    fn begin_next(&mut self, read: impl FnOnce(&'e T) -> F) {
        self.begun.extend(self.rest.next().map(read));
    }
}

/// Pending reads: part 0 of each edited document, and the counter of bytes if any document is written.
struct LocalReads<'e> {
    firsts: ReadsAhead<'e, LocalEdit, PointRead>,
    bytes: Option<PointRead>,
}

/// Begins the read of part 0 of an edited document. It conflicts: a concurrent write of the same document changes its
/// counted bytes.
fn begin_first(trx: &Transaction, keys: &Keys, owner: &Owner, edit: &LocalEdit) -> PointRead {
    trx.get(&owner.part(keys, edit.id(), 0), false).boxed()
}

fn begin_reads<'e>(trx: &Transaction, keys: &Keys, owner: &Owner, edits: &'e [LocalEdit]) -> LocalReads<'e> {
    let firsts = ReadsAhead::begin(edits, |edit| begin_first(trx, keys, owner, edit));
    let is_write = |edit: &LocalEdit| matches!(edit, LocalEdit::Put(_));
    let bytes = edits.iter().any(is_write).then(|| trx.get(&keys.local_bytes(owner.name()), true).boxed());
    LocalReads { firsts, bytes }
}

/// Writes and removes local documents in one transaction.
pub struct EditLocals<'a> {
    database: &'a WriteHandle,
    edits: &'a [LocalEdit],
    once: Once,
    /// The effects of the attempts that left a mark, by the number of the mark.
    effects: Vec<Vec<LocalEffect>>,
}

impl<'a> EditLocals<'a> {
    pub fn new(database: &'a WriteHandle, edits: &'a [LocalEdit]) -> Result<EditLocals<'a>> {
        Ok(EditLocals { database, edits, once: database.inner.once()?, effects: Vec::new() })
    }

    /// The bytes up to which this writer may grow the owner's local documents. Users must not keep the server's
    /// administrators and jobs from their checkpoints, so these have no bound.
    fn bytes_max(&self, owner: &Owner) -> i64 {
        let (max, actor) = (self.database.inner.options.local_bytes_max, &self.database.actor);
        if actor.is_administrator() {
            return i64::MAX;
        }
        let max = match owner {
            Owner::Database if !actor.is_anonymous() => max,
            Owner::Database | Owner::Of(_) => max / LOCAL_BYTES_PART,
        };
        i64::try_from(max).unwrap_or(i64::MAX)
    }
}

impl Operation for EditLocals<'_> {
    type Output = Vec<LocalEffect>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        let WriteHandle { actor, .. } = self.database;
        let inner = &*self.database.inner;
        let (instance, writer) = inner.resolve_for(trx, self.database.name(), actor).await?;
        // Other writers may have replaced the result of an earlier attempt.
        if let Some(number) = self.once.happened(trx, attempt).await? {
            let effects = usize::try_from(number).ok().and_then(|number| self.effects.get(number)).cloned();
            return effects.ok_or_else(|| Error::Corrupt("a mark of no attempt".into()));
        }
        let (keys, asker) = (&instance.keys, self.database.asker());
        // Issued before the user is read, unless the owner is known only then.
        let begun = (!is_judged(&instance, asker)).then(|| begin_reads(trx, keys, &Owner::Database, self.edits));
        writer.admitted(trx, &instance).await?;
        let owner = Owner::find(inner, trx, &instance, asker).await?;
        let mut reads = match begun {
            Some(begun) => begun,
            None => begin_reads(trx, keys, &owner, self.edits),
        };
        // The counted bytes by id. `None`: the document does not exist.
        let mut counted: HashMap<&str, Option<i64>> = HashMap::new();
        for edit in self.edits {
            let Some(first) = reads.firsts.take() else { break };
            let count = first.await?.map(|first| counted_in(&first));
            reads.firsts.begin_next(|next| begin_first(trx, keys, &owner, next));
            counted.entry(edit.id()).or_insert(count);
        }
        let mut bytes = match reads.bytes {
            Some(read) => decode_counter(read.await?.as_deref())?.max(0),
            None => 0,
        };
        let (bytes_max, bytes_before) = (self.bytes_max(&owner), bytes);
        let mut effects = Vec::with_capacity(self.edits.len());
        for edit in self.edits {
            let before = counted.get(edit.id()).copied().flatten();
            let parts = owner.parts(keys, edit.id());
            let LocalEdit::Put(document) = edit else {
                if let Some(before) = before {
                    trx.clear_range(&parts.begin, &parts.end);
                    bytes -= before;
                    counted.insert(edit.id(), None);
                }
                effects.push(if before.is_some() { LocalEffect::Applied } else { LocalEffect::Missing });
                continue;
            };
            let (record, count) = record_of(document);
            let growth = count - before.unwrap_or(0);
            if growth > 0 && bytes.saturating_add(growth) > bytes_max {
                effects.push(LocalEffect::OverLimit);
                continue;
            }
            trx.clear_range(&parts.begin, &parts.end);
            for (part, bytes) in (0..).zip(record.chunks(RUN_BYTES_MAX as usize)) {
                trx.set(&owner.part(keys, &document.id, part), bytes);
            }
            bytes += growth;
            counted.insert(edit.id(), Some(count));
            effects.push(LocalEffect::Applied);
        }
        if bytes != bytes_before {
            let delta = (bytes - bytes_before).to_le_bytes();
            Quiet(trx).atomic(&keys.local_bytes(owner.name()), &delta, MutationType::Add)?;
        }
        // Without writes there is no unknown commit result.
        if effects.contains(&LocalEffect::Applied) {
            self.once.mark(trx);
            self.effects.push(effects.clone());
        }
        Ok(effects)
    }
}

pub struct ListLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    /// The first id, and whether it belongs to the list itself.
    pub from: Option<(&'a str, bool)>,
    /// Descending order.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_reads_are_begun_at_once() {
        for count in [0, 1, READS_AT_ONCE, READS_AT_ONCE + 1, TRANSACTION_EDITS_MAX] {
            let items: Vec<usize> = (0..count).collect();
            let mut begun = 0;
            let mut read = |item: &usize| {
                begun += 1;
                *item
            };
            let mut reads = ReadsAhead::begin(&items, &mut read);
            let mut taken = Vec::new();
            while let Some(item) = reads.take() {
                taken.push(item);
                assert!(reads.begun.len() < READS_AT_ONCE, "of {count} items");
                reads.begin_next(&mut read);
            }
            assert_eq!((begun, &taken), (count, &items));
        }
    }
}
