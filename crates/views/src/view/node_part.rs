//! Makes a part of a level's nodes: as many as a transaction writes.

use flatbed_databases::limits::Limit;
use flatbed_rowtree::{BuiltNodes, Key, Section, Shape, build_section};
use flatbed_store::error::Result;

use crate::view::asking::ConcurrentReaders;
use crate::view::group::ViewGroup;
use crate::view::stored::StoredTree;
use crate::view::summary::Summary;
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
    entries_max: usize,
    bytes: usize,
}

impl Default for NodesPace {
    fn default() -> NodesPace {
        NodesPace { entries: FIRST_ENTRIES.get(), entries_max: ENTRIES_MAX.get(), bytes: 0 }
    }
}

impl NodesPace {
    /// Creates a pace that begins with its largest number of rows or nodes.
    pub fn of(entries: usize) -> NodesPace {
        NodesPace { entries, entries_max: entries, bytes: 0 }
    }

    /// Returns the bytes of the last step's nodes.
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
        self.entries = next.min(self.entries * 2).clamp(2, self.entries_max);
        self.bytes = bytes;
    }
}

/// A part of a level's nodes.
pub(super) struct NodePart {
    /// Keys and values to write.
    pub nodes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The begin of the next part; `None`: the level is complete.
    pub next: Option<Key>,
    /// The begin of the next section, if it is known.
    pub end: Option<Key>,
    /// True if the level has a single node, the root, or none.
    pub is_root: bool,
    /// The first node.
    pub first: Option<Summary>,
}

/// Makes nodes of a level of a tree within a section, from a place on: about as many as `pace` says, and at most
/// [`WRITTEN_BYTES_MAX`].
pub(super) async fn make_part(
    reads: GroupReads<'_>,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    (tree, shape, level): (usize, &Shape, u8),
    (section, begin): (&Section, Key),
    pace: &mut NodesPace,
) -> Result<NodePart> {
    let stored = StoredTree { reads, group, tree, written, known: None, asking: ConcurrentReaders::default() };
    let BuiltNodes { nodes, mut next, end, mut is_root } =
        build_section(&stored, shape, level, section, begin, pace.entries).await?;
    let (mut bytes, mut to_write) = (0, Vec::with_capacity(nodes.len()));
    for (from, summary) in &nodes {
        let (key, summary) = (reads.keys.node(tree, level, from), summary.encode());
        let more = key.len() + summary.len() + WRITE_BYTES;
        if !to_write.is_empty() && bytes + more > WRITTEN_BYTES_MAX {
            // This node begins the next part.
            (next, is_root) = (Some(from.clone()), false);
            break;
        }
        bytes += more;
        to_write.push((key, summary));
    }
    pace.adjust(bytes, to_write.len(), nodes.len());
    let first = nodes.into_iter().next().map(|(_, summary)| summary);
    Ok(NodePart { nodes: to_write, next, end, is_root, first })
}
