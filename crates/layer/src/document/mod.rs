//! The parts of a document: its tree, bodies, attachments and names of fields.

pub(crate) mod attachments;
pub(crate) mod body;
pub(crate) mod coding;
pub(crate) mod edit;
pub(crate) mod fields;
pub(crate) mod latest;
pub(crate) mod release;
pub(crate) mod staging;
pub mod text;
pub(crate) mod tree;
pub(crate) mod upload;
pub(crate) mod verdict;
