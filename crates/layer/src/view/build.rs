//! The nodes of rows that were written without: a part of a level in each transaction.

use flatbed_rowtree::{BuiltNodes, build};

use crate::error::Result;
use crate::store::proto;
use crate::store::transaction::Quiet;
use crate::view::apply::At;
use crate::view::group::{ViewGroup, shape_of};
use crate::view::large::tidy;
use crate::view::stored::StoredTree;
use crate::view::undo::GroupReads;
use crate::view::written::WrittenReduces;

/// Rows, or nodes, of which a transaction makes nodes.
const STEP_ENTRIES: usize = if cfg!(test) { 40 } else { 2_000 };

/// The phases of a group.
pub(crate) const ROWS: u32 = 0;
pub(crate) const NODES: u32 = 1;
pub(crate) const FOLLOWED: u32 = 2;

/// A step; whether all nodes are there now, and the group is to be followed. The caller has read `progress` with conflict in
/// this transaction and writes it afterwards: nobody changes rows meanwhile.
pub(crate) async fn build_nodes(
    at: &At<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    progress: &mut proto::ViewProgress,
) -> Result<bool> {
    let keys = at.keys.view(group.number());
    if progress.untidy {
        tidy(at.trx, &keys, progress).await?;
        progress.phase = NODES;
        return Ok(false);
    }
    let proto::ViewBuilding { tree, level, begin } = progress.building.take().unwrap_or_default();
    let place = tree as usize;
    if place >= group.trees().len() {
        progress.phase = FOLLOWED;
        return Ok(true);
    }
    progress.phase = NODES;
    let reads = GroupReads { trx: at.trx, keys: &keys, is_before: false };
    let stored = StoredTree { reads, group, tree: place, written, known: None };
    let (shape, _) = shape_of(&progress.trees, place)?;
    let at_level = u8::try_from(level).unwrap_or(u8::MAX).max(1);
    let BuiltNodes { nodes, next, is_root } = build(&stored, &shape, at_level, begin, STEP_ENTRIES).await?;
    for (from, summary) in &nodes {
        Quiet(at.trx).set(&keys.node(place, at_level, from), &summary.encode())?;
    }
    progress.building = Some(match next {
        Some(begin) => proto::ViewBuilding { tree, level: u32::from(at_level), begin },
        None if !is_root => proto::ViewBuilding { tree, level: u32::from(at_level) + 1, begin: Vec::new() },
        None => {
            if let (Some((_, root)), Some(made)) = (nodes.first(), progress.trees.get_mut(place)) {
                (made.height, made.rows, made.bytes) = (u32::from(at_level), root.rows, root.bytes);
            }
            proto::ViewBuilding { tree: tree + 1, level: 1, begin: Vec::new() }
        }
    });
    Ok(false)
}
