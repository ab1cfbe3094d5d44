//! Builds the nodes of rows that were written without nodes: a part of a level in each transaction.

use flatbed_rowtree::Section;
use flatbed_store::error::Result;
use flatbed_store::proto;
use flatbed_store::transaction::Quiet;

use crate::view::apply::ApplyContext;
use crate::view::group::{ViewGroup, shape_of};
use crate::view::large::tidy;
use crate::view::node_part::{NodePart, make_part};
use crate::view::sections::{begin_sections, level_of};
use crate::view::undo::GroupReads;
use crate::view::written::WrittenReduces;

pub use crate::view::node_part::NodesPace;

/// The phases of a group. First the rows are written, by all processes; the holder enters documents with long keys;
/// all processes build the nodes of sections, unless there is only one; the holder builds the nodes above them, or all.
pub const ROWS: u32 = 0;
pub const NODES: u32 = 1;
pub const FOLLOWED: u32 = 2;
pub const SECTIONS: u32 = 3;

/// Returns whether all processes work on a group in this phase, so that it has no holder.
pub fn is_shared(phase: u32) -> bool {
    phase == ROWS || phase == SECTIONS
}

/// Runs a step of the holder, and returns whether all nodes exist and the group is to be followed. The caller has read
/// `progress` with a conflict in this transaction and writes it afterwards, so rows do not change meanwhile. If the
/// nodes are to be built by sections, the phase becomes [`SECTIONS`].
pub async fn build_nodes(
    at: &ApplyContext<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    progress: &mut proto::ViewProgress,
    pace: &mut NodesPace,
) -> Result<bool> {
    let keys = at.keys.view(group.number());
    progress.phase = NODES;
    if progress.untidy {
        tidy(at.trx, &keys, progress, at.large_reads).await?;
        return Ok(false);
    }
    if progress.building.is_none() && progress.section_level > 0 {
        if at.trx.range(&keys.sections(), true).any().await? {
            begin_sections(at.trx, &keys, group.trees().len())?;
            progress.phase = SECTIONS;
            return Ok(false);
        }
        // A few MB of rows are built in fewer transactions without sections.
        progress.section_level = 0;
    }
    let sections = level_of(progress)?;
    let proto::ViewBuilding { mut tree, level, begin } = progress.building.take().unwrap_or_default();
    // The only section of a tree may have the root.
    while progress.trees.get(tree as usize).is_some_and(|tree| tree.height > 0) {
        tree += 1;
    }
    let place = tree as usize;
    if place >= group.trees().len() {
        progress.phase = FOLLOWED;
        return Ok(true);
    }
    let (shape, _) = shape_of(&progress.trees, place)?;
    let at_level = u8::try_from(level).unwrap_or(u8::MAX).max(sections.saturating_add(1));
    let of = (place, &shape, at_level);
    let reads = GroupReads { trx: at.trx, keys: &keys, is_before: false };
    let NodePart { nodes, next, is_root, first, .. } =
        make_part(reads, group, written, of, (&Section::all(), begin), pace).await?;
    nodes.iter().try_for_each(|(key, node)| Quiet(at.trx).set(key, node))?;
    progress.building = Some(match next {
        Some(begin) => proto::ViewBuilding { tree, level: u32::from(at_level), begin },
        None if !is_root => proto::ViewBuilding { tree, level: u32::from(at_level) + 1, begin: Vec::new() },
        None => {
            if let (Some(root), Some(made)) = (first, progress.trees.get_mut(place)) {
                (made.height, made.rows, made.bytes) = (u32::from(at_level), root.rows, root.bytes);
            }
            proto::ViewBuilding { tree: tree + 1, level: 0, begin: Vec::new() }
        }
    });
    Ok(false)
}
