//! The tests of `replicator.rs` once more, on a store that injects faults: jobs go on all the same.

#[path = "replicator.rs"]
mod replicator;
