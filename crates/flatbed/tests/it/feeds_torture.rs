//! The built server under writers and followers, killed and restarted meanwhile: see `torture`. `FLATBED_TEST_SECONDS`
//! is the duration.

#[path = "../../../scenarios/tests/torture/mod.rs"]
mod torture;

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::{Server, check, counters, faults, flatbed, has_engine, storage};
use flatbed_testkit::{Random, length, pass, seed, until};
use torture::{Plan, World, run};

const KILLS: u32 = 4;

fn address(server: &Server) -> SocketAddr {
    server.url.authority().parse().expect("an address")
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing_when_the_server_is_killed() {
    torture(&[], Plan { may_break: true, ..Plan::DEFAULT }).await;
}

/// With shards, on an engine with a cluster's latencies.
#[tokio::test(flavor = "multi_thread")]
async fn nor_on_what_is_like_a_cluster() {
    if !has_engine() {
        return;
    }
    let model = [("FLATBED_FDB_LATENCY_US", "1000,500,2000"), ("FLATBED_FDB_SERVER", "1")];
    let plan = Plan { created_with: "?shards=4", may_break: true, followers: 80, ..Plan::DEFAULT };
    torture(&model, plan).await;
}

async fn torture(environment: &[(&str, &str)], plan: Plan) {
    let directory = tempfile::tempdir().unwrap();
    let (faults, length) = (faults(), length(3.0));
    let start = || {
        let storage = storage(directory.path());
        let mut command = flatbed();
        command.envs(faults.iter().map(|faults| ("FLATBED_FDB_BUGGIFY", faults)));
        command.envs(environment.iter().copied());
        Server::start_as(&mut command, &storage.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let server = start();
    let world = World::new(vec![address(&server)], plan);
    let killing = async {
        let mut random = Random(seed(1));
        let mut server = server;
        let mut joint = 0.0;
        let kills = KILLS.max(length.as_secs() as u32 / 5);
        for _ in 0..kills {
            let pause = length.as_millis() as u64 / u64::from(kills) / 2;
            pass(Duration::from_millis(pause + random.below(pause.max(1)))).await;
            let joined = async || counters(&server, "flatbed_joint_commits").await;
            if !environment.is_empty() {
                until("documents are committed together", async || joint + joined().await > 0.0).await;
            }
            joint += joined().await;
            server = tokio::task::block_in_place(|| {
                server.kill();
                start()
            });
            world.moved(address(&server));
        }
        println!("{kills} kills, {joint} joint commits before them");
        server
    };
    // The last server lives until all followers have seen the end.
    let mut last = None;
    run(world.clone(), length, async { last = Some(killing.await) }).await;
    assert!(last.expect("a server").stop());
    for database in [plan.name.to_owned(), format!("quiet-{}", plan.name)] {
        let check = check(&database, directory.path());
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }
}
