//! Sync Gateway's REST API on the document layer: two surfaces of the shell `flatbed-http`, one for users and one for
//! administrators.
//!
//! This crate parses requests, calls [`flatbed_layer`] through `flatbed-service`, and writes answers in Sync Gateway's
//! words. CouchDB's surface serves the same databases, users and rights. `docs/sync-gateway.md` lists deliberate
//! differences and missing features.
#![forbid(unsafe_code)]
// The layer's futures are deeply nested in those of handlers.
#![recursion_limit = "256"]
#![warn(clippy::indexing_slicing)]

mod all_docs;
mod attachment;
mod body;
mod bulk;
mod bulk_get;
mod changes;
mod config;
mod database;
mod document;
mod dump;
mod error;
mod local;
mod path;
mod principals;
mod query;
mod raw;
mod reply;
mod request;
mod resync;
mod route;
mod session;
mod state;
mod surface;

pub use path::Path;
pub use route::Route;
pub use state::{Gateway, GatewayOptions, Port};
