//! What a group of views is, as far as its storage goes.

use std::sync::Arc;
use std::time::Duration;

use flatbed_collate::Collation;
use flatbed_collate::reduce::Reducer;
use flatbed_rowtree::Shape;

use crate::error::{Error, Result};
use crate::store::keys::RowKey;
use crate::store::proto;
use crate::view::known::new_mark;
use crate::view_bounds::ViewBounds;
use crate::view_definition::{GroupDefinition, ReduceFunction, TreeDefinition};

/// Bytes of rows in a node of level 1, in the mean.
const NODE_BYTES: u32 = 1_024;

/// How the rows of a tree are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reduction {
    /// By a built-in reduction.
    BuiltIn(Reducer),
    /// By a function: its place among those of the group that are written.
    Written(usize),
}

/// A distinct map of a group, of which several views may have their rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ViewTree {
    /// Its option `collation` is `raw`.
    pub raw_collation: bool,
    /// What is kept of its rows, each once.
    pub reduces: Vec<Reduction>,
}

/// What a document may have in a group, and what a transaction changes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// What a document may have: one with more has nothing.
    pub document: ViewBounds,
    /// Rows that a transaction changes: for each of them some nodes are read.
    pub rows: usize,
    /// What it writes of rows, about.
    pub rows_bytes: u64,
    /// What it writes, with nodes, and with what readers see instead: where it is more, it changes less.
    pub transaction_bytes: u64,
    /// How long it looks for the places of long keys: what it has found by then is entered.
    pub searching: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let (rows, rows_bytes) = if cfg!(test) { (60, 60_000) } else { (1_500, 400_000) };
        let searching = Duration::from_secs(1);
        Bounds { document: ViewBounds::default(), rows, rows_bytes, transaction_bytes: 800_000, searching }
    }
}

/// A group of views. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ViewGroup(Arc<Parts>, Bounds);

#[derive(Debug)]
struct Parts {
    number: u64,
    is_partitioned: bool,
    trees: Vec<ViewTree>,
    unicode: Collation,
    raw: Collation,
}

impl ViewGroup {
    /// `number`: the index's in its database. `is_partitioned`: keys of rows begin with the partitions of their documents.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: there is no data for the collation.
    pub(crate) fn new(number: u64, is_partitioned: bool, trees: Vec<ViewTree>) -> Result<ViewGroup> {
        let unicode = Collation::unicode().map_err(|error| Error::Corrupt(error.to_string()))?;
        let parts = Parts { number, is_partitioned, trees, unicode, raw: Collation::raw() };
        Ok(ViewGroup(Arc::new(parts), Bounds::default()))
    }

    /// The storage of a group that a design document defines.
    ///
    /// # Errors
    /// As [`ViewGroup::new`].
    pub(crate) fn of(number: u64, definition: &GroupDefinition) -> Result<ViewGroup> {
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

    /// The same group with other bounds.
    #[must_use]
    pub(crate) fn bounded(self, bounds: Bounds) -> ViewGroup {
        ViewGroup(self.0, bounds)
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.1
    }

    /// The index's number in its database.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Whether its rows lie by partitions, and are read of one.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.0.is_partitioned
    }

    /// The key of a row that a document has.
    pub(crate) fn row_key(&self, id: &str, row: &proto::ViewRowOf) -> RowKey {
        RowKey::of(self.is_partitioned(), row.element.clone(), id.to_owned(), (row.spelling, row.ordinal))
    }

    /// Its trees.
    pub(crate) fn trees(&self) -> &[ViewTree] {
        &self.0.trees
    }

    /// Whether a function reduces rows of any tree.
    pub(crate) fn has_written_reduces(&self) -> bool {
        let is_written = |reduce: &Reduction| matches!(reduce, Reduction::Written(_));
        self.trees().iter().any(|tree| tree.reduces.iter().any(is_written))
    }

    /// What is kept of a tree's rows.
    pub(crate) fn reduces(&self, tree: usize) -> &[Reduction] {
        self.0.trees.get(tree).map(|tree| tree.reduces.as_slice()).unwrap_or_default()
    }

    /// The order of a tree's keys.
    pub(crate) fn collation(&self, tree: usize) -> &Collation {
        match self.0.trees.get(tree) {
            Some(tree) if tree.raw_collation => &self.0.raw,
            _ => &self.0.unicode,
        }
    }

    /// The order of what `_top_N` and its like choose of, whatever the view's.
    pub(crate) fn unicode(&self) -> &Collation {
        &self.0.unicode
    }

    /// The progress of a group that nothing was done for yet.
    ///
    /// # Errors
    /// [`Error::NoRandomness`].
    pub(crate) fn begin(&self) -> Result<proto::ViewProgress> {
        // What a build leaves behind is looked for at its end.
        let mut progress = proto::ViewProgress { untidy: true, nodes_mark: new_mark()?, ..Default::default() };
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

/// The shape and the height of a tree.
pub(crate) fn shape_of(trees: &[proto::ViewTree], tree: usize) -> Result<(Shape, u8)> {
    let found = trees.get(tree).ok_or_else(|| Error::Corrupt(format!("a group has no tree {tree}")))?;
    let height = u8::try_from(found.height).map_err(|_| Error::Corrupt("a tree is too high".to_owned()))?;
    Ok((Shape::new((found.secret_0, found.secret_1), found.node_bytes), height))
}
