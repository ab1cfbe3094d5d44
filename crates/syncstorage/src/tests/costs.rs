//! The costs of operations on a cluster: round trips, reads, keys written. They must equal those of `costs.md` beside
//! this file, which `FLATBED_WAITS=update` writes.

use std::sync::Arc;

use fdb_embedded::VirtualClock;

use crate::tests::support::{Storage, UID, change, id, name};
use crate::{Change, ListQuery, Precondition, Sort, Store};

const NONE: Precondition = Precondition::None;
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/costs.md");

/// Returns a runtime that moves the clock before it waits.
fn runtime(clock: &Arc<VirtualClock>) -> tokio::runtime::Runtime {
    let (clock, engine) = (Arc::clone(clock), flatbed_testkit::engine());
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().on_thread_park(move || {
        engine.map(|engine| engine.advance(&clock));
    });
    builder.build().unwrap()
}

struct Table<'a> {
    store: &'a Store,
    clock: &'a VirtualClock,
    rows: String,
}

impl Table<'_> {
    async fn measure<T>(&mut self, what: &str, operation: impl Future<Output = T>) -> T {
        let counts = || {
            ["sync_reads", "sync_range_reads", "sync_keys_written"].map(|name| {
                let families = self.store.metrics();
                let family = families.into_iter().find(|family| family.name == format!("flatbed_{name}")).unwrap();
                match family.samples[0].value {
                    flatbed_metrics::Value::Count(count) => count,
                    _ => panic!("{name} is a counter"),
                }
            })
        };
        let (before, begun) = (counts(), self.clock.now());
        let output = operation.await;
        let (after, took) = (counts(), (self.clock.now() - begun).as_micros() as f64 / 1_000.0);
        let [reads, ranges, written] = [0, 1, 2].map(|at| after[at] - before[at]);
        self.rows.push_str(&format!("| {what} | {took} | {reads} | {ranges} | {written} |\n"));
        output
    }
}

fn records(count: usize, bytes: usize) -> Vec<Change> {
    (0..count).map(|at| Change { ttl: Some(5_184_000), ..change(&format!("r{at}"), &"x".repeat(bytes)) }).collect()
}

async fn measure(store: &Store, clock: &VirtualClock) -> String {
    // Before all writes: the store's clock stands still.
    let began = store.now().before_seconds(1);
    let mut table = Table { store, clock, rows: String::new() };
    let (meta, history, tabs, bookmarks) = (name("meta"), name("history"), name("tabs"), name("bookmarks"));
    store.put(UID, &meta, change("global", &"x".repeat(500)), NONE).await.unwrap();
    store.post(UID, &history, records(100, 500), NONE).await.unwrap();
    store.put(UID, &history, change("one", "more"), NONE).await.unwrap();
    store.post(UID, &tabs, records(1, 2_000), NONE).await.unwrap();
    let t = &mut table;
    t.measure("GET info/collections", store.info_collections(UID, NONE)).await.unwrap();
    t.measure("GET info/collection_counts", store.collection_counts(UID, NONE)).await.unwrap();
    t.measure("GET meta/global", store.get(UID, &meta, &id("global"), NONE)).await.unwrap();
    t.measure("GET a record that is not there", store.get(UID, &meta, &id("x"), NONE)).await.unwrap_err();
    let newest = ListQuery::default();
    t.measure("GET ids of 101 records", store.list(UID, &history, &newest, NONE)).await.unwrap();
    let full = ListQuery { full: true, ..ListQuery::default() };
    t.measure("GET 101 records of 500 bytes", store.list(UID, &history, &full, NONE)).await.unwrap();
    t.measure("GET tabs of one device, all", store.list(UID, &tabs, &full, NONE)).await.unwrap();
    let newer = ListQuery { newer: Some(began), ..full.clone() };
    t.measure("GET tabs of one device, newer than a time", store.list(UID, &tabs, &newer, NONE)).await.unwrap();
    let by_sort = ListQuery { sort: Sort::Index, ..newer };
    t.measure("GET what is newer, by sortindex", store.list(UID, &tabs, &by_sort, NONE)).await.unwrap();
    let forms = name("forms");
    for from in (0..1_000).step_by(100) {
        let posted = (from..from + 100).map(|at| change(&format!("r{at}"), &"x".repeat(1_000)));
        store.post(UID, &forms, posted.collect(), NONE).await.unwrap();
    }
    let read_all = async {
        let mut list = store.list(UID, &forms, &full, NONE).await.unwrap();
        while list.next().await.unwrap().is_some() {}
    };
    t.measure("GET 1,000 records of 1 kB", read_all).await;
    t.measure("POST of 1 new record", store.post(UID, &bookmarks, vec![change("a", "1")], NONE)).await.unwrap();
    t.measure("POST of 1 record again", store.post(UID, &tabs, records(1, 2_000), NONE)).await.unwrap();
    t.measure("POST of 10 records of 500 bytes again", store.post(UID, &history, records(10, 500), NONE))
        .await
        .unwrap();
    t.measure("PUT of 1 record of 100 kB", store.put(UID, &meta, change("large", &"x".repeat(100_000)), NONE))
        .await
        .unwrap();
    t.measure("PUT of 1 record of 2.6 MB", store.put(UID, &meta, change("huge", &"x".repeat(2_600_000)), NONE))
        .await
        .unwrap();
    t.measure("GET of 1 record of 100 kB", store.get(UID, &meta, &id("large"), NONE)).await.unwrap();
    t.measure("DELETE of 1 record", store.delete_record(UID, &meta, &id("large"), NONE)).await.unwrap();
    let staged =
        t.measure("POST that begins a batch, 100 records", store.begin_batch(UID, &history, records(100, 500), NONE));
    let batch = staged.await.unwrap().batch;
    let more: Vec<Change> = (0..100).map(|at| change(&format!("s{at}"), &"x".repeat(500))).collect();
    t.measure("POST that adds 100 records", store.append_batch(UID, &history, batch, more, NONE)).await.unwrap();
    t.measure("POST that commits a batch", store.commit_batch(UID, &history, batch, Vec::new(), NONE)).await.unwrap();
    t.measure("GET of a record below a batch", store.get(UID, &history, &id("r1"), NONE)).await.unwrap();
    t.measure("GET ids of 200 records, a batch over them", store.list(UID, &history, &newest, NONE)).await.unwrap();
    t.measure("GET info/collections, a batch over one", store.info_collections(UID, NONE)).await.unwrap();
    t.measure("folding 200 records", store.inner.fold_all(UID, &history)).await.unwrap();
    t.measure("DELETE of a collection", store.delete_collection(UID, &history, NONE)).await.unwrap();
    t.measure("DELETE of all", store.delete_all(UID, NONE)).await.unwrap();
    t.measure("a look at what is due, of nothing", store.inner.look_at_due()).await.unwrap();
    table.rows
}

#[test]
fn operations_cost_what_the_table_says() {
    let clock = Arc::<VirtualClock>::default();
    let Some(storage) = Storage::simulated(&clock) else { return };
    let rows = runtime(&clock).block_on(async {
        let store = storage.store().await;
        measure(&store, &clock).await
    });
    let head = "| operation | ms | reads of a key | of a range | keys written |\n|---|---:|---:|---:|---:|\n";
    let measured = format!("{head}{rows}");
    if std::env::var("FLATBED_WAITS").is_ok_and(|mode| mode == "update") {
        std::fs::write(TABLE, measured).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(TABLE).unwrap();
    assert_eq!(expected, measured, "where that is meant, FLATBED_WAITS=update writes the table");
}
