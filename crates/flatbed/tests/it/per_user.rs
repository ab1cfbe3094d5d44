//! `[couch_peruser]` of the configuration file, under kills of the server.

use std::fs;
use std::path::Path;

use flatbed_client::{Connection, Url};
use flatbed_testkit::until;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, call, storage};

/// Starts a server with an administrator and databases of users.
fn start(directory: &Path) -> Server {
    let file = directory.join("flatbed.toml");
    if !file.exists() {
        fs::write(&file, "[admins]\nroot = \"secret\"\n[couch_peruser]\nenable = true\ndelete_dbs = true\n").unwrap();
    }
    let storage = storage(&directory.join("data"));
    let config = ["--config", file.to_str().unwrap()];
    let arguments: Vec<&str> = storage.iter().map(String::as_str).chain(config).collect();
    Server::start_with(&arguments)
}

async fn connect(server: &Server) -> Connection {
    let url = Url::parse(&format!("http://root:secret@{}", server.url.authority())).unwrap();
    Connection::open(&url).await.unwrap()
}

async fn ask(server: &Server, method: Method, path: &str, body: &str) -> (u16, Value) {
    call(&mut connect(server).await, method, path, body).await
}

#[tokio::test]
async fn a_kill_between_account_and_database_loses_neither() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    // The server has it from the start.
    assert_eq!(ask(&server, Method::GET, "/_users", "").await.0, 200);
    let mut revs = Vec::new();
    for at in 0..3 {
        let name = format!("user{at}");
        let document = json!({"name": name, "password": "secret", "roles": [], "type": "user"}).to_string();
        let (status, written) = ask(&server, Method::PUT, &format!("/_users/org.couchdb.user:{name}"), &document).await;
        assert_eq!(status, 201, "{written}");
        revs.push(written["rev"].as_str().unwrap().to_owned());
    }
    server.kill();

    let server = start(directory.path());
    let database = |at: usize| format!("/userdb-757365723{at}");
    for at in 0..3 {
        let wanted = json!({"roles": ["_admin"], "names": [format!("user{at}")]});
        let path = format!("{}/_security", database(at));
        until("the database is there", async || {
            ask(&server, Method::GET, &path, "").await.1 == json!({"members": wanted, "admins": wanted})
        })
        .await;
    }
    let (status, gone) =
        ask(&server, Method::DELETE, &format!("/_users/org.couchdb.user:user0?rev={}", revs[0]), "").await;
    assert_eq!(status, 200, "{gone}");
    server.kill();

    let server = start(directory.path());
    until("the database goes with the account", async || ask(&server, Method::GET, &database(0), "").await.0 == 404)
        .await;
    assert_eq!(ask(&server, Method::GET, &database(1), "").await.0, 200);
    assert!(server.stop());
}
