//! `_changes?filter=_selector`: results, and hostile selectors.

use std::time::Duration;

use crate::gate::Gate;
use crate::support::{ServerOptions, Store};
use flatbed_service::SelectorOptions;
use flatbed_testkit::pass;
use serde_json::{Value, json};

const NULL: Value = Value::Null;

fn ids(changes: &Value) -> Vec<&str> {
    changes["results"].as_array().expect("rows").iter().map(|row| row["id"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn feeds_are_selected() {
    let server = Store::new().serve_database().await;
    let docs: Vec<Value> = (0..10).map(|n| json!({"_id": format!("doc{n}"), "n": n})).collect();
    server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    let selected = json!({"selector": {"n": {"$gt": 6}}});
    let post = async |query: &str| server.ok("POST", &format!("/db/_changes?{query}"), selected.clone()).await;
    let all = post("filter=_selector").await;
    assert_eq!(ids(&all), ["doc7", "doc8", "doc9"]);
    assert_eq!(all["results"][0].get("doc"), None);
    assert_eq!(all["last_seq"], server.ok("GET", "/db/_changes", NULL).await["last_seq"]);
    let two = post("filter=_selector&limit=2&include_docs=true").await;
    assert_eq!((ids(&two), &two["results"][1]["doc"]["n"]), (vec!["doc7", "doc8"], &json!(8)));
    assert_eq!(two["last_seq"], two["results"][1]["seq"]);
    let since = two["last_seq"].as_str().unwrap();
    assert_eq!(ids(&post(&format!("filter=_selector&since={since}")).await), ["doc9"]);
    assert_eq!(ids(&post("filter=_selector&limit=0").await), [""; 0]);
    assert_eq!(ids(&post("filter=_selector&descending=true&limit=1").await), ["doc9"]);
    // Followers that share their rows; one with documents that take long.
    let since = all["last_seq"].as_str().unwrap();
    let path = |more: &str| format!("/db/_changes?filter=_selector&feed=continuous&since={since}&heartbeat=100{more}");
    let (plain, shown) = (path("&limit=2"), path("&limit=2&include_docs=true"));
    let body = selected.to_string();
    let write = async {
        server.until_followed(2).await;
        for n in [1, 20, 2, 21, 3, 22] {
            pass(Duration::from_millis(30)).await;
            let text = "x".repeat(if n < 21 { 10 } else { 600_000 });
            server.ok("PUT", &format!("/db/new{n}"), json!({"n": n, "text": text})).await;
        }
    };
    let (plain, shown, ()) =
        tokio::join!(server.call("POST", &plain, &body), server.call("POST", &shown, &body), write);
    for (lines, has_doc) in [(plain, false), (shown, true)] {
        let rows: Vec<Value> = lines.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!((&rows[0]["id"], &rows[1]["id"], rows.len()), (&json!("new20"), &json!("new21"), 3));
        assert_eq!(rows[0].get("doc").is_some(), has_doc);
        assert_eq!(rows[2]["last_seq"], rows[1]["seq"]);
    }
}

#[tokio::test]
async fn selectors_beyond_their_bounds_are_refused() {
    let server = Store::new().serve_database().await;
    let regexes: Vec<Value> = (0..600).map(|n| json!({"a": {"$regex": format!("^(\\w{n}a){{1,30}}$")}})).collect();
    let large: Vec<u32> = (0..50_000).collect();
    let mut deep = json!(1);
    for _ in 0..120 {
        deep = json!({"$not": {"a": deep}});
    }
    for (selector, reason) in [
        (json!({ "$or": regexes }), "The selector's regular expressions are too large"),
        (json!({"a": {"$in": large}}), "The selector is too large"),
        (deep, "The selector is nested too deeply"),
        (json!({"a": {"$regex": "("}}), "Bad argument for operator $regex: \"(\""),
        (json!([]), "Selector error: expected a JSON object"),
    ] {
        let (status, answer) =
            server.json("POST", "/db/_changes?filter=_selector", json!({ "selector": selector })).await;
        assert_eq!((status, &answer["error"], &answer["reason"]), (400, &json!("bad_request"), &json!(reason)));
    }
}

/// On a single thread: other requests are answered while a slow selector runs.
#[tokio::test]
async fn a_selector_that_takes_long_holds_up_nobody() {
    let (store, gate) = (Store::new(), Gate::new());
    let selectors = SelectorOptions { before_each: gate.before_each() };
    let server = std::sync::Arc::new(store.serve(ServerOptions { selectors, ..ServerOptions::default() }).await);
    server.ok("PUT", "/db", NULL).await;
    server.ok("PUT", "/db/doc", json!({"a": "x".repeat(100_000)})).await;
    let asked = server.clone();
    let asked = tokio::spawn(async move {
        let selector = json!({"selector": {"a": {"$regex": "^x"}}}).to_string();
        asked.call("POST", "/db/_changes?filter=_selector", &selector).await.status
    });
    gate.others_are_answered(&server, asked).await;
}
