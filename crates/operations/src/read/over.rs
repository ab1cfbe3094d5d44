//! Finds the ancestors of expired revisions.
//!
//! The record of an expired revision says that it has expired, and it is shown as a tombstone without a body as long as
//! it is kept, whatever was written on top of it. Its ancestors have no expiry of their own in their records, but they
//! expire with it. This module finds them, for requests of a revision that is not the winner.
//!
//! A leaf has no descendants, so a request for a leaf only reads that it is one. For other revisions the records of
//! newer revisions are scanned, once for all revisions of the document that a transaction is asked for ([`DocumentReads`]),
//! within the limit of [`crate::read::revision_records`]. A revision that is older than the scanned ones counts as
//! expired: clients cannot rely on a revision that is not a leaf.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_databases::document::edit::GetOptions;
use flatbed_databases::document::tree::Leaves;
use flatbed_databases::instance::Instance;
use flatbed_revtree::RevId;
use flatbed_store::error::Result;
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join;
use tokio::sync::OnceCell;

use crate::read::revision_records::{RECORDS_BYTES_MAX, Records};
use crate::read::viewer::Viewer;

/// Leaves whose ancestors are examined before the task yields.
const LEAVES_IN_TURN: usize = 100;

/// The revisions of a document that have an expired descendant.
#[derive(Debug, Default)]
pub struct ExpiredAncestors {
    revs: HashSet<RevId>,
    /// All revisions of older generations count as expired, too.
    below: u64,
}

impl ExpiredAncestors {
    /// Finds those of this generation and newer ones, by the records of newer revisions. Reads the tree if any of these
    /// has expired.
    pub async fn find(
        trx: &Transaction,
        keys: &DocumentKeys,
        records: &Records,
        from_generation: u64,
    ) -> Result<ExpiredAncestors> {
        let ended: HashSet<&RevId> = records.ended().collect();
        let mut over = ExpiredAncestors { revs: HashSet::new(), below: records.known_from() };
        if ended.is_empty() {
            return Ok(over);
        }
        let leaves = Leaves::read(trx, keys).await?;
        let Some(segments) = leaves.segments_if_read(trx, keys).await? else {
            return Ok(ExpiredAncestors { below: u64::MAX, ..over });
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

    pub fn holds(&self, rev: &RevId) -> bool {
        rev.generation() < self.below || self.revs.contains(rev)
    }
}

/// Reads that all requested revisions of a document share.
#[derive(Debug, Default)]
pub struct DocumentReads {
    /// The oldest generation among the requests.
    from_generation: u64,
    judges_leaves: bool,
    records: OnceCell<Records>,
    over: OnceCell<ExpiredAncestors>,
    /// Bytes that were read since the last [`DocumentReads::bytes`].
    bytes: AtomicU64,
}

impl DocumentReads {
    /// Creates the reads for these options. `is_judged`: the reader is restricted.
    pub fn of<'o>(options: impl IntoIterator<Item = &'o GetOptions>, is_judged: bool) -> DocumentReads {
        let mut once = DocumentReads { from_generation: u64::MAX, ..DocumentReads::default() };
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

    /// Returns the bytes that were read since the last call.
    pub fn bytes(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }

    /// Returns whether the records were read.
    pub fn is_read(&self) -> bool {
        self.records.initialized()
    }

    /// Returns the records of the document. Their `is_given` says whether the viewer, who is the same throughout the
    /// transaction, sees the revision.
    pub async fn records(&self, trx: &Transaction, keys: &DocumentKeys, viewer: Option<&Viewer>) -> Result<&Records> {
        let read = || async {
            let (now_ms, asked) =
                (trx.clock().unix_ms(), |record: &RevisionRecord| viewer.is_none_or(|viewer| viewer.can_see(record)));
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

    pub async fn over(&self, trx: &Transaction, keys: &DocumentKeys, records: &Records) -> Result<&ExpiredAncestors> {
        self.over.get_or_try_init(|| ExpiredAncestors::find(trx, keys, records, self.from_generation)).await
    }

    /// Returns whether a revision that is not the winner has an expired descendant. Reads nothing in a database without
    /// channels.
    pub async fn is_over(
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

/// The shared reads of all documents of a request.
pub struct RequestReads<'r> {
    documents: HashMap<&'r str, DocumentReads>,
    /// The reads for a document that is not in the request.
    other: DocumentReads,
    bytes: u64,
}

impl<'r> RequestReads<'r> {
    /// See [`DocumentReads::of`].
    pub fn of(requests: &'r [(String, GetOptions)], is_judged: bool) -> RequestReads<'r> {
        let mut by_id: HashMap<&str, Vec<&GetOptions>> = HashMap::new();
        for (id, options) in requests {
            by_id.entry(id).or_default().push(options);
        }
        let documents = by_id.into_iter().map(|(id, options)| (id, DocumentReads::of(options, is_judged))).collect();
        RequestReads { documents, other: DocumentReads::default(), bytes: 0 }
    }

    pub fn of_document(&self, id: &str) -> &DocumentReads {
        self.documents.get(id).unwrap_or(&self.other)
    }

    /// Returns whether the transaction may continue with this document: while the records read so far are within the
    /// limit for one document, and after that for documents whose records were read.
    pub fn has_room_for(&self, id: &str) -> bool {
        self.bytes < RECORDS_BYTES_MAX.get() || self.of_document(id).is_read()
    }

    /// Adds the bytes that were read of a document.
    pub fn reckon(&mut self, id: &str) {
        self.bytes += self.of_document(id).bytes();
    }
}

async fn is_leaf(trx: &Transaction, keys: &DocumentKeys, rev: &RevId) -> Result<bool> {
    let (alive, deleted) = (keys.leaf(false, rev), keys.leaf(true, rev));
    let found = try_join(trx.get(&alive, true), trx.get(&deleted, true)).await?;
    Ok(found.0.is_some() || found.1.is_some())
}
