//! Malformed inputs: each is refused with a clear status, and the server continues.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::support::{Server, call};
use flatbed_testkit::{PATIENCE, Random};
use hyper::Method;

/// Sends bytes, and reads until the server closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.url.authority()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..length]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn count(bytes: &[u8], wanted: u8) -> usize {
    bytes.iter().filter(|byte| **byte == wanted).count()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    let mut connection = server.connect().await;
    call(&mut connection, Method::PUT, "/db", "").await;
    let deep = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    for (body, expected) in [
        ("", 400),
        ("{", 400),
        ("[]", 400),
        ("null", 400),
        ("{\"a\":1}}", 400),
        ("{\"a\":01}", 400),
        ("{\"a\":\"\\ud800\"}", 400),
        ("{\"a\":\"\u{0}\"}", 400),
        ("{\"a\":NaN}", 400),
        ("{\"_nothing\":1}", 400),
        ("{\"_rev\":\"x\"}", 400),
        (&deep(200_000), 400),
        (&format!("{{\"a\":\"{}\"}}", "x".repeat(9_000_000)), 413),
        ("{\"\\u0000\":\"\\u0000\",\"\":\"\",\"a\":1,\"a\":2}", 201),
        (&format!("{{\"{}\":0.{}}}", "n".repeat(20_000), "9".repeat(4_000)), 201),
        ("{\"a\":1e999}", 400),
        (&format!("{{\"a\":{}}}", "9".repeat(100_000)), 400),
    ] {
        let (found, answer) = call(&mut connection, Method::PUT, &format!("/db/doc-{}", body.len()), body).await;
        let start: String = body.chars().take(60).collect();
        assert_eq!(found, expected, "{start}: {answer}");
    }
    // Refused for its depth or for the cost of parsing it.
    let brackets = call(&mut connection, Method::PUT, "/db/brackets", &"[".repeat(3_000_000)).await;
    assert!(matches!(brackets.0, 400 | 413), "{brackets:?}");
    let invalid = connection.call(Method::PUT, "/db/utf8", &b"{\"a\":\"\xFF\"}"[..]).await.unwrap();
    assert_eq!(invalid.status, 400);
    for path in [
        "/db/_nothing",
        "/db/%FF",
        "/db/a%00b",
        "/DB",
        "/..%2f..%2fetc",
        "/db/_all_docs?limit=-1",
        "/db/_changes?since=zzz",
    ] {
        let (found, answer) = call(&mut connection, Method::GET, path, "").await;
        assert!((400..500).contains(&found), "{path}: {found} {answer}");
    }
    let long_id = call(&mut connection, Method::PUT, &format!("/db/{}", "i".repeat(7_000)), "{}").await;
    assert_eq!(long_id.0, 400, "{}", long_id.1);
    let long = connection.call(Method::GET, "/db/doc-24007", "").await.unwrap();
    assert_eq!(long.status, 200);
    assert!(count(&long.body, b'9') >= 4_000, "a long number keeps its digits");
    assert!(server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    let many_headers: String = (0..2_000).map(|n| format!("x-{n}: {n}\r\n")).collect();
    let long_header = format!("x: {}\r\n", "y".repeat(2_000_000));
    for (request, expected) in [
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\n{many_headers}\r\n"), &[400, 431][..]),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\n{long_header}\r\n"), &[400, 431, 0]),
        (format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "p".repeat(2_000_000)), &[400, 414, 431, 0]),
        ("nonsense\r\n\r\n".to_owned(), &[400, 0]),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), &[400, 505, 0]),
        ("PUT /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n".to_owned(), &[400]),
        ("PUT /a/b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{".to_owned(), &[400, 404, 0]),
        ("PUT /a/b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(), &[400, 404, 0]),
        (
            "PUT /a/b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999\r\n\r\n".to_owned(),
            &[400, 404, 413, 0],
        ),
    ] {
        let answer = exchange(&server, request.as_bytes());
        let start: String = request.chars().take(60).collect();
        assert!(expected.contains(&status(&answer)), "{start:?}: {answer:?}");
    }
    let mut random = Random(1);
    for length in 0..200 {
        let noise: Vec<u8> = (0..length % 97).map(|_| random.next() as u8).collect();
        let mut stream = TcpStream::connect(server.url.authority()).unwrap();
        let _ = stream.write_all(&noise);
    }
    let (found, _) = call(&mut server.connect().await, Method::GET, "/", "").await;
    assert_eq!(found, 200, "the server goes on");
    assert!(server.stop());
}
