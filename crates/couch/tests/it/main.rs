//! The tests of the HTTP API in one program, because linking takes longer than compiling. `crates/scenarios` has the
//! tests of several servers, jobs and hostile clients.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]
#![allow(clippy::duplicate_mod, reason = "`under_faults` has some modules once more")]

mod access;
mod answering;
mod any_requests;
mod attachments;
mod bounded_requests;
mod clients;
mod config;
mod console;
mod couchdb_sessions;
mod db_updates;
mod documents;
mod ended;
mod feed_parameters;
mod feeds;
mod full_database;
mod functions;
mod gate;
mod half_closed;
mod hidden_documents;
mod hostile_revisions;
mod keys;
mod mango;
mod multipart;
mod parameters;
mod partitioned;
mod password_line;
mod proxies;
mod purged_infos;
mod raw_urls;
mod revisions;
mod rights;
mod sample_views;
mod selector_indexes;
mod selector_turns;
mod selectors;
mod sessions;
mod settings_page;
mod setup_tools;
mod stuck_index;
mod sync_functions;
mod taken_away;
mod tenant_replies;
mod tokens;
mod under_faults;
mod validation;
mod views;
mod websocket;

use flatbed_scenarios as support;
use support::{Running, Store};

/// Returns a store without faults, for modules that also run under faults. Never `None`.
fn store() -> Option<Store> {
    Some(Store::new())
}

/// Returns a server without faults, with the database `db`. Never `None`.
async fn serve_database() -> Option<Running> {
    Some(store()?.serve_database().await)
}
