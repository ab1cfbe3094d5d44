//! A slow reader who loses the right to its answer while it is sent.

use std::net::SocketAddr;
use std::time::Duration;

use flatbed_layer::channels::PrincipalWrite;
use flatbed_testkit::pass;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::hidden_documents::{ask, basic, root, served, user_of};
use crate::support::{Client, Layer, Store, soon};

async fn has(layer: &Layer, channels: &[&str]) {
    let admin_channels = channels.iter().map(|name| (*name).to_owned()).collect();
    let write = PrincipalWrite { admin_channels, is_new: false, ..user_of("ann", "") };
    layer.database("db").put_principal(&write).await.unwrap();
}

/// Sends a request as ann and reads only the beginning of the answer.
async fn begin_read(address: SocketAddr, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let who = basic("ann");
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {who}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 15];
    soon(stream.read_exact(&mut head)).await.unwrap();
    assert_eq!(head, *b"HTTP/1.1 200 OK");
    stream
}

/// Reads the rest; returns its length and whether the answer is complete.
async fn rest(stream: &mut TcpStream) -> (usize, bool) {
    let (mut bytes, mut end, mut piece) = (0, Vec::new(), vec![0; 64 * 1024]);
    loop {
        match soon(stream.read(&mut piece)).await {
            Ok(0) | Err(_) => return (bytes, end.ends_with(b"\r\n0\r\n\r\n")),
            Ok(read) => {
                bytes += read;
                end.extend_from_slice(&piece[..read]);
                end.drain(..end.len().saturating_sub(10));
            }
        }
    }
}

/// Waits until the server reads no more documents, because all answers wait for their readers.
async fn until_stuck(client: &mut Client) {
    let mut read = async || {
        let text = ask(client, "root", "GET", "/metrics", &[], "").await.body;
        let line = text.lines().find_map(|line| line.strip_prefix("flatbed_documents_read_total "));
        line.expect("how many it has read").trim().to_owned()
    };
    let (mut known, mut looks) = (read().await, 0);
    while looks < 10 {
        pass(Duration::from_millis(50)).await;
        let found = read().await;
        looks = if found == known { looks + 1 } else { 0 };
        known = found;
    }
}

/// Longer than the validity of a check of rights; waiting longer changes nothing.
const LATER: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_away_is_not_sent_to_who_reads_slowly() {
    let store = Store::new();
    let (layer, server, mut client) = Box::pin(served(&store)).await;
    // More than the system buffers for a connection.
    let text = "x".repeat(450_000);
    for part in 0..4 {
        let documents: Vec<Value> =
            (0..4).map(|n| json!({"_id": format!("{part}-{n}"), "channels": "A", "text": text})).collect();
        root(&mut client, "POST", "/db/_bulk_docs", &json!({"docs": documents})).await;
    }
    let all = 16 * text.len();
    let normal = "/db/_changes?include_docs=true";
    has(&layer, &["A"]).await;
    let mut begun_by_path = Vec::new();
    for path in [normal, "/db/_all_docs?include_docs=true", "/db/_changes?include_docs=true&feed=continuous"] {
        begun_by_path.push((path, begin_read(server.address, path).await));
    }
    until_stuck(&mut client).await;
    has(&layer, &["B"]).await;
    pass(LATER).await;
    for (path, mut stream) in begun_by_path {
        let (bytes, is_whole) = rest(&mut stream).await;
        assert!(!is_whole && bytes < all, "{path}: {bytes}");
    }
    // A reader who gains rights continues.
    has(&layer, &["A"]).await;
    let mut stream = begin_read(server.address, normal).await;
    until_stuck(&mut client).await;
    has(&layer, &["A", "B"]).await;
    pass(LATER).await;
    let (bytes, is_whole) = rest(&mut stream).await;
    assert!(is_whole && bytes > all, "{bytes}");
    server.stop().await;
}

/// A follower who loses one channel continues with the others.
#[tokio::test(flavor = "multi_thread")]
async fn who_follows_goes_on_with_what_is_left() {
    let store = Store::new();
    let (layer, server, mut client) = Box::pin(served(&store)).await;
    has(&layer, &["A", "B"]).await;
    let mut reader = server.connect().await;
    let who = basic("ann");
    let path = "/db/_changes?feed=continuous&heartbeat=1000&since=now";
    reader.send("GET", path, &[("authorization", &who)], b"").await;
    soon(reader.head()).await;
    let mut rest = String::new();
    root(&mut client, "PUT", "/db/first", &json!({"channels": "A"})).await;
    let mut row = async || {
        loop {
            let line = soon(reader.feed_line(&mut rest)).await.expect("a row");
            let row: Value = serde_json::from_str(&line).unwrap();
            if !row["id"].as_str().unwrap().starts_with('_') {
                return row["id"].as_str().unwrap().to_owned();
            }
        }
    };
    assert_eq!(row().await, "first");
    has(&layer, &["B"]).await;
    root(&mut client, "PUT", "/db/hidden", &json!({"channels": "A"})).await;
    root(&mut client, "PUT", "/db/last", &json!({"channels": "B"})).await;
    assert_eq!(row().await, "last");
    server.stop().await;
}
