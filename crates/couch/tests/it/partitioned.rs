//! Partitioned databases over HTTP, as recorded from CouchDB 3.5.0 unless noted.

use super::store;
use crate::support::ServerOptions;
use serde_json::{Value, json};

const NULL: Value = Value::Null;

#[tokio::test]
async fn partitions() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db?partitioned=true", NULL).await;
    server.ok("PUT", "/plain?partitioned=false", NULL).await;
    let docs = json!({"docs": [{"_id": "a:1", "n": 1}, {"_id": "a:2", "n": 2}, {"_id": "b:1", "n": 3}]});
    let written = server.ok("POST", "/db/_bulk_docs", docs).await;
    assert!(written.as_array().unwrap().iter().all(|row| row["ok"] == true), "{written}");
    server.ok("PUT", "/db/_design/p", json!({})).await;
    let info = server.ok("GET", "/db", NULL).await;
    assert_eq!((&info["props"]["partitioned"], &info["doc_count"]), (&json!(true), &json!(4)));
    assert_eq!(server.ok("GET", "/plain", NULL).await["props"].get("partitioned"), None);

    let illegal = |reason: &str| (400, "illegal_docid".to_owned(), reason.to_owned());
    let partition = |reason: &str| (400, "illegal_partition".to_owned(), reason.to_owned());
    let bad = |reason: &str| (400, "bad_request".to_owned(), reason.to_owned());
    let parse = |reason: &str| (400, "query_parse_error".to_owned(), reason.to_owned());
    for (method, path, expected) in [
        ("PUT", "/db/nopartition", illegal("Doc id must be of form partition:id")),
        ("PUT", "/db/:x", partition("Partition must not be empty")),
        ("PUT", "/db/_x:x", illegal("Only reserved document ids may start with underscore.")),
        ("POST", "/db", illegal("Doc id must be of form partition:id")),
        ("GET", "/db/nopartition", illegal("Doc id must be of form partition:id")),
        ("GET", "/db/no:partition", (404, "not_found".to_owned(), "missing".to_owned())),
        ("GET", "/plain/nopartition", (404, "not_found".to_owned(), "missing".to_owned())),
        ("GET", "/plain/_all_docs?partition=a", parse("`partition` parameter is not supported on this db")),
        ("GET", "/db/_all_docs?partition=_a", partition("Partition must not start with an underscore")),
        ("GET", "/db/_partition/_x", partition("Partition must not start with an underscore")),
        ("GET", "/db/_partition/a/_all_docs?partition=b", bad("Conflicting value for `partition` in query string")),
        // Not recorded; from CouchDB's source.
        ("GET", "/db/_partition", bad("invalid_partition_req")),
        ("GET", "/plain/_partition/a", bad("database is not partitioned")),
        ("GET", "/plain/_partition/a/_all_docs", bad("database is not partitioned")),
        ("PUT", "/x?partitioned=1", bad("Invalid `partitioned` parameter")),
        ("PUT", "/_users?partitioned=true", bad("Cannot partition a system database")),
        ("POST", "/db/_partition/a", (405, "method_not_allowed".to_owned(), "Only GET allowed".to_owned())),
        ("GET", "/db/_partition/a/_find", (405, "method_not_allowed".to_owned(), "Only POST allowed".to_owned())),
        (
            "GET",
            "/db/_partition/a/_index/d/json/n",
            (405, "method_not_allowed".to_owned(), "Only DELETE allowed".to_owned()),
        ),
        ("GET", "/plain/_partition/a/_find", bad("database is not partitioned")),
        ("GET", "/db/_partition/a/_changes", (404, "not_found".to_owned(), "missing".to_owned())),
    ] {
        let body = if method == "GET" { NULL } else { json!({"n": 1}) };
        let (status, answer) = server.json(method, path, body).await;
        let text = |member: &str| answer[member].as_str().unwrap_or_default().to_owned();
        assert_eq!((status, text("error"), text("reason")), expected, "{method} {path}");
    }

    let a = server.ok("GET", "/db/_partition/a", NULL).await;
    let names: Vec<&String> = a.as_object().unwrap().keys().collect();
    assert_eq!((names.len(), &a["db_name"], &a["partition"]), (5, &json!("db"), &json!("a")));
    assert_eq!((&a["doc_count"], &a["doc_del_count"]), (&json!(2), &json!(0)));
    let none = json!({"db_name": "db", "sizes": {"active": 0, "external": 0}, "partition": "z", "doc_count": 0, "doc_del_count": 0});
    assert_eq!(server.ok("GET", "/db/_partition/z", NULL).await, none);

    let ids = async |path: &str| -> Vec<String> {
        let answer = server.ok("GET", path, NULL).await;
        answer["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("/db/_partition/a/_all_docs").await, ["a:1", "a:2"]);
    assert_eq!(ids("/db/_all_docs?partition=b").await, ["b:1"]);
    for (query, offset) in
        [("", 1), ("?skip=1", 2), ("?descending=true", 1), ("?startkey=%22a:2%22", 2), ("?startkey=%22b%22", 3)]
    {
        let answer = server.ok("GET", &format!("/db/_partition/a/_all_docs{query}"), NULL).await;
        assert_eq!((&answer["offset"], &answer["total_rows"]), (&json!(offset), &json!(4)), "{query}");
    }
    let posted = server.ok("POST", "/db/_all_docs", json!({"partition": "b"})).await;
    assert_eq!(posted["rows"].as_array().unwrap().len(), 1);
    let queries = json!({"queries": [{"partition": "a"}, {"partition": "b"}, {}]});
    let several = server.ok("POST", "/db/_all_docs/queries", queries).await;
    let rows = |at: usize| several["results"][at]["rows"].as_array().unwrap().len();
    assert_eq!([rows(0), rows(1), rows(2)], [2, 1, 4]);
    assert_eq!(ids("/db/_partition/a/_all_docs?descending=true&limit=1").await, ["a:2"]);
    assert_eq!(ids("/db/_partition/a/_all_docs?startkey=%22a:2%22").await, ["a:2"]);
    assert_eq!(ids("/db/_partition/a/_all_docs?endkey=%22a:2%22&inclusive_end=false").await, ["a:1"]);
    for outside in ["startkey=%22b%22", "endkey=%22A%22", "startkey=%22A%22&descending=true", "key=%22b:1%22"] {
        assert_eq!(ids(&format!("/db/_partition/a/_all_docs?{outside}")).await, [""; 0], "{outside}");
    }
    assert_eq!(ids("/db/_all_docs").await.len(), 4);
    for (path, partition, expected) in [
        ("/db/_partition/a/_find", NULL, json!([{"_id": "a:1"}, {"_id": "a:2"}])),
        ("/db/_find", json!("b"), json!([{"_id": "b:1"}])),
        ("/db/_find?partition=b", NULL, json!([{"_id": "b:1"}])),
        ("/db/_find?partition=", NULL, json!([{"_id": "a:1"}, {"_id": "a:2"}, {"_id": "b:1"}])),
        ("/db/_find", NULL, json!([{"_id": "a:1"}, {"_id": "a:2"}, {"_id": "b:1"}])),
    ] {
        let mut query = json!({"selector": {"n": {"$gt": 0}}, "fields": ["_id"]});
        if !partition.is_null() {
            query["partition"] = partition;
        }
        assert_eq!(server.ok("POST", path, query).await["docs"], expected, "{path}");
    }
    let of_other = json!({"selector": {}, "partition": "b"});
    let (status, refused) = server.json("POST", "/db/_find?partition=a", of_other).await;
    assert_eq!((status, &refused["reason"]), (500, &json!("Unknown Error: mango_httpd :: {bad_partition,<<98>>}")));
    let explained = server.ok("POST", "/db/_explain?partition=a", json!({"selector": {}})).await;
    assert_eq!(explained["opts"]["partition"], "a", "{explained}");
    let queries = json!({"queries": [{}, {"descending": true, "limit": 1}]});
    let several = server.ok("POST", "/db/_partition/a/_all_docs/queries", queries).await;
    let ids_at = |at: usize| several["results"][at]["rows"].as_array().unwrap().iter().map(|row| row["id"].clone());
    assert_eq!((ids_at(0).collect(), ids_at(1).collect()), (json!(["a:1", "a:2"]), json!(["a:2"])));
    assert_eq!(server.ok("GET", "/db/_partition/a/_index", NULL).await["total_rows"], 1);
    let sorted = json!({"selector": {"n": 1}, "sort": ["m"]});
    let refused = server.json("POST", "/db/_partition/a/_find", sorted).await.1;
    assert_eq!(refused["reason"], "No partitioned index exists for this sort, try indexing by the sort fields.");
    let refused = server.json("GET", "/plain/_all_docs?partition=a", NULL).await;
    assert_eq!(refused.1["reason"], "`partition` parameter is not supported on this db");
    // Local documents need no partition; replicated documents do.
    server.ok("PUT", "/db/_local/x", json!({})).await;
    for new_edits in [true, false] {
        let docs = json!([{"_id": "c:x", "_rev": "1-a"}, {"_id": "x", "_rev": "1-a"}]);
        let (status, answer) =
            server.json("POST", "/db/_bulk_docs", json!({"new_edits": new_edits, "docs": docs})).await;
        assert_eq!((status, &answer["error"]), (400, &json!("illegal_docid")), "all of them are refused");
    }
    assert_eq!(server.ok("GET", "/db/_partition/c", NULL).await["doc_count"], 0);
    let docs = json!([{"_id": "_local/y"}, {"_id": "_design/y"}, {"_id": "c:x"}]);
    let written = server.ok("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    assert!(written.as_array().unwrap().iter().all(|row| row["ok"] == true), "{written}");
    server.ok("POST", "/plain/_bulk_docs", json!({"docs": [{"_id": "x"}]})).await;
}

/// All parameters of a partition's view apply to its rows only.
#[tokio::test]
async fn views_of_partitions() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db?partitioned=true", NULL).await;
    // The second partition sorts among the ids of the first.
    for partition in ["a", "a!", "b"] {
        let doc =
            |n: u64| json!({"_id": format!("{partition}:{n}"), "n": n, "next": format!("{partition}:{}", (n + 1) % 6)});
        server.ok("POST", "/db/_bulk_docs", json!({"docs": (0..6).map(doc).collect::<Vec<_>>()})).await;
    }
    let views = json!({
        "n": {"map": "function(doc) { emit([doc.n % 2, doc.n], doc.n) }", "reduce": "_sum"},
        "next": {"map": "function(doc) { emit(doc.n, {_id: doc.next}) }"}
    });
    let functions = json!({
        "lists": {"ids": "function(head, req) { var row; while ((row = getRow())) send(row.id + ' '); }"},
        "shows": {"path": "function(doc, req) { return toJSON([doc && doc._id, req.path, req.query]); }"},
        "updates": {"n": "function(doc, req) { doc.seen = true; return [doc, 'ok']; }"},
        "rewrites": [{"from": "all", "to": "_view/n", "query": {"reduce": "false"}}],
    });
    let mut local = functions.clone();
    local["views"] = views.clone();
    server.ok("PUT", "/db/_design/local", local).await;
    server.ok("PUT", "/db/_design/all", json!({"views": views, "options": {"partitioned": false}})).await;
    let get = async |of: &str, query: &str| -> Value {
        server.ok("GET", &format!("/db/_partition/{of}/_design/local/_view/{query}"), NULL).await
    };
    let ids = |answer: &Value| -> Vec<String> {
        answer["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = ["a!:0", "a!:2", "a!:4", "a!:1", "a!:3", "a!:5"];
    let answer = get("a!", "n?reduce=false").await;
    assert_eq!(
        (ids(&answer), &answer["total_rows"], &answer["offset"]),
        (all.map(str::to_owned).into(), &json!(18), &json!(6))
    );
    for (query, expected) in [
        ("descending=true", ["a!:5", "a!:3", "a!:1", "a!:4", "a!:2", "a!:0"].as_slice()),
        ("skip=1&limit=2", &["a!:2", "a!:4"]),
        ("startkey=[0,4]&endkey=[1,1]", &["a!:4", "a!:1"]),
        ("startkey=[1,1]&endkey=[0,4]&inclusive_end=false&descending=true", &["a!:1"]),
        ("startkey=[0,4]&startkey_docid=a!:4&endkey=[0,4]&endkey_docid=a!:4", &["a!:4"]),
        ("startkey=[0,4]&startkey_docid=a:4", &["a!:1", "a!:3", "a!:5"]),
        ("key=[1,3]", &["a!:3"]),
        ("keys=[[1,3],[9],[0,0]]", &["a!:3", "a!:0"]),
        ("startkey={}", &[]),
    ] {
        assert_eq!(ids(&get("a!", &format!("n?reduce=false&{query}")).await), expected, "{query}");
    }
    let rows = async |query: &str| get("a!", query).await["rows"].clone();
    assert_eq!(rows("n").await, json!([{"key": null, "value": 15}]));
    assert_eq!(rows("n?group_level=1").await, json!([{"key": [0], "value": 6}, {"key": [1], "value": 9}]));
    assert_eq!(rows("n?group=true&limit=1&skip=2").await, json!([{"key": [0, 4], "value": 4}]));
    assert_eq!(rows("n?keys=[[1,5],[7]]&group=true").await, json!([{"key": [1, 5], "value": 5}]));
    assert_eq!(rows("next?include_docs=true&key=3").await[0]["doc"]["_id"], "a!:4");
    assert_eq!(get("none", "n").await["rows"], json!([]));
    let queries = json!({"queries": [{"key": [1, 5]}, {"reduce": false, "limit": 1}]});
    let path = "/db/_partition/a!/_design/local/_view/n/queries";
    let answer = server.ok("POST", path, queries).await;
    assert_eq!(
        (&answer["results"][0]["rows"][0]["value"], ids(&answer["results"][1])),
        (&json!(5), vec!["a!:0".to_owned()])
    );
    let posted =
        server.ok("POST", "/db/_partition/a!/_design/local/_view/n", json!({"keys": [[0, 2]], "reduce": false})).await;
    assert_eq!(ids(&posted), ["a!:2"]);
    assert_eq!(server.ok("GET", "/db/_design/all/_view/n", NULL).await["rows"][0]["value"], 45);
    let ask = async |method: &str, path: &str| {
        server.call(method, &format!("/db/_partition/a!/_design/local/{path}"), "").await
    };
    assert_eq!(ask("GET", "_list/ids/n?reduce=false&limit=2").await.body, "a!:0 a!:2 ");
    let shown = json!(["a!:1", ["db", "_design", "local", "_show", "path", "a!:1"], {"partition": "a!", "x": "1"}]);
    assert_eq!(ask("GET", "_show/path/a!:1?x=1").await.json(), shown);
    assert_eq!(ask("GET", "_info").await.json()["name"], "local");
    assert_eq!(ask("GET", "_rewrite/all?partition=a!").await.status, 404);
    assert_eq!(ask("PUT", "_update/n/a!:1").await.status, 201);
    assert_eq!(server.ok("GET", "/db/a!:1", NULL).await["seen"], true);
    let bulk = server.ok("POST", "/db/_partition/a/_index/_bulk_delete", json!({"docids": ["_design/none"]})).await;
    assert_eq!(bulk["fail"][0]["id"], "_design/none", "{bulk}");
    // After the last row the offset is the end of the range.
    for (query, offset) in [
        ("skip=5", 11),
        ("skip=6", 12),
        ("skip=60", 12),
        ("skip=60&endkey=[0,2]", 8),
        ("skip=60&descending=true&endkey=[0,4]", 10),
        ("skip=60&key=[9]", 12),
    ] {
        let answer = get("a!", &format!("n?reduce=false&{query}")).await;
        assert_eq!(answer["offset"], offset, "{query}: {answer}");
    }

    let parse = |reason: &str| (400, "query_parse_error".to_owned(), reason.to_owned());
    for (path, expected) in [
        ("_design/local/_view/n", parse("`partition` parameter is mandatory for queries to this view.")),
        ("_partition/a/_design/all/_view/n", parse("`partition` parameter is not supported in this design doc")),
        (
            "_design/local/_view/n?partition=_a",
            (400, "illegal_partition".to_owned(), "Partition must not start with an underscore".to_owned()),
        ),
    ] {
        let (status, answer) = server.json("GET", &format!("/db/{path}"), NULL).await;
        let text = |member: &str| answer[member].as_str().unwrap_or_default().to_owned();
        assert_eq!((status, text("error"), text("reason")), expected, "{path}");
    }
}
