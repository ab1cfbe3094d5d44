//! `flatbed load` by a user who may write into a database, and may not create one.

use std::fs;

use flatbed_client::{Connection, Url};
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, ask, run, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_loads_into_a_database_that_exists() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let mut connection = server.connect().await;
    for path in ["/_users", "/db"] {
        ask(&mut connection, Method::PUT, path, &Value::Null).await;
    }
    ask(&mut connection, Method::PUT, "/db/_security", &json!({ "members": { "names": ["bob"] } })).await;
    let bob = json!({ "name": "bob", "password": "secret", "roles": [], "type": "user" });
    ask(&mut connection, Method::PUT, "/_users/org.couchdb.user:bob", &bob).await;
    ask(&mut connection, Method::PUT, "/_node/_local/_config/admins/anna", &"s3cret".into()).await;
    let url = server.url.to_string().replace("http://", "http://bob:secret@");
    let file = directory.path().join("documents.jsonl");
    fs::write(&file, "{\"_id\":\"a\"}\n").unwrap();
    let file = file.to_str().unwrap();
    let loaded = run(&["load", "db", file, "--url", &url]);
    assert!(loaded.status.success(), "{}", text(&loaded));
    let mut connection = Connection::open(&Url::parse(&url).unwrap()).await.unwrap();
    assert_eq!(ask(&mut connection, Method::GET, "/db/a", &Value::Null).await["_id"], "a");
    let refused = run(&["load", "missing", file, "--url", &url]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
}
