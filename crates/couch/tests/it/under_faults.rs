//! Tests of other modules once more, on a store that injects faults: clients are answered the same. Without the embedded
//! engine, which injects them, they are skipped.

#[path = "answering.rs"]
mod answering;
#[path = "db_updates.rs"]
mod db_updates;
#[path = "documents.rs"]
mod documents;
#[path = "feeds.rs"]
mod feeds;
#[path = "functions.rs"]
mod functions;
#[path = "mango.rs"]
mod mango;
#[path = "partitioned.rs"]
mod partitioned;
#[path = "replication.rs"]
mod replication;
#[path = "replicator.rs"]
mod replicator;
#[path = "two_servers.rs"]
mod two_servers;
#[path = "validation.rs"]
mod validation;
#[path = "views.rs"]
mod views;

use crate::support::Store;

fn store() -> Option<Store> {
    Store::with_faults()
}
