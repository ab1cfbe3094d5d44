//! Functions of design documents over HTTP: filters of changes.

use std::cell::Cell;
use std::time::Duration;

use super::{serve_database, store};
use crate::support::{Running, ServerOptions};
use flatbed_javascript::RunnerOptions;
use flatbed_layer::LayerOptions;
use flatbed_testkit::pass;
use serde_json::{Value, json};

const NULL: Value = Value::Null;

async fn design(server: &Running, design: Value) {
    server.ok("PUT", "/db/_design/d", design).await;
}

fn ids(changes: &Value) -> Vec<&str> {
    changes["results"].as_array().expect("rows").iter().map(|row| row["id"].as_str().expect("an id")).collect()
}

async fn numbered(server: &Running, count: u64) {
    let docs: Vec<Value> = (0..count).map(|n| json!({"_id": format!("doc{n:03}"), "n": n})).collect();
    server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
}

#[tokio::test]
async fn filters() {
    let Some(server) = serve_database().await else { return };
    let filters = json!({
        "filters": {
            "even": "function (doc) { return doc.n % 2 === 0; }",
            "from": "function (doc, req) { return doc.n >= Number(req.query.from); }",
            "who": "function (doc, req) { return req.userCtx.roles[0] === '_admin' && req.userCtx.db === 'db' && req.path[1] === '_changes' && req.headers.Authorization === undefined && req.headers.Host === 'localhost' && req.secObj.admins.roles[0] === '_admin' && doc.n === 1; }",
            "gone": "function (doc) { return doc._deleted; }",
            "broken": "function (doc) {",
            "throws": "function (doc) { throw({forbidden: 'no'}); }",
            "endless": "function (doc) { while (true) {} }",
        },
        "views": {"big": {"map": "function (doc) { if (doc.n > 7) emit(doc._id, null); }"}},
    });
    design(&server, filters).await;
    numbered(&server, 10).await;
    let get = async |query: &str| server.json("GET", &format!("/db/_changes?{query}"), NULL).await;
    let even = get("filter=d/even").await.1;
    assert_eq!(ids(&even), ["doc000", "doc002", "doc004", "doc006", "doc008"]);
    assert_eq!(even["results"][0].get("doc"), None);
    let newest = get("").await.1;
    assert_eq!(even["last_seq"], newest["last_seq"]);
    let with_docs = get("filter=d/even&include_docs=true&limit=2").await.1;
    assert_eq!(ids(&with_docs), ["doc000", "doc002"]);
    assert_eq!(with_docs["results"][1]["doc"]["n"], 2);
    assert_eq!(with_docs["last_seq"], with_docs["results"][1]["seq"]);
    let rest = get(&format!("filter=d/even&since={}", with_docs["last_seq"].as_str().unwrap())).await.1;
    assert_eq!(ids(&rest), ["doc004", "doc006", "doc008"]);
    assert_eq!(ids(&get("filter=d/even&descending=true&limit=1").await.1), ["doc008"]);
    assert_eq!(ids(&get("filter=d/even&limit=0").await.1), [""; 0]);
    assert_eq!(ids(&get("filter=d/from&from=8").await.1), ["doc008", "doc009"]);
    assert_eq!(ids(&server.ok("POST", "/db/_changes?filter=d/from&from=9", json!({})).await), ["doc009"]);
    assert_eq!(ids(&get("filter=d/who").await.1), ["doc001"]);
    assert_eq!(ids(&get("filter=_view&view=d/big").await.1), ["doc008", "doc009"]);
    let rev = server.ok("GET", "/db/doc003", NULL).await["_rev"].as_str().unwrap().to_owned();
    server.ok("DELETE", &format!("/db/doc003?rev={rev}"), NULL).await;
    assert_eq!(ids(&get("filter=d/gone").await.1), ["doc003"]);

    server.ok("PUT", "/db/_design/empty", json!({})).await;
    for (query, status, error, reason) in [
        ("filter=empty/none", 404, "not_found", "missing json key: filters"),
        ("filter=_view&view=empty/none", 404, "not_found", "missing json key: views"),
        ("filter=d/none", 404, "not_found", "missing json key: none"),
        ("filter=e/even", 404, "not_found", "missing"),
        ("filter=_view&view=d/none", 404, "not_found", "missing json key: none"),
        ("filter=_view", 400, "bad_request", "`view` filter parameter is not provided."),
        ("filter=_view&view=a/b/c", 400, "bad_request", "`view` must be of the form `designname/viewname`"),
        ("filter=even", 400, "bad_request", "`filter` must be of the form `designname/filtername`"),
        ("filter=_none", 400, "bad_request", "unknown builtin filter name"),
        ("filter=d/throws", 403, "forbidden", "no"),
    ] {
        let (found, answer) = get(query).await;
        assert_eq!((found, &answer["error"], &answer["reason"]), (status, &json!(error), &json!(reason)), "{query}");
    }
    assert_eq!(get("filter=d/broken").await.1["error"], "compilation_error");
    // The endless feed does not delay the answers of the others.
    let (endless, even) = tokio::join!(get("filter=d/endless"), get("filter=d/even"));
    assert_eq!(ids(&even.1).len(), 5);
    // 503 if other functions kept it from the processor.
    let ended = (endless.0, endless.1["error"].as_str().unwrap());
    assert!([(500, "timeout"), (503, "service_unavailable")].contains(&ended), "{ended:?}");
}

/// A filter judges each leaf that `style=all_docs` shows.
#[tokio::test]
async fn leaves_are_filtered() {
    let Some(server) = serve_database().await else { return };
    design(&server, json!({"filters": {"a": "function (doc) { return doc.branch === 'a'; }"}})).await;
    for branch in ["a", "b"] {
        let doc = json!({"_rev": format!("1-{branch}"), "branch": branch});
        server.ok("PUT", "/db/x?new_edits=false", doc).await;
    }
    let leaves = async |style: &str| {
        let changes = server.ok("GET", &format!("/db/_changes?filter=d/a&style={style}"), NULL).await;
        changes["results"].as_array().unwrap().iter().map(|row| row["changes"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(leaves("main_only").await, [NULL; 0]);
    assert_eq!(leaves("all_docs").await, [json!([{"rev": "1-a"}])]);
}

#[tokio::test]
async fn feeds_that_wait_are_filtered() {
    let Some(server) = serve_database().await else { return };
    design(&server, json!({"filters": {"even": "function (doc) { return doc.n % 2 === 0; }"}})).await;
    let since = server.ok("GET", "/db/_changes", NULL).await["last_seq"].as_str().unwrap().to_owned();
    let path = format!("/db/_changes?filter=d/even&since={since}&heartbeat=100");
    let longpoll = format!("{path}&feed=longpoll");
    let continuous = format!("{path}&feed=continuous&limit=2&include_docs=true");
    let write = async {
        server.until_followed(2).await;
        for n in [1, 3, 4, 5, 6] {
            pass(Duration::from_millis(30)).await;
            server.ok("PUT", &format!("/db/doc{n}"), json!({ "n": n })).await;
        }
    };
    let (polled, lines, ()) =
        tokio::join!(server.ok("GET", &longpoll, NULL), server.call("GET", &continuous, ""), write);
    // Both rows may come if the first is filtered late.
    assert_eq!(ids(&polled).first(), Some(&"doc4"));
    let rows: Vec<Value> = lines.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(rows.len(), 3, "{}", lines.body);
    assert_eq!((&rows[0]["id"], &rows[1]["doc"]["n"]), (&json!("doc4"), &json!(6)));
    assert_eq!(rows[2]["last_seq"], rows[1]["seq"]);
}

#[tokio::test]
async fn replications_are_filtered() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    for name in ["/db", "/copy"] {
        server.ok("PUT", name, NULL).await;
    }
    design(&server, json!({"filters": {"from": "function (doc, req) { return doc.n >= Number(req.query.from); }"}}))
        .await;
    numbered(&server, 10).await;
    let job = json!({"source": "db", "target": "copy", "filter": "d/from", "query_params": {"from": "7"}});
    server.ok("POST", "/_replicate", job).await;
    let copied = server.ok("GET", "/copy/_all_docs", NULL).await;
    assert_eq!(copied["total_rows"], 3);
}

/// Equal design documents in several databases, and requests of one database: no call sees another call's function
/// state.
#[tokio::test]
async fn functions_keep_nothing_from_request_to_request() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    let keeps = "var kept = require('lib').kept; kept.push(doc._id); if (typeof seen === 'undefined') seen = []; seen.push(doc._id);
        Array.prototype.before = (Array.prototype.before || 0) + 1;
        var all = kept.concat(seen, [].before > BATCH ? ['before'] : []);";
    let design = json!({
        "lib": "exports.kept = [];",
        "filters": {"f": format!("function (doc) {{ {} return all.join().indexOf('secret') < 0; }}", keeps.replace("BATCH", "100"))},
        "validate_doc_update": format!("function (doc) {{ {} if (all.length > 2) throw({{forbidden: all.join()}}); }}", keeps.replace("BATCH", "1")),
    });
    for round in 0..2 {
        for name in ["a", "b"] {
            server.ok("PUT", &format!("/{name}"), NULL).await;
            server.ok("PUT", &format!("/{name}/_design/d"), design.clone()).await;
        }
        server.ok("PUT", "/a/secret1", json!({})).await;
        server.ok("PUT", "/b/public", json!({})).await;
        server.ok("PUT", "/b/other", json!({})).await;
        for _ in 0..2 {
            let secret = server.ok("GET", "/a/_changes?filter=d/f", NULL).await;
            assert!(!ids(&secret).contains(&"secret1"), "round {round}: {secret}");
            let public = server.ok("GET", "/b/_changes?filter=d/f", NULL).await;
            assert_eq!(ids(&public).len(), 3, "round {round}: {public}");
        }
        // The same names recur.
        for name in ["a", "b"] {
            server.ok("DELETE", &format!("/{name}"), NULL).await;
        }
    }
}

/// The wait for a turn does not count as run time, and endless functions of one database do not delay another.
#[tokio::test]
async fn endless_functions_keep_no_other_database_waiting() {
    let Some(store) = store() else { return };
    // Longer than a call waits. The writes of a request go in two parts, of which one waits for the other.
    let validation_max = Duration::from_secs(8);
    let functions = RunnerOptions { threads: 2, validation_max, ..RunnerOptions::default() };
    let layer = store.layer_running(functions, LayerOptions::default()).await;
    let server = store.serve_on(layer, ServerOptions::default()).await;
    let endless = json!({"validate_doc_update": "function (doc) { if (doc.n) while (true) {} }"});
    let quick = json!({"validate_doc_update": "function (doc) { if (!doc.n) throw({forbidden: 'n'}); }"});
    for (name, design) in [("bad", endless), ("good", quick)] {
        server.ok("PUT", &format!("/{name}"), NULL).await;
        server.ok("PUT", &format!("/{name}/_design/d"), design).await;
    }
    let is_over = Cell::new(false);
    let bad = async {
        let docs: Vec<Value> = (0..4).map(|n| json!({"_id": format!("doc{n}"), "n": 1})).collect();
        let rows = server.ok("POST", "/bad/_bulk_docs", json!({ "docs": docs })).await;
        is_over.set(true);
        rows
    };
    let good = async {
        let mut before = 0;
        for n in 0..20 {
            pass(Duration::from_millis(50)).await;
            server.ok("PUT", &format!("/good/doc{n}"), json!({"n": 1})).await;
            before += usize::from(!is_over.get());
        }
        before
    };
    let (rows, before) = tokio::join!(bad, good);
    // A write that waited for the endless functions would be answered after these.
    assert!(before >= 3, "{before} writes were answered before");
    let errors: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["error"].as_str().unwrap()).collect();
    assert!(errors.contains(&"service_unavailable"), "{rows}");
    assert!(errors.iter().all(|error| ["timeout", "service_unavailable"].contains(error)), "{rows}");
    // A replicator skips a refused document, and retries a request.
    let docs: Vec<Value> = (0..4).map(|n| json!({"_id": format!("doc{n}"), "_rev": "1-a", "n": 1})).collect();
    let replicated = json!({"docs": docs, "new_edits": false});
    let (status, answer) = server.json("POST", "/bad/_bulk_docs", replicated).await;
    assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
}
