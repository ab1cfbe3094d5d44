//! The repository's rules beyond the compiler's, as functions from text to violations.
//!
//! `tests/tidy.rs` applies them to the repository; each module's own tests apply them to violating texts. This crate is
//! not part of the program.
#![forbid(unsafe_code)]

pub mod circles;
pub mod commits;
pub mod crates;
pub mod files;
pub mod licences;
pub mod paths;
pub mod prose;
pub mod ratchet;
pub mod rust;
pub mod sizes;
pub mod sources;
pub mod tables;
