//! Clients' view of a database that an operator has locked with `fdbcli`'s `lock`. On an engine of its own, because a
//! lock shuts out all users of a cluster.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flatbed_layer::LayerOptions;
use flatbed_testkit::{pass, until, within};
use foundationdb::Database;
use foundationdb::options::{MutationType, TransactionOption};
use serde_json::{Value, json};

use crate::support::{ADMIN, ServerOptions, Store, soon};

/// The value that `fdbcli` writes and removes.
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
    let server = store.serve_database().await;
    let rev = server.ok("PUT", "/db/old", json!({})).await["rev"].as_str().unwrap().to_owned();
    let (mut feed, mut rest) = (server.connect().await, String::new());
    feed.send("GET", "/db/_changes?feed=continuous&since=now&heartbeat=1000", &[], b"").await;
    assert_eq!(feed.head().await.status, 200);

    // Writers run before, during and after the lock.
    let (is_locked, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let asked: [AtomicUsize; WRITERS] = Default::default();
    // A request during the lock is answered after it.
    let call = async |method: &str, path: &str, body: &str| {
        let was_locked = is_locked.load(Ordering::SeqCst);
        let answer = server.call(method, path, body).await;
        let is_locked = was_locked && is_locked.load(Ordering::SeqCst);
        assert!(!is_locked, "{method} {path} was answered by a locked database: {answer:?}");
        answer
    };
    let write = async |writer: usize| {
        let mut count = 0;
        while !is_over.load(Ordering::SeqCst) {
            asked[writer].fetch_add(1, Ordering::SeqCst);
            let answer = call("PUT", &format!("/db/{writer}-{count}"), "{}").await;
            assert_eq!(answer.status, 201, "{answer:?}");
            assert!(answer.text("rev").starts_with("1-"), "written twice: {answer:?}");
            count += 1;
        }
        count
    };
    let has_asked = || asked.each_ref().map(|asked| asked.load(Ordering::SeqCst));
    // A second request by a writer means that its first was answered.
    let until_answered = async |before: [usize; WRITERS]| {
        let are_answered = async || has_asked().iter().zip(before).all(|(now, before)| *now >= before + 2);
        until("all have written", are_answered).await;
    };
    let lock = async {
        until_answered([0; WRITERS]).await;
        set_lock(store.database(), true).await;
        is_locked.store(true, Ordering::SeqCst);
        let open = async {
            // Longer than the cache lifetime of settings and rights.
            pass(Duration::from_millis(1_500)).await;
            is_locked.store(false, Ordering::SeqCst);
            set_lock(store.database(), false).await;
        };
        let (read, written, ()) = tokio::join!(call("GET", "/db/old", ""), call("PUT", "/db/within", "{}"), open);
        assert_eq!((read.status, read.text("_rev"), written.status), (200, rev, 201));
        until_answered(has_asked()).await;
        is_over.store(true, Ordering::SeqCst);
    };
    let (written, ()) = tokio::join!(futures_util::future::join_all((0..WRITERS).map(write)), lock);
    // Each write exists once, and followers have received it.
    let total = written.iter().sum::<usize>() + 1;
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
    // Shorter than the default of 30 s.
    const RETRY_MAX: Duration = Duration::from_secs(3);
    // Shorter than the limit of the servers that do not wait for the lock.
    const AT_ONCE: Duration = Duration::from_secs(20);
    let Some(store) = Store::on_an_engine() else { return };
    let layer = store.layer_with(LayerOptions { retry_max: RETRY_MAX, ..LayerOptions::default() }).await;
    let server = store.serve_on(layer, ServerOptions::default()).await;
    let patient = store.serve(ServerOptions::default()).await;
    let guarded = store.serve(ServerOptions::with_admin()).await;
    patient.ok("GET", "/_all_dbs", Value::Null).await;
    server.ok("PUT", "/db", Value::Null).await;
    set_lock(store.database(), true).await;
    let started = Instant::now();
    let (mut reader, mut writer) = (server.connect().await, server.connect().await);
    reader.send("GET", "/db/_all_docs", &[], b"").await;
    writer.send("PUT", "/db/a", &[], b"{}").await;
    let up = async {
        let answered = within(AT_ONCE, patient.json("GET", "/_up", Value::Null)).await;
        let (status, answer) = answered.expect("/_up answers before writers time out");
        assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
    };
    // After the cache of the settings has expired.
    let later = async {
        pass(Duration::from_millis(1_500)).await;
        assert_eq!(patient.json("GET", "/", Value::Null).await.0, 200);
        let answered = within(AT_ONCE, patient.json("GET", "/_all_dbs", Value::Null)).await;
        assert_eq!(answered.expect("a request that needs settings is refused in time").0, 503);
        assert_eq!(guarded.connect().await.call("GET", "/_membership", &[ADMIN], b"").await.status, 200);
    };
    let (read, written, (), ()) = tokio::join!(soon(reader.answer(false)), soon(writer.answer(false)), up, later);
    for answer in [read, written] {
        assert_eq!((answer.status, &*answer.text("error")), (503, "service_unavailable"));
        assert!(answer.text("reason").to_lowercase().contains("database is locked"), "{answer:?}");
    }
    let waited = started.elapsed();
    assert!(waited >= RETRY_MAX, "{waited:?}");

    set_lock(store.database(), false).await;
    for server in [&server, &patient] {
        server.ok("GET", "/_up", Value::Null).await;
    }
    server.ok("PUT", "/db/a", json!({})).await;
    assert_eq!(server.ok("GET", "/db/_all_docs", Value::Null).await["total_rows"], 1);
    guarded.stop().await;
    patient.stop().await;
    server.stop().await;
}
