//! The stored form of a document's tree: leaves with their recent ancestors, and sealed segments of older ones.

use std::collections::{HashMap, HashSet};

use flatbed_kit::CleanupBudget;
use flatbed_revtree::{Ancestry, AncestrySegment, Branch, RevId, Tree, rank};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{DocumentKeys, take_int, take_rev};
use flatbed_store::records::{
    BodyPlace, Info, RevisionRecord, decode_ancestry, decode_segment, encode_ancestry, encode_segment,
};
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::future::{FdbSlice, FdbValues};

use crate::document::attachments;
use crate::document::body::{BODY_BYTES_MAX, begin_read};
use crate::instance::Instance;

/// Reads only the info of a document.
pub async fn info(trx: &Transaction, keys: &DocumentKeys, snapshot: bool) -> Result<Option<Info>> {
    trx.get(&keys.info(), snapshot).await?.map(|bytes| Info::decode(&bytes)).transpose()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub rev: RevId,
    pub deleted: bool,
    pub ancestry: Ancestry,
}

impl Leaf {
    /// Returns whether a revision is the leaf or one of its ancestors; `None`: only the sealed segments tell.
    fn holds(&self, rev: &RevId) -> Option<bool> {
        let Some(depth) = self.rev.generation().checked_sub(rev.generation()) else { return Some(false) };
        if depth == 0 {
            return Some(self.rev == *rev);
        }
        match usize::try_from(depth - 1).ok().and_then(|at| self.ancestry.recent.get(at)) {
            Some(ancestor) => Some(ancestor == rev),
            None if depth <= self.ancestry.len() => None,
            None => Some(false),
        }
    }
}

type Row<'r> = (&'r [u8], &'r [u8]);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaves(pub Vec<Leaf>);

impl Leaves {
    /// Decodes the pages of [`DocumentKeys::leaves`].
    pub fn decode(keys: &DocumentKeys, pages: &[FdbValues]) -> Result<Leaves> {
        Leaves::of_rows(keys, pages.iter().flat_map(|page| page.iter()).map(|row| (row.key(), row.value())))
    }

    fn of_rows<'r>(keys: &DocumentKeys, rows: impl Iterator<Item = Row<'r>>) -> Result<Leaves> {
        let prefix_bytes = keys.leaves().begin.len();
        let leaf = |key: &[u8], value: &[u8]| {
            let (not_deleted, rest) = take_int(key.get(prefix_bytes..).unwrap_or_default())?;
            let (rev, _) = take_rev(rest)?;
            let ancestry = decode_ancestry(&rev, value)?;
            Ok(Leaf { rev, deleted: not_deleted == 0, ancestry })
        };
        rows.map(|(key, value)| leaf(key, value)).collect::<Result<_>>().map(Leaves)
    }

    /// Reads the leaves, as a snapshot.
    pub async fn read(trx: &Transaction, keys: &DocumentKeys) -> Result<Leaves> {
        let pages = begin_read(trx, keys.leaves()).finish(trx, BODY_BYTES_MAX).await?;
        Leaves::decode(keys, &pages)
    }

    pub fn find(&self, rev: &RevId) -> Option<&Leaf> {
        self.0.iter().find(|leaf| leaf.rev == *rev)
    }

    /// Returns whether a revision is a leaf or an ancestor of one; `None`: only the sealed segments tell.
    pub fn holds(&self, rev: &RevId) -> Option<bool> {
        let mut is_unsure = false;
        for leaf in &self.0 {
            match leaf.holds(rev) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => is_unsure = true,
            }
        }
        if is_unsure { None } else { Some(false) }
    }

    /// As [`Leaves::whole`]; `None` if it exceeds one transaction.
    pub async fn whole_if_read(&self, trx: &Transaction, keys: &DocumentKeys) -> Result<Option<Tree>> {
        let segments = self.segments_up_to(trx, keys, SEGMENTS_BYTES_MAX).await?;
        Ok(segments.map(|segments| Tree::new(self.0.iter().map(|leaf| segments.branch(leaf)))))
    }

    /// Returns the leaves with all known ancestors.
    pub async fn whole(&self, trx: &Transaction, keys: &DocumentKeys) -> Result<Tree> {
        let segments = self.segments(trx, keys).await?;
        Ok(Tree::new(self.0.iter().map(|leaf| segments.branch(leaf))))
    }

    pub async fn segments(&self, trx: &Transaction, keys: &DocumentKeys) -> Result<Segments> {
        let too_many = || Error::Corrupt("a document's ancestors are more than one transaction reads".into());
        self.segments_up_to(trx, keys, SEGMENTS_BYTES_MAX).await?.ok_or_else(too_many)
    }

    /// As [`Leaves::segments`]; `None` if they exceed one transaction.
    pub async fn segments_if_read(&self, trx: &Transaction, keys: &DocumentKeys) -> Result<Option<Segments>> {
        self.segments_up_to(trx, keys, SEGMENTS_BYTES_MAX).await
    }

    /// Returns `None` if the segments take more than about `bytes_max` bytes.
    async fn segments_up_to(&self, trx: &Transaction, keys: &DocumentKeys, bytes_max: u64) -> Result<Option<Segments>> {
        if self.0.iter().all(|leaf| leaf.ancestry.sealed_count == 0) {
            return Ok(Some(Segments::default()));
        }
        let (pages, are_all) = begin_read(trx, keys.ancestor_segments()).read_up_to(trx, bytes_max).await?;
        if are_all { Segments::decode(keys, &pages).map(Some) } else { Ok(None) }
    }
}

/// The sealed segments of a document, by their newest revision.
#[derive(Debug, Default)]
pub struct Segments(HashMap<RevId, AncestrySegment>);

impl Segments {
    /// Decodes the pages of [`DocumentKeys::ancestor_segments`].
    pub fn decode(keys: &DocumentKeys, pages: &[FdbValues]) -> Result<Segments> {
        let prefix_bytes = keys.ancestor_segments().begin.len();
        let mut segments = Segments::default();
        for row in pages.iter().flat_map(|page| page.iter()) {
            segments.read(row.key().get(prefix_bytes..).unwrap_or_default(), row.value())?;
        }
        Ok(segments)
    }

    /// Adds a row; `key` is the part behind [`DocumentKeys::ancestor_segments`].
    pub fn read(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (newest, _) = take_rev(key)?;
        self.0.insert(newest.clone(), decode_segment(&newest, value)?);
        Ok(())
    }

    /// Clears segments that no leaf needs to show `revs_limit` revisions, as many as there is room for, and returns
    /// whether those were all. All records of their revisions must have been removed.
    pub fn clear_unreachable(
        &self,
        trx: &Transaction,
        keys: &DocumentKeys,
        leaves: &Leaves,
        revs_limit: u64,
        room: &CleanupBudget,
    ) -> Result<bool> {
        let reachable = self.reachable(leaves, revs_limit);
        for newest in self.0.keys().filter(|newest| !reachable.contains(newest)) {
            if room.is_empty() {
                return Ok(false);
            }
            let key = keys.ancestors(newest);
            room.take(2 * key.len() as u64 + 50);
            Quiet(trx).clear(&key)?;
        }
        Ok(true)
    }

    pub fn insert(&mut self, sealed: AncestrySegment) {
        if let Some(newest) = sealed.revisions.first() {
            self.0.insert(newest.clone(), sealed);
        }
    }

    /// Returns the leaf with its whole line; a missing segment was beyond the limit of revisions.
    pub fn branch(&self, leaf: &Leaf) -> Branch {
        let mut ancestors = leaf.ancestry.recent.clone();
        self.walk(leaf, |sealed| {
            ancestors.extend(sealed.revisions.iter().cloned());
            true
        });
        Branch { leaf: leaf.rev.clone(), deleted: leaf.deleted, ancestors }
    }

    /// Visits a leaf and its ancestors, newest first, while `each` returns true.
    pub fn along<'s>(&'s self, leaf: &'s Leaf, mut each: impl FnMut(&'s RevId) -> bool) {
        if std::iter::once(&leaf.rev).chain(&leaf.ancestry.recent).all(&mut each) {
            self.walk(leaf, |sealed| sealed.revisions.iter().all(&mut each));
        }
    }

    /// Visits the segments of a leaf's line, newest first, while `each` returns true.
    fn walk<'s>(&'s self, leaf: &'s Leaf, mut each: impl FnMut(&'s AncestrySegment) -> bool) {
        let mut next = leaf.ancestry.sealed.as_ref();
        // At most as many as there are segments, because a damaged chain may be a cycle.
        for _ in 0..=self.0.len() {
            let Some(sealed) = next.and_then(|newest| self.0.get(newest)) else { return };
            if !each(sealed) {
                return;
            }
            next = sealed.next.as_ref();
        }
    }

    /// Returns the segments of the leaves' lines, each once.
    pub fn of<'s>(&'s self, leaves: &'s Leaves) -> Vec<&'s AncestrySegment> {
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        for leaf in &leaves.0 {
            self.walk(leaf, |sealed| {
                let is_new = seen.insert(sealed.revisions.first());
                if is_new {
                    found.push(sealed);
                }
                is_new
            });
        }
        found
    }

    /// Returns the segments that the leaves need to show `revs_limit` revisions each.
    pub fn reachable<'s>(&'s self, leaves: &'s Leaves, revs_limit: u64) -> HashSet<&'s RevId> {
        let mut reachable = HashSet::new();
        for leaf in &leaves.0 {
            let mut count = 1 + leaf.ancestry.recent.len() as u64;
            self.walk(leaf, |sealed| {
                let is_needed = count < revs_limit;
                if is_needed {
                    reachable.extend(sealed.revisions.first());
                    count += sealed.revisions.len() as u64;
                }
                is_needed
            });
        }
        reachable
    }
}

/// Returns the winner among leaves given as (deleted, revision).
pub fn winner(leaves: &[(bool, RevId)]) -> Option<&(bool, RevId)> {
    leaves.iter().max_by(|a, b| rank(a.0, &a.1).cmp(&rank(b.0, &b.1)))
}

/// Writes a leaf's record and the segments that were sealed from it.
pub fn put_leaf(
    trx: &Transaction,
    keys: &DocumentKeys,
    leaf: &Leaf,
    sealed: impl IntoIterator<Item = AncestrySegment>,
) -> Result<()> {
    let quiet = Quiet(trx);
    for segment in sealed {
        let newest = segment.revisions.first().ok_or_else(empty_segment)?;
        quiet.set(&keys.ancestors(newest), &encode_segment(&segment))?;
    }
    quiet.set(&keys.leaf(leaf.deleted, &leaf.rev), &encode_ancestry(&leaf.ancestry))
}

pub struct WholeTree {
    leaves: Leaves,
    segments: Segments,
    pub tree: Tree,
}

impl WholeTree {
    /// Reads the tree; `None` if it exceeds one transaction.
    pub async fn read_if_small(trx: &Transaction, keys: &DocumentKeys, leaves: Leaves) -> Result<Option<WholeTree>> {
        let Some(segments) = leaves.segments_up_to(trx, keys, SEGMENTS_BYTES_MAX).await? else { return Ok(None) };
        let tree = Tree::new(leaves.0.iter().map(|leaf| segments.branch(leaf)));
        Ok(Some(WholeTree { leaves, segments, tree }))
    }

    /// Returns the part of the tree in the leaves' own records.
    pub fn of_leaves(leaves: Leaves) -> WholeTree {
        let segments = Segments::default();
        let tree = Tree::new(leaves.0.iter().map(|leaf| segments.branch(leaf)));
        WholeTree { leaves, segments, tree }
    }

    pub async fn read(trx: &Transaction, keys: &DocumentKeys, leaves: Leaves) -> Result<WholeTree> {
        let segments = leaves.segments(trx, keys).await?;
        let tree = Tree::new(leaves.0.iter().map(|leaf| segments.branch(leaf)));
        Ok(WholeTree { leaves, segments, tree })
    }

    /// See [`Segments::clear_unreachable`].
    pub fn clear_unreachable(
        &self,
        trx: &Transaction,
        keys: &DocumentKeys,
        revs_limit: u64,
        room: &CleanupBudget,
    ) -> Result<bool> {
        self.segments.clear_unreachable(trx, keys, &self.leaves, revs_limit, room)
    }

    /// Returns the writes that turn the stored tree into `after`: changed leaves are written, unneeded segments
    /// removed.
    pub fn replacement(mut self, keys: &DocumentKeys, after: &Tree, revs_limit: u64) -> Result<Replacement> {
        let ancestors_max = usize::try_from(revs_limit.saturating_sub(1)).unwrap_or(usize::MAX);
        let mut before: Option<HashSet<&RevId>> = None;
        let mut replacement = Replacement::default();
        let mut leaves = Leaves::default();
        for leaf in self.leaves.0 {
            match after.branch(&leaf.rev) {
                None => replacement.clears.push(keys.leaf(leaf.deleted, &leaf.rev)),
                branch if branch == self.tree.branch(&leaf.rev) => leaves.0.push(leaf),
                Some(_) => {}
            }
        }
        let kept: HashSet<RevId> = leaves.0.iter().map(|leaf| leaf.rev.clone()).collect();
        let mut written = HashSet::new();
        for branch in after.branches().into_iter().filter(|branch| !kept.contains(&branch.leaf)) {
            let mut line = branch.ancestors.clone();
            if line.len() > ancestors_max {
                // A revision that was in the tree stays until it is pruned, or its record would lose its place.
                let before = before.get_or_insert_with(|| self.tree.revisions());
                let known = line.iter().rposition(|rev| before.contains(rev)).map_or(0, |at| at + 1);
                line.truncate(known.max(ancestors_max));
            }
            let (ancestry, sealed) = Ancestry::of_line(line);
            for segment in sealed {
                let newest = segment.revisions.first().cloned().ok_or_else(empty_segment)?;
                // Branches that fork above it share it.
                if written.insert(newest.clone()) {
                    replacement.puts.push((keys.ancestors(&newest), encode_segment(&segment)));
                    self.segments.insert(segment);
                }
            }
            replacement.puts.push((keys.leaf(branch.deleted, &branch.leaf), encode_ancestry(&ancestry)));
            leaves.0.push(Leaf { rev: branch.leaf.clone(), deleted: branch.deleted, ancestry });
        }
        let reachable = self.segments.reachable(&leaves, u64::MAX);
        let unreachable = self.segments.0.keys().filter(|newest| !reachable.contains(newest));
        replacement.clears.extend(unreachable.map(|newest| keys.ancestors(newest)));
        Ok(replacement)
    }
}

#[derive(Debug, Default)]
pub struct Replacement {
    clears: Vec<Vec<u8>>,
    puts: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Replacement {
    pub fn bytes(&self) -> u64 {
        let puts: usize = self.puts.iter().map(|(key, value)| key.len() + value.len() + MUTATION_BYTES).sum();
        let clears: usize = self.clears.iter().map(|key| 2 * key.len() + MUTATION_BYTES).sum();
        (puts + clears) as u64
    }

    pub fn write(&self, trx: &Transaction) -> Result<()> {
        for (key, value) in &self.puts {
            Quiet(trx).set(key, value)?;
        }
        self.clears.iter().try_for_each(|key| Quiet(trx).clear(key))
    }
}

fn empty_segment() -> Error {
    Error::Corrupt("an empty segment".into())
}

/// Approximate overhead of a mutation in a transaction, in bytes.
const MUTATION_BYTES: usize = 20;

/// Byte limit of a document's leaf records, all of which every edit of the document reads.
const LEAVES_BYTES_MAX: u64 = 24_000_000;

/// Number of leaves that cannot exceed [`LEAVES_BYTES_MAX`]: 64 ancestors of up to 512 bytes each.
const LEAVES_UNWEIGHED: usize = 600;

/// Returns whether the records of leaves, given by their revisions and ancestors, exceed their limit.
pub fn are_too_large<'r>(leaves: impl ExactSizeIterator<Item = (&'r RevId, &'r [RevId])>) -> bool {
    if leaves.len() < LEAVES_UNWEIGHED {
        return false;
    }
    let weigh = |rev: &RevId| rev.hash_bytes().len() as u64 + 4;
    let weights = leaves.map(|(leaf, ancestors)| {
        let recent = ancestors.iter().take(flatbed_revtree::ANCESTORS_INLINE_MAX);
        weigh(leaf) + recent.map(weigh).sum::<u64>()
    });
    weights.sum::<u64>() > LEAVES_BYTES_MAX
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DroppedSizes {
    /// Bytes of bodies.
    pub body_bytes: i64,
    /// The part of them in bodies of revisions that are not leaves; set by operations that drop leaves as well.
    pub superseded_bytes: i64,
    /// Bytes of attachments that no document has any more.
    pub attachment_bytes: i64,
}

/// Approximate bytes of a document's segments that a transaction reads.
const SEGMENTS_BYTES_MAX: u64 = 64_000_000;

/// Approximate bytes of segments that a pruning transaction reads.
const PRUNED_SEGMENTS_MAX: u64 = 4_000_000;

/// Approximate bytes of records that it reads.
const PRUNED_RECORDS_MAX: u64 = 1_000_000;

/// Returns the bytes that dropping a revision takes in a transaction, without its list of attachments: the keys of its
/// record and body.
pub fn revision_bytes(key_bytes: usize) -> u64 {
    (5 * key_bytes + 200) as u64
}

/// Drops records, bodies and segments beyond the limit of revisions of all branches, oldest first and as much as there
/// is room for. A later write or compaction drops the rest. It sees the transaction's earlier writes.
pub async fn prune(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    id: &str,
    revs_limit: u64,
    room: &CleanupBudget,
) -> Result<DroppedSizes> {
    let mut dropped = DroppedSizes::default();
    if room.is_empty() {
        return Ok(dropped);
    }
    let leaves = Leaves::read(trx, keys).await?;
    let Some(segments) = leaves.segments_up_to(trx, keys, PRUNED_SEGMENTS_MAX).await? else { return Ok(dropped) };
    let mut kept = Tree::new(leaves.0.iter().map(|leaf| segments.branch(leaf)));
    kept.stem(usize::try_from(revs_limit).unwrap_or(usize::MAX));
    let kept = kept.revisions();
    let (pages, mut is_whole) = begin_read(trx, keys.revisions()).read_up_to(trx, PRUNED_RECORDS_MAX).await?;
    let mut listed = Vec::new();
    for (rev, record) in decode_records(keys, &pages)? {
        if kept.contains(&rev) {
            continue;
        }
        if room.is_empty() {
            is_whole = false;
            break;
        }
        drop_revision(trx, instance, keys, &rev, &record, room, &mut listed, &mut dropped).await?;
        Quiet(trx).clear(&keys.revision(&rev))?;
    }
    dropped.attachment_bytes += attachments::drop_lists(trx, instance, keys, id, &listed, room).await?;
    // While a record exists, its revision must be in the tree.
    if is_whole {
        segments.clear_unreachable(trx, keys, &leaves, revs_limit, room)?;
    }
    Ok(dropped)
}

/// Decodes revisions and their records from pages of [`DocumentKeys::revisions`].
pub fn decode_records(keys: &DocumentKeys, pages: &[FdbValues]) -> Result<Vec<(RevId, RevisionRecord)>> {
    records_of_rows(keys, pages.iter().flat_map(|page| page.iter()).map(|row| (row.key(), row.value())))
}

fn records_of_rows<'r>(
    keys: &DocumentKeys,
    rows: impl Iterator<Item = Row<'r>>,
) -> Result<Vec<(RevId, RevisionRecord)>> {
    let prefix_bytes = keys.revisions().begin.len();
    let record = |key: &[u8], value: &[u8]| {
        let (rev, _) = take_rev(key.get(prefix_bytes..).unwrap_or_default())?;
        Ok((rev, RevisionRecord::decode(value)?))
    };
    rows.map(|(key, value)| record(key, value)).collect()
}

/// Decodes both from the only page of [`DocumentKeys::leaves_and_revisions`].
pub fn decode_leaves_and_records(
    keys: &DocumentKeys,
    page: &FdbValues,
) -> Result<(Leaves, Vec<(RevId, RevisionRecord)>)> {
    let records_begin = keys.revisions().begin;
    let rows = || page.iter().map(|row| (row.key(), row.value()));
    let leaves = Leaves::of_rows(keys, rows().take_while(|(key, _)| *key < records_begin.as_slice()))?;
    Ok((leaves, records_of_rows(keys, rows().skip_while(|(key, _)| *key < records_begin.as_slice()))?))
}

/// Drops a superseded revision's body, and adds its list to those that [`attachments::drop_lists`] will drop. The
/// caller drops the record.
#[expect(clippy::too_many_arguments, reason = "what a transaction is, and what it gathers")]
pub async fn drop_revision(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    rev: &RevId,
    record: &RevisionRecord,
    room: &CleanupBudget,
    listed: &mut Vec<(RevId, FdbSlice)>,
    dropped: &mut DroppedSizes,
) -> Result<()> {
    let key_bytes = keys.revision(rev).len();
    room.take(revision_bytes(key_bytes));
    dropped.body_bytes += drop_body(trx, instance, keys, rev, record)?;
    if record.has_attachments
        && !record.body_dropped
        && let Some(list) = trx.get(&keys.attachments(rev), true).await?
    {
        room.take(attachments::list_bytes(key_bytes, &list));
        listed.push((rev.clone(), list));
    }
    Ok(())
}

/// Removes a superseded revision's body, and returns the dropped bytes.
pub fn drop_body(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    rev: &RevId,
    record: &RevisionRecord,
) -> Result<i64> {
    if record.body_dropped {
        return Ok(0);
    }
    match &record.place {
        BodyPlace::Rows => Quiet(trx).clear_range(&keys.revision_body_rows(rev))?,
        BodyPlace::Blob(blob_id) => Quiet(trx).clear_range(&instance.keys.blob_rows(blob_id))?,
    }
    Ok(record.stored_bytes as i64)
}
