//! Tests of other modules on a store that injects faults, with the same answers. Skipped without the embedded engine,
//! which injects the faults.

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
#[path = "validation.rs"]
mod validation;
#[path = "views.rs"]
mod views;

use crate::support::{Running, Store};

fn store() -> Option<Store> {
    Store::with_faults()
}

async fn serve_database() -> Option<Running> {
    Some(store()?.serve_database().await)
}
