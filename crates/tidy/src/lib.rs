//! The repository's rules that no compiler holds, as functions from text to what breaks them.
//!
//! `tests/tidy.rs` applies them to the repository; each module's own tests apply them to text that breaks them. Nothing
//! here is part of the program.
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
