//! Clients that end their side of the connection behind a request, as `nc -N` does, and wait for the answer.

use std::time::Duration;

use crate::support::{ServerOptions, Store, soon};
use flatbed_auth::PasswordHash;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

const ROOT: &str = "host: localhost\r\nauthorization: Basic cm9vdDpzZWNyZXQ=\r\n";

#[tokio::test]
async fn a_client_that_has_ended_its_side_gets_its_answers() {
    let store = Store::new();
    let admins = [("root".to_owned(), PasswordHash::with_iterations("secret", &[1; 16], 10))].into();
    // A slow machine may take long for an answer.
    let half_closed_max = Duration::from_secs(3_600);
    let server = store.serve(ServerOptions { admins, half_closed_max, ..ServerOptions::default() }).await;
    let json = "content-type: application/json\r\n";
    let request = |line: &str, lines: &str, body: &str| format!("{line}\r\n{ROOT}{lines}\r\n{body}");
    let read = request("GET /db/length HTTP/1.1", "", "");
    let find = r#"{"selector":{}}"#;
    for (sent, statuses) in [
        (request("PUT /db HTTP/1.1", "", ""), vec![201]),
        (request("PUT /db/length HTTP/1.1", &format!("{json}content-length: 2\r\n"), "{}"), vec![201]),
        (
            request(
                "PUT /db/chunked HTTP/1.1",
                &format!("{json}transfer-encoding: chunked\r\n"),
                "2\r\n{}\r\n0\r\n\r\n",
            ),
            vec![201],
        ),
        (
            request("PUT /db/last HTTP/1.1", &format!("{json}connection: close\r\ncontent-length: 2\r\n"), "{}"),
            vec![201],
        ),
        (request("GET /db/chunked HTTP/1.0", "", ""), vec![200]),
        (
            request(
                "POST /db/_find HTTP/1.1",
                &format!("{json}transfer-encoding: chunked\r\n"),
                &format!("{:x}\r\n{find}\r\n0\r\n\r\n", find.len()),
            ),
            vec![200],
        ),
        (read.repeat(3), vec![200; 3]),
        (request("DELETE /db HTTP/1.1", "", ""), vec![200]),
    ] {
        let mut client = server.connect().await;
        client.stream.write_all(sent.as_bytes()).await.expect("sent");
        client.stream.shutdown().await.expect("its side is ended");
        for status in statuses {
            let answer = soon(client.answer(false)).await;
            assert_eq!(answer.status, status, "{sent}: {answer:?}");
        }
        assert_eq!(soon(client.rest()).await, "", "the connection ends behind the answers");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_ends_with_its_client_however_that_leaves() {
    let store = Store::new();
    let server = store.serve(ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
    let feed = "/db/_changes?feed=continuous&since=now&heartbeat=3600000";
    for (ends_first, is_reset) in [(true, false), (false, true), (true, true), (false, false)] {
        let mut client = server.connect().await;
        client.send("GET", feed, &[], b"").await;
        server.until_followed(1).await;
        if ends_first {
            client.stream.shutdown().await.expect("its side is ended");
        }
        if is_reset {
            client.stream.set_zero_linger().expect("a reset");
        }
        // A client that is kept still waits.
        let kept = (ends_first && !is_reset).then_some(client);
        server.until_followed(0).await;
        drop(kept);
    }
    server.stop().await;
}
