//! CouchDB's replication protocol (version 3), as a client of two peers that speak its HTTP API.
//!
//! A peer is a database behind `http://` or `https://`, or one of the server that runs the replication. The latter is
//! reached through in-memory pipes, so that there is one protocol and one way into a database. Documents pass from
//! source to target as the JSON text that they are, within fixed limits of memory (see `transfer`).
//!
//! This crate knows neither keys nor FoundationDB, nor the scheduling of replications, which is in
//! `flatbed-replicator`.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod asked;
mod attachments;
mod checkpoint;
mod endpoint;
mod error;
mod function;
mod memory;
mod peer;
mod pool;
mod raw;
mod run;
mod signing_in;
mod spec;
mod stats;
pub mod time;
mod transfer;

pub use endpoint::{Endpoint, LocalConnect, PeerAccess};
pub use error::{Error, Result};
pub use memory::{Memory, MemoryUsage};
pub use run::{Control, Fence, Outcome, replicate};
pub use spec::{Filter, Spec, SpecDefaults};
pub use stats::{Progress, Stats};
