//! Options of replications, in `POST /_replicate` and in documents of `_replicator`, and the secrecy of their
//! credentials.

use std::fmt::Write;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use flatbed_replicator::ReplicatorOptions;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::support::{Options, Running, ServerOptions, Store};

/// Set for the process whose whole log a test reads.
const ALONE: &str = "FLATBED_TEST_ALONE";

fn options() -> ReplicatorOptions {
    ReplicatorOptions { first_pause: Duration::from_millis(100), ..ReplicatorOptions::default() }
}

async fn ids(server: &Running, database: &str) -> Vec<String> {
    let changes = server.ok("GET", &format!("/{database}/_changes"), Value::Null).await;
    let rows = changes["results"].as_array().unwrap();
    let mut ids: Vec<String> = rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn some_documents_only() {
    let server = Store::new().serve(options()).await;
    for database in ["a", "_replicator"] {
        server.ok("PUT", &format!("/{database}"), Value::Null).await;
    }
    let docs: Vec<Value> = (0..20).map(|n| json!({"_id": format!("doc{n:02}"), "n": n, "odd": n % 2 == 1})).collect();
    server.ok("POST", "/a/_bulk_docs", json!({"docs": docs})).await;
    server.ok("PUT", "/a/_design/d", json!({"language": "javascript"})).await;
    let since = server.ok("GET", "/a", Value::Null).await["update_seq"].clone();
    server.ok("PUT", "/a/late", json!({"n": 100})).await;
    let url = server.url("a");

    let cases = [
        (json!({"doc_ids": ["doc01", "doc15", "none", "doc01"]}), vec!["doc01", "doc15"]),
        (json!({"doc_ids": ["doc%301", "%64oc15"]}), vec!["doc01", "doc15"]),
        (json!({"doc_ids": []}), vec![]),
        (json!({"doc_ids": ["none"]}), vec![]),
        (json!({"selector": {"n": {"$gte": 17}, "odd": true}}), vec!["doc17", "doc19"]),
        (json!({"selector": {"n": {"$gt": 18}}}), vec!["doc19", "late"]),
        (json!({"filter": "_design"}), vec!["_design/d"]),
        (json!({"since_seq": since}), vec!["late"]),
        (json!({"since_seq": since, "selector": {"odd": true}}), vec![]),
    ];
    for (number, (extra, wanted)) in cases.into_iter().enumerate() {
        // By name and over the network; by a request and by a document.
        for (way, source) in [("name", json!("a")), ("url", json!({"url": url}))] {
            let mut spec = json!({"source": source, "target": format!("{way}{number}"), "create_target": true});
            spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let answer = server.ok("POST", "/_replicate", spec.clone()).await;
            let logs = server.ok("GET", &format!("/{way}{number}/_local_docs"), Value::Null).await;
            if wanted.is_empty() {
                // As in CouchDB, a run that takes no change records nothing.
                assert_eq!((&answer["no_changes"], answer.get("history")), (&json!(true), None), "{spec} {answer}");
                assert_eq!(logs["rows"], json!([]), "{spec}");
            } else {
                assert_eq!(answer["history"][0]["docs_written"], wanted.len(), "{spec} {answer}");
                assert_eq!(logs["rows"].as_array().unwrap().len(), 1, "{spec} {logs}");
            }
            // CouchDB shows these counts beside the history if `doc_ids` picks the documents.
            for member in ["docs_read", "docs_written", "doc_write_failures", "start_time", "end_time"] {
                let has_counts = spec["doc_ids"].is_array() && !wanted.is_empty();
                let of_history = Some(&answer["history"][0][member]).filter(|_| has_counts);
                assert_eq!(answer.get(member), of_history, "{member} {spec} {answer}");
            }
            assert_eq!(ids(&server, &format!("{way}{number}")).await, wanted, "{spec}");

            spec["target"] = json!(format!("doc-{way}{number}"));
            let path = format!("/_replicator/{way}{number}");
            server.ok("PUT", &path, spec.clone()).await;
            let done = server.until(&path, |doc| doc["_replication_state"] == "completed").await;
            assert_eq!(done["_replication_stats"]["docs_written"], wanted.len(), "{done}");
            assert_eq!(ids(&server, &format!("doc-{way}{number}")).await, wanted, "{spec}");
        }
    }
    // A missing filter function is an error. No such job succeeds.
    let spec = json!({"source": "a", "target": "f", "create_target": true, "filter": "d/f"});
    let (status, answer) = server.json("POST", "/_replicate", spec.clone()).await;
    assert!(status >= 400 && answer["reason"].as_str().unwrap().contains("_changes of a"), "{status} {answer}");
    server.ok("PUT", "/_replicator/function", spec).await;
    let shown = server.until("/_scheduler/docs/_replicator/function", |doc| doc["state"] == "crashing").await;
    assert!(shown["info"]["error"].as_str().unwrap().contains("_changes of a"), "{shown}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_function_begins_anew() {
    let server = Store::new().serve(options()).await;
    server.ok("PUT", "/a", Value::Null).await;
    let docs: Vec<Value> = ["x1", "y1", "x2", "y2"].map(|id| json!({"_id": id, "kind": id[..1]})).to_vec();
    server.ok("POST", "/a/_bulk_docs", json!({"docs": docs})).await;
    let design = async |kind: &str| {
        let rev = server.json("GET", "/a/_design/d", Value::Null).await.1["_rev"].take();
        let mut document = json!({
            "filters": {"f": format!("function (doc) {{ return doc.kind === '{kind}'; }}")},
            "views": {"v": {"map": format!("function (doc) {{ if (doc.kind === '{kind}') emit(1); }}")}},
        });
        if rev.is_string() {
            document["_rev"] = rev;
        }
        server.ok("PUT", "/a/_design/d", document).await;
    };
    let extras = [json!({"filter": "d/f"}), json!({"filter": "_view", "query_params": {"view": "d/v"}})];
    for (number, extra) in extras.into_iter().enumerate() {
        let mut spec = json!({"source": "a", "target": format!("b{number}"), "create_target": true});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        for (kind, written, there) in [("x", 2, 2), ("y", 2, 4), ("x", 0, 4)] {
            design(kind).await;
            let answer = server.ok("POST", "/_replicate", spec.clone()).await;
            match written {
                0 => assert_eq!(answer["no_changes"], true, "{kind} {spec} {answer}"),
                _ => assert_eq!(answer["history"][0]["docs_written"], written, "{kind} {spec} {answer}"),
            }
            assert_eq!(ids(&server, &format!("b{number}")).await.len(), there, "{kind} {spec}");
        }
        let answer = server.ok("POST", "/_replicate", spec.clone()).await;
        assert_eq!(answer["no_changes"], true, "{answer}");

        let target = format!("c{number}");
        spec.as_object_mut().unwrap().extend(
            json!({"target": target, "continuous": true, "checkpoint_interval": 20}).as_object().unwrap().clone(),
        );
        let begun = server.ok("POST", "/_replicate", spec).await;
        server.until(&format!("/{target}/x2"), |doc| doc["kind"] == "x").await;
        server.until(&format!("/{target}/_local_docs"), |logs| logs["rows"][0].is_object()).await;
        design("y").await;
        // A feed that began earlier uses the old or the new function; each passes one of these documents.
        let more = [("x", format!("x{target}")), ("y", format!("y{target}"))];
        for (kind, id) in &more {
            server.ok("PUT", &format!("/a/{id}"), json!({"kind": kind})).await;
        }
        for id in ["y1", "y2", more[1].1.as_str()] {
            server.until(&format!("/{target}/{id}"), |doc| doc["kind"] == "y").await;
        }
        server.ok("POST", "/_replicate", json!({"cancel": true, "replication_id": begun["_local_id"]})).await;
        for (_, id) in &more {
            let rev = server.ok("GET", &format!("/a/{id}"), Value::Null).await["_rev"].take();
            server.ok("DELETE", &format!("/a/{id}?rev={}", rev.as_str().unwrap()), Value::Null).await;
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_checkpoints_and_winners() {
    let server = Store::new().serve(options()).await;
    for database in ["a", "_replicator"] {
        server.ok("PUT", &format!("/{database}"), Value::Null).await;
    }
    let leaf = |mark: char| {
        let hash = mark.to_string().repeat(32);
        json!({"_id": "x", "_rev": format!("1-{hash}"), "mark": mark.to_string()})
    };
    let docs = json!([leaf('a'), leaf('b'), leaf('c')]);
    server.ok("POST", "/a/_bulk_docs", json!({"docs": docs, "new_edits": false})).await;

    // Without `create_target` the target is not created, and a document's job waits for it.
    assert_eq!(server.json("POST", "/_replicate", json!({"source": "a", "target": "b"})).await.0, 404);
    server.ok("PUT", "/_replicator/b", json!({"source": "a", "target": "b"})).await;
    let shown = server.until("/_scheduler/docs/_replicator/b", |doc| doc["error_count"].as_u64() >= Some(1)).await;
    assert_eq!(shown["state"], "crashing", "{shown}");
    assert_eq!(server.json("GET", "/b", Value::Null).await.0, 404);
    server.ok("PUT", "/b", Value::Null).await;
    server.until("/_replicator/b", |doc| doc["_replication_state"] == "completed").await;
    // An existing target is used as it is.
    let spec = json!({"source": "a", "target": "b", "create_target": true});
    assert_eq!(server.ok("POST", "/_replicate", spec).await["no_changes"], true);
    server.ok("PUT", "/empty", Value::Null).await;
    let nothing = server.ok("POST", "/_replicate", json!({"source": "empty", "target": "b"})).await;
    assert_eq!(nothing, json!({"ok": true, "no_changes": true}));
    let all = server.ok("GET", "/b/x?conflicts=true", Value::Null).await;
    assert_eq!((&all["mark"], all["_conflicts"].as_array().unwrap().len()), (&json!("c"), 2));

    let spec = json!({"source": "a", "target": "w", "create_target": true, "winning_revs_only": true,
                      "use_checkpoints": false});
    server.ok("POST", "/_replicate", spec).await;
    let winner = server.ok("GET", "/w/x?conflicts=true", Value::Null).await;
    assert_eq!((&winner["mark"], &winner["_conflicts"]), (&json!("c"), &Value::Null));
    let logs = |of: Value| of["rows"].as_array().unwrap().len();
    assert_eq!(logs(server.ok("GET", "/w/_local_docs", Value::Null).await), 0);

    // Checkpoints are written while it runs, at the requested interval, and shown.
    let spec = json!({"source": "a", "target": "c", "create_target": true, "continuous": true,
                      "checkpoint_interval": 30});
    server.ok("PUT", "/_replicator/c", spec).await;
    server.until("/c/x", |doc| doc["mark"] == "c").await;
    server.until("/c/_local_docs", |found| found["rows"].as_array().is_some_and(|rows| rows.len() == 1)).await;
    let tasks = server.ok("GET", "/_active_tasks", Value::Null).await;
    assert_eq!((&tasks[0]["checkpoint_interval"], &tasks[0]["continuous"]), (&json!(30), &json!(true)), "{tasks}");
    let through = |tasks: &Value| tasks[0]["checkpointed_source_seq"].clone();
    let before = through(&tasks);
    server.ok("PUT", "/a/y", json!({})).await;
    server.until("/_active_tasks", |tasks| through(tasks) != before && through(tasks) == tasks[0]["source_seq"]).await;
    // The checkpoint may be older than the documents.
    let has_all = |found: &Value| found["rows"][0]["doc"]["history"][0]["docs_written"] == 4;
    let found = server.until("/c/_local_docs?include_docs=true", has_all).await;
    assert_eq!(found["rows"][0]["doc"]["replication_id_version"], 4, "{found}");
    server.stop().await;
}

/// Collects the log of all modules.
struct Log;

static LOGGED: Mutex<String> = Mutex::new(String::new());

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(LOGGED.lock().unwrap(), "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut Log);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Log);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Log);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Runs [`alone`] in a process of its own, because it reads the log of the whole process.
#[test]
fn secrets_open_doors_and_are_shown_nowhere() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "replication_options::alone", "--nocapture"]).env(ALONE, "1");
    let output = command.output().expect("a child");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Without a test of that name the process succeeds too.
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// The code of the process that [`secrets_open_doors_and_are_shown_nowhere`] starts; not a test of its own.
#[tokio::test(flavor = "multi_thread")]
async fn alone() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    tracing::subscriber::set_global_default(Log).unwrap();
    let (store, guarded_store) = (Store::new(), Store::new());
    let server = store.serve(options()).await;
    let with_admin = Options { server: ServerOptions::with_admin(), replicator: options(), ..Options::default() };
    let guarded = guarded_store.serve(with_admin).await;
    for database in ["a", "_replicator"] {
        server.ok("PUT", &format!("/{database}"), Value::Null).await;
    }
    server.ok("PUT", "/a/x", json!({})).await;

    let secrets = ["password", "YWRtaW46cGFzc3dvcmQ=", "wr0ng", "t0ken"];
    let check = |text: String, what: &str| {
        for secret in secrets {
            assert!(!text.contains(secret), "{what} shows {secret}: {text}");
        }
    };
    let at = guarded.address;
    let right = [
        json!(format!("http://admin:password@{at}/right0")),
        json!({"url": format!("http://{at}/right1"), "auth": {"basic": {"username": "admin", "password": "password"}}}),
        json!({"url": format!("http://{at}/right2"), "headers": {"Authorization": "Basic YWRtaW46cGFzc3dvcmQ=",
               "X-Secret": "t0ken"}}),
        // Separate credentials take precedence over the URL's.
        json!({"url": format!("http://admin:wr0ng@{at}/right3"), "headers": {"authorization": "Basic YWRtaW46cGFzc3dvcmQ="}}),
    ];
    for (number, target) in right.iter().enumerate() {
        let spec = json!({"source": "a", "target": target, "create_target": true, "continuous": true,
                          "checkpoint_interval": 10});
        server.ok("PUT", &format!("/_replicator/right{number}"), spec).await;
    }
    let shown = |jobs: &Value| {
        let jobs = jobs["jobs"].as_array().cloned().unwrap_or_default();
        jobs.iter().filter(|job| job["info"]["docs_written"] == 1).count() == right.len()
    };
    check(server.until("/_scheduler/jobs", shown).await.to_string(), "_scheduler/jobs");
    check(server.ok("GET", "/_active_tasks", Value::Null).await.to_string(), "_active_tasks");
    check(server.ok("GET", "/_scheduler/docs", Value::Null).await.to_string(), "_scheduler/docs");
    check(server.ok("GET", "/a/_local_docs?include_docs=true", Value::Null).await.to_string(), "a replication log");
    // Only the administrator who wrote it can read it.
    assert_eq!(server.ok("GET", "/_replicator/right0", Value::Null).await["target"], right[0]);

    let wrong =
        json!({"source": {"url": format!("http://admin:wr0ng@{at}/right0")}, "target": "z", "create_target": true});
    let (status, answer) = server.json("POST", "/_replicate", wrong.clone()).await;
    assert_eq!((status, &answer["error"]), (401, &json!("unauthorized")));
    check(answer.to_string(), "_replicate");
    server.ok("PUT", "/_replicator/wrong", wrong).await;
    let docs = "/_scheduler/docs/_replicator/wrong";
    let failed = server.until(docs, |doc| doc["error_count"].as_u64() >= Some(2)).await;
    assert!(failed["info"]["error"].as_str().unwrap_or("unauthorized").contains("unauthorized"), "{failed}");
    check(failed.to_string(), docs);
    check(server.ok("GET", "/_scheduler/jobs", Value::Null).await.to_string(), "_scheduler/jobs");
    // A permanent error is written into the document, with its text and no credentials.
    let nonsense = json!({"source": "a", "target": "http://admin:wr0ng@host:notaport/b"});
    server.ok("PUT", "/_replicator/nonsense", nonsense).await;
    let failed = server.until("/_replicator/nonsense", |doc| doc["_replication_state"] == "failed").await;
    check(failed["_replication_state_reason"].to_string(), "_replication_state_reason");
    check(server.ok("GET", "/_scheduler/docs/_replicator/nonsense", Value::Null).await.to_string(), "_scheduler/docs");

    server.stop().await;
    guarded.stop().await;
    let logged = LOGGED.lock().unwrap().clone();
    assert!(logged.contains("a replication failed"), "{logged}");
    check(logged, "the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_created_with_parameters() {
    let store = Store::new();
    let server = store.serve(options()).await;
    server.ok("PUT", "/a?partitioned=true", Value::Null).await;
    server.ok("PUT", "/a/p:1", json!({"n": 1})).await;
    for (name, target) in [("name", json!("name")), ("url", json!({"url": server.url("url")}))] {
        let parameters = json!({"partitioned": true, "q": "1"});
        let spec = json!({"source": "a", "target": target, "create_target": true, "create_target_params": parameters});
        let answer = server.ok("POST", "/_replicate", spec).await;
        assert_eq!(answer["history"][0]["docs_written"], 1, "{name} {answer}");
        let info = server.ok("GET", &format!("/{name}"), Value::Null).await;
        assert_eq!(info["props"]["partitioned"], true, "{name} {info}");
    }
}
