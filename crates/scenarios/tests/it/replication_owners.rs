//! The owners on whose behalf replications run.

use std::time::Duration;

use flatbed_testkit::pass;
use serde_json::{Value, json};

use super::accounts::{ADMIN, asked, ok, options, options_without_admin, until, user};
use crate::support::{Running, ServerOptions, Store, basic};

/// Writes a document into `from` and waits until it is in `to`.
async fn goes_over(server: &Running, id: &str, (from, to): (&str, &str)) {
    ok(server, "PUT", &format!("/{from}/{id}"), json!({})).await;
    until(server, &format!("/{to}/{id}"), |doc| doc["_id"] == id).await;
}

/// Asserts that a document is not copied for longer than a replication takes.
async fn stays(server: &Running, id: &str, (from, to): (&str, &str)) {
    ok(server, "PUT", &format!("/{from}/{id}"), json!({})).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(asked(server, &[ADMIN], "GET", &format!("/{to}/{id}"), Value::Null).await.status, 404, "{id}");
}

/// Waits until each job has noticed that its owner's account is gone, or has ended.
async fn until_owners_are_gone(server: &Running) {
    let is_gone = |job: &Value| job["history"][0]["reason"].as_str().is_some_and(|reason| reason.contains("account"));
    until(server, "/_scheduler/jobs", |jobs| jobs["jobs"].as_array().is_some_and(|jobs| jobs.iter().all(is_gone)))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_called_so_later_inherits_no_replications() {
    let server = Store::new().serve(options()).await;
    for path in ["/_users", "/_replicator", "/a", "/b"] {
        ok(&server, "PUT", path, Value::Null).await;
    }
    for path in ["/_replicator/_security", "/a/_security", "/b/_security"] {
        ok(&server, "PUT", path, json!({"members": {"names": ["anna"]}})).await;
    }
    let path = "/_users/org.couchdb.user:anna";
    let first = ok(&server, "PUT", path, user("anna", "one")).await;
    let (one, two, three) = (basic("anna", "one"), basic("anna", "two"), basic("anna", "three"));
    let as_one = [("authorization", &*one)];
    let source = format!("http://anna:one@{}/a", server.address);
    let spec = json!({"source": "a", "target": "b", "continuous": true, "source_proxy": source});
    assert_eq!(asked(&server, &as_one, "PUT", "/_replicator/hers", spec.clone()).await.status, 201);
    let begun =
        asked(&server, &as_one, "POST", "/_replicate", json!({"source": "a", "target": "b", "continuous": true}));
    assert_eq!(begun.await.status, 202);
    goes_over(&server, "first", ("a", "b")).await;
    let hers = ok(&server, "GET", "/_replicator/hers", Value::Null).await;
    assert_eq!((&hers["owner"], &hers["owner_account"]), (&json!("anna"), &first["rev"]));

    // A changed password does not change the owner.
    let mut changed = user("anna", "two");
    changed["_rev"] = first["rev"].clone();
    let second = ok(&server, "PUT", path, changed).await;
    // Long enough for the server to notice.
    pass(Duration::from_secs(1)).await;
    goes_over(&server, "second", ("a", "b")).await;
    let seen = asked(&server, &[("authorization", &two)], "GET", "/_replicator/hers", Value::Null).await;
    assert_eq!(seen.json()["source_proxy"], json!(source));

    // The name is registered again.
    let rev = second["rev"].as_str().unwrap();
    ok(&server, "DELETE", &format!("{path}?rev={rev}"), Value::Null).await;
    ok(&server, "PUT", path, user("anna", "three")).await;
    until_owners_are_gone(&server).await;
    let later = [("authorization", &*three)];
    assert_eq!(asked(&server, &later, "GET", "/a", Value::Null).await.status, 200);
    stays(&server, "third", ("a", "b")).await;
    let shown = until(&server, "/_scheduler/docs/_replicator/hers", |doc| doc["info"]["error"].is_string()).await;
    assert!(shown["info"]["error"].as_str().unwrap().contains("account"), "{shown}");
    let seen = asked(&server, &later, "GET", "/_replicator/hers", Value::Null).await.json();
    assert_eq!((&seen["source"], &seen["source_proxy"]), (&json!("a"), &Value::Null), "{seen}");
    let rev = seen["_rev"].as_str().unwrap();
    let mut taken = spec.clone();
    taken["_rev"] = json!(rev);
    assert_eq!(asked(&server, &later, "PUT", "/_replicator/hers", taken.clone()).await.status, 403);
    let gone = asked(&server, &later, "DELETE", &format!("/_replicator/hers?rev={rev}"), Value::Null).await;
    assert_eq!(gone.status, 403);
    let cancelled = json!({"source": "a", "target": "b", "continuous": true, "cancel": true});
    assert!([401, 404].contains(&asked(&server, &later, "POST", "/_replicate", cancelled).await.status));

    // An administrator may assign it to her.
    taken["owner"] = json!("anna");
    ok(&server, "PUT", "/_replicator/hers", taken).await;
    goes_over(&server, "fourth", ("a", "b")).await;
    // Batches are written concurrently, so the previous one may arrive later.
    until(&server, "/b/third", |doc| doc["_id"] == "third").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_stays_who_they_are_where_users_are_replicated() {
    let server = Store::new().serve(options()).await;
    for path in ["/_users", "/_replicator", "/a", "/b"] {
        ok(&server, "PUT", path, Value::Null).await;
    }
    for path in ["/_replicator/_security", "/a/_security", "/b/_security"] {
        ok(&server, "PUT", path, json!({"members": {"names": ["anna"]}})).await;
    }
    let path = "/_users/org.couchdb.user:anna";
    let first = ok(&server, "PUT", path, user("anna", "one")).await;
    let first = first["rev"].as_str().unwrap().split_once('-').unwrap().1.to_owned();
    let one = basic("anna", "one");
    let spec = json!({"source": "a", "target": "b", "continuous": true});
    assert_eq!(asked(&server, &[("authorization", &one)], "PUT", "/_replicator/hers", spec).await.status, 201);
    goes_over(&server, "first", ("a", "b")).await;
    // Replicated from a server where her password changed several times.
    let replicated = async |salt: &str, ids: &[&str]| {
        let mut document = user("anna", salt);
        document["_id"] = json!("org.couchdb.user:anna");
        document["_rev"] = json!(format!("{}-{}", ids.len(), ids[0]));
        document["_revisions"] = json!({"start": ids.len(), "ids": ids});
        ok(&server, "POST", "/_users/_bulk_docs", json!({"new_edits": false, "docs": [document]})).await;
    };
    let [second, third] = ["b".repeat(32), "c".repeat(32)];
    replicated("three", &[&third, &second, &first]).await;
    // Long enough for the server to notice.
    pass(Duration::from_secs(1)).await;
    goes_over(&server, "second", ("a", "b")).await;
    // Replicated from a server where the account was deleted and registered again; the deletion did not arrive.
    let mut elsewhere = json!({"_id": "d", "_rev": format!("3-{third}")});
    elsewhere["_revisions"] = json!({"start": 3, "ids": [third]});
    ok(&server, "POST", "/b/_bulk_docs", json!({"new_edits": false, "docs": [elsewhere]})).await;
    let deletion = ok(&server, "DELETE", &format!("/b/d?rev=3-{third}"), Value::Null).await;
    let deletion = deletion["rev"].as_str().unwrap().split_once('-').unwrap().1.to_owned();
    replicated("five", &["e".repeat(32).as_str(), &deletion, &third, &second, &first]).await;
    until_owners_are_gone(&server).await;
    assert_eq!(
        asked(&server, &[("authorization", &basic("anna", "five"))], "GET", "/a", Value::Null).await.status,
        200
    );
    stays(&server, "third", ("a", "b")).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_anybody_wrote_does_not_go_on_once_there_is_an_administrator() {
    let server = Store::new().serve(options_without_admin()).await;
    for path in ["/_replicator", "/a", "/b", "/c"] {
        server.ok("PUT", path, Value::Null).await;
    }
    // Whatever `owner` the document names.
    let spec = |target: &str| json!({"source": "a", "target": target, "continuous": true});
    let mut named = spec("b");
    named["owner"] = json!("admin");
    named["owner_account"] = json!("admin");
    server.ok("PUT", "/_replicator/named", named).await;
    let mut replicated = spec("c");
    replicated["_id"] = json!("replicated");
    replicated["_rev"] = json!("3-cccccccccccccccccccccccccccccccc");
    let bulk = json!({"new_edits": false, "docs": [replicated]});
    server.ok("POST", "/_replicator/_bulk_docs", bulk).await;
    server.ok("PUT", "/a/before", json!({})).await;
    for path in ["/b/before", "/c/before"] {
        server.until(path, |doc| doc["_id"] == "before").await;
    }
    let path = "/_node/_local/_config/admins/admin";
    assert_eq!(asked(&server, &[], "PUT", path, json!("password")).await.status, 200);
    for (id, target) in [("named", "b"), ("replicated", "c")] {
        let path = format!("/_replicator/{id}");
        let failed = until(&server, &path, |doc| doc["_replication_state"] == "failed").await;
        let reason = failed["_replication_state_reason"].as_str().unwrap();
        assert!(reason.contains("everyone was an administrator"), "{reason}");
        assert_eq!((&failed["owner"], &failed["owner_account"]), (&Value::Null, &Value::Null));
        stays(&server, id, ("a", target)).await;
        // The last writer becomes the owner.
        let mut again = spec(target);
        again["_rev"] = failed["_rev"].clone();
        ok(&server, "PUT", &path, again).await;
        until(&server, &format!("/{target}/{id}"), |doc| doc["_id"] == id).await;
        assert_eq!(ok(&server, "GET", &path, Value::Null).await["owner"], "admin");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_runs_with_the_rights_of_its_owner() {
    let server = Store::new().serve(options()).await;
    for path in ["/_replicator", "/a"] {
        assert_eq!(asked(&server, &[ADMIN], "PUT", path, Value::Null).await.status, 201);
    }
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/a/doc", json!({})).await.status, 201);

    let spec = json!({"source": "a", "target": "b", "create_target": true});
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/_replicator/mine", spec.clone()).await.status, 201);
    let done = until(&server, "/_replicator/mine", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!((&done["owner"], &done["_replication_stats"]["docs_written"]), (&json!("admin"), &json!(1)), "{done}");

    // The account does not exist: the job is retried, because the account may appear, and reaches nothing until then.
    let spec = json!({"source": "a", "target": "c", "create_target": true, "owner": "anna"});
    assert_eq!(asked(&server, &[ADMIN], "PUT", "/_replicator/others", spec).await.status, 201);
    let path = "/_scheduler/docs/_replicator/others";
    let shown = until(&server, path, |doc| doc["error_count"].as_u64().is_some_and(|count| count > 0)).await;
    assert!(shown["info"]["error"].as_str().unwrap().contains("account"), "{shown}");
    let shown = asked(&server, &[ADMIN], "GET", "/_scheduler/jobs", Value::Null).await.json();
    assert_eq!(shown["jobs"][0]["user"], "anna", "{shown}");
    assert_eq!(asked(&server, &[ADMIN], "GET", "/c", Value::Null).await.status, 404);
    // An impossible owner.
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
    // It belonged to an administrator, and still does.
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
    let server = Store::new().serve(options_without_admin()).await;
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
    until(&server, "/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    stays(&server, "after", ("a", "b")).await;
    server.stop().await;
}
