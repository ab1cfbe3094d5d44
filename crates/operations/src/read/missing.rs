//! Finds the revisions that a client names and a database lacks.

use std::collections::HashSet;

use async_recursion::async_recursion as boxed;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::body::{self, BODY_BYTES_MAX};
use flatbed_databases::document::tree::{Leaf, Leaves};
use flatbed_databases::handles::{DocumentFilter, ReadHandle};
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::Result;
use flatbed_store::keys::DocumentKeys;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::FutureExt;

use crate::read::get::READ_AHEAD;
use crate::read::seen;
use crate::read::viewer::is_judged;

/// Approximate revisions, named ones and leaves, after which a transaction begins no further document.
pub(super) const LOOKS_MAX: usize = 20_000;

/// Leaves whose ancestors are examined before the task yields.
const LEAVES_IN_TURN: usize = 200;

pub type NamedRevisions = (String, Vec<RevId>);

/// Documents whose revisions one transaction looks up.
const DOCUMENTS_AT_ONCE: usize = 100;

/// Performs `Reader::missing_revs` of the layer.
#[boxed]
pub async fn missing_revs(reader: &ReadHandle, wanted: &[NamedRevisions]) -> Result<Vec<(Vec<RevId>, Vec<RevId>)>> {
    let mut missing = Vec::with_capacity(wanted.len());
    let mut rest = wanted;
    while !rest.is_empty() {
        let wanted = rest.get(..DOCUMENTS_AT_ONCE).unwrap_or(rest);
        let (inner, name, asker, seen) = (&reader.inner, &reader.name, reader.asker(), reader.seen());
        let found = reader.read_about(&mut MissingRevs { inner, name, asker, seen, wanted }).await?;
        rest = rest.get(found.len().max(1)..).unwrap_or_default();
        missing.extend(found);
    }
    Ok(missing)
}

/// Looks up which revisions documents do not have.
pub struct MissingRevs<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    /// The reader's restriction. Hidden documents are answered like documents that do not exist.
    pub seen: Option<&'a dyn DocumentFilter>,
    pub wanted: &'a [NamedRevisions],
}

impl Operation for MissingRevs<'_> {
    /// For each document, as far as one transaction goes but at least for one, the missing revisions, and the possible
    /// ancestors of these.
    type Output = Vec<(Vec<RevId>, Vec<RevId>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if is_judged(&instance, self.asker) {
            return seen::missing_revs(self, trx, &instance).boxed().await;
        }
        let mut answers = Vec::with_capacity(self.wanted.len());
        let mut looks = 0;
        for part in self.wanted.chunks(READ_AHEAD) {
            let begin = |(id, revs): &NamedRevisions| {
                let keys = instance.keys.document(id);
                let is_hidden = self.seen.is_some_and(|seen| seen.hides(id));
                let leaves = (!revs.is_empty() && !is_hidden).then(|| body::begin_reading(trx, keys.leaves()));
                (keys, leaves)
            };
            let reads: Vec<_> = part.iter().map(begin).collect();
            for ((_, revs), (keys, leaves)) in part.iter().zip(reads) {
                if looks > LOOKS_MAX {
                    return Ok(answers);
                }
                let leaves = match leaves {
                    Some(leaves) => Leaves::decode(&keys, &leaves.finish(trx, BODY_BYTES_MAX).await?)?,
                    None => Leaves::default(),
                };
                looks += revs.len() + leaves.0.len();
                let missing = missing(trx, &keys, &leaves, revs).await?;
                let greatest = missing.iter().map(RevId::generation).max().unwrap_or_default();
                let ancestors = leaves.0.into_iter().map(|leaf| leaf.rev);
                let mut ancestors: Vec<_> = ancestors.filter(|leaf| leaf.generation() < greatest).collect();
                ancestors.sort_unstable_by(|a, b| b.cmp(a));
                answers.push((missing, ancestors));
            }
        }
        Ok(answers)
    }
}

/// Returns the revisions of `revs` that are neither leaves nor their ancestors, ascending, each once. A document that
/// does not exist lacks all of them, in the request's order.
async fn missing(trx: &Transaction, keys: &DocumentKeys, leaves: &Leaves, revs: &[RevId]) -> Result<Vec<RevId>> {
    if leaves.0.is_empty() {
        return Ok(revs.to_vec());
    }
    let mut sought = RevisionSearch::new(revs);
    sought.strike(leaves.0.iter().map(|leaf| &leaf.rev));
    for part in leaves.0.chunks(LEAVES_IN_TURN) {
        if sought.0.is_empty() {
            break;
        }
        sought.strike(recent(part));
        tokio::task::yield_now().await;
    }
    if !sought.0.is_empty() {
        let segments = leaves.segments(trx, keys).await?;
        for part in segments.of(leaves).chunks(LEAVES_IN_TURN) {
            sought.strike(part.iter().flat_map(|sealed| &sealed.revisions));
            tokio::task::yield_now().await;
        }
    }
    Ok(sought.left())
}

fn recent(leaves: &[Leaf]) -> impl Iterator<Item = &RevId> {
    leaves.iter().flat_map(|leaf| &leaf.ancestry.recent)
}

/// The revisions to look for. Named revisions and those of the document are each examined once.
struct RevisionSearch<'r>(HashSet<&'r RevId>);

impl<'r> RevisionSearch<'r> {
    fn new(revs: &'r [RevId]) -> RevisionSearch<'r> {
        RevisionSearch(revs.iter().collect())
    }

    fn strike<'k>(&mut self, known: impl Iterator<Item = &'k RevId>) {
        for rev in known {
            if self.0.is_empty() {
                return;
            }
            self.0.remove(rev);
        }
    }

    /// Returns the revisions that were not found, ascending.
    fn left(self) -> Vec<RevId> {
        let mut left: Vec<RevId> = self.0.into_iter().cloned().collect();
        left.sort_unstable();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_gone_through_once_however_much_is_named() {
        let rev = |number: usize| RevId::from_parts(2, &number.to_string()).unwrap();
        // Each name twice, and every second one known.
        let named: Vec<RevId> = (0..20_000).map(|number| rev(number % 10_000)).collect();
        let known: Vec<RevId> = (0..5_000).map(|number| rev(2 * number)).collect();
        let mut sought = RevisionSearch::new(&named);
        let mut looks = 0;
        sought.strike(known.iter().inspect(|_| looks += 1));
        assert_eq!(looks, known.len());
        let left = sought.left();
        assert_eq!(left.len(), 5_000);
        assert!(left.is_sorted() && left.iter().all(|rev| !known.contains(rev)));
    }
}
