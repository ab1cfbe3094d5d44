//! The data directory: LMDB's records, files and failures. This folder knows no versions.

pub(crate) mod clears;
pub(crate) mod data_file;
pub(crate) mod directory;
pub(crate) mod failure;
pub(crate) mod format;
pub(crate) mod keys;
pub(crate) mod open_error;
pub(crate) mod packing;
pub(crate) mod page;
pub(crate) mod scan;
pub(crate) mod sealed;
pub(crate) mod store;
pub(crate) mod stored;
pub(crate) mod tree_sample;
