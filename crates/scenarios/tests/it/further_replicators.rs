//! Replicator databases other than `_replicator`.

use flatbed_testkit::until_wanted;
use foundationdb::tuple::{Bytes, pack};
use serde_json::{Value, json};

use super::accounts::{ADMIN, asked, ok, options, options_without_admin, until, user};
use crate::support::{Store, basic};

/// Renames a database that no server has open, without notifying the servers.
async fn rename(store: &Store, from: &str, to: &str) {
    let key = |name: &str| pack(&(Bytes::from(store.root().to_vec()), 1, name));
    let trx = store.database().create_trx().unwrap();
    let record = trx.get(&key(from), false).await.unwrap().unwrap().to_vec();
    trx.set(&key(to), &record);
    trx.clear(&key(from));
    trx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_further_databases_are_worked_off() {
    let store = Store::new();
    let (one, two) = (store.serve(options_without_admin()).await, store.serve(options_without_admin()).await);
    for path in ["/a", "/x%2F_replicator", "/x%2Fy%2F_replicator", "/x%2F_replicators"] {
        one.ok("PUT", path, Value::Null).await;
    }
    one.ok("PUT", "/a/doc", json!({})).await;
    let once = |target: &str| json!({"source": "a", "target": target, "create_target": true});
    one.ok("PUT", "/x%2F_replicator/once", once("b")).await;
    two.ok("PUT", "/x%2Fy%2F_replicator/once", once("c")).await;
    // An ordinary database, and a replicator database.
    one.ok("PUT", "/x%2F_replicators/once", once("d")).await;
    one.until("/x%2F_replicator/once", |doc| doc["_replication_state"] == "completed").await;
    two.until("/x%2Fy%2F_replicator/once", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(one.ok("GET", "/b/doc", Value::Null).await["_id"], "doc");
    assert_eq!(one.ok("GET", "/c/doc", Value::Null).await["_id"], "doc");

    // Each document is listed under its database, with slashes encoded or not.
    for path in ["/_scheduler/docs/x%2F_replicator/once", "/_scheduler/docs/x/_replicator/once"] {
        let shown = two.ok("GET", path, Value::Null).await;
        let members = (&shown["database"], &shown["doc_id"], &shown["state"]);
        assert_eq!(members, (&json!("x/_replicator"), &json!("once"), &json!("completed")), "{shown}");
    }
    let all = one.ok("GET", "/_scheduler/docs/x%2Fy%2F_replicator", Value::Null).await;
    assert_eq!((&all["total_rows"], &all["docs"][0]["database"]), (&json!(1), &json!("x/y/_replicator")));
    // `total_rows` counts the documents of all states, as in CouchDB.
    for (parameters, count) in
        [("states=completed", 1), ("states=error,Completed", 1), ("states=failed", 0), ("states=completed&skip=1", 0)]
    {
        let path = format!("/_scheduler/docs/x%2Fy%2F_replicator?{parameters}");
        let listed = one.ok("GET", &path, Value::Null).await;
        let found = listed["docs"].as_array().map(Vec::len);
        assert_eq!((&listed["total_rows"], found), (&json!(1), Some(count)), "{parameters}");
    }
    let (status, refused) = one.json("GET", "/_scheduler/docs/x%2F_replicator?states=done", Value::Null).await;
    assert_eq!((status, &refused["error"]), (400, &json!("query_parse_error")));
    assert_eq!(one.ok("GET", "/_scheduler/docs", Value::Null).await["total_rows"], 0);
    for path in ["/_scheduler/docs/x%2F_replicators", "/_scheduler/docs/none%2F_replicator", "/_scheduler/docs/a"] {
        assert_eq!(one.json("GET", path, Value::Null).await.0, 404, "{path}");
    }
    assert_eq!(one.ok("GET", "/x%2F_replicators/once", Value::Null).await["_replication_state"], Value::Null);

    // A document with the same id in another database is another job.
    let forever = |target: &str| json!({"source": "a", "target": target, "create_target": true, "continuous": true});
    one.ok("PUT", "/x%2F_replicator/job", forever("e")).await;
    one.ok("PUT", "/x%2Fy%2F_replicator/job", forever("f")).await;
    for server in [&one, &two] {
        let jobs = server.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 2).await;
        let mut databases: Vec<&str> = (0..2).map(|at| jobs["jobs"][at]["database"].as_str().unwrap()).collect();
        databases.sort_unstable();
        assert_eq!(databases, ["x/_replicator", "x/y/_replicator"], "{jobs}");
    }
    for path in ["/e/doc", "/f/doc"] {
        one.until(path, |doc| doc["_id"] == "doc").await;
    }
    // A job ends when its document or its database is deleted.
    let rev = one.ok("GET", "/x%2F_replicator/job", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    two.ok("DELETE", &format!("/x%2F_replicator/job?rev={rev}"), Value::Null).await;
    for server in [&one, &two] {
        let jobs = server.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 1).await;
        assert_eq!(jobs["jobs"][0]["database"], "x/y/_replicator");
    }
    two.ok("DELETE", "/x%2Fy%2F_replicator", Value::Null).await;
    for server in [&one, &two] {
        server.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
        server.until("/_active_tasks", |tasks| tasks.as_array().is_some_and(Vec::is_empty)).await;
    }
    // A database created again under the name is a replicator database again.
    one.ok("PUT", "/x%2Fy%2F_replicator", Value::Null).await;
    one.ok("PUT", "/x%2Fy%2F_replicator/again", once("g")).await;
    two.until("/x%2Fy%2F_replicator/again", |doc| doc["_replication_state"] == "completed").await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_forge_no_owners_there_and_see_no_credentials() {
    let server = Store::new().serve(options()).await;
    for path in ["/_users", "/x%2F_replicator", "/a", "/secret"] {
        ok(&server, "PUT", path, Value::Null).await;
    }
    let born = ok(&server, "PUT", "/_users/org.couchdb.user:anna", user("anna", "anna")).await;
    ok(&server, "PUT", "/_users/org.couchdb.user:bob", user("bob", "bob")).await;
    let members = json!({"members": {"names": ["anna", "bob"]}});
    ok(&server, "PUT", "/x%2F_replicator/_security", members.clone()).await;
    ok(&server, "PUT", "/a/_security", members).await;
    ok(&server, "PUT", "/secret/doc", json!({})).await;
    let (anna, bob) = (basic("anna", "anna"), basic("bob", "bob"));
    let (anna, bob) = ([("authorization", &*anna)], [("authorization", &*bob)]);
    // The server's copy of `_security` may be a second old.
    let look = async || json!(asked(&server, &anna, "GET", "/x%2F_replicator/none", Value::Null).await.status);
    until_wanted("she is a member", look, |status| *status == json!(404)).await;
    // The document is owned by its writer, whatever `owner` it names, and has no more rights than the writer.
    let own = json!({"source": "secret", "target": "a", "owner": "anna", "owner_account": "admin",
                     "source_proxy": "http://anna:s3cret@h", "headers": {"a": "s3cret"},
                     "query_params": {"from": "http://h/x?token=s3cret"}});
    assert_eq!(asked(&server, &anna, "PUT", "/x%2F_replicator/hers", own.clone()).await.status, 201);
    let hers = ok(&server, "GET", "/x%2F_replicator/hers", Value::Null).await;
    assert_eq!((&hers["owner"], &hers["owner_account"]), (&json!("anna"), &born["rev"]), "{hers}");
    let path = "/_scheduler/docs/x%2F_replicator/hers";
    let is_refused = |doc: &Value| doc["state"] == "failed" || doc["error_count"].as_u64().is_some_and(|n| n > 0);
    let shown = until(&server, path, is_refused).await;
    assert!(!shown.to_string().contains("s3cret"), "{shown}");
    assert_eq!(asked(&server, &[ADMIN], "GET", "/a/doc", Value::Null).await.status, 404);

    for owner in [json!("admin"), json!("bob"), Value::Null, json!(["anna"])] {
        let mut forged = own.clone();
        forged["owner"] = owner;
        let refused = asked(&server, &anna, "PUT", "/x%2F_replicator/forged", forged.clone()).await;
        assert_eq!(refused.status, 403, "{refused:?}");
        let mut replicated = forged;
        replicated["_id"] = json!("forged");
        replicated["_rev"] = json!("1-cccccccccccccccccccccccccccccccc");
        let bulk = json!({"new_edits": false, "docs": [replicated]});
        asked(&server, &anna, "POST", "/x%2F_replicator/_bulk_docs", bulk).await;
        assert_eq!(asked(&server, &[ADMIN], "GET", "/x%2F_replicator/forged", Value::Null).await.status, 404);
    }
    // Another user's document is shown without credentials, and cannot be written.
    let seen = asked(&server, &bob, "GET", "/x%2F_replicator/hers", Value::Null).await.json();
    assert_eq!((&seen["source"], &seen["source_proxy"]), (&json!("secret"), &Value::Null), "{seen}");
    assert_eq!(seen["query_params"]["from"], "http://h/x", "{seen}");
    assert!(!seen.to_string().contains("s3cret"), "{seen}");
    let seen = asked(&server, &anna, "GET", "/x%2F_replicator/hers", Value::Null).await.json();
    assert_eq!(seen["source_proxy"], "http://anna:s3cret@h");
    let rev = seen["_rev"].as_str().unwrap();
    let gone = asked(&server, &bob, "DELETE", &format!("/x%2F_replicator/hers?rev={rev}"), Value::Null).await;
    assert_eq!(gone.status, 403, "{gone:?}");
    // No other endpoint shows the credentials.
    for (path, status) in [
        ("_all_docs?include_docs=true", 401),
        ("_changes?include_docs=true", 401),
        ("_design_docs", 403),
        ("_find", 403),
        ("_bulk_get", 403),
    ] {
        let method = if path.starts_with("_find") || path.starts_with("_bulk") { "POST" } else { "GET" };
        let body = if method == "POST" { json!({"selector": {}, "docs": [{"id": "hers"}]}) } else { Value::Null };
        let refused = asked(&server, &bob, method, &format!("/x%2F_replicator/{path}"), body).await;
        assert_eq!(refused.status, status, "{path}: {refused:?}");
        assert!(!refused.body.contains("s3cret"), "{path}");
    }
    server.stop().await;
}

/// A database that an earlier version created is an ordinary one: its members may have written any owner into its
/// documents.
#[tokio::test(flavor = "multi_thread")]
async fn one_from_before_asks_for_nothing() {
    let store = Store::new();
    let before = store.serve(options()).await;
    for path in ["/_users", "/before", "/x%2F_replicator", "/secret"] {
        ok(&before, "PUT", path, Value::Null).await;
    }
    ok(&before, "PUT", "/_users/org.couchdb.user:anna", user("anna", "anna")).await;
    ok(&before, "PUT", "/before/_security", json!({"members": {"names": ["anna"]}})).await;
    ok(&before, "PUT", "/secret/doc", json!({})).await;
    let anna = basic("anna", "anna");
    let anna = [("authorization", &*anna)];
    let forged = json!({"source": "secret", "target": "stolen", "create_target": true, "owner": "admin",
                        "owner_account": "admin"});
    assert_eq!(asked(&before, &anna, "PUT", "/before/forged", forged).await.status, 201);
    before.stop().await;
    rename(&store, "before", "old/_replicator").await;

    let server = store.serve(options()).await;
    // A running document of another replicator database shows that the server has examined all databases.
    let spec = json!({"source": "secret", "target": "copied", "create_target": true});
    ok(&server, "PUT", "/x%2F_replicator/own", spec).await;
    until(&server, "/x%2F_replicator/own", |doc| doc["_replication_state"] == "completed").await;
    let path = "/old%2F_replicator/forged";
    let shown = ok(&server, "GET", path, Value::Null).await;
    assert_eq!((&shown["_replication_state"], &shown["owner"]), (&Value::Null, &json!("admin")), "{shown}");
    assert_eq!(asked(&server, &[ADMIN], "GET", "/stolen", Value::Null).await.status, 404);
    assert_eq!(asked(&server, &[ADMIN], "GET", "/_scheduler/docs/old%2F_replicator", Value::Null).await.status, 404);
    assert_eq!(ok(&server, "GET", "/_scheduler/jobs", Value::Null).await["total_rows"], 0);
    // Users without access cannot tell it from a missing database, whatever the right that a path needs.
    ok(&server, "PUT", "/_users/org.couchdb.user:bob", user("bob", "bob")).await;
    let (bob, anonymous) = (basic("bob", "bob"), &[] as &[(&str, &str)]);
    for headers in [anonymous, &[("authorization", &*bob)]] {
        for path in ["", "/_all_docs", "/_changes", "/_design_docs", "/_local/x", "/doc"] {
            let answer = async |name: &str| {
                let answer = asked(&server, headers, "GET", &format!("/{name}%2F_replicator{path}"), Value::Null).await;
                (answer.status, answer.body)
            };
            let of_missing = answer("none").await;
            assert_eq!(of_missing.0, if headers.is_empty() { 401 } else { 403 }, "{path}");
            assert_eq!(answer("old").await, of_missing, "{path}");
            assert_eq!(answer("x").await, of_missing, "{path}");
        }
    }
    // It stays an ordinary database until it is deleted and created again.
    let written = asked(&server, &anna, "PUT", "/old%2F_replicator/more", json!({"owner": "bob"})).await;
    assert_eq!(written.status, 201, "{written:?}");
    assert_eq!(ok(&server, "GET", "/old%2F_replicator/more", Value::Null).await["owner"], "bob");
    assert_eq!(asked(&server, &anna, "GET", "/old%2F_replicator/_all_docs", Value::Null).await.status, 200);
    ok(&server, "DELETE", "/old%2F_replicator", Value::Null).await;
    ok(&server, "PUT", "/old%2F_replicator", Value::Null).await;
    ok(&server, "PUT", "/old%2F_replicator/_security", json!({"members": {"names": ["anna"]}})).await;
    let refused = asked(&server, &anna, "PUT", path, json!({"owner": "admin"})).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(asked(&server, &anna, "GET", "/old%2F_replicator/_all_docs", Value::Null).await.status, 401);
    server.stop().await;
}
