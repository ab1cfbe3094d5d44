//! `flatbed renew` between two servers: killed and restarted, its effect on feeds and replicas, and the message of a
//! server that is started too early.

use std::{path::Path, process::Stdio, time::Duration};

use crate::support::{Server, ask, check, flatbed, run, storage};
use flatbed_client::Connection;
use flatbed_testkit::{pass_blocking, until_blocking};
use hyper::Method;
use serde_json::{Value, json};

/// The renewals to kill, unless one completes before.
const ROUNDS: u64 = 100;

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
async fn a_killed_renewal_goes_on_and_feeds_begin_anew() {
    const DOCUMENTS: usize = 6_000;
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

    // The kills come later and later, until one comes too late. They start over if none met a running renewal.
    let (mut round, mut refused) = (0, 0);
    until_blocking("a kill meets a renewal under way", || {
        let mut child =
            flatbed().args(arguments("renew", &data)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        pass_blocking(Duration::from_millis(4 * round));
        let is_done = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        if is_done {
            round = 0;
            return refused > 0;
        }
        round += 1;
        let checked = check("other", &data);
        if !checked.status.success() {
            let reason = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(reason.contains("interrupted"), "{:?} {reason}", checked.status);
            // A server started now says what to do.
            let (status, _, error) = done("serve", &data);
            let command = arguments("renew", &data).join(" ");
            assert_eq!((status, error.lines().count()), (Some(2), 1), "{error}");
            assert!(error.contains("interrupted") && error.ends_with(&format!("flatbed {command}\n")), "{error}");
            refused += 1;
        }
        refused > 0 && round >= ROUNDS
    });
    let (status, summary, error) = done("renew", &data);
    assert!(status == Some(0) && summary.starts_with("databases: 3, documents and tombstones: "), "{summary}{error}");
    for database in ["db", "other", "copy"] {
        let check = check(database, &data);
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }

    let server = Server::start(&data);
    let mut connection = server.connect().await;
    let anew = rows(&mut connection, &format!("/db/_changes?since={seen}")).await;
    let found: Vec<_> = anew.iter().map(|row| row["id"].clone()).collect();
    assert!(found == before, "all of them, in their order");
    let updates = format!("/_db_updates?since={}", seen_updates.as_str().unwrap());
    assert_eq!(rows(&mut connection, &updates).await.len(), 6);
    // A checkpoint from before is invalid on both sides: replication starts over, finds new changes, and loses none.
    ask(&mut connection, Method::PUT, "/other/b", &json!({"b": 1})).await;
    let again = ask(&mut connection, Method::POST, "/_replicate", &replicate).await;
    let last = &again["history"][0];
    assert_eq!((&last["missing_checked"], &last["docs_written"]), (&json!(2), &json!(1)), "{again}");
    assert!(server.stop());
    let check = check("copy", &data);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}
