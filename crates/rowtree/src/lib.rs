//! Counts and reductions of rows in order, of all of them or of any range.
//!
//! A view's rows lie in storage by their keys. Above them lie nodes: one of level 1 is about some rows that follow each other, one of
//! level 2 about some nodes of level 1, and so on to the root, which is about all. A node says how many rows it is about and
//! what reductions make of them, so a range of any length is put together from some rows and nodes at its ends and a few
//! nodes between.
//!
//! **Which row begins a node follows from the row alone** ([`Shape`]), by a hash of its key. So the same rows have the
//! same nodes, whatever was written before; who checks a tree recomputes it; nothing has to be balanced; parts of it can be made apart. A
//! node lies where its first row is, and so no node points at another: all levels can be asked at once for what lies near a key.
//!
//! ```text
//! rows      a b c d e f g h i j k l
//! level 1   .     d   f     i j         nodes: [a b c] [d e] [f g h] [i] [j k l]
//! level 2   .           f                      [. d] [f i j]
//! level 3   .                                  all
//! ```
//!
//! The first node of each level begins with the empty key (`.` above), before any row: it is about what comes before the first row that begins a
//! node of that level. There are no empty nodes. The level of the root, its height, is kept by whoever stores the tree.
//!
//! Nothing here waits for more than a [`Tree`], which storage implements, and nothing is written: callers get what they have to write.

mod build;
mod change;
mod cover;
mod groups;
mod known;
mod shape;
mod tree;

pub use build::{BuiltNodes, build};
pub use change::{NodeChanges, RowChange, change};
pub use cover::{count, cover, nth};
pub use groups::{Group, Groups, groups};
pub use known::KnownNodes;
pub use shape::{LEVELS_MAX, Shape};
pub use tree::{Key, KeyRange, Page, Parts, Summary, Tree};
