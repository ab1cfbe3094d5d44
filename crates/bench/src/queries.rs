//! Views and Mango indexes: the time to build them, their query rates, and their cost for writers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatbed_client::Connection;
use hyper::Method;
use serde_json::{Map, Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::documents::{self, mix};
use crate::load::{self, LoadError, Target, expect, fresh};
use crate::stats::{percentiles, rounded};

/// The time limit for a query's rows.
const PATIENCE: Duration = Duration::from_secs(600);

/// Design documents: a name, and its only view.
const VIEWS: &[(&str, &str, Option<&str>)] = &[
    ("emit", "function(doc) { emit(doc.group, null); }", None),
    ("sum", "function(doc) { emit([doc.group, doc.amount], doc.amount); }", Some("_sum")),
    ("stats", "function(doc) { emit([doc.type, doc.group], doc.amount); }", Some("_stats")),
];

struct Bench<'t> {
    target: &'t Target,
    connection: Connection,
    documents: u64,
    figures: Map<String, Value>,
}

/// Fills the database with this many documents, and measures. Prints a line of JSON for each figure, and returns all
/// figures by name.
pub(crate) async fn run(target: &Target, documents: u64) -> Result<Value, LoadError> {
    let mut bench = Bench { target, connection: Connection::open(&target.url).await?, documents, figures: Map::new() };
    // First, since the cleanup of a large deleted database slows the next writes.
    costs(target, &mut bench.figures).await?;
    fresh(target).await?;
    load::bulk(target, 1000, documents, PATIENCE.as_secs()).await?;
    for (name, map, reduce) in VIEWS {
        bench.build_view(name, map, *reduce).await?;
    }
    bench.build_index().await?;
    let view = |rest: &str| format!("{}/_design/{rest}", target.database);
    let groups = |number: u64| mix(number) % 1_000;
    let find = format!("{}/_find", target.database);
    bench
        .times(("find_ms", "find 25 by an index"), 500, |number| {
            let asked = json!({ "selector": { "group": groups(number) }, "limit": 25 });
            (Method::POST, find.clone(), asked.to_string())
        })
        .await?;
    bench
        .times(("page_ms", "page of 20 rows of a view"), 500, |number| {
            (Method::GET, view(&format!("emit/_view/view?startkey={}&limit=20", groups(number))), String::new())
        })
        .await?;
    bench
        .times(("skip_ms", "skip of 90 %"), 100, |_| {
            (Method::GET, view(&format!("emit/_view/view?skip={}&limit=20", documents / 10 * 9)), String::new())
        })
        .await?;
    bench
        .times(("reduce_all_ms", "reduce of all"), 200, |_| (Method::GET, view("sum/_view/view"), String::new()))
        .await?;
    bench
        .times(("reduce_ms", "reduce of a range"), 200, |number| {
            let (from, to) = (groups(number) / 2, 500 + groups(number) / 2);
            (
                Method::GET,
                view(&format!("sum/_view/view?startkey=%5B{from}%5D&endkey=%5B{to},%7B%7D%5D")),
                String::new(),
            )
        })
        .await?;
    bench
        .times(("groups_ms", "group_level=1 of 1,000 groups"), 20, |_| {
            (Method::GET, view("sum/_view/view?group_level=1"), String::new())
        })
        .await?;
    bench
        .times(("scan_ms", "scan without an index"), 3, |_| {
            let asked = json!({ "selector": { "audit": { "by": "nobody" } } });
            (Method::POST, find.clone(), asked.to_string())
        })
        .await?;
    bench
        .times(("count_ms", "_count by an index"), 100, |number| {
            let asked = json!({ "selector": { "group": groups(number) } });
            (Method::POST, format!("{}/_count", target.database), asked.to_string())
        })
        .await?;
    bench.pages(16, 5).await?;
    bench.freshness(300).await?;
    bench.lag(5_000, 10).await?;
    bench.figures.insert("load".to_owned(), json!("queries"));
    bench.figures.insert("documents".to_owned(), json!(documents));
    Ok(Value::Object(bench.figures))
}

impl Bench<'_> {
    async fn call(&mut self, method: Method, path: &str, body: String) -> Result<Bytes, LoadError> {
        expect(&mut self.connection, method, path, body.into()).await
    }

    fn figure(&mut self, name: &str, figure: Value) {
        self.figures.insert(name.to_owned(), figure);
    }

    /// Measures the time from the definition to the first complete answer.
    async fn build_view(&mut self, name: &str, map: &str, reduce: Option<&str>) -> Result<(), LoadError> {
        let mut view = json!({ "map": map });
        if let Some(reduce) = reduce {
            view["reduce"] = json!(reduce);
        }
        let path = format!("{}/_design/{name}", self.target.database);
        let begun = Instant::now();
        self.call(Method::PUT, &path, json!({ "views": { "view": view } }).to_string()).await?;
        self.call(Method::GET, &format!("{path}/_view/view?limit=1"), String::new()).await?;
        self.built(&format!("view {name}"), begun);
        Ok(())
    }

    async fn build_index(&mut self) -> Result<(), LoadError> {
        let begun = Instant::now();
        let (index, find) = (format!("{}/_index", self.target.database), format!("{}/_find", self.target.database));
        self.call(Method::POST, &index, json!({ "index": { "fields": ["group"] }, "ddoc": "json" }).to_string())
            .await?;
        let asked = json!({ "selector": { "group": 1 }, "use_index": "json", "limit": 1 });
        self.call(Method::POST, &find, asked.to_string()).await?;
        self.built("json index", begun);
        Ok(())
    }

    fn built(&mut self, name: &str, begun: Instant) {
        let seconds = begun.elapsed().as_secs_f64();
        let per_s = rounded(self.documents as f64 / seconds, 10.0);
        println!(
            "{}",
            json!({ "build": name, "documents": self.documents, "s": rounded(seconds, 1000.0), "per_s": per_s })
        );
        self.figure(&format!("build_{}", name.replace(' ', "_")), json!(per_s));
    }

    /// Measures sequential requests.
    async fn times(
        &mut self,
        (figure, name): (&str, &str),
        count: u64,
        request: impl Fn(u64) -> (Method, String, String),
    ) -> Result<(), LoadError> {
        let (mut ms, mut bytes) = (Vec::new(), 0);
        for number in 0..count {
            let (method, path, body) = request(number);
            let sent = Instant::now();
            bytes += self.call(method, &path, body).await?.len() as u64;
            ms.push(sent.elapsed().as_secs_f64() * 1e3);
        }
        let ms = percentiles(&mut ms);
        println!("{}", json!({ "query": name, "requests": count, "bytes": bytes / count.max(1), "ms": ms }));
        self.figure(figure, ms["p50"].clone());
        Ok(())
    }

    /// Measures readers of pages of 100 rows.
    async fn pages(&mut self, workers: usize, seconds: u64) -> Result<(), LoadError> {
        let path = format!("{}/_design/emit/_view/view?limit=100&startkey=", self.target.database);
        let (end, begun) = (Instant::now() + Duration::from_secs(seconds), Instant::now());
        let read = together(self.target, workers, async move |connection: &mut Connection, number| {
            if Instant::now() >= end {
                return Ok(false);
            }
            let path = format!("{path}{}", mix(number) % 1_000);
            expect(connection, Method::GET, &path, Bytes::new()).await?;
            Ok(true)
        });
        let mut ms = read.await?;
        let per_s = rounded(ms.len() as f64 / begun.elapsed().as_secs_f64(), 10.0);
        println!(
            "{}",
            json!({ "query": "pages of 100 rows", "workers": workers, "per_s": per_s, "ms": percentiles(&mut ms) })
        );
        self.figure("pages_16", json!(per_s));
        Ok(())
    }

    /// Measures the time from an acknowledged write to its row in a view that is not updated by queries.
    async fn freshness(&mut self, count: u64) -> Result<(), LoadError> {
        let mut ms = Vec::new();
        for number in 0..count {
            let group = 1_000_000 + number;
            let path = format!("{}/fresh{number:06}", self.target.database);
            self.call(Method::PUT, &path, json!({ "group": group, "amount": 1, "type": "fresh" }).to_string()).await?;
            let begun = Instant::now();
            let path = format!("{}/_design/emit/_view/view?update=false&key={group}", self.target.database);
            while memchr::memmem::find(&self.call(Method::GET, &path, String::new()).await?, b"\"id\":").is_none() {
                if begun.elapsed() > PATIENCE {
                    break;
                }
            }
            ms.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        let ms = percentiles(&mut ms);
        println!("{}", json!({ "query": "from a write to its row", "requests": count, "ms": ms }));
        self.figure("row_p50_ms", ms["p50"].clone());
        self.figure("row_p99_ms", ms["p99"].clone());
        Ok(())
    }

    /// Updates random documents at a rate, and measures the time that the views then need to catch up.
    async fn lag(&mut self, per_s: u64, seconds: u64) -> Result<(), LoadError> {
        let (begun, documents) = (Instant::now(), self.documents);
        let path = format!("{}/_bulk_docs", self.target.database);
        let mut written = 0;
        for second in 0..seconds * 10 {
            let due = begun + Duration::from_millis(second * 100);
            tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
            // Written beside the existing revisions, as a replication does, so that no revision need be known. It wins
            // by its generation.
            let docs: Vec<Value> = (0..per_s / 10)
                .map(|number| {
                    let drawn = mix(second << 32 | number);
                    json!({
                        "_id": documents::id(drawn % documents), "_rev": format!("{}-{drawn:032x}", second + 2),
                        "group": drawn % 1_000, "amount": drawn % 10_000, "type": "lag",
                    })
                })
                .collect();
            written += docs.len();
            self.call(Method::POST, &path, json!({ "new_edits": false, "docs": docs }).to_string()).await?;
        }
        let took = begun.elapsed().as_secs_f64();
        let behind = Instant::now();
        for (name, ..) in VIEWS {
            let path = format!("{}/_design/{name}/_view/view?limit=1", self.target.database);
            self.call(Method::GET, &path, String::new()).await?;
        }
        let behind_ms = rounded(behind.elapsed().as_secs_f64() * 1e3, 10.0);
        println!(
            "{}",
            json!({
                "query": "lag behind updates of random keys", "views": VIEWS.len(), "updates": written,
                "per_s": rounded(written as f64 / took, 10.0), "behind_ms": behind_ms,
            })
        );
        self.figure("lag_ms", json!(behind_ms));
        Ok(())
    }
}

/// Runs requests of many workers until one ends the load. Returns the milliseconds of each.
async fn together(
    target: &Target,
    workers: usize,
    request: impl AsyncFn(&mut Connection, u64) -> Result<bool, LoadError> + Clone + 'static,
) -> Result<Vec<f64>, LoadError> {
    let (local, next) = (LocalSet::new(), Rc::new(Cell::new(0_u64)));
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let (next, request) = (next.clone(), request.clone());
        let mut connection = Connection::open(&target.url).await?;
        tasks.spawn_local_on(
            async move {
                let mut ms = Vec::new();
                loop {
                    let number = next.replace(next.get() + 1);
                    let sent = Instant::now();
                    if !request(&mut connection, number).await? {
                        return Ok::<_, LoadError>(ms);
                    }
                    ms.push(sent.elapsed().as_secs_f64() * 1e3);
                }
            },
            &local,
        );
    }
    let mut ms = Vec::new();
    local
        .run_until(async {
            while let Some(done) = tasks.join_next().await {
                let Ok(done) = done else { continue };
                ms.extend(done?);
            }
            Ok::<_, LoadError>(())
        })
        .await?;
    Ok(ms)
}

/// Measures the cost of indexes for writers: each load lasts until the index has the last row.
async fn costs(target: &Target, figures: &mut Map<String, Value>) -> Result<(), LoadError> {
    let (single, bulk) = (20_000, 50_000);
    let mut plain = (0.0, 0.0);
    for index in ["none", "json", "view"] {
        let single = write(target, index, single, true).await?;
        let bulk = write(target, index, bulk, false).await?;
        if index == "none" {
            plain = (single, bulk);
        }
        let cost = |rate: f64, plain: f64| rounded((1.0 - rate / plain) * 100.0, 10.0);
        let (single_cost, bulk_cost) = (cost(single, plain.0), cost(bulk, plain.1));
        println!(
            "{}",
            json!({
                "cost": index, "single_per_s": rounded(single, 10.0), "bulk_per_s": rounded(bulk, 10.0),
                "single_cost_percent": single_cost, "bulk_cost_percent": bulk_cost,
            })
        );
        figures.insert(format!("cost_{index}_single"), json!(single_cost));
        figures.insert(format!("cost_{index}_bulk"), json!(bulk_cost));
    }
    Ok(())
}

/// Returns the new documents per second.
async fn write(target: &Target, index: &str, count: u64, is_single: bool) -> Result<f64, LoadError> {
    fresh(target).await?;
    let mut connection = Connection::open(&target.url).await?;
    let mut call = async |method, path: String, body: String| expect(&mut connection, method, &path, body.into()).await;
    let database = &target.database;
    let asks = match index {
        "json" => {
            let defined = json!({ "index": { "fields": ["group"] }, "ddoc": "json" });
            call(Method::POST, format!("{database}/_index"), defined.to_string()).await?;
            let asked = json!({ "selector": { "group": 1 }, "use_index": "json", "limit": 1 });
            Some((Method::POST, format!("{database}/_find"), asked.to_string()))
        }
        "view" => {
            let (name, map, _) = VIEWS[0];
            let defined = json!({ "views": { "view": { "map": map } } });
            call(Method::PUT, format!("{database}/_design/{name}"), defined.to_string()).await?;
            Some((Method::GET, format!("{database}/_design/{name}/_view/view?limit=1"), String::new()))
        }
        _ => None,
    };
    if let Some((method, path, body)) = asks.clone() {
        call(method, path, body).await?;
    }
    let begun = Instant::now();
    if is_single {
        let base = database.clone();
        together(target, 64, async move |connection: &mut Connection, number| {
            if number >= count {
                return Ok(false);
            }
            let path = format!("{base}/{}", documents::id(number));
            expect(connection, Method::PUT, &path, documents::text(number, false).into()).await?;
            Ok(true)
        })
        .await?;
    } else {
        load::bulk(target, 1000, count, PATIENCE.as_secs()).await?;
    }
    if let Some((method, path, body)) = asks {
        call(method, path, body).await?;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
