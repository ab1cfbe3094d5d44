//! Traces over OTLP, as a receiver gets them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc,
};

use crate::support::{Server, call, flatbed, storage};
use flatbed_testkit::PATIENCE;
use hyper::Method;

/// Accepts one request after the other, each on its own connection, and sends their heads and bodies.
fn receive(listener: TcpListener, sender: mpsc::Sender<(String, Vec<u8>)>) {
    for stream in listener.incoming() {
        let mut reader = BufReader::new(stream.expect("a connection"));
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).expect("readable") == 0 || line == "\r\n" {
                break;
            }
            let line = line.to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        reader.get_mut().write_all(answer).expect("written");
        if sender.send((head, body)).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn requests_and_transactions_come_as_spans() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || receive(listener, sender));
    let directory = tempfile::tempdir().unwrap();
    let storage = storage(&directory.path().join("data"));
    let mut command = flatbed();
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint).env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k1");
    let server = Server::start_as(&mut command, &storage.iter().map(String::as_str).collect::<Vec<_>>());
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    assert_eq!(call(&mut connection, Method::PUT, "/db/d", "{}").await.0, 201);
    assert_eq!(call(&mut connection, Method::GET, "/db/d", "").await.0, 200);
    // Remaining spans are sent at the end.
    assert!(server.stop());
    let (head, body) = received.recv_timeout(PATIENCE).expect("traces");
    assert!(head.starts_with("post /v1/traces ") && head.contains("x-key: k1"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    // Protobuf contains texts literally.
    let count = |text: &str| body.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
    assert_eq!((count("GET /{db}/{docid}"), count("PUT /{db}/{docid}"), count("PUT /{db}")), (1, 1, 2));
    assert_eq!((count("request_id"), count("service.name")), (3, 1));
    assert!(count("foundationdb") >= 3);
}

#[tokio::test]
async fn an_endpoint_with_tls_is_refused() {
    let output = flatbed()
        .args(["serve", "--data-dir", "nowhere"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318")
        .output()
        .expect("the binary runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("there is no TLS"), "{error}");
}
