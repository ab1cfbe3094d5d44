//! The engine's tests, one program: linking takes longer than compiling them. What needs a process of its own
//! is a program beside this one and says why.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

mod backup;
mod behaviour;
mod buggify;
mod clears;
mod client_corners;
mod common;
mod durability;
mod history;
mod locked;
mod mapped;
mod model;
mod options;
mod oracle;
mod oracle_pages;
mod packing;
mod pages;
mod short_pages;
mod special_keys;
mod time_keeper;
