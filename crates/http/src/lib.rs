//! CouchDB's HTTP API on the document layer.
//!
//! Requests are taken apart here and handed to [`flatbed_layer`] in its own terms; what it answers is written in
//! CouchDB's words. Nothing below this crate knows HTTP, and nothing here knows keys. A [`Server`] holds all its state:
//! several may run in one process.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod arriving;
mod attached;
mod auth;
mod body_memory;
mod cors;
mod error;
mod functions;
mod handlers;
mod health;
mod host;
mod ids;
mod inside;
mod json_out;
mod metrics;
mod multipart;
mod outlet;
mod pace;
mod path;
mod preface;
mod query;
mod reply;
mod request;
mod route;
mod router;
mod selecting;
mod server;
mod shared_row;
mod stall;
mod tracked;
mod websocket;

pub use cors::Cors;
pub use error::Failure;
pub use health::StorageHealth;
pub use inside::{Inside, inside};
pub use metrics::FiguresElsewhere;
pub use server::{BindError, Server, ServerOptions};
pub use tracked::{ContinueTrace, REQUEST_TARGET};
