//! Bounds of one request: lists, the work per entry, and work whose client has disconnected.

use crate::support::{ADMIN, Running, ServerOptions, Store, within_a_second};
use flatbed_layer::LayerOptions;
use flatbed_testkit::until;
use serde_json::{Value, json};

/// Returns a JSON list that repeats one revision `count` times.
fn names(count: usize) -> String {
    format!("[{}]", vec!["\"1-a\""; count].join(","))
}

/// Returns a counter's value.
async fn counter_value(server: &Running, name: &str) -> u64 {
    let text = server.call("GET", "/metrics", "").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_revisions_are_bounded() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/d", json!({"a": 1})).await;
    for path in ["/db/_revs_diff", "/db/_missing_revs"] {
        let answer = server.call("POST", path, &format!("{{\"d\":{},\"e\":[]}}", names(99_999))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.contains("1-a"), "{answer:?}");
        let more = server.call("POST", path, &format!("{{\"d\":{},\"e\":{}}}", names(100_000), names(1))).await;
        assert_eq!((more.status, more.text("error")), (413, "too_large".to_owned()));
        let documents: Vec<String> = (0..100_001).map(|at| format!("\"{at}\":[]")).collect();
        assert_eq!(server.call("POST", path, &format!("{{{}}}", documents.join(","))).await.status, 413);
    }
    let get = async |count| {
        let path = format!("/db/d?atts_since={}", names(count).replace('"', "%22"));
        server.call("GET", &path, "").await.status
    };
    assert_eq!((get(1_000).await, get(1_001).await), (200, 400));
    let since = async |count| {
        let body = format!("{{\"docs\":[{{\"id\":\"d\",\"atts_since\":{}}}]}}", names(count));
        server.call("POST", "/db/_bulk_get", &body).await.json()["results"][0]["docs"][0].clone()
    };
    assert_eq!(since(1_000).await["ok"]["a"], 1);
    assert_eq!(since(1_001).await["error"]["error"], "bad_request");
    let entries = format!("{{\"docs\":[{}]}}", vec!["0"; 100_001].join(","));
    assert_eq!(server.call("POST", "/db/_bulk_get", &entries).await.status, 413);
    server.stop().await;
}

/// The histories are long enough that branches share records.
#[tokio::test(flavor = "multi_thread")]
async fn revisions_are_found_wherever_they_lie() {
    let server = Store::new().serve_database().await;
    let trunk: Vec<String> = (0..300).rev().map(|at| format!("{at:032x}")).collect();
    let line = |branch: usize| -> Vec<String> {
        let own = (0..branch).rev().map(|at| format!("{branch:016x}{at:016x}"));
        own.chain(trunk.iter().cloned()).collect()
    };
    let docs = (1..6).map(|branch| {
        let ids = line(branch * 20);
        json!({"_id": "d", "_revisions": {"start": ids.len(), "ids": ids}})
    });
    let docs: Vec<Value> = docs.collect();
    assert_eq!(server.ok("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await, json!([]));
    let mut known: Vec<String> = Vec::new();
    for branch in 1..6 {
        let ids = line(branch * 20);
        known.extend(ids.iter().enumerate().map(|(at, hash)| format!("{}-{hash}", ids.len() - at)));
    }
    // A hash at another generation is another revision.
    let unknown = ["7-0", "150-00000000000000000000000000000000", "500-x"];
    let asked: Vec<&str> = known.iter().map(String::as_str).chain(unknown).chain(unknown).collect();
    let found = server.ok("POST", "/db/_revs_diff", json!({"d": asked, "e": ["1-a"], "f": []})).await;
    assert_eq!(found["d"]["missing"], json!(unknown));
    assert_eq!(found["d"]["possible_ancestors"].as_array().unwrap().len(), 5);
    assert_eq!(found["e"], json!({"missing": ["1-a"]}));
    assert_eq!(found["f"], Value::Null);
    let leaves: Vec<String> = (1..6).map(|branch| format!("{}-{}", 300 + branch * 20, line(branch * 20)[0])).collect();
    assert_eq!(server.ok("POST", "/db/_missing_revs", json!({"d": leaves})).await, json!({"missing_revs": {}}));
    // Each leaf is returned once, even if several of its ancestors are named.
    let below = format!("%22100-{:032x}%22", 99);
    let path = format!("/db/d?latest=true&open_revs=[{},%229-x%22]", [below.as_str(); 500].join(","));
    let found = server.ok("GET", &path, Value::Null).await;
    let mut expected = vec![json!({"missing": "9-x"})];
    expected.extend(leaves.iter().map(|leaf| json!({"ok": {"_id": "d", "_rev": leaf}})));
    assert_eq!(found, json!(expected));
    server.stop().await;
}

/// The validations of 5,000 documents that loop until their time limit outlast the wait of this test.
#[tokio::test(flavor = "multi_thread")]
async fn the_validations_of_a_bulk_end_with_its_client() {
    const TREES: &str = "flatbed_memory_used_bytes{part=\"request_tree\"}";
    let store = Store::new();
    let layer = store.layer().await;
    let functions = layer.functions.clone();
    let server = store.serve_on(layer, ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
    let validator = "function (doc) { if (doc.loops) for (;;) {} }";
    server.ok("PUT", "/db/_design/v", json!({"validate_doc_update": validator})).await;
    let docs = vec![json!({"loops": true}); 5_000];
    let body = json!({ "docs": docs }).to_string();
    let calls = functions.figures().function_calls.get();
    let mut client = server.connect().await;
    client.send("POST", "/db/_bulk_docs", &[], body.as_bytes()).await;
    until("a validation runs", async || functions.figures().function_calls.get() > calls).await;
    assert!(server.figure(TREES).await > 0);
    drop(client);
    until("the request ends", async || server.figure(TREES).await == 0).await;
    assert_eq!(server.ok("GET", "/db/_all_docs", Value::Null).await["rows"].as_array().unwrap().len(), 1);
    server.stop().await;
}

/// A call takes 32 documents, and ends early after 20 ms.
#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_is_validated_in_few_calls() {
    let store = Store::new();
    let layer = store.layer().await;
    let functions = layer.functions.clone();
    let server = store.serve_on(layer, ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
    let validator = "function (doc) { if (doc.n % 10 === 7) throw({forbidden: 'no ' + doc.n}); }";
    for id in ["v", "w"] {
        server.ok("PUT", &format!("/db/_design/{id}"), json!({"validate_doc_update": validator})).await;
    }
    let docs: Vec<Value> = (0..1_000).map(|n| json!({"n": n})).collect();
    let calls = functions.figures().function_calls.get();
    let rows = server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    for (n, row) in rows.as_array().unwrap().iter().enumerate() {
        match n % 10 {
            7 => assert_eq!((&row["error"], &row["reason"]), (&json!("forbidden"), &json!(format!("no {n}")))),
            _ => assert_eq!(row["ok"], true, "{row}"),
        }
    }
    let calls = functions.figures().function_calls.get() - calls;
    // 64 on a machine that gives each call its 20 ms.
    assert!(calls < 500, "{calls}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn design_documents_are_counted_once_a_request() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/_design/a", json!({})).await;
    server.ok("PUT", "/db/b", json!({})).await;
    let queries = vec![json!({"limit": 0}); 500];
    let before = counter_value(&server, "flatbed_range_reads_total").await;
    let answer = server.ok("POST", "/db/_design_docs/queries", json!({"queries": queries})).await;
    let reads = counter_value(&server, "flatbed_range_reads_total").await - before;
    assert!(reads < 100, "{reads}");
    let results = answer["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[499]["total_rows"]), (500, &json!(1)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_mean_what_stands_in_them_and_in_the_path() {
    let server = Store::new().serve_database().await;
    for id in ["a", "b", "c"] {
        server.ok("PUT", &format!("/db/{id}"), json!({})).await;
    }
    let path = "/db/_all_docs/queries";
    let ids = |result: &Value| -> Vec<String> {
        let rows = result["rows"].as_array().unwrap();
        rows.iter().map(|row| row["id"].as_str().unwrap_or("-").to_owned()).collect()
    };
    let queries = json!({"queries": [{}, {"key": "c"}, {"descending": true, "limit": 1}]});
    let answer = server.ok("POST", &format!("{path}?keys=[%22b%22]"), queries.clone()).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.iter().map(ids).collect::<Vec<_>>(), [vec!["b"], vec!["c"], vec!["b"]]);
    for bad in [json!({"keys": 1}), json!({"keys": ["a", "b"], "key": "a"}), json!({"limit": "x"}), json!(1)] {
        assert_eq!(server.json("POST", path, json!({"queries": [{}, bad]})).await.0, 400, "{bad}");
    }
    // A page of another origin may send this without a preflight.
    let text = queries.to_string();
    let plain = [("content-type", "text/plain")];
    let answer = server.connect().await.call("POST", path, &plain, text.as_bytes()).await;
    assert_eq!(answer.status, 415, "{answer:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_document_has_one_name() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/_local/victim", json!({"a": 1})).await;
    let others = json!([{"_id": "_local/_local/victim", "a": 2}]);
    assert_eq!(server.ok("POST", "/db/_bulk_docs", json!({"docs": others})).await[0]["ok"], true);
    server.ok("POST", "/db", json!({"_id": "_local/_local/victim", "a": 3})).await;
    server.ok("PUT", "/db/_local%2F_local%2Fvictim", json!({"a": 4})).await;
    assert_eq!(server.ok("GET", "/db/_local/victim", Value::Null).await["a"], 1);
    for path in ["/db/_local/_local%2Fvictim", "/db/_local%2F_local%2Fvictim"] {
        let found = server.ok("GET", path, Value::Null).await;
        assert_eq!((&found["_id"], &found["a"]), (&json!("_local/_local/victim"), &json!(4)));
    }
    let longest = format!("_local/{}", "x".repeat(2_048));
    let refused = |(status, answer): (u16, Value)| (status, answer["error"].as_str().unwrap_or_default().to_owned());
    for id in [format!("{longest}x"), format!("_local/{}", "x".repeat(12_000)), "_local/".to_owned()] {
        let expected = (400, "illegal_docid".to_owned());
        assert_eq!(refused(server.json("POST", "/db", json!({"_id": id})).await), expected);
        let docs = json!({"docs": [{"_id": id}]});
        assert_eq!(refused(server.json("POST", "/db/_bulk_docs", docs).await), expected);
    }
    server.ok("POST", "/db", json!({"_id": longest})).await;
    assert_eq!(server.ok("GET", &format!("/db/{longest}"), Value::Null).await["_id"], longest);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_documents_of_one_request_go_together() {
    let server = Store::new().serve_database().await;
    let mut docs = Vec::new();
    for at in 0..300 {
        docs.push(json!({"_id": format!("_local/{at}"), "a": at}));
        docs.push(json!({"_id": format!("d{at}")}));
    }
    let before = counter_value(&server, "flatbed_commits_total").await;
    let answer = server.ok("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    let commits = counter_value(&server, "flatbed_commits_total").await - before;
    assert!(commits < 30, "{commits}");
    for (doc, row) in docs.iter().zip(answer.as_array().unwrap()) {
        assert_eq!((&row["ok"], &row["id"]), (&json!(true), &doc["_id"]), "{row}");
    }
    assert_eq!(server.ok("GET", "/db/_local/299", Value::Null).await["a"], 299);
    // The queries run one after the other, each with its own result.
    let large = "x".repeat(500_000);
    let docs = json!([
        {"_id": "_local/0", "_deleted": true},
        {"_id": "_local/0", "_deleted": true},
        {"_id": "_local/0", "_rev": "0-6", "a": large},
        {"_id": "_local/1", "a": large},
        {"_id": "_local/2", "a": "x".repeat(900_000)},
        {"_id": "d0", "_rev": "1-a"},
        {"_id": "_local/3", "_rev": "5-a"},
        {"_id": "_local/4", "a": "last"},
    ]);
    let answer = server.ok("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    let shown = |row: &Value| row["rev"].as_str().or(row["error"].as_str()).unwrap_or_default().to_owned();
    let shown: Vec<String> = answer.as_array().unwrap().iter().map(shown).collect();
    let expected = ["0-0", "not_found", "0-7", "0-1", "document_too_large", "conflict", "bad_request", "0-1"];
    assert_eq!(shown, expected);
    assert_eq!(server.ok("GET", "/db/_local/0", Value::Null).await["a"], large);
    assert_eq!(server.ok("GET", "/db/_local/2", Value::Null).await["a"], 2);
    server.stop().await;
}

/// The validation function rejects all documents but does not see local ones.
#[tokio::test(flavor = "multi_thread")]
async fn local_documents_of_anonymous_clients_are_bounded() {
    let store = Store::new();
    let layer = store.layer_with(LayerOptions { local_bytes_max: 8_000_000, ..LayerOptions::default() }).await;
    let server = store.serve_on(layer, ServerOptions::with_admin()).await;
    let call = async |method: &str, path: &str, headers: &[(&str, &str)], body: &Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        server.connect().await.call(method, path, headers, body.as_bytes()).await
    };
    assert_eq!(call("PUT", "/public", &[ADMIN], &Value::Null).await.status, 201);
    let open = json!({"members": {"names": [], "roles": []}, "admins": {"names": [], "roles": ["_admin"]}});
    assert_eq!(call("PUT", "/public/_security", &[ADMIN], &open).await.status, 200);
    let is_open = async || call("GET", "/public", &[], &Value::Null).await.status == 200;
    within_a_second("the database is open", is_open).await;
    let refuses = json!({"validate_doc_update": "function () { throw {forbidden: 'no'}; }"});
    assert_eq!(call("PUT", "/public/_design/d", &[ADMIN], &refuses).await.status, 201);
    assert_eq!(call("PUT", "/public/doc", &[], &json!({})).await.status, 403);

    let large = json!({"a": "x".repeat(300_000)});
    for (name, status) in [("1", 201), ("2", 201), ("3", 201), ("4", 403), ("1", 201)] {
        let answer = call("PUT", &format!("/public/_local/{name}"), &[], &large).await;
        assert_eq!(answer.status, status, "{name}: {answer:?}");
        assert!(status == 201 || answer.text("error") == "forbidden", "{answer:?}");
    }
    let docs = json!({"docs": [{"_id": "_local/4", "a": large["a"]}, {"_id": "_local/2", "_deleted": true}]});
    let rows = call("POST", "/public/_bulk_docs", &[], &docs).await.json();
    assert_eq!((&rows[0]["error"], &rows[1]["ok"]), (&json!("forbidden"), &json!(true)), "{rows}");
    assert_eq!(call("PUT", "/public/_local/4", &[], &large).await.status, 201);
    assert_eq!(call("PUT", "/public/_local/admins", &[ADMIN], &large).await.status, 201);
    // Clients that may not write documents may not write local documents.
    let closed = json!({"members": {"names": ["bob"], "roles": []}, "admins": {"names": [], "roles": ["_admin"]}});
    assert_eq!(call("PUT", "/public/_security", &[ADMIN], &closed).await.status, 200);
    for method in ["PUT", "DELETE"] {
        assert_eq!(call(method, "/public/_local/1", &[], &json!({})).await.status, 401, "{method}");
    }
    server.stop().await;
}
