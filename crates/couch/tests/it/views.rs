//! Queries of views: what the recordings do not ask. What CouchDB answers is replayed by `tests/answers.test.mjs`.

use std::time::Duration;

use serde_json::{Value, json};

use super::store;
use crate::support::{Running, ServerOptions, soon};

const NULL: Value = Value::Null;

/// A database `db` with so many documents, each of a number, and a design document.
async fn serve(documents: usize, design: Value) -> Option<Running> {
    let server = store()?.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db", NULL).await;
    for begin in (0..documents).step_by(1_000) {
        let docs: Vec<Value> = (begin..documents.min(begin + 1_000))
            .map(|n| json!({"_id": format!("{n:06}"), "n": n, "tens": n / 10, "text": "x".repeat(300)}))
            .collect();
        server.ok("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    }
    server.ok("PUT", "/db/_design/d", design).await;
    Some(server)
}

fn design() -> Value {
    json!({"views": {
        "n": {"map": "function (doc) { emit(doc.n, doc.text); }"},
        "tens": {"map": "function (doc) { emit([doc.tens, doc.n], doc.n); }", "reduce": "_sum"},
    }})
}

fn rows(answer: &Value) -> &Vec<Value> {
    answer["rows"].as_array().unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn rows_of_many_pages() {
    let Some(server) = serve(5_000, design()).await else { return };
    let get = async |query: &str| server.ok("GET", &format!("/db/_design/d/_view/{query}"), NULL).await;
    let all = get("n?include_docs=true").await;
    assert_eq!((&all["total_rows"], &all["offset"], rows(&all).len()), (&json!(5_000), &json!(0), 5_000));
    assert!(rows(&all).iter().enumerate().all(|(n, row)| row["key"] == json!(n) && row["doc"]["n"] == json!(n)));
    let some = get("n?descending=true&startkey=4499&skip=100&limit=3000&update_seq=true").await;
    assert_eq!((&some["offset"], rows(&some).len()), (&json!(600), 3_000));
    assert_eq!((&rows(&some)[0]["key"], &rows(&some)[2_999]["key"]), (&json!(4_399), &json!(1_400)));
    assert!(some["update_seq"].is_string());
    let groups = get("tens?group_level=1").await;
    assert_eq!(rows(&groups).len(), 500);
    assert!(rows(&groups).iter().enumerate().all(|(ten, row)| row["value"] == json!(100 * ten + 45)));
    let keys: Vec<usize> = (0..3_000).rev().collect();
    let found = server.ok("POST", "/db/_design/d/_view/n", json!({"keys": keys, "skip": 10})).await;
    assert_eq!((rows(&found).len(), &rows(&found)[0]["key"]), (2_990, &json!(2_989)));
}

#[tokio::test]
async fn what_was_written_before_is_in_the_answer() {
    let Some(server) = serve(10, design()).await else { return };
    for n in 10..40 {
        server.ok("PUT", &format!("/db/{n:06}"), json!({"n": n, "tens": n / 10})).await;
        let answer = server.ok("GET", &format!("/db/_design/d/_view/n?key={n}"), NULL).await;
        assert_eq!((rows(&answer).len(), &answer["total_rows"]), (1, &json!(n + 1)), "{n}");
        let answer = server.ok("GET", "/db/_design/d/_view/tens", NULL).await;
        assert_eq!(answer["rows"][0]["value"], json!(n * (n + 1) / 2), "{n}");
    }
    let late = server.ok("GET", "/db/_design/d/_view/n?update=false", NULL).await;
    assert!(rows(&late).len() <= 40);
}

#[tokio::test]
async fn hostile_queries() {
    let Some(server) = serve(20, design()).await else { return };
    let post = async |path: &str, body: &Value| {
        server.json("POST", &format!("/db/_design/d/_view/{path}"), body.clone()).await
    };
    let (status, answer) = post("n/queries", &json!({"queries": vec![json!({}); 1_001]})).await;
    assert_eq!((status, &answer["reason"]), (400, &json!("at most 1000 queries")));
    let (status, answer) = post("n/queries", &json!({"queries": [{}, {"startkey": 2, "endkey": 1}]})).await;
    assert_eq!((status, &answer["error"]), (400, &json!("query_parse_error")), "before anything is sent");
    // Keys of any length and depth, of which none is found, or which are refused.
    let deep = (0..90).fold(json!(1), |inner, _| json!([inner]));
    let long = "\u{10ffff}".repeat(100_000);
    for key in [deep, json!(long), json!({"a": long}), json!(1e308), json!("\u{0}")] {
        let (status, answer) = post("n", &json!({"key": key})).await;
        assert_eq!((status, rows(&answer).len()), (200, 0));
        let (status, answer) = post("tens", &json!({"startkey": [key, 1], "group": true})).await;
        assert!(status == 200 && answer["rows"].is_array(), "{status}");
        let (status, _) = post("n", &json!({"startkey": key, "startkey_docid": long, "endkey_docid": "\u{0}"})).await;
        assert_eq!(status, 200);
    }
    for path in
        ["n?limit=99999999999999999999999&skip=99999999999999999999999", "tens?group_level=99999999999999999999"]
    {
        let (status, answer) = server.json("GET", &format!("/db/_design/d/_view/{path}"), NULL).await;
        assert!(status == 200 && answer["rows"].is_array(), "{path}");
    }
    let many = vec![json!(3); 20_000];
    let (status, answer) = post("n", &json!({"keys": many})).await;
    assert_eq!((status, rows(&answer).len()), (200, 20_000));
}

/// A map that never ends fails its query, and nobody else's.
#[tokio::test]
async fn maps_that_do_not_end() {
    let Some(server) = serve(3, design()).await else { return };
    server.ok("PUT", "/db/_design/e", json!({"views": {"x": {"map": "function (doc) { for (;;); }"}}})).await;
    let endless = server.connect();
    let mut endless = endless.await;
    endless.send("GET", "/db/_design/e/_view/x", &[], b"").await;
    let other = tokio::time::timeout(Duration::from_secs(20), server.ok("GET", "/db/_design/d/_view/n", NULL));
    assert_eq!(rows(&soon(other).await.expect("in time")).len(), 3);
}

#[tokio::test]
async fn what_is_gone() {
    let Some(server) = serve(3, design()).await else { return };
    let get = async |path: &str| server.json("GET", path, NULL).await;
    server.ok("GET", "/db/_design/d/_view/n", NULL).await;
    let info = server.ok("GET", "/db/_design/d/_info", NULL).await;
    assert_eq!((&info["name"], &info["view_index"]["language"]), (&json!("d"), &json!("javascript")));
    let rev = server.ok("GET", "/db/_design/d", NULL).await["_rev"].as_str().unwrap().to_owned();
    server.ok("DELETE", &format!("/db/_design/d?rev={rev}"), NULL).await;
    assert_eq!(get("/db/_design/d/_view/n").await.0, 404);
    assert_eq!(get("/db/_design/d/_info").await.0, 404);
    assert_eq!(server.json("POST", "/db/_compact/d", json!({})).await.0, 404);
    assert_eq!(server.json("POST", "/db/_view_cleanup", json!({})).await.0, 202);
    server.ok("DELETE", "/db", NULL).await;
    assert_eq!(get("/db/_design/d/_view/n").await.1["reason"], json!("Database does not exist."));
}

/// Views of fields: a group is kept from the first question on, and follows.
#[tokio::test]
async fn views_in_the_query_language() {
    let Some(server) = serve(1_200, json!({})).await else { return };
    let index = json!({"index": {"fields": ["tens", "n"], "partial_filter_selector": {"n": {"$lt": 1_000}}}});
    let made = server.ok("POST", "/db/_index", json!({"index": index["index"], "ddoc": "q", "name": "i"})).await;
    assert_eq!(made["result"], "created");
    // Who looks at it has not asked for its rows.
    let info = server.ok("GET", "/db/_design/q/_info", NULL).await;
    let (language, size) = (&info["view_index"]["language"], &info["view_index"]["sizes"]["file"]);
    assert_eq!((language, size), (&json!("query"), &json!(0)), "{info}");
    let get = async |query: &str| server.ok("GET", &format!("/db/_design/q/_view/i?{query}"), NULL).await;
    let ids = |answer: &Value| -> Vec<String> {
        rows(answer).iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(get("").await["rows"], json!([{"key": null, "value": 1_000}]));
    assert_eq!(get("group_level=1&skip=7&limit=1").await["rows"], json!([{"key": [7], "value": 10}]));
    let page = get("reduce=false&startkey=[50]&endkey=[50,%22%22]&descending=false&include_docs=true&skip=8").await;
    assert_eq!((&page["total_rows"], &page["offset"]), (&json!(1_000), &json!(508)));
    assert_eq!((&page["rows"][1]["key"], &page["rows"][1]["doc"]["n"]), (&json!([50, 509]), &json!(509)));
    assert_eq!(ids(&get("reduce=false&descending=true&limit=2").await), ["000999", "000998"]);
    let keys = json!({"keys": [[1, 11], [0, 0], [0]], "reduce": false});
    assert_eq!(ids(&server.ok("POST", "/db/_design/q/_view/i", keys).await), ["000011", "000000"]);
    let info = server.ok("GET", "/db/_design/q/_info", NULL).await;
    assert!(info["view_index"]["sizes"]["external"].as_u64() > Some(10_000), "{info}");
    // It follows writes, also those of the design document.
    server.ok("PUT", "/db/new", json!({"n": -1, "tens": [null]})).await;
    assert_eq!(ids(&get("reduce=false&descending=true&limit=1").await), ["new"]);
    let index = json!({"index": {"fields": ["n"]}, "ddoc": "q", "name": "other"});
    assert_eq!(server.ok("POST", "/db/_index", index).await["result"], "created");
    let other = server.ok("GET", "/db/_design/q/_view/other?reduce=false&endkey=[0]", NULL).await;
    assert_eq!((&other["total_rows"], ids(&other)), (&json!(1_201), vec!["new".to_owned(), "000000".to_owned()]));
    assert_eq!(get("").await["rows"], json!([{"key": null, "value": 1_001}]));
    let written = json!({"language": "query", "views": {"x": {"map": {"fields": {"n": "asc"}}, "reduce": "function"}}});
    server.ok("PUT", "/db/_design/w", written).await;
    let (status, answer) = server.json("GET", "/db/_design/w/_view/x", NULL).await;
    assert_eq!((status, &answer["error"]), (400, &json!("invalid_design_doc")));
    let (status, answer) = server.json("GET", "/db/_design/q/_view/none", NULL).await;
    assert_eq!((status, &answer["reason"]), (404, &json!("missing_named_view")));
}
