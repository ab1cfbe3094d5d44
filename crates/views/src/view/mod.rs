//! Groups of views: their storage, its changes, and reads.
//!
//! A group has a tree for each distinct map: rows in the order of their keys, and nodes above them
//! ([`flatbed_rowtree`]) with counts and the states of the reduces. A document's list of its rows is stored separately,
//! so that its old rows are known without its old body. design/data-model.md has the keys.

pub mod apply;
pub mod asking;
pub mod build;
pub mod check;
pub mod documents;
pub mod group;
pub mod known;
pub mod labels;
pub mod large;
pub mod node_part;
pub mod parts;
pub mod prepare;
pub mod read;
pub mod reduced;
pub mod rows;
pub mod sections;
pub mod stored;
pub mod summary;
pub mod undo;
pub mod written;
