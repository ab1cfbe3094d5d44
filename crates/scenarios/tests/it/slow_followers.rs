//! Followers that wait long for a row: because a filter passes few rows, or because they do not read.

use std::time::{Duration, Instant};

use crate::support::{ServerOptions, Store, figure, soon};
use flatbed_testkit::{pass, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_come_while_a_filter_passes_nothing() {
    let server = Store::new().serve_database().await;
    // Ten pages.
    for part in 0..4 {
        let documents: Vec<Value> = (0..500).map(|n| json!({ "_id": format!("{part}-{n}") })).collect();
        server.ok("POST", "/db/_bulk_docs", json!({ "docs": documents })).await;
    }
    let selector = json!({ "selector": { "_id": "3-499" } });
    let ask = |heartbeat: &str| format!("/db/_changes?filter=_selector{heartbeat}");
    let with = server.call("POST", &ask("&heartbeat=10"), &selector.to_string()).await;
    assert_eq!(with.json()["results"].as_array().unwrap().len(), 1);
    let without = server.call("POST", &ask(""), &selector.to_string()).await;
    assert_eq!(with.json(), without.json());
    let lines = |text: &str| text.lines().filter(|line| line.is_empty()).count();
    assert_eq!(lines(&without.body), 0, "{}", without.body);
    assert!(lines(&with.body) > 0, "{}", with.body);
    server.stop().await;
}

/// Readers that were dropped because they read nothing for long.
const SLOW_READERS: &str = "flatbed_refused_total{limit=\"slow_reader\"}";

/// A follower that does not read its answer.
async fn deaf(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_is_closed_and_others_go_on() {
    let store = Store::new();
    let stall_max = Duration::from_secs(4);
    let server = store.serve(ServerOptions { stall_max, ..ServerOptions::default() }).await;
    server.ok("PUT", "/db", Value::Null).await;
    let path = "/db/_changes?feed=continuous&include_docs=true&heartbeat=1000";
    let (mut one, mut two) = (deaf(server.address, path).await, deaf(server.address, path).await);
    let mut reader = server.connect().await;
    reader.send("GET", path, &[], b"").await;
    soon(reader.head()).await;
    let reading = tokio::spawn(async move {
        let mut rest = String::new();
        for number in 0..100 {
            let row: Value = serde_json::from_str(&reader.feed_line(&mut rest).await.expect("a row")).unwrap();
            assert_eq!(row["id"], format!("{}-{}", number / 10, number % 10));
        }
        (reader, rest)
    });
    // More than the system buffers for a connection.
    let text = "x".repeat(200_000);
    for part in 0..10 {
        let documents: Vec<Value> = (0..10).map(|n| json!({ "_id": format!("{part}-{n}"), "text": text })).collect();
        server.ok("POST", "/db/_bulk_docs", json!({ "docs": documents })).await;
    }
    let (mut reader, mut rest) = reading.await.unwrap();
    // The reader and the connection for metrics remain.
    until("the others are closed", async || server.figure("flatbed_connections").await <= 2).await;
    assert_eq!(server.figure(SLOW_READERS).await, 2);
    for deaf in [&mut one, &mut two] {
        let mut piece = vec![0; 64 * 1024];
        let mut read = 0;
        let end = loop {
            match soon(deaf.read(&mut piece)).await {
                Ok(0) | Err(_) => break read,
                Ok(length) => read += length,
            }
        };
        assert!(end > 0 && end < 20_000_000, "{end} bytes were sent");
        assert!(!piece.ends_with(b"0\r\n\r\n"), "a cut answer does not look complete");
    }
    server.ok("PUT", "/db/last", json!({})).await;
    assert!(reader.feed_line(&mut rest).await.expect("a row").contains("\"last\""));
    drop(reader);
    server.stop().await;
}

/// The client reads far less than the system would buffer within the timeout of a slow reader, but never pauses.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_slowly_is_not_closed() {
    let store = Store::new();
    let stall_max = Duration::from_secs(4);
    let server = store.serve(ServerOptions { stall_max, ..ServerOptions::default() }).await;
    server.ok("PUT", "/db", Value::Null).await;
    let text = "x".repeat(200_000);
    for part in 0..8 {
        let documents: Vec<Value> = (0..10).map(|n| json!({ "_id": format!("{part}-{n}"), "text": text })).collect();
        server.ok("POST", "/db/_bulk_docs", json!({ "docs": documents })).await;
    }
    let mut slow = deaf(server.address, "/db/_changes?feed=continuous&include_docs=true&heartbeat=1000").await;
    let mut piece = vec![0; 8 * 1024];
    for _ in 0..90 {
        let asked = Instant::now();
        let read = soon(slow.read(&mut piece)).await;
        pass(Duration::from_millis(60)).await;
        // If the machine stalls for that long, the reader pauses for that long, too, and the test proves nothing.
        if asked.elapsed() > stall_max / 2 {
            drop(slow);
            return server.stop().await;
        }
        assert!(read.expect("the reader is connected") > 0);
    }
    let metrics = server.call("GET", "/metrics", "").await.body;
    assert_eq!(figure(&metrics, "flatbed_connections"), 2, "the reader and the connection for metrics");
    assert_eq!(figure(&metrics, SLOW_READERS), 0);
    drop(slow);
    server.stop().await;
}
