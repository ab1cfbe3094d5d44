//! The tests of `replication.rs` once more, on a store that injects faults: nothing is lost.

#[path = "replication.rs"]
mod replication;
