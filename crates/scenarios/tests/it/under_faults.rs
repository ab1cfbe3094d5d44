//! Tests of other modules on a store that injects faults, with the same answers. Skipped without the embedded engine,
//! which injects the faults.

#[path = "replication.rs"]
mod replication;
#[path = "replicator.rs"]
mod replicator;
#[path = "two_servers.rs"]
mod two_servers;

use crate::support::Store;

fn store() -> Option<Store> {
    Store::with_faults()
}
