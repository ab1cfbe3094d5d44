//! Reads of documents, and of what lies beside them.

pub(crate) mod all_docs;
mod before;
pub(crate) mod get;
pub(crate) mod local;
pub(crate) mod missing;
mod tests;
