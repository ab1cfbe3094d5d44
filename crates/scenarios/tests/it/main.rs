//! The tests of whole servers in one program, because linking takes longer than compiling. The tortures are a program of
//! their own, because they run one at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]
#![allow(clippy::duplicate_mod, reason = "`under_faults` has some modules once more")]

mod accounts;
mod fair_places;
mod further_replicators;
mod hostile_connections;
mod listening;
mod locked;
mod per_user;
mod replication;
mod replication_bounds;
mod replication_options;
mod replication_owners;
mod replication_peers;
mod replication_sessions;
mod replication_tls;
mod replicator;
mod slow_followers;
mod two_servers;
mod under_faults;
mod worker;

use flatbed_scenarios as support;
use support::Store;

/// Returns a store without faults, for modules that also run under faults. Never `None`.
fn store() -> Option<Store> {
    Some(Store::new())
}
