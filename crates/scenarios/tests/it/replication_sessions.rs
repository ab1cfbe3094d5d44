//! Replications from peers with a password. It is sent once if the peer has sessions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Client, Running, ServerOptions, Store};

/// `anna:s3cret`
const BASIC: &str = "Basic YW5uYTpzM2NyZXQ=";

/// A received request: method and path, cookie, password.
#[derive(Debug, Clone)]
struct ReceivedRequest {
    what: String,
    cookie: Option<String>,
    authorization: Option<String>,
    body: String,
}

/// Starts a gate before a server that admits the password or the session that `session` answers with (status and
/// headers).
async fn gate(behind: SocketAddr, session: &'static str) -> (String, Arc<Mutex<Vec<ReceivedRequest>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("{}/db", listener.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
    let all = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let all = all.clone();
            tokio::spawn(async move { converse(stream, behind, session, &all).await });
        }
    });
    (url, seen)
}

async fn converse(
    stream: TcpStream,
    behind: SocketAddr,
    session: &str,
    all: &Mutex<Vec<ReceivedRequest>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        stream.read_line(&mut head).await.ok().filter(|read| *read > 0)?;
        let mut seen = ReceivedRequest { what: String::new(), cookie: None, authorization: None, body: String::new() };
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().ok()?,
                "cookie" => seen.cookie = Some(value.to_owned()),
                "authorization" => seen.authorization = Some(value.to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let mut words = head.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        seen.what = format!("{method} {path}");
        seen.body = String::from_utf8_lossy(&body).into_owned();
        let may_pass =
            seen.cookie.as_deref() == Some("AuthSession=abc") || seen.authorization.as_deref() == Some(BASIC);
        let answer = if path == "/_session" {
            format!("HTTP/1.1 {session}content-length: 0\r\n\r\n")
        } else if may_pass {
            let mut client = Client::to(behind).await;
            let answer = client.call(method, path, &[], &body).await;
            let head = format!("HTTP/1.1 {} X\r\ncontent-type: application/json", answer.status);
            format!("{head}\r\ncontent-length: {}\r\n\r\n{}", answer.body.len(), answer.body)
        } else {
            "HTTP/1.1 401 X\r\ncontent-length: 2\r\n\r\n{}".to_owned()
        };
        all.lock().unwrap().push(seen);
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

async fn pull(server: &Running, url: &str, target: &str) -> (u16, Value) {
    let spec = json!({"source": format!("http://{url}"), "target": target, "create_target": true});
    server.json("POST", "/_replicate", spec).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_shown_once_where_there_are_sessions() {
    let (store, other_store) = (Store::new(), Store::new());
    let (server, other) =
        (store.serve(ServerOptions::default()).await, other_store.serve(ServerOptions::default()).await);
    other.ok("PUT", "/db", Value::Null).await;
    let docs: Vec<Value> = (0..20).map(|n| json!({"_id": format!("doc{n}")})).collect();
    other.ok("POST", "/db/_bulk_docs", json!({"docs": docs})).await;

    let is_session = |seen: &ReceivedRequest| seen.what == "POST /_session";
    let begun = "200 X\r\nset-cookie: AuthSession=abc; Max-Age=600; Path=/; HttpOnly\r\n";
    let (url, seen) = gate(other.address, begun).await;
    let (status, answer) = pull(&server, &format!("anna:s3cret@{url}"), "a").await;
    assert_eq!((status, &answer["history"][0]["docs_written"]), (200, &json!(20)), "{answer}");
    let seen = seen.lock().unwrap().clone();
    assert!(seen.len() > 5 && is_session(&seen[0]), "{seen:?}");
    assert_eq!((seen[0].body.as_str(), &seen[0].authorization), ("name=anna&password=s3cret", &None));
    for seen in &seen[1..] {
        assert!(!is_session(seen) && seen.cookie.as_deref() == Some("AuthSession=abc"), "{seen:?}");
        // After the session has expired, no request is sent anonymously.
        assert_eq!(seen.authorization.as_deref(), Some(BASIC));
    }

    for (target, none) in [("b", "501 X\r\n"), ("c", "404 X\r\n"), ("d", "200 X\r\n")] {
        let (url, seen) = gate(other.address, none).await;
        let (status, answer) = pull(&server, &format!("anna:s3cret@{url}"), target).await;
        assert_eq!((status, &answer["history"][0]["docs_written"]), (200, &json!(20)), "{answer}");
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.iter().filter(|seen| is_session(seen)).count(), 1);
        assert!(seen.iter().all(|seen| is_session(seen) || seen.cookie.is_none()), "{seen:?}");
    }

    // A wrong password is sent once, without further attempts.
    let (url, seen) = gate(other.address, "401 X\r\n").await;
    let (status, answer) = pull(&server, &format!("anna:wrong@{url}"), "e").await;
    assert_eq!((status, &answer["error"]), (401, &json!("unauthorized")), "{answer}");
    assert_eq!(seen.lock().unwrap().len(), 1);
    // Anonymous replications request no session.
    let (url, seen) = gate(other.address, begun).await;
    assert_eq!(pull(&server, &url, "e").await.0, 401);
    assert!(!seen.lock().unwrap().iter().any(is_session));
    server.stop().await;
    other.stop().await;
}
