//! The parts of a document: its tree, bodies, attachments and names of fields.

pub mod attachments;
pub mod body;
pub mod coding;
pub mod edit;
pub mod fields;
pub mod latest;
pub mod release;
pub mod staging;
pub mod text;
pub mod tree;
pub mod upload;
pub mod verdict;
