//! The built server under 32 writers and 200 followers, killed and started again in the middle: see `torture`.
//! `FLATBED_TEST_SECONDS` says for how long.

#[path = "../../../couch/tests/torture/mod.rs"]
mod torture;

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::{Server, faults};
use torture::{Random, World, run, seconds};

/// How often the server is killed.
const KILLS: u32 = 4;

fn address(server: &Server) -> SocketAddr {
    server.url.authority().parse().expect("an address")
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing_when_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (faults, length) = (faults(), seconds(3.0));
    let server = Server::start_under(&faults, directory.path());
    let world = World::new(vec![address(&server)], true);
    let killing = async {
        let mut random = Random(u64::from(server.pid()));
        let mut server = server;
        let kills = KILLS.max(length.as_secs() as u32 / 5);
        for _ in 0..kills {
            let pause = length.as_millis() as u64 / u64::from(kills) / 2;
            tokio::time::sleep(Duration::from_millis(pause + random.below(pause))).await;
            server = tokio::task::block_in_place(|| {
                server.kill();
                Server::start_under(&faults, directory.path())
            });
            world.moved(address(&server));
        }
        println!("{kills} kills");
        server
    };
    // The last one lives until everybody has seen the end.
    let mut last = None;
    run(world.clone(), length, async { last = Some(killing.await) }).await;
    assert!(last.expect("a server").stop());
}
