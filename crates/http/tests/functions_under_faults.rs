//! The tests of `functions.rs` once more, on a store that injects faults.

#[path = "functions.rs"]
mod functions;
