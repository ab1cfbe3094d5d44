//! Two hundred users with devices at two servers. The servers are killed and restarted, each with a wrong clock, and
//! the storage has faults.
//!
//! One device of each user writes. Every answer is compared with a sequential model of the user's store
//! (`torture/model.rs`): status, body, times, counts. A write without an answer, because the connection broke or the
//! server answered 503, is followed by another write; the times then tell whether it was done once or not at all.
//! Batches of up to 10,000 records, in collections that are not empty, write a number into each record of a group.
//! Other devices read the group all the time. They must never see two numbers, a part of the group, a superseded
//! number, or a time that goes back.
//!
//! `FLATBED_TEST_SECONDS` is the duration, `FLATBED_TEST_SEED` the seed. A seed repeats the choices and not their
//! interleaving.

mod model;
mod reader;
mod world;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use flatbed_syncstorage::Limits;
use flatbed_testkit::{Random, length, number, pass, seed};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::Disk;
use reader::Reader;
use world::World;
use writer::{Generations, POST_RECORDS, Writer};

const USERS: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_models_beside_servers_that_die() {
    torture(Disk::new(), length(4.0), 9_999).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_models_under_faults_and_kills() {
    let Some(disk) = Disk::with_faults() else { return };
    let is_short = number::<f64>("FLATBED_TEST_SECONDS").is_none();
    torture(disk, length(5.0), if is_short { 2_999 } else { 9_999 }).await;
}

/// Returns the records of a user's group, if the user has one. The first user's group is the largest.
fn group_of(uid: u64, largest: u64, random: &mut Random) -> Option<Arc<Generations>> {
    let size = match uid {
        0 => largest,
        1 | 2 => 1_500,
        _ if uid % 10 < 3 => 20 + random.below(150),
        _ => return None,
    };
    Some(Arc::new(Generations { size, begun: 0.into(), acknowledged: 0.into() }))
}

async fn torture(disk: Disk, duration: Duration, largest: u64) {
    let mut random = Random(seed(1));
    let limits = Limits { max_post_records: u32::try_from(POST_RECORDS).unwrap(), ..Limits::default() };
    let (world, mut servers) = World::start(disk, limits, &mut random).await;
    let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
    for uid in 0..USERS {
        let own = |random: &mut Random| Random(random.below(u64::MAX));
        let group = group_of(uid, largest, &mut random);
        // Some write as fast as they can.
        let pause = if uid < 12 { 0 } else { 1_500 };
        let writer = Writer::new(&world, 1_000 + uid, own(&mut random), group.clone());
        writers.spawn(world.torture.part(writer.run(pause)));
        if let Some(group) = group {
            let reader = Reader::new(&world, 1_000 + uid, own(&mut random), group);
            readers.spawn(world.torture.part(reader.run(if uid < 3 { 300 } else { 800 })));
        }
    }
    let end = Instant::now() + duration;
    while Instant::now() < end && !world.torture.is_over() {
        pass(Duration::from_millis(500 + random.below(1_000))).await;
        let at = usize::from(random.one_in(2));
        world.replace(at, &mut servers, &mut random).await;
    }
    world.torture.until_shown(Duration::ZERO).await;
    world.torture.end();
    let mut last = JoinSet::new();
    while let Some(writer) = writers.join_next().await {
        let mut writer = writer.unwrap();
        last.spawn(async move { writer.look_at_all().await });
    }
    while let Some(ended) = readers.join_next().await {
        ended.unwrap();
    }
    while let Some(ended) = last.join_next().await {
        ended.unwrap();
    }
    println!("{:?}", world.torture.counts());
    world.torture.must_have_shown();
    for server in servers {
        server.kill().await;
    }
    let store = world.disk().store(limits).await;
    let checked = store.check().await.unwrap();
    assert_eq!((checked.problems, checked.passed_over), (0, 0), "{:#?}", checked.texts);
    assert!(checked.users >= USERS / 2, "{checked:?}");
}
