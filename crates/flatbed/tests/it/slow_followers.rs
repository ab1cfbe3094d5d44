//! Followers that do not read: their backlog takes no memory, however large it is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Server, call, counters};
use flatbed_testkit::{pass, until};
use hyper::Method;

const FOLLOWERS: usize = 100;
const DOCUMENTS: usize = 120;
const DOCUMENT_BYTES: usize = 100_000;

/// Returns the process's resident memory, in bytes.
fn resident_bytes(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the process is there");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a figure");
    1024 * line.split_whitespace().nth(1).and_then(|number| number.parse::<usize>().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_takes_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    // Half of them start at the beginning, half exist while the documents are written.
    let follow = |since: &str| {
        let mut stream = TcpStream::connect(server.url.authority()).unwrap();
        let path = format!("/db/_changes?feed=continuous&include_docs=true&heartbeat=1000&since={since}");
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
        // The answer has begun.
        stream.read_exact(&mut [0; 15]).unwrap();
        stream
    };
    let early: Vec<_> = (0..FOLLOWERS / 2).map(|_| follow("now")).collect();
    let text = "x".repeat(DOCUMENT_BYTES);
    for number in 0..DOCUMENTS {
        let body = format!("{{\"text\":\"{text}\"}}");
        assert_eq!(call(&mut connection, Method::PUT, &format!("/db/{number}"), &body).await.0, 201);
    }
    let before = resident_bytes(&server);
    let late: Vec<_> = (0..FOLLOWERS / 2).map(|_| follow("0")).collect();
    until("all follow", async || counters(&server, "flatbed_followers").await >= FOLLOWERS as f64).await;
    let mut largest = 0;
    for _ in 0..20 {
        pass(Duration::from_millis(50)).await;
        largest = largest.max(resident_bytes(&server));
    }
    let backlog = FOLLOWERS * DOCUMENTS * DOCUMENT_BYTES;
    // Each holds a page of at most 1 MB, if there is room, and two pieces: a tenth of the backlog. The early ones alone
    // would otherwise hold half of it.
    println!("{before} bytes before, {largest} with all followers; {backlog} bytes wait for them");
    assert!(largest < backlog / 3, "{largest} bytes for a backlog of {backlog}");
    drop((early, late));
    assert!(server.stop());
}
