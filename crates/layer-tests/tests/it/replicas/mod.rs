//! Many clients edit and delete leaves of the same documents while replication adds conflicts, under faults. Then the
//! raw keys are checked, no acknowledged edit is missing, and a replica is equal leaf for leaf.

mod model;
mod replica;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::model::Model;
use self::replica::{assert_equal, copy, everything};
use self::work::Worker;
use crate::support::{Layer, Random, Store, assert_clean};
use flatbed_clock::Clock;
use flatbed_layer::renew::renew;
use flatbed_layer::{CreateOptions, Database, LayerOptions};
use flatbed_testkit::{Faults, PATIENCE, number, until};
use foundationdb_sys::backend::embedded;

/// Number of concurrent clients.
const WORKERS: u64 = 64;

struct Scenario {
    seed: u64,
    probability: f64,
    operations: u64,
    /// Servers, and the transactions of single writes that each of them runs at once.
    servers: usize,
    single_writes_at_once: Option<usize>,
}

/// Counts of events while the clients work.
#[derive(Debug, Default)]
struct Counts {
    joint_commits: u64,
    joint_unknown_results: u64,
    unknown_results: u64,
    conflicts: u64,
}

impl Counts {
    fn of(layers: &[Layer]) -> Counts {
        let metrics: Vec<_> = layers.iter().flat_map(|layer| layer.metrics()).collect();
        let count = |name: &str| flatbed_metrics::total(&metrics, &format!("flatbed_{name}"));
        Counts {
            joint_commits: count("joint_commits"),
            joint_unknown_results: count("joint_unknown_results"),
            unknown_results: count("unknown_results"),
            conflicts: count("conflicts"),
        }
    }

    fn add(&mut self, more: Counts) {
        self.joint_commits += more.joint_commits;
        self.joint_unknown_results += more.joint_unknown_results;
        self.unknown_results += more.unknown_results;
        self.conflicts += more.conflicts;
    }

    fn are_all_met(&self) -> bool {
        let Counts { joint_commits, joint_unknown_results, unknown_results, conflicts } = *self;
        [joint_commits, joint_unknown_results, unknown_results, conflicts].iter().all(|count| *count > 0)
    }
}

async fn quiet(layers: &[Layer], db: &Database) {
    for layer in layers {
        let db = layer.database(db.name());
        until("it is compacted", async || !db.info().await.expect("info").is_compacting).await;
    }
}

impl Scenario {
    async fn run(&self, store: &Store) -> Counts {
        let mut random = Random(self.seed);
        let run_bytes = [None, Some(0), Some(300)][random.below(3) as usize];
        let revs_limits = match random.below(3) {
            0 => vec![1_000],
            1 => vec![1_000, 30, 200],
            _ => vec![1_000, 8, 3],
        };
        let leaves_only = random.below(4) == 0;
        let (seed, probability) = (self.seed, self.probability);
        println!(
            "probability {probability:.3}, seed {seed}: run_bytes {run_bytes:?}, limits {revs_limits:?}, {leaves_only}"
        );
        let mut layers = Vec::new();
        for _ in 0..self.servers {
            let single_writes_at_once = self.single_writes_at_once;
            layers.push(store.layer_with(LayerOptions { single_writes_at_once, ..LayerOptions::default() }).await);
        }
        let options = CreateOptions { run_bytes, leaves_only, ..CreateOptions::default() };
        layers[0].create_database("db", &options).await.expect("created");
        let db = layers[0].database("db");
        let model = Model::default();
        let next = Arc::default();
        let began = Instant::now();
        // A renewal in between: the layers continue with their caches.
        let is_renewed = random.below(2) == 0;
        for part in 0..1 + u64::from(is_renewed) {
            if part > 0 {
                renew(&store.fdb, &store.root, &Clock::system()).await.expect("renewed");
                // An upload that began with a cached instance would be refused once.
                for layer in &layers {
                    layer.database("db").exists().await.expect("it is there");
                }
            }
            let workers: Vec<_> = (0..WORKERS)
                .map(|number| {
                    let layer = layers[number as usize % layers.len()].clone();
                    let worker = Worker {
                        db: layer.database("db"),
                        layer,
                        random: Random(seed.wrapping_mul(1_000).wrapping_add(part * WORKERS + number)),
                        model: model.clone(),
                        number,
                        revs_limits: revs_limits.clone(),
                        next: Arc::clone(&next),
                    };
                    tokio::spawn(worker.run(self.operations / (1 + u64::from(is_renewed))))
                })
                .collect();
            for worker in workers {
                worker.await.expect("a client");
            }
            quiet(&layers, &db).await;
        }
        let worked = began.elapsed();
        let counts = Counts::of(&layers);
        assert_clean(&layers[0], &db).await;
        let limit = db.revs_limit().await.expect("read");
        let found = everything(&db).await;
        for (id, known) in model.lock().iter_mut() {
            let leaves = found.get(id).map(Vec::as_slice).unwrap_or_default();
            leaves.iter().for_each(|leaf| known.look_at(id, leaf));
            known.account(id, leaves, revs_limits.iter().copied().min().expect("one"));
        }
        let options = CreateOptions { leaves_only: random.below(2) == 0, ..CreateOptions::default() };
        layers[0].create_database("copy", &options).await.expect("created");
        let targets: Vec<_> = layers.iter().map(|layer| layer.database("copy")).collect();
        targets[0].set_revs_limit(limit).await.expect("set");
        copy(&found, &targets, seed).await;
        assert_clean(&layers[0], &targets[0]).await;
        let copied = everything(&targets[1]).await;
        assert_equal(&found, &copied, revs_limits.len() == 1);
        let leaves: usize = found.values().map(Vec::len).sum();
        println!(
            "  {} documents, {leaves} leaves; worked {worked:?} of {:?}; {counts:?}",
            found.len(),
            began.elapsed()
        );
        counts
    }
}

/// `FLATBED_TEST_SECONDS=N` runs for that long; `FLATBED_TEST_FAULTS=PROBABILITY,SEED` begins with another seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_of_what_many_clients_wrote_are_equal() {
    if embedded().is_none() {
        // A cluster has no injected faults.
        let scenario = Scenario { seed: 1, probability: 0.0, operations: 6, servers: 2, single_writes_at_once: None };
        scenario.run(&Store::new()).await;
        return;
    }
    let (given, seconds): (_, Option<u64>) = (Faults::given(), number("FLATBED_TEST_SECONDS"));
    let (began, mut done) = (Instant::now(), 0);
    let first = given.map_or(1, |(_, seed)| seed);
    loop {
        let seed = first + done;
        let probability = given.map_or([0.2, 0.03, 0.1][seed as usize % 3], |(probability, _)| probability);
        let operations = if seconds.is_some() { 10 + 10 * (seed % 4) } else { 6 };
        let Some(store) = Store::with_faults(probability, seed) else { return };
        let store = if seed.is_multiple_of(2) { store.sharded(4) } else { store };
        Scenario { seed, probability, operations, servers: 2, single_writes_at_once: None }.run(&store).await;
        done += 1;
        if seconds.map_or(done >= 2, |seconds| began.elapsed() > Duration::from_secs(seconds)) {
            return;
        }
    }
}

/// Everything together: three servers, each of which writes to another bucket; group commit; a cluster's latencies with
/// one storage server; faults. `FLATBED_TEST_SECONDS` as above, and the seed of `FLATBED_TEST_FAULTS`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_of_what_came_by_three_servers_on_what_is_like_a_cluster_are_equal() {
    let (given, seconds): (_, Option<u64>) = (Faults::given(), number("FLATBED_TEST_SECONDS"));
    let (began, mut counts, mut seed) = (Instant::now(), Counts::default(), given.map_or(1, |(_, seed)| seed));
    let length = Duration::from_secs(seconds.unwrap_or(0));
    // However slow the machine is: until all expected events have occurred.
    while began.elapsed() < length || !counts.are_all_met() {
        let probability = given.map_or(0.1, |(probability, _)| probability);
        let Some(store) = Store::as_a_cluster_with_faults(probability, seed) else { return };
        let operations = if seconds.is_some() { 10 + 10 * (seed % 4) } else { 6 };
        let single_writes_at_once = Some(1 + seed as usize % 3);
        let scenario = Scenario { seed, probability, operations, servers: 3, single_writes_at_once };
        counts.add(scenario.run(&store.sharded(4)).await);
        seed += 1;
        if began.elapsed() > length + PATIENCE {
            panic!("not met: {counts:?}");
        }
    }
    println!("{counts:?}");
}
