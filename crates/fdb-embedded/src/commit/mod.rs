//! The commit thread: conflict checks, batches, and the LMDB transaction of each batch.

pub(crate) mod batch;
pub(crate) mod committer;
pub(crate) mod conflict;
pub(crate) mod map_room;
pub(crate) mod sorted_keys;
pub(crate) mod version_tree;
