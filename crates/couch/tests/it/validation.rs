//! `validate_doc_update` over HTTP.

use crate::support::ServerOptions;

use super::store;
use crate::support::{Running, Store};
use serde_json::{Value, json};

const NULL: Value = Value::Null;

const VALIDATOR: &str = "function (doc, old, user, security) {
    if (doc.none) throw({forbidden: 'none'});
    if (doc.who) throw({forbidden: JSON.stringify([user, security, doc._rev, doc._revisions, doc._attachments])});
    if (doc._deleted && old && old.kept) throw({unauthorized: 'kept ' + old._rev.split('-')[0]});
    if (old && old.n > doc.n) throw({forbidden: 'less than ' + old.n});
    if (!old && doc.n > 90) throw({forbidden: 'begins with ' + doc.n});
}";

async fn pair() -> Option<(Store, Running, Running)> {
    let store = store()?;
    let (one, two) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    one.ok("PUT", "/db", NULL).await;
    Some((store, one, two))
}

async fn rev(server: &Running, id: &str) -> String {
    server.ok("GET", &format!("/db/{id}"), NULL).await["_rev"].as_str().expect("a revision").to_owned()
}

async fn refused(server: &Running, method: &str, path: &str, body: Value) -> (u16, String, String) {
    let (status, answer) = server.json(method, path, body).await;
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    (status, text("error"), text("reason"))
}

fn answer(status: u16, error: &str, reason: &str) -> (u16, String, String) {
    (status, error.into(), reason.into())
}

#[tokio::test]
async fn writes_are_validated() {
    let Some((_store, one, two)) = pair().await else { return };
    one.ok("PUT", "/db/early", json!({"n": 1, "kept": true})).await;
    // The other server has the database in its cache, without a validator.
    two.ok("PUT", "/db/known", json!({"n": 1})).await;
    one.ok("PUT", "/db/_design/v", json!({"validate_doc_update": VALIDATOR})).await;
    for server in [&two, &one] {
        assert_eq!(refused(server, "PUT", "/db/x", json!({"none": 1})).await, answer(403, "forbidden", "none"));
        let early = rev(server, "early").await;
        let path = format!("/db/early?rev={early}");
        assert_eq!(refused(server, "DELETE", &path, NULL).await, answer(401, "unauthorized", "kept 1"));
        let less = json!({"_rev": early, "n": 0});
        assert_eq!(refused(server, "PUT", "/db/early", less.clone()).await, answer(403, "forbidden", "less than 1"));
        assert_eq!(refused(server, "POST", "/db", json!({"n": 91})).await, answer(403, "forbidden", "begins with 91"));
        // Conflicts are detected before the function runs.
        let stale = json!({"none": 1});
        assert_eq!(refused(server, "PUT", "/db/early", stale).await.0, 409);
        // Local documents and design documents are not validated.
        server.ok("PUT", "/db/_local/x", json!({"none": 1})).await;
    }
    one.ok("PUT", "/db/_design/other", json!({"none": 1})).await;
    let told = refused(&one, "PUT", "/db/x", json!({"who": 1})).await.2;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told[0], json!({"db": "db", "name": null, "roles": ["_admin"]}));
    assert_eq!(told[1]["admins"]["roles"], json!(["_admin"]));
    // Without an existing ancestor there is neither `_rev` nor `_revisions`.
    assert_eq!((&told[2], &told[3]), (&NULL, &NULL));
    // In a bulk write each edit has its own outcome, and later edits of a document see earlier ones.
    let docs = json!({"docs": [{"_id": "a", "n": 5}, {"_id": "b", "none": 1}, {"_id": "c"}]});
    let rows = two.ok("POST", "/db/_bulk_docs", docs).await;
    assert_eq!((&rows[0]["ok"], &rows[2]["ok"]), (&json!(true), &json!(true)));
    assert_eq!(rows[1], json!({"id": "b", "error": "forbidden", "reason": "none"}));
    // Replicated revisions are validated against the nearest existing ancestor; known ones are not validated.
    let a = rev(&one, "a").await;
    let hash = a.split_once('-').expect("a hash").1;
    let history = json!({"start": 3, "ids": ["c", "b", hash]});
    let docs = json!({"new_edits": false, "docs": [
        {"_id": "a", "_revisions": history, "n": 4},
        {"_id": "e", "_rev": "5-a", "n": 4},
        {"_id": "f", "_rev": "5-a", "n": 91},
    ]});
    let rows = one.ok("POST", "/db/_bulk_docs", docs).await;
    assert_eq!(
        rows,
        json!([
            {"id": "a", "rev": "3-c", "error": "forbidden", "reason": "less than 5"},
            {"id": "f", "rev": "5-a", "error": "forbidden", "reason": "begins with 91"},
        ])
    );
    // Writing an attachment keeps the body and is validated.
    let path = format!("/db/early/file?rev={}", rev(&one, "early").await);
    let put = one.connect().await.call("PUT", &path, &[("content-type", "text/plain")], b"text").await;
    assert_eq!(put.status, 201, "{put:?}");
}

#[tokio::test]
async fn a_changed_validator_holds_at_once_everywhere() {
    let Some((_store, one, two)) = pair().await else { return };
    two.ok("PUT", "/db/known", json!({})).await;
    let refuses = |word: &str| json!({"validate_doc_update": format!("function (doc) {{ if (doc.{word}) throw({{forbidden: '{word}'}}); }}")});
    one.ok("PUT", "/db/_design/v", refuses("first")).await;
    assert_eq!(refused(&two, "POST", "/db", json!({"first": 1})).await, answer(403, "forbidden", "first"));
    let mut second = refuses("second");
    second["_rev"] = json!(rev(&two, "_design/v").await);
    two.ok("PUT", "/db/_design/v", second).await;
    for server in [&one, &two] {
        assert_eq!(refused(server, "POST", "/db", json!({"second": 1})).await, answer(403, "forbidden", "second"));
        server.ok("POST", "/db", json!({"first": 1})).await;
    }
    let path = format!("/db/_design/v?rev={}", rev(&one, "_design/v").await);
    one.ok("DELETE", &path, NULL).await;
    two.ok("POST", "/db", json!({"second": 1})).await;
    one.ok("PUT", "/db/_design/w", refuses("third")).await;
    assert_eq!(refused(&two, "POST", "/db", json!({"third": 1})).await.0, 403);
    let purged = json!({"_design/w": [rev(&two, "_design/w").await]});
    two.ok("POST", "/db/_purge", purged).await;
    one.ok("POST", "/db", json!({"third": 1})).await;
    // A broken function refuses all writes but its repair.
    for (source, word) in [("function (", "compilation_error"), ("function (doc) { doc.a.b.c; }", "unknown_error")] {
        let mut broken = json!({ "validate_doc_update": source });
        if let Some(rev) = one.json("GET", "/db/_design/b", NULL).await.1.get("_rev") {
            broken["_rev"] = rev.clone();
        }
        one.ok("PUT", "/db/_design/b", broken).await;
        let (status, error, _) = refused(&two, "POST", "/db", json!({})).await;
        assert_eq!((status, error.as_str()), (500, word));
    }
    let path = format!("/db/_design/b?rev={}", rev(&one, "_design/b").await);
    one.ok("DELETE", &path, NULL).await;
    two.ok("POST", "/db", json!({})).await;
}

/// Writers run at both servers while the validator is added: no refused document commits after it.
#[tokio::test]
async fn nothing_is_written_behind_a_validators_back() {
    let Some((_store, one, two)) = pair().await else { return };
    let write = async |server: &Running, from: u64| {
        for n in 0..40 {
            let (status, _) = server.json("PUT", &format!("/db/doc{from}-{n}"), json!({"none": 1})).await;
            assert!(status == 201 || status == 403, "{status}");
            if status == 403 {
                return;
            }
        }
        panic!("the validator was not created");
    };
    let design = async {
        one.until("/db", |info| info["doc_count"].as_u64() > Some(8)).await;
        one.ok("PUT", "/db/_design/v", json!({"validate_doc_update": VALIDATOR})).await;
    };
    tokio::join!(write(&one, 1), write(&one, 2), write(&two, 3), write(&two, 4), design);
    let changes = two.ok("GET", "/db/_changes", NULL).await;
    let last = changes["results"].as_array().expect("rows").last().expect("a row").clone();
    assert_eq!(last["id"], "_design/v");
}

#[tokio::test]
async fn replications_are_validated() {
    let Some((_store, one, _two)) = pair().await else { return };
    one.ok("PUT", "/copy", NULL).await;
    one.ok("PUT", "/copy/_design/v", json!({"validate_doc_update": VALIDATOR})).await;
    let docs = json!({"docs": [{"_id": "a"}, {"_id": "b", "none": 1}, {"_id": "c"}]});
    one.ok("POST", "/db/_bulk_docs", docs).await;
    let done = one.ok("POST", "/_replicate", json!({"source": "db", "target": "copy"})).await;
    let last = done["history"][0].clone();
    assert_eq!((&last["docs_written"], &last["doc_write_failures"]), (&json!(2), &json!(1)));
    assert_eq!(one.json("GET", "/copy/b", NULL).await.0, 404);
}

/// Functions see `_security`: a change at one server applies to the next write at the other.
#[tokio::test]
async fn a_changed_security_holds_at_once_everywhere() {
    let Some((_store, one, two)) = pair().await else { return };
    let source = "function (doc, old, user, security) { if (security.closed) throw({forbidden: 'closed'}); }";
    one.ok("PUT", "/db/_design/v", json!({ "validate_doc_update": source })).await;
    for closed in [false, true, false, true] {
        one.ok("PUT", "/db/_security", json!({ "closed": closed })).await;
        for server in [&one, &two] {
            let (status, error, _) = refused(server, "POST", "/db", json!({})).await;
            let expected = if closed { (403, "forbidden") } else { (201, "") };
            assert_eq!((status, error.as_str()), expected);
        }
    }
}

#[tokio::test]
async fn what_functions_say_is_cut() {
    let Some((_store, one, _two)) = pair().await else { return };
    let says = "function (doc) { if (!doc.ok) throw({forbidden: 'x'.repeat(100000)}); }";
    one.ok("PUT", "/db/_design/v", json!({"validate_doc_update": says})).await;
    let docs: Vec<Value> = (0..50).map(|n| json!({"n": n, "ok": n == 7})).collect();
    let answer = one.ok("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    for (n, row) in answer.as_array().expect("rows").iter().enumerate() {
        let told = row["reason"].as_str().map(str::len);
        assert_eq!(told, (n != 7).then_some(4_000), "{n}");
    }
    assert_eq!(refused(&one, "PUT", "/db/x", json!({})).await.2.len(), 4_000);
}
