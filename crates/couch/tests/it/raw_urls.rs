//! URLs as typed into curl, with characters that should be encoded.

use std::time::Duration;

use flatbed_testkit::pass;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, Store, soon};

/// Sends pieces on one connection and reads until the server closes it.
async fn answers(server: &Running, pieces: &[&str]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        stream.write_all(piece.as_bytes()).await.unwrap();
        pass(Duration::from_millis(20)).await;
    }
    let mut text = Vec::new();
    soon(stream.read_to_end(&mut text)).await.unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn quotes_in_urls_are_taken_and_bodies_are_left_alone() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/a", json!({"n": 1})).await;
    server.ok("PUT", "/db/%3Cb%3E", json!({"n": 2})).await;
    let host = format!("host: {}\r\n", server.address);
    let get = |target: &str, last: &str| format!("GET {target} HTTP/1.1\r\n{host}{last}\r\n");
    let (key, close) = (get("/db/_all_docs?key=\"a\"", ""), "connection: close\r\n");
    let keys = get("/db/_all_docs?keys=[\"<b>\"]&x={\"`^|\\\":1}", close);
    // Sequential and pipelined requests.
    for pieces in
        [vec![&*key, &keys], vec![&[&*key, &keys].concat()], vec![&key[..25], &key[25..], &keys[..40], &keys[40..]]]
    {
        let text = answers(&server, &pieces).await;
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
        assert!(text.contains("\"id\":\"a\"") && text.contains("\"id\":\"<b>\""), "{text}");
    }
    // A body that looks like requests stays a body, with a length or chunked; the connection continues after the first.
    let body = "{\"t\":\"\\nGET /db?x=\\\"<y>\\\" HTTP/1.1\\n\\n\"}";
    let put = |id: &str, framing: &str, body: &str| {
        format!("PUT /db/{id}?x=\"y\" HTTP/1.1\r\n{host}content-type: application/json\r\n{framing}\r\n{body}")
    };
    let length = format!("content-length: {}\r\n", body.len());
    let put_length = put("length", &length, body);
    let (put_chunks, chunks) =
        (put("chunks", "transfer-encoding: chunked\r\n", ""), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    let last = get("/db?x=y", close);
    for pieces in [
        vec![&*key, &put_length, &key, &put_chunks, &chunks, &last],
        vec![&*[&*put_length, &key, &key, &put_chunks, &chunks, &last].concat()],
        vec![
            &put_length[..put_length.len() - 20],
            &put_length[put_length.len() - 20..],
            &key,
            &put_chunks,
            &chunks,
            &last,
        ],
    ] {
        let text = answers(&server, &pieces).await;
        let done = text.matches("HTTP/1.1 20").count() + text.matches("HTTP/1.1 409").count();
        assert!(done == text.matches("HTTP/1.1 ").count() && done >= 4, "{text}");
        for id in ["length", "chunks"] {
            let found = server.ok("GET", &format!("/db/{id}"), Value::Null).await;
            assert_eq!(found["t"], "\nGET /db?x=\"<y>\" HTTP/1.1\n\n");
            let rev = found["_rev"].as_str().unwrap_or_default();
            server.ok("DELETE", &format!("/db/{id}?rev={rev}"), Value::Null).await;
        }
    }
}
