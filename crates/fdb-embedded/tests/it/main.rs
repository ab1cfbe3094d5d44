//! The engine's tests in one program, because linking takes longer than compiling. Tests that need a process of their
//! own are separate programs, with the reason in each.
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
