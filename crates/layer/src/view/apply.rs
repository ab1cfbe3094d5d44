//! Rows of documents that were mapped anew, into a transaction.

use std::collections::BTreeMap;

use flatbed_rowtree::{NodeChanges, RowChange, change};
use prost::Message;

use crate::error::Result;
use crate::store::keys::{Keys, ViewKeys};
use crate::store::proto;
use crate::store::transaction::{Quiet, Transaction};
use crate::view::documents::{DocumentDiff, Had, NewRow, RowDiff, diff, read_had};
use crate::view::group::{ViewGroup, shape_of};
use crate::view::labels::Labels;
use crate::view::parts;
use crate::view::prepare::PreparedDocument;
use crate::view::stored::{Needs, RowDelta, StoredTree, TreeRow, each_tree};
use crate::view::summary::Summary;
use crate::view::written::WrittenReduces;

/// What a transaction writes of rows, about; one row may pass it.
const ROWS_BYTES_MAX: u64 = if cfg!(test) { 60_000 } else { 400_000 };

/// Rows that a transaction changes: for each of them some nodes are read.
const ROWS_MAX: usize = if cfg!(test) { 60 } else { 1_500 };

/// What it writes of nodes: where it is more, it takes fewer documents.
const NODES_BYTES_MAX: usize = 400_000;

/// Where a transaction works.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub trx: &'a Transaction,
    pub keys: &'a Keys,
}

/// What a transaction has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Documents whose rows are as they should be: so many of the first ones. None where the first one has more changes than a
    /// transaction holds: some of these are made then, and the rest comes when it is done again, with what follows.
    pub documents: usize,
    /// Rows that came, went or have another value.
    pub rows_changed: u64,
    /// What is written, about.
    pub bytes: u64,
    /// Of these, documents that have no rows since they had too many.
    pub refused: u64,
    /// A label has no room: the index must be built anew, and nothing was written.
    pub is_full: bool,
}

/// Changes rows, what documents have, and nodes, for the first of `documents`, each of which is there once: as many as a
/// transaction holds. The caller has read `progress` with conflict in this transaction and writes it afterwards: what it says
/// of trees is changed.
///
/// It waits once for what the documents have, and then for the nodes of each level.
pub(crate) async fn apply(
    at: &At<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    progress: &mut proto::ViewProgress,
    documents: &[PreparedDocument],
) -> Result<Applied> {
    let keys = at.keys.view(group.number());
    let had = read_had(at.trx, &keys, documents.iter().map(PreparedDocument::id), true).await?;
    let Some(Diffed { mut diffs, mut applied }) = diff_all(at.trx, &keys, group, documents, &had).await? else {
        return Ok(Applied { is_full: true, ..Applied::default() });
    };
    loop {
        let alone = make_alone(at.trx, &keys, group, written, &diffs).await?;
        let trees = (0..group.trees().len()).map(|tree| {
            let tree = StoredTree { trx: at.trx, keys: &keys, group, tree, written };
            change_tree(tree, progress, &diffs, &alone)
        });
        let changed = each_tree(trees).await?;
        let nodes = changed.iter().flatten().flat_map(|changed| &changed.nodes);
        let bytes: usize = nodes.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum();
        let alone_bytes: usize = alone.values().map(|(_, encoded)| encoded.len()).sum();
        if bytes + alone_bytes > NODES_BYTES_MAX && applied.rows_changed > 1 {
            match diffs.as_mut_slice() {
                [one] => one.limit(one.rows.len() / 2, u64::MAX),
                several => {
                    let half = several.len() / 2;
                    diffs.truncate(half);
                }
            }
            applied = counted(&diffs, documents);
            continue;
        }
        applied.bytes += (bytes + alone_bytes) as u64;
        write_diffs(at.trx, &keys, &diffs, false)?;
        set_alone(at.trx, &keys, &alone)?;
        for (changed, tree) in changed.into_iter().zip(&mut progress.trees) {
            let Some(changed) = changed else { continue };
            for (key, value) in changed.nodes {
                match value {
                    Some(value) => Quiet(at.trx).set(&key, &value)?,
                    None => Quiet(at.trx).clear(&key)?,
                }
            }
            tree.height = u32::from(changed.height);
            (tree.rows, tree.bytes) = (changed.rows, changed.bytes);
        }
        progress.refused += applied.refused;
        return Ok(applied);
    }
}

/// Rows and what documents have, without nodes: for a first build, in which several work at ranges of ids. Who else enters
/// one of the documents at the same time fails.
pub(crate) async fn write_rows(
    at: &At<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    documents: &[PreparedDocument],
) -> Result<Applied> {
    let keys = at.keys.view(group.number());
    let had = read_had(at.trx, &keys, documents.iter().map(PreparedDocument::id), false).await?;
    let Some(Diffed { diffs, applied }) = diff_all(at.trx, &keys, group, documents, &had).await? else {
        return Ok(Applied { is_full: true, ..Applied::default() });
    };
    let alone = make_alone(at.trx, &keys, group, written, &diffs).await?;
    write_diffs(at.trx, &keys, &diffs, true)?;
    set_alone(at.trx, &keys, &alone)?;
    Ok(applied)
}

struct Diffed<'d> {
    diffs: Vec<DocumentDiff<'d>>,
    applied: Applied,
}

/// What the first documents change, as many as a transaction holds. `None`: a label has no room.
async fn diff_all<'d>(
    trx: &Transaction,
    keys: &ViewKeys,
    group: &ViewGroup,
    documents: &'d [PreparedDocument],
    had: &'d [Had],
) -> Result<Option<Diffed<'d>>> {
    let mut labels = Labels::new(trx, keys, group);
    let (mut diffs, mut bytes, mut rows) = (Vec::with_capacity(documents.len()), 0, 0);
    for (document, had) in documents.iter().zip(had) {
        let Some(mut diff) = diff(document, had, &mut labels).await? else { return Ok(None) };
        bytes += diff.bytes();
        rows += diff.rows.len();
        if bytes > ROWS_BYTES_MAX || rows > ROWS_MAX {
            if diffs.is_empty() {
                diff.limit(ROWS_MAX, ROWS_BYTES_MAX);
                diffs.push(diff);
            }
            break;
        }
        diffs.push(diff);
    }
    let applied = counted(&diffs, documents);
    Ok(Some(Diffed { diffs, applied }))
}

fn counted(diffs: &[DocumentDiff<'_>], documents: &[PreparedDocument]) -> Applied {
    let whole = diffs.iter().filter(|diff| !diff.is_partial).count();
    Applied {
        documents: whole,
        rows_changed: diffs.iter().map(|diff| diff.rows.len() as u64).sum(),
        bytes: diffs.iter().map(DocumentDiff::bytes).sum(),
        refused: documents.iter().take(whole).filter(|document| document.is_refused()).count() as u64,
        is_full: false,
    }
}

/// By tree and row: what is made of a large row alone, and its bytes.
type Alone = BTreeMap<(usize, Vec<u8>), (Summary, Vec<u8>)>;

/// What is made of each new row alone whose key and value do not lie in it.
async fn make_alone(
    trx: &Transaction,
    keys: &ViewKeys,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    diffs: &[DocumentDiff<'_>],
) -> Result<Alone> {
    let mut all = Alone::new();
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
        let made = StoredTree { trx, keys, group, tree, written }.alone(rows).await?;
        for (key, summary) in row_keys.into_iter().zip(made) {
            let encoded = summary.encode();
            all.insert((tree, key), (summary, encoded));
        }
    }
    Ok(all)
}

fn set_alone(trx: &Transaction, keys: &ViewKeys, alone: &Alone) -> Result<()> {
    alone.iter().try_for_each(|((tree, row), (_, encoded))| Quiet(trx).set(&keys.node(*tree, 0, row), encoded))
}

fn in_memory(row: &crate::view::prepare::PreparedRow) -> TreeRow {
    TreeRow {
        key: row.key.clone().into_bytes(),
        value: row.value.clone().into_bytes(),
        bytes: row.bytes() as u64,
        alone: None,
    }
}

/// What is to be written of a tree's nodes.
struct Changed {
    nodes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    height: u8,
    rows: u64,
    bytes: u64,
}

/// What rows do to the nodes of their tree; `None`: it has no change.
async fn change_tree(
    tree: StoredTree<'_>,
    progress: &proto::ViewProgress,
    diffs: &[DocumentDiff<'_>],
    alone: &Alone,
) -> Result<Option<Changed>> {
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
    let (shape, height) = shape_of(progress, tree.tree)?;
    let NodeChanges { nodes, height, root } = change(&tree, &shape, height, rows).await?;
    let nodes = nodes
        .into_iter()
        .map(|(level, from, summary)| {
            (tree.keys.node(tree.tree, level, &from), summary.map(|summary| summary.encode()))
        })
        .collect();
    let (rows, bytes) = root.map_or((0, 0), |root| (root.rows, root.bytes));
    Ok(Some(Changed { nodes, height, rows, bytes }))
}

/// What a row's change means for summaries, where other rows are not needed for that.
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

/// Writes rows and what documents have.
fn write_diffs(trx: &Transaction, keys: &ViewKeys, diffs: &[DocumentDiff<'_>], conflicts: bool) -> Result<()> {
    let rows = || diffs.iter().flat_map(|diff| diff.rows.iter().map(|row| (diff.id, row)));
    // First what goes: what comes may lie in the same place.
    for (id, row) in rows() {
        if let Some(old) = row.old.as_ref().filter(|old| !old.blob_id.is_empty()) {
            Quiet(trx).clear_range(&keys.parts(id, &old.blob_id))?;
            Quiet(trx).clear(&keys.node(row.tree, 0, &row.key))?;
        }
        if row.new.is_none() {
            Quiet(trx).clear(&keys.row(row.tree, &row.key))?;
        }
    }
    for (id, row) in rows() {
        let Some(NewRow { row: new, .. }) = row.new else { continue };
        let message = match new.blob_id(id) {
            None => proto::ViewRow {
                key: new.key.clone().into_bytes(),
                value: new.value.clone().into_bytes(),
                ..Default::default()
            },
            Some(blob_id) => {
                parts::write(trx, keys, id, &blob_id, &new.key, &new.value)?;
                let (key_bytes, value_bytes) = (new.key.len() as u64, new.value.len() as u64);
                proto::ViewRow { key_bytes, value_bytes, blob_id, ..Default::default() }
            }
        };
        let key = keys.row(row.tree, &row.key);
        if new.sort_key.is_cut() {
            // Whoever looks for the place of another such key at the same time fails.
            trx.set(&key, &message.encode_to_vec());
        } else {
            Quiet(trx).set(&key, &message.encode_to_vec())?;
        }
    }
    diffs.iter().try_for_each(|diff| diff.write(trx, keys, conflicts))
}
