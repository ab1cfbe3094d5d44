//! Bounds on the replies of a cluster that reads of a view and `_find` wait for. Each tree draws the cuts of its rows
//! into nodes, and a part of a level may exceed one read. So the numbers vary, and each operation is measured at many
//! positions of a view.

use std::sync::Arc;

use crate::support::{Layer, Store, create, put};
use crate::waits::{bulk_from, runtime};
use fdb_embedded::VirtualClock;
use flatbed_layer::json::{Limits, Value, parse};
use flatbed_layer::waits::{self, Waits};
use flatbed_layer::{
    BackgroundOptions, Database, FindOptions, FunctionFailure, GroupFunctions, GroupSource, Grouping, MapOutcome,
    ReduceQuery, ReduceResults, Reduction, Select, ViewBounds, ViewFunctions, ViewQuery, ViewRange, ViewUpdate,
};
use flatbed_testkit::engine;
use futures_util::future::{BoxFuture, ready};

/// Each operation, and the limits of the median and the maximum of its waits.
const BOUNDS: [(&str, u64, u64); 7] = [
    ("page of a view", 3, 3),
    ("page of a view from a key", 4, 5),
    ("the same, descending", 4, 5),
    ("reduce of a view", 3, 3),
    ("reduce of a range", 4, 7),
    ("`group_level=1`", 11, 13),
    ("`_find` of 25 by a json index", 3, 3),
];

const DOCUMENTS: u64 = 6_000;

/// Rows of a group of the first level.
const OF_GROUP: u64 = 60;

/// Positions at which each operation is measured.
const PLACES: u64 = 100;

#[test]
fn views_wait_within_their_bounds() {
    let clock = Arc::<VirtualClock>::default();
    let Some(store) = Store::simulated(&clock) else { return };
    let measured = runtime(engine(), &clock).block_on(Box::pin(measure(&store)));
    assert_eq!(BOUNDS.len(), measured.len(), "other operations");
    for ((operation, median_max, longest_max), (name, waits)) in BOUNDS.into_iter().zip(&measured) {
        assert_eq!(operation, *name);
        let mut depths: Vec<u64> = waits.iter().map(|waits| waits.path.depth()).collect();
        depths.sort_unstable();
        let keys = waits.iter().map(|waits| waits.keys_read).sum::<u64>() / waits.len() as u64;
        let (median, longest) = (depths[depths.len() / 2], depths[depths.len() - 1]);
        println!("{name}: {median} waits, {longest} at most, {keys} keys");
        let bounded = median <= median_max && longest <= longest_max;
        assert!(bounded, "{name}: {depths:?}, and the bounds are {median_max} and {longest_max}");
    }
}

async fn measure(store: &Store) -> Vec<(&'static str, Vec<Waits>)> {
    let layer = store.layer_alone().await;
    let db = created(&layer).await;
    let mut all = Vec::new();
    let mut measured = async |name, at: &mut dyn FnMut(u64) -> Operation| {
        let mut waits = Vec::new();
        for place in 0..PLACES {
            let operation = at(place * (DOCUMENTS - OF_GROUP) / PLACES);
            waits.push(waits::count(operation.run(&db)).await.1);
        }
        all.push((name, waits));
    };
    // The first query of a process fills its caches and is not counted.
    Operation::Page { from: None, descending: false }.run(&db).await;
    measured("page of a view", &mut |_| Operation::Page { from: None, descending: false }).await;
    measured("page of a view from a key", &mut |at| Operation::Page { from: Some(at), descending: false }).await;
    measured("the same, descending", &mut |at| Operation::Page { from: Some(at + OF_GROUP), descending: true }).await;
    measured("reduce of a view", &mut |_| Operation::Reduce { from: None, grouping: Grouping::All }).await;
    measured("reduce of a range", &mut |at| Operation::Reduce { from: Some(at), grouping: Grouping::All }).await;
    measured("`group_level=1`", &mut |_| Operation::Reduce { from: None, grouping: Grouping::Level(1) }).await;
    measured("`_find` of 25 by a json index", &mut |at| Operation::Find { from: at }).await;
    all
}

/// Functions that are never called: the view is one of fields.
pub struct NoFunctions;

impl ViewFunctions for NoFunctions {
    fn load(&self, _: &str, _: &GroupSource, _: ViewBounds) -> Arc<dyn GroupFunctions> {
        Arc::new(NoFunctions)
    }
}

impl GroupFunctions for NoFunctions {
    fn check(&self) -> BoxFuture<'_, Result<(), FunctionFailure>> {
        Box::pin(ready(Err(FunctionFailure::NotRun)))
    }

    fn map(&self, _: Vec<Vec<u8>>) -> BoxFuture<'_, Result<MapOutcome, FunctionFailure>> {
        Box::pin(ready(Err(FunctionFailure::NotRun)))
    }

    fn reduce<'a>(&'a self, _: &'a [Reduction<'a>]) -> BoxFuture<'a, Result<ReduceResults, FunctionFailure>> {
        Box::pin(ready(Err(FunctionFailure::NotRun)))
    }
}

/// Creates a database with a view and a json index.
async fn created(layer: &Layer) -> Database {
    layer.run_views_by(Arc::new(NoFunctions));
    let db = create(layer, "views", None).await;
    let view = |fields: &str| format!(r#"{{"map":{{"fields":{fields}}},"reduce":"_count","options":{{"def":{{}}}}}}"#);
    let design = |name: &str, fields: &str| format!(r#"{{"language":"query","views":{{"{name}":{}}}}}"#, view(fields));
    for first in (0..DOCUMENTS).step_by(500) {
        let body = |n: u64| format!(r#"{{"g":{},"n":{n},"text":"{}"}}"#, n / OF_GROUP, "x".repeat(50));
        bulk_from(&db, first as usize, &(first..first + 500).map(body).collect::<Vec<_>>(), None).await;
    }
    put(&db, "_design/v", None, &design("v", r#"{"g":"asc","n":"asc"}"#)).await.unwrap();
    put(&db, "_design/i", None, &design("i", r#"{"n":"asc"}"#)).await.unwrap();
    let background = layer.background(BackgroundOptions::default());
    while db.json_indexes().await.unwrap().readable().len() < 3 {
        background.round().await.unwrap();
    }
    // Built now.
    db.view("_design/v", "v", ViewUpdate::True).await.unwrap().rows(ViewQuery::default()).next_page().await.unwrap();
    db
}

enum Operation {
    /// 20 rows.
    Page {
        from: Option<u64>,
        descending: bool,
    },
    /// The rows from one on, up to the fifth last.
    Reduce {
        from: Option<u64>,
        grouping: Grouping,
    },
    Find {
        from: u64,
    },
}

impl Operation {
    async fn run(self, db: &Database) {
        let view = || db.view_known("_design/v", "v", ViewUpdate::True).expect("it is known");
        match self {
            Operation::Page { from, descending } => {
                let range = ViewRange { start: from.map(key), ..ViewRange::default() };
                let query =
                    ViewQuery { select: Select::Range(range), limit: Some(20), descending, ..ViewQuery::default() };
                let page = view().rows(query).next_page().await.unwrap().unwrap();
                assert_eq!((page.rows.len(), page.total_rows), (20, DOCUMENTS));
                let before = if descending { from.map(|from| DOCUMENTS - 1 - from) } else { from };
                assert_eq!(page.before, before.unwrap_or_default());
            }
            Operation::Reduce { from, grouping } => {
                let end = from.map(|_| key(DOCUMENTS - 5));
                let select = Select::Range(ViewRange { start: from.map(key), end, ..ViewRange::default() });
                let query = ReduceQuery { select, grouping, ..ReduceQuery::default() };
                let page = view().reduce(query).next_page().await.unwrap().unwrap();
                let rows: u64 = page.rows.iter().map(|row| number(row.value.as_ref().unwrap())).sum();
                assert_eq!(rows, from.map_or(DOCUMENTS, |from| DOCUMENTS - 4 - from));
                let groups = if grouping == Grouping::All { 1 } else { DOCUMENTS / OF_GROUP };
                assert_eq!(page.rows.len() as u64, groups);
            }
            Operation::Find { from } => {
                let request = format!(r#"{{"selector":{{"n":{{"$gte":{from}}}}}}}"#);
                let request = parse(request.as_bytes(), &Limits::default()).unwrap();
                let find = flatbed_mango::Find::parse(&request, None, &|| false).unwrap();
                let indexes = db.json_indexes_known().unwrap();
                let plan = indexes.plan("views", &find).unwrap();
                let options = FindOptions { limit: 25, ..FindOptions::default() };
                let page = db.find(&indexes, &plan, options).next_page().await.unwrap().unwrap();
                assert_eq!(page.len(), 25);
            }
        }
    }
}

fn key(n: u64) -> Value<'static> {
    parse(format!("[{},{n}]", n / OF_GROUP).as_bytes(), &Limits::default()).unwrap().into_owned()
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}
