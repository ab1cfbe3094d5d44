//! The tests of `documents.rs` once more, on a store that injects faults: clients are answered the same.

#[path = "documents.rs"]
mod documents;
