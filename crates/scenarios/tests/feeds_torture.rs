//! Complete servers in this process on one store under writers and followers; see `torture`. `FLATBED_TEST_SECONDS`
//! sets the duration.

#[path = "torture/mod.rs"]
mod torture;

use flatbed_layer::LayerOptions;
use flatbed_layer::check::{check_database, check_namespaces};
use flatbed_testkit::{WaitLoop, length, pass, until};

use crate::TURN;
use crate::support::{ServerOptions, Store};
use torture::{Plan, World, run};

const SHARDED: Plan = Plan { created_with: "?shards=4", ..Plan::DEFAULT };

#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing() {
    torture(Store::new(), Plan::DEFAULT).await;
}

/// Each server writes mostly to a bucket of its own.
#[tokio::test(flavor = "multi_thread")]
async fn followers_of_databases_with_shards_lose_nothing() {
    torture(Store::new(), SHARDED).await;
    let Some(store) = Store::with_faults() else { return };
    torture(store, SHARDED).await;
}

/// Injects late and spurious watches and the errors 1007, 1020 and 1021.
#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing_under_faults() {
    let Some(store) = Store::with_faults() else { return };
    torture(store, Plan::DEFAULT).await;
}

async fn torture(store: Store, plan: Plan) {
    let _alone = TURN.lock().await;
    let (one, two) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    let world = World::new(vec![one.address, two.address], plan);
    let length = length(2.0);
    let mut three = None;
    let meanwhile = async {
        pass(length / 2).await;
        let late = store.serve(ServerOptions::default()).await;
        world.came(late.address);
        three = Some(late);
    };
    run(world.clone(), length, meanwhile).await;
    three.expect("a server").stop().await;
    two.stop().await;
    one.stop().await;
}

/// Combines everything: three servers that write to different buckets; a database with shards and one without; single
/// writes that commit together; a cluster's latencies; a server with the background work of all; faults.
#[tokio::test(flavor = "multi_thread")]
async fn followers_of_three_servers_on_what_is_like_a_cluster_lose_nothing() {
    let Some(store) = Store::as_a_cluster_with_faults() else { return };
    let _alone = TURN.lock().await;
    let (mut layers, mut servers) = (Vec::new(), Vec::new());
    // Limits of concurrent transactions of single writes: the default, 1 and 3.
    for (shard, single_writes_at_once) in [(0, None), (1, Some(1)), (2, Some(3))] {
        let options = LayerOptions { shard: Some(shard), single_writes_at_once, ..LayerOptions::default() };
        let layer = store.layer_with(options).await;
        servers.push(store.serve_on(layer.clone(), ServerOptions::default()).await);
        layers.push(layer);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let plan = Plan { writers: 40, followers: 50, has_functions: true, ..Plan::DEFAULT };
    let plans = [Plan { name: "plain", ..plan }, Plan { name: "sharded", created_with: "?shards=4", ..plan }];
    let counts = || {
        let metrics: Vec<_> = layers.iter().flat_map(|layer| layer.metrics()).collect();
        let count = |name: &str| flatbed_metrics::total(&metrics, &format!("flatbed_{name}"));
        let retries = metrics.iter().filter(|family| family.name == "flatbed_retries");
        [
            ("joint commits", count("joint_commits")),
            ("documents in them", count("joint_documents")),
            ("of them unknown results", count("joint_unknown_results")),
            ("unknown results", count("unknown_results")),
            ("conflicts", count("conflicts")),
            ("reads that came too late", retries.map(|family| family.with("code", "1007")).sum()),
        ]
    };
    // Runs until each of these has occurred, however slow the machine is.
    let met = || async {
        let mut waiting = WaitLoop::begin();
        while counts().iter().any(|(_, count)| *count == 0) {
            waiting.pause(&format!("each is met: {:?}", counts())).await;
        }
    };
    let length = length(3.0);
    let runs = plans.map(|plan| run(World::new(addresses.clone(), plan), length, met()));
    futures_util::future::join_all(runs).await;
    println!("{:?}", counts());
    for plan in plans {
        for name in [plan.name.to_owned(), format!("quiet-{}", plan.name)] {
            let database = layers[0].database(&name);
            until("it is compacted", async || !database.info().await.expect("the database's info").is_compacting).await;
            let report = check_database(&database, |_| {}).await.expect("checked");
            assert!(report.is_clean() && report.sums_compared, "{name}: {report:#?}");
        }
    }
    let report = check_namespaces(&layers[0]).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
    for server in servers {
        server.stop().await;
    }
}
