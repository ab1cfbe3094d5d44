//! Two complete servers on one store under 32 writers and 200 followers: see `torture`. `FLATBED_TEST_SECONDS` says for how
//! long.
//!
//! A program of its own: both ends of its connections are in this process, with others beside them more than the 1,024
//! descriptors that a process often may have.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

#[path = "it/support.rs"]
#[allow(dead_code, reason = "the tests of `it` use the rest")]
mod support;
mod torture;

use crate::support::ServerOptions;
use support::Store;
use tokio::sync::Mutex;
use torture::{World, run, seconds};

/// One at a time, for the descriptors' sake.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing() {
    torture(Store::new(), World::new).await;
}

/// Each server writes to a bucket of its own, mostly.
#[tokio::test(flavor = "multi_thread")]
async fn followers_of_databases_with_shards_lose_nothing() {
    torture(Store::new(), World::sharded).await;
    let Some(store) = Store::with_faults() else { return };
    torture(store, World::sharded).await;
}

/// Late and spurious watches, 1007, 1020, 1021.
#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing_under_faults() {
    let Some(store) = Store::with_faults() else { return };
    torture(store, World::new).await;
}

async fn torture(store: Store, world: fn(Vec<std::net::SocketAddr>, bool) -> std::sync::Arc<World>) {
    let _alone = TURN.lock().await;
    let (one, two) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    let world = world(vec![one.address, two.address], false);
    let length = seconds(2.0);
    let mut three = None;
    let meanwhile = async {
        tokio::time::sleep(length / 2).await;
        let late = store.serve(ServerOptions::default()).await;
        world.came(late.address);
        three = Some(late);
    };
    run(world.clone(), length, meanwhile).await;
    three.expect("a server").stop().await;
    two.stop().await;
    one.stop().await;
}
