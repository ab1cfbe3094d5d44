//! `flatbed import` from a second Flatbed, with every kind of document that CouchDB's recordings have.

use std::collections::BTreeMap;
use std::process::Output;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use flatbed_client::{Connection, Url, encode_segment};
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, ask, call, flatbed, run, text};

/// Writes revisions as they are, without new ones.
pub async fn write(connection: &mut Connection, database: &str, documents: &[Value]) {
    let body = json!({ "docs": documents, "new_edits": false });
    let answer = ask(connection, Method::POST, &format!("/{database}/_bulk_docs"), &body).await;
    assert_eq!(answer, json!([]));
}

fn revision(id: &str, ids: &[&str], members: Value) -> Value {
    let mut document = members;
    document["_id"] = id.into();
    document["_rev"] = format!("{}-{}", ids.len(), ids[0]).into();
    document["_revisions"] = json!({ "start": ids.len(), "ids": ids });
    document
}

fn attachment(data: &[u8], revpos: u64) -> Value {
    json!({ "content_type": "image/png", "revpos": revpos, "data": BASE64.encode(data) })
}

/// Writes every kind of document into a database, and returns their ids.
pub async fn write_every_kind(connection: &mut Connection, database: &str) -> Vec<&'static str> {
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let text = BASE64.encode("so much text ".repeat(1_000));
    let documents = [
        revision("conflicts", &["b", "a"], json!({ "n": 1 })),
        revision("conflicts", &["c", "a"], json!({ "n": 2, "_attachments": { "a": attachment(b"x", 2) } })),
        revision("conflicts", &["e", "d", "a"], json!({ "_deleted": true, "why": "x" })),
        revision("gone", &["b", "a"], json!({ "_deleted": true })),
        revision("revpos", &["a"], json!({ "_attachments": { "zero": attachment(b"x", 0) } })),
        revision("unnamed", &["a"], json!({ "_attachments": { "": attachment(b"no name", 1) } })),
        revision("empty", &["a"], json!({ "_attachments": { "nothing": attachment(b"", 1) } })),
        revision("paths", &["a"], json!({ "_attachments": { "a b/c\u{e9}": attachment(b"x", 1) } })),
        revision("text", &["a"], json!({ "_attachments": { "t": { "content_type": "text/plain", "data": text } } })),
        revision("odd revision", &["x.y", "Not-Hex"], json!({})),
        revision(
            "large",
            &["b", "a"],
            json!({ "_attachments": { "l": attachment(&large, 1), "s": attachment(b"s", 2) } }),
        ),
        revision("_design/d", &["a"], json!({ "views": { "v": { "map": "function (doc) { emit(doc._id); }" } } })),
        revision("a b/\u{fc}+%", &["f"], json!({ "n": 1.5e300, "deep": [[[{}]]], "text": "\u{1F600}\"\\" })),
    ];
    for document in &documents {
        write(connection, database, std::slice::from_ref(document)).await;
    }
    vec![
        "conflicts",
        "gone",
        "revpos",
        "unnamed",
        "empty",
        "paths",
        "text",
        "odd revision",
        "large",
        "_design/d",
        "a b/\u{fc}+%",
    ]
}

/// Returns the leaves of every document.
pub async fn leaves(connection: &mut Connection, database: &str) -> BTreeMap<String, Vec<String>> {
    let changes = ask(connection, Method::GET, &format!("/{database}/_changes?style=all_docs"), &Value::Null).await;
    let rows = changes["results"].as_array().unwrap();
    let of = |row: &Value| {
        let mut revs: Vec<String> =
            row["changes"].as_array().unwrap().iter().map(|leaf| leaf["rev"].as_str().unwrap().to_owned()).collect();
        revs.sort_unstable();
        (row["id"].as_str().unwrap().to_owned(), revs)
    };
    rows.iter().map(of).collect()
}

/// Returns all leaves of a document with their histories and the data of their attachments.
pub async fn whole(connection: &mut Connection, database: &str, id: &str) -> Vec<String> {
    let id = match id.strip_prefix("_design/") {
        Some(name) => format!("_design/{}", encode_segment(name)),
        None => encode_segment(id),
    };
    let path = format!("/{database}/{id}?open_revs=all&revs=true&attachments=true");
    let found = ask(connection, Method::GET, &path, &Value::Null).await;
    let mut found: Vec<String> = found.as_array().unwrap().iter().map(Value::to_string).collect();
    found.sort_unstable();
    found
}

fn import(source: &str, target: &str, arguments: &[&str]) -> Output {
    run(&[&["import", source, "--to", target], arguments].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_moved_and_a_second_run_brings_changes() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let (from, to) = (source.url.to_string(), target.url.to_string());
    let (mut one, mut other) = (source.connect().await, target.connect().await);
    for path in ["/plain", "/parts?partitioned=true", "/a%2Fb", "/left"] {
        ask(&mut one, Method::PUT, path, &Value::Null).await;
    }
    let security =
        json!({ "admins": { "names": [], "roles": ["boss"] }, "members": { "names": ["anna"], "roles": [] } });
    ask(&mut one, Method::PUT, "/plain/_security", &security).await;
    ask(&mut one, Method::PUT, "/plain/_revs_limit", &77.into()).await;
    ask(&mut one, Method::PUT, "/team%2F_replicator", &Value::Null).await;
    ask(&mut one, Method::PUT, "/team%2F_replicator/_security", &security).await;
    ask(&mut one, Method::PUT, "/plain/_local/mark", &json!({ "n": 1 })).await;
    let ids = write_every_kind(&mut one, "plain").await;
    write(&mut one, "parts", &[revision("p:1", &["a"], json!({})), revision("_design/x", &["a"], json!({}))]).await;
    write(&mut one, "a%2Fb", &[revision("x", &["a"], json!({}))]).await;
    // It exists from the start where there is an administrator.
    call(&mut one, Method::PUT, "/_users", "").await;
    call(&mut one, Method::PUT, "/_replicator", "").await;
    let anna = json!({ "name": "anna", "password": "secret", "roles": ["r"], "type": "user" });
    ask(&mut one, Method::PUT, "/_users/org.couchdb.user:anna", &anna).await;
    let replication = json!({ "source": format!("{from}/plain"), "target": "http://a:pw@127.0.0.1:9/x", "continuous": true,
        "_attachments": { "a note": attachment(b"note", 1) } });
    ask(&mut one, Method::PUT, "/_replicator/job", &replication).await;

    let moved = import(&from, &to, &["--local", "--verify", "--except", "le?t"]);
    assert!(moved.status.success(), "{}", text(&moved));
    let said = String::from_utf8_lossy(&moved.stdout);
    assert!(said.contains("_replicator/job: ") && said.contains("to http://127.0.0.1:9/x"), "{said}");
    assert!(said.ends_with("everything was moved\n") && !text(&moved).contains("pw@"), "{}", text(&moved));
    for database in ["plain", "parts", "a%2Fb", "_users"] {
        assert_eq!(leaves(&mut other, database).await, leaves(&mut one, database).await, "{database}");
    }
    for id in &ids {
        assert_eq!(whole(&mut other, "plain", id).await, whole(&mut one, "plain", id).await, "{id}");
    }
    let nothing = Value::Null;
    for path in ["/plain/_security", "/team%2F_replicator/_security"] {
        assert_eq!(ask(&mut other, Method::GET, path, &nothing).await, security, "{path}");
    }
    assert_eq!(ask(&mut other, Method::GET, "/plain/_revs_limit", &nothing).await, 77);
    assert_eq!(ask(&mut other, Method::GET, "/plain/_local/mark", &nothing).await["n"], 1);
    assert_eq!(ask(&mut other, Method::GET, "/parts", &nothing).await["props"]["partitioned"], true);
    assert_eq!(call(&mut other, Method::GET, "/left", "").await.0, 404);
    // The hash of the password has moved.
    let id = "org.couchdb.user:anna";
    assert_eq!(whole(&mut other, "_users", id).await, whole(&mut one, "_users", id).await);
    // The replication is there, and does not run.
    let job = ask(&mut other, Method::GET, "/_replicator/job", &nothing).await;
    assert_eq!((&job["_replication_state"], &job["continuous"]), (&"failed".into(), &true.into()), "{job}");
    assert!(job["_replication_state_reason"].as_str().unwrap().contains("paused"), "{job}");

    let note = ask(&mut other, Method::GET, "/_replicator/job?attachments=true", &nothing).await;
    assert_eq!(note["_attachments"]["a note"]["data"], BASE64.encode(b"note"), "{note}");
    assert_eq!(note["_attachments"]["a note"]["content_type"], "image/png", "{note}");

    // A second run brings what changed since, and lists no replication again.
    write(&mut one, "plain", &[revision("late", &["a"], json!({})), revision("gone", &["x", "y", "z"], json!({}))])
        .await;
    ask(&mut one, Method::PUT, "/plain/_local/mark", &json!({ "_rev": "0-1", "n": 2 })).await;
    let again = import(&from, &to, &["--local", "--only", "plain", "--only", "_replicator"]);
    assert!(again.status.success() && !text(&again).contains("_replicator/job"), "{}", text(&again));
    assert!(text(&again).lines().any(|line| line.starts_with("2 revisions copied")), "{}", text(&again));
    assert_eq!(leaves(&mut other, "plain").await, leaves(&mut one, "plain").await);
    assert_eq!(ask(&mut other, Method::GET, "/plain/_local/mark", &nothing).await["n"], 2);

    // Differences on either side are found.
    write(&mut other, "plain", &[revision("own", &["a"], json!({}))]).await;
    let differs = import(&from, &to, &["--verify", "--only", "plain"]);
    assert_eq!(differs.status.code(), Some(1), "{}", text(&differs));
    assert!(text(&differs).contains("the source has no revision 1-a of \"own\""), "{}", text(&differs));
    assert!(text(&differs).contains("plain: differs: doc_count is "), "{}", text(&differs));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_moved_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let (from, to) = (source.url.to_string(), target.url.to_string());
    let (mut one, mut other) = (source.connect().await, target.connect().await);
    for path in ["/parts?partitioned=true", "/judged"] {
        ask(&mut one, Method::PUT, path, &Value::Null).await;
    }
    for path in ["/parts", "/judged"] {
        ask(&mut other, Method::PUT, path, &Value::Null).await;
    }
    let judge = json!({ "validate_doc_update": "function (doc) { if (doc.bad) throw {forbidden: 'it is bad'}; }" });
    ask(&mut other, Method::PUT, "/judged/_design/judge", &judge).await;
    write(&mut one, "judged", &[revision("bad", &["a"], json!({ "bad": true })), revision("good", &["a"], json!({}))])
        .await;
    let moved = import(&from, &to, &[]);
    assert_eq!(moved.status.code(), Some(1), "{}", text(&moved));
    let said = String::from_utf8_lossy(&moved.stdout);
    assert!(said.contains("judged: revision 1-a of \"bad\": the target: forbidden: it is bad"), "{said}");
    assert!(said.contains("parts: parts exists and is not partitioned"), "{said}");
    assert_eq!(call(&mut other, Method::GET, "/judged/good", "").await.0, 200);
    // A further run knows of it, although the replication has passed it, and moves it when it can.
    let again = import(&from, &to, &["--only", "judged"]);
    assert!(again.status.code() == Some(1) && text(&again).contains("it is bad"), "{}", text(&again));
    let rev = ask(&mut other, Method::GET, "/judged/_design/judge", &Value::Null).await["_rev"].clone();
    ask(&mut other, Method::PUT, "/judged/_design/judge", &json!({ "_rev": rev })).await;
    let again = import(&from, &to, &["--only", "judged"]);
    assert!(again.status.success(), "{}", text(&again));
    assert_eq!(call(&mut other, Method::GET, "/judged/bad", "").await.0, 200);

    let none = import(&from, &to, &["--only", "nosuch*"]);
    assert_eq!(none.status.code(), Some(2), "{}", text(&none));
    let unknown = import("http://127.0.0.1:1", &to, &[]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    for (url, named) in [
        ("ftp://a:s3cret@h", "\"ftp://h\""),
        ("a:s3cret@h:1", "\"h:1\""),
        ("http://h/?token=s3cret", "\"http://h/\""),
        ("http://a:12/s3cret@127.0.0.1:1", "\"http://127.0.0.1:1\""),
    ] {
        let wrong = import(url, &to, &[]);
        assert!(wrong.status.code() == Some(2) && !text(&wrong).contains("s3cret"), "{}", text(&wrong));
        assert!(text(&wrong).contains(named), "{}", text(&wrong));
    }
    let twice = import(&from, &to, &["http://a:s3cret@h"]);
    assert!(!twice.status.success() && !text(&twice).contains("s3cret"), "{}", text(&twice));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_security_cannot_be_set_is_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let path = "/_node/_local/_config/admins/carl";
    ask(&mut target.connect().await, Method::PUT, path, &"s3cret".into()).await;
    let signed = |name: &str| target.url.to_string().replace("http://", &format!("http://{name}:s3cret@"));
    let (mut one, url) = (source.connect().await, Url::parse(&signed("carl")).unwrap());
    let mut other = Connection::open(&url).await.unwrap();
    call(&mut other, Method::PUT, "/_users", "").await;
    let bob = json!({ "name": "bob", "password": "s3cret", "roles": [], "type": "user" });
    ask(&mut other, Method::PUT, "/_users/org.couchdb.user:bob", &bob).await;
    for (database, security) in [("open", json!({})), ("same", json!({ "members": { "names": ["bob"] } }))] {
        for server in [&mut one, &mut other] {
            ask(server, Method::PUT, &format!("/{database}"), &Value::Null).await;
        }
        // Anyone reads `open` at the target, and administrators alone at the source. `same` is alike at both.
        ask(&mut other, Method::PUT, &format!("/{database}/_security"), &security).await;
        write(&mut one, database, &[revision("x", &["a"], json!({}))]).await;
    }
    ask(&mut one, Method::PUT, "/same/_security", &json!({ "members": { "names": ["bob"] } })).await;
    for (server, security) in [(&mut one, json!({})), (&mut other, json!({ "members": { "names": ["bob"] } }))] {
        call(server, Method::PUT, "/_replicator", "").await;
        ask(server, Method::PUT, "/_replicator/_security", &security).await;
    }
    ask(&mut one, Method::PUT, "/_replicator/job", &json!({ "source": "x", "target": "http://127.0.0.1:9/x" })).await;

    // Bob writes documents of both, but sets no `_security`.
    let moved = import(&source.url.to_string(), &signed("bob"), &["--only", "open", "--only", "same"]);
    assert_eq!(moved.status.code(), Some(1), "{}", text(&moved));
    let said = String::from_utf8_lossy(&moved.stdout);
    assert!(said.contains("open: not copied, because its _security could not be set: "), "{said}");
    assert!(!said.contains("same: "), "{said}");
    assert_eq!(call(&mut other, Method::GET, "/open/x", "").await.0, 404);
    assert_eq!(call(&mut other, Method::GET, "/same/x", "").await.0, 200);
    let moved = import(&source.url.to_string(), &signed("bob"), &["--only", "_replicator"]);
    assert!(text(&moved).contains("_replicator: not copied, because its _security"), "{}", text(&moved));
    assert_eq!(call(&mut other, Method::GET, "/_replicator/job", "").await.0, 404);
    // An administrator sets it, and a further run copies the rest.
    let moved = import(&source.url.to_string(), &signed("carl"), &["--only", "open"]);
    assert!(moved.status.success(), "{}", text(&moved));
    assert_eq!(call(&mut other, Method::GET, "/open/x", "").await.0, 200);
    let security = ask(&mut other, Method::GET, "/open/_security", &Value::Null).await;
    assert_eq!(security["members"]["roles"], json!(["_admin"]), "{security}");
    // The target fixes that of `_users`, and admits administrators alone.
    let editable = "/_node/_local/_config/couchdb/users_db_security_editable";
    ask(&mut one, Method::PUT, editable, &"true".into()).await;
    call(&mut one, Method::PUT, "/_users", "").await;
    ask(&mut one, Method::PUT, "/_users/_security", &json!({})).await;
    let dora = json!({ "name": "dora", "password": "secret", "roles": [], "type": "user" });
    ask(&mut one, Method::PUT, "/_users/org.couchdb.user:dora", &dora).await;
    let moved = import(&source.url.to_string(), &signed("carl"), &["--only", "_users"]);
    assert_eq!(moved.status.code(), Some(1), "{}", text(&moved));
    assert!(text(&moved).contains("_users: _security: PUT "), "{}", text(&moved));
    assert_eq!(call(&mut other, Method::GET, "/_users/org.couchdb.user:dora", "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_of_a_user_does_not_become_one_of_an_administrator() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let signed = |url: &Url, name: &str| url.to_string().replace("http://", &format!("http://{name}:s3cret@"));
    let (from, to) = (signed(&source.url, "anna"), signed(&target.url, "carl"));
    for (server, name) in [(&source, "anna"), (&target, "carl")] {
        let path = format!("/_node/_local/_config/admins/{name}");
        ask(&mut server.connect().await, Method::PUT, &path, &"s3cret".into()).await;
    }
    let mut one = Connection::open(&Url::parse(&from).unwrap()).await.unwrap();
    let mut other = Connection::open(&Url::parse(&to).unwrap()).await.unwrap();
    for path in ["/_users", "/_replicator"] {
        call(&mut one, Method::PUT, path, "").await;
    }
    let bob = json!({ "name": "bob", "password": "secret", "roles": [], "type": "user" });
    ask(&mut one, Method::PUT, "/_users/org.couchdb.user:bob", &bob).await;
    let job = json!({ "source": "x", "target": "http://127.0.0.1:9/x", "continuous": true });
    ask(&mut one, Method::PUT, "/_replicator/of_anna", &job).await;
    let job = json!({ "source": "x", "target": "http://127.0.0.1:9/x", "continuous": true, "owner": "bob" });
    ask(&mut one, Method::PUT, "/_replicator/of_bob", &job).await;
    let moved = import(&from, &to, &[]);
    assert!(text(&moved).contains("_replicator/of_bob: x to http://127.0.0.1:9/x of bob\n"), "{}", text(&moved));
    for (path, owner) in [("/_replicator/of_anna", "carl"), ("/_replicator/of_bob", "bob")] {
        assert_eq!(ask(&mut other, Method::GET, path, &Value::Null).await["owner"], owner, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_are_moved_with_their_passwords() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    ask(&mut source.connect().await, Method::PUT, "/_node/_local/_config/admins/anna", &"s3cret".into()).await;
    let signed = |url: &Url| url.to_string().replace("http://", "http://anna:s3cret@");
    let refused = import(&source.url.to_string(), &target.url.to_string(), &["--admins"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let moved = import(&signed(&source.url), &target.url.to_string(), &["--admins"]);
    assert!(moved.status.success(), "{}", text(&moved));
    let url = Url::parse(&signed(&target.url)).unwrap();
    let session = ask(&mut Connection::open(&url).await.unwrap(), Method::GET, "/_session", &Value::Null).await;
    assert_eq!(session["userCtx"], json!({ "name": "anna", "roles": ["_admin"] }));
    // Twice: the same administrator is no failure. The URL is on stdin, where no list of processes shows it.
    let file = directory.path().join("url");
    std::fs::write(&file, format!("{}\n", signed(&source.url))).unwrap();
    let again = flatbed()
        .args(["import", "-", "--admins"])
        .env("FLATBED_URL", signed(&target.url))
        .stdin(std::fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    assert!(again.status.success(), "{}", text(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_sync_gateway_is_moved() {
    let directory = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        let data = directory.path().join(name);
        let mut arguments = crate::support::storage(&data);
        arguments.extend(["--gateway-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"].map(str::to_owned));
        Server::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (source, target) = (start("source"), start("target"));
    let mut one = Connection::open(&source.gateway[1]).await.unwrap();
    let mut other = Connection::open(&target.gateway[1]).await.unwrap();
    let function = "function (doc) { channel(doc.channels); if (doc.to) access(doc.to, doc.gives); }";
    ask(&mut one, Method::PUT, "/db/", &json!({ "sync": function })).await;
    ask(&mut one, Method::PUT, "/db/_role/editors", &json!({ "admin_channels": ["E"] })).await;
    let anna = json!({ "name": "anna", "password": "secret", "admin_channels": ["A"], "admin_roles": ["editors"] });
    ask(&mut one, Method::PUT, "/db/_user/anna", &anna).await;
    let attached =
        json!({ "channels": ["A"], "_attachments": { "a": { "content_type": "image/png", "data": "AAEC" } } });
    ask(&mut one, Method::PUT, "/db/attached", &attached).await;
    ask(&mut one, Method::PUT, "/db/grant", &json!({ "to": "anna", "gives": ["B"] })).await;
    ask(&mut one, Method::PUT, "/db/hidden", &json!({ "channels": ["C"] })).await;

    let (from, to) = (format!("{}/db", source.gateway[1]), target.gateway[1].to_string());
    let moved = import(&from, &to, &["--sync-gateway"]);
    // The API does not give passwords.
    assert_eq!(moved.status.code(), Some(1), "{}", text(&moved));
    assert!(text(&moved).contains("the password of the user anna"), "{}", text(&moved));
    let nothing = Value::Null;
    let user = ask(&mut other, Method::GET, "/db/_user/anna", &nothing).await;
    assert_eq!((&user["admin_channels"], &user["admin_roles"]), (&json!(["A"]), &json!(["editors"])), "{user}");
    let role = ask(&mut other, Method::GET, "/db/_role/editors", &nothing).await;
    assert_eq!(role["admin_channels"], json!(["E"]), "{role}");
    assert_eq!(ask(&mut other, Method::GET, "/db/_config", &nothing).await["sync"], function);
    for id in ["attached", "grant", "hidden"] {
        let path = format!("/db/{id}?revs=true&attachments=true");
        let (before, behind) =
            (ask(&mut one, Method::GET, &path, &nothing).await, ask(&mut other, Method::GET, &path, &nothing).await);
        assert_eq!(before, behind);
    }
    let channels = user["all_channels"].as_array().unwrap();
    assert!(channels.contains(&"E".into()), "{user}");
    let user = ask(&mut other, Method::GET, "/db/_user/anna", &nothing).await;
    assert!(user["all_channels"].as_array().unwrap().contains(&"B".into()), "granted by a document: {user}");
}
