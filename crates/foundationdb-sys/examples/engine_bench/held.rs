//! The growth of the data file while transactions keep old states readable and writers continue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foundationdb::Database;
use futures::executor::block_on;

use crate::commits::{KeyPlacement, numbers};
use crate::report::{Row, megabytes, per_second};
use crate::setup::{Bench, Fresh, Random, key, value};

const KEYS: u64 = 100_000;
const WRITERS: u64 = 8;
/// A constant rate, so that the growth of each step can be compared with the previous one.
const COMMITS_PER_SECOND: u32 = 1_000;
/// The longest life of a read version, and the interval between two measurements of the file.
const STEP: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq)]
enum Readers {
    None,
    /// One transaction, open for its five seconds.
    One,
    /// One after the other, each open for its five seconds.
    Always,
    /// None, but each writer takes its read version, so that all states stay readable for five seconds.
    Versions,
}

pub fn run(bench: &Bench) -> Vec<Row> {
    let kinds = [
        ("held.none", "no reader", Readers::None),
        ("held.one", "one transaction reads for its 5 s", Readers::One),
        ("held.always", "one transaction after the other reads for its 5 s", Readers::Always),
        ("held.versions", "every writer calls get_read_version", Readers::Versions),
    ];
    let kinds = kinds.into_iter().filter(|(name, ..)| bench.settings.wants(name));
    kinds.map(|(name, what, readers)| row(bench, name, what, readers)).collect()
}

/// Commits at a constant rate until `deadline`. Returns the number of commits.
async fn write(database: Arc<Database>, seed: u64, asks_version: bool, deadline: Instant) -> u64 {
    let (mut random, mut count) = (Random(seed), 0);
    let mut pace = tokio::time::interval(Duration::from_secs(WRITERS) / COMMITS_PER_SECOND);
    while Instant::now() < deadline {
        pace.tick().await;
        let trx = database.create_trx().expect("a transaction");
        if asks_version {
            trx.get_read_version().await.expect("a version");
        }
        for number in numbers(&mut random, &(0..KEYS), KeyPlacement::Together) {
            trx.set(&key(number), &value(random.next()));
        }
        trx.commit().await.expect("a commit");
        count += 1;
    }
    count
}

fn row(bench: &Bench, name: &str, what: &str, readers: Readers) -> Row {
    let fresh = Fresh::open(bench, name, KEYS);
    let steps = if bench.settings.round < Duration::from_secs(1) { 3 } else { 6 };
    let started = Instant::now();
    let deadline = started + STEP * steps;
    let spawn = |writer: u64| {
        let database = Arc::clone(&fresh.database);
        bench.runtime.spawn(write(database, writer << 32, readers == Readers::Versions, deadline))
    };
    let writers: Vec<_> = (0..WRITERS).map(spawn).collect();
    let mut sizes = vec![fresh.file_bytes()];
    for step in 1..=steps {
        let reads = readers == Readers::Always || (readers == Readers::One && step == 1);
        let trx = fresh.database.create_trx().expect("a transaction");
        if reads {
            block_on(trx.get(&key(0), true)).expect("a read");
        }
        std::thread::sleep((started + STEP * step).saturating_duration_since(Instant::now()));
        sizes.push(fresh.file_bytes());
    }
    let count: u64 = writers.into_iter().map(|writer| block_on(writer).expect("no panic")).sum();
    let rate = count as f64 / started.elapsed().as_secs_f64();
    let (last, before) = (sizes[sizes.len() - 1] as f64, sizes[sizes.len() - 2] as f64);
    let texts: Vec<_> = sizes.iter().map(|&bytes| megabytes(bytes as f64)).collect();
    Row::new(format!("data file every 5 s, {} of 10 keys; {what}", per_second(rate)))
        .engine(texts.join(", "))
        .aim("no growth in the last 5 s (5 %)", Some(last <= before * 1.05))
}
