//! The test of `feeds_torture.rs` once more, on a store that injects faults: late and spurious watches, 1007, 1020, 1021.

#[path = "feeds_torture.rs"]
mod feeds_torture;
