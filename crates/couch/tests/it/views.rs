//! Queries of views beyond the recordings. `tests/answers.test.mjs` replays CouchDB's answers.

use std::time::Duration;

use flatbed_javascript::RunnerOptions;
use flatbed_testkit::pass;
use serde_json::{Value, json};

use super::store;
use crate::support::{Running, ServerOptions};

const NULL: Value = Value::Null;

/// Serves a database `db` with `count` numbered documents and a design document.
async fn serve(documents: usize, design: Value) -> Option<Running> {
    let server = store()?.serve_database().await;
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
    // Keys of any length and depth: each matches nothing or is refused.
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
    for path in ["n?limit=576460752303423487&skip=99999999999999999999999", "tens?group_level=99999999999999999999"] {
        let (status, answer) = server.json("GET", &format!("/db/_design/d/_view/{path}"), NULL).await;
        assert!(status == 200 && answer["rows"].is_array(), "{path}");
    }
    let many = vec![json!(3); 20_000];
    let (status, answer) = post("n", &json!({"keys": many})).await;
    assert_eq!((status, rows(&answer).len()), (200, 20_000));
}

/// A map that never ends fails its own query only.
#[tokio::test]
async fn maps_that_do_not_end() {
    let Some(server) = serve(3, design()).await else { return };
    server.ok("PUT", "/db/_design/e", json!({"views": {"x": {"map": "function (doc) { for (;;); }"}}})).await;
    let endless = server.connect();
    let mut endless = endless.await;
    endless.send("GET", "/db/_design/e/_view/x", &[], b"").await;
    assert_eq!(rows(&server.ok("GET", "/db/_design/d/_view/n", NULL).await).len(), 3);
}

/// A document on which a map exceeds its memory limit is in no view, and `_info` lists it until the map succeeds.
#[tokio::test]
async fn documents_set_aside_are_listed() {
    let Some(server) = serve(3, design()).await else { return };
    let bad = server.ok("PUT", "/db/bad", json!({"bad": true})).await;
    let map = "function (doc) { if (doc.bad) for (var a = [];;) a.push(new Array(1000).fill(1)); emit(doc._id); }";
    server.ok("PUT", "/db/_design/e", json!({"views": {"x": {"map": map}}})).await;
    let count = async || server.ok("GET", "/db/_design/e/_view/x?limit=0", NULL).await["total_rows"].clone();
    let info = async || server.ok("GET", "/db/_design/e/_info", NULL).await["view_index"]["set_aside"].clone();
    assert_eq!(count().await, json!(3));
    let named = info().await;
    let first = &named["documents"][0];
    assert_eq!(
        (&named["count"], &first["id"], first["reason"].is_string()),
        (&json!(1), &json!("bad"), true),
        "{named}"
    );
    server.ok("PUT", "/db/bad", json!({"_rev": bad["rev"]})).await;
    assert_eq!((count().await, info().await), (json!(4), NULL));
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

/// Views of fields: the first query starts a group's maintenance. Functions have the limits of the settings, and a
/// document that emits more is in no view of its design document.
#[tokio::test]
async fn documents_that_emit_too_much_are_counted() {
    let Some(store) = store() else { return };
    let view_bounds = flatbed_layer::ViewBounds { rows: 60_000, bytes: 18_000_000, ..Default::default() };
    let options = flatbed_layer::LayerOptions { view_bounds, ..Default::default() };
    // A batch of this many rows can exceed the default 5 s in an unoptimized build on a busy machine.
    let functions = RunnerOptions { batch_max: Duration::from_secs(3_600), ..RunnerOptions::default() };
    let server = store.serve_on(store.layer_running(functions, options).await, ServerOptions::default()).await;
    server.ok("PUT", "/db", NULL).await;
    let rows =
        "function (doc) { for (var n = 0; n < doc.rows; n++) emit(n, doc.bytes ? 'x'.repeat(doc.bytes) : null); }";
    let design = json!({"views": {"rows": {"map": rows}, "id": {"map": "function (doc) { emit(doc._id); }"}}});
    server.ok("PUT", "/db/_design/d", design).await;
    let count = async |view: &str| {
        server.ok("GET", &format!("/db/_design/d/_view/{view}?limit=0"), NULL).await["total_rows"].clone()
    };
    let info = async || server.ok("GET", "/db/_design/d/_info", NULL).await["view_index"]["documents_refused"].clone();
    server.ok("PUT", "/db/many", json!({"rows": 55_000})).await;
    let large = server.ok("PUT", "/db/large", json!({"rows": 6, "bytes": 2_900_000})).await;
    assert_eq!((count("rows").await, count("id").await, info().await), (json!(55_006), json!(2), NULL));
    let more = server.ok("PUT", "/db/more", json!({"rows": 60_001})).await;
    let large = server.ok("PUT", "/db/large", json!({"_rev": large["rev"], "rows": 7, "bytes": 2_900_000})).await;
    server.ok("PUT", "/db/large", json!({"_rev": large["rev"], "rows": 8, "bytes": 2_900_000})).await;
    assert_eq!((count("rows").await, count("id").await, info().await), (json!(55_000), json!(1), json!(2)));
    server.ok("PUT", "/db/more", json!({"_rev": more["rev"], "rows": 1})).await;
    assert_eq!((count("rows").await, count("id").await, info().await), (json!(55_001), json!(2), json!(1)));
}

/// Documents that rows join besides winners are read separately, a few in each page.
#[tokio::test]
async fn many_rows_join_local_documents_and_revisions() {
    let map =
        "function (doc) { for (var n = 0; n < doc.rows; n++) emit(n, n % 2 ? {_id: '_local/x'} : {_rev: doc.old}); }";
    let Some(server) = serve(0, json!({"views": {"n": {"map": map}}})).await else { return };
    server.ok("PUT", "/db/_local/x", json!({"local": true})).await;
    let old = server.ok("PUT", "/db/a", json!({"old": true})).await["rev"].clone();
    server.ok("PUT", "/db/a", json!({"_rev": old, "old": old, "rows": 50})).await;
    for query in ["", "&descending=true", "&skip=3&limit=40", "&startkey=5&endkey=44"] {
        let found = server.ok("GET", &format!("/db/_design/d/_view/n?include_docs=true{query}"), NULL).await;
        let numbers: Vec<i64> = rows(&found).iter().map(|row| row["key"].as_i64().unwrap()).collect();
        let expected: Vec<i64> = match query {
            "" => (0..50).collect(),
            "&descending=true" => (0..50).rev().collect(),
            "&skip=3&limit=40" => (3..43).collect(),
            _ => (5..45).collect(),
        };
        assert_eq!(numbers, expected, "{query}");
        for row in rows(&found) {
            let is_local = row["key"].as_i64().unwrap() % 2 == 1;
            assert_eq!(row["doc"][if is_local { "local" } else { "old" }], json!(true), "{row}");
        }
    }
}

#[tokio::test]
async fn a_view_is_found_while_its_design_document_changes() {
    let Some(server) = serve(60, design()).await else { return };
    let other = |n: usize| {
        let mut design = design();
        design["views"][format!("o{}", n % 7)] = json!({"map": format!("function (doc) {{ emit({n}); }}")});
        design
    };
    let edits = async {
        let mut rev = server.ok("GET", "/db/_design/d", NULL).await["_rev"].clone();
        for n in 0..60 {
            let mut design = other(n);
            design["_rev"] = rev;
            rev = server.ok("PUT", "/db/_design/d", design).await["rev"].clone();
            pass(Duration::from_millis(5)).await;
        }
    };
    let is_over = std::cell::Cell::new(false);
    let single = async {
        while !is_over.get() {
            assert_eq!(rows(&server.ok("GET", "/db/_design/d/_view/n", NULL).await).len(), 60);
        }
    };
    let several = async {
        while !is_over.get() {
            let queries = json!({"queries": [{"limit": 1}, {"stale": "ok"}, {}]});
            let found = server.ok("POST", "/db/_design/d/_view/tens/queries", queries).await;
            assert_eq!(rows(&found["results"][2])[0]["value"], json!(1_770));
        }
    };
    tokio::join!(
        async {
            edits.await;
            is_over.set(true)
        },
        single,
        several
    );
}

#[tokio::test]
async fn views_in_the_query_language() {
    let Some(server) = serve(1_200, json!({})).await else { return };
    let index = json!({"index": {"fields": ["tens", "n"], "partial_filter_selector": {"n": {"$lt": 1_000}}}});
    let made = server.ok("POST", "/db/_index", json!({"index": index["index"], "ddoc": "q", "name": "i"})).await;
    assert_eq!(made["result"], "created");
    // A read of its definition does not query its rows.
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
    // The index follows writes, also those of the design document.
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
    // Indexes of a partitioned database are local to a partition.
    server.ok("PUT", "/parted?partitioned=true", NULL).await;
    for id in ["a:1", "a:2", "b:1"] {
        server.ok("PUT", &format!("/parted/{id}"), json!({"n": id})).await;
    }
    let index = json!({"index": {"fields": ["n"]}, "ddoc": "q", "name": "i"});
    server.ok("POST", "/parted/_index", index).await;
    let local = server.ok("GET", "/parted/_partition/a/_design/q/_view/i?reduce=false", NULL).await;
    assert_eq!(ids(&local), ["a:1", "a:2"]);
    let (status, _) = server.json("GET", "/parted/_design/q/_view/i", NULL).await;
    assert_eq!(status, 400);
    let (status, answer) = server.json("GET", "/db/_design/q/_view/none", NULL).await;
    assert_eq!((status, &answer["reason"]), (404, &json!("missing_named_view")));
}

/// Conflicting leaves are passed to maps only, both by a build and by a feed that other followers share.
#[tokio::test]
async fn deleted_leaves_are_shown_to_maps_alone() {
    let map = "function (doc) { emit(doc._id, [doc._conflicts, doc._deleted_conflicts]); }";
    let Some(server) = serve(0, json!({"views": {"v": {"map": map}}})).await else { return };
    let leaves = |id: &str| {
        let leaf = |hash: &str, deleted: bool| {
            let revisions = json!({"start": 2, "ids": [hash, "a"]});
            json!({"_id": id, "_rev": format!("2-{hash}"), "_revisions": revisions, "_deleted": deleted})
        };
        json!({"new_edits": false, "docs": [leaf("b", false), leaf("c", false), leaf("d", true)]})
    };
    for id in ["built", "followed"] {
        server.ok("POST", "/db/_bulk_docs", leaves(id)).await;
        let answer = server.ok("GET", &format!("/db/_design/d/_view/v?key=%22{id}%22"), NULL).await;
        assert_eq!(answer["rows"][0]["value"], json!([["2-b"], ["2-d"]]), "{id}");
    }
    for conflicts in [false, true] {
        let path = format!("/db/_changes?include_docs=true&conflicts={conflicts}");
        for path in [path, format!("/db/_all_docs?include_docs=true&conflicts={conflicts}")] {
            let text = server.ok("GET", &path, NULL).await.to_string();
            assert_eq!(text.contains("\"_conflicts\":[\"2-b\"]"), conflicts, "{text}");
            assert!(!text.contains("\"_deleted_conflicts\""), "{text}");
        }
    }
    // A follower gets the hub's rows without the leaves that the hub read for the group.
    for conflicts in [false, true] {
        let id = format!("new{conflicts}");
        server.ok("POST", "/db/_bulk_docs", leaves(&id)).await;
        let seq = server.ok("GET", "/db/_changes?limit=1&descending=true", NULL).await["last_seq"].clone();
        let seq = seq.as_str().unwrap_or_default().to_owned();
        let query = format!("feed=longpoll&include_docs=true&conflicts={conflicts}&since={seq}&timeout=60000");
        let path = format!("/db/_changes?{query}");
        let follower = server.ok("GET", &path, NULL);
        let write = async {
            server.until_followed(1).await;
            let leaf = json!({"_id": id, "_rev": "2-e", "_revisions": {"start": 2, "ids": ["e", "a"]}});
            server.ok("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": [leaf]})).await;
        };
        let (changes, ()) = tokio::join!(follower, write);
        let text = changes.to_string();
        assert!(text.contains("\"_rev\":\"2-e\""), "{text}");
        assert_eq!(text.contains("\"_conflicts\":[\"2-c\",\"2-b\"]"), conflicts, "{text}");
        assert!(!text.contains("\"_deleted_conflicts\""), "{text}");
    }
}

/// A reduce function gets the last row first, as in CouchDB, and the first row first in descending order. A secret of
/// the tree decides which rows, about one in a hundred, begin a node and so split the rows of one call. So the test
/// makes trees until one has a single node.
#[tokio::test]
async fn rows_of_a_reduce_are_in_the_other_order() {
    let map = |name: u32| {
        format!("function (doc) {{ if (doc.n < 10) emit([doc.n % 2, doc.n], String(doc.n)); /* {name} */ }}")
    };
    let reduce = "function (keys, values) { return '(' + values.join('') + ')'; }";
    let Some(server) = serve(12, json!({})).await else { return };
    let values_of = async |name: u32, query: &str| {
        let answer = server.ok("GET", &format!("/db/_design/{name}/_view/v?{query}"), NULL).await;
        rows(&answer).iter().map(|row| row["value"].clone()).collect::<Value>()
    };
    let mut name = 0;
    loop {
        let views = json!({"v": {"map": map(name), "reduce": reduce}});
        server.ok("PUT", &format!("/db/_design/{name}"), json!({ "views": views })).await;
        if values_of(name, "").await == json!(["(9753186420)"]) {
            break;
        }
        name += 1;
    }
    for (query, expected) in [
        ("descending=true", json!(["(0246813579)"])),
        ("group_level=1&descending=true", json!(["(13579)", "(02468)"])),
        ("group_level=1&descending=true&startkey=[1,6]&endkey=[0,4]", json!(["(135)", "(468)"])),
        ("group=true&descending=true&limit=2", json!(["(9)", "(7)"])),
    ] {
        // A page that the storage cuts short splits a call in two.
        let mut values = values_of(name, query).await;
        for _ in 0..100 {
            if values == expected {
                break;
            }
            values = values_of(name, query).await;
        }
        assert_eq!(values, expected, "{query}");
    }
}

/// Documents that values name are opened without options, as in CouchDB; local documents, too.
#[tokio::test]
async fn joined_documents_are_plain() {
    let map =
        "function (doc) { emit(0); emit(1, {_id: 'x'}); emit(2, {_id: '_local/l'}); emit(3, {_id: '_local/no'}); }";
    let Some(server) = serve(0, json!({"views": {"v": {"map": map}}})).await else { return };
    server.ok("PUT", "/db/_local/l", json!({"n": 7})).await;
    let data = json!("eHh4".repeat(200));
    let file = json!({"f": {"content_type": "text/plain", "data": data}});
    let leaf = |hash: &str| json!({"_id": "x", "_rev": format!("1-{hash}"), "_attachments": file});
    server.ok("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": [leaf("a"), leaf("b")]})).await;
    let get = async |options: &str| {
        let path = format!("/db/_design/d/_view/v?include_docs=true&conflicts=true&{options}");
        let answer = server.ok("GET", &path, NULL).await;
        let docs: Vec<Value> = rows(&answer).iter().map(|row| row["doc"].clone()).collect();
        docs
    };
    let docs = get("attachments=true").await;
    let file = |at: usize| &docs[at]["_attachments"]["f"];
    assert_eq!((&docs[0]["_conflicts"], docs[1].get("_conflicts")), (&json!(["1-a"]), None));
    assert_eq!((&file(0)["data"], file(1).get("data"), &file(1)["stub"]), (&data, None, &json!(true)));
    assert_eq!((&docs[2], &docs[3]), (&json!({"_id": "_local/l", "_rev": "0-1", "n": 7}), &NULL));
    let docs = get("att_encoding_info=true").await;
    let file = |at: usize| &docs[at]["_attachments"]["f"];
    assert_eq!((&file(0)["encoding"], file(1).get("encoding")), (&json!("gzip"), None));
}

/// `_local_docs` takes the parameters of `_all_docs`, and several queries.
#[tokio::test]
async fn lists_of_local_documents() {
    let Some(server) = serve(0, json!({})).await else { return };
    for id in ["a", "b", "c"] {
        server.ok("PUT", &format!("/db/_local/{id}"), json!({"id": id})).await;
    }
    let ids = |answer: &Value| -> Vec<String> {
        rows(answer).iter().map(|row| row["id"].as_str().unwrap_or("-").to_owned()).collect()
    };
    let queries = json!({"queries": [
        {"startkey": "_local/b"}, {"descending": true, "limit": 1}, {"keys": ["_local/c", 5, "a", "_local/a"], "skip": 1},
        {"endkey": 5}, {"key": "_local/b", "include_docs": true}, {"limit": 0, "update_seq": true},
    ]});
    let answer = server.ok("POST", "/db/_local_docs/queries", queries).await;
    let found: Vec<Vec<String>> = answer["results"].as_array().unwrap().iter().map(ids).collect();
    let expected: [&[&str]; 6] = [&["_local/b", "_local/c"], &["_local/c"], &["_local/a"], &[], &["_local/b"], &[]];
    assert_eq!(found, expected);
    assert_eq!(answer["results"][4]["rows"][0]["doc"]["id"], "b");
    assert!(answer["results"][5]["update_seq"].is_string() && answer["results"][5]["offset"].is_null());
    let keys = json!({"keys": ["_local/a", "_local/b"], "descending": true, "limit": 1});
    assert_eq!(ids(&server.ok("POST", "/db/_local_docs", keys).await), ["_local/b"]);
    for (path, body, reason) in [
        ("_local_docs/queries", json!({"queries": 5}), "`queries` member must be an array."),
        ("_local_docs/queries", json!({"queries": [{}, {"keys": 5}]}), "`keys` must be an array of strings."),
        ("_local_docs/queries", json!({"queries": [{"limit": "x"}]}), "Invalid value for integer: <<\"x\">>"),
        ("_local_docs/queries", json!({"queries": vec![json!({}); 1_001]}), "at most 1000 queries"),
        ("_local_docs", json!({"group": true}), "Invalid use of grouping on a map view."),
    ] {
        let (status, answer) = server.json("POST", &format!("/db/{path}"), body).await;
        assert_eq!((status, &answer["reason"]), (400, &json!(reason)));
    }
    let (status, _) = server.json("GET", "/db/_local_docs/queries", NULL).await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn a_query_of_what_is_up_to_date_is_one_transaction() {
    let Some(server) = serve(200, design()).await else { return };
    server.ok("POST", "/db/_index", json!({"index": {"fields": ["n"]}, "ddoc": "i", "name": "n"})).await;
    let transactions = async || -> f64 {
        let text = server.call("GET", "/metrics", "").await.body;
        let line = text.lines().find_map(|line| line.strip_prefix("flatbed_transactions_total "));
        line.expect("a line of transactions").trim().parse().expect("a number")
    };
    for (method, path, body) in [
        ("GET", "/db/_design/d/_view/n?startkey=50&limit=20", NULL),
        ("GET", "/db/_design/d/_view/tens?group_level=1&limit=20", NULL),
        ("POST", "/db/_find", json!({"selector": {"n": {"$gte": 50}}, "limit": 20})),
    ] {
        server.ok(method, path, body.clone()).await;
        // The server runs its own transactions meanwhile, more on a slow machine, and each injected fault adds one. In
        // one of ten attempts there are few.
        let mut fewest = f64::INFINITY;
        for _ in 0..10 {
            let before = transactions().await;
            for _ in 0..60 {
                server.ok(method, path, body.clone()).await;
            }
            fewest = fewest.min(transactions().await - before);
            if fewest < 90.0 {
                break;
            }
        }
        assert!(fewest < 90.0, "{path}: {fewest} transactions for 60 queries");
    }
}

#[tokio::test]
async fn queries_that_wait_are_tasks() {
    let slow = "function (doc) { var began = Date.now(); while (Date.now() - began < 1000); emit(doc.n); }";
    let Some(server) = serve(20, json!({"views": {"n": {"map": slow}}})).await else { return };
    let ask = || server.ok("GET", "/db/_design/d/_view/n?limit=1", NULL);
    let is_query = |task: &&Value| task["type"] == "view_query";
    let look = async {
        let tasks = server
            .until("/_active_tasks", |tasks| {
                let query = tasks.as_array().and_then(|tasks| tasks.iter().find(is_query));
                query.is_some_and(|query| query["waiting_clients"] == 2 && query["total_changes"] == 21)
            })
            .await;
        let query = tasks.as_array().unwrap().iter().find(is_query).unwrap();
        assert_eq!(
            (&query["database"], &query["design_document"], &query["view"]),
            (&json!("db"), &json!("_design/d"), &json!("n"))
        );
        assert!(query["started_on"].is_u64(), "{tasks}");
    };
    // The queries wait for 20 s, and the test drops them once it has seen them.
    tokio::select! {
        answers = async { tokio::join!(ask(), ask()) } => panic!("{answers:?}"),
        () = look => {}
    }
    server.until("/_active_tasks", |tasks| !tasks.as_array().unwrap().iter().any(|task| is_query(&task))).await;
}
