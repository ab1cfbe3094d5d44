//! Writes the rows of newly mapped documents into a transaction.

use std::collections::BTreeMap;

use flatbed_rowtree::{NodeChanges, RowChange, change};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Keys, ViewKeys};
use flatbed_store::proto;
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::options::MutationType;
use prost::Message;

use crate::view::asking::ConcurrentReaders;
use crate::view::documents::{DocumentDiff, LargeReadGate, NewRow, Plan, RowDiff, StoredRows, read_stored_rows};
use crate::view::group::{ViewGroup, shape_of};
use crate::view::known::{ChangedNode, KnownNodes};
use crate::view::labels::Labels;
use crate::view::large;
use crate::view::parts;
use crate::view::prepare::PreparedDocument;
use crate::view::sections::SectionRule;
use crate::view::stored::{Needs, RowDelta, StoredTree, TreeRow, each_tree};
use crate::view::summary::Summary;
use crate::view::undo::{GroupReads, Writes, undos};
use crate::view::written::WrittenReduces;

#[derive(Clone, Copy)]
pub struct ApplyContext<'a> {
    pub trx: &'a Transaction,
    pub keys: &'a Keys,
    /// If it must retry, the transaction must not be committed.
    pub large_reads: &'a LargeReadGate,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ApplyResult {
    /// The number of leading documents whose rows are complete. It is 0 if the first document has more changes than a
    /// transaction holds: some of them are made, and the next transactions make the rest.
    pub documents: usize,
    pub rows_changed: u64,
    pub bytes: u64,
    /// True if a label does not fit: the index must be rebuilt, and nothing was written.
    pub is_full: bool,
}

/// Changes rows, documents' lists and nodes for the first of `documents`, which are distinct: as many as a transaction
/// holds. The caller has read `progress` with a conflict in this transaction and writes it afterwards; its trees are
/// changed.
///
/// A first document with more changes than a transaction holds is changed in part, and readers see none of it before it
/// is complete ([`large`]). Until then it must stay the first document to be entered: [`large::may_enter`].
///
/// The function waits once for the documents' lists, and then for the unknown nodes of each level.
pub async fn apply(
    at: &ApplyContext<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    known: &KnownNodes,
    progress: &mut proto::ViewProgress,
    documents: &[PreparedDocument],
) -> Result<ApplyResult> {
    known.begin(progress);
    if !large::may_enter(progress, documents) {
        return Err(Error::Corrupt("a document was entered before a large one was complete".to_owned()));
    }
    let (trx, keys) = (at.trx, at.keys.view(group.number()));
    large::tidy(trx, &keys, progress, at.large_reads).await?;
    let had =
        read_stored_rows(trx, &keys, documents.iter().map(PreparedDocument::id), true, Some(at.large_reads)).await?;
    if had.is_empty() {
        return Ok(ApplyResult::default());
    }
    let mut plans = plan(group, documents, &had);
    if let Some((document, bytes)) = staged(trx, &keys, group, &mut plans).await? {
        large::goes_on(progress, document);
        return Ok(ApplyResult { bytes, ..ApplyResult::default() });
    }
    let reads = GroupReads { trx, keys: &keys, is_before: false };
    loop {
        let Some(diffs) = diff_all(reads, group, &progress.trees, &plans).await? else {
            return Ok(ApplyResult { is_full: true, ..ApplyResult::default() });
        };
        plans.truncate(diffs.len());
        let alone = make_alone(reads, group, written, &diffs).await?;
        let trees = (0..group.trees().len()).map(|tree| {
            let tree =
                StoredTree { reads, group, tree, written, known: Some(known), asking: ConcurrentReaders::default() };
            change_tree(tree, progress, &diffs, &alone)
        });
        let changed = each_tree(trees).await?;
        let mut writes = row_writes(&keys, &diffs);
        writes
            .extend(alone.iter().map(|((tree, row), (_, encoded))| (keys.node(*tree, 0, row), Some(encoded.clone()))));
        let (mut trees, mut nodes) = (progress.trees.clone(), Vec::new());
        for (place, (changed, tree)) in changed.into_iter().zip(&mut trees).enumerate() {
            let Some(changed) = changed else { continue };
            for (level, from, summary) in changed.nodes {
                let encoded = summary.as_ref().map(Summary::encode);
                let bytes = encoded.as_ref().map_or(0, Vec::len);
                writes.insert(keys.node(place, level, &from), encoded);
                nodes.push(ChangedNode { tree: place, level, from, summary: summary.map(|summary| (summary, bytes)) });
            }
            tree.height = u32::from(changed.height);
            (tree.rows, tree.bytes) = (changed.rows, changed.bytes);
        }
        // The last part of a large document makes all of it visible.
        let is_partial = diffs.iter().any(|diff| diff.is_partial);
        let undos = if is_partial { undos(trx, &keys, &writes).await? } else { Vec::new() };
        let bytes = bytes_of(&diffs, &writes, &undos);
        let rows: usize = plans.iter().map(Plan::rows).sum();
        if bytes > group.bounds().transaction_bytes && rows > 1 {
            match plans.as_mut_slice() {
                [one] => one.limit(one.rows() / 2, u64::MAX),
                several => {
                    let half = several.len() / 2;
                    plans.truncate(half);
                }
            }
            continue;
        }
        let applied = counted(&diffs, bytes);
        match progress.large.as_mut() {
            _ if is_partial => {
                let trees = progress.trees.clone();
                let large = large::goes_on(progress, diffs.first().map_or("", |diff| diff.id));
                if large.trees.is_empty() {
                    large.trees = trees;
                }
            }
            Some(_) if !diffs.is_empty() => {
                Quiet(trx).clear_range(&keys.undos())?;
                progress.large = None;
            }
            _ => {}
        }
        undos.iter().try_for_each(|(key, undo)| Quiet(trx).set(key, undo))?;
        write(trx, &keys, &diffs, &writes, is_partial, false)?;
        progress.trees = trees;
        if !nodes.is_empty() {
            known.attempt(progress, nodes)?;
        }
        return Ok(applied);
    }
}

/// Writes rows and documents' lists without nodes, for a first build, in which several tasks enter ranges of ids.
/// Concurrent writers of the same documents abort. No reader sees the rows yet. Rows that begin `sections` are noted.
pub async fn write_rows(
    at: &ApplyContext<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    sections: &SectionRule,
    documents: &[PreparedDocument],
) -> Result<ApplyResult> {
    let (trx, keys) = (at.trx, at.keys.view(group.number()));
    let had =
        read_stored_rows(trx, &keys, documents.iter().map(PreparedDocument::id), false, Some(at.large_reads)).await?;
    if had.is_empty() {
        return Ok(ApplyResult::default());
    }
    let mut plans = plan(group, documents, &had);
    if let Some((_, bytes)) = staged(trx, &keys, group, &mut plans).await? {
        return Ok(ApplyResult { bytes, ..ApplyResult::default() });
    }
    let reads = GroupReads { trx, keys: &keys, is_before: false };
    // No nodes exist yet.
    let Some(diffs) = diff_all(reads, group, &[], &plans).await? else {
        return Ok(ApplyResult { is_full: true, ..ApplyResult::default() });
    };
    let alone = make_alone(reads, group, written, &diffs).await?;
    let mut writes = row_writes(&keys, &diffs);
    writes.extend(alone.into_iter().map(|((tree, row), (_, encoded))| (keys.node(tree, 0, &row), Some(encoded))));
    sections.mark(&keys, &diffs, &mut writes);
    write(trx, &keys, &diffs, &writes, false, true)?;
    Ok(counted(&diffs, bytes_of(&diffs, &writes, &[])))
}

fn plan<'d>(group: &'d ViewGroup, documents: &'d [PreparedDocument], had: &'d [StoredRows]) -> Vec<Plan<'d>> {
    let (mut plans, mut bytes, mut rows) = (Vec::with_capacity(documents.len()), 0, 0);
    for (document, had) in documents.iter().zip(had) {
        let plan = Plan::of(group, document, had);
        bytes += plan.bytes(false);
        rows += plan.rows();
        let is_beyond = bytes > group.bounds().rows_bytes || rows > group.bounds().rows;
        if is_beyond && !plans.is_empty() {
            break;
        }
        plans.push(plan);
        if is_beyond {
            break;
        }
    }
    plans
}

/// Stages parts of the first document's values if it has more changes than a transaction holds; once they are staged,
/// limits its plan to a part. Returns the document whose parts were staged, and their approximate bytes: the
/// transaction must then do nothing else.
async fn staged<'d>(
    trx: &Transaction,
    keys: &ViewKeys,
    group: &ViewGroup,
    plans: &mut [Plan<'d>],
) -> Result<Option<(&'d str, u64)>> {
    let [plan] = plans else { return Ok(None) };
    let bounds = group.bounds();
    if plan.bytes(false) > bounds.rows_bytes || plan.rows() > bounds.rows {
        let staged = large::stage(trx, keys, plan).await?;
        if staged > 0 {
            return Ok(Some((plan.document.id(), staged * parts::PART_BYTES as u64)));
        }
        plan.limit(bounds.rows, bounds.rows_bytes);
    }
    Ok(None)
}

/// Computes the changes of rows, for as many documents as the time for finding long keys allows. `None`: a label does
/// not fit.
async fn diff_all<'d>(
    reads: GroupReads<'_>,
    group: &ViewGroup,
    trees: &[proto::ViewTree],
    plans: &[Plan<'d>],
) -> Result<Option<Vec<DocumentDiff<'d>>>> {
    let clock = reads.trx.clock();
    let (mut labels, began) = (Labels::new(reads, group, trees), clock.now());
    let mut diffs = Vec::with_capacity(plans.len());
    for plan in plans {
        if !diffs.is_empty() && clock.since(began) >= group.bounds().searching {
            break;
        }
        let Some(diff) = plan.diff(&mut labels).await? else { return Ok(None) };
        diffs.push(diff);
    }
    Ok(Some(diffs))
}

fn counted(diffs: &[DocumentDiff<'_>], bytes: u64) -> ApplyResult {
    let whole = diffs.iter().filter(|diff| !diff.is_partial).count();
    ApplyResult {
        documents: whole,
        rows_changed: diffs.iter().map(|diff| diff.rows.len() as u64).sum(),
        bytes,
        is_full: false,
    }
}

/// The approximate bytes of a write beside its key and value.
const WRITE_BYTES: u64 = 40;

fn bytes_of(diffs: &[DocumentDiff<'_>], writes: &Writes, undos: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    let of_writes = writes.iter().map(|(key, value)| (key.len() + value.as_ref().map_or(0, Vec::len)) as u64);
    let of_undos = undos.iter().map(|(key, undo)| (key.len() + undo.len()) as u64);
    let beside: u64 = diffs.iter().map(DocumentDiff::bytes_beside).sum();
    beside + of_writes.chain(of_undos).map(|bytes| bytes + WRITE_BYTES).sum::<u64>()
}

/// By tree and row: the summary of a large row alone, and its encoding.
type LargeRowSummaries = BTreeMap<(usize, Vec<u8>), (Summary, Vec<u8>)>;

async fn make_alone(
    reads: GroupReads<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    diffs: &[DocumentDiff<'_>],
) -> Result<LargeRowSummaries> {
    let mut all = LargeRowSummaries::new();
    for tree in 0..group.trees().len() {
        let rows = diffs.iter().flat_map(|diff| &diff.rows).filter(|row| row.tree == tree);
        let rows: Vec<_> = rows
            .filter_map(|row| {
                let NewRow { id, row: new } = row.new?;
                new.blob_id(id)?;
                Some((row.key.clone(), in_memory(new)))
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        let row_keys: Vec<Vec<u8>> = rows.iter().map(|(key, _)| key.clone()).collect();
        let made = StoredTree { reads, group, tree, written, known: None, asking: ConcurrentReaders::default() }
            .alone(rows)
            .await?;
        for (key, summary) in row_keys.into_iter().zip(made) {
            let encoded = summary.encode();
            all.insert((tree, key), (summary, encoded));
        }
    }
    Ok(all)
}

fn in_memory(row: &crate::view::prepare::PreparedRow) -> TreeRow {
    TreeRow {
        key: row.key.clone().into_bytes(),
        value: row.value.clone().into_bytes(),
        bytes: row.bytes() as u64,
        alone: None,
    }
}

struct TreeChanges {
    /// Level, beginning, and the new summary; `None`: the node is removed.
    nodes: Vec<(u8, Vec<u8>, Option<Summary>)>,
    height: u8,
    rows: u64,
    bytes: u64,
}

async fn change_tree(
    tree: StoredTree<'_>,
    progress: &proto::ViewProgress,
    diffs: &[DocumentDiff<'_>],
    alone: &LargeRowSummaries,
) -> Result<Option<TreeChanges>> {
    let needs = Needs::of(tree.group.reduces(tree.tree));
    let rows: Vec<RowChange<TreeRow, RowDelta>> = diffs
        .iter()
        .flat_map(|diff| &diff.rows)
        .filter(|row| row.tree == tree.tree)
        .map(|row| {
            let new = row.new.map(|new| match alone.get(&(row.tree, row.key.clone())) {
                Some((summary, _)) => TreeRow {
                    key: Vec::new(),
                    value: Vec::new(),
                    bytes: new.row.bytes() as u64,
                    alone: Some(summary.clone()),
                },
                None => in_memory(new.row),
            });
            let old_bytes = row.old.as_ref().map(|old| old.bytes as usize);
            RowChange { key: row.key.clone(), old_bytes, new, delta: delta_of(needs, row) }
        })
        .collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let (shape, height) = shape_of(&progress.trees, tree.tree)?;
    let NodeChanges { nodes, height, root } = change(&tree, &shape, height, rows).await?;
    let (rows, bytes) = root.map_or((0, 0), |root| (root.rows, root.bytes));
    Ok(Some(TreeChanges { nodes, height, rows, bytes }))
}

/// Returns the effect of a changed row on summaries, if that needs no other rows.
fn delta_of(needs: Needs, row: &RowDiff<'_>) -> Option<RowDelta> {
    let mut delta = RowDelta::default();
    if let Some(old) = &row.old {
        delta.gone = Some(needs.value(&old.value)?);
        delta.bytes -= i64::try_from(old.bytes).ok()?;
    }
    if let Some(NewRow { row: new, .. }) = row.new {
        delta.come = Some(needs.value(new.value.as_bytes())?);
        delta.bytes += i64::try_from(new.bytes()).ok()?;
    }
    Some(delta)
}

fn row_writes(keys: &ViewKeys, diffs: &[DocumentDiff<'_>]) -> Writes {
    let mut writes = Writes::new();
    for (id, row) in diffs.iter().flat_map(|diff| diff.rows.iter().map(|row| (diff.id, row))) {
        if row.old.as_ref().is_some_and(|old| !old.blob_id.is_empty()) {
            writes.insert(keys.node(row.tree, 0, &row.key), None);
        }
        let message = row.new.map(|NewRow { row: new, .. }| match new.blob_id(id) {
            None => proto::ViewRow {
                key: new.key.clone().into_bytes(),
                value: new.value.clone().into_bytes(),
                expires_at_ms: new.ends_at_ms,
                ..Default::default()
            },
            Some(blob_id) => {
                let (key_bytes, value_bytes) = (new.key.len() as u64, new.value.len() as u64);
                let expires_at_ms = new.ends_at_ms;
                proto::ViewRow { key_bytes, value_bytes, blob_id, expires_at_ms, ..Default::default() }
            }
        });
        writes.insert(keys.row(row.tree, &row.key), message.map(|message| message.encode_to_vec()));
    }
    writes
}

/// Writes rows, nodes, parts of values and documents' lists. `is_hidden`: readers still see the old state.
fn write(
    trx: &Transaction,
    keys: &ViewKeys,
    diffs: &[DocumentDiff<'_>],
    writes: &Writes,
    is_hidden: bool,
    conflicts: bool,
) -> Result<()> {
    for (key, value) in writes {
        match value {
            Some(value) => Quiet(trx).set(key, value)?,
            None => Quiet(trx).clear(key)?,
        }
    }
    let rows = || diffs.iter().flat_map(|diff| diff.rows.iter().map(move |row| (diff, row)));
    // Removed rows first: a new row may have the same key.
    for (diff, row) in rows() {
        // A row that only changes its expiry keeps its parts.
        let new_blob_id = row.new.and_then(|new| new.row.blob_id(diff.id)).unwrap_or_default();
        let is_gone = |old: &&proto::ViewRowOf| !old.blob_id.is_empty() && old.blob_id != new_blob_id;
        let Some(old) = row.old.as_ref().filter(is_gone) else { continue };
        if is_hidden {
            large::mark(trx, keys, diff.id, old)?;
        } else {
            Quiet(trx).clear_range(&keys.parts(diff.id, &old.blob_id))?;
            Quiet(trx).clear(&keys.staged(diff.id, &old.blob_id))?;
        }
    }
    for (diff, row) in rows() {
        let Some(NewRow { row: new, .. }) = row.new else { continue };
        let Some(blob_id) = new.blob_id(diff.id) else { continue };
        if !diff.is_staged {
            parts::write(trx, keys, diff.id, (&blob_id, new), 0..parts::count(new.bytes()))?;
        }
        Quiet(trx).clear(&keys.staged(diff.id, &blob_id))?;
    }
    let refused_more: i64 = diffs.iter().map(DocumentDiff::refused_more).sum();
    if refused_more != 0 {
        Quiet(trx).atomic(&keys.refused(), &refused_more.to_le_bytes(), MutationType::Add)?;
    }
    let set_aside_more: i64 = diffs.iter().map(DocumentDiff::set_aside_more).sum();
    if set_aside_more != 0 {
        Quiet(trx).atomic(&keys.set_aside_count(), &set_aside_more.to_le_bytes(), MutationType::Add)?;
    }
    diffs.iter().try_for_each(|diff| diff.write(trx, keys, conflicts))
}
