//! Reads: states of the database by version, a transaction's own writes over them, selectors, ranges and sizes.

pub(crate) mod known;
pub(crate) mod limits;
pub(crate) mod mapped;
pub(crate) mod page;
pub(crate) mod range;
pub(crate) mod range_size;
pub(crate) mod readers;
pub(crate) mod result;
pub(crate) mod segment;
pub(crate) mod selector;
pub(crate) mod snapshot;
pub(crate) mod view;
pub(crate) mod write_map;
