//! Revisions that documents that have ended came of.
//!
//! A revision that has ended says so by its record, and is shown as a tombstone without a body for as long as it is kept, whatever was
//! written upon it. What it came of was there before, says nothing of an end, and is over with it: that is found out here, for whoever
//! asks for a revision that is not the winner.
//!
//! Nothing came of a leaf, so of a leaf nothing is read but that it is one. Of others the records of what is newer are gone through,
//! once for all revisions of the document that a transaction is asked for ([`ReadOnce`]), and as far as [`crate::read::told`] goes. One
//! that is older than that is over, too: nobody can count on a revision that is no leaf.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_revtree::RevId;
use futures_util::future::try_join;
use tokio::sync::OnceCell;

use crate::document::edit::GetOptions;
use crate::document::tree::Leaves;
use crate::error::Result;
use crate::instance::Instance;
use crate::read::told::{RECORDS_BYTES_MAX, Records};
use crate::read::viewer::Viewer;
use crate::store::keys::DocumentKeys;
use crate::store::records::{Info, RevisionRecord};
use crate::store::transaction::Transaction;

/// Leaves whose ancestors are gone through before others have their turn.
const LEAVES_IN_TURN: usize = 100;

/// Revisions of a document that are over, since what came of them has ended.
#[derive(Debug, Default)]
pub(crate) struct Over {
    revs: HashSet<RevId>,
    /// All older than this generation, too.
    below: u64,
}

impl Over {
    /// Of the revisions of this generation and newer ones, by the records of what is newer. The tree is read where any of these has ended.
    pub(crate) async fn find(
        trx: &Transaction,
        keys: &DocumentKeys,
        records: &Records,
        from_generation: u64,
    ) -> Result<Over> {
        let ended: HashSet<&RevId> = records.ended().collect();
        let mut over = Over { revs: HashSet::new(), below: records.known_from() };
        if ended.is_empty() {
            return Ok(over);
        }
        let leaves = Leaves::read(trx, keys).await?;
        let Some(segments) = leaves.segments_if_read(trx, keys).await? else {
            return Ok(Over { below: u64::MAX, ..over });
        };
        for in_turn in leaves.0.chunks(LEAVES_IN_TURN) {
            for leaf in in_turn {
                let mut has_ended = false;
                segments.along(leaf, |rev| {
                    if has_ended && !over.revs.contains(rev) {
                        over.revs.insert(rev.clone());
                    }
                    has_ended |= ended.contains(rev);
                    rev.generation() > from_generation
                });
            }
            tokio::task::yield_now().await;
        }
        Ok(over)
    }

    pub(crate) fn holds(&self, rev: &RevId) -> bool {
        rev.generation() < self.below || self.revs.contains(rev)
    }
}

/// What is read once of a document for all its revisions that a transaction is asked for.
#[derive(Debug, Default)]
pub(crate) struct ReadOnce {
    /// No older one is asked for.
    from_generation: u64,
    /// Leaves are judged by their records.
    judges_leaves: bool,
    records: OnceCell<Records>,
    over: OnceCell<Over>,
    /// Bytes that were read and not yet reckoned.
    bytes: AtomicU64,
}

impl ReadOnce {
    /// For reads with these options by somebody who does not see all, if it is so said.
    pub(crate) fn of<'o>(options: impl IntoIterator<Item = &'o GetOptions>, is_judged: bool) -> ReadOnce {
        let mut once = ReadOnce { from_generation: u64::MAX, ..ReadOnce::default() };
        for options in options {
            once.judges_leaves |= is_judged && (options.latest || options.conflicts());
            let from_generation = match &options.rev {
                Some(rev) if !options.revs_info && !options.born => rev.generation(),
                _ => 0,
            };
            once.from_generation = once.from_generation.min(if once.judges_leaves { 0 } else { from_generation });
        }
        once
    }

    /// What has been read since this was asked for the last time, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }

    /// Whether the records are there already.
    pub(crate) fn is_read(&self) -> bool {
        self.records.initialized()
    }

    /// The records of the document; `is_given` says whether the viewer sees the revision, who is the same in all of a transaction.
    pub(crate) async fn records(
        &self,
        trx: &Transaction,
        keys: &DocumentKeys,
        viewer: Option<&Viewer>,
    ) -> Result<&Records> {
        let read = || async {
            let (now_ms, asked) =
                (trx.clock().unix_ms(), |record: &RevisionRecord| viewer.is_none_or(|viewer| viewer.sees(record)));
            let from = if self.from_generation == 0 { 0 } else { self.from_generation.saturating_add(1) };
            let mut records = Records::read(trx, keys, from, now_ms, &asked).await?;
            if self.judges_leaves && records.known_from() > 0 {
                let leaves = Leaves::read(trx, keys).await?;
                records.complete(trx, keys, leaves.0.iter().map(|leaf| &leaf.rev), now_ms, &asked).await?;
            }
            self.bytes.fetch_add(records.bytes(), Ordering::Relaxed);
            Ok(records)
        };
        self.records.get_or_try_init(read).await
    }

    /// Which of the document's revisions are over.
    pub(crate) async fn over(&self, trx: &Transaction, keys: &DocumentKeys, records: &Records) -> Result<&Over> {
        self.over.get_or_try_init(|| Over::find(trx, keys, records, self.from_generation)).await
    }

    /// Whether a revision that is not the winner is over, since one that came of it has ended. Nothing is read in a database
    /// without channels.
    pub(crate) async fn is_over(
        &self,
        trx: &Transaction,
        instance: &Instance,
        keys: &DocumentKeys,
        info: &Info,
        rev: &RevId,
        viewer: Option<&Viewer>,
    ) -> Result<bool> {
        if instance.channels() == 0 {
            return Ok(false);
        }
        if info.leaf_count < 2 && info.has_ended(trx.clock().unix_ms()) {
            return Ok(true);
        }
        if info.leaf_count > 1 && is_leaf(trx, keys, rev).await? {
            return Ok(false);
        }
        let records = self.records(trx, keys, viewer).await?;
        Ok(self.over(trx, keys, records).await?.holds(rev))
    }
}

/// The same of several documents, for as many as a transaction is asked for.
pub(crate) struct ReadsOnce<'r> {
    documents: HashMap<&'r str, ReadOnce>,
    /// What any that was not among the requests would get.
    other: ReadOnce,
    bytes: u64,
}

impl<'r> ReadsOnce<'r> {
    /// See [`ReadOnce::of`].
    pub(crate) fn of(requests: &'r [(String, GetOptions)], is_judged: bool) -> ReadsOnce<'r> {
        let mut by_id: HashMap<&str, Vec<&GetOptions>> = HashMap::new();
        for (id, options) in requests {
            by_id.entry(id).or_default().push(options);
        }
        let documents = by_id.into_iter().map(|(id, options)| (id, ReadOnce::of(options, is_judged))).collect();
        ReadsOnce { documents, other: ReadOnce::default(), bytes: 0 }
    }

    /// Of one of the documents.
    pub(crate) fn of_document(&self, id: &str) -> &ReadOnce {
        self.documents.get(id).unwrap_or(&self.other)
    }

    /// Whether the transaction is to go on with this document: as long as records of no more bytes were read than of one document may be,
    /// and behind that with documents of which they are there.
    pub(crate) fn has_room_for(&self, id: &str) -> bool {
        self.bytes < RECORDS_BYTES_MAX || self.of_document(id).is_read()
    }

    /// Reckons what was read of one of the documents.
    pub(crate) fn reckon(&mut self, id: &str) {
        self.bytes += self.of_document(id).bytes();
    }
}

async fn is_leaf(trx: &Transaction, keys: &DocumentKeys, rev: &RevId) -> Result<bool> {
    let (alive, deleted) = (keys.leaf(false, rev), keys.leaf(true, rev));
    let found = try_join(trx.get(&alive, true), trx.get(&deleted, true)).await?;
    Ok(found.0.is_some() || found.1.is_some())
}
