//! Two complete servers on one store under 32 writers and 200 followers: see `torture`. `FLATBED_TEST_SECONDS` says for how
//! long.

mod support;
mod torture;

use flatbed_http::ServerOptions;
use support::Store;
use torture::{World, run, seconds};

#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_nothing() {
    let store = Store::new();
    let (one, two) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    let world = World::new(vec![one.address, two.address], false);
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
