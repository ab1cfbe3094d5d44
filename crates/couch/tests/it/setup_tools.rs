//! The requests of tools that set up a CouchDB, as `docs/couchdb-settings.md` lists them.

use crate::support::{Answer, Client, Running, ServerOptions, Store};
use serde_json::json;

const PAGE: &str = include_str!("../../../../docs/couchdb-settings.md");

/// `ADMIN:PASSWORD`.
const ADMIN: (&str, &str) = ("authorization", "Basic QURNSU46UEFTU1dPUkQ=");

struct ToolRequest {
    method: &'static str,
    path: &'static str,
    body: &'static str,
}

/// The requests in the first fence below the heading.
fn requests_of(tool: &str) -> Vec<ToolRequest> {
    let part = PAGE.split_once(&format!("\n### {tool}\n")).expect("a heading").1;
    let fence = part.split_once("\n```text\n").expect("a fence").1.split("\n```").next().unwrap_or_default();
    let request = |line: &'static str| {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().unwrap_or_default();
        ToolRequest { method: next(), path: next(), body: next() }
    };
    fence.lines().map(request).collect()
}

async fn serve(store: &Store) -> Running {
    store.serve(ServerOptions::guarded_by("ADMIN", "PASSWORD")).await
}

async fn set_up(client: &mut Client, tool: &str, content_type: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    for ToolRequest { method, path, body } in requests_of(tool) {
        let headers = [ADMIN, ("content-type", content_type)];
        let headers = if body.is_empty() { &headers[..1] } else { &headers };
        let answer = client.call(method, path, headers, body.as_bytes()).await;
        assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
        answers.push(answer);
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn livesync_sets_a_server_up() {
    let server = serve(&Store::new()).await;
    let mut client = server.connect().await;
    let answers = set_up(&mut client, "obsidian-livesync", "application/json").await;
    assert_eq!(answers.len(), 11);
    let warned = answers.iter().filter_map(|answer| answer.header("warning")).collect::<Vec<_>>();
    assert!(warned.len() == 2 && warned.iter().all(|warning| warning.contains("its largest value")), "{warned:?}");

    let refused = client.call("GET", "/obsidiannotes", &[], b"").await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Basic realm=\"couchdb\"")));
    // The check in the app, from a page of each origin.
    for origin in ["app://obsidian.md", "capacitor://localhost", "http://localhost"] {
        let checked = client.call("GET", "/_node/_local/_config", &[ADMIN, ("origin", origin)], b"").await;
        assert_eq!(checked.header("access-control-allow-origin"), Some(origin));
        assert_eq!(checked.header("access-control-allow-credentials"), Some("true"));
        assert!(checked.header("server").is_some_and(|server| server.starts_with("CouchDB/3.5")), "{checked:?}");
        let found = checked.json();
        for (section, key, value) in [
            ("chttpd", "require_valid_user", "true"),
            ("chttpd_auth", "require_valid_user", "true"),
            ("httpd", "WWW-Authenticate", "Basic realm=\"couchdb\""),
            ("chttpd", "enable_cors", "true"),
            ("chttpd", "max_http_request_size", "4294967296"),
            ("couchdb", "max_document_size", "50000000"),
            ("cors", "credentials", "true"),
            ("cors", "origins", "app://obsidian.md,capacitor://localhost,http://localhost"),
        ] {
            assert_eq!(found[section][key], value, "{section}/{key}");
        }
        assert!(found["admins"]["ADMIN"].is_string());
    }
    // A second run changes nothing, except that the database exists.
    let headers = [ADMIN, ("content-type", "application/json")];
    for ToolRequest { method, path, body } in requests_of("obsidian-livesync") {
        let again = client.call(method, path, &headers, body.as_bytes()).await;
        let expected = if path == "/obsidiannotes" { 412 } else { 200 };
        assert_eq!(again.status / 100, expected / 100, "{method} {path}: {again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn add_cors_to_couchdb_admits_pages() {
    let server = serve(&Store::new()).await;
    let mut client = server.connect().await;
    let answers = set_up(&mut client, "add-cors-to-couchdb", "text/plain;charset=UTF-8").await;
    assert_eq!(answers[0].json()["cluster_nodes"], json!(["flatbed@localhost"]));
    let page = ("origin", "https://app.example");
    let asked = [page, ("access-control-request-method", "PUT"), ("access-control-request-headers", "x-csrf-token")];
    let preflight = client.call("OPTIONS", "/db/a", &asked, b"").await;
    assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("GET, PUT, POST, HEAD, DELETE"));
    let headers = preflight.header("access-control-allow-headers").unwrap_or_default();
    assert!(headers.split(", ").any(|name| name == "x-csrf-token"), "{headers}");
    let welcome = client.call("GET", "/", &[page], b"").await;
    assert_eq!((welcome.status, welcome.header("access-control-allow-origin")), (200, Some("*")));
}
