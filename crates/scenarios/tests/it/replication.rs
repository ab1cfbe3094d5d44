//! `POST /_replicate` within one server and between two.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::store;
use crate::support::{Running, ServerOptions};
use flatbed_testkit::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Returns a smaller count if each request takes longer.
fn scaled(count: usize) -> usize {
    if module_path!().contains("under_faults") { count / 10 } else { count }
}

/// Returns every document's winner and all leaves with bodies and attachments.
async fn leaves(server: &Running, database: &str) -> Vec<Value> {
    let changes = server.ok("GET", &format!("/{database}/_changes?style=all_docs"), Value::Null).await;
    let (mut winners, mut asked) = (Vec::new(), Vec::new());
    for row in changes["results"].as_array().unwrap() {
        let leaves = row["changes"].as_array().unwrap();
        winners.push(json!([row["id"], leaves[0]["rev"]]));
        asked.extend(leaves.iter().map(|leaf| json!({"id": row["id"], "rev": leaf["rev"]})));
    }
    for asked in asked.chunks(1_000) {
        let path = format!("/{database}/_bulk_get?revs=true&attachments=true");
        let mut answer = server.ok("POST", &path, json!({"docs": asked})).await;
        let Value::Array(rows) = answer["results"].take() else { panic!("{answer}") };
        assert_eq!(rows.len(), asked.len());
        winners.extend(rows.into_iter().map(|mut row| row["docs"][0]["ok"].take()));
    }
    winners.sort_by_key(Value::to_string);
    winners
}

/// Creates documents with conflicts, deletions and attachments.
async fn fill(server: &Running, database: &str, count: usize) {
    let (status, _) = server.json("PUT", &format!("/{database}"), Value::Null).await;
    assert!(status == 201 || status == 412);
    let docs: Vec<Value> =
        (0..count).map(|n| json!({"_id": format!("doc{n:05}"), "n": n, "text": "x".repeat(300)})).collect();
    for docs in docs.chunks(1_000) {
        server.ok("POST", &format!("/{database}/_bulk_docs"), json!({"docs": docs})).await;
    }
    for n in 0..20 {
        let id = format!("doc{n:05}");
        let hash = |mark: char| mark.to_string().repeat(32);
        let branch = |mark: char, deleted: bool| {
            json!({"_id": id, "_rev": format!("2-{}", hash(mark)), "mark": mark.to_string(), "_deleted": deleted,
                   "_revisions": {"start": 2, "ids": [hash(mark), hash('0')]}})
        };
        let docs = json!([branch('a', false), branch('b', n % 3 == 0), branch('c', true)]);
        server.ok("POST", &format!("/{database}/_bulk_docs"), json!({"docs": docs, "new_edits": false})).await;
    }
    for n in 20..40 {
        let path = format!("/{database}/doc{n:05}");
        let rev = server.ok("GET", &path, Value::Null).await["_rev"].as_str().unwrap().to_owned();
        if n % 2 == 0 {
            server.ok("DELETE", &format!("{path}?rev={rev}"), Value::Null).await;
            continue;
        }
        let attachments = json!({"a/b": {"content_type": "text/plain", "data": "aGVsbG8="},
                                 "c": {"content_type": "application/octet-stream", "data": "AAEC"}});
        server.ok("PUT", &path, json!({"_rev": rev, "_attachments": attachments})).await;
    }
    server.ok("PUT", &format!("/{database}/_design/d"), json!({"language": "javascript"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_leaves_arrive_at_every_kind_of_peer() {
    let (Some(store), Some(other_store)) = (store(), store()) else { return };
    let server = store.serve(ServerOptions::default()).await;
    let other = other_store.serve(ServerOptions::default()).await;
    let count = scaled(2_050);
    fill(&server, "a", count).await;
    let wanted = leaves(&server, "a").await;
    assert_eq!(wanted.len(), 2 * (count + 1) + 60);

    // Within the server; to another; from another; between two URLs.
    let runs = [
        (&server, json!("a"), json!("b"), &server, "b"),
        (&server, json!("a"), json!(other.url("c")), &other, "c"),
        (&other, json!(server.url("a")), json!("d"), &other, "d"),
        (&other, json!({"url": server.url("a")}), json!({"url": server.url("e")}), &server, "e"),
    ];
    for (runner, source, target, at, database) in runs {
        let spec = json!({"source": source, "target": target, "create_target": true});
        let answer = runner.ok("POST", "/_replicate", spec.clone()).await;
        let entry = &answer["history"][0];
        assert_eq!(answer["ok"], true);
        // If an answer of the target is lost, its writes are uncounted.
        if scaled(10) == 10 {
            assert_eq!(entry["docs_written"], entry["missing_found"], "{answer}");
        }
        assert_eq!(entry["docs_read"], entry["docs_written"], "{answer}");
        assert_eq!(entry["doc_write_failures"], 0);
        assert_eq!(entry["session_id"], answer["session_id"]);
        assert!(leaves(at, database).await == wanted, "{database}");
        let again = runner.ok("POST", "/_replicate", spec).await;
        assert_eq!(
            (&again["no_changes"], &again["session_id"], &again["history"][0]["session_id"]),
            (&json!(true), &answer["session_id"], &answer["session_id"]),
            "{again}"
        );
    }

    // A second run resumes, and its history has both.
    server.ok("PUT", "/a/new", json!({"n": 1})).await;
    let answer = server.ok("POST", "/_replicate", json!({"source": "a", "target": "b"})).await;
    assert_eq!(
        (&answer["history"][0]["missing_checked"], &answer["history"][0]["docs_written"]),
        (&json!(1), &json!(1))
    );
    assert!(answer["history"].as_array().unwrap().len() >= 2, "{answer}");
    // A recreated target has no checkpoint, so everything is copied again.
    server.ok("DELETE", "/b", Value::Null).await;
    let answer = server.ok("POST", "/_replicate", json!({"source": "a", "target": "b", "create_target": true})).await;
    assert!(answer["history"][0]["docs_written"].as_u64().unwrap() > count as u64, "{answer}");

    server.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replicated_is_told_without_secrets() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/a", Value::Null).await;
    let cases = [
        (json!({"source": "a", "target": "none"}), 404, "db_not_found"),
        (json!({"source": "none", "target": "a"}), 404, "db_not_found"),
        (json!({"source": format!("http://anna:s3cret@{}/none", server.address), "target": "a"}), 404, "db_not_found"),
        (json!({"source": "ftp://anna:s3cret@example.org/x", "target": "a"}), 400, "bad_request"),
        (json!({"source": "a"}), 400, "bad_request"),
        (json!({"source": "a", "target": "b", "doc_ids": 1}), 400, "bad_request"),
        (json!({"source": "a", "target": "b", "cancel": true}), 404, "not_found"),
    ];
    for (spec, status, error) in cases {
        let found = server.json("POST", "/_replicate", spec.clone()).await;
        assert_eq!((found.0, &found.1["error"]), (status, &json!(error)), "{spec} {found:?}");
        assert!(!found.1.to_string().contains("s3cret"), "{found:?}");
    }
    assert_eq!(server.call("GET", "/_replicate", "").await.status, 405);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn continuous_until_it_is_cancelled() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/a", Value::Null).await;
    let target = format!("http://anna:s3cret@{}/b", server.address);
    let spec = json!({"source": "a", "target": target, "create_target": true, "continuous": true});
    let (status, begun) = server.json("POST", "/_replicate", spec.clone()).await;
    assert_eq!(status, 202, "{begun}");
    for n in 0..20 {
        server.ok("PUT", &format!("/a/doc{n}"), json!({"n": n})).await;
        let path = format!("/b/doc{n}");
        until("it goes over", async || server.json("GET", &path, Value::Null).await.0 == 200).await;
    }
    let jobs = server.ok("GET", "/_scheduler/jobs", Value::Null).await;
    assert_eq!((&jobs["total_rows"], &jobs["jobs"][0]["id"]), (&json!(1), &begun["_local_id"]), "{jobs}");
    assert_eq!(jobs["jobs"][0]["target"], format!("{}/", server.url("b")));
    // The target shows a document before the job has counted it.
    let tasks = server.until("/_active_tasks", |tasks| tasks[0]["docs_written"] == 20).await;
    assert_eq!(tasks[0]["type"], "replication", "{tasks}");
    assert!(!format!("{jobs}{tasks}").contains("s3cret"));
    let cancelled =
        server.ok("POST", "/_replicate", json!({"cancel": true, "replication_id": begun["_local_id"]})).await;
    assert_eq!(cancelled["_local_id"], begun["_local_id"]);
    assert_eq!(server.ok("GET", "/_scheduler/jobs", Value::Null).await["total_rows"], 0);
    // It left a checkpoint.
    let logs = server.ok("GET", "/a/_local_docs", Value::Null).await;
    assert_eq!(logs["rows"].as_array().unwrap().len(), 1, "{logs}");
    server.stop().await;
}

/// Forwards connections to `to` and cuts each after some bytes, more with each connection.
async fn cutting_proxy(to: SocketAddr) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cuts = Arc::new(AtomicU64::new(0));
    let counted = cuts.clone();
    tokio::spawn(async move {
        let mut random = 12_345_u64;
        while let Ok((mut from, _)) = listener.accept().await {
            let Ok(mut to) = TcpStream::connect(to).await else { return };
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut left = 20_000 + (random >> 33) % 400_000;
            let cuts = counted.clone();
            tokio::spawn(async move {
                let (mut up, mut down) = ([0; 4_096], [0; 4_096]);
                loop {
                    let sent = tokio::select! {
                        read = from.read(&mut up) => match read {
                            Ok(length) if length > 0 && to.write_all(&up[..length]).await.is_ok() => length,
                            _ => return,
                        },
                        read = to.read(&mut down) => match read {
                            Ok(length) if length > 0 && from.write_all(&down[..length]).await.is_ok() => length,
                            _ => return,
                        },
                    };
                    left = left.saturating_sub(sent as u64);
                    if left == 0 {
                        cuts.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
    });
    (address, cuts)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_lose_nothing() {
    let (Some(store), Some(other_store)) = (store(), store()) else { return };
    let server = store.serve(ServerOptions::default()).await;
    let other = other_store.serve(ServerOptions::default()).await;
    fill(&server, "a", scaled(1_000).max(400)).await;
    let wanted = leaves(&server, "a").await;
    let (source, source_cuts) = cutting_proxy(server.address).await;
    let (target, target_cuts) = cutting_proxy(other.address).await;
    let spec = json!({"source": format!("http://{source}/a"), "target": format!("http://{target}/b"),
                      "create_target": true, "checkpoint_interval": 20});
    let mut tries = 0;
    let answer = loop {
        let (status, answer) = other.json("POST", "/_replicate", spec.clone()).await;
        if status == 200 {
            break answer;
        }
        tries += 1;
        assert!(tries < 50);
    };
    // Documents that were read twice count once.
    for entry in answer["history"].as_array().unwrap() {
        let count = |name: &str| entry[name].as_u64().unwrap();
        assert!(count("docs_read") <= count("missing_found"), "{entry}");
    }
    let last = &answer["history"][0];
    assert_eq!(last["docs_read"], last["docs_written"], "{answer}");
    assert!(source_cuts.load(Ordering::Relaxed) > 0 && target_cuts.load(Ordering::Relaxed) > 0);
    assert!(leaves(&other, "b").await == wanted);
    server.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_attachments_go_through_in_pieces() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/a", Value::Null).await;
    // Text is stored compressed; bytes of every value are not.
    let text = "replication ".repeat(400_000);
    let mut connection = server.connect().await;
    let sent = connection.call("PUT", "/a/doc/text", &[("content-type", "text/plain")], text.as_bytes()).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    let rev = sent.json()["rev"].as_str().unwrap().to_owned();
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x7f).collect();
    let path = format!("/a/doc/sub/bytes%20x?rev={rev}");
    let sent = connection.call("PUT", &path, &[("content-type", "application/octet-stream")], &bytes).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    let answer = server.ok("POST", "/_replicate", json!({"source": "a", "target": "b", "create_target": true})).await;
    assert_eq!(answer["history"][0]["docs_written"], 1, "{answer}");
    assert_eq!(server.call("GET", "/b/doc/text", "").await.body, text);
    assert_eq!(server.call("GET", "/b/doc/sub/bytes%20x", "").await.body.into_bytes(), bytes);
    let (one, two) = (server.ok("GET", "/a/doc", Value::Null).await, server.ok("GET", "/b/doc", Value::Null).await);
    assert_eq!(one, two);
    server.stop().await;
}
