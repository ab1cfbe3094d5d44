//! Counts and reductions of ordered rows, over all rows or any range.
//!
//! A view's rows are stored by key. Above them are nodes: a node of level 1 covers some adjacent rows, a node of level
//! 2 some nodes of level 1, and so on to the root, which covers all rows. A node holds the number of its rows and
//! their reductions. A range of any length is therefore assembled from some rows and nodes at its ends and a few nodes
//! between.
//!
//! **The row alone decides whether it begins a node** ([`Shape`]), by a hash of its key. The same rows therefore have
//! the same nodes, whatever was written before. A checker can recompute a tree, nothing has to be balanced, and parts
//! can be built separately ([`Section`]). A node is stored under the key of its first row, so no node points at another,
//! and the entries near a key can be requested on all levels at once.
//!
//! ```text
//! rows      a b c d e f g h i j k l
//! level 1   .     d   f     i j         nodes: [a b c] [d e] [f g h] [i] [j k l]
//! level 2   .           f                      [. d] [f i j]
//! level 3   .                                  all
//! ```
//!
//! The first node of each level begins with the empty key (`.` above), before any row: it covers the rows before the
//! first row that begins a node of that level. No node is empty. The owner of the tree stores the level of the root,
//! its height.
//!
//! This crate only waits for a [`Tree`], which storage implements. It writes nothing: callers get the changes to
//! write.

mod build;
mod change;
mod cover;
mod groups;
mod known;
mod shape;
mod tree;

pub use build::{BuiltNodes, Section, build, build_section};
pub use change::{NodeChanges, RowChange, change};
pub use cover::{count, cover, nth};
pub use groups::{Group, Groups, groups};
pub use known::KnownNodes;
pub use shape::{LEVELS_MAX, Shape};
pub use tree::{Key, KeyRange, Parts, Summary, Tree, TreePage};
