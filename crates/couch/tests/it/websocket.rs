//! `feed=websocket`, frame by frame.

use crate::support::{Running, ServerOptions, Store, soon};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CONTINUE: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The key of RFC 6455, 1.3, and its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const UPGRADE: [(&str, &str); 4] = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "WebSocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", KEY),
];

struct Frame {
    is_final: bool,
    kind: u8,
    data: Vec<u8>,
}

struct Socket(TcpStream);

impl Socket {
    async fn open(server: &Running, path: &str, headers: &[(&str, &str)]) -> Socket {
        let mut client = server.connect().await;
        client.send("GET", path, &[&UPGRADE[..], headers].concat(), b"").await;
        // Byte by byte, because frames follow the head.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(client.stream.read_u8()).await.expect("a head"));
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains(&format!("sec-websocket-accept: {ACCEPT}\r\n")), "{head}");
        Socket(client.stream)
    }

    async fn frame(&mut self) -> Option<Frame> {
        soon(async {
            let first = self.0.read_u8().await.ok()?;
            let length = self.0.read_u8().await.ok()?;
            assert!(length < 128, "a server masks nothing");
            let length = match length {
                126 => usize::from(self.0.read_u16().await.ok()?),
                127 => usize::try_from(self.0.read_u64().await.ok()?).unwrap(),
                length => usize::from(length),
            };
            let mut data = vec![0; length];
            self.0.read_exact(&mut data).await.ok()?;
            assert_eq!(first & 0x70, 0, "nothing is extended");
            Some(Frame { is_final: first & 0x80 != 0, kind: first & 0x0f, data })
        })
        .await
    }

    /// Returns the next text message and its number of frames.
    async fn message(&mut self) -> (Value, usize) {
        let (mut data, mut frames) = (Vec::new(), 0);
        loop {
            let frame = self.frame().await.expect("a frame");
            if frame.kind == PING && frames == 0 {
                continue;
            }
            assert_eq!(frame.kind, if frames == 0 { TEXT } else { CONTINUE });
            frames += 1;
            data.extend_from_slice(&frame.data);
            if frame.is_final {
                return (serde_json::from_slice(&data).expect("JSON"), frames);
            }
        }
    }

    /// Returns the close code and asserts that the connection ends.
    async fn close_code(&mut self) -> u16 {
        loop {
            let frame = self.frame().await.expect("a close");
            if frame.kind == CLOSE {
                let code = u16::from_be_bytes([frame.data[0], frame.data[1]]);
                self.send(CLOSE, &frame.data).await;
                assert!(self.frame().await.is_none());
                return code;
            }
        }
    }

    async fn send(&mut self, kind: u8, data: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match u16::try_from(data.len()) {
            Ok(length) if length < 126 => frame.push(0x80 | length as u8),
            Ok(length) => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&length.to_be_bytes());
            }
            Err(_) => panic!("too long for a test"),
        }
        let mask = [1, 2, 3, 4];
        frame.extend_from_slice(&mask);
        frame.extend(data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        // The server may have closed already.
        let _ = self.0.write_all(&frame).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_row_is_a_message() {
    let server = Store::new().serve_database().await;
    server.call("PUT", "/db/a", "{\"text\":\"two\\nlines\"}").await;
    let path = "/db/_changes?feed=websocket&include_docs=true&heartbeat=20&limit=3";
    let mut socket = Socket::open(&server, path, &[]).await;
    let (row, _) = socket.message().await;
    assert_eq!((row["id"].as_str(), row["doc"]["text"].as_str()), (Some("a"), Some("two\nlines")));
    // Pings arrive while there are no rows.
    for _ in 0..2 {
        let frame = socket.frame().await.expect("a ping");
        assert_eq!((frame.kind, frame.is_final, frame.data.len()), (PING, true, 0));
        socket.send(PONG, b"").await;
    }
    // A client may send a ping.
    socket.send(PING, b"here?").await;
    loop {
        let frame = socket.frame().await.expect("a pong");
        if frame.kind == PONG {
            assert_eq!(frame.data, b"here?");
            break;
        }
    }
    // Longer than a chunk, so it is sent in several frames.
    let long = format!("{{\"text\":\"{}\"}}", "é".repeat(150_000));
    assert_eq!(server.call("PUT", "/db/b", &long).await.status, 201);
    let (row, frames) = socket.message().await;
    assert_eq!(row["doc"]["text"].as_str().map(str::len), Some(300_000));
    assert!(frames > 0);
    server.call("PUT", "/db/c", "{}").await;
    let (row, _) = socket.message().await;
    let (end, _) = socket.message().await;
    assert_eq!((&end["last_seq"], end["pending"].as_u64()), (&row["seq"], Some(0)));
    assert_eq!(socket.close_code().await, 1000);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_rows_come_in_fragments() {
    let server = Store::new().serve_database().await;
    let data = "QUJD".repeat(100_000);
    let body = format!("{{\"_attachments\":{{\"a\":{{\"content_type\":\"image/png\",\"data\":\"{data}\"}}}}}}");
    assert_eq!(server.call("PUT", "/db/a", &body).await.status, 201);
    let path = "/db/_changes?feed=websocket&include_docs=true&attachments=true&limit=1";
    let mut socket = Socket::open(&server, path, &[]).await;
    let (row, frames) = socket.message().await;
    assert!(row["doc"]["_attachments"]["a"]["data"] == data.as_str());
    assert!(frames > 3, "{frames}");
    assert!(socket.message().await.0["last_seq"].is_string());
    assert_eq!(socket.close_code().await, 1000);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_handshake_is_refused() {
    let store = Store::new();
    let server = store.serve_database().await;
    let path = "/db/_changes?feed=websocket";
    let plain = server.call("GET", path, "").await;
    assert_eq!((plain.status, plain.header("upgrade")), (426, Some("websocket")));
    assert_eq!(plain.header("sec-websocket-version"), Some("13"));
    let with = |name: &'static str, value: &'static str| {
        let mut headers: Vec<_> = UPGRADE.into_iter().filter(|(given, _)| *given != name).collect();
        headers.push((name, value));
        let server = &server;
        async move { server.connect().await.call("GET", path, &headers, b"").await.status }
    };
    assert_eq!(with("sec-websocket-version", "8").await, 426);
    assert_eq!(with("upgrade", "h2c").await, 426);
    assert_eq!(with("connection", "close").await, 426);
    assert_eq!(with("sec-websocket-key", "c2hvcnQ=").await, 400);
    assert_eq!(with("origin", "https://elsewhere.example").await, 403);
    let posted = server.connect().await.call("POST", path, &UPGRADE, b"{}").await;
    assert_eq!(posted.status, 426);
    // Errors of the feed are answered before the handshake.
    for (path, status) in [("/none/_changes?feed=websocket", 404), ("/db/_changes?feed=websocket&since=x", 400)] {
        assert_eq!(server.connect().await.call("GET", path, &UPGRADE, b"").await.status, status, "{path}");
    }
    drop(Socket::open(&server, path, &[("origin", "http://localhost")]).await);
    server.stop().await;
    let guarded = store.serve(ServerOptions::guarded_by("root", "secret")).await;
    assert_eq!(guarded.connect().await.call("GET", path, &UPGRADE, b"").await.status, 401);
    drop(Socket::open(&guarded, path, &[("authorization", "Basic cm9vdDpzZWNyZXQ=")]).await);
    guarded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_ends_it_the_other_knows() {
    let store = Store::new();
    // Upgraded connections count towards the limit of two.
    let server = store.serve(ServerOptions { connections_max: 2, ..ServerOptions::default() }).await;
    server.call("PUT", "/db", "").await;
    let path = "/db/_changes?feed=websocket&heartbeat=60000&since=now";
    let mut one = Socket::open(&server, path, &[]).await;
    let mut two = Socket::open(&server, "/_db_updates?feed=websocket&heartbeat=60000&since=now", &[]).await;
    // A third connection waits for a place.
    let address = server.address;
    let third = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(b"PUT /db2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    });
    let beside = store.layer().await;
    for name in (0..20).map(|n| format!("meanwhile{n}")) {
        beside.database(&name).create(&flatbed_layer::CreateOptions::default()).await.unwrap();
        assert_eq!(two.message().await.0["db_name"], name.as_str());
    }
    // Closing frees the place.
    one.send(CLOSE, &1000_u16.to_be_bytes()).await;
    assert_eq!(one.close_code().await, 1000);
    assert!(soon(third).await.unwrap().starts_with("HTTP/1.1 201 "));
    let (row, _) = two.message().await;
    assert_eq!((row["db_name"].as_str(), row["type"].as_str()), (Some("db2"), Some("created")));
    // Clients may send only control frames.
    let mut talks = Socket::open(&server, path, &[]).await;
    talks.send(TEXT, b"hello").await;
    assert_eq!(talks.close_code().await, 1003);
    drop(talks);
    let mut talks = Socket::open(&server, path, &[]).await;
    talks.send(TEXT, &[b'x'; 5_000]).await;
    assert_eq!(talks.close_code().await, 1008);
    drop(talks);
    // A client that disconnects without a close frame.
    drop(Socket::open(&server, path, &[]).await);
    // A stopping server sends the feed's sequence, then the close frame.
    let ended = server.begin_to_stop();
    let (end, _) = two.message().await;
    assert_eq!(end["last_seq"], row["seq"]);
    assert_eq!(two.close_code().await, 1000);
    soon(ended).await.unwrap();
}
