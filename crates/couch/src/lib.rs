//! CouchDB's HTTP API on the document layer: a [`Surface`](flatbed_http::Surface).
//!
//! This crate parses requests, calls [`flatbed_layer`] in the layer's terms, and writes answers in CouchDB's words.
//! Crates below it do not know these words, and this crate does not know keys. [`Couch`] holds all state, so several
//! surfaces may run in one process.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod credentials;
mod error;
mod handlers;
mod health;
mod ids;
mod metrics;
mod multipart;
mod path;
mod query;
mod reply;
mod request;
mod request_object;
mod response;
mod rewriting;
mod route;
mod router;
mod rows_text;
mod shared_row;
mod shown;
mod state;
mod term;
mod uploading;

use flatbed_service::json_out;

pub use health::StorageHealth;
pub use metrics::MetricSources;
pub use path::Path;
pub use route::Route;
pub use state::{CouchOptions, State as Couch, server_header};

#[cfg(test)]
mod tests {
    /// Log filters select spans of requests and of their transactions by one target.
    #[test]
    fn shell_and_layer_trace_to_one_target() {
        assert_eq!(flatbed_http::TRACE_TARGET, flatbed_layer::TRACE_TARGET);
    }
}
