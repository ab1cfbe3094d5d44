//! The tests of the HTTP API in one program, because linking takes longer than compiling.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]
#![allow(clippy::duplicate_mod, reason = "`under_faults` has some modules once more")]

mod access;
mod accounts;
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
mod fair_places;
mod feed_parameters;
mod feeds;
mod full_database;
mod functions;
mod further_replicators;
mod gate;
mod hidden_documents;
mod hostile_connections;
mod hostile_revisions;
mod keys;
mod listening;
mod locked;
mod mango;
mod multipart;
mod parameters;
mod partitioned;
mod password_line;
mod proxies;
mod purged_infos;
mod raw_urls;
mod replication;
mod replication_bounds;
mod replication_options;
mod replication_owners;
mod replication_peers;
mod replication_sessions;
mod replication_tls;
mod replicator;
mod revisions;
mod rights;
mod sample_views;
mod selector_indexes;
mod selector_turns;
mod selectors;
mod sessions;
mod slow_followers;
mod stuck_index;
mod support;
mod sync_functions;
mod taken_away;
mod tenant_replies;
mod tokens;
mod two_servers;
mod under_faults;
mod validation;
mod views;
mod websocket;
mod worker;

use support::Store;

/// Returns a store without faults, for modules that also run under faults. Never `None`.
fn store() -> Option<Store> {
    Some(Store::new())
}
