//! Writes several documents in one transaction, all of them or none.
//!
//! A batch takes the documents that fit, and each has its own outcome. Here the transaction commits only if every edit
//! may be applied, and is refused if they do not fit. It leaves a mark, by which an attempt after an unknown commit
//! result learns the outcome of all edits, whatever other writers have done to the documents since.

use std::collections::HashSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::edit::{Edit, WrittenRevision, check_document_id};
use flatbed_databases::document::staging;
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Invalid, Refusal, Result};
use flatbed_store::once::Once;
use flatbed_store::records::BodyPlace;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

use crate::index::kinds;
use crate::index::prepare::Preparations;
use crate::write::batch::{
    BATCH_DOCUMENTS_MAX, Item, PreparedEdits, TRANSACTION_BYTES_MAX, WriteBatch, check_size, instance_of, judge_items,
    prepare, resolved, transaction_bytes,
};
use crate::write::retries::WriteRetries;
use crate::write::work::Work;

/// The state of the operation over all its attempts.
struct Attempts {
    once: Once,
    /// The revisions of each attempt that reached its commit, by the number of its mark.
    revs: Vec<Vec<RevId>>,
    maybe_committed: bool,
}

/// Writes edits of distinct documents in one transaction, and returns their new revisions in order.
#[boxed]
pub async fn write_all(database: &WriteHandle, edits: &[Edit<'_>]) -> Result<Vec<WrittenRevision>> {
    let (inner, name) = (&*database.inner, &*database.name);
    if edits.len() > BATCH_DOCUMENTS_MAX {
        return Err(too_much());
    }
    let mut seen = HashSet::new();
    let refused = edits.iter().filter_map(|edit| match check_document_id(&edit.id) {
        Ok(()) if seen.insert(&*edit.id) => None,
        Ok(()) => Some((edit.id.to_string(), Refusal::invalid(Invalid::Document, "the document is edited twice"))),
        Err(refusal) => Some((edit.id.to_string(), refusal)),
    });
    none_if(refused.collect())?;
    if edits.is_empty() {
        // No transaction would notice that the database does not exist.
        return resolved(inner, name).await.map(|_| Vec::new());
    }
    check_size(database, edits).await?;
    let mut attempts = Attempts { once: inner.once()?, revs: Vec::new(), maybe_committed: false };
    let wanted: Vec<usize> = (0..edits.len()).collect();
    let mut retries = WriteRetries::default();
    loop {
        let instance = instance_of(inner, name).await?;
        let PreparedEdits { batches, refused } = prepare(database, &instance, edits, &wanted).await?;
        let mut items: Vec<Item> = batches.into_iter().flatten().collect();
        let refused = refused.into_iter().map(|(at, refusal)| (edits[at].id.to_string(), refusal));
        let written = match none_if(refused.collect()) {
            Ok(()) => write_items(database, instance.clone(), edits, &mut items, &mut attempts).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(Some(revs)) => {
                inner.metrics.documents_written.add(revs.len() as u64);
                return Ok(revs.into_iter().map(|rev| WrittenRevision { rev }).collect());
            }
            // The database was replaced.
            Ok(None) if retries.may_follow_database() => {}
            Ok(None) => return Err(Error::DatabaseNotFound),
            Err(error) => {
                if let Error::NoneWritten(refused) = &error {
                    let conflicts = refused.iter().filter(|(_, refusal)| *refusal == Refusal::Conflict).count();
                    inner.metrics.document_conflicts.add(conflicts as u64);
                }
                // These errors mean that nothing was written.
                if matches!(error, Error::NoneWritten(_) | Error::Refused(Refusal::TooMuchAtOnce { .. })) {
                    for item in &items {
                        if let BodyPlace::Blob(blob_id) = &item.body.place {
                            staging::discard(inner, &instance, blob_id).await;
                        }
                    }
                }
                return Err(error);
            }
        }
    }
}

/// Judges and writes items. `None`: the database was replaced.
async fn write_items(
    database: &WriteHandle,
    mut instance: Arc<Instance>,
    edits: &[Edit<'_>],
    items: &mut Vec<Item>,
    attempts: &mut Attempts,
) -> Result<Option<Vec<RevId>>> {
    let inner = &*database.inner;
    let taken =
        |(item, edit): (&Item, &Edit<'_>)| transaction_bytes(&item.body, edit) + kinds::reserve(&instance, edit);
    let bytes: u64 = items.iter().zip(edits).map(taken).sum();
    if items.len() > 1 && bytes > TRANSACTION_BYTES_MAX {
        return Err(too_much());
    }
    let work = Work::new(inner);
    let asked: Vec<&Edit<'_>> = edits.iter().collect();
    let mut retries = WriteRetries::default();
    loop {
        judge_items(database, &instance, edits, items, &work).await?;
        let preparations = Preparations::of(&instance);
        if preparations.are_wanted() {
            preparations.edits(inner, &asked).await?;
            if preparations.count() < edits.len() {
                return Err(too_much());
            }
        }
        let _turn = work.turn(inner).await;
        let batch = WriteBatch {
            inner,
            instance: &instance,
            edits,
            items,
            attempts: 0,
            work: &work,
            preparations,
            is_shared: false,
        };
        let mut write = WriteAll { batch, attempts };
        let written = transaction::write(&inner.db, &inner.metrics, &mut write).await?;
        if written.is_some() {
            return Ok(written);
        }
        let found = resolved(inner, &database.name).await?;
        if found.id() != instance.id() || !retries.may_follow_rules() {
            return Ok(None);
        }
        instance = found;
    }
}

struct WriteAll<'a, 'e> {
    batch: WriteBatch<'a, 'e>,
    attempts: &'a mut Attempts,
}

impl Operation for WriteAll<'_, '_> {
    type Output = Option<Vec<RevId>>;

    /// Fails without a commit if an edit is refused or does not fit.
    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        self.attempts.maybe_committed |= attempt.maybe_committed;
        let attempt = Attempt { maybe_committed: self.attempts.maybe_committed, ..attempt };
        if let Some(number) = self.attempts.once.happened(trx, attempt).await? {
            let revs = self.attempts.revs.get(number as usize).cloned();
            return revs.map(Some).ok_or_else(|| Error::Corrupt("a mark of no attempt".into()));
        }
        // All documents in each attempt, never half of them.
        self.batch.attempts = 0;
        let Some(outcomes) = self.batch.attempt(trx, attempt).await? else { return Ok(None) };
        if self.batch.items.iter().any(|item| item.is_stale) {
            return Ok(None);
        }
        let edits = self.batch.edits;
        let is_part = outcomes.len() < edits.len();
        let (mut revs, mut refused) = (Vec::with_capacity(edits.len()), Vec::new());
        for ((_, outcome), edit) in outcomes.into_iter().zip(edits) {
            match outcome {
                Ok(WrittenRevision { rev }) => revs.push(rev),
                Err(refusal) => refused.push((edit.id.to_string(), refusal)),
            }
        }
        none_if(refused)?;
        if is_part || (edits.len() > 1 && trx.get_approximate_size().await? >= TRANSACTION_BYTES_MAX as i64) {
            return Err(too_much());
        }
        self.attempts.once.mark(trx);
        self.attempts.revs.push(revs.clone());
        Ok(Some(revs))
    }
}

fn none_if(refused: Vec<(String, Refusal)>) -> Result<()> {
    if refused.is_empty() { Ok(()) } else { Err(Error::NoneWritten(refused)) }
}

fn too_much() -> Error {
    Refusal::TooMuchAtOnce { documents_max: BATCH_DOCUMENTS_MAX, bytes_max: TRANSACTION_BYTES_MAX }.into()
}
