//! Groups of views: their storage, its changes, and reads.
//!
//! A group has a tree for each distinct map: rows in the order of their keys, and nodes above them
//! ([`flatbed_rowtree`]) with counts and the states of the reduces. A document's list of its rows is stored separately,
//! so that its old rows are known without its old body. design/data-model.md has the keys.

pub(crate) mod apply;
mod asking;
pub(crate) mod build;
pub(crate) mod check;
pub(crate) mod documents;
pub(crate) mod group;
pub(crate) mod known;
mod labels;
pub(crate) mod large;
mod parts;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod reduced;
pub(crate) mod rows;
mod stored;
mod summary;
pub(crate) mod undo;
pub(crate) mod written;
