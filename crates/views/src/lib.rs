//! Groups of views: their rows, their builds, and the queries that wait for them.
//!
//! Only the crates of the layer use it.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]

pub mod at_once;
pub mod field_maps;
pub mod group;
pub mod view;
pub mod view_updates;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;
