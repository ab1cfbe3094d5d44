//! Builds the nodes of rows that were written without nodes: a part of a level in each transaction.

use flatbed_databases::limits::Limit;
use flatbed_rowtree::{BuiltNodes, build};
use flatbed_store::error::Result;
use flatbed_store::proto;
use flatbed_store::transaction::Quiet;

use crate::view::apply::ApplyContext;
use crate::view::asking::ConcurrentReaders;
use crate::view::group::{ViewGroup, shape_of};
use crate::view::large::tidy;
use crate::view::stored::StoredTree;
use crate::view::undo::GroupReads;
use crate::view::written::WrittenReduces;

/// The first and the largest number of rows or nodes from which a transaction makes nodes.
const FIRST_ENTRIES: Limit<usize> = Limit::new(250, 40);
const ENTRIES_MAX: Limit<usize> = Limit::new(2_000, 40);

/// The approximate limit of nodes that a transaction writes, in bytes; one node may exceed it.
const WRITTEN_BYTES_MAX: usize = 600_000;

/// The bytes of a write beside those of a node and its key.
const WRITE_BYTES: usize = 100;

/// The number of rows or nodes of the next step, adjusted to the size of the last step's nodes.
#[derive(Debug, Clone, Copy)]
pub struct NodesPace {
    entries: usize,
    bytes: usize,
}

impl Default for NodesPace {
    fn default() -> NodesPace {
        NodesPace { entries: FIRST_ENTRIES.get(), bytes: 0 }
    }
}

impl NodesPace {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Halves the pace after a slow attempt, whether or not it committed: JavaScript reduces run within the
    /// transaction.
    pub fn halve(&mut self) {
        self.entries = (self.entries / 2).max(2);
    }

    fn adjust(&mut self, bytes: usize, written: usize, made: usize) {
        let next = match written < made {
            true => self.entries * written / made,
            false => self.entries * WRITTEN_BYTES_MAX / 2 / bytes.max(1),
        };
        self.entries = next.min(self.entries * 2).clamp(2, ENTRIES_MAX.get());
        self.bytes = bytes;
    }
}

/// The phases of a group.
pub const ROWS: u32 = 0;
pub const NODES: u32 = 1;
pub const FOLLOWED: u32 = 2;

/// Runs a step, and returns whether all nodes exist and the group is to be followed. The caller has read `progress`
/// with a conflict in this transaction and writes it afterwards, so rows do not change meanwhile.
pub async fn build_nodes(
    at: &ApplyContext<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    progress: &mut proto::ViewProgress,
    pace: &mut NodesPace,
) -> Result<bool> {
    let keys = at.keys.view(group.number());
    if progress.untidy {
        tidy(at.trx, &keys, progress, at.large_reads).await?;
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
    let stored = StoredTree { reads, group, tree: place, written, known: None, asking: ConcurrentReaders::default() };
    let (shape, _) = shape_of(&progress.trees, place)?;
    let at_level = u8::try_from(level).unwrap_or(u8::MAX).max(1);
    let BuiltNodes { nodes, mut next, mut is_root } = build(&stored, &shape, at_level, begin, pace.entries).await?;
    let (mut bytes, mut written) = (0, 0);
    for (from, summary) in &nodes {
        let (key, summary) = (keys.node(place, at_level, from), summary.encode());
        let more = key.len() + summary.len() + WRITE_BYTES;
        if written > 0 && bytes + more > WRITTEN_BYTES_MAX {
            // This node begins the next part.
            (next, is_root) = (Some(from.clone()), false);
            break;
        }
        (bytes, written) = (bytes + more, written + 1);
        Quiet(at.trx).set(&key, &summary)?;
    }
    pace.adjust(bytes, written, nodes.len());
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
