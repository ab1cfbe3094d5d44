//! The parts of a view group that its storage depends on.

use std::sync::Arc;
use std::time::Duration;

use flatbed_collate::Collation;
use flatbed_collate::reduce::Reducer;
use flatbed_databases::limits::Limit;
use flatbed_rowtree::Shape;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::RowKey;
use flatbed_store::proto;
use flatbed_store::view_bounds::ViewBounds;
use flatbed_store::view_definition::{GroupDefinition, ReduceFunction, TreeDefinition};

use crate::view::known::new_mark;

/// The mean bytes of rows in a node of level 1.
const NODE_BYTES: u32 = 1_024;

/// The level of the sections of a first build: a mean of 4 MB of rows and 4,369 nodes.
const SECTION_LEVEL: Limit<u8> = Limit::new(4, 1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    BuiltIn(Reducer),
    /// A JavaScript function: its index among the functions of the group.
    Written(usize),
}

/// A distinct map of a group, whose rows several views may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewTree {
    pub raw_collation: bool,
    /// The reductions of its rows, without duplicates.
    pub reduces: Vec<Reduction>,
}

/// The bounds of a document's rows in a group, and of a transaction's changes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub document: ViewBounds,
    /// The most rows that a transaction changes: some nodes are read for each.
    pub rows: usize,
    /// The approximate bytes of rows that it writes.
    pub rows_bytes: u64,
    /// The approximate bytes that it writes with nodes and undos. Beyond it the transaction changes fewer rows.
    pub transaction_bytes: u64,
    /// The time limit for finding the positions of long keys. Rows found by then are entered.
    pub searching: Duration,
}

/// The rows that a transaction changes, and their approximate bytes.
const ROWS: Limit<(usize, u64)> = Limit::new((1_500, 400_000), (60, 60_000));

impl Default for Bounds {
    fn default() -> Self {
        let (rows, rows_bytes) = ROWS.get();
        let searching = Duration::from_secs(1);
        Bounds { document: ViewBounds::default(), rows, rows_bytes, transaction_bytes: 800_000, searching }
    }
}

#[derive(Debug, Clone)]
pub struct ViewGroup(Arc<Parts>, Bounds);

#[derive(Debug)]
struct Parts {
    number: u64,
    is_partitioned: bool,
    trees: Vec<ViewTree>,
    unicode: Collation,
    raw: Collation,
}

impl ViewGroup {
    /// `number`: the index's number in its database. `is_partitioned`: keys of rows begin with the partitions of their
    /// documents.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the collation data is missing.
    pub fn new(number: u64, is_partitioned: bool, trees: Vec<ViewTree>) -> Result<ViewGroup> {
        let unicode = Collation::unicode().map_err(|error| Error::Corrupt(error.to_string()))?;
        let parts = Parts { number, is_partitioned, trees, unicode, raw: Collation::raw() };
        Ok(ViewGroup(Arc::new(parts), Bounds::default()))
    }

    /// Returns the storage of a design document's group.
    ///
    /// # Errors
    /// As [`ViewGroup::new`].
    pub fn of(number: u64, definition: &GroupDefinition) -> Result<ViewGroup> {
        let reduction = |reduce: &ReduceFunction| match reduce {
            ReduceFunction::BuiltIn(reducer) => Reduction::BuiltIn(*reducer),
            ReduceFunction::Written { at, .. } => Reduction::Written(*at),
        };
        let tree = |tree: &TreeDefinition| ViewTree {
            raw_collation: tree.is_raw,
            reduces: tree.reduces.iter().map(reduction).collect(),
        };
        ViewGroup::new(number, definition.options.partitioned, definition.trees.iter().map(tree).collect())
    }

    #[must_use]
    pub fn bounded(self, bounds: Bounds) -> ViewGroup {
        ViewGroup(self.0, bounds)
    }

    pub fn bounds(&self) -> &Bounds {
        &self.1
    }

    pub fn number(&self) -> u64 {
        self.0.number
    }

    pub fn is_partitioned(&self) -> bool {
        self.0.is_partitioned
    }

    pub fn row_key(&self, id: &str, row: &proto::ViewRowOf) -> RowKey {
        RowKey::of(self.is_partitioned(), row.element.clone(), id.to_owned(), (row.spelling, row.ordinal))
    }

    pub fn trees(&self) -> &[ViewTree] {
        &self.0.trees
    }

    pub fn has_written_reduces(&self) -> bool {
        let is_written = |reduce: &Reduction| matches!(reduce, Reduction::Written(_));
        self.trees().iter().any(|tree| tree.reduces.iter().any(is_written))
    }

    pub fn reduces(&self, tree: usize) -> &[Reduction] {
        self.0.trees.get(tree).map(|tree| tree.reduces.as_slice()).unwrap_or_default()
    }

    pub fn collation(&self, tree: usize) -> &Collation {
        match self.0.trees.get(tree) {
            Some(tree) if tree.raw_collation => &self.0.raw,
            _ => &self.0.unicode,
        }
    }

    /// Returns the order in which `_top_N` and similar reductions select, whatever the view's order.
    pub fn unicode(&self) -> &Collation {
        &self.0.unicode
    }

    /// Returns the progress of a new group.
    ///
    /// # Errors
    /// [`Error::NoRandomness`].
    pub fn begin(&self) -> Result<proto::ViewProgress> {
        // The end of a build looks for leftovers.
        let mut progress = proto::ViewProgress {
            untidy: true,
            nodes_mark: new_mark()?,
            section_level: u32::from(SECTION_LEVEL.get()),
            ..Default::default()
        };
        for _ in self.trees() {
            let mut secret = [0; 16];
            getrandom::fill(&mut secret).map_err(|_| Error::NoRandomness)?;
            let (secret_0, secret_1) = secret.split_at(8);
            let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            progress.trees.push(proto::ViewTree {
                secret_0: number(secret_0),
                secret_1: number(secret_1),
                node_bytes: NODE_BYTES,
                ..Default::default()
            });
        }
        Ok(progress)
    }
}

pub fn shape_of(trees: &[proto::ViewTree], tree: usize) -> Result<(Shape, u8)> {
    let found = trees.get(tree).ok_or_else(|| Error::Corrupt(format!("a group has no tree {tree}")))?;
    let height = u8::try_from(found.height).map_err(|_| Error::Corrupt("a tree is too high".to_owned()))?;
    Ok((Shape::new((found.secret_0, found.secret_1), found.node_bytes), height))
}
