//! `_changes?filter=_index/NAME` has the answers of `filter=_selector` with the index's selector, in all feeds. Wrong
//! definitions are refused, and Mango does not use the index.

use std::time::Duration;

use crate::support::{Answer, Running, ServerOptions, Store, soon};
use flatbed_testkit::{pass, until_some};
use serde_json::{Value, json};

const NULL: Value = Value::Null;

async fn get(server: &Running, path: &str) -> Answer {
    server.connect().await.call("GET", path, &[], b"").await
}

/// Returns the answer once the index is built; until then each answer has `retry-after`.
async fn built(server: &Running, path: &str) -> Value {
    let look = async || {
        let answer = get(server, path).await;
        if answer.status == 200 {
            return Some(answer.json());
        }
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.body);
        assert_eq!(answer.json()["error"], "service_unavailable");
        None
    };
    until_some(path, look).await
}

async fn filled(server: &Running, selectors: &Value) {
    server.ok("PUT", "/db", NULL).await;
    let doc = |n: u32| json!({"_id": format!("d{n:02}"), "n": n % 5, "at": {"x": n}});
    let docs: Vec<Value> = (0..30).map(doc).collect();
    let rows = server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    let rev = |n: usize| rows[n]["rev"].as_str().expect("a rev").to_owned();
    // Tombstones with and without bodies, and conflicts, written before the index.
    server.ok("DELETE", &format!("/db/d03?rev={}", rev(3)), NULL).await;
    server.ok("PUT", "/db/d08", json!({"_rev": rev(8), "_deleted": true, "n": 3})).await;
    // These revisions win.
    let won = format!("1-{}", "f".repeat(32));
    let conflicts = json!([{"_id": "d13", "_rev": won, "n": 9}, {"_id": "d14", "_rev": won, "n": 3}]);
    server.ok("POST", "/db/_bulk_docs", json!({"docs": conflicts, "new_edits": false})).await;
    server.ok("PUT", "/db/_design/feeds", json!({ "selector_indexes": selectors })).await;
    // Written after the index.
    server.ok("PUT", "/db/new", json!({"n": 3})).await;
    server.ok("DELETE", &format!("/db/d18?rev={}", rev(18)), NULL).await;
    server.ok("PUT", "/db/d23", json!({"_rev": rev(23), "_deleted": true, "n": 3})).await;
    server.ok("PUT", "/db/d28", json!({"_rev": rev(28), "n": 4})).await;
}

#[tokio::test]
async fn a_feed_of_an_index_is_that_of_its_selector() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let selectors = json!({
        "threes": {"n": 3},
        "gone": {"_deleted": true},
        "all": {},
        "designs": {"_id": {"$regex": "^_design/"}},
        "none": {"nothing": 1},
        "ü \u{1}'\"": {"at.x": {"$gt": 25}},
    });
    filled(&server, &selectors).await;
    let encoded = |name: &str| if name.is_ascii() { name.to_owned() } else { "%C3%BC%20%01%27%22".to_owned() };
    for (name, selector) in selectors.as_object().expect("selectors") {
        let filter = format!("filter=_index/{}", encoded(name));
        let all = built(&server, &format!("/db/_changes?{filter}")).await;
        assert_eq!(all["results"].as_array().expect("rows").is_empty(), name == "none", "{name}");
        let middle = server.ok("GET", "/db/_changes?limit=20", NULL).await["last_seq"].as_str().unwrap().to_owned();
        for query in [
            String::new(),
            "include_docs=true&style=all_docs".to_owned(),
            "limit=2".to_owned(),
            "limit=0".to_owned(),
            "descending=true&limit=3&include_docs=true".to_owned(),
            "since=now".to_owned(),
            "active_only=true&include_docs=true".to_owned(),
            format!("since={middle}&style=all_docs&conflicts=true&include_docs=true"),
            format!("since={middle}&limit=1&feed=longpoll&timeout=100"),
        ] {
            let found = server.ok("GET", &format!("/db/_changes?{filter}&{query}"), NULL).await;
            let asked = json!({ "selector": selector });
            let walked = server.ok("POST", &format!("/db/_changes?filter=_selector&{query}"), asked).await;
            assert_eq!(found["results"], walked["results"], "{name} {query}");
            // Descending, `_selector` ends with the oldest change of the database, which the index may not contain.
            if !query.starts_with("descending") {
                assert_eq!(found["last_seq"], walked["last_seq"], "{name} {query}");
            }
            let path = format!("/db/_changes?filter=_index/feeds/{}&{query}", encoded(name));
            assert_eq!(server.ok("POST", &path, json!({})).await, found, "{name} {query}");
        }
        let two = server.ok("GET", &format!("/db/_changes?{filter}&limit=2"), NULL).await;
        let left = all["results"].as_array().unwrap().len().saturating_sub(2);
        assert_eq!(two["pending"], json!(left), "{name}");
    }
    // Followers get only rows of the index, as lines, events or one row.
    let since = server.ok("GET", "/db/_changes", NULL).await["last_seq"].as_str().unwrap().to_owned();
    let path = |more: &str| format!("/db/_changes?filter=_index/threes&since={since}&heartbeat=100{more}");
    let write = async {
        server.until_followed(3).await;
        for n in [1, 3, 2, 3, 4] {
            pass(Duration::from_millis(30)).await;
            server.ok("POST", "/db", json!({"n": n, "new": true})).await;
        }
    };
    let (continuous, events, longpoll) =
        (path("&feed=continuous&limit=2&include_docs=true"), path("&feed=eventsource&limit=2"), path("&feed=longpoll"));
    let (lines, events, longpoll, ()) =
        tokio::join!(get(&server, &continuous), get(&server, &events), get(&server, &longpoll), write);
    let rows: Vec<Value> = lines.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!((rows.len(), &rows[0]["doc"]["n"], &rows[1]["doc"]["n"]), (3, &json!(3), &json!(3)));
    assert_eq!(events.body.matches("data: {\"seq\"").count(), 2, "{}", events.body);
    assert_eq!(longpoll.json()["results"][0]["id"], rows[0]["id"]);
    server.stop().await;
}

#[tokio::test]
async fn names_that_are_none_and_names_that_are_two() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let long = "n".repeat(200);
    filled(&server, &json!({"threes": {"n": 3}, &long: {}})).await;
    built(&server, "/db/_changes?filter=_index/threes").await;
    built(&server, &format!("/db/_changes?filter=_index/{long}")).await;
    let missing = json!({"error": "not_found", "reason": "The database has no selector index of this name"});
    for name in ["other", "x/threes", "_design/x/threes", "feeds", "__proto__", "threes%00", "%F0%9F%98%80", "Threes"] {
        for feed in ["normal", "longpoll", "continuous", "eventsource"] {
            let answer = get(&server, &format!("/db/_changes?filter=_index/{name}&feed={feed}")).await;
            assert_eq!((answer.status, answer.json()), (404, missing.clone()), "{name} {feed}");
        }
    }
    for filter in ["_index", "_index/", "_index/feeds/", "_index//threes", "_indexes/threes"] {
        assert_eq!(get(&server, &format!("/db/_changes?filter={filter}")).await.status, 400, "{filter}");
    }
    // The name is ambiguous, so the design document must be named.
    let other = server.ok("PUT", "/db/_design/a%2Fb", json!({"selector_indexes": {"threes": {"n": 4}}})).await;
    let answer = get(&server, "/db/_changes?filter=_index/threes").await;
    assert_eq!((answer.status, &answer.json()["error"]), (400, &json!("bad_request")));
    let fours = built(&server, "/db/_changes?filter=_index/a/b/threes&include_docs=true").await;
    assert!(fours["results"].as_array().unwrap().iter().all(|row| row["doc"]["n"] == 4));
    let threes = built(&server, "/db/_changes?filter=_index/_design/feeds/threes").await;
    assert_ne!(threes["results"], fours["results"]);
    let rev = other["rev"].as_str().unwrap();
    server.ok("DELETE", &format!("/db/_design/a%2Fb?rev={rev}"), NULL).await;
    assert_eq!(server.ok("GET", "/db/_changes?filter=_index/threes", NULL).await["results"], threes["results"]);
    // A feed ends when its index is deleted.
    let mut client = server.connect().await;
    client.send("GET", "/db/_changes?filter=_index/threes&feed=continuous&since=now&heartbeat=1000", &[], b"").await;
    assert_eq!(client.head().await.status, 200);
    let rev = server.ok("GET", "/db/_design/feeds", NULL).await["_rev"].as_str().unwrap().to_owned();
    server.ok("DELETE", &format!("/db/_design/feeds?rev={rev}"), NULL).await;
    // The answer is cut, which makes this client panic.
    let ended = tokio::spawn(async move {
        let mut rest = String::new();
        while client.feed_line(&mut rest).await.is_some() {}
    });
    assert!(soon(ended).await.is_err());
    assert_eq!(get(&server, "/db/_changes?filter=_index/threes").await.json(), missing);
    server.stop().await;
}

#[tokio::test]
async fn wrong_definitions_are_refused_as_find_refuses_selectors() {
    let server = Store::new().serve_database().await;
    let mut deep = json!(1);
    for _ in 0..120 {
        deep = json!({"$not": {"a": deep}});
    }
    for selector in
        [json!({"a": {"$nope": 1}}), json!({"a": {"$regex": "("}}), json!({"a": {"$in": 5}}), json!({"a..b": 1}), deep]
    {
        let found = server.json("POST", "/db/_find", json!({ "selector": selector })).await;
        let put = json!({"selector_indexes": {"fine": {}, "x": selector}});
        let refused = server.json("PUT", "/db/_design/d", put.clone()).await;
        assert_eq!((refused.0, &refused), (400, &found), "{selector}");
        let bulk = server
            .ok(
                "POST",
                "/db/_bulk_docs",
                json!({"docs": [{"_id": "_design/d", "selector_indexes": put["selector_indexes"]}]}),
            )
            .await;
        assert_eq!(bulk[0]["error"], refused.1["error"]);
    }
    let many: serde_json::Map<String, Value> = (0..65).map(|n| (format!("n{n}"), json!({}))).collect();
    for (indexes, error) in [
        (json!([]), "invalid_design_doc"),
        (json!(null), "invalid_design_doc"),
        (json!({"": {}}), "invalid_design_doc"),
        (json!({"a/b": {}}), "invalid_design_doc"),
        (json!({"n".repeat(201): {}}), "invalid_design_doc"),
        (Value::Object(many), "invalid_design_doc"),
        (json!({"x": []}), "invalid_selector_json"),
        (json!({"x": 5}), "invalid_selector_json"),
        (json!({"x": {"_attachments": {"$exists": true}}}), "not_supported"),
        (json!({"x": {"$or": [{"a": 1}, {"_conflicts": {"$exists": true}}]}}), "not_supported"),
        (json!({"x": {"a": "y".repeat(16_000)}}), "invalid_selector"),
    ] {
        let (status, answer) = server.json("PUT", "/db/_design/d", json!({ "selector_indexes": indexes })).await;
        assert_eq!((status, &answer["error"]), (400, &json!(error)), "{answer}");
    }
    assert_eq!(server.json("GET", "/db/_design/d", NULL).await.0, 404);
    // A replicated design document is not validated; its valid indexes work.
    let doc = json!({"_id": "_design/d", "_rev": "1-a", "selector_indexes": {"wrong": {"$nope": 1}, "right": {}}});
    server.json("POST", "/db/_bulk_docs", json!({"docs": [doc], "new_edits": false})).await;
    assert_eq!(get(&server, "/db/_changes?filter=_index/wrong").await.status, 404);
    // Indexes beyond the limit are stored but not built.
    for design in 0..8 {
        let large = |n: u32| (format!("i{design}{n:02}"), json!({"a": {"$in": [n, "y".repeat(2_000)]}}));
        let indexes: serde_json::Map<String, Value> = (0..10).map(large).collect();
        server.ok("PUT", &format!("/db/_design/m{design}"), json!({ "selector_indexes": indexes })).await;
    }
    built(&server, "/db/_changes?filter=_index/i000").await;
    assert_eq!(get(&server, "/db/_changes?filter=_index/i709").await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn queries_do_not_know_of_it() {
    let server = Store::new().serve(ServerOptions::default()).await;
    filled(&server, &json!({"threes": {"n": 3}})).await;
    built(&server, "/db/_changes?filter=_index/threes").await;
    let listed = server.ok("GET", "/db/_index", NULL).await;
    assert_eq!((&listed["total_rows"], &listed["indexes"][0]["name"]), (&json!(1), &json!("_all_docs")));
    for hint in [json!("feeds"), json!(["feeds", "threes"]), json!("_design/feeds")] {
        let query = json!({"selector": {"n": 3}, "use_index": hint});
        assert_eq!(server.ok("POST", "/db/_explain", query.clone()).await["index"]["name"], "_all_docs");
        assert!(!server.ok("POST", "/db/_find", query).await["docs"].as_array().unwrap().is_empty());
    }
    // A design document may have both kinds of index.
    let fours = json!({"language": "query", "selector_indexes": {"fours": {"n": 4}}});
    server.ok("PUT", "/db/_design/both", fours).await;
    server.ok("POST", "/db/_index", json!({"index": {"fields": ["n"]}, "ddoc": "both", "name": "fours"})).await;
    let query = json!({"selector": {"n": 3}, "use_index": "both"});
    assert_eq!(server.ok("POST", "/db/_explain", query.clone()).await["index"]["name"], "fours");
    assert!(!server.ok("POST", "/db/_find", query).await["docs"].as_array().unwrap().is_empty());
    built(&server, "/db/_changes?filter=_index/fours").await;
    assert_eq!(server.ok("GET", "/db/_index", NULL).await["total_rows"], 2);
    server.stop().await;
}
