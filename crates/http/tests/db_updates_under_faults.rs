//! The tests of `db_updates.rs` once more, on a store that injects faults: clients are answered the same.

#[path = "db_updates.rs"]
mod db_updates;
