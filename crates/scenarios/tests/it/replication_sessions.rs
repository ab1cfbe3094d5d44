//! Replications from peers with a password. It is sent once if the peer has sessions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use flatbed_testkit::http::{Request, ServerConnection, listen};
use serde_json::{Value, json};

use crate::support::{Answer, Client, Running, ServerOptions, Store};

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
    let seen: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
    let all = seen.clone();
    let address = listen(move |connection| converse(connection, behind, session, all.clone()));
    (format!("{}/db", address.await), seen)
}

async fn converse(
    mut connection: ServerConnection,
    behind: SocketAddr,
    session: &'static str,
    all: Arc<Mutex<Vec<ReceivedRequest>>>,
) -> Option<()> {
    loop {
        let request = connection.read().await?;
        let Request { method, path, body, .. } = &request;
        let header = |name: &str| request.header(name).map(str::to_owned);
        let (cookie, authorization) = (header("cookie"), header("authorization"));
        let may_pass = cookie.as_deref() == Some("AuthSession=abc") || authorization.as_deref() == Some(BASIC);
        let what = format!("{method} {path}");
        let seen = ReceivedRequest { what, cookie, authorization, body: request.text() };
        let answer = match path.as_str() {
            "/_session" => None,
            _ if may_pass => Some(Client::to(behind).await.call(method, path, &[], body).await),
            _ => Some(Answer { status: 401, headers: Vec::new(), body: "{}".to_owned() }),
        };
        all.lock().unwrap().push(seen);
        match answer {
            None => connection.send(&format!("HTTP/1.1 {session}content-length: 0\r\n\r\n")).await?,
            Some(Answer { status, body, .. }) => {
                connection.answer(status, "content-type: application/json\r\n", &body).await?;
            }
        }
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
