//! One transaction of a compaction: removes bodies of revisions that are not leaves, and revisions beyond the limit.

use std::collections::HashSet;

use flatbed_databases::document::attachments;
use flatbed_databases::document::body::{begin_read, begin_reading};
use flatbed_databases::document::tree::{
    DroppedSizes, Leaves, WholeTree, decode_leaves_and_records, decode_records, drop_revision,
};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_kit::CleanupBudget;
use flatbed_revtree::{RevId, Tree};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, DocumentKeys};
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::seq::STAMP_BYTES;
use flatbed_store::transaction::{Attempt, Operation, Quiet, Transaction};
use foundationdb::options::ConflictRangeType;

/// Bytes of writes beyond which a transaction takes no further revision.
const COMPACTION_BYTES_MAX: u64 = 500_000;

/// Approximate bytes of a document's records that a transaction reads.
const RECORDS_BYTES_MAX: u64 = 1_000_000;

/// Bytes of leaves and records up to which a document is read together with others.
const AT_ONCE_BYTES_MAX: usize = 20_000;

/// Drops the superseded bodies of some documents and their revisions beyond the limit, as far as one transaction goes.
pub struct Compact<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    ids: &'a [String],
    /// The position in the first document.
    from: Option<CompactPosition>,
}

/// A position in a document's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactPosition {
    /// The stamp of the document's last edit when the compaction began with it: after another edit the records before
    /// `key` must be examined again.
    pub stamp: [u8; STAMP_BYTES],
    /// The limit of revisions with which the records were examined: a lower one drops more.
    pub revs_limit: u64,
    /// The first record that was not examined.
    pub key: Vec<u8>,
}

impl<'a> Compact<'a> {
    pub fn new(
        inner: &'a Inner,
        instance: &'a Instance,
        ids: &'a [String],
        from: Option<CompactPosition>,
    ) -> Compact<'a> {
        Compact { inner, instance, ids, from }
    }
}

/// The result of one transaction of a compaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactionPage {
    pub freed_bytes: u64,
    /// Number of documents that are finished.
    pub documents: usize,
    /// The position in the next document, if it is partly done.
    pub from: Option<CompactPosition>,
    /// The limit of revisions that was used.
    pub revs_limit: u64,
}

impl Operation for Compact<'_> {
    type Output = CompactionPage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<CompactionPage> {
        let found = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        if found.id() != self.instance.id() {
            return Err(Error::DatabaseNotFound);
        }
        // All reads are issued before the first is awaited. Most documents are small; a larger one is read again in its
        // turn.
        let reads: Vec<_> = self
            .ids
            .iter()
            .map(|id| {
                let keys = found.keys.document(id);
                let info = trx.get(&keys.info(), false);
                let tree = begin_reading(trx, keys.leaves_and_revisions());
                (keys, info, tree)
            })
            .collect();
        let room = CleanupBudget::new(COMPACTION_BYTES_MAX);
        let (mut dropped, mut documents, mut from) = (DroppedSizes::default(), 0, self.from.clone());
        for (id, (keys, info, tree)) in self.ids.iter().zip(reads) {
            if room.is_empty() {
                break;
            }
            // With conflict: a concurrent edit must make this transaction retry.
            let info = info.await?.map(|bytes| Info::decode(&bytes)).transpose()?;
            let page = tree.only_page(trx, AT_ONCE_BYTES_MAX).await?;
            from = match info {
                None => None,
                Some(info) => {
                    let whole = page.map(|page| decode_leaves_and_records(&keys, &page)).transpose()?;
                    let document = Document { id, keys, info, whole };
                    self.document(trx, &found, document, from, &room, &mut dropped).await?
                }
            };
            if from.is_some() {
                break;
            }
            documents += 1;
        }
        let (bodies, attached) = (dropped.body_bytes, dropped.attachment_bytes);
        for (counter, delta) in [(Counter::StoredBytes, -bodies - attached), (Counter::SupersededBytes, -bodies)] {
            if delta != 0 {
                self.instance.buckets.add(trx, counter, delta)?;
            }
        }
        Ok(CompactionPage {
            freed_bytes: (bodies + attached).max(0) as u64,
            documents,
            from,
            revs_limit: found.revs_limit(),
        })
    }
}

/// A document and the parts that were read.
struct Document<'a> {
    id: &'a str,
    keys: DocumentKeys,
    info: Info,
    /// Its leaves and all records, if they are small.
    whole: Option<(Leaves, Vec<(RevId, RevisionRecord)>)>,
}

impl Compact<'_> {
    /// Drops at least one revision if there is any to drop, and returns the position if there are more.
    async fn document(
        &self,
        trx: &Transaction,
        instance: &Instance,
        document: Document<'_>,
        from: Option<CompactPosition>,
        room: &CleanupBudget,
        dropped: &mut DroppedSizes,
    ) -> Result<Option<CompactPosition>> {
        let Document { id, keys, info, whole: read } = document;
        let (stamp, revs_limit) = (info.stamp, instance.revs_limit());
        let from = from.filter(|from| from.stamp == stamp && from.revs_limit == revs_limit);
        // Resumed in the middle of a document, only the rest is examined.
        let (leaves, records) = match read {
            Some((leaves, records)) if from.is_none() => (leaves, Some(records)),
            Some((leaves, _)) => (leaves, None),
            None => (Leaves::read(trx, &keys).await?, None),
        };
        let is_long = leaves.0.iter().any(|leaf| leaf.ancestry.len() >= revs_limit);
        let whole = match is_long {
            // If the tree is too large to read, only bodies are dropped.
            true => WholeTree::read_if_small(trx, &keys, leaves.clone()).await?,
            false => None,
        };
        let kept = whole.as_ref().map(|whole| {
            let mut kept = whole.tree.clone();
            kept.stem(usize::try_from(revs_limit).unwrap_or(usize::MAX));
            kept
        });
        let kept = kept.as_ref().map(Tree::revisions);
        let leaves: HashSet<RevId> = leaves.0.into_iter().map(|leaf| leaf.rev).collect();
        let mut range = keys.revisions();
        if let Some(from) = from {
            range.begin = from.key;
        }
        let go_on = |key: Vec<u8>| Ok(Some(CompactPosition { stamp, revs_limit, key }));
        let (records, behind) = match records {
            Some(records) => (records, None),
            None => {
                let (pages, is_whole) = begin_read(trx, range.clone()).read_up_to(trx, RECORDS_BYTES_MAX).await?;
                let last = pages.iter().rev().find_map(|page| page.last()).filter(|_| !is_whole);
                (decode_records(&keys, &pages)?, last.map(|last| [last.key(), &[0]].concat()))
            }
        };
        let (mut listed, mut is_changed, mut next) = (Vec::new(), false, None);
        for (rev, mut record) in records {
            let is_beyond = kept.as_ref().is_some_and(|kept| !kept.contains(&rev));
            if leaves.contains(&rev) || record.body_dropped && !is_beyond {
                continue;
            }
            if room.is_empty() {
                next = Some(keys.revision(&rev));
                break;
            }
            drop_revision(trx, self.instance, &keys, &rev, &record, room, &mut listed, dropped).await?;
            is_changed = true;
            if is_beyond {
                Quiet(trx).clear(&keys.revision(&rev))?;
            } else {
                record.body_dropped = true;
                Quiet(trx).set(&keys.revision(&rev), &record.encode())?;
            }
        }
        dropped.attachment_bytes += attachments::drop_lists(trx, self.instance, &keys, id, &listed, room).await?;
        next = next.or(behind);
        // All records were examined without an edit of the document in between, so revisions beyond the limit have no
        // record left.
        if let (None, Some(whole)) = (&next, &whole)
            && !whole.clear_unreachable(trx, &keys, revs_limit, room)?
        {
            next = Some(range.end);
        }
        if is_changed {
            // The dropped bytes are subtracted from the counters. Another server's compaction, or an edit that trims
            // the same revisions, must retry, or the bytes would be subtracted twice.
            let info_key = keys.info();
            let end = [&info_key[..], &[0]].concat();
            trx.add_conflict_range(&info_key, &end, ConflictRangeType::Write)?;
        }
        match next {
            Some(key) => go_on(key),
            None => Ok(None),
        }
    }
}
