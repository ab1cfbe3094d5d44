//! The cache of databases: its reads, its changes, and its evictions while databases are in use.

use std::collections::HashMap;

use crate::support::{Layer, Store, all_changes, create, get, pages_are_full, put, snapshot, soon};
use flatbed_clock::Clock;
use flatbed_layer::renew::renew;
use flatbed_layer::waits;
use flatbed_layer::{ChangesQuery, LayerOptions, Since, StoredSettings};
use flatbed_testkit::{is_quiet, metadata_version};
use foundationdb::tuple::{Bytes, pack};

/// Databases of the counted tests.
const MANY: usize = 60;

async fn made(layer: &Layer, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|number| format!("db{number}")).collect();
    for name in &names {
        put(&create(layer, name, None).await, "d", None, r#"{"a":1}"#).await.unwrap();
    }
    names
}

#[tokio::test]
async fn a_process_reads_the_root_record_once() {
    let store = Store::new();
    let (layer, other) = (store.layer_alone().await, store.layer_alone().await);
    let names = made(&layer, MANY).await;
    let quiet = metadata_version(&store.fdb).await;
    let mut measured = Vec::new();
    for name in &names {
        let (read, waited) = waits::count(get(&other.database(name), "d")).await;
        assert_eq!(read.unwrap(), r#"{"a":1}"#);
        measured.push(waited);
    }
    if pages_are_full() && is_quiet(&store.fdb, &quiet).await {
        // The record and the next number of a name; the first read also reads the root's record.
        let points: Vec<u64> = measured.iter().map(|waited| waited.point_reads).collect();
        assert_eq!((points[0], points[1..].iter().max(), points[1..].iter().min()), (3, Some(&2), Some(&2)));
        assert!(measured.iter().all(|waited| waited.path.depth() == measured[0].path.depth()));
        assert_eq!(other.counted("flatbed_root_records_read"), 1);
    }
    let misses = other.counted("flatbed_database_cache_misses");
    get(&other.database("db0"), "d").await.unwrap();
    assert_eq!(other.counted("flatbed_database_cache_misses"), misses);
    assert!(other.counted("flatbed_database_cache_hits") > 0);
}

#[tokio::test]
async fn a_change_of_one_database_costs_the_others_no_read() {
    let store = Store::new();
    let (layer, other) = (store.layer_alone().await, store.layer_alone().await);
    let names = made(&layer, MANY).await;
    for name in &names {
        get(&other.database(name), "d").await.unwrap();
    }
    layer.delete_database("db0").await.unwrap();
    layer.database("db1").set_revs_limit(7).await.unwrap();
    let quiet = metadata_version(&store.fdb).await;
    let before = other.counted("flatbed_root_records_read");
    let mut measured = Vec::new();
    for name in &names[2..] {
        let (read, waited) = waits::count(get(&other.database(name), "d")).await;
        assert_eq!(read.unwrap(), r#"{"a":1}"#);
        measured.push(waited);
    }
    let (limit, changed) = waits::count(other.database("db1").revs_limit()).await;
    assert_eq!(limit.unwrap(), 7);
    if pages_are_full() && is_quiet(&store.fdb, &quiet).await {
        // The first reads the root's record, the log and, at the same time, its own record.
        let first = measured[0];
        assert_eq!((first.point_reads, first.range_reads, first.path.depth()), (2, 2, 3), "{first:?}");
        let rest = &measured[1..];
        assert!(rest.iter().all(|waited| (waited.point_reads, waited.range_reads) == (0, 1)), "{rest:?}");
        assert!(rest.iter().all(|waited| waited.path.depth() == 2), "{rest:?}");
        assert_eq!(changed.point_reads, 1, "its own record");
        assert_eq!(other.counted("flatbed_root_records_read") - before, 1);
    }
    assert!(matches!(get(&other.database("db0"), "d").await, Err(flatbed_layer::Error::DatabaseNotFound)));
}

/// After more changes than a process reads from the log, each record is read again.
#[tokio::test]
async fn more_changes_than_the_log_gives_lose_none() {
    let store = Store::new();
    let (layer, other) = (store.layer_alone().await, store.layer_alone().await);
    let names = made(&layer, 3).await;
    for name in &names {
        get(&other.database(name), "d").await.unwrap();
    }
    for number in 0..1_005 {
        layer.database("db0").set_revs_limit(10 + number).await.unwrap();
    }
    layer.database("db1").set_revs_limit(5).await.unwrap();
    for (name, limit) in [("db0", 1_014), ("db1", 5), ("db2", 1_000)] {
        assert_eq!(other.database(name).revs_limit().await.unwrap(), limit, "{name}");
    }
}

/// A process reads the root's record once for each value of `\xff/metadataVersion`.
#[tokio::test]
async fn each_change_of_the_root_record_changes_the_metadata_version() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    create(&layer, "db", None).await;
    let key = pack(&(Bytes::from(store.root.clone()), 0));
    let state = async || {
        let record = snapshot(&store).await.into_iter().find(|(found, _)| *found == key).expect("the record").1;
        (record, metadata_version(&store.fdb).await)
    };
    let set = async |value: Option<&str>| {
        let change = |settings: &mut StoredSettings| {
            let name = ("section".to_owned(), "key".to_owned());
            match value {
                Some(value) => settings.insert(name, value.to_owned()),
                None => settings.remove(&name),
            };
            Ok::<_, std::convert::Infallible>(())
        };
        layer.change_settings(&layer.actor().clone().into(), change).await.unwrap().unwrap();
    };
    let (mut before, mut changes) = (state().await, 0);
    for step in 0..6 {
        match step {
            0 => set(Some("x")).await,
            1 => set(Some("y")).await,
            2 => drop(store.layer_alone().await),
            3 => set(None).await,
            4 => drop(renew(&store.fdb, &store.root, &Clock::system()).await.unwrap()),
            _ => layer.database("db").set_revs_limit(3).await.unwrap(),
        }
        let now = state().await;
        if now.0 != before.0 {
            assert!(now.1 > before.1, "step {step} has changed the root's record alone");
            changes += 1;
        }
        before = now;
    }
    assert_eq!(changes, 3, "the first and the last setting, and a renewal");
}

/// Names that a database gets while it is cached count like those that it had before.
#[tokio::test]
async fn names_of_fields_take_room_from_other_databases() {
    let store = Store::new();
    let options = LayerOptions { database_cache_bytes: 60_000, ..LayerOptions::default() };
    let layer = Layer::open_alone(store.fdb.clone(), LayerOptions { root: store.root.clone(), ..options }, None);
    let layer = layer.await.unwrap();
    made(&layer, 10).await;
    assert_eq!(layer.databases_cached(), 10);
    let members: Vec<String> = (0..300).map(|number| format!(r#""name{number}":1"#)).collect();
    put(&layer.database("db3"), "names", None, &format!("{{{}}}", members.join(","))).await.unwrap();
    let cached = layer.databases_cached();
    assert!((2..10).contains(&cached), "{cached} databases beside 300 names of 120 bytes");
}

/// Random numbers from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The expected state of a database: its limit of revisions and its documents.
type Expected = HashMap<String, (u64, u64)>;

/// Changes databases of its own through two processes, whose caches hold few, and compares what both see.
async fn change_and_compare(layers: [Layer; 2], task: u64) {
    let (mut draws, mut expected) = (Draws(task + 1), Expected::new());
    let mut followers = Vec::new();
    for step in 0..150 {
        let name = format!("t{task}n{}", draws.below(5));
        let (at, elsewhere) = (&layers[draws.below(2) as usize], &layers[draws.below(2) as usize]);
        match (expected.get(&name).copied(), draws.below(10)) {
            (None, _) => {
                create(at, &name, None).await;
                expected.insert(name.clone(), (1_000, 0));
            }
            (Some(_), 0) => {
                at.delete_database(&name).await.unwrap();
                expected.remove(&name);
            }
            (Some((_, documents)), 1..=3) => {
                at.database(&name).set_revs_limit(step + 1).await.unwrap();
                expected.insert(name.clone(), (step + 1, documents));
            }
            (Some((limit, documents)), _) => {
                let body = format!(r#"{{"f{}":{step}}}"#, draws.below(20));
                put(&at.database(&name), &format!("d{documents}"), None, &body).await.unwrap();
                assert_eq!(get(&elsewhere.database(&name), &format!("d{documents}")).await.unwrap(), body);
                expected.insert(name.clone(), (limit, documents + 1));
            }
        }
        let found = elsewhere.database(&name).revs_limit().await.ok();
        assert_eq!(found, expected.get(&name).map(|(limit, _)| *limit), "step {step} of task {task}, {name}");
    }
    for (name, (limit, documents)) in &expected {
        for layer in &layers {
            let db = layer.database(name);
            assert_eq!(db.revs_limit().await.unwrap(), *limit);
            assert_eq!(all_changes(&db).await.len() as u64, *documents);
            let since = Since::Now;
            let mut changes = db.changes(ChangesQuery { since, ..ChangesQuery::default() });
            changes.next_page().await.unwrap();
            followers.push((name.clone(), changes));
        }
    }
    // Followers of both processes see a write at one of them, though other tasks fill the caches.
    for name in expected.keys() {
        put(&layers[0].database(name), "last", None, r#"{"last":1}"#).await.unwrap();
    }
    for (name, mut changes) in followers {
        let id = soon(tokio::spawn(async move {
            loop {
                let page = changes.next_page().await.unwrap();
                if let Some(row) = page.rows.last() {
                    return row.id.to_string();
                }
                changes.wait().await;
            }
        }));
        assert_eq!(id.await.unwrap(), "last", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_that_hold_few_databases_agree_with_their_records() {
    let store = Store::new();
    let options = || LayerOptions { database_cache_bytes: 6 * 5_000, ..LayerOptions::default() };
    let (one, two) = (store.layer_with(options()).await, store.layer_with(options()).await);
    let tasks: Vec<_> = (0..4).map(|task| tokio::spawn(change_and_compare([one.clone(), two.clone()], task))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    for layer in [&one, &two] {
        assert!(layer.counted("flatbed_database_cache_evictions") > 0, "the budget was never exceeded");
    }
}
