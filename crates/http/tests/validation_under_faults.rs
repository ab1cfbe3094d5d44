//! The tests of `validation.rs` once more, on a store that injects faults.

#[path = "validation.rs"]
mod validation;
