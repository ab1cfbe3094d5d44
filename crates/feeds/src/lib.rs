//! Changes of databases in order, pushed to their followers.
//!
//! Only the crates of the layer use it.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]

pub mod armed;
pub mod changes;
pub mod hub;
pub mod place;
pub mod query;
pub mod row;
pub mod source;
pub mod tail;
pub mod updates;
pub mod watches;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;
