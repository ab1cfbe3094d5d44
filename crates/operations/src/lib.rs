//! Reads and writes of documents: indexes in the transaction of a write, queries, and functions that judge writes.
//!
//! Only the crates of the layer use it. All writes go through one function, which passes the old and the new state of each
//! document to the index maintainers in the same transaction. A read of a single document is one range read.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]

pub mod compactions;
pub mod find;
pub mod index;
pub mod index_builds;
pub mod index_waits;
pub mod judge;
pub mod lanes;
pub mod read;
pub mod view_runtime;
pub mod write;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;
