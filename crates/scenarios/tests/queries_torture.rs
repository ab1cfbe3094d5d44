//! Views and Mango indexes during writes and changes of definitions, on three servers with injected faults. One server
//! is killed while it builds, and replaced.
//!
//! No query may miss an acknowledged write. At the end all indexes are compared with a computation from the documents.
//! `FLATBED_TEST_SECONDS` sets the duration, `FLATBED_TEST_SEED` the seed.
#[path = "queries_torture/killed.rs"]
mod killed;
#[path = "queries_torture/process.rs"]
mod process;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::TURN;
use crate::support::Store;
use flatbed_client::{Connection, Url};
use flatbed_layer::check::{check_database, check_namespaces};
use flatbed_testkit::{PATIENCE, Random, RunningTime, Torture, WaitLoop, length, seed};
use hyper::Method;
use process::{Mortal, Process};
use serde_json::{Value, json};

const WRITERS: u64 = 16;

/// The number of documents that all writers write.
const HOT: u64 = 50;

/// The number of documents per writer that only it writes.
const OWN: u64 = 8;

/// A server answers 503 after retrying for this long.
const GIVES_UP_AFTER: Duration = Duration::from_secs(30);

/// The counts that must not be 0 for a valid run.
const SHOWN: [&str; 3] = ["writes", "queries", "kills"];

#[tokio::test(flavor = "multi_thread")]
async fn queries_miss_nothing() {
    torture(Store::new(), false).await;
}

/// In a partitioned database each partition is queried.
#[tokio::test(flavor = "multi_thread")]
async fn queries_of_partitions_miss_nothing() {
    torture(Store::new(), true).await;
}

/// Injects late and spurious watches and the errors 1007, 1020 and 1021.
#[tokio::test(flavor = "multi_thread")]
async fn queries_miss_nothing_under_faults() {
    let Some(store) = Store::with_faults() else { return };
    torture(store, false).await;
}

/// Logs internal errors to the output of a failing test.
fn log() {
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let _ = log.with_writer(std::io::stderr).try_init();
}

struct World {
    /// The addresses of running servers.
    servers: Mutex<Vec<SocketAddr>>,
    is_partitioned: bool,
    torture: Torture,
    running: RunningTime,
    seed: u64,
}

impl World {
    /// Returns a document's id; in a partitioned database `of` is its partition.
    fn id(&self, of: &str, rest: u64) -> String {
        format!("{of}{}{rest:02}", if self.is_partitioned { ':' } else { '-' })
    }

    fn base(&self, id: &str) -> String {
        match id.split_once(':') {
            Some((partition, _)) => format!("/db/_partition/{partition}"),
            None => "/db".to_owned(),
        }
    }

    /// Groups documents by the path that queries them together.
    fn asked_together(&self, documents: &[Value]) -> BTreeMap<String, Vec<Value>> {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for document in documents {
            all.entry(self.base(document["_id"].as_str().expect("an id"))).or_default().push(document.clone());
        }
        all
    }

    /// Sends one request to a random server. A read is repeated at another server if the first was killed; the outcome
    /// of a write is unknown then, as after 503.
    async fn call(&self, random: &mut Random, method: Method, path: &str, body: &Value) -> (u16, Value) {
        self.call_on(random, None, method, path, body).await
    }

    /// Sends one request, to a given server if named.
    async fn call_on(
        &self,
        random: &mut Random,
        on: Option<SocketAddr>,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        loop {
            let server = {
                let servers = self.servers.lock().unwrap();
                on.unwrap_or_else(|| servers[random.below(servers.len() as u64) as usize])
            };
            let url = Url::parse(&format!("http://{server}")).expect("a URL");
            let call = async { Connection::open(&url).await?.call(method.clone(), path, body.clone()).await };
            self.torture.count("requests");
            let begun = self.running.begin();
            let answer = tokio::time::timeout(PATIENCE, call).await;
            let lives = self.servers.lock().unwrap().contains(&server);
            match answer.unwrap_or_else(|_| panic!("{method} {path}: no answer")) {
                Ok(answer) => {
                    if answer.status == 503 {
                        self.torture.count(match lives {
                            false => "answered 503 by a server that dies",
                            true if begun.is_held_up(GIVES_UP_AFTER) => "answered 503 on a slow machine",
                            true => "answered 503",
                        });
                    }
                    return (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null));
                }
                Err(error) => {
                    assert!(!lives, "{method} {path}: {error}");
                    self.torture.count("lost with a server");
                    if method != Method::GET && !path.ends_with("/_find") {
                        return (503, Value::Null);
                    }
                }
            }
        }
    }
}

/// Kills one server after the other while it builds, with pauses; the last one lives. The first follows all groups,
/// because it was alone when they were defined; later ones follow a group that is defined through them.
async fn kill_builders(world: Arc<World>, store: Arc<Store>, first: Mortal, pause: Duration) -> Mortal {
    let mut random = Random(world.seed ^ 99);
    let mut mortal = first;
    loop {
        let address = mortal.process().server.address;
        let mut waiting = WaitLoop::begin();
        while !mortal.is_building(&world.torture).await {
            if world.torture.is_over() {
                return mortal;
            }
            waiting.pause("a server that is asked builds").await;
            let map = format!("function(doc) {{ emit(doc.n, {}); }}", random.next());
            let body = json!({ "views": { "v": { "map": map } } });
            define_by(&world, &mut random, Some(address), "_design/mortal", Some(body)).await;
            let path = "/db/_design/mortal/_info";
            assert!(matches!(
                world.call_on(&mut random, Some(address), Method::GET, path, &Value::Null).await.0,
                200 | 503
            ));
        }
        world.servers.lock().unwrap().retain(|server| *server != address);
        drop(mortal);
        world.torture.count("kills");
        mortal = Mortal::start(&store).await;
        world.servers.lock().unwrap().push(mortal.process().server.address);
        world.torture.pass(pause).await;
    }
}

async fn torture(store: Store, is_partitioned: bool) {
    let _alone = TURN.lock().await;
    log();
    let store = Arc::new(store);
    let (seed, length) = (seed(1), length(3.0));
    // Alone at first, so that it follows all groups.
    let mortal = Mortal::start(&store).await;
    let world = Arc::new(World {
        servers: Mutex::new(vec![mortal.process().server.address]),
        is_partitioned,
        torture: Torture::new(SHOWN),
        running: RunningTime::start(),
        seed,
    });
    let torture = &world.torture;
    let mut random = Random(world.seed);
    let database = format!("/db?partitioned={is_partitioned}");
    assert_eq!(world.call(&mut random, Method::PUT, &database, &Value::Null).await.0, 201);
    for design in DESIGNS.iter().filter(|design| design.stays) {
        define(&world, &mut random, design.id, Some((design.body)(0))).await;
    }
    for design in DESIGNS.iter().filter(|design| design.stays) {
        for view in design.views {
            let path = format!("{}/{}/_view/{}", world.base(&world.id("own", 0)), design.id, view.name);
            let (status, answer) = world.call(&mut random, Method::GET, &path, &Value::Null).await;
            assert!(matches!(status, 200 | 503), "{path}: {status} {answer}");
        }
    }
    let processes = [Process::start(&store).await, Process::start(&store).await];
    world.servers.lock().unwrap().extend(processes.iter().map(|process| process.server.address));
    let mut tasks = Vec::new();
    for number in 0..WRITERS {
        tasks.push(tokio::spawn(torture.part(write_hot(world.clone(), number))));
        tasks.push(tokio::spawn(torture.part(write_own(world.clone(), number))));
    }
    tasks.push(tokio::spawn(torture.part(redefine(world.clone()))));
    let killer = kill_builders(world.clone(), store.clone(), mortal, length / 4);
    let killer = tokio::spawn(torture.part(killer));
    torture.until_shown(length).await;
    torture.end();
    for task in tasks {
        task.await.expect("a task is done");
    }
    let mortal = killer.await.expect("the last one lives");
    torture.must_have_shown();
    let documents = documents(&world, &mut random).await;
    for design in DESIGNS {
        define(&world, &mut random, design.id, Some((design.body)(1))).await;
    }
    for design in DESIGNS {
        for view in design.views {
            let total = documents.iter().map(|document| (view.rows)(document).len()).sum();
            for (base, documents) in world.asked_together(&documents) {
                must_equal(&world, &mut random, (&base, design.id), view, (&documents, total)).await;
            }
        }
    }
    for (base, documents) in world.asked_together(&documents) {
        must_find(&world, &mut random, &base, &documents).await;
    }
    println!("{length:?}: {:?}", torture.counts());
    // A run with too many 503 proves nothing.
    let (unavailable, requests) = (torture.counted("answered 503"), torture.counted("requests"));
    assert!(unavailable * 100 <= requests, "more than one of a hundred was answered 503");
    let report = check_database(&processes[0].layer.database("db"), |_| {}).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
    let report = check_namespaces(&processes[0].layer).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
    drop(mortal);
    for process in processes {
        process.stop().await;
    }
}

struct Design {
    id: &'static str,
    /// True if it exists during the whole run.
    stays: bool,
    /// Returns its body for a version number.
    body: fn(u64) -> Value,
    views: &'static [View],
}

/// A view that is checked at the end, with the expected rows of a document.
struct View {
    name: &'static str,
    rows: fn(&Value) -> Vec<(Value, Value)>,
    /// Computes the reduction of rows.
    reduce: Option<fn(&[&Value]) -> Value>,
}

const DESIGNS: &[Design] = &[
    Design {
        id: "_design/stays",
        stays: true,
        body: |_| {
            json!({ "views": {
                "by_id": { "map": "function(doc) { emit(doc._id, doc.n); }" },
                "by_kind": { "map": "function(doc) { emit([doc.kind, doc.n], 1); }", "reduce": "_sum" },
            } })
        },
        views: &[
            View { name: "by_id", rows: |doc| vec![(doc["_id"].clone(), doc["n"].clone())], reduce: None },
            View { name: "by_kind", rows: |doc| vec![(json!([doc["kind"], doc["n"]]), json!(1))], reduce: Some(sum) },
        ],
    },
    Design {
        id: "_design/tags",
        stays: true,
        body: |_| {
            json!({ "views": { "tags": {
                "map": "function(doc) { doc.tags.forEach(function(tag) { emit(tag, doc.n); }); }", "reduce": "_count",
            } } })
        },
        views: &[View {
            name: "tags",
            rows: |doc| {
                let tags = doc["tags"].as_array().expect("tags");
                tags.iter().map(|tag| (tag.clone(), doc["n"].clone())).collect()
            },
            reduce: Some(|values| json!(values.len())),
        }],
    },
    Design {
        id: "_design/comes",
        stays: false,
        body: |_| json!({ "views": { "by_n": { "map": "function(doc) { emit(doc.n, null); }", "reduce": "_count" } } }),
        views: &[View {
            name: "by_n",
            rows: |doc| vec![(doc["n"].clone(), Value::Null)],
            reduce: Some(|values| json!(values.len())),
        }],
    },
    Design {
        id: "_design/changes",
        stays: false,
        body: |number| {
            let map = ["function(doc) { emit(doc.kind, 1); }", "function(doc) { emit(doc.n % 10, 2); }"];
            let reduce = "function(keys, values, rereduce) { return sum(values); }";
            json!({ "views": { "view": { "map": map[number as usize % 2], "reduce": reduce } } })
        },
        views: &[View {
            name: "view",
            rows: |doc| vec![(json!(doc["n"].as_u64().expect("a number") % 10), json!(2))],
            reduce: Some(sum),
        }],
    },
    Design { id: "_design/by-mark", stays: true, body: |_| mango(&["mark"]), views: &[] },
    Design { id: "_design/by-kind", stays: false, body: |_| mango(&["kind", "n"]), views: &[] },
];

fn sum(values: &[&Value]) -> Value {
    json!(values.iter().map(|value| value.as_u64().expect("a number")).sum::<u64>())
}

fn mango(fields: &[&str]) -> Value {
    let names: Vec<Value> = fields.iter().map(|field| json!({ *field: "asc" })).collect();
    let map: serde_json::Map<String, Value> = fields.iter().map(|field| ((*field).to_owned(), json!("asc"))).collect();
    json!({ "language": "query", "views": { "index": {
        "map": { "fields": map, "partial_filter_selector": {} },
        "reduce": "_count",
        "options": { "def": { "fields": names } },
    } } })
}

async fn define(world: &World, random: &mut Random, id: &str, body: Option<Value>) {
    define_by(world, random, None, id, body).await;
}

/// Writes or deletes a design document, through a given server if named.
async fn define_by(world: &World, random: &mut Random, on: Option<SocketAddr>, id: &str, body: Option<Value>) {
    world.torture.count("definitions");
    loop {
        let path = format!("/db/{id}");
        let (status, found) = world.call_on(random, on, Method::GET, &path, &Value::Null).await;
        let rev = (status == 200).then(|| found["_rev"].clone());
        let (status, answer) = match (&body, rev) {
            (Some(body), rev) => {
                let mut body = body.clone();
                if let Some(rev) = rev {
                    body["_rev"] = rev;
                }
                world.call_on(random, on, Method::PUT, &path, &body).await
            }
            (None, Some(rev)) => {
                let path = format!("{path}?rev={}", rev.as_str().expect("a revision"));
                world.call_on(random, on, Method::DELETE, &path, &Value::Null).await
            }
            (None, None) => return,
        };
        match status {
            200..=202 => return,
            // An earlier commit with an unknown result, or faults for half a minute.
            409 | 503 => {}
            _ => panic!("{id}: {status} {answer}"),
        }
    }
}

/// Creates, changes and drops the temporary design documents.
async fn redefine(world: Arc<World>) {
    let mut random = Random(world.seed ^ 77);
    while !world.torture.is_over() {
        let design = random.one_of(DESIGNS);
        if !design.stays {
            let body = random.percent(70).then(|| (design.body)(random.next()));
            define(&world, &mut random, design.id, body).await;
            if random.percent(20) {
                let (status, answer) = world.call(&mut random, Method::POST, "/db/_view_cleanup", &json!({})).await;
                assert!(matches!(status, 202 | 503), "{status} {answer}");
            }
        }
        for view in design.views {
            // Queries of a changing definition are answered, and soon.
            let base = world.base(&world.id("hot1", 1));
            let path = format!("{base}/{}/_view/{}?limit=5&reduce=false", design.id, view.name);
            let (status, answer) = world.call(&mut random, Method::GET, &path, &Value::Null).await;
            assert!(matches!(status, 200 | 404 | 503), "{path}: {status} {answer}");
        }
        world.torture.pass(Duration::from_millis(random.below(300))).await;
    }
}

fn document(random: &mut Random) -> Value {
    let tags: Vec<&str> = ["a", "b", "c", "d"].into_iter().filter(|_| random.percent(40)).collect();
    json!({ "kind": random.below(5), "n": random.below(1_000), "tags": tags, "pad": "x".repeat(random.below(200) as usize) })
}

/// Writes, deletes and purges documents that other writers change too.
async fn write_hot(world: Arc<World>, number: u64) {
    let mut random = Random(world.seed ^ (number << 32));
    while !world.torture.is_over() {
        let hot = random.below(HOT);
        let path = format!("/db/{}", world.id(&format!("hot{}", hot % 7), hot));
        let (_, found) = world.call(&mut random, Method::GET, &path, &Value::Null).await;
        let rev = found["_rev"].as_str().map(str::to_owned);
        let (status, answer) = match (random.below(100), rev) {
            (0..10, Some(rev)) => {
                world.call(&mut random, Method::DELETE, &format!("{path}?rev={rev}"), &Value::Null).await
            }
            (10..15, Some(rev)) => {
                let id = path.trim_start_matches("/db/");
                world.call(&mut random, Method::POST, "/db/_purge", &json!({ id: [rev] })).await
            }
            (15..25, _) => {
                // A new branch, as a replication would add it.
                let mut body = document(&mut random);
                body["_id"] = json!(path.trim_start_matches("/db/"));
                body["_rev"] = json!(format!("1-{:032x}", random.next()));
                let body = json!({ "new_edits": false, "docs": [body] });
                world.call(&mut random, Method::POST, "/db/_bulk_docs", &body).await
            }
            (_, rev) => {
                let mut body = document(&mut random);
                if let Some(rev) = rev {
                    body["_rev"] = json!(rev);
                }
                world.call(&mut random, Method::PUT, &path, &body).await
            }
        };
        match status {
            200..=202 => world.torture.count("writes"),
            404 | 409 | 503 => world.torture.count("refused"),
            _ => panic!("{path}: {status} {answer}"),
        }
    }
}

/// Writes documents of its own and queries them: acknowledged writes are in the view and in the index.
async fn write_own(world: Arc<World>, number: u64) {
    let mut random = Random(world.seed ^ (number << 32) ^ 1);
    // Each document's body and revision; `None` if the last write's outcome is unknown.
    let mut own: BTreeMap<String, Option<(Value, String)>> = BTreeMap::new();
    while !world.torture.is_over() {
        let id = world.id(&format!("own{:02}", number % 5), number * 100 + random.below(OWN));
        let path = format!("/db/{id}");
        let rev = match own.get(&id) {
            Some(Some((_, rev))) => Some(rev.clone()),
            Some(None) => {
                let (status, found) = world.call(&mut random, Method::GET, &path, &Value::Null).await;
                (status == 200).then(|| found["_rev"].as_str().expect("a revision").to_owned())
            }
            None => None,
        };
        let is_deletion = rev.is_some() && random.percent(20);
        let mut body = document(&mut random);
        body["mark"] = json!(format!("{id}-{}", random.next()));
        let (status, answer) = match (&rev, is_deletion) {
            (Some(rev), true) => {
                world.call(&mut random, Method::DELETE, &format!("{path}?rev={rev}"), &Value::Null).await
            }
            (rev, _) => {
                let mut body = body.clone();
                if let Some(rev) = rev {
                    body["_rev"] = json!(rev);
                }
                world.call(&mut random, Method::PUT, &path, &body).await
            }
        };
        match status {
            200..=202 if is_deletion => {
                own.remove(&id);
            }
            200..=202 => {
                own.insert(id.clone(), Some((body, answer["rev"].as_str().expect("a revision").to_owned())));
            }
            409 | 503 => {
                own.insert(id.clone(), None);
                continue;
            }
            _ => panic!("{path}: {status} {answer}"),
        }
        world.torture.count("writes");
        ask(&world, &mut random, &id, own.get(&id).and_then(Option::as_ref).map(|(body, _)| body)).await;
    }
}

/// Queries for a document that was just written or deleted.
async fn ask(world: &World, random: &mut Random, id: &str, body: Option<&Value>) {
    world.torture.count("queries");
    if random.percent(50) {
        let path = format!("{}/_design/stays/_view/by_id?key=%22{id}%22", world.base(id));
        let (status, answer) = world.call(random, Method::GET, &path, &Value::Null).await;
        if status == 503 {
            return;
        }
        let rows = match body {
            Some(body) => json!([{ "id": id, "key": id, "value": body["n"] }]),
            None => json!([]),
        };
        assert!(status == 200 && answer["rows"] == rows, "{path}: {status} {answer}, and not {rows}");
        return;
    }
    let Some(body) = body else { return };
    let asked = json!({ "selector": { "mark": body["mark"] }, "fields": ["_id", "n"], "use_index": "_design/by-mark" });
    let (status, answer) = world.call(random, Method::POST, &format!("{}/_find", world.base(id)), &asked).await;
    if status == 503 {
        return;
    }
    let found = json!([{ "_id": id, "n": body["n"] }]);
    assert!(status == 200 && answer["docs"] == found, "{asked}: {status} {answer}, and not {found}");
}

async fn documents(world: &World, random: &mut Random) -> Vec<Value> {
    let (status, all) = world.call(random, Method::GET, "/db/_all_docs?include_docs=true", &Value::Null).await;
    assert_eq!(status, 200, "{all}");
    let rows = all["rows"].as_array().expect("rows").iter().map(|row| row["doc"].clone());
    rows.filter(|doc| !doc["_id"].as_str().expect("an id").starts_with("_design/")).collect()
}

/// Returns the sort position of a key: numbers, lower-case texts, or arrays of numbers.
fn place(key: &Value) -> (u64, u64, String) {
    match key {
        Value::Array(items) => {
            (items[0].as_u64().expect("a number"), items[1].as_u64().expect("a number"), String::new())
        }
        Value::Number(number) => (number.as_u64().expect("a number"), 0, String::new()),
        other => (0, 0, other.as_str().expect("a text").to_owned()),
    }
}

/// Asserts that a view's answers equal the rows of its documents. `total`: its rows, including those of other
/// partitions.
async fn must_equal(
    world: &World,
    random: &mut Random,
    (base, design): (&str, &str),
    view: &View,
    (documents, total): (&[Value], usize),
) {
    let mut rows: Vec<(Value, Value, Value)> = Vec::new();
    for document in documents {
        rows.extend((view.rows)(document).into_iter().map(|(key, value)| (key, document["_id"].clone(), value)));
    }
    rows.sort_by_key(|(key, id, _)| (place(key), id.as_str().expect("an id").to_owned()));
    let shown: Vec<Value> =
        rows.iter().map(|(key, id, value)| json!({ "id": id, "key": key, "value": value })).collect();
    let base = format!("{base}/{design}/_view/{}", view.name);
    let mut get = async |query: &str| {
        let path = format!("{base}?{query}");
        let (status, answer) = world.call(random, Method::GET, &path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    let all = get("reduce=false").await;
    assert_eq!(all["total_rows"], json!(total), "{base}");
    assert_eq!(all["rows"], json!(shown), "{base}");
    let backwards = get("reduce=false&descending=true").await;
    assert_eq!(backwards["rows"].as_array().expect("rows").len(), shown.len(), "{base}");
    let skipped = get(&format!("reduce=false&skip={}&limit=10", shown.len() / 2)).await;
    assert_eq!(skipped["rows"], json!(shown[shown.len() / 2..].iter().take(10).collect::<Vec<_>>()), "{base}");
    let Some(reduce) = view.reduce else { return };
    let mut groups: Vec<(Value, Vec<&Value>)> = Vec::new();
    for (key, _, value) in &rows {
        match groups.last_mut() {
            Some((last, values)) if last == key => values.push(value),
            _ => groups.push((key.clone(), vec![value])),
        }
    }
    let grouped: Vec<Value> =
        groups.iter().map(|(key, values)| json!({ "key": key, "value": reduce(values) })).collect();
    assert_eq!(get("group=true").await["rows"], json!(grouped), "{base}");
    let values: Vec<&Value> = rows.iter().map(|(_, _, value)| value).collect();
    let reduced = if values.is_empty() { json!([]) } else { json!([{ "key": null, "value": reduce(&values) }]) };
    assert_eq!(get("").await["rows"], reduced, "{base}");
}

/// Asserts that Mango indexes find what the documents contain.
async fn must_find(world: &World, random: &mut Random, base: &str, documents: &[Value]) {
    for kind in 0..5_u64 {
        let mut expected: Vec<(u64, String)> = documents
            .iter()
            .filter(|doc| doc["kind"] == json!(kind))
            .map(|doc| (doc["n"].as_u64().expect("a number"), doc["_id"].as_str().expect("an id").to_owned()))
            .collect();
        expected.sort();
        let asked = json!({
            "selector": { "kind": kind, "n": { "$gte": 0 } }, "fields": ["_id", "n"], "limit": 10_000,
            "sort": [{ "kind": "asc" }, { "n": "asc" }], "use_index": "_design/by-kind",
        });
        let mut waiting = WaitLoop::begin();
        let answer = loop {
            let (status, answer) = world.call(random, Method::POST, &format!("{base}/_find"), &asked).await;
            if status == 200 {
                break answer;
            }
            assert_eq!(status, 503, "{asked}: {answer}");
            waiting.pause(&format!("{asked}: {answer}")).await;
        };
        let found: Vec<(u64, String)> = answer["docs"]
            .as_array()
            .expect("documents")
            .iter()
            .map(|doc| (doc["n"].as_u64().expect("a number"), doc["_id"].as_str().expect("an id").to_owned()))
            .collect();
        assert_eq!(found, expected, "{asked}");
        assert!(answer["warning"].is_null(), "{answer}");
    }
}
