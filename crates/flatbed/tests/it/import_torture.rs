//! An import that is killed again and again, and resumes. `FLATBED_IMPORT_DOCUMENTS` and `FLATBED_IMPORT_KILLS` make it
//! longer (`make torture`: 100,000 documents and ten kills).

use std::process::{Child, Stdio};

use flatbed_client::Connection;
use flatbed_testkit::{number, until};
use hyper::Method;
use serde_json::{Value, json};

use crate::import::{leaves, whole, write, write_every_kind};
use crate::support::{Server, ask, call, flatbed, run, text};

const DOCUMENTS: u64 = 3_000;
const KILLS: u64 = 3;

/// The documents of one request.
const AT_ONCE: u64 = 500;

/// Returns the number of documents and deletions.
async fn count(connection: &mut Connection, database: &str) -> u64 {
    let (_, info) = call(connection, Method::GET, &format!("/{database}"), "").await;
    info["doc_count"].as_u64().unwrap_or(0) + info["doc_del_count"].as_u64().unwrap_or(0)
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().expect("its state").is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_import_resumes() {
    let documents = number("FLATBED_IMPORT_DOCUMENTS").unwrap_or(DOCUMENTS);
    let kills = number("FLATBED_IMPORT_KILLS").unwrap_or(KILLS);
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let (from, to) = (source.url.to_string(), target.url.to_string());
    let (mut one, mut other) = (source.connect().await, target.connect().await);
    for name in ["many", "parts?partitioned=true"] {
        ask(&mut one, Method::PUT, &format!("/{name}"), &Value::Null).await;
    }
    let ids = write_every_kind(&mut one, "many").await;
    for first in (0..documents).step_by(AT_ONCE as usize) {
        let all = (first..documents.min(first + AT_ONCE)).flat_map(|at| {
            let leaf = |rev: &str, members: Value| {
                let mut document = members;
                document["_id"] = format!("part:{at:09}").into();
                document["_rev"] = format!("2-{rev}").into();
                document["_revisions"] = json!({ "start": 2, "ids": [rev, "a"] });
                document
            };
            let attached = json!({ "n": at, "_attachments": { "a": { "content_type": "image/png", "data": "AAEC" } } });
            match at % 10 {
                0 => vec![leaf("b", json!({ "n": at })), leaf("c", json!({ "conflict": at }))],
                1 => vec![leaf("b", json!({ "_deleted": true }))],
                2 => vec![leaf("b", attached)],
                _ => vec![leaf("b", json!({ "n": at, "text": "x".repeat((at % 300) as usize) }))],
            }
        });
        let all: Vec<Value> = all.collect();
        for database in ["many", "parts"] {
            write(&mut one, database, &all).await;
        }
    }
    for kill in 1..=kills {
        let mut child = flatbed()
            .args(["import", &from, "--to", &to, "--parallel", "2"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let wanted = documents * kill / (kills + 1);
        let connection = &mut other;
        until("it copies", async || has_ended(&mut child) || count(connection, "many").await >= wanted).await;
        let _ = child.kill();
        child.wait().expect("it ends");
    }
    let moved = run(&["import", &from, "--to", &to, "--verify"]);
    assert!(moved.status.success(), "{}", text(&moved));
    for database in ["many", "parts"] {
        assert_eq!(leaves(&mut other, database).await, leaves(&mut one, database).await, "{database}");
        let (_, info) = call(&mut other, Method::GET, &format!("/{database}"), "").await;
        assert_eq!(info["props"]["partitioned"] == true, database == "parts", "{info}");
    }
    for id in ids {
        assert_eq!(whole(&mut other, "many", id).await, whole(&mut one, "many", id).await, "{id}");
    }
    for at in (0..documents).step_by(documents.div_ceil(50).max(1) as usize) {
        let id = format!("part:{at:09}");
        for database in ["many", "parts"] {
            assert_eq!(whole(&mut other, database, &id).await, whole(&mut one, database, &id).await, "{id}");
        }
    }
    // Nothing is left to copy.
    let again = run(&["import", &from, "--to", &to]);
    let is_idle = text(&again).lines().any(|line| line.starts_with("0 revisions copied"));
    assert!(again.status.success() && is_idle, "{}", text(&again));
}
