//! The `_replicator` database: worked off by several servers on one store, each job by one at a time.

mod support;

use std::time::Duration;

use flatbed_http::{ReplicatorOptions, ServerOptions};
use serde_json::{Value, json};
use support::{Running, Store, soon};

fn options() -> ServerOptions {
    let replicator = ReplicatorOptions {
        first_pause: Duration::from_millis(100),
        lease: Duration::from_millis(1_500),
        ..ReplicatorOptions::default()
    };
    ServerOptions { replicator, ..ServerOptions::default() }
}

async fn call(server: &Running, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.call(method, path, &body).await;
    (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::Null))
}

async fn ok(server: &Running, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = call(server, method, path, body).await;
    assert!(status < 300, "{method} {path}: {status} {answer}");
    answer
}

/// Waits until what is read at a path is as wanted.
async fn until(server: &Running, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = async {
        loop {
            last = call(server, "GET", path, Value::Null).await.1;
            if wanted(&last) {
                return last.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(30), found).await {
        Ok(found) => found,
        Err(_) => panic!("{path}: {last}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_worked_off_and_tell_their_end() {
    let store = Store::new();
    let (one, two) = (store.serve(options()).await, store.serve(options()).await);
    for database in ["_replicator", "a", "z"] {
        ok(&one, "PUT", &format!("/{database}"), Value::Null).await;
    }
    let docs: Vec<Value> = (0..300).map(|n| json!({"_id": format!("doc{n}"), "n": n})).collect();
    ok(&one, "POST", "/a/_bulk_docs", json!({"docs": docs})).await;

    let target = format!("http://anna:s3cret@{}/b", two.address);
    ok(&one, "PUT", "/_replicator/once", json!({"source": "a", "target": target, "create_target": true})).await;
    let done = until(&two, "/_replicator/once", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(done["_replication_stats"]["docs_written"], 300, "{done}");
    assert_eq!(ok(&two, "GET", "/b", Value::Null).await["doc_count"], 300);
    let shown = until(&one, "/_scheduler/docs/_replicator/once", |doc| doc["state"] == "completed").await;
    assert_eq!(shown["target"], format!("http://{}/b/", two.address));
    assert!(!shown.to_string().contains("s3cret"));

    // What makes no sense fails at once, and is not tried again.
    ok(&one, "PUT", "/_replicator/nonsense", json!({"source": "a", "target": 1})).await;
    let failed = until(&one, "/_replicator/nonsense", |doc| doc["_replication_state"] == "failed").await;
    assert!(failed["_replication_state_reason"].as_str().unwrap().contains("target"), "{failed}");

    // What fails for now is tried again and again, and goes on as soon as it can.
    ok(&one, "PUT", "/_replicator/later", json!({"source": "none", "target": "z"})).await;
    for server in [&one, &two] {
        let path = "/_scheduler/docs/_replicator/later";
        let shown = until(server, path, |doc| doc["error_count"].as_u64().is_some_and(|count| count >= 2)).await;
        assert_eq!(shown["source"], "none", "{shown}");
    }
    ok(&two, "PUT", "/none", Value::Null).await;
    until(&one, "/_replicator/later", |doc| doc["_replication_state"] == "completed").await;

    // A document without its end asks anew.
    ok(&one, "PUT", "/a/more", json!({})).await;
    let again = json!({"_rev": done["_rev"], "source": "a", "target": target});
    ok(&two, "PUT", "/_replicator/once", again).await;
    let done = until(&one, "/_replicator/once", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(done["_replication_stats"]["docs_written"], 1, "{done}");
    let all = ok(&two, "GET", "/_scheduler/docs", Value::Null).await;
    assert_eq!((&all["total_rows"], all["docs"].as_array().unwrap().len()), (&json!(3), 3), "{all}");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_job_survives_the_server_that_runs_it() {
    let store = Store::new();
    // One server has a runtime of its own, so that all of it can end at once without a word.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = std::sync::Arc::new(store);
    let started = store.clone();
    let victim = runtime.spawn(async move { started.serve(options()).await }).await.unwrap();
    ok(&victim, "PUT", "/a", Value::Null).await;
    ok(&victim, "PUT", "/_replicator", Value::Null).await;
    for n in 0..8 {
        let spec = json!({"source": "a", "target": format!("b{n}"), "create_target": true, "continuous": true,
                          "checkpoint_interval": 50});
        ok(&victim, "PUT", &format!("/_replicator/job{n}"), spec).await;
    }
    ok(&victim, "PUT", "/a/first", json!({})).await;
    for n in 0..8 {
        until(&victim, &format!("/b{n}/first"), |doc| doc["_id"] == "first").await;
    }
    // The other shows them all, and runs none of them for as long as the first one is there: longer than a lease.
    let survivor = store.serve(options()).await;
    let count = |tasks: &Value| tasks.as_array().map_or(0, Vec::len);
    until(&survivor, "/_scheduler/jobs", |jobs| jobs["total_rows"] == 8).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(count(&ok(&survivor, "GET", "/_active_tasks", Value::Null).await), 0);
    assert_eq!(count(&ok(&victim, "GET", "/_active_tasks", Value::Null).await), 8);

    runtime.shutdown_background();
    ok(&survivor, "PUT", "/a/second", json!({})).await;
    for n in 0..8 {
        until(&survivor, &format!("/b{n}/second"), |doc| doc["_id"] == "second").await;
    }
    until(&survivor, "/_active_tasks", |tasks| count(tasks) == 8).await;

    // A document that is deleted ends its job.
    let rev = ok(&survivor, "GET", "/_replicator/job0", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    ok(&survivor, "DELETE", &format!("/_replicator/job0?rev={rev}"), Value::Null).await;
    until(&survivor, "/_scheduler/jobs", |jobs| jobs["total_rows"] == 7).await;
    // And so does the end of the whole database.
    ok(&survivor, "DELETE", "/_replicator", Value::Null).await;
    until(&survivor, "/_active_tasks", |tasks| count(tasks) == 0).await;
    soon(async { survivor.stop().await }).await;
}
