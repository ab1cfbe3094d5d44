//! Mango beyond the recordings in `mango.jsonl` of tests/couchdb-answers.

use super::{serve_database, store};
use crate::gate::Gate;
use crate::support::{Running, ServerOptions};
use flatbed_service::SelectorOptions;
use serde_json::{Value, json};

const NULL: Value = Value::Null;

async fn filled(server: &Running, documents: u32) {
    server.ok("PUT", "/db", NULL).await;
    let docs: Vec<Value> = (0..documents)
        .map(|n| json!({"_id": format!("doc{n:05}"), "n": n, "even": n % 2 == 0, "text": "x".repeat(200)}))
        .collect();
    for docs in docs.chunks(1_000) {
        server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    }
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["docs"].as_array().expect("documents").iter().map(|doc| doc["_id"].as_str().expect("an id")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_documents_of_many_pages_are_found() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    filled(&server, 6_000).await;
    let all = server.ok("POST", "/db/_find", json!({"selector": {"even": true}, "limit": 100_000})).await;
    assert_eq!(all["docs"].as_array().unwrap().len(), 3_000);
    assert_eq!((&all["docs"][1]["n"], &all["docs"][2_999]["_id"]), (&json!(2), &json!("doc05998")));
    // The pages together have the same documents.
    let mut found = Vec::new();
    let mut bookmark = NULL;
    loop {
        let query = json!({"selector": {"even": true}, "limit": 700, "fields": ["_id"], "bookmark": bookmark});
        let page = server.ok("POST", "/db/_find", query).await;
        if ids(&page).is_empty() {
            assert_eq!(page["bookmark"], bookmark);
            break;
        }
        found.extend(ids(&page).into_iter().map(str::to_owned));
        bookmark = page["bookmark"].clone();
    }
    assert_eq!(found, ids(&all));
    let reversed = json!({"selector": {"_id": {"$lt": "doc00003"}}, "sort": [{"_id": "desc"}], "limit": 2});
    let first = server.ok("POST", "/db/_find", reversed.clone()).await;
    assert_eq!(ids(&first), ["doc00002", "doc00001"]);
    let mut behind = reversed;
    behind["bookmark"] = first["bookmark"].clone();
    assert_eq!(ids(&server.ok("POST", "/db/_find", behind).await), ["doc00000"]);
    let counted = json!({"selector": {"even": false, "n": {"$lt": 1_000}}, "execution_stats": true});
    let counted = server.ok("POST", "/db/_count", counted).await;
    assert_eq!((&counted["count"], &counted["execution_stats"]["results_returned"]), (&json!(500), &json!(500)));
    let metrics = server.call("GET", "/metrics", "").await.body;
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.split(' ').next_back().unwrap().parse().unwrap()
    };
    assert!(value("flatbed_query_documents_examined_total{index=\"all_docs\"}") >= 12_000.0);
    assert!(value("flatbed_query_documents_returned_total{index=\"all_docs\"}") >= 6_503.0);
    assert!(value("flatbed_queries_total{index=\"all_docs\"}") >= 9.0);
    server.stop().await;
}

/// CouchDB's coordinator drops a selected design document, and with it the counts since the previous selected row.
#[tokio::test(flavor = "multi_thread")]
async fn design_documents_count_as_in_couchdb() {
    let Some(server) = serve_database().await else { return };
    for id in ["A", "_design/n", "_design/t", "a", "b", "c"] {
        server.ok("PUT", &format!("/db/{id}"), json!({"zz": id != "_design/n" && id != "b"})).await;
    }
    for (query, expected) in [
        (json!({"selector": {}}), [4, 4, 0, 4]),
        (json!({"selector": {}, "limit": 1}), [2, 2, 0, 1]),
        (json!({"selector": {}, "limit": 4}), [4, 4, 0, 4]),
        (json!({"selector": {"_id": {"$gt": null}}}), [4, 4, 0, 4]),
        (json!({"selector": {"_id": {"$gt": null}}, "sort": [{"_id": "desc"}]}), [4, 4, 0, 4]),
        (json!({"selector": {"n": 1}}), [6, 6, 0, 0]),
        (json!({"selector": {"zz": true}}), [4, 4, 0, 3]),
        (json!({"selector": {"zz": false}}), [4, 4, 0, 1]),
        (json!({"selector": {"zz": 1}, "r": 2}), [4, 0, 4, 0]),
        (json!({"selector": {}, "r": 2}), [4, 0, 4, 4]),
    ] {
        let mut asked = query.clone();
        asked["execution_stats"] = json!(true);
        let stats = server.ok("POST", "/db/_find", asked).await["execution_stats"].clone();
        let names = ["total_keys_examined", "total_docs_examined", "total_quorum_docs_examined", "results_returned"];
        assert_eq!(names.map(|name| stats[name].as_u64().unwrap()), expected, "{query}");
    }
    let sort = server.json("POST", "/db/_find", json!({"selector": {}, "sort": [{"": "asc"}]})).await;
    assert_eq!((sort.0, &sort.1["error"]), (400, &json!("no_usable_index")));
    server.stop().await;
}

/// Each server's planner sees indexes that the other server defines.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_answer_wherever_they_were_defined() {
    let Some(store) = store() else { return };
    let (one, other) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    filled(&one, 300).await;
    let query = json!({"selector": {"even": true, "n": {"$gte": 250}}, "sort": [{"n": "desc"}], "limit": 3});
    assert_eq!(other.json("POST", "/db/_find", query.clone()).await.1["error"], "no_usable_index");
    one.ok("POST", "/db/_index", json!({"index": {"fields": ["even", "n"]}, "ddoc": "i", "name": "i"})).await;
    for server in [&other, &one] {
        let found = server.ok("POST", "/db/_find", query.clone()).await;
        assert_eq!((ids(&found), found.get("warning")), (vec!["doc00298", "doc00296", "doc00294"], None));
        let mut behind = query.clone();
        behind["bookmark"] = found["bookmark"].clone();
        assert_eq!(ids(&server.ok("POST", "/db/_find", behind).await), ["doc00292", "doc00290", "doc00288"]);
    }
    // Writes are visible at once, and covered queries read the index only.
    other.ok("PUT", "/db/new", json!({"n": 1_000, "even": true})).await;
    let covered =
        json!({"selector": {"even": true, "n": {"$gt": 295}}, "fields": ["_id", "n"], "execution_stats": true});
    let covered = one.ok("POST", "/db/_find", covered).await;
    assert_eq!(
        covered["docs"],
        json!([{"_id": "doc00296", "n": 296}, {"_id": "doc00298", "n": 298}, {"_id": "new", "n": 1_000}])
    );
    assert_eq!(covered["execution_stats"]["total_docs_examined"], 0);
    let count = json!({"selector": {"even": false, "n": {"$gt": 100}}, "execution_stats": true});
    let counted = other.ok("POST", "/db/_count", count).await;
    assert_eq!((&counted["count"], &counted["execution_stats"]["total_docs_examined"]), (&json!(100), &json!(0)));
    // Heavy selectors run outside of the server's threads.
    let names: Vec<u32> = (0..100).collect();
    let heavy = json!({"selector": {"even": true, "n": {"$gt": 3}, "_id": {"$nin": names}}, "limit": 1_000});
    assert_eq!(one.ok("POST", "/db/_find", heavy.clone()).await["docs"].as_array().unwrap().len(), 149);
    assert_eq!(one.ok("POST", "/db/_count", json!({"selector": heavy["selector"]})).await["count"], 149);
    one.ok("DELETE", "/db/_index/i/json/i", NULL).await;
    assert_eq!(other.json("POST", "/db/_find", query).await.1["error"], "no_usable_index");
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_that_cannot_be_kept_are_refused() {
    let Some(server) = serve_database().await else { return };
    let long: Vec<String> = (0..2_000).map(|n| format!("field{n}")).collect();
    let without = json!({"fields": ["a"], "partial_filter_selector": {"_conflicts": {"$exists": false}}});
    let beside = [json!({"fields": ["_attachments.f.length"]}), json!({"fields": ["_conflicts"]}), without];
    for index in beside.into_iter().chain([json!({ "fields": long })]) {
        let (status, answer) = server.json("POST", "/db/_index", json!({ "index": index })).await;
        assert_eq!((status, &answer["error"]), (400, &json!("invalid_index")), "{answer}");
    }
    let map = |n: u32| json!({"fields": {format!("f{n}"): "asc"}, "partial_filter_selector": {}});
    let view = |n| (format!("i{n}"), json!({"map": map(n), "reduce": "_count", "options": {"def": {}}}));
    let views: serde_json::Map<String, Value> = (0..100).map(view).collect();
    server.ok("PUT", "/db/_design/many", json!({"language": "query", "views": views})).await;
    let (mut made, mut refused) = (100, 0);
    for n in 0..10 {
        let filter = json!({"x": {"$in": ["x".repeat(6_000)]}});
        let index = json!({"fields": [format!("g{n}")], "partial_filter_selector": filter});
        let (status, answer) = server.json("POST", "/db/_index", json!({ "index": index })).await;
        assert!(status == 200 || (status, &answer["error"]) == (400, &json!("invalid_index")), "{answer}");
        (made, refused) = if status == 200 { (made + 1, refused) } else { (made, refused + 1) };
    }
    assert!(made >= 104 && refused > 0, "{made} {refused}");
    assert_eq!(server.ok("GET", "/db/_index", NULL).await["total_rows"], json!(made + 1));
    // A document reserves space only in the indexes that contain it.
    let docs: Vec<Value> = (0..50).map(|n| json!({"_id": format!("d{n}"), format!("f{n}"): n})).collect();
    let written = server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    assert!(written.as_array().unwrap().iter().all(|row| row["ok"] == true), "{written}");
    let huge: serde_json::Map<String, Value> = (0..100).map(|n| (format!("f{n}"), json!("x".repeat(9_000)))).collect();
    let (status, answer) = server.json("PUT", "/db/huge", json!(huge)).await;
    assert_eq!((status, &answer["error"]), (400, &json!("bad_request")), "{answer}");
    server.stop().await;
}

/// Replication may bring such indexes: they are stored, and no query uses them.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_on_what_no_body_has_change_no_answer() {
    let Some(server) = serve_database().await else { return };
    let leaves = json!({"new_edits": false, "docs": [
        {"_id": "a", "_rev": "1-a", "n": 1}, {"_id": "a", "_rev": "1-b", "n": 2}, {"_id": "b", "_rev": "1-a", "n": 3},
        {"_id": "c", "_rev": "1-a", "n": 4, "_attachments": {"f": {"content_type": "text/plain", "data": "aGk="}}}
    ]});
    server.json("POST", "/db/_bulk_docs", leaves).await;
    let selectors = [
        (json!({"_conflicts": {"$exists": true}}), vec!["a"]),
        (json!({"_conflicts": {"$exists": false}, "n": {"$gt": 0}}), vec!["b", "c"]),
        (json!({"_attachments": {"$exists": true}}), vec!["c"]),
        (json!({"_attachments.f.digest": {"$beginsWith": "md5-"}}), vec!["c"]),
        (json!({"n": {"$gt": 0}, "$and": [{"$keyMapMatch": {"$eq": "_attachments"}}]}), vec!["c"]),
        (json!({"_deleted_conflicts": {"$exists": true}}), vec![]),
        (json!({"_local_seq": {"$exists": true}}), vec![]),
    ];
    let answers = async |selector: &Value, use_index: Value| {
        let query = json!({"selector": selector, "conflicts": true, "fields": ["_id"], "use_index": use_index});
        let found = server.ok("POST", "/db/_find", query).await;
        let ids = found["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap().to_owned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort();
        ids
    };
    for (selector, expected) in &selectors {
        assert_eq!(&answers(selector, json!([])).await, expected, "{selector}");
    }
    let mut views = serde_json::Map::new();
    for (at, fields) in ["_conflicts", "_attachments", "_deleted_conflicts", "_local_seq", "n"].iter().enumerate() {
        let map = json!({"fields": {*fields: "asc"}, "partial_filter_selector": {}});
        views.insert(
            format!("i{at}"),
            json!({"map": map, "reduce": "_count", "options": {"def": {"fields": [fields]}}}),
        );
    }
    for (at, (selector, _)) in selectors.iter().enumerate() {
        let map = json!({"fields": {"n": "asc"}, "partial_filter_selector": selector});
        views.insert(format!("p{at}"), json!({"map": map, "reduce": "_count", "options": {"def": {"fields": ["n"]}}}));
    }
    let names: Vec<String> = views.keys().cloned().collect();
    server.ok("PUT", "/db/_design/i", json!({"language": "query", "views": views})).await;
    for (at, (selector, expected)) in selectors.iter().enumerate() {
        for name in names.iter().filter(|name| name.starts_with('i') || **name == format!("p{at}")) {
            assert_eq!(&answers(selector, json!(["i", name])).await, expected, "{selector} by {name}");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_refused_what_they_have_not() {
    let Some(server) = serve_database().await else { return };
    for (body, error) in [
        (json!({}), "missing_required_key"),
        (json!({"selector": {}, "limit": 1}), "invalid_key"),
        (json!({"selector": {}, "bookmark": "x"}), "invalid_key"),
        (json!({"selector": {"a": {"$x": 1}}}), "invalid_operator"),
    ] {
        let (status, answer) = server.json("POST", "/db/_count", body).await;
        assert_eq!((status, &answer["error"]), (400, &json!(error)));
    }
    let empty = server.ok("POST", "/db/_count", json!({"selector": {"$or": []}})).await;
    assert_eq!(empty["count"], json!(0));
    for path in ["/none/_count", "/none/_find", "/none/_explain", "/none/_index"] {
        let is_index = path.ends_with("_index");
        let body = if is_index { json!({"index": {"fields": ["a"]}}) } else { json!({"selector": {}}) };
        let (status, answer) = server.json("POST", path, body).await;
        assert_eq!((status, &answer["reason"]), (404, &json!("Database does not exist.")), "{path}");
    }
    assert_eq!(server.json("GET", "/none/_index", NULL).await.0, 404);
    assert_eq!(server.json("DELETE", "/none/_index/a/json/b", NULL).await.0, 404);
    assert_eq!(server.json("GET", "/db/_count", NULL).await.0, 405);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_come_and_go_beside_what_else_their_design_document_has() {
    let Some(server) = serve_database().await else { return };
    let file = json!({"f": {"content_type": "text/plain", "data": "aGk="}});
    let design = json!({"language": "query", "title": "mine", "_attachments": file});
    server.ok("PUT", "/db/_design/d", design).await;
    let index = |name: &str| json!({"index": {"fields": [name]}, "name": name, "ddoc": "d"});
    for name in ["a", "b", "c"] {
        assert_eq!(server.ok("POST", "/db/_index", index(name)).await["result"], "created");
    }
    assert_eq!(server.ok("POST", "/db/_index", index("c")).await["result"], "exists");
    server.ok("DELETE", "/db/_index/d/json/b", NULL).await;
    let there = server.ok("GET", "/db/_design/d", NULL).await;
    assert_eq!((&there["title"], &there["_attachments"]["f"]["length"]), (&json!("mine"), &json!(2)));
    assert_eq!(there["views"].as_object().unwrap().keys().collect::<Vec<_>>(), ["a", "c"]);
    let deleted = server.ok("POST", "/db/_index/_bulk_delete", json!({"docids": ["d", "", "_design/none"]})).await;
    assert_eq!(deleted["success"], json!([{"id": "_design/d", "ok": true}]));
    assert_eq!(deleted["fail"].as_array().unwrap().len(), 2);
    let there = server.ok("GET", "/db/_design/d", NULL).await;
    assert_eq!((&there["title"], there.get("views")), (&json!("mine"), None));
    // Concurrent creations all succeed.
    let names: Vec<String> = (0..6).map(|n| format!("n{n}")).collect();
    let made = names.iter().map(|name| server.ok("POST", "/db/_index", index(name)));
    futures_util::future::join_all(made).await;
    assert_eq!(server.ok("GET", "/db/_index", NULL).await["total_rows"], json!(7));
    for ddoc in ["x".repeat(3_000), "_design/".to_owned()] {
        let body = json!({"index": {"fields": ["a"]}, "ddoc": ddoc});
        assert_eq!(server.json("POST", "/db/_index", body).await.0, 400, "{ddoc}");
    }
    let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    assert_eq!(server.json("POST", "/db/_index/_bulk_delete", json!({ "docids": many })).await.0, 413);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_their_bounds_are_refused() {
    let Some(server) = serve_database().await else { return };
    let large: Vec<u32> = (0..50_000).collect();
    let fields: Vec<String> = (0..60_000).map(|n| n.to_string()).collect();
    let regexes: Vec<Value> = (0..600).map(|n| json!({"a": {"$regex": format!("^(\\w{n}a){{1,30}}$")}})).collect();
    let mut deep = json!(1);
    for _ in 0..120 {
        deep = json!({"$not": {"a": deep}});
    }
    for body in [
        json!({"selector": {"a": {"$in": large}}}),
        json!({"selector": {}, "fields": fields}),
        json!({"selector": {"$or": regexes}}),
        json!({ "selector": deep }),
    ] {
        for path in ["/db/_find", "/db/_explain"] {
            assert_eq!(server.json("POST", path, body.clone()).await.0, 400, "{path}");
        }
        let filter =
            json!({"index": {"fields": ["a"], "partial_filter_selector": body["selector"], "x": body["fields"]}});
        assert_eq!(server.json("POST", "/db/_index", filter).await.0, 400);
    }
    server.stop().await;
}

/// On a single thread: other requests are answered while a slow selector runs.
#[tokio::test]
async fn a_query_that_takes_long_holds_up_nobody() {
    let Some(store) = store() else { return };
    let gate = Gate::new();
    let selectors = SelectorOptions { before_each: gate.before_each() };
    let server = std::sync::Arc::new(store.serve(ServerOptions { selectors, ..ServerOptions::default() }).await);
    server.ok("PUT", "/db", NULL).await;
    server.ok("PUT", "/db/doc", json!({"a": "x".repeat(100_000)})).await;
    let asked = server.clone();
    let asked = tokio::spawn(async move {
        let selector = json!({"selector": {"a": {"$regex": "^x"}}}).to_string();
        asked.call("POST", "/db/_find", &selector).await.status
    });
    gate.others_are_answered(&server, asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn builds_of_indexes_and_queries_that_wait_for_them_are_tasks() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    filled(&server, 6_000).await;
    let ask = async {
        server.ok("POST", "/db/_index", json!({"index": {"fields": ["n"]}, "ddoc": "i", "name": "by n"})).await;
        server.ok("POST", "/db/_find", json!({"selector": {"n": {"$gt": 5_990}}, "use_index": "i"})).await
    };
    let look = async {
        let of_type = |tasks: &Value, kind: &str| {
            tasks.as_array().and_then(|tasks| tasks.iter().find(|task| task["type"] == kind)).cloned()
        };
        let is_under_way = |task: &Value| {
            let done = task["changes_done"].as_u64().unwrap_or(0);
            (1..task["total_changes"].as_u64().unwrap_or(0)).contains(&done)
        };
        let both = |tasks: &Value| Some((of_type(tasks, "indexer")?, of_type(tasks, "find_query")?));
        let tasks = server
            .until("/_active_tasks", |tasks| {
                both(tasks).is_some_and(|(build, query)| is_under_way(&build) && is_under_way(&query))
            })
            .await;
        let (build, query) = both(&tasks).unwrap();
        for task in [&build, &query] {
            assert_eq!(
                (&task["database"], &task["design_document"], &task["waiting_clients"], &task["total_changes"]),
                (&json!("db"), &json!("_design/i"), &json!(1), &json!(6_001)),
                "{tasks}"
            );
            let progress = task["changes_done"].as_u64().unwrap() * 100 / 6_001;
            assert_eq!(task["progress"], progress, "{tasks}");
            assert!(task["started_on"].is_u64() && task["updated_on"].is_u64(), "{tasks}");
        }
        assert_eq!((&query["index_name"], &query["index"]), (&json!("by n"), &build["index"]));
    };
    let (found, ()) = tokio::join!(ask, look);
    assert_eq!(ids(&found).len(), 9);
    server.until("/_active_tasks", |tasks| *tasks == json!([])).await;
    server.stop().await;
}
