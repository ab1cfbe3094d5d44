//! What one request may ask for is bounded: lists, the work for each of their entries, and work that nobody waits for.

mod support;

use flatbed_http::ServerOptions;
use serde_json::{Value, json};
use support::{Running, Store};

async fn serve(store: &Store) -> Running {
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
    server
}

/// What a counter stands at.
async fn counted(server: &Running, name: &str) -> u64 {
    let text = server.call("GET", "/metrics", "").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_document_has_one_name() {
    let server = serve(&Store::new()).await;
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
    let server = serve(&Store::new()).await;
    let mut docs = Vec::new();
    for at in 0..300 {
        docs.push(json!({"_id": format!("_local/{at}"), "a": at}));
        docs.push(json!({"_id": format!("d{at}")}));
    }
    let before = counted(&server, "flatbed_commits_total").await;
    let answer = server.ok("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    let commits = counted(&server, "flatbed_commits_total").await - before;
    assert!(commits < 30, "{commits}");
    for (doc, row) in docs.iter().zip(answer.as_array().unwrap()) {
        assert_eq!((&row["ok"], &row["id"]), (&json!(true), &doc["_id"]), "{row}");
    }
    assert_eq!(server.ok("GET", "/db/_local/299", Value::Null).await["a"], 299);
    // One after the other, and each with its own result.
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
