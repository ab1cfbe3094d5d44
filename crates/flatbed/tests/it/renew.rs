//! `flatbed renew` between two servers, and how feeds and replications go on after it.

use std::path::Path;

use crate::support::{Server, ask, check, run, storage};
use flatbed_client::Connection;
use hyper::Method;
use serde_json::{Value, json};

fn arguments(command: &str, data: &Path) -> Vec<String> {
    let mut arguments = vec![command.to_owned()];
    arguments.extend(storage(data));
    arguments
}

/// Returns status, stdout and stderr.
fn done(command: &str, data: &Path) -> (Option<i32>, String, String) {
    let arguments = arguments(command, data);
    let output = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn rows(connection: &mut Connection, path: &str) -> Vec<Value> {
    ask(connection, Method::GET, path, &Value::Null).await["results"].as_array().expect("rows").clone()
}

#[tokio::test]
async fn feeds_and_replications_go_on_after_a_renewal() {
    const DOCUMENTS: usize = 1_000;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let (status, _, error) = done("renew", &data);
    assert_eq!(status, Some(2));
    assert!(error.starts_with("flatbed: there is nothing of Flatbed's under the root ") && error.lines().count() == 1);

    let server = Server::start(&data);
    let mut connection = server.connect().await;
    for database in ["db", "other"] {
        ask(&mut connection, Method::PUT, &format!("/{database}"), &Value::Null).await;
    }
    for batch in 0..DOCUMENTS / 500 {
        let documents: Vec<_> = (0..500).map(|n| json!({"_id": format!("{batch}-{n}"), "n": n})).collect();
        ask(&mut connection, Method::POST, "/db/_bulk_docs", &json!({ "docs": documents })).await;
    }
    ask(&mut connection, Method::PUT, "/other/a", &json!({"a": 1})).await;
    // A replica from before, with its checkpoint.
    let replicate = json!({"source": "other", "target": "copy", "create_target": true});
    let first = ask(&mut connection, Method::POST, "/_replicate", &replicate).await;
    assert_eq!(first["history"][0]["docs_written"], 1);
    let before: Vec<_> = rows(&mut connection, "/db/_changes").await.iter().map(|row| row["id"].clone()).collect();
    let seen = ask(&mut connection, Method::GET, "/db", &Value::Null).await["update_seq"].as_str().unwrap().to_owned();
    let seen_updates = ask(&mut connection, Method::GET, "/_db_updates", &Value::Null).await["last_seq"].clone();
    assert_eq!(rows(&mut connection, &format!("/db/_changes?since={seen}")).await.len(), 0);
    assert!(server.stop());

    for _ in 0..2 {
        let (status, summary, error) = done("renew", &data);
        assert!(status == Some(0) && summary.contains("epoch "), "{summary}{error}");
    }
    for database in ["db", "other", "copy"] {
        let check = check(database, &data);
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }

    let server = Server::start(&data);
    let mut connection = server.connect().await;
    assert_eq!(rows(&mut connection, &format!("/db/_changes?since={seen}")).await, [Value::Null; 0]);
    let all: Vec<_> = rows(&mut connection, "/db/_changes").await.iter().map(|row| row["id"].clone()).collect();
    assert!(all == before, "all of them, in their order");
    let updates = format!("/_db_updates?since={}", seen_updates.as_str().unwrap());
    assert_eq!(rows(&mut connection, &updates).await, [Value::Null; 0]);
    // A replication goes on from its checkpoint.
    ask(&mut connection, Method::PUT, "/other/b", &json!({"b": 1})).await;
    let again = ask(&mut connection, Method::POST, "/_replicate", &replicate).await;
    assert_eq!(rows(&mut connection, &updates).await.len(), 2, "`other` and `copy` have changed");
    let last = &again["history"][0];
    assert_eq!((&last["missing_checked"], &last["docs_written"]), (&json!(1), &json!(1)), "{again}");
    assert!(server.stop());
    let check = check("copy", &data);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}
