//! What each path does.

pub(crate) mod all_docs;
pub(crate) mod bulk;
pub(crate) mod changes;
pub(crate) mod database;
pub(crate) mod document;
pub(crate) mod server;
