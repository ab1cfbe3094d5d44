//! Access of administrators, and of browsers with pages of other origins.

use std::net::SocketAddr;

use crate::support::{ADMIN, Client, Running, ServerOptions, Store, bind, soon};
use flatbed_http::{BindError, Cors};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WRONG: (&str, &str) = ("authorization", "Basic YWRtaW46cGFzc3dvcmU=");

async fn status(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let answer = client.call(method, path, headers, b"").await;
    let reason = if answer.status == 401 { answer.text("reason") } else { String::new() };
    (answer.status, reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_administrator_others_may_do_little() {
    let server = Store::new().serve(ServerOptions::with_admin()).await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/db", &[ADMIN], b"").await.status, 201);
    for path in ["/", "/_up", "/_session", "/_uuids"] {
        assert_eq!(status(&mut client, "GET", path, &[]).await.0, 200, "{path}");
    }
    let not_admin = "You are not a server admin.".to_owned();
    for (method, path) in
        [("GET", "/_all_dbs"), ("GET", "/_active_tasks"), ("GET", "/_db_updates"), ("PUT", "/new"), ("DELETE", "/db")]
    {
        assert_eq!(status(&mut client, method, path, &[]).await, (401, not_admin.clone()), "{method} {path}");
    }
    let not_metrics = "You are not a server admin or read-only metrics user".to_owned();
    assert_eq!(status(&mut client, "GET", "/metrics", &[]).await, (401, not_metrics));
    for path in ["/db", "/db/d", "/db/_all_docs", "/db/_changes", "/missing/d"] {
        let refused = (401, "You are not authorized to access this db.".to_owned());
        assert_eq!(status(&mut client, "GET", path, &[]).await, refused, "{path}");
    }
    let wrong = (401, "Name or password is incorrect.".to_owned());
    // `/` also answers if the password is not checked in time.
    assert_eq!(status(&mut client, "GET", "/_session", &[WRONG]).await, wrong);
    assert_eq!(status(&mut client, "GET", "/db", &[ADMIN]).await.0, 200);
    let session = client.call("GET", "/_session", &[ADMIN], b"").await.json();
    assert_eq!(
        (session["userCtx"]["name"].as_str(), session["userCtx"]["roles"][0].as_str()),
        (Some("admin"), Some("_admin"))
    );
    // A browser opens its dialog only if the client requests a challenge.
    let plain = client.call("GET", "/db", &[], b"").await;
    assert_eq!(plain.header("www-authenticate"), None);
    let asked = client.call("GET", "/db", &[("x-couchdb-www-authenticate", "Basic realm=\"x\"")], b"").await;
    assert_eq!(asked.header("www-authenticate"), Some("Basic realm=\"x\""));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_one_only_this_machine_may_connect() {
    let store = Store::new();
    let server = store.serve(ServerOptions::default()).await;
    let session = server.call("GET", "/_session", "").await.json();
    assert_eq!(session["userCtx"]["roles"][0], "_admin");
    server.stop().await;
    let layer = store.layer().await;
    let options =
        ServerOptions { listen: vec![SocketAddr::from(([0, 0, 0, 0], 0)).into()], ..ServerOptions::default() };
    assert!(matches!(bind(options.clone(), layer.clone()).await, Err(BindError::Exposed(_))));
    let options = ServerOptions { listen: options.listen, ..ServerOptions::with_admin() };
    assert!(bind(options, layer).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_of_other_origins() {
    let store = Store::new();
    let cors = Cors { origins: vec!["https://a.example".into()], credentials: true, ..Cors::default() };
    let server = store.serve(ServerOptions { cors, ..ServerOptions::with_admin() }).await;
    let mut client = server.connect().await;
    let ask = |origin: &'static str| [("origin", origin), ("access-control-request-method", "PUT")];
    let preflight = client.call("OPTIONS", "/db/d", &ask("https://a.example"), b"").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://a.example"));
    assert!(preflight.header("access-control-allow-methods").unwrap().contains("PUT"));
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("content-type"));
    let other = client.call("OPTIONS", "/db/d", &ask("https://b.example"), b"").await;
    assert_eq!((other.status, other.header("access-control-allow-origin")), (401, None));
    // Refusals have the CORS headers too, so that a page can read them.
    let refused = client.call("GET", "/db", &[("origin", "https://a.example")], b"").await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("access-control-allow-credentials"), Some("true"));
    assert_eq!(client.call("GET", "/", &[], b"").await.header("access-control-allow-origin"), None);
    server.stop().await;
}

async fn raw(server: &Running, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.ends_with("}\n") {
        let count = soon(stream.read(&mut piece)).await.unwrap();
        assert!(count > 0, "the connection ended: {request} {answer}");
        answer.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
    (status, answer)
}

/// A page whose host name resolves to this machine can neither read nor write.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_administrator_only_this_machines_names_are_taken() {
    let store = Store::new();
    let cors = Cors { origins: vec!["*".into()], ..Cors::default() };
    let server = store.serve(ServerOptions { cors, ..ServerOptions::default() }).await;
    let websocket = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                     sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    let preflight = "origin: http://evil.example\r\naccess-control-request-method: PUT\r\n";
    for (method, path, more) in [
        ("PUT", "/db", ""),
        ("GET", "/", ""),
        ("GET", "/_up", ""),
        ("OPTIONS", "/db", preflight),
        ("GET", "/db/_changes?feed=websocket", websocket),
    ] {
        let request =
            |host: &str| format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
        for host in ["evil.example", "evil.example:5984", "127.0.0.1.evil.example", "192.168.1.1:5984"] {
            let (status, answer) = raw(&server, &request(host)).await;
            assert_eq!(status, 403, "{method} {path} {host}: {answer}");
            assert!(answer.contains("{\"error\":\"forbidden\",\"reason\":"), "{answer}");
        }
        for two in ["localhost\r\nhost: localhost", "localhost\r\nhost: evil.example", "", "a b"] {
            let (status, answer) = raw(&server, &request(two)).await;
            assert_eq!(status, 400, "{method} {path} {two}: {answer}");
            assert!(answer.contains("{\"error\":\"bad_request\",\"reason\":"), "{answer}");
        }
    }
    assert_eq!(raw(&server, "PUT /db HTTP/1.1\r\n\r\n").await.0, 400);
    assert_eq!(raw(&server, "PUT http://evil.example/db HTTP/1.1\r\nhost: localhost\r\n\r\n").await.0, 400);
    assert_eq!(raw(&server, "PUT http://evil.example/db HTTP/1.1\r\nhost: evil.example\r\n\r\n").await.0, 403);
    assert_eq!(server.call("GET", "/_all_dbs", "").await.json(), serde_json::json!([]));
    let port = server.address.port();
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "[::1]".into(), "LOCALHOST".into()] {
        assert_eq!(
            raw(&server, &format!("GET /_up HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")).await.0,
            200
        );
    }
    // HTTP/1.0 needs no host name, and no browser uses it.
    assert_eq!(raw(&server, "GET /_up HTTP/1.0\r\n\r\n").await.0, 200);
    server.stop().await;

    let server = store.serve(ServerOptions::with_admin()).await;
    assert_eq!(raw(&server, "GET /_up HTTP/1.1\r\nhost: db.example\r\nconnection: close\r\n\r\n").await.0, 200);
    assert_eq!(raw(&server, "GET /_up HTTP/1.1\r\n\r\n").await.0, 400);
    assert_eq!(raw(&server, "GET /_up HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n").await.0, 400);
    server.stop().await;
}

/// Forms and plain text need no preflight, and a server without administrators needs no session.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_administrator_foreign_pages_change_nothing() {
    let store = Store::new();
    let listed = "http://localhost:3000";
    let cors = Cors { origins: vec![listed.to_owned()], ..Cors::default() };
    let server = store.serve(ServerOptions { cors, ..ServerOptions::default() }).await;
    assert_eq!(server.call("PUT", "/db", "").await.status, 201);
    for (method, path) in [
        ("POST", "/db/_design/d/_update/u"),
        ("GET", "/db/_design/d/_update/u"),
        ("POST", "/db/_view_cleanup"),
        ("POST", "/db/_compact"),
        ("POST", "/db"),
        ("POST", "/_node/_local/_config/_reload"),
        ("POST", "/_worker/_api/dlq/import"),
        ("POST", "/_replicate"),
        ("POST", "/no/such/route"),
    ] {
        let ask = async |page: &[(&str, &str)]| {
            let headers = [&[("content-type", "text/plain")][..], page].concat();
            let body: &[u8] = if method == "GET" { b"" } else { b"{}" };
            // The server leaves the body of a refused request unread.
            let answer = server.connect().await.call(method, path, &headers, body).await;
            (answer.status == 403 && answer.text("reason").starts_with("A page of another origin"), answer.status)
        };
        for page in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "http://localhost:3001")],
            &[("origin", "http://evil.example"), ("authorization", "Basic YTpi")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("referer", "http://evil.example/page")],
            &[("referer", "http://localhost:3001/page"), ("cookie", "AuthSession=x")],
        ] {
            let (is_refused, status) = ask(page).await;
            assert!(is_refused, "{method} {path} {page:?}: {status}");
        }
        for page in [
            &[("origin", "http://localhost")][..],
            &[],
            &[("referer", "http://localhost/page")],
            &[("origin", listed)],
            &[("origin", "http://behind.example"), ("sec-fetch-site", "same-origin")],
        ] {
            let (is_refused, status) = ask(page).await;
            assert!(!is_refused, "{method} {path} {page:?}: {status}");
        }
    }
    // Reads are answered; the browser hides the answer from the page.
    let origin = [("origin", "http://evil.example")];
    let read = server.connect().await.call("GET", "/db", &origin, b"").await;
    assert_eq!((read.status, read.header("access-control-allow-origin")), (200, None));
    let headers = [origin[0], ("content-type", "application/json")];
    for (path, body) in [("_find", r#"{"selector":{}}"#), ("_all_docs", r#"{"keys":[]}"#), ("_revs_diff", "{}")] {
        let read = server.connect().await.call("POST", &format!("/db/{path}"), &headers, body.as_bytes()).await;
        assert_eq!((read.status, read.header("access-control-allow-origin")), (200, None), "{path}");
    }
    let refused = server.connect().await.call("PUT", "/db/doc", &headers, b"{}").await;
    let reason = refused.text("reason");
    assert!(
        refused.status == 403 && reason.contains("[cors] origins") && reason.contains("forwarded_from"),
        "{reason}"
    );
    server.stop().await;
}
