//! Groups of views: what lies in storage of them, how it is changed, and how it is read.
//!
//! A group has a tree for each distinct map: rows in the order of their keys, and nodes above them
//! ([`flatbed_rowtree`]) with counts and what reduces make of the rows. What a document has in the group lies beside, so that
//! its old rows are known without its old body. design/data-model.md draws the keys.

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

#[cfg(test)]
mod label_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod partition_tests;
#[cfg(test)]
mod read_tests;
#[cfg(test)]
mod tests;
