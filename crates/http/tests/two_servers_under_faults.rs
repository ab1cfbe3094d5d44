//! The tests of `two_servers.rs` once more, on a store that injects faults: clients are answered the same.

#[path = "two_servers.rs"]
mod two_servers;
