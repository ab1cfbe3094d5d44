//! Maintains all data that is derived from documents.
//!
//! A write hands the old and the new state of each document to the maintainers of its database, in its own transaction:
//! by-seq, `_all_docs` and the counters, which every database has, and one for each index in the database's record.

use flatbed_databases::channels::grants::{self, GrantChanges};
use flatbed_databases::document::body::{self, PreparedBody, Rows};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord};
use flatbed_store::transaction::Transaction;
use futures_util::future::{BoxFuture, try_join_all};

use crate::index::all_docs::AllDocsIndex;
use crate::index::by_seq::BySeq;
use crate::index::channels::{Channels, RoutingChange};
use crate::index::counters::Counters;
use crate::index::definitions::Definitions;
use crate::index::kinds::indexes_of;
use crate::index::partitions::Partitions;
use crate::index::prepare::Preparations;

#[derive(Clone, Copy)]
pub struct IndexContext<'a> {
    pub inner: &'a Inner,
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
}

pub struct Change<'c> {
    pub id: &'c str,
    pub keys: &'c DocumentKeys,
    /// The state before; `None`: the document is new.
    pub old: Option<&'c Info>,
    /// The old winner's body, if the write had to read it. A body in a blob is read only if a maintainer wants it.
    pub old_rows: Option<&'c Rows>,
    /// The state after. Its stamp is not set yet.
    pub new: &'c Info,
    /// The new winner's body, if the edit has it.
    pub brought: Option<&'c PreparedBody>,
    /// The edit's revision, whether it wins or not, and the verdict of its judge.
    pub judged: Option<(&'c RevId, &'c Verdict)>,
    /// The effect on channels. `None` in a database without channels, and for builders.
    pub rerouted: Option<&'c RoutingChange>,
    /// All leaves after the change, as (deleted, revision).
    pub leaves: &'c [(bool, RevId)],
    /// The change in bytes of bodies and attachments, over all revisions of the document.
    pub stored_bytes_delta: i64,
    /// The part of it that belongs to revisions that are no leaves.
    pub superseded_bytes_delta: i64,
    /// Unique among the documents of the transaction.
    pub user_version: u16,
}

pub enum NewRows<'c> {
    Brought(&'c PreparedBody),
    Known(&'c Rows),
    Read(Rows),
}

impl Change<'_> {
    /// Returns the new winner's body as rows; see [`Change::new_body`].
    pub async fn new_rows(&self, within: &IndexContext<'_>) -> Result<NewRows<'_>> {
        let IndexContext { trx, instance, .. } = *within;
        Ok(match (&self.new.place, self.brought, self.old_rows) {
            (BodyPlace::Rows, Some(brought), _) => NewRows::Brought(brought),
            (_, None, Some(rows)) if self.old.is_some_and(|old| old.winner == self.new.winner) => NewRows::Known(rows),
            (BodyPlace::Blob(blob_id), ..) => {
                NewRows::Read(Box::pin(body::read_rows(trx, instance.keys.blob_rows(blob_id))).await?)
            }
            // This transaction has moved it.
            (BodyPlace::Rows, None, _) => NewRows::Read(body::read_rows(trx, self.keys.body_rows()).await?),
        })
    }

    /// Returns the new winner's body as JSON text of its members, without braces. It is read only if the edit lacks it
    /// because another revision wins, or if the body is in a blob.
    pub async fn new_body(&self, within: &IndexContext<'_>) -> Result<Vec<u8>> {
        let IndexContext { inner, trx, instance } = *within;
        let read;
        let rows = match (&self.new.place, self.brought, self.old_rows) {
            (BodyPlace::Blob(blob_id), ..) => {
                read = body::read_rows(trx, instance.keys.blob_rows(blob_id)).await?;
                &read
            }
            (BodyPlace::Rows, Some(brought), _) => {
                return body::prepared_to_json(inner, instance, brought).await;
            }
            (BodyPlace::Rows, None, Some(rows)) if self.old.is_some_and(|old| old.winner == self.new.winner) => rows,
            // This transaction has moved it.
            (BodyPlace::Rows, None, _) => {
                read = body::read_rows(trx, self.keys.body_rows()).await?;
                &read
            }
        };
        body::to_json(inner, instance, rows).await
    }

    /// Returns the old winner's body like [`Change::new_body`]; `None`: the document is new. Maintainers that call it
    /// return true from [`IndexMaintainer::wants_old_body`].
    pub async fn old_body(&self, within: &IndexContext<'_>) -> Result<Option<Vec<u8>>> {
        match (self.old, self.old_rows) {
            (Some(_), Some(rows)) => Ok(Some(body::to_json(within.inner, within.instance, rows).await?)),
            _ => Ok(None),
        }
    }
}

impl Change<'_> {
    /// Returns the verdict on the new winner from when it was written. It is read if the edit lacks it.
    pub async fn verdict(&self, within: &IndexContext<'_>) -> Result<Verdict> {
        if let Some((_, verdict)) = self.judged.filter(|(rev, _)| **rev == self.new.winner) {
            return Ok(verdict.clone());
        }
        // No conflict is needed: every writer of the record conflicts on the document's info.
        match within.trx.get(&self.keys.revision(&self.new.winner), true).await? {
            Some(record) => Ok(Verdict::decode(RevisionRecord::decode(&record)?.verdict)),
            None => Err(Error::Corrupt(format!("leaf {} has no record", self.new.winner))),
        }
    }
}

pub struct PurgedDocument<'c> {
    pub id: &'c str,
    pub old: &'c Info,
    /// The old winner's body, if a maintainer wants it.
    pub old_rows: Option<&'c Rows>,
    /// See [`Change::rerouted`].
    pub rerouted: Option<&'c RoutingChange>,
    pub stored_bytes_delta: i64,
    pub superseded_bytes_delta: i64,
    pub user_version: u16,
}

/// The rest of a maintainer's work, if it has to wait for a read.
pub type PendingWork<'a> = Option<BoxFuture<'a, Result<()>>>;

/// Maintains one kind of derived data. It writes into the caller's transaction and reads nothing there that other
/// transactions write often: it reads its own old entries of a document as a snapshot, since all writers of them
/// conflict on the document's info.
pub trait IndexMaintainer: Send {
    /// Begins the maintainer's reads for a document that may be written, before the caller awaits anything.
    fn begin(&mut self, _within: &IndexContext<'_>, _id: &str) {}

    /// Returns whether the maintainer needs the old winner's body even if it is in a blob.
    fn wants_old_body(&self) -> bool {
        false
    }

    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>>;

    fn purged<'a>(
        &'a mut self,
        within: &'a IndexContext<'a>,
        purged: &'a PurgedDocument<'a>,
    ) -> Result<PendingWork<'a>>;

    /// Returns the bytes written beyond the kind's reservation since the last call.
    fn excess(&mut self) -> u64 {
        0
    }

    /// Returns the number of an index without room for a new label, which must be rebuilt.
    fn is_worn_out(&self) -> Option<u64> {
        None
    }

    /// Permits to put off documents that are better not entered in the order of ids. A builder enters them later, in no
    /// order.
    fn may_put_off(&mut self) {}

    /// Returns whether the last document was put off without an entry.
    fn has_put_off(&mut self) -> bool {
        false
    }

    fn finish(&mut self, _within: &IndexContext<'_>) -> Result<()> {
        Ok(())
    }
}

pub struct Maintainers {
    /// The maintainers of every database come first.
    all: Vec<Box<dyn IndexMaintainer>>,
    definitions: Definitions,
    grants: Option<GrantChanges>,
}

const COMMON: usize = 3;

impl Maintainers {
    pub fn of(instance: &Instance, preparations: &Preparations) -> Maintainers {
        let mut all: Vec<Box<dyn IndexMaintainer>> = Vec::with_capacity(COMMON + instance.record.indexes.len());
        all.push(Box::new(BySeq::new(instance)));
        all.push(Box::new(AllDocsIndex));
        all.push(Box::new(Counters::default()));
        if instance.record.partitioned {
            all.push(Box::new(Partitions::default()));
        }
        if instance.channels() > 0 {
            all.push(Box::new(Channels::default()));
        }
        let apart = indexes_of(instance).filter(|index| !index.kind.is_of_by_seq());
        all.extend(apart.map(|index| index.maintainer(preparations)));
        let grants = (instance.channels() > 0).then(GrantChanges::default);
        Maintainers { all, definitions: Definitions::default(), grants }
    }

    /// See [`IndexMaintainer::begin`].
    pub fn begin(&mut self, within: &IndexContext<'_>, id: &str) {
        self.all.iter_mut().for_each(|maintainer| maintainer.begin(within, id));
    }

    /// Begins the reads of the grants for a document with this verdict.
    pub fn begin_grants(&mut self, within: &IndexContext<'_>, said: &Verdict) {
        if let Some(shared) = &mut self.grants {
            shared.begin(within.trx, &within.instance.keys, &said.grants);
        }
    }

    pub fn want_old_body(&self) -> bool {
        self.all.iter().skip(COMMON).any(|maintainer| maintainer.wants_old_body())
    }

    pub async fn document(&mut self, within: &IndexContext<'_>, change: &Change<'_>) -> Result<()> {
        self.definitions.document(within, change).await?;
        self.grants(within, change.id, change.rerouted);
        let mut later = Vec::new();
        for maintainer in &mut self.all {
            later.extend(maintainer.document(within, change)?);
        }
        if later.is_empty() {
            return Ok(());
        }
        try_join_all(later).await.map(|_| ())
    }

    pub async fn purged(&mut self, within: &IndexContext<'_>, purged: &PurgedDocument<'_>) -> Result<()> {
        self.definitions.purged(within, purged);
        self.grants(within, purged.id, purged.rerouted);
        let mut later = Vec::new();
        for maintainer in &mut self.all {
            later.extend(maintainer.purged(within, purged)?);
        }
        try_join_all(later).await.map(|_| ())
    }

    fn grants(&mut self, within: &IndexContext<'_>, id: &str, rerouted: Option<&RoutingChange>) {
        if let (Some(shared), Some(rerouted)) = (&mut self.grants, rerouted) {
            let [old, new] = rerouted.grants();
            grants::changed(within.trx, &within.instance.keys, id, old, new, shared);
        }
    }

    /// See [`IndexMaintainer::excess`].
    pub fn excess(&mut self) -> u64 {
        self.all.iter_mut().skip(COMMON).map(|maintainer| maintainer.excess()).sum()
    }

    /// Finishes all maintainers, and writes the database's record if the list of indexes or the rules of writes have
    /// changed.
    pub async fn finish(&mut self, within: &IndexContext<'_>, changes_rules: bool) -> Result<()> {
        if let Some(shared) = self.grants.take() {
            shared.finish(within.trx, within.instance).await?;
        }
        for maintainer in &mut self.all {
            maintainer.finish(within)?;
        }
        let worn_out: Vec<u64> =
            self.all.iter().skip(COMMON).filter_map(|maintainer| maintainer.is_worn_out()).collect();
        self.definitions.finish(within, changes_rules, &worn_out)
    }
}

pub async fn is_of_document(
    trx: &Transaction,
    instance: &Instance,
    id: &str,
    is_own: impl Fn(&Info) -> bool,
) -> Result<Option<String>> {
    let Some(info) = trx.get(&instance.keys.document(id).info(), true).await? else {
        return Ok(Some(format!("its document {id:?} does not exist")));
    };
    let is_own = is_own(&Info::decode(&info)?);
    Ok((!is_own).then(|| format!("document {id:?} has another")))
}
