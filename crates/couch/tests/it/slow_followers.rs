//! Followers that wait long for a row: because a filter passes few, or because they do not read themselves.

use std::time::Duration;

use crate::support::{ServerOptions, Store, soon};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_come_while_a_filter_passes_nothing() {
    let store = Store::new();
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
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

/// A follower that reads nothing of its answer.
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
    // Only the reader is left, and who asks.
    let connections = |text: &str| flatbed_metrics_of(text, "flatbed_connections ");
    soon(async {
        while connections(&server.call("GET", "/metrics", "").await.body) > 2.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let metrics = server.call("GET", "/metrics", "").await.body;
    assert_eq!(flatbed_metrics_of(&metrics, "flatbed_refused_total{limit=\"slow_reader\"}"), 2.0);
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
        assert!(!piece.ends_with(b"0\r\n\r\n"), "it does not look complete");
    }
    server.ok("PUT", "/db/last", json!({})).await;
    assert!(reader.feed_line(&mut rest).await.expect("a row").contains("\"last\""));
    drop(reader);
    server.stop().await;
}

/// Far less in the time after which who does not read is closed than the system would buffer, but something all the time.
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
    for _ in 0..130 {
        assert!(soon(slow.read(&mut piece)).await.expect("it is connected") > 0);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let metrics = server.call("GET", "/metrics", "").await.body;
    assert_eq!(flatbed_metrics_of(&metrics, "flatbed_connections "), 2.0, "it, and the one that asks");
    assert_eq!(flatbed_metrics_of(&metrics, "flatbed_refused_total{limit=\"slow_reader\"}"), 0.0);
    drop(slow);
    server.stop().await;
}

fn flatbed_metrics_of(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}
