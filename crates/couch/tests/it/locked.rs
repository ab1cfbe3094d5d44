//! What clients see while an operator has locked the database (`fdbcli`'s `lock`): on an engine of its own, as a lock shuts
//! out everybody who uses a cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatbed_auth::PasswordHash;
use foundationdb::Database;
use foundationdb::options::{MutationType, TransactionOption};
use serde_json::{Value, json};

use crate::support::{ServerOptions, Store};

/// What `fdbcli` writes, and removes again.
const LOCK: &[u8] = b"\xff/dbLocked";

async fn set_lock(database: &Database, is_locked: bool) {
    let trx = database.create_trx().unwrap();
    trx.set_option(TransactionOption::AccessSystemKeys).unwrap();
    trx.set_option(TransactionOption::LockAware).unwrap();
    if is_locked {
        trx.atomic_op(LOCK, b"0123456789ABCDEFGHIJKLMNOP\0\0\0\0", MutationType::SetVersionstampedValue);
    } else {
        trx.clear(LOCK);
    }
    trx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_the_end_of_a_short_lock() {
    const WRITERS: usize = 16;
    let Some(store) = Store::on_an_engine() else { return };
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
    let rev = server.ok("PUT", "/db/old", json!({})).await["rev"].as_str().unwrap().to_owned();
    let (mut feed, mut rest) = (server.connect().await, String::new());
    feed.send("GET", "/db/_changes?feed=continuous&since=now&heartbeat=1000", &[], b"").await;
    assert_eq!(feed.head().await.status, 200);

    // Under load: writers that never stop, before the lock, within it and after it.
    let (until, is_open) = (Instant::now() + Duration::from_secs(4), AtomicBool::new(false));
    let write = async |writer: usize| {
        let (mut count, mut slowest, mut is_last) = (0, Duration::ZERO, false);
        while !is_last {
            let started = Instant::now();
            is_last = started >= until && is_open.load(Ordering::SeqCst);
            let answer = server.call("PUT", &format!("/db/{writer}-{count}"), "{}").await;
            assert_eq!(answer.status, 201, "{answer:?}");
            assert!(answer.text("rev").starts_with("1-"), "written twice: {answer:?}");
            slowest = slowest.max(started.elapsed());
            count += 1;
        }
        (count, slowest)
    };
    let lock = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        set_lock(store.database(), true).await;
        let started = Instant::now();
        let open = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            set_lock(store.database(), false).await;
            is_open.store(true, Ordering::SeqCst);
        };
        let (answer, ()) = tokio::join!(server.call("GET", "/db/old", ""), open);
        assert_eq!((answer.status, answer.text("_rev")), (200, rev));
        assert!(started.elapsed() >= Duration::from_millis(1500), "read from a locked database");
    };
    let (written, ()) = tokio::join!(futures_util::future::join_all((0..WRITERS).map(write)), lock);
    for (count, slowest) in &written {
        assert!(*count > 1 && *slowest >= Duration::from_millis(1400), "{count} writes, the slowest took {slowest:?}");
    }
    // Each write is there once, and whoever follows has got it.
    let total: usize = written.iter().map(|(count, _)| count).sum();
    assert_eq!(server.ok("GET", "/db", Value::Null).await["doc_count"], total + 1);
    let mut told = std::collections::HashSet::new();
    while told.len() < total {
        let row: Value = serde_json::from_str(&feed.feed_line(&mut rest).await.expect("a row")).unwrap();
        assert!(told.insert(row["id"].as_str().unwrap().to_owned()), "twice: {row}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_in_a_long_lock_and_the_server_recovers_by_itself() {
    let Some(store) = Store::on_an_engine() else { return };
    let server = store.serve(ServerOptions::default()).await;
    let admins = [("admin".to_owned(), PasswordHash::with_iterations("password", b"0123456789abcdef", 1))].into();
    let guarded = store.serve(ServerOptions { admins, ..ServerOptions::default() }).await;
    server.ok("PUT", "/db", Value::Null).await;
    set_lock(store.database(), true).await;
    let started = Instant::now();
    let (mut reader, mut writer) = (server.connect().await, server.connect().await);
    reader.send("GET", "/db/_all_docs", &[], b"").await;
    writer.send("PUT", "/db/a", &[], b"{}").await;
    let up = async {
        let (status, answer) = server.json("GET", "/_up", Value::Null).await;
        assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
        assert!(started.elapsed() < Duration::from_secs(10), "load balancers wait no longer: {:?}", started.elapsed());
    };
    // When it is no longer known what the settings are.
    let later = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let began = Instant::now();
        assert_eq!(server.json("GET", "/", Value::Null).await.0, 200);
        assert_eq!(server.json("GET", "/_all_dbs", Value::Null).await.0, 503);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let admin = [("authorization", "Basic YWRtaW46cGFzc3dvcmQ=")];
        assert_eq!(guarded.connect().await.call("GET", "/_membership", &admin, b"").await.status, 200);
    };
    let (read, written, (), ()) = tokio::join!(reader.answer(false), writer.answer(false), up, later);
    for answer in [read, written] {
        assert_eq!((answer.status, &*answer.text("error")), (503, "service_unavailable"));
        assert!(answer.text("reason").to_lowercase().contains("database is locked"), "{answer:?}");
    }
    let waited = started.elapsed();
    assert!((Duration::from_secs(29)..Duration::from_secs(45)).contains(&waited), "{waited:?}");

    set_lock(store.database(), false).await;
    server.ok("GET", "/_up", Value::Null).await;
    server.ok("PUT", "/db/a", json!({})).await;
    assert_eq!(server.ok("GET", "/db/_all_docs", Value::Null).await["total_rows"], 1);
    guarded.stop().await;
    server.stop().await;
}
