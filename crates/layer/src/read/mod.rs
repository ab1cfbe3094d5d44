//! Reads of documents, and of what lies beside them.

pub(crate) mod all_docs;
mod before;
pub(crate) mod get;
pub(crate) mod local;
pub(crate) mod missing;
pub(crate) mod routings;
mod tests;
