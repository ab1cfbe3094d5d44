//! On whose behalf replications run.

use flatbed_auth::PasswordHash;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Running, ServerOptions, Store};
use flatbed_replicator::ReplicatorOptions;

const ADMIN: (&str, &str) = ("authorization", "Basic YWRtaW46cGFzc3dvcmQ=");

fn options() -> Options {
    let hash = PasswordHash::with_iterations("password", b"0123456789abcdef", 1);
    let server = ServerOptions { admins: [("admin".to_owned(), hash)].into(), ..ServerOptions::default() };
    let replicator =
        ReplicatorOptions { first_pause: std::time::Duration::from_millis(100), ..ReplicatorOptions::default() };
    Options { server, replicator }
}

async fn asked(server: &Running, who: &[(&str, &str)], method: &str, path: &str, body: Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut client = server.connect().await;
    client.call(method, path, who, body.as_bytes()).await
}

async fn until(server: &Running, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..1_000 {
        last = asked(server, &[ADMIN], "GET", path, Value::Null).await.json();
        if wanted(&last) {
            return last;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{path}: {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_runs_with_the_rights_of_its_owner() {
    let store = Store::new();
    let server = store.serve(options()).await;
    for path in ["/_replicator", "/a"] {
        assert_eq!(asked(&server, &[ADMIN], "PUT", path, Value::Null).await.status, 201);
    }
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/a/doc", json!({})).await.status, 201);

    let spec = json!({"source": "a", "target": "b", "create_target": true});
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/_replicator/mine", spec.clone()).await.status, 201);
    let done = until(&server, "/_replicator/mine", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!((&done["owner"], &done["_replication_stats"]["docs_written"]), (&json!("admin"), &json!(1)), "{done}");

    // Nobody has that account: it is tried again, as there may be one later, and reaches nothing until then.
    let spec = json!({"source": "a", "target": "c", "create_target": true, "owner": "anna"});
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/_replicator/others", spec).await.status, 201);
    let path = "/_scheduler/docs/_replicator/others";
    let shown = until(&server, path, |doc| doc["error_count"].as_u64().is_some_and(|count| count > 0)).await;
    assert!(shown["info"]["error"].as_str().unwrap().contains("account"), "{shown}");
    let shown = asked(&server, &[ADMIN], "GET", "/_scheduler/jobs", Value::Null).await.json();
    assert_eq!(shown["jobs"][0]["user"], "anna", "{shown}");
    assert_eq!(asked(&server, &[ADMIN], "GET", "/c", Value::Null).await.status, 404);
    // One that can be nobody's.
    let spec = json!({"source": "a", "target": "c", "owner": 5});
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/_replicator/crooked", spec).await.status, 201);
    until(&server, "/_replicator/crooked", |doc| doc["_replication_state"] == "failed").await;

    let spec = json!({"source": "a", "target": "d", "create_target": true});
    let refused = asked(&server, &[], "POST", "/_replicate", spec.clone()).await;
    assert_eq!((refused.status, refused.text("reason").as_str()), (401, "You are not an authenticated user"));
    assert_eq!(asked(&server, &[ADMIN], "POST", "/_replicate", spec).await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_everyone_is_an_administrator_documents_are_nobodys() {
    let store = Store::new();
    let open = store.serve(ServerOptions::default()).await;
    for path in ["/_replicator", "/a"] {
        open.ok("PUT", path, Value::Null).await;
    }
    open.ok("PUT", "/_replicator/job", json!({"source": "a", "target": "b", "create_target": true})).await;
    let done = open.until("/_replicator/job", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(done["owner"], Value::Null);
    let rev = done["_rev"].as_str().unwrap().to_owned();
    open.stop().await;
    // It was an administrator's, and stays one's.
    let server = store.serve(options()).await;
    let again = json!({"source": "a", "target": "c", "create_target": true, "_rev": rev, "owner": null});
    let bulk = json!({"docs": [{"_id": "more", "source": "a", "target": "d", "create_target": true}]});
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/_replicator/job", again).await.status, 201);
    assert_eq!(asked(&server, &[ADMIN], "POST", "/_replicator/_bulk_docs", bulk).await.status, 201);
    for path in ["/_replicator/job", "/_replicator/more"] {
        let done = until(&server, path, |doc| doc["_replication_state"] == "completed").await;
        assert_eq!(done["owner"], "admin");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_anybody_began_ends_once_there_is_an_administrator() {
    let store = Store::new();
    let server = store.serve(ServerOptions::default()).await;
    for path in ["/a", "/b"] {
        server.ok("PUT", path, Value::Null).await;
    }
    let spec = json!({"source": "a", "target": "b", "continuous": true});
    let begun = asked(&server, &[], "POST", "/_replicate", spec).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    server.ok("PUT", "/a/before", json!({})).await;
    server.until("/b/before", |doc| doc["_id"] == "before").await;
    let path = "/_node/_local/_config/admins/admin";
    assert_eq!(asked(&server, &[], "PUT", path, json!("password")).await.status, 200);
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/a/after", json!({})).await.status, 201);
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert_eq!(asked(&server, &[ADMIN], "GET", "/b/after", Value::Null).await.status, 404);
    server.stop().await;
}
