//! The heat of keys: how many of all operations write or read one key, or write behind all earlier keys of a range.
//!
//! FoundationDB divides keys among servers by ranges. A key, or a range's moving end, that every operation writes is
//! the work of one server, however many there are. So no key or moving end outside of a single database may receive
//! more than one write in [`SHARE`] operations, and of reads only the key that comes with the read version. Within one
//! database with 16 shards no key may receive more than an eighth of the writes.
//!
//! Definitions, deletions among them, are counted apart from data, since a store has few of them. With
//! `--nocapture` the tests print the ten hottest prefixes of each phase. `FLATBED_TEST_DATABASES` sets the number of
//! databases, as in `make torture`.

mod listed;
mod operations;
mod tally;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::heat::operations::{Family, Heated};
use crate::heat::tally::{Called, HotSpot, Tally};
use crate::support::{Layer, Store, pages_are_full, put};
use crate::view_waits::NoFunctions;
use flatbed_clock::ManualClock;
use flatbed_layer::{BackgroundOptions, CreateOptions, Database, LayerOptions, ViewQuery, ViewUpdate};
use flatbed_testkit::number;
use futures_util::future::join_all;

/// The operations of which one may write a key, or move an end, outside of a single database.
const SHARE: u64 = 1_000;

/// The number of writes of which one key of a database with 16 shards receives at most one.
const SHARE_INSIDE: u64 = 8;

/// The databases of a short run.
const DATABASES: u64 = 1_000;

const SHARDS: u32 = 16;

/// The table of what exceeds its share, with reasons, in Markdown: an expectation as the table of waits. The tests fail
/// if a row is no longer needed.
const EXCEPTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/heat/exceptions.md");

#[tokio::test]
async fn no_key_of_many_databases_is_hot() {
    if !pages_are_full() {
        println!("pages are cut short: reads are not counted");
        return;
    }
    let tally = Tally::default();
    let Some(store) = Store::observed(tally.observer()) else { return };
    let clock = ManualClock::new();
    let layer = store.layer_alone_at(&clock).await;
    layer.run_views_by(Arc::new(NoFunctions));
    let databases = number("FLATBED_TEST_DATABASES").unwrap_or(DATABASES);
    let heated = Heated::new(layer, clock, tally, databases);
    let background = heated.layer.background(BackgroundOptions::default());

    // Opening the store is no operation.
    heated.tally.end("opening", 0);
    heated.run(Family::definitions).await;
    background.round().await.unwrap();
    heated.of_all().await;
    let mut found = vec![("definitions", heated.tally.end("definitions", SHARE))];
    heated.run(Family::writes).await;
    background.round().await.unwrap();
    found.push(("writes", heated.tally.end("writes", SHARE)));
    heated.run(Family::reads).await;
    found.push(("reads", heated.tally.end("reads", SHARE)));

    let called = heated.called.lock().unwrap().clone();
    let missing: Vec<_> = listed::writes().difference(&called).cloned().collect();
    assert!(missing.is_empty(), "public operations that this test does not call, or lists as no writes: {missing:?}");
    check(&found);
}

/// Compares what exceeds its share in some phases with the exceptions of these.
fn check(found: &[(&str, Vec<HotSpot>)]) {
    let table = std::fs::read_to_string(EXCEPTIONS).expect("the table of exceptions");
    let row = |line: &str| line.split('|').skip(1).take(3).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let expected: BTreeSet<Vec<String>> = table.lines().skip(2).filter(|line| line.starts_with('|')).map(row).collect();
    let expected: BTreeSet<Vec<String>> =
        expected.into_iter().filter(|row| found.iter().any(|(phase, _)| *phase == row[0])).collect();
    let (mut hot, mut needed) = (Vec::new(), BTreeSet::new());
    for (phase, spot) in found.iter().flat_map(|(phase, spots)| spots.iter().map(move |spot| (*phase, spot))) {
        let row = [phase, spot.heat.name(), &spot.keys].map(str::to_owned).to_vec();
        if spot.is_hot && !expected.contains(&row) {
            hot.push((phase, spot));
        }
        needed.insert(row);
    }
    let needless: Vec<_> = expected.difference(&needed).collect();
    assert!(hot.is_empty(), "accesses beyond the share, and without an exception in {EXCEPTIONS}: {hot:#?}");
    assert!(needless.is_empty(), "exceptions in {EXCEPTIONS} that are no longer needed: {needless:#?}");
}

#[tokio::test]
async fn no_key_of_a_database_with_shards_is_hot() {
    let tally = Tally::default();
    let Some(store) = Store::observed(tally.observer()) else { return };
    let mut layers = Vec::new();
    for shard in 0..SHARDS {
        let options = LayerOptions { root: store.root.clone(), shard: Some(shard), ..LayerOptions::default() };
        let layer = Layer::open_alone(store.fdb.clone(), options, None).await.unwrap();
        layer.run_views_by(Arc::new(NoFunctions));
        layers.push(layer);
    }
    let options = CreateOptions { shards: Some(SHARDS), ..CreateOptions::default() };
    layers[0].create_database("db", &options).await.unwrap();
    let databases: Vec<Database> = layers.iter().map(|layer| layer.database("db")).collect();
    let view = |name: &str, fields: &str| {
        let view = format!(r#"{{"map":{{"fields":{fields}}},"reduce":"_count","options":{{"def":{{}}}}}}"#);
        format!(r#"{{"language":"query","views":{{"{name}":{view}}}}}"#)
    };
    // Names of fields are known, and the index and the view have rows.
    for number in 0..200 {
        put(&databases[0], &format!("first{number}"), None, &text(number, 0)).await.unwrap();
    }
    put(&databases[0], "_design/v", None, &view("v", r#"{"n":"asc","text":"asc"}"#)).await.unwrap();
    put(&databases[0], "_design/i", None, &view("i", r#"{"n":"asc"}"#)).await.unwrap();
    let background = layers[0].background(BackgroundOptions::default());
    while databases[0].json_indexes().await.unwrap().readable().len() < 3 {
        background.round().await.unwrap();
    }
    read_view(&databases[0]).await;
    for db in &databases {
        db.exists().await.unwrap();
    }
    tally.end_inside("definitions", 0);
    for round in 0..20 {
        let writes = databases.iter().zip(1_u64..).map(|(db, caller)| {
            let tally = &tally;
            Called(
                caller,
                Box::pin(async move {
                    let (id, number) = (format!("d{round}-{caller}"), round * 16 + caller);
                    let rev = put(db, &id, None, &text(number, 1)).await.unwrap();
                    put(db, &id, Some(&rev), &text(number, 2)).await.unwrap();
                    tally.operation();
                    tally.operation();
                }),
            )
        });
        join_all(writes).await;
        if round % 5 == 0 {
            read_view(&databases[round as usize % databases.len()]).await;
        }
    }
    background.round().await.unwrap();
    check(&[("shards", tally.end_inside("writes of one database with 16 shards", SHARE_INSIDE))]);
}

/// A document whose indexed values are spread.
fn text(number: u64, edit: u64) -> String {
    let n = (number * 3 + edit).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    format!(r#"{{"n":{n},"text":"x"}}"#)
}

async fn read_view(db: &Database) {
    let view = db.view("_design/v", "v", ViewUpdate::True).await.unwrap();
    view.rows(ViewQuery::default()).next_page().await.unwrap();
}
