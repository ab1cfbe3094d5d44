//! The thread that commits: conflicts, a batch of commits, and its way into one LMDB transaction.

pub(crate) mod batch;
pub(crate) mod committer;
pub(crate) mod conflict;
pub(crate) mod map_room;
pub(crate) mod sorted_keys;
pub(crate) mod version_tree;
