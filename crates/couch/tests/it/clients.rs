//! CouchDB's behaviour that clients rely on.

use std::time::Duration;

use crate::support::{Store, soon};
use flatbed_testkit::pass;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const NULL: Value = Value::Null;

#[tokio::test]
async fn a_post_may_mean_another_method() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    let mut send = async |method: &str, path: &str, meant: &str, body: &str| {
        client.call(method, path, &[("x-http-method-override", meant)], body.as_bytes()).await
    };
    let put = send("POST", "/db/a", "PUT", r#"{"n":1}"#).await;
    assert_eq!((put.status, put.text("id").as_str()), (201, "a"));
    let got = send("POST", "/db/a", "GET", "").await;
    assert_eq!((got.status, &got.json()["n"]), (200, &json!(1)));
    let head = send("POST", "/db/a", "HEAD", "").await;
    assert_eq!((head.status, head.body), (200, got.body), "the answer to a POST has a body");
    let only_of_post = send("GET", "/db/a", "DELETE", "").await;
    assert_eq!(only_of_post.status, 200);
    assert_eq!(send("POST", "/db/a", "TRACE", "").await.status, 405);
    assert_eq!(send("POST", "/db", "delete", r#"{"_id":"b"}"#).await.status, 201, "no method is called so");
    let rev = put.text("rev");
    assert_eq!(send("POST", &format!("/db/a?rev={rev}"), "DELETE", "").await.status, 200);
    assert_eq!(server.json("GET", "/db/a", NULL).await.0, 404);
}

#[tokio::test]
async fn a_request_keeps_the_id_that_its_client_gives() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    let mut id = async |given: &str| {
        let answer = client.call("GET", "/", &[("x-couch-request-id", given)], b"").await;
        answer.header("x-couch-request-id").unwrap_or_default().to_owned()
    };
    assert_eq!(id("trace-1_A").await, "trace-1_A");
    for given in ["with space", "a:b", "1234567890123456789012345678901234567"] {
        assert_eq!(id(given).await.len(), 10, "{given}");
    }
}

#[tokio::test]
async fn every_answer_has_couchdbs_headers() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    let welcome = server.ok("GET", "/", Value::Null).await;
    let name = format!("CouchDB/{} (Flatbed/", welcome["version"].as_str().expect("a version"));
    for (method, path, body) in [
        ("GET", "/", ""),
        ("HEAD", "/db", ""),
        ("PUT", "/db/a", "{}"),
        ("PUT", "/db/a", "{}"),
        ("POST", "/db/_bulk_docs", r#"{"docs":[{"_id":"b"}]}"#),
        ("GET", "/db/_changes", ""),
        ("GET", "/db/_all_docs", ""),
        ("GET", "/db/none", ""),
        ("GET", "/db/b?open_revs=all", ""),
        ("GET", "/_scheduler/jobs", ""),
        ("GET", "/_scheduler/docs", ""),
        ("PUT", "/db/c/file", "bytes"),
        ("PATCH", "/db", ""),
    ] {
        let answer = client.call(method, path, &[], body.as_bytes()).await;
        let named = answer.header("server").expect("a server");
        assert!(named.starts_with(&name), "{method} {path}: {named}");
        let time = answer.header("x-couchdb-body-time").map(str::parse::<u64>);
        match body {
            // As in CouchDB, an attachment's upload time does not count.
            "" | "bytes" => assert_eq!(time, Some(Ok(0)), "{method} {path}"),
            _ => assert!(matches!(time, Some(Ok(_))), "{method} {path}: {time:?}"),
        }
    }
    // `100` tells the client that the server waits for the body.
    let head = "PUT /db/slow HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
                expect: 100-continue\r\n\r\n";
    let mut client = server.connect().await;
    client.stream.write_all(head.as_bytes()).await.expect("sent");
    assert_eq!(soon(client.head()).await.status, 100);
    pass(Duration::from_millis(20)).await;
    client.stream.write_all(b"{}").await.expect("sent");
    let answer = soon(client.answer(false)).await;
    let time: u64 = answer.header("x-couchdb-body-time").expect("a time").parse().expect("a number");
    assert!(answer.status == 201 && time >= 10, "{answer:?}");
}

#[tokio::test]
async fn a_selected_feed_shows_fields() {
    let server = Store::new().serve_database().await;
    let doc = json!({"_id": "a", "n": 1, "name": {"first": "x", "last": "y"}, "list": [5, 6]});
    server.ok("POST", "/db/_bulk_docs", json!({"docs": [doc, {"_id": "b", "n": 2}]})).await;
    let ask = async |query: &str, fields: Value| {
        let asked = json!({"selector": {"n": {"$lt": 2}}, "fields": fields});
        server.json("POST", &format!("/db/_changes?filter=_selector{query}"), asked).await
    };
    let shown = async |fields: Value| ask("&include_docs=true", fields).await.1["results"][0]["doc"].clone();
    assert_eq!(shown(json!(["_id", "name.last", "none"])).await, json!({"_id": "a", "name": {"last": "y"}}));
    assert_eq!(shown(json!(["none"])).await, json!({}));
    assert_eq!(shown(json!([])).await["list"], json!([5, 6]), "none are all");
    let (status, answer) = ask("", json!(["n"])).await;
    assert_eq!((status, answer["results"][0].get("doc")), (200, None), "no document is asked for");
    for (fields, reason) in [
        (json!("n"), "Selector error: fields must be JSON array".to_owned()),
        (NULL, "Selector error: fields must be JSON array".to_owned()),
        (json!([1]), "Invalid JSON for field spec: 1".to_owned()),
        (json!(vec!["n"; 1_001]), "at most 1000 fields in a filter".to_owned()),
    ] {
        let (status, answer) = ask("", fields).await;
        assert_eq!((status, &answer["error"], &answer["reason"]), (400, &json!("bad_request"), &json!(reason)));
    }
    // Also for followers, whose rows are otherwise built once for all.
    let path = "/db/_changes?filter=_selector&include_docs=true&feed=continuous&since=now&limit=1";
    let asked = json!({"selector": {"n": 0}, "fields": ["n"]}).to_string();
    let write = async {
        server.until_followed(1).await;
        server.ok("PUT", "/db/c", json!({"n": 0, "m": 1})).await;
    };
    let (followed, ()) = tokio::join!(server.call("POST", path, &asked), write);
    let row: Value = followed.body.lines().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    assert_eq!((&row["id"], &row["doc"]), (&json!("c"), &json!({"n": 0})), "{followed:?}");
}

#[tokio::test]
async fn functions_answer_as_couchdbs() {
    let server = Store::new().serve_database().await;
    let design = json!({
        "views": {"v": {"map": "function (doc) { emit(doc._id); }"}},
        "shows": {
            "code": "function (doc, req) { return {code: '404', body: 'x'}; }",
            "line": "function (doc, req) { return {code: '410 Gone', body: 'x'}; }",
            "nonsense": "function (doc, req) { return {code: 'x', body: 'x'}; }",
            "headers": "function (doc, req) { start({'X-A': 'b', 'Content-Type': 'text/plain'}); send('x'); return 'y'; }",
            "lists": "function (doc, req) { start({code: 418, headers: {'X-A': 'c'}}); send('x'); }",
            "silent": "function (doc, req) { start({'X-A': 'b'}); return 'y'; }",
        },
        "lists": {
            "code": "function (head, req) { start({code: '404'}); send('x'); }",
            "method": "function (head, req) { send(req.method + head.total_rows); }",
        },
        "updates": {"code": "function (doc, req) { return [null, {code: '202', body: 'x'}]; }"},
    });
    server.ok("PUT", "/db/_design/d", design).await;
    let ask = async |method: &str, path: &str| server.call(method, &format!("/db/_design/d/{path}"), "").await;
    for (method, path, status) in [
        ("GET", "_show/code", 404),
        ("GET", "_show/line", 410),
        ("GET", "_show/nonsense", 500),
        ("GET", "_list/code/v", 404),
        ("POST", "_update/code", 202),
    ] {
        assert_eq!(ask(method, path).await.status, status, "{path}");
    }
    let headers = ask("GET", "_show/headers").await;
    assert_eq!((headers.status, headers.body.as_str()), (200, "xy"));
    assert_eq!((headers.header("x-a"), headers.header("content-type")), (Some("b"), Some("text/plain")));
    let lists = ask("GET", "_show/lists").await;
    assert_eq!((lists.status, lists.body.as_str(), lists.header("x-a")), (200, "x", None));
    assert_eq!(ask("GET", "_show/silent").await.header("x-a"), None, "as in CouchDB, where nothing is sent");
    let options = ask("OPTIONS", "_list/method/v").await;
    assert_eq!((options.status, options.body.as_str()), (200, "OPTIONS0"));
    let info = ask("GET", "_info").await.json();
    assert!(info["view_index"]["update_seq"].is_u64(), "{info}");
}

#[tokio::test]
async fn a_design_document_of_an_unknown_language_is_saved() {
    let server = Store::new().serve_database().await;
    for views in [json!({"v": {"map": ""}}), json!({"v": {"map": "m", "reduce": "_average"}})] {
        let saved = server.ok("POST", "/db", json!({"_id": "_design/e", "language": "erlang", "views": views})).await;
        server.ok("DELETE", &format!("/db/_design/e?rev={}", saved["rev"].as_str().unwrap()), NULL).await;
    }
    let (status, answer) = server.json("PUT", "/db/_design/j", json!({"views": {"v": {"map": ""}}})).await;
    assert_eq!((status, &answer["reason"]), (404, &json!("missing function")));
    // A design document in another language has an `_info` but no queries.
    server.ok("PUT", "/db/_design/e2", json!({"language": "erlang", "views": {"v": {"map": ""}}})).await;
    assert!(server.json("GET", "/db/_design/e2/_view/v", NULL).await.0 >= 400);
}

#[tokio::test]
async fn ids_without_a_partition_are_refused() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/parts?partitioned=true", NULL).await;
    let rev = "1-00000000000000000000000000000000";
    for (path, body) in [
        ("_revs_diff", json!({"a:b": [rev], "x": [rev]})),
        ("_missing_revs", json!({"x": [rev]})),
        ("_purge", json!({"x": [rev]})),
    ] {
        let (status, answer) = server.json("POST", &format!("/parts/{path}"), body.clone()).await;
        let expected = (400, &json!("illegal_docid"), &json!("Doc id must be of form partition:id"));
        assert_eq!((status, &answer["error"], &answer["reason"]), expected, "{path}");
        server.ok("POST", &format!("/db/{path}"), body).await;
    }
    for (path, body) in [
        ("_revs_diff", json!({"a:b": [rev], "_design/d": [rev]})),
        // An id with a leading underscore needs no partition.
        ("_revs_diff", json!({"_x": [rev], "_local/x": [rev]})),
        ("_purge", json!({"_design/d": [rev]})),
        ("_bulk_get", json!({"docs": [{"id": "_design/d"}, {"id": "a:b"}]})),
    ] {
        server.ok("POST", &format!("/parts/{path}"), body).await;
    }
    for (method, path) in [("GET", "/parts/x?open_revs=all"), ("GET", "/parts/x/file"), ("DELETE", "/parts/x?rev=1-a")]
    {
        let (status, answer) = server.json(method, path, NULL).await;
        assert_eq!((status, &answer["error"]), (400, &json!("illegal_docid")), "{method} {path}");
    }
}

#[tokio::test]
async fn an_illegal_id_of_a_bulk_get_is_a_row_of_its_own() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/parts?partitioned=true", NULL).await;
    for (path, id) in [("/db/x", "x"), ("/parts/a:b", "a:b")] {
        server.ok("PUT", path, json!({"_id": id})).await;
    }
    let reserved = "Only reserved document ids may start with underscore.";
    let form = "Doc id must be of form partition:id";
    for (name, good, bad) in [
        ("db", "x", vec![("_bad", "illegal_docid", reserved), ("", "illegal_docid", "Document id must not be empty")]),
        (
            "parts",
            "a:b",
            vec![
                ("nopart", "illegal_docid", form),
                ("_bad", "illegal_docid", reserved),
                (":b", "illegal_partition", "Partition must not be empty"),
                ("a:", "illegal_docid", "Document id must not be empty"),
                ("a:_b", "illegal_docid", reserved),
            ],
        ),
    ] {
        for (id, error, reason) in bad {
            // The id is checked before other errors.
            let docs = json!({"docs": [{"id": id, "rev": "x"}, {"id": good}, {"id": "_design/none"}]});
            let answer = server.ok("POST", &format!("/{name}/_bulk_get"), docs).await;
            let told = json!({"id": id, "rev": null, "error": error, "reason": reason});
            assert_eq!(answer["results"][0], json!({"id": id, "docs": [{"error": told}]}), "{name}");
            assert_eq!(answer["results"][1]["docs"][0]["ok"]["_id"], good, "{answer}");
            assert_eq!(answer["results"][2]["docs"][0]["error"]["error"], "not_found", "{answer}");
        }
    }
}

#[tokio::test]
async fn all_or_nothing_writes_nothing() {
    let server = Store::new().serve_database().await;
    let rev = "1-00000000000000000000000000000000";
    let docs = json!([{"_id": "a"}, {"_id": "b", "_rev": rev}]);
    let ask = async |more: Value| {
        let mut asked = json!({"docs": docs});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.json("POST", "/db/_bulk_docs", asked).await
    };
    let told = |id: &str| json!({"id": id, "error": "not_implemented", "reason": "all_or_nothing is not supported"});
    let (status, mut rows) = ask(json!({"all_or_nothing": true})).await;
    assert_eq!(status, 417);
    let revs: Vec<Value> = rows
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .map(|row| row.as_object_mut().unwrap().remove("rev").unwrap())
        .collect();
    assert_eq!((&rows, revs), (&json!([told("a"), told("b")]), vec![json!("0-"), json!(rev)]));
    assert_eq!(server.ok("GET", "/db", NULL).await["doc_count"], 0);
    // As in CouchDB, replicated revisions ignore `all_or_nothing`, and only `true` turns it on.
    assert_eq!(ask(json!({"all_or_nothing": true, "new_edits": false})).await.0, 400, "`a` has no revision");
    assert_eq!(ask(json!({"all_or_nothing": "true"})).await.0, 201);
    assert_eq!(server.ok("GET", "/db", NULL).await["doc_count"], 2);
}

#[tokio::test]
async fn a_copy_goes_nowhere_else() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    let mut client = server.connect().await;
    for from in ["a", "_local/a"] {
        for to in ["http://localhost/other/y", "https://localhost/db/y", "HTTP://localhost/db/y"] {
            let refused = client.call("COPY", &format!("/db/{from}"), &[("destination", to)], b"").await;
            let told = (refused.status, refused.text("error"), refused.text("reason"));
            assert_eq!(told, (400, "bad_request".into(), "Destination URL must be relative.".into()), "{from} to {to}");
        }
    }
    assert_eq!(server.ok("GET", "/db", NULL).await["doc_count"], 1);
    assert_eq!(client.call("COPY", "/db/a", &[("destination", "y")], b"").await.status, 201);
}

#[tokio::test]
async fn functions_of_an_unknown_language_do_not_run() {
    let server = Store::new().serve_database().await;
    let design = |language: &str| {
        json!({
            "language": language,
            "filters": {"f": "function () { return true; }"},
            "views": {"v": {"map": "function (doc) { emit(1); }"}},
            "shows": {"s": "function () { return 'x'; }"},
            "lists": {"l": "function () { return 'x'; }"},
            "updates": {"u": "function () { return [null, 'x']; }"},
            "rewrites": "function () { return '../../x'; }",
        })
    };
    for name in ["erlang", "query", "JavaScript"] {
        let mut design = design(name);
        if name == "query" {
            design["views"] = json!({});
        }
        server.ok("PUT", &format!("/db/_design/{name}"), design).await;
        for (method, path) in [
            ("GET", format!("/db/_changes?filter={name}/f")),
            ("GET", format!("/db/_changes?filter=_view&view={name}/v")),
            ("GET", format!("/db/_design/{name}/_show/s")),
            ("GET", format!("/db/_design/{name}/_list/l/v")),
            ("POST", format!("/db/_design/{name}/_update/u")),
            ("GET", format!("/db/_design/{name}/_rewrite/x")),
        ] {
            let answer = server.call(method, &path, "").await;
            if name == "JavaScript" {
                assert_ne!(answer.status, 500, "{path}: {answer:?}");
            } else if name == "erlang" || !path.contains("_view") {
                let told = (answer.status, answer.text("error"), answer.text("reason"));
                assert_eq!(told, (500, "unknown_query_language".into(), name.into()), "{path}");
            }
        }
    }
    let missing = server.json("GET", "/db/_changes?filter=erlang/none", NULL).await;
    assert_eq!(missing.0, 404, "what is not there is missing in any language");
    // A validation function in another language refuses all writes but its own removal.
    let judge = json!({"language": "python", "validate_doc_update": "function () {}"});
    let saved = server.ok("PUT", "/db/_design/judge", judge).await;
    let (status, answer) = server.json("PUT", "/db/y", json!({})).await;
    let expected = (500, &json!("unknown_query_language"), &json!("python"));
    assert_eq!((status, &answer["error"], &answer["reason"]), expected);
    let rows = server.ok("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "y"}]})).await;
    assert_eq!(rows[0]["error"], "unknown_query_language", "{rows}");
    let rev = saved["rev"].as_str().unwrap();
    server.ok("DELETE", &format!("/db/_design/judge?rev={rev}"), NULL).await;
    server.ok("PUT", "/db/y", json!({})).await;
}

#[tokio::test]
async fn numbers_and_separators_of_query_strings() {
    let server = Store::new().serve_database().await;
    let views = json!({"views": {"v": {"map": "function (doc) { emit(doc._id); }"}}});
    server.ok("PUT", "/db/_design/d", views).await;
    for path in ["_all_docs", "_design_docs", "_design/d/_view/v"] {
        for limit in ["99999999999999999999", "576460752303423488"] {
            let (status, answer) = server.json("GET", &format!("/db/{path}?limit={limit}"), NULL).await;
            let reason = "Limit is too large, must not exceed 576460752303423487";
            assert_eq!((status, &answer["error"]), (400, &json!("query_parse_error")), "{path}");
            assert_eq!(answer["reason"], reason);
        }
        assert_eq!(server.json("GET", &format!("/db/{path}?limit=576460752303423487"), NULL).await.0, 200, "{path}");
    }
    for query in ["limit=2;", "limit=2;skip=0", "limit=99999999999999999999"] {
        assert!(server.ok("GET", &format!("/db/_index?{query}"), NULL).await["indexes"].is_array(), "{query}");
    }
    let none = server.ok("GET", "/db/_all_docs?skip=0;limit=0", NULL).await;
    assert_eq!(none["rows"], json!([]));
}
