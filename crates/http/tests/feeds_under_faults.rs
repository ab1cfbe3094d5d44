//! The tests of `feeds.rs` once more, on a store that injects faults: clients are answered the same.

#[path = "feeds.rs"]
mod feeds;
