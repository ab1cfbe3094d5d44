//! An older program serves while this one is started beside it, on a cluster: the store is upgraded under load.
//!
//! `FLATBED_BEFORE` names a program whose stores this one upgrades. The first release has none, so the test is for
//! later ones.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{Server, before, call, check, program, storage};
use flatbed_testkit::{soon, until};
use hyper::Method;
use serde_json::Value;

const DATABASES: usize = 4;
const WRITERS: usize = 8;

/// The documents written before the newer program starts.
const ENOUGH: usize = 400;

fn name(writer: usize) -> String {
    format!("db{}", writer % DATABASES)
}

/// The documents of a writer, and the answer that ended it.
struct Written {
    database: String,
    ids: Vec<String>,
    refused: (u16, Value),
}

/// Writes documents in sequence until one is refused.
async fn write(server: &Server, writer: usize, is_upgraded: Arc<AtomicBool>, count: Arc<AtomicUsize>) -> Written {
    let mut connection = server.connect().await;
    let (database, mut ids) = (name(writer), Vec::new());
    loop {
        let id = format!("{writer}-{}", ids.len());
        let is_late = is_upgraded.load(Ordering::SeqCst);
        let answer = call(&mut connection, Method::PUT, &format!("/{database}/{id}"), r#"{"a":1}"#).await;
        if answer.0 != 201 {
            return Written { database, ids, refused: answer };
        }
        assert!(!is_late, "{database}/{id} was asked for after the upgrade, and written");
        ids.push(id);
        count.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_program_refuses_what_is_upgraded_while_it_serves() {
    let Some(before) = before() else { return };
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path();
    let arguments = storage(data);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let older = Arc::new(Server::start_as(&mut program(&before), &arguments));
    let mut connection = older.connect().await;
    for n in 0..DATABASES {
        assert_eq!(call(&mut connection, Method::PUT, &format!("/{}", name(n)), "").await.0, 201);
    }
    let (is_upgraded, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (older, is_upgraded, count) = (older.clone(), is_upgraded.clone(), count.clone());
            tokio::spawn(async move { write(&older, writer, is_upgraded, count).await })
        })
        .collect();
    until("documents are written", async || {
        count.load(Ordering::SeqCst) >= ENOUGH || writers.iter().all(tokio::task::JoinHandle::is_finished)
    })
    .await;
    assert!(!writers.iter().any(tokio::task::JoinHandle::is_finished), "the older one writes until then");

    let newer = Server::start(data);
    is_upgraded.store(true, Ordering::SeqCst);
    let mut written = Vec::new();
    for writer in writers {
        let some = soon(writer).await.expect("a writer");
        assert_eq!(some.refused.0, 503, "{}", some.refused.1);
        written.push(some);
    }
    // Every acknowledged write exists, and at most the refused one of each writer besides.
    let mut new = newer.connect().await;
    for some in &written {
        for id in &some.ids {
            assert_eq!(call(&mut new, Method::GET, &format!("/{}/{id}", some.database), "").await.0, 200, "{id}");
        }
    }
    for n in 0..DATABASES {
        let acknowledged: usize =
            written.iter().filter(|some| some.database == name(n)).map(|some| some.ids.len()).sum();
        let info = call(&mut new, Method::GET, &format!("/{}", name(n)), "").await.1;
        let count = info["doc_count"].as_u64().unwrap() as usize;
        assert!((acknowledged..=acknowledged + WRITERS / DATABASES).contains(&count), "{count}, {acknowledged}");
    }
    // From then on it refuses every request; the newer one serves.
    let requests = [
        (Method::PUT, "/db0/later", "{}"),
        (Method::POST, "/db1/_bulk_docs", r#"{"docs":[{"_id":"later"}]}"#),
        (Method::GET, "/db2/0-0", ""),
        (Method::GET, "/db3", ""),
        (Method::PUT, "/later", ""),
        (Method::DELETE, "/db0", ""),
    ];
    for (method, path, body) in &requests {
        let answer = call(&mut connection, method.clone(), path, body).await;
        assert_eq!(answer.0, 503, "{method} {path}: {}", answer.1);
    }
    assert_eq!(call(&mut new, Method::PUT, "/db0/later", "{}").await.0, 201);
    assert_eq!(call(&mut new, Method::PUT, "/later", "").await.0, 201);
    let updates = call(&mut new, Method::GET, "/_db_updates", "").await.1;
    let named =
        |name: &str| updates["results"].as_array().is_some_and(|rows| rows.iter().any(|row| row["db_name"] == name));
    assert!((0..DATABASES).all(|n| named(&name(n))) && named("later"), "{updates}");
    // It cannot be restarted either.
    older_cannot_start(&before, &arguments);
    drop((connection, new));
    assert!(newer.stop());
    for n in 0..DATABASES {
        let report = check(&name(n), data);
        assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stdout));
    }
}

fn older_cannot_start(before: &Path, arguments: &[&str]) {
    let mut command = program(before);
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
    let output = command.stdin(Stdio::null()).output().expect("the older program runs");
    assert!(!output.status.success());
    let said = [output.stdout, output.stderr].concat();
    assert!(!String::from_utf8_lossy(&said).contains("http://"), "{}", String::from_utf8_lossy(&said));
}
