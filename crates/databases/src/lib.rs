//! Databases as one process knows them: cached records, handles, admission of writers, documents' parts, and users.
//!
//! Only the crates of the layer use it. An [`Inner`](server::Inner) is a server's view of one root; it resolves a name in
//! each transaction to an [`Instance`](instance::Instance) of the database. Subsystems above keep their state in
//! [`slots`], found by its type.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]

pub mod actor;
pub mod admission;
pub mod asker;
pub mod channels;
pub mod confirmed;
pub mod create;
pub mod document;
pub mod field_names;
pub mod handles;
pub mod held;
pub mod instance;
pub mod limits;
pub mod line_pacer;
pub mod record_change;
pub mod server;
pub mod size_bounds;
pub mod size_limit;
pub mod slots;
pub mod turns;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;
