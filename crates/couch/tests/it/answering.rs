//! Functions of design documents that answer requests, and the limits of their answers. `tests/answers.test.mjs`
//! replays CouchDB's answers.

use std::time::Duration;

use super::store;
use crate::support::{Answer, Running, ServerOptions};
use flatbed_javascript::RunnerOptions;
use flatbed_layer::LayerOptions;
use flatbed_testkit::until_some;
use serde_json::{Value, json};

const NULL: Value = Value::Null;

async fn serve(design: Value) -> Option<Running> {
    let server = store()?.serve_database().await;
    server.ok("PUT", "/db/_design/d", design).await;
    Some(server)
}

fn error(answer: &Answer) -> (u16, String) {
    (answer.status, answer.text("error"))
}

#[tokio::test]
async fn hostile_responses() {
    let design = json!({
        "shows": {
            "split": "function (doc, req) { return {headers: {'X-A': 'b\\r\\nSet-Cookie: c=d'}, body: 'x'}; }",
            "name": "function (doc, req) { return {headers: {'X-A: b\\r\\nX-C': 'd'}, body: 'x'}; }",
            "code": "function (doc, req) { return {code: Number(req.query.code), body: 'x'}; }",
            "frame": "function (doc, req) { return {headers: {'Content-Length': '1', 'transfer-encoding': 'chunked', \
                      'Connection': 'close', 'Upgrade': 'x', 'ETag': 'mine', 'X-A': 'b'}, body: 'xyz'}; }",
            "empty": "function (doc, req) { return {code: 204, body: 'x'}; }",
            "unknown": "function (doc, req) { return {codes: [200, {a: 'b'}]}; }",
            "numbers": "function (doc, req) { return {headers: {'X-N': 5, 'X-T': true, 'X-Z': null}, body: 'x'}; }",
            "base64": "function (doc, req) { return {base64: '%'}; }",
            "large": "function (doc, req) { return 'x'.repeat(Number(req.query.n)); }",
            "endless": "function (doc, req) { for (;;); }",
        },
        "lists": {
            "split": "function (head, req) { start({headers: {'X-A': 'b\\r\\nSet-Cookie: c=d'}}); send('x'); }",
            "code": "function (head, req) { start({code: 101}); send('x'); }",
        },
    });
    let Some(server) = serve(design).await else { return };
    let mut client = server.connect().await;
    let mut show = async |path: &str| client.call("GET", &format!("/db/_design/d/{path}"), &[], b"").await;
    for path in [
        "_show/split",
        "_show/name",
        "_show/code?code=101",
        "_show/code?code=99",
        "_show/code?code=600",
        "_show/code?code=200.5",
        "_show/unknown",
        "_show/base64",
        "_list/split/_all_docs",
        "_list/code/_all_docs",
    ] {
        let answer = show(path).await;
        assert_eq!(error(&answer), (500, "external_response_error".to_owned()), "{path}");
        assert_eq!(answer.header("set-cookie"), None);
    }
    let unknown = show("_show/unknown").await.text("reason");
    assert_eq!(unknown, "Invalid data from external server: {<<\"codes\">>,[200,{[{<<\"a\">>,<<\"b\">>}]}]}");
    let numbers = show("_show/numbers").await;
    let header = |name: &str| numbers.header(name).unwrap_or_default().to_owned();
    assert_eq!(
        (numbers.status, header("x-n"), header("x-t"), header("x-z")),
        (200, "5".into(), "true".into(), "null".into())
    );
    // All requests use one connection, and the server sets its framing.
    let framed = show("_show/frame").await;
    assert_eq!((framed.status, framed.body.as_str(), framed.header("x-a")), (200, "xyz", Some("b")));
    assert_eq!((framed.header("content-length"), framed.header("upgrade")), (Some("3"), None));
    assert_eq!(framed.header("content-security-policy"), Some("sandbox"));
    assert_ne!(framed.header("etag"), Some("mine"));
    assert_eq!((show("_show/empty").await.status, show("_show/code?code=418").await.status), (204, 418));
    let large = show("_show/large?n=3000000").await;
    assert_eq!((large.status, large.body.len()), (200, 3_000_000));
    assert_eq!(error(&show("_show/large?n=17000000").await), (500, "os_process_error".to_owned()));
    // 503 if other functions kept it from the processor.
    let ended = error(&show("_show/endless").await);
    assert!([(500, "timeout".to_owned()), (503, "service_unavailable".to_owned())].contains(&ended), "{ended:?}");
}

#[tokio::test]
async fn lists() {
    let design = json!({"lists": {
        "ids": "function (head, req) { start({headers: {'Content-Type': 'text/plain'}}); var row; send(head.total_rows + ':'); \
                while ((row = getRow())) send(row.id + ','); return 'end'; }",
        "docs": "function (head, req) { var row, sum = 0; while ((row = getRow())) sum += row.doc.n || 0; return sum; }",
        "breaks": "function (head, req) { var row, n = 0; while ((row = getRow())) { send(row.id); if (++n > 1000) throw 'x'; } }",
        "row": "function (head, req) { send('head'); var row = getRow(); send(fooBarBam); return 'tail'; }",
        "end": "function (head, req) { send('head'); while (getRow()); throw ['error', 'conflict', 'no']; }",
        "first": "function (head, req) { return getRow().id; }",
        "body": "function (head, req) { return toJSON([req.body, req.method, req.path, req.query]); }",
    }});
    let Some(server) = serve(design).await else { return };
    let docs: Vec<Value> =
        (0..3_000).map(|n| json!({"_id": format!("doc{n:05}"), "n": n, "pad": "x".repeat(100)})).collect();
    server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    let list = async |path: &str| server.call("GET", &format!("/db/_design/d/_list/{path}"), "").await;
    let ids = list("ids/_all_docs").await;
    assert_eq!((ids.status, ids.header("content-type")), (200, Some("text/plain")));
    let expected: String = (0..3_000).map(|n| format!("doc{n:05},")).collect();
    assert_eq!(ids.body, format!("3001:_design/d,{expected}end"));
    assert_eq!(list("docs/_all_docs?include_docs=true").await.body, (2_999 * 1_500).to_string());
    assert_eq!(list("ids/_all_docs?startkey=%22doc02998%22").await.body, "3001:doc02998,doc02999,end");
    assert_eq!(list("first/_all_docs").await.body, "_design/d");
    assert_eq!(list("ids/_all_docs?limit=x").await.status, 400);
    let keys = json!({"keys": ["doc00001", "none"]});
    let posted = server.call("POST", "/db/_design/d/_list/body/_all_docs?key=1", &keys.to_string()).await;
    assert_eq!(posted.status, 400, "the view refuses it: {posted:?}");
    let posted = server.call("POST", "/db/_design/d/_list/body/_all_docs?x=1", &keys.to_string()).await;
    assert_eq!(posted.json(), json!([keys, "POST", ["db", "_design", "d", "_list", "body", "_all_docs"], {"x": "1"}]));
    assert_eq!(server.call("PUT", "/db/_design/d/_list/ids/_all_docs", "{}").await.status, 405);
    // The output before the failure stays, and the error follows it.
    for (name, begins, code, word, reason) in [
        ("row", "head", 500, "", "fooBarBam"),
        ("end", "head", 409, "conflict", "no"),
        ("breaks", "_design/ddoc00000", 500, "", "x"),
    ] {
        let failed = list(&format!("{name}/_all_docs")).await;
        assert_eq!(failed.status, 200, "{failed:?}");
        let (sent, error) = failed.body.trim_end_matches('\n').rsplit_once('\n').expect("an error's line");
        assert!(sent.starts_with(begins) && failed.body.ends_with("}\n"), "{failed:?}");
        let error: Value = serde_json::from_str(error).expect("JSON");
        let names: Vec<&String> = error.as_object().expect("an object").keys().collect();
        assert_eq!((error["code"].as_u64(), names.len()), (Some(code), 3), "{error}");
        assert!(word.is_empty() || error["error"] == word, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(list("row/_all_docs?limit=1").await.body.lines().next(), Some("head"));
}

#[tokio::test]
async fn updates_are_judged() {
    let design = json!({
        "updates": {
            "write": "function (doc, req) { doc = doc || {_id: req.id}; doc.v = req.body; return [doc, 'ok']; }",
            "stale": "function (doc, req) { doc._rev = '1-00000000000000000000000000000000'; return [doc, 'ok']; }",
            "split": "function (doc, req) { return [{_id: 'never'}, {headers: {'X-A': 'b\\r\\nc: d'}}]; }",
            "file": "function (doc, req) { return [{_id: 'file', _attachments: {a: {data: 'aGk='}}}, 'ok']; }",
            "local": "function (doc, req) { return [{_id: '_local/l', v: 1}, 'ok']; }",
        },
        "validate_doc_update": "function (doc) { if (doc.v === 'bad') throw({forbidden: 'no'}); }",
    });
    let Some(server) = serve(design).await else { return };
    let update =
        async |path: &str, body: &str| server.call("POST", &format!("/db/_design/d/_update/{path}"), body).await;
    let made = update("write/a%2Fb/c", "1").await;
    assert_eq!((made.status, made.header("x-couch-id")), (201, Some("a%2Fb%2Fc")));
    let there = server.ok("GET", "/db/a%2Fb%2Fc", NULL).await;
    assert_eq!((there["v"].as_str(), there["_rev"].as_str()), (Some("1"), made.header("x-couch-update-newrev")));
    assert_eq!(error(&update("write/a/b/c", "bad").await), (403, "forbidden".to_owned()));
    assert_eq!(error(&update("stale/a/b/c", "").await), (409, "conflict".to_owned()));
    assert_eq!(update("split", "").await.status, 500);
    assert_eq!(server.json("GET", "/db/never", NULL).await.0, 404, "an answer that cannot be sent writes nothing");
    assert_eq!((update("file", "").await.status, update("local", "").await.status), (201, 201));
    assert_eq!(server.call("GET", "/db/file/a", "").await.body, "hi");
    assert_eq!(server.ok("GET", "/db/_local/l", NULL).await["v"], 1);
    assert_eq!(server.call("HEAD", "/db/_design/d/_update/write/h", "").await.status, 405);
    assert_eq!(server.json("GET", "/db/h", NULL).await.0, 404);
}

#[tokio::test]
async fn rewrites_are_bounded() {
    let design = json!({"rewrites": "function (req) { return {path: '_rewrite/again', query: req.query}; }"});
    let Some(server) = serve(design).await else { return };
    server.ok("PUT", "/other", NULL).await;
    let function = "function (req) { var to = req.query; return {path: to.path, method: to.method || req.method, query: {}, \
                    headers: {Referer: 'http://localhost/', Authorization: 'Basic eA==', 'X-A': 'b'}, body: req.query.body || req.body}; }";
    server.ok("PUT", "/db/_design/f", json!({ "rewrites": function })).await;
    let show = json!({
        "rewrites": [{"from": "show/*", "to": "_show/req/*"}, {"from": "up", "to": "../.."}],
        "shows": {"req": "function (doc, req) { return {json: {requested: req.requested_path, path: req.path, x: req.headers['X-A'], \
                          auth: req.headers.Authorization, body: req.body, id: req.id}}; }"},
    });
    server.ok("PUT", "/db/_design/s", show).await;
    let looped = server.json("GET", "/db/_design/d/_rewrite/x", NULL).await;
    assert_eq!((looped.0, looped.1["reason"].as_str()), (400, Some("Exceeded rewrite recursion limit")));
    let go = async |method: &str, query: &str, body: Value| {
        server.json(method, &format!("/db/_design/f/_rewrite/x?{query}"), body).await
    };
    // The function's own database, with any method, and the original body or another one.
    assert_eq!(go("POST", "path=../../made&method=PUT", json!({"v": 1})).await.0, 201);
    assert_eq!(go("GET", "path=../../new&method=PUT&body=%7B%22v%22:2%7D", NULL).await.0, 201);
    assert_eq!(server.ok("GET", "/db/made", NULL).await["v"], 1);
    assert_eq!(server.ok("GET", "/db/new", NULL).await["v"], 2);
    // Other databases, for reading only.
    assert_eq!(go("GET", "path=../../../other", NULL).await.1["db_name"], "other");
    for (method, query) in [("GET", "method=DELETE&path=../../../other"), ("PUT", "path=../../../third")] {
        assert_eq!(go(method, query, NULL).await.1["error"], "insecure_rewrite_rule", "{method} {query}");
    }
    for query in ["", "path=a%0D%0Ab", "path=%20", "path=x&method=a%20b"] {
        assert_eq!(go("GET", query, NULL).await.1["error"], "rewrite_error", "{query}");
    }
    let shown = go("POST", "path=../s/_rewrite/show/id", json!([1])).await.1;
    assert_eq!(shown["requested"], json!(["db", "_design", "f", "_rewrite", "x"]));
    assert_eq!(shown["path"], json!(["db", "_design", "s", "_show", "req", "id"]));
    assert_eq!(
        (&shown["x"], &shown["auth"], &shown["body"], &shown["id"]),
        (&json!("b"), &NULL, &json!("[1]"), &json!("id"))
    );
    assert_eq!(server.json("GET", "/db/_design/s/_rewrite/up", NULL).await.1["db_name"], "db");
    // Forms are accepted from pages of this server only, whatever a function says.
    let form = go("POST", "path=../../made", NULL).await;
    assert_eq!(form.1["reason"], "Referer header required.");
}

#[tokio::test]
async fn functions_of_rewrites_do_not_say_where_the_server_is() {
    let function = "function () { return {path: '../../made', body: '{}', \
                    headers: {'X-Public-Host': 'c.example', 'X-Scheme': 'https'}}; }";
    let Some(server) = serve(json!({ "rewrites": function })).await else { return };
    for (key, name) in [("x_forwarded_host", "X-Public-Host"), ("x_forwarded_proto", "X-Scheme")] {
        let set = server.json("PUT", &format!("/_node/_local/_config/chttpd/{key}"), json!(name)).await;
        assert_eq!(set.0, 200, "{set:?}");
    }
    let mut client = server.connect().await;
    let json = [("content-type", "application/json")];
    let answer = client.call("PUT", "/db/_design/d/_rewrite/x", &json, b"{}").await;
    assert_eq!((answer.status, answer.header("location")), (201, Some("http://localhost/db/made")), "{answer:?}");
}

/// All calls of a request share one time limit.
#[tokio::test]
async fn rewrites_that_lead_to_themselves_take_the_time_of_one_call() {
    let Some(store) = store() else { return };
    let functions = RunnerOptions { batch_max: Duration::from_millis(200), ..RunnerOptions::default() };
    let layer = store.layer_running(functions, LayerOptions::default()).await;
    let server = store.serve_on(layer, ServerOptions::default()).await;
    server.ok("PUT", "/db", NULL).await;
    // Each call takes half of the limit, on a machine of any speed.
    let rewrites =
        "function (req) { var end = Date.now() + 100; while (Date.now() < end); return {path: '_rewrite/again'}; }";
    server.ok("PUT", "/db/_design/d", json!({ "rewrites": rewrites })).await;
    // A loaded machine may keep the last call from the processor: 503.
    let look = async || {
        let (status, answer) = server.json("GET", "/db/_design/d/_rewrite/x", NULL).await;
        (status != 503).then_some((status, answer))
    };
    let (status, answer) = until_some("the calls have the processor", look).await;
    assert_eq!((status, &answer["error"]), (500, &json!("timeout")), "{answer}");
    server.stop().await;
}

/// With `secure_rewrites = false` rules lead anywhere, with the client's method and rights. Functions do not.
#[tokio::test]
async fn insecure_rewrites_leave_their_database() {
    let to = "../../../other/doc";
    let design = json!({"rewrites": [{"from": "doc", "to": to}, {"from": "in", "to": "../../../_session"}]});
    let Some(server) = serve(design).await else { return };
    server.ok("PUT", "/other", NULL).await;
    let function = json!({"rewrites": format!("function (req) {{ return {{path: '{to}'}}; }}")});
    server.ok("PUT", "/db/_design/f", function).await;
    let rule = "/db/_design/d/_rewrite/doc";
    assert_eq!(server.json("GET", rule, NULL).await.1["error"], "insecure_rewrite_rule");
    // CouchDB once had the setting in [httpd], and still reads it there.
    let (status, old) = server.json("PUT", "/_node/_local/_config/httpd/secure_rewrites", json!("false")).await;
    assert_eq!((status, old), (200, json!("true")));
    assert_eq!(server.json("PUT", rule, json!({"n": 1})).await.0, 201);
    assert_eq!(server.ok("GET", rule, NULL).await["n"], 1);
    assert_eq!(server.ok("GET", "/db/_design/d/_rewrite/in", NULL).await["ok"], true);
    for (method, path) in [("PUT", "/db/_design/f/_rewrite/x"), ("POST", "/db/_design/d/_rewrite/in")] {
        let refused = server.json(method, path, json!({"name": "x", "password": "y"})).await;
        assert_eq!(refused.1["error"], "insecure_rewrite_rule", "{method} {path}");
    }
    assert_eq!(server.json("PUT", "/_node/_local/_config/chttpd/secure_rewrites", json!("true")).await.0, 200);
    assert_eq!(server.json("GET", rule, NULL).await.1["error"], "insecure_rewrite_rule");
}

/// A single key is handled as a list of keys, as in CouchDB, and the reason for a missing value comes as a row.
#[tokio::test]
async fn lists_of_keys() {
    let grows = "function (keys, values) { return 'xxxxxxxxxx'.repeat(1000); }";
    let map = "function (doc) { emit(doc.n, doc.n); }";
    let design = json!({
        "views": {"sum": {"map": map, "reduce": "_sum"}, "grows": {"map": map, "reduce": grows}, "rows": {"map": map}},
        "lists": {"all": "function (head, req) { var row, all = []; while ((row = getRow())) all.push(row); return toJSON(all); }"},
    });
    let Some(server) = serve(design).await else { return };
    let docs: Vec<Value> = (0..3).map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    server.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    let ask = async |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        server.call(method, &format!("/db/_design/d/_list/all/{path}"), &body).await
    };
    let missing = json!({"id": "error", "key": "zz", "value": "not_found"});
    let found = ask("GET", "_all_docs?keys=[%22zz%22,%22d0%22]", NULL).await.json();
    assert_eq!((&found[0], &found[1]["id"]), (&missing, &json!("d0")));
    assert_eq!(ask("POST", "_all_docs", json!({"keys": ["zz"]})).await.json(), json!([missing]));
    let row = json!({"id": "d2", "key": 2, "value": 2});
    for found in
        [ask("GET", "rows?keys=[2]", NULL).await, ask("POST", "rows", json!({"keys": [2], "queries": []})).await]
    {
        assert_eq!(found.json(), json!([row]));
    }
    let of_groups = "Multi-key fetches for reduce views must use `group=true`";
    let no_array = "`keys` must be an array of strings.";
    for (method, path, body, reason) in [
        ("GET", "sum?keys=[2]", NULL, of_groups),
        ("POST", "sum", json!({"keys": [2]}), of_groups),
        ("GET", "rows?keys=[2]&key=1", NULL, "`keys` is incompatible with `key`, `start_key` and `end_key`"),
        ("POST", "rows", json!({"keys": null}), no_array),
        ("POST", "_all_docs", json!({"keys": "x"}), no_array),
    ] {
        let answer = ask(method, path, body).await;
        assert_eq!(
            (answer.status, answer.text("error"), answer.text("reason")),
            (400, "query_parse_error".into(), reason.into())
        );
    }
    assert_eq!(ask("GET", "sum?keys=[2]&group=true", NULL).await.json(), json!([{"key": 2, "value": 2}]));
    let overflow = json!([{"id": "error", "key": null, "value": "reduce_overflow_error"}]);
    assert_eq!(ask("GET", "grows", NULL).await.json(), overflow);
}

/// A link is followed with its reader's session, and needs no permission of the server.
#[tokio::test]
async fn links_of_other_pages_change_nothing() {
    let design = json!({
        "updates": {"u": "function (doc, req) { return [{_id: req.query.id}, 'x']; }"},
        "rewrites": "function (req) { return {method: req.query.method, path: req.query.path, body: '{\"_id\":\"r\"}', \
                     headers: {'Content-Type': 'application/json', 'sec-fetch-site': 'none', 'origin': 'http://localhost'}}; }",
    });
    let Some(server) = serve(design).await else { return };
    let mut client = server.connect().await;
    let session = ("cookie", "AuthSession=x");
    for (path, changes) in [
        ("_update/u?id=a", true),
        ("_rewrite/x?method=POST&path=../../", true),
        ("_rewrite/x?method=PUT&path=../../b", true),
        ("_rewrite/x?method=GET&path=_update/u", true),
        ("_rewrite/x?method=GET&path=../..", false),
    ] {
        let path = format!("/db/_design/d/{path}");
        for (site, is_other) in [("cross-site", true), ("same-origin", false)] {
            let answer = client.call("GET", &path, &[session, ("sec-fetch-site", site)], b"").await;
            let refused = (answer.status, answer.body.contains("A page of another origin"));
            assert_eq!(refused == (403, true), is_other && changes, "{path} {site} {answer:?}");
        }
        // A request without a session, too: a server without administrators gives all rights to every client.
        let answer = client.call("GET", &path, &[("sec-fetch-site", "cross-site")], b"").await;
        assert_eq!(answer.status == 403, changes, "{path} {answer:?}");
        // Browsers send no `Sec-Fetch-Site` to addresses without TLS.
        for (page, is_other) in [("http://evil.example/", true), ("http://localhost/db/_design/d/page", false)] {
            let answer = client.call("GET", &path, &[("referer", page)], b"").await;
            assert_eq!(answer.status == 403, is_other && changes, "{path} {page} {answer:?}");
        }
        // A page can suppress its `Referer`.
        let answer = client.call("GET", &path, &[session, ("user-agent", "Mozilla/5.0 Firefox/140.0")], b"").await;
        assert_eq!(answer.status == 403, changes, "{path} {answer:?}");
        // Programs that pretend to be browsers, and requests that a page cannot send.
        let shell = ("user-agent", "Mozilla/5.0 (Windows NT; Windows NT 10.0; de-DE) WindowsPowerShell/5.1.19041.4522");
        let script = [("user-agent", "Mozilla/5.0 Firefox/140.0"), ("x-requested-with", "XMLHttpRequest")];
        for headers in [&[shell][..], &script] {
            let answer = client.call("GET", &path, headers, b"").await;
            assert_ne!(answer.status, 403, "{path} {headers:?} {answer:?}");
        }
    }
}
