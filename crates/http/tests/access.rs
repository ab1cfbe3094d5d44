//! Who may do what: administrators, and browsers of other origins.

mod support;

use flatbed_http::{BindError, Cors, PasswordHash, Server, ServerOptions};
use support::{Client, Store};

const RIGHT: (&str, &str) = ("authorization", "Basic YWRtaW46cGFzc3dvcmQ=");
const WRONG: (&str, &str) = ("authorization", "Basic YWRtaW46cGFzc3dvcmU=");

fn with_admin() -> ServerOptions {
    // RFC 6070's vector: few iterations, so that the test is quick.
    let hash = PasswordHash::parse("-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096").unwrap();
    ServerOptions { admins: [("admin".to_owned(), hash)].into(), ..ServerOptions::default() }
}

async fn status(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let answer = client.call(method, path, headers, b"").await;
    let reason = if answer.status == 401 { answer.text("reason") } else { String::new() };
    (answer.status, reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_administrator_others_may_do_little() {
    let store = Store::new();
    let server = store.serve(with_admin()).await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/db", &[RIGHT], b"").await.status, 201);
    for path in ["/", "/_up", "/_session", "/_uuids"] {
        assert_eq!(status(&mut client, "GET", path, &[]).await.0, 200, "{path}");
    }
    let not_admin = "You are not a server admin.".to_owned();
    for (method, path) in
        [("GET", "/_all_dbs"), ("GET", "/_active_tasks"), ("GET", "/metrics"), ("PUT", "/new"), ("DELETE", "/db")]
    {
        assert_eq!(status(&mut client, method, path, &[]).await, (401, not_admin.clone()), "{method} {path}");
    }
    for path in ["/db", "/db/d", "/db/_all_docs", "/db/_changes", "/missing/d"] {
        let refused = (401, "You are not authorized to access this db.".to_owned());
        assert_eq!(status(&mut client, "GET", path, &[]).await, refused, "{path}");
    }
    let wrong = (401, "Name or password is incorrect.".to_owned());
    assert_eq!(status(&mut client, "GET", "/", &[WRONG]).await, wrong);
    assert_eq!(status(&mut client, "GET", "/db", &[RIGHT]).await.0, 200);
    let session = client.call("GET", "/_session", &[RIGHT], b"").await.json();
    assert_eq!(
        (session["userCtx"]["name"].as_str(), session["userCtx"]["roles"][0].as_str()),
        (Some("admin"), Some("_admin"))
    );
    // A browser's dialog opens only where a client asks for it.
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
    let fdb = store.layer().await;
    let options = ServerOptions { listen: vec!["0.0.0.0:0".parse().unwrap()], ..ServerOptions::default() };
    assert!(matches!(Server::bind(options.clone(), fdb.clone()).await, Err(BindError::Exposed(_))));
    let options = ServerOptions { listen: options.listen, ..with_admin() };
    assert!(Server::bind(options, fdb).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_of_other_origins() {
    let store = Store::new();
    let cors = Cors { origins: vec!["https://a.example".into()], credentials: true, ..Cors::default() };
    let server = store.serve(ServerOptions { cors, ..with_admin() }).await;
    let mut client = server.connect().await;
    let ask = |origin: &'static str| [("origin", origin), ("access-control-request-method", "PUT")];
    let preflight = client.call("OPTIONS", "/db/d", &ask("https://a.example"), b"").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://a.example"));
    assert!(preflight.header("access-control-allow-methods").unwrap().contains("PUT"));
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("content-type"));
    let other = client.call("OPTIONS", "/db/d", &ask("https://b.example"), b"").await;
    assert_eq!((other.status, other.header("access-control-allow-origin")), (401, None));
    // Answers to refused requests have the headers too, or a page could not see why.
    let refused = client.call("GET", "/db", &[("origin", "https://a.example")], b"").await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("access-control-allow-credentials"), Some("true"));
    assert_eq!(client.call("GET", "/", &[], b"").await.header("access-control-allow-origin"), None);
    server.stop().await;
}
