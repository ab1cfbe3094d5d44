//! The changes worker: documents of `_worker`, the state of targets, and the queue.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_testkit::http::{Request, ServerConnection, listen};
use flatbed_testkit::{Mortal, pass, until, until_wanted};
use flatbed_worker::connect::Secrets;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{Options, Running, ServerOptions, Store, WorkerOptions};

/// An endpoint that stores documents and refuses those that a test names.
#[derive(Debug, Clone, Default)]
struct Endpoint {
    kept: Arc<Mutex<BTreeMap<String, String>>>,
    /// Parts of paths, and the status with which they are refused.
    refused: Arc<Mutex<Vec<(&'static str, u16)>>>,
    connections: Arc<Mutex<u32>>,
    /// True to hold all answers; the number of held requests, and its maximum.
    is_held: Arc<watch::Sender<bool>>,
    waiting: Arc<Mutex<(u32, u32)>>,
}

impl Endpoint {
    async fn listen(&self) -> String {
        let endpoint = self.clone();
        let address = listen(move |connection| endpoint.clone().serve(connection));
        format!("http://{}", address.await)
    }

    async fn serve(self, mut connection: ServerConnection) -> Option<()> {
        *self.connections.lock().unwrap() += 1;
        loop {
            let request = connection.read().await?;
            {
                let mut waiting = self.waiting.lock().unwrap();
                *waiting = (waiting.0 + 1, waiting.1.max(waiting.0 + 1));
            }
            let _ = self.is_held.subscribe().wait_for(|is_held| !is_held).await;
            self.waiting.lock().unwrap().0 -= 1;
            let status = self.take(&request);
            // A careless server repeats the credentials.
            let text = format!("refused: {}", request.header("authorization").unwrap_or_default());
            connection.answer(status, "", &text).await?;
        }
    }

    fn take(&self, request: &Request) -> u16 {
        let Request { method, path, .. } = request;
        if let Some((_, status)) = self.refused.lock().unwrap().iter().find(|(part, _)| path.contains(part)) {
            return *status;
        }
        let mut kept = self.kept.lock().unwrap();
        match method.as_str() {
            "DELETE" => drop(kept.remove(path)),
            _ => drop(kept.insert(path.clone(), request.text())),
        }
        200
    }

    fn kept(&self) -> Vec<String> {
        self.kept.lock().unwrap().keys().cloned().collect()
    }

    fn refuse(&self, refused: &[(&'static str, u16)]) {
        *self.refused.lock().unwrap() = refused.to_vec();
    }
}

fn into(files: &Path) -> WorkerOptions {
    let variables = [("FLATBED_WORKER_T".to_owned(), "hunter2-token".to_owned())].into();
    let secrets = Secrets { directory: None, variables };
    WorkerOptions { files: Some(files.to_owned()), secrets, allow: "127.0.0.1" }
}

fn job(id: &str, output_type: &str, output: Value, mapping: Value) -> Value {
    json!({"type": "job", "id": id, "inputs": [{"id": "in", "source_type": "flatbed", "local": "db"}],
        "outputs": [output], "output_type": output_type, "mapping": mapping,
        "system": {"retry": {"backoff_base_seconds": 0.05, "backoff_max_seconds": 0.2}}})
}

fn into_sqlite(id: &str) -> Value {
    let output =
        json!({"id": "out", "database_type": "sqlite", "database": format!("{id}.sqlite"), "create_tables": true});
    let mapping = json!({"tables": [
        {"name": "orders", "primary_key": "id", "columns": [{"name": "id", "path": "$._id", "type": "text"}, {"name": "n", "path": "$.n", "type": "integer"}]},
        {"name": "items", "parent": "orders", "foreign_key": {"column": "order_id", "references": "id"}, "source_array": "$.items",
         "columns": {"order_id": "$$._id", "name": "$"}}]});
    job(id, "rdbms", output, mapping)
}

fn into_http(id: &str, url: &str) -> Value {
    let auth = json!({"method": "bearer", "token": "env:FLATBED_WORKER_T"});
    job(id, "http", json!({"id": "out", "url": format!("{url}/in/{{id}}"), "auth": auth}), Value::Null)
}

async fn put(server: &Running, job: &Value) {
    server.until("/_worker", |answer| answer["db_name"] == "_worker").await;
    let path = format!("/_worker/job::{}", job["id"].as_str().unwrap());
    let (_, before) = server.json("GET", &path, Value::Null).await;
    let mut job = job.clone();
    if before["_rev"].is_string() {
        job["_rev"] = before["_rev"].clone();
    }
    server.ok("PUT", &path, job).await;
}

async fn wait(server: &Running, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    server.until(&format!("/_worker/_api/jobs/{id}"), wanted).await
}

/// Waits until a job has delivered `count` documents and nothing is pending.
async fn until_delivered(server: &Running, id: &str, count: u64) -> Value {
    wait(server, id, |job| job["state"] == "running" && job["delivered"] == count && job["lag"]["rows"] == 0).await
}

fn rows(file: &Path, query: &str) -> Vec<String> {
    let connection = rusqlite::Connection::open(file).unwrap();
    let mut statement = connection.prepare(query).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn from_a_database_into_sqlite_lines_and_http() {
    let (store, files, endpoint) = (Store::new(), tempfile::tempdir().unwrap(), Endpoint::default());
    let url = endpoint.listen().await;
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    for at in 0..30 {
        server.ok("PUT", &format!("/db/d{at}"), json!({"n": at, "items": vec!["x"; at % 3]})).await;
    }
    put(&server, &into_sqlite("s")).await;
    put(&server, &job("l", "cloud", json!({"id": "out", "provider": "file", "file": "l.jsonl"}), Value::Null)).await;
    put(&server, &into_http("h", &url)).await;
    for id in ["s", "l", "h"] {
        until_delivered(&server, id, 30).await;
    }
    let sqlite = files.path().join("s.sqlite");
    let count = |table: &str| rows(&sqlite, &format!("SELECT CAST(count(*) AS TEXT) FROM {table}"))[0].clone();
    assert_eq!((count("orders"), count("items")), ("30".to_owned(), "30".to_owned()));
    assert_eq!(endpoint.kept().len(), 30);
    // Updates and deletions.
    let rev = server.ok("GET", "/db/d5", Value::Null).await["_rev"].clone();
    server.ok("PUT", "/db/d5", json!({"_rev": rev, "n": 500})).await;
    let rev = server.ok("GET", "/db/d7", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    server.ok("DELETE", &format!("/db/d7?rev={rev}"), Value::Null).await;
    for id in ["s", "l", "h"] {
        until_delivered(&server, id, 32).await;
    }
    assert_eq!((count("orders"), count("items")), ("29".to_owned(), "27".to_owned()));
    assert_eq!(rows(&sqlite, "SELECT id FROM orders WHERE n = 500"), ["d5"]);
    assert!(!endpoint.kept().contains(&"/in/d7".to_owned()) && endpoint.kept().len() == 29);
    let lines = std::fs::read_to_string(files.path().join("l.jsonl")).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((lines.lines().count(), &last["id"], &last["deleted"]), (32, &json!("d7"), &json!(true)));
    // The entry is counted; no output has the secret.
    let metrics = server.call("GET", "/metrics", "").await.body;
    assert!(metrics.contains("flatbed_worker_delivered_total 96"), "{metrics}");
    assert!(metrics.contains("flatbed_worker_jobs{state=\"running\"} 3"), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_replayed() {
    let (store, files, endpoint) = (Store::new(), tempfile::tempdir().unwrap(), Endpoint::default());
    let url = endpoint.listen().await;
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    endpoint.refuse(&[("bad", 422)]);
    for id in ["a", "bad1", "b", "bad2", "bad3", "c"] {
        server.ok("PUT", &format!("/db/{id}"), json!({"n": 1})).await;
    }
    put(&server, &into_http("h", &url)).await;
    wait(&server, "h", |job| job["queued"] == 3 && job["delivered"] == 3).await;
    assert_eq!(endpoint.kept(), ["/in/a", "/in/b", "/in/c"]);
    let list = server.ok("GET", "/_worker/_api/dlq?job=h&sort=time", Value::Null).await;
    let entries = list["entries"].as_array().unwrap().clone();
    assert_eq!(entries.len(), 3);
    assert_eq!(
        (&entries[0]["reason"], &entries[0]["status"], &entries[0]["state"], entries[0].get("doc_data")),
        (&json!("client_error:422"), &json!(422), &json!("waiting"), None)
    );
    for (query, count) in [
        ("", 3),
        ("?job=h", 3),
        ("?job=x", 0),
        ("?reason=client_error:422", 3),
        ("?reason=x", 0),
        ("?state=waiting", 3),
        ("?until=5", 0),
    ] {
        let answer = server.ok("GET", &format!("/_worker/_api/dlq/count{query}"), Value::Null).await;
        assert_eq!(answer["count"], count, "{query}");
    }
    assert_eq!(
        server.ok("GET", "/_worker/_api/dlq?limit=1&offset=2", Value::Null).await["entries"].as_array().unwrap().len(),
        1
    );
    let stats = server.ok("GET", "/_worker/_api/dlq/stats", Value::Null).await;
    assert_eq!((&stats["total"], &stats["jobs"]["h"], &stats["states"]["waiting"]), (&json!(3), &json!(3), &json!(3)));
    let explained = server.ok("GET", "/_worker/_api/dlq/explain?job=h", Value::Null).await;
    assert_eq!(explained["index"]["name"], "job");
    // A newer revision replaces the entry.
    let bad3 = entries.iter().find(|entry| entry["doc_id_original"] == "bad3").unwrap();
    endpoint.refuse(&[("bad1", 422), ("bad2", 422)]);
    server.ok("PUT", "/db/bad3", json!({"_rev": bad3["rev"], "n": 2})).await;
    wait(&server, "h", |job| job["delivered"] == 4).await;
    let path = |entry: &Value| format!("/_worker/_api/dlq/{}", entry["id"].as_str().unwrap());
    let retried = server.ok("POST", &format!("{}/retry", path(bad3)), Value::Null).await;
    assert_eq!(retried["state"], "overtaken", "{retried}");
    // A retry fails, then succeeds.
    let bad1 = entries.iter().find(|entry| entry["doc_id_original"] == "bad1").unwrap();
    let retried = server.ok("POST", &format!("{}/retry", path(bad1)), Value::Null).await;
    assert_eq!((&retried["ok"], &retried["reason"]), (&json!(false), &json!("client_error:422")));
    assert_eq!(server.ok("GET", &path(bad1), Value::Null).await["replay_attempts"], 1);
    server.ok("PUT", &path(bad1), json!({"doc": {"_id": "bad1", "n": 77}})).await;
    endpoint.refuse(&[("bad2", 422)]);
    let retried = server.ok("POST", &format!("{}/retry", path(bad1)), Value::Null).await;
    assert_eq!(retried["state"], "delivered", "{retried}");
    assert!(endpoint.kept.lock().unwrap()["/in/bad1"].contains("77"));
    assert_eq!(server.json("GET", &path(bad1), Value::Null).await.0, 404);
    // The rest is retried by a filter, after an export and import.
    let export = server.call("GET", "/_worker/_api/dlq/export?state=waiting", "").await.body;
    assert_eq!(export.lines().count(), 1, "{export}");
    assert_eq!(server.ok("DELETE", "/_worker/_api/dlq?job=h", Value::Null).await["deleted"], 2);
    assert_eq!(server.json("DELETE", "/_worker/_api/dlq", Value::Null).await.0, 400);
    let imported = server.call("POST", "/_worker/_api/dlq/import", &format!("{export}\n{{}}\n")).await.json();
    assert_eq!((&imported["imported"], &imported["refused"]), (&json!(1), &json!(1)), "{imported}");
    endpoint.refuse(&[]);
    let (status, answer) =
        server.json("POST", "/_worker/_api/dlq/retry", json!({"reason": "client_error:422", "per_second": 100})).await;
    assert_eq!((status, &answer["jobs"]), (202, &json!(["h"])));
    server.until("/_worker/_api/dlq/count", |answer| answer["count"] == 0).await;
    assert_eq!(endpoint.kept().len(), 6);
    wait(&server, "h", |job| job["orders"] == json!([]) && job["replayed"] == 2).await;
    // The secret that the endpoint repeated is in no feed, entry or job.
    let mut said = entries.iter().map(Value::to_string).collect::<String>() + &export;
    for path in [
        "/_worker/_all_docs?include_docs=true",
        "/_worker/_changes?include_docs=true&style=all_docs",
        "/_worker/_api/jobs",
    ] {
        said += &server.call("GET", path, "").await.body;
    }
    assert!(said.contains("***") && !said.contains("hunter2"), "{said}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_paused_changed_and_reset_without_a_restart() {
    let (store, files) = (Store::new(), tempfile::tempdir().unwrap());
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    put(&server, &into_sqlite("s")).await;
    until_delivered(&server, "s", 1).await;
    server.ok("POST", "/_worker/_api/jobs/s/stop", Value::Null).await;
    wait(&server, "s", |job| job["state"] == "paused").await;
    let found =
        |which: &str| rows(&files.path().join("s.sqlite"), &format!("SELECT id FROM orders {which} ORDER BY id"));
    // A job that is stopped may still deliver what it reads at that moment. Another job shows that a document has come.
    put(&server, &into_sqlite("t")).await;
    let mut waiting = 0;
    until("a document waits for the job", async || {
        waiting += 1;
        server.ok("PUT", &format!("/db/b{waiting}"), json!({"n": 2})).await;
        until_delivered(&server, "t", waiting + 1).await;
        !found("").contains(&format!("b{waiting}"))
    })
    .await;
    let rev = server.ok("GET", "/_worker/job::t", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    server.ok("DELETE", &format!("/_worker/job::t?rev={rev}"), Value::Null).await;
    server.ok("POST", "/_worker/_api/jobs/s/start", Value::Null).await;
    until("it comes", async || found("").contains(&format!("b{waiting}"))).await;
    // Changes the mapping while the job runs.
    let mut changed = into_sqlite("s");
    changed["mapping"]["tables"][0]["columns"][1]["path"] = "$.m".into();
    put(&server, &changed).await;
    // The job notices shortly after.
    let mut written = 0;
    until("a document is mapped otherwise", async || {
        server.ok("PUT", &format!("/db/c{written}"), json!({"n": 3, "m": 33})).await;
        written += 1;
        !found("WHERE n = 33").is_empty()
    })
    .await;
    server.ok("POST", "/_worker/_api/jobs/s/reset", json!({"to": "beginning"})).await;
    wait(&server, "s", |job| job["orders"] == json!([]) && job["delivered"].as_u64() >= Some(3)).await;
    // The source is recreated: the job halts until it is reset.
    server.ok("POST", "/_worker/_api/jobs/s/stop", Value::Null).await;
    wait(&server, "s", |job| job["state"] == "paused").await;
    // In another second than before, because `instance_start_time` shows seconds.
    let begun = server.ok("GET", "/db", Value::Null).await["instance_start_time"].clone();
    until("it is made in another second", async || {
        server.ok("DELETE", "/db", Value::Null).await;
        server.ok("PUT", "/db", Value::Null).await;
        server.ok("GET", "/db", Value::Null).await["instance_start_time"] != begun
    })
    .await;
    server.ok("PUT", "/db/z", json!({"m": 1})).await;
    server.ok("POST", "/_worker/_api/jobs/s/start", Value::Null).await;
    let halted = wait(&server, "s", |job| job["state"] == "halted").await;
    assert!(["made_again", "behind"].contains(&halted["halted"]["kind"].as_str().unwrap()), "{halted}");
    assert_eq!(server.json("POST", "/_worker/_api/jobs/s/reset", json!({"to": "there"})).await.0, 400);
    server.ok("POST", "/_worker/_api/jobs/s/reset", json!({"to": "beginning"})).await;
    wait(&server, "s", |job| job["state"] == "running" && job["orders"] == json!([])).await;
    server.ok("PUT", "/db/y", json!({"m": 2})).await;
    until("both come", async || ["y", "z"].iter().all(|id| found("").iter().any(|found| found == id))).await;
    // A deleted job stops.
    let rev = server.ok("GET", "/_worker/job::s", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    server.ok("DELETE", &format!("/_worker/job::s?rev={rev}"), Value::Null).await;
    server.until("/_worker/_api/jobs", |answer| answer["jobs"] == json!([])).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_stopped_and_started_waits_for_itself() {
    let (store, files, endpoint) = (Store::new(), tempfile::tempdir().unwrap(), Endpoint::default());
    let url = endpoint.listen().await;
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    endpoint.is_held.send_replace(true);
    put(&server, &into_http("h", &url)).await;
    until("it sends", async || endpoint.waiting.lock().unwrap().0 == 1).await;
    // The job may be finishing its batch when it is started again.
    for order in ["stop", "start"] {
        server.ok("POST", &format!("/_worker/_api/jobs/h/{order}"), Value::Null).await;
        // A later job is visible, so the order was processed.
        put(&server, &into_sqlite(order)).await;
        until_delivered(&server, order, 1).await;
    }
    endpoint.is_held.send_replace(false);
    server.ok("PUT", "/db/b", json!({"n": 2})).await;
    until("both come", async || endpoint.kept() == ["/in/a", "/in/b"]).await;
    assert_eq!(endpoint.waiting.lock().unwrap().1, 1, "two runs of one job send at once");
    server.stop().await;
}

/// One of two servers is killed: its runtime disappears with all its work.
#[test]
fn two_servers_share_jobs_and_one_is_killed() {
    let second = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (store, files) = (Store::new(), tempfile::tempdir().unwrap());
    let first = Mortal::start_blocking(2, async {
        let server = store.serve(into(files.path())).await;
        server.ok("PUT", "/db", Value::Null).await;
        for id in ["s1", "s2", "s3"] {
            put(&server, &into_sqlite(id)).await;
        }
        for at in 0..20 {
            server.ok("PUT", &format!("/db/d{at}"), json!({"n": at})).await;
        }
        for id in ["s1", "s2", "s3"] {
            until_delivered(&server, id, 20).await;
        }
        server
    });
    let (server, epochs) = second.block_on(async {
        let server = store.serve(into(files.path())).await;
        // The second server knows the jobs and leaves them to the first.
        let epochs = server
            .until("/_worker/_api/jobs", |answer| answer["jobs"].as_array().is_some_and(|jobs| jobs.len() == 3))
            .await;
        let epochs: Vec<u64> =
            epochs["jobs"].as_array().unwrap().iter().map(|job| job["epoch"].as_u64().unwrap()).collect();
        pass(Duration::from_millis(500)).await;
        (server, epochs)
    });
    let killed = first.kill();
    second.block_on(async {
        for at in 20..40 {
            server.ok("PUT", &format!("/db/d{at}"), json!({"n": at})).await;
        }
        for (at, id) in ["s1", "s2", "s3"].into_iter().enumerate() {
            // The jobs resume without duplicates. Until then the lease has the killed server's state.
            let is_taken = |job: &Value| job["epoch"].as_u64() > Some(epochs[at]);
            wait(&server, id, |job| is_taken(job) && job["delivered"] == 20 && job["lag"]["rows"] == 0).await;
            let file = files.path().join(format!("{id}.sqlite"));
            assert_eq!(rows(&file, "SELECT id FROM orders").len(), 40);
        }
        server.stop().await;
    });
    std::mem::forget(killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_made_again_is_another_one() {
    let (store, files) = (Store::new(), tempfile::tempdir().unwrap());
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    put(&server, &into_sqlite("s")).await;
    until_delivered(&server, "s", 1).await;
    server.ok("POST", "/_worker/_api/jobs/s/stop", Value::Null).await;
    wait(&server, "s", |job| job["state"] == "paused").await;
    // Usually within the same second, so `instance_start_time` is unchanged.
    server.ok("DELETE", "/db", Value::Null).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/b", json!({"n": 2})).await;
    server.ok("POST", "/_worker/_api/jobs/s/start", Value::Null).await;
    let job = wait(&server, "s", |job| job["state"] == "halted").await;
    assert_eq!(job["halted"]["kind"], "made_again", "{job}");
    server.ok("POST", "/_worker/_api/jobs/s/reset", json!({"to": "beginning"})).await;
    let file = files.path().join("s.sqlite");
    until("both come", async || rows(&file, "SELECT id FROM orders ORDER BY id") == ["a", "b"]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_made_again_between_two_looks_is_another_one() {
    let (store, files) = (Store::new(), tempfile::tempdir().unwrap());
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    let mut looking = into_sqlite("s");
    looking["inputs"][0]["changes_feed"] = json!({"feed_type": "normal", "poll_interval_seconds": 0.05});
    put(&server, &looking).await;
    until_delivered(&server, "s", 1).await;
    server.ok("DELETE", "/db", Value::Null).await;
    server.ok("PUT", "/db", Value::Null).await;
    let job = wait(&server, "s", |job| job["state"] == "halted").await;
    assert_eq!(job["halted"]["kind"], "made_again", "{job}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_target_refuses_is_failing() {
    let (store, files, endpoint) = (Store::new(), tempfile::tempdir().unwrap(), Endpoint::default());
    let url = endpoint.listen().await;
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    endpoint.refuse(&[("/in/", 503)]);
    put(&server, &into_http("h", &url)).await;
    let job = wait(&server, "h", |job| job["state"] == "failing" && job["outages"].as_u64() >= Some(2)).await;
    assert_eq!((&job["lag"]["rows"], &job["delivered"]), (&json!(1), &json!(0)), "{job}");
    let metrics = server.call("GET", "/metrics", "").await.body;
    assert!(metrics.contains("flatbed_worker_jobs{state=\"failing\"} 1"), "{metrics}");
    assert!(metrics.contains("flatbed_worker_jobs{state=\"running\"} 0"), "{metrics}");
    endpoint.refuse(&[]);
    until_delivered(&server, "h", 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_is_about_is_all_that_it_gets() {
    let (store, files) = (Store::new(), tempfile::tempdir().unwrap());
    let server = store.serve(into(files.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    let feeds = [
        ("ids", json!({"doc_ids": ["d3", "d7", "e1"]}), vec!["d3", "d7", "e1"]),
        ("sel", json!({"selector": {"n": {"$lt": 2}}}), vec!["d0", "d1", "e0", "e1"]),
        ("bulk", json!({"include_docs": false, "doc_ids": ["d3", "d7", "e1"]}), vec!["d3", "d7", "e1"]),
        ("live", json!({"feed_type": "continuous", "doc_ids": ["d3", "d7", "e1"]}), vec!["d3", "d7", "e1"]),
    ];
    for at in 0..10 {
        server.ok("PUT", &format!("/db/d{at}"), json!({"n": at})).await;
    }
    for (id, feed, _) in &feeds {
        let mut job = into_sqlite(id);
        job["inputs"][0]["changes_feed"] = feed.clone();
        put(&server, &job).await;
    }
    for (id, ..) in &feeds {
        wait(&server, id, |job| job["state"] == "running" && job["delivered"] == 2 && job["lag"]["rows"] == 0).await;
    }
    // Changes while they wait.
    for at in 0..10 {
        server.ok("PUT", &format!("/db/e{at}"), json!({"n": at})).await;
    }
    for (id, _, expected) in &feeds {
        let file = files.path().join(format!("{id}.sqlite"));
        until("all come", async || rows(&file, "SELECT id FROM orders ORDER BY id") == *expected).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_documents_and_strangers() {
    let (store, files, endpoint) = (Store::new(), tempfile::tempdir().unwrap(), Endpoint::default());
    let url = endpoint.listen().await;
    let server = store.serve(WorkerOptions { allow: "", ..into(files.path()) }).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    server.until("/_worker", |answer| answer["db_name"] == "_worker").await;
    let lines = |file: &str| job("j", "cloud", json!({"id": "out", "provider": "file", "file": file}), Value::Null);
    let mut plain_secret = into_http("j", &url);
    plain_secret["outputs"][0]["auth"]["token"] = "hunter2".into();
    let mut of_the_machine = into_http("j", &url);
    of_the_machine["outputs"][0]["auth"]["token"] = "env:HOME".into();
    for (id, document) in [
        ("job::j", json!({"type": "job"})),
        ("job::j", json!({"type": "gone"})),
        ("job::j", json!({})),
        ("job::k", lines("x.jsonl")),
        ("x", lines("x.jsonl")),
        ("job::j", lines("../x.jsonl")),
        ("job::j", lines("/etc/x")),
        ("job::j", lines("a/b")),
        ("job::j", lines(".hidden")),
        ("job::j", plain_secret),
        ("job::j", of_the_machine),
        ("mapping:m", json!({"type": "mapping", "name": "m", "content": "a: &x [1]\nb: *x"})),
        ("mapping:m", json!({"type": "mapping", "name": "m", "content": "x".repeat(2 << 20)})),
    ] {
        let (status, answer) = server.json("PUT", &format!("/_worker/{id}"), document.clone()).await;
        assert_eq!((status, &answer["error"]), (400, &json!("bad_request")), "{document}: {answer}");
        assert!(!answer.to_string().contains("hunter2"), "{answer}");
        let (_, rows) = server.json("POST", "/_worker/_bulk_docs", json!({"docs": [{"_id": id, "type": "job"}]})).await;
        assert_eq!(rows[0]["error"], "bad_request", "{rows}");
    }
    // Only listed and public addresses are reachable; the job waits and shows the reason.
    put(&server, &into_http("h", &url)).await;
    let job = wait(&server, "h", |job| job["outages"].as_u64() > Some(0)).await;
    assert!(job["errors"][0]["error"].as_str().unwrap().contains("no address"), "{job}");
    let mut elsewhere = into_sqlite("e");
    elsewhere["inputs"][0] = json!({"id": "in", "source_type": "couchdb", "url": server.url("db")});
    put(&server, &elsewhere).await;
    let job = wait(&server, "e", |job| job["outages"].as_u64() > Some(0)).await;
    assert!(job["errors"][0]["error"].as_str().unwrap().contains("no address"), "{job}");
    assert_eq!(*endpoint.connections.lock().unwrap(), 0);
    // A job that writes to its own source would feed itself.
    let mut own = into_sqlite("o");
    own["inputs"][0]["local"] = "_worker".into();
    put(&server, &own).await;
    wait(&server, "o", |job| job["state"] == "broken").await;
    // Tests a mapping without a job.
    let tried = json!({"mapping": into_sqlite("x")["mapping"], "documents": [{"_id": "a", "n": 1, "items": ["x"]}, {"_id": "b", "n": "x"}]});
    let answer = server.ok("POST", "/_worker/_api/jobs/test", tried).await;
    assert_eq!(answer["results"][0]["tables"]["orders"][0]["n"], 1, "{answer}");
    assert!(answer["results"][1]["error"].is_string(), "{answer}");
    let many = json!({"documents": vec![json!({}); 101]});
    assert_eq!(server.json("POST", "/_worker/_api/jobs/test", many).await.0, 400);
    for (method, path, status) in [
        ("GET", "/_worker/_api", 404),
        ("GET", "/_worker/_api/x", 404),
        ("PUT", "/_worker/_api/jobs", 405),
        ("GET", "/_worker/_api/jobs/x", 404),
        ("POST", "/_worker/_api/jobs/x/start", 404),
        ("GET", "/_worker/_api/dlq/dlq:x", 404),
        ("POST", "/_worker/_api/dlq/job::h/retry", 404),
        ("GET", "/_worker/_api/dlq/job::h", 404),
        ("DELETE", "/_worker/_api/dlq/job::h", 404),
        ("GET", "/_worker/_api/dlq?sort=id", 400),
    ] {
        assert_eq!(server.json(method, path, Value::Null).await.0, status, "{method} {path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_of_the_server_alone() {
    let store = Store::new();
    let server = ServerOptions::guarded_by("root", "p");
    let server = store.serve(Options { server, worker: Some(WorkerOptions::default()), ..Options::default() }).await;
    let root = [("authorization", "Basic cm9vdDpw")];
    let mut client = server.connect().await;
    until("it is there", async || client.call("GET", "/_worker", &root, b"").await.status == 200).await;
    let json_of_root = [root[0], ("content-type", "application/json")];
    let open = br#"{"members":{"roles":[],"names":[]},"admins":{"names":["anna"]}}"#;
    assert_eq!(client.call("PUT", "/_worker/_security", &json_of_root, open).await.status, 200);
    assert_eq!(client.call("PUT", "/_users", &root, b"").await.status, 201);
    let anna = br#"{"type":"user","name":"anna","password":"p","roles":[]}"#;
    assert_eq!(client.call("PUT", "/_users/org.couchdb.user:anna", &json_of_root, anna).await.status, 201);
    for who in [&[][..], &[("authorization", "Basic YW5uYTpw")][..]] {
        for (method, path) in [
            ("GET", "/_worker"),
            ("GET", "/_worker/_all_docs"),
            ("GET", "/_worker/_changes"),
            ("PUT", "/_worker/job::j"),
            ("GET", "/_worker/_api/jobs"),
            ("GET", "/_worker/_api/dlq/export"),
            ("DELETE", "/_worker/_api/dlq?all=true"),
            ("POST", "/_worker/_api/jobs/j/start"),
        ] {
            let status = client.call(method, path, who, b"").await.status;
            assert!(matches!(status, 401 | 403), "{method} {path}: {status}");
        }
    }
    assert_eq!(client.call("GET", "/_worker/_api/jobs", &root, b"").await.status, 200);
    // Without a directory no files are written.
    assert_eq!(client.call("PUT", "/db", &root, b"").await.status, 201);
    let lines = job("l", "cloud", json!({"id": "out", "provider": "file", "file": "x"}), Value::Null).to_string();
    assert_eq!(client.call("PUT", "/_worker/job::l", &json_of_root, lines.as_bytes()).await.status, 201);
    let show = async || client.call("GET", "/_worker/_api/jobs/l", &root, b"").await.json();
    let shown = until_wanted("it fails", show, |shown| shown["state"] == "failing").await;
    assert!(shown["errors"][0]["error"].as_str().unwrap_or_default().contains("no directory"), "{shown}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_mappings_and_a_queue_that_is_full() {
    let store = Store::new();
    let directory = tempfile::tempdir().unwrap();
    let server = store.serve(into(directory.path())).await;
    server.ok("PUT", "/db", Value::Null).await;
    let function = "(doc) => { if (doc.n < 0) throw new Error('below zero'); return doc.n === 0 ? null : { _id: doc._id, twice: doc.n * 2 }; }";
    let mapping = json!({"function": function});
    // Tests the mapping without a job.
    let documents = json!([{"_id": "a", "n": 2}, {"_id": "b", "n": 0}, {"_id": "c", "n": -1}]);
    server.until("/_worker", |answer| answer["db_name"] == "_worker").await;
    let (_, tried) =
        server.json("POST", "/_worker/_api/jobs/test", json!({"mapping": mapping, "documents": documents})).await;
    assert_eq!(tried["results"][0]["json"], json!({"_id": "a", "twice": 4}));
    assert_eq!(tried["results"][1]["matches"], false);
    assert!(tried["results"][2]["error"].as_str().unwrap().contains("below zero"), "{tried}");
    let none = json!({"mapping": {"function": "7"}, "documents": documents});
    assert_eq!(server.json("POST", "/_worker/_api/jobs/test", none).await.0, 400);
    // A job whose queue has room for two entries.
    for (id, n) in [("a", 2), ("b", 0), ("c", -1), ("d", -2)] {
        server.ok("PUT", &format!("/db/{id}"), json!({"n": n})).await;
    }
    let mut lines = job("lines", "cloud", json!({"id": "out", "provider": "file", "file": "x.jsonl"}), mapping);
    lines["system"]["dlq"] = json!({"entries_max": 2});
    put(&server, &lines).await;
    wait(&server, "lines", |job| job["queued"] == 2 && job["lag"]["rows"] == 0).await;
    server.ok("PUT", "/db/e", json!({"n": -3})).await;
    let halted = wait(&server, "lines", |job| job["state"] == "halted").await;
    assert_eq!(halted["halted"]["kind"], "queue_full", "{halted}");
    // Clearing the queue and starting the job loses nothing.
    server.ok("DELETE", "/_worker/_api/dlq?job=lines", Value::Null).await;
    server.ok("PUT", "/db/f", json!({"n": 5})).await;
    server.ok("POST", "/_worker/_api/jobs/lines/start", Value::Null).await;
    wait(&server, "lines", |job| job["state"] == "running" && job["lag"]["rows"] == 0 && job["seq"].is_string()).await;
    let text = || std::fs::read_to_string(directory.path().join("x.jsonl")).unwrap();
    until("f comes", async || text().contains("\"id\":\"f\"")).await;
    let newest: BTreeMap<String, Value> = text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| (line["id"].as_str().unwrap().to_owned(), json!([line["doc"]["twice"], line["deleted"]])))
        .collect();
    assert_eq!(json!(newest), json!({"a": [4, null], "b": [null, true], "f": [10, null]}));
    let (_, count) = server.json("GET", "/_worker/_api/dlq/count?job=lines", Value::Null).await;
    assert_eq!(count["count"], 1, "{count}");
    // An invalid function halts the job and is reported.
    let broken = job("broken", "cloud", json!({"id": "out", "provider": "stdout"}), json!({"function": "(doc) =>"}));
    put(&server, &broken).await;
    let halted = wait(&server, "broken", |job| job["state"] == "halted").await;
    assert_eq!(halted["halted"]["kind"], "broken", "{halted}");
}
