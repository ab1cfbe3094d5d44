//! Limits of feeds per client address, for anonymous clients.

use std::net::SocketAddr;

use flatbed_http::{Blocks, Limits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{ADMIN, Running, ServerOptions, Store, soon};

/// Starts a server with a public database `db`, where address limits apply to 127.0.1.0/24.
async fn start(store: &Store, limits: Limits, connections_max: usize) -> Running {
    let unlimited: Blocks = "127.0.0.1".parse().unwrap();
    let server = store.serve(ServerOptions { limits, unlimited, connections_max, ..ServerOptions::with_admin() }).await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/db", &[ADMIN], b"").await.status, 201);
    assert_eq!(client.call("PUT", "/db/_security", &[ADMIN], b"{}").await.status, 200);
    server
}

async fn from(server: &Running, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 1, last], 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Returns a feed's answer up to its first empty line after the head, or its end.
async fn follow(server: &Running, last: u8, headers: &str) -> (String, TcpStream) {
    let mut stream = from(server, last).await;
    let ask = format!(
        "GET /db/_changes?feed=continuous&since=now&heartbeat=60000 HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    soon(async {
        while !text.windows(4).any(|end| end == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut text).await.unwrap() > 0);
        }
    })
    .await;
    let status = String::from_utf8_lossy(&text[9..12]).into_owned();
    if status != "200" {
        soon(async { while !text.ends_with(b"}\n") && stream.read_buf(&mut text).await.unwrap() > 0 {} }).await;
    }
    (String::from_utf8_lossy(&text).into_owned(), stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_of_strangers_are_fair_by_address() {
    let store = Store::new();
    let limits = Limits { anonymous_feeds_percent: 10, ..Limits::default() };
    let server = start(&store, limits, 40).await;
    let mut first = Vec::new();
    for _ in 0..4 {
        let (text, stream) = follow(&server, 1, "").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        first.push(stream);
    }
    let (refused, _) = follow(&server, 1, "").await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: 1"), "{refused}");
    let body: Value = serde_json::from_str(refused.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["error"], "too_many_requests");
    // Signed-in clients and clients of this machine do not count.
    let (named, _named) = follow(&server, 1, &format!("authorization: {}\r\n", ADMIN.1)).await;
    assert!(named.starts_with("HTTP/1.1 200"), "{named}");
    assert_eq!(server.call("GET", "/db/_changes?feed=longpoll&timeout=1", "").await.status, 200);
    // An address with fewer feeds is admitted: the newest feed of the other address ends as on timeout.
    let (other, _other) = follow(&server, 2, "").await;
    assert!(other.starts_with("HTTP/1.1 200"), "{other}");
    let (mut newest, mut rest) = (first.pop().unwrap(), Vec::new());
    soon(async { while !rest.ends_with(b"0\r\n\r\n") && newest.read_buf(&mut rest).await.unwrap() > 0 {} }).await;
    assert!(String::from_utf8_lossy(&rest).contains("\"last_seq\""), "{rest:?}");
    // The other feeds continue.
    server.ok("PUT", "/db/x", json!({})).await;
    for stream in &mut first {
        let mut text = [0; 200];
        assert!(soon(stream.read(&mut text)).await.unwrap() > 0);
    }
    // Feeds that do not follow are not counted.
    let mut stream = from(&server, 1).await;
    stream.write_all(b"GET /db/_changes?feed=longpoll HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut text = [0; 12];
    soon(stream.read_exact(&mut text)).await.unwrap();
    assert_eq!(&text, b"HTTP/1.1 200");
    drop((first, stream));
    server.stop().await;
}
