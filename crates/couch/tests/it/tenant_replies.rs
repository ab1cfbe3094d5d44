//! Replies of functions and attachments in a browser, and the requests that functions see.

use serde_json::{Map, Value, json};

use crate::support::{ADMIN, Answer, ServerOptions, Store};

/// Headers that no tenant may set.
const FORBIDDEN: [&str; 43] = [
    "Access-Control-Allow-Credentials",
    "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers",
    "Alt-Svc",
    "Authorization",
    "Clear-Site-Data",
    "Content-Security-Policy",
    "Content-Security-Policy-Report-Only",
    "Cross-Origin-Embedder-Policy",
    "Cross-Origin-Opener-Policy",
    "Cross-Origin-Resource-Policy",
    "Date",
    "NEL",
    "Origin-Agent-Cluster",
    "Permissions-Policy",
    "Proxy-Authenticate",
    "Public-Key-Pins",
    "Referrer-Policy",
    "Refresh",
    "Report-To",
    "Reporting-Endpoints",
    "Server",
    "Service-Worker-Allowed",
    "Set-Cookie",
    "Set-Cookie2",
    "SourceMap",
    "Speculation-Rules",
    "Strict-Transport-Security",
    "Timing-Allow-Origin",
    "WWW-Authenticate",
    "X-Accel-Redirect",
    "X-Cascade",
    "X-Content-Type-Options",
    "X-Couch-Id",
    "X-Couch-Request-ID",
    "X-CouchDB-Body-Time",
    "X-Frame-Options",
    "X-LSADC-Backend",
    "X-Magento-Tags",
    "X-Pingback",
    "X-Sendfile",
    "X-SourceMap",
    "X-Varnish",
];

fn is_sandboxed(answer: &Answer, what: &str) {
    let all = |name: &str| {
        answer.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(all("content-security-policy"), ["sandbox"], "{what} {answer:?}");
    assert_eq!(all("x-content-type-options"), ["nosniff"], "{what} {answer:?}");
    let forged = answer.headers.iter().find(|(_, value)| value.contains("forged"));
    assert_eq!(forged, None, "{what}");
}

#[tokio::test]
async fn all_are_sandboxed() {
    let server = Store::new().serve_database().await;
    let mut headers: Map<String, Value> = FORBIDDEN.iter().map(|&name| (name.to_owned(), json!("forged"))).collect();
    headers.extend([("Content-Type".to_owned(), json!("text/html")), ("X-Mine".to_owned(), json!("mine"))]);
    let headers = Value::Object(headers).to_string();
    let show = |rest: &str| format!("function (doc, req) {{ return {{headers: {headers}, {rest}}}; }}");
    let update =
        |doc: &str, rest: &str| format!("function (doc, req) {{ return [{doc}, {{headers: {headers}, {rest}}}]; }}");
    let design = json!({
        "shows": {
            "text": show("body: '<script>1</script>'"),
            "json": show("json: {a: '<script>1</script>'}"),
            "base64": show("base64: 'aGk='"),
            "none": show("code: 201"),
            "moved": show("code: 302, body: ''"),
            "refused": show("code: 401, body: 'x'"),
        },
        "updates": {
            "text": update("null", "body: 'x'"),
            "json": update("null", "json: {}"),
            "writes": update("{_id: 'written'}", "json: {}"),
        },
        "lists": {
            "rows": format!("function (head, req) {{ start({{headers: {headers}}}); send('x'); while (getRow()) send('y'); }}"),
            "late": format!("function (head, req) {{ start({{headers: {headers}}}); getRow(); throw 'x'; }}"),
        },
    });
    server.ok("PUT", "/db/_design/d", design).await;
    let rewrite = format!("function (req) {{ return {{code: 200, headers: {headers}, body: '<script>1</script>'}}; }}");
    server.ok("PUT", "/db/_design/r", json!({ "rewrites": rewrite })).await;
    for (method, path) in [
        ("GET", "d/_show/text"),
        ("HEAD", "d/_show/text"),
        ("GET", "d/_show/json"),
        ("GET", "d/_show/base64"),
        ("GET", "d/_show/none"),
        ("GET", "d/_show/moved"),
        ("GET", "d/_show/refused"),
        ("POST", "d/_update/text"),
        ("POST", "d/_update/json"),
        ("POST", "d/_list/rows/_all_docs"),
        ("GET", "d/_list/rows/_all_docs"),
        ("HEAD", "d/_list/rows/_all_docs"),
        ("GET", "d/_list/late/_all_docs"),
        ("GET", "r/_rewrite/x"),
        ("PUT", "r/_rewrite/x"),
    ] {
        let body: &[u8] = if method == "POST" { b"{\"keys\":[\"a\"]}" } else { b"" };
        let answer = server.connect().await.call(method, &format!("/db/_design/{path}"), &[], body).await;
        is_sandboxed(&answer, path);
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{method} {path}");
        let chosen = (answer.header("content-type"), answer.header("x-mine"));
        assert_eq!(chosen, (Some("text/html"), Some("mine")), "{method} {path} {answer:?}");
    }
    let mut client = server.connect().await;
    let written = client.call("POST", "/db/_design/d/_update/writes", &[], b"{}").await;
    is_sandboxed(&written, "writes");
    assert_eq!((written.status, written.header("x-couch-id")), (201, Some("written")));
    // Answers without tenant content have them too.
    let tag = client.call("GET", "/db/_design/d/_show/text", &[], b"").await.header("etag").unwrap().to_owned();
    let cached = client.call("GET", "/db/_design/d/_show/text", &[("if-none-match", &tag)], b"").await;
    assert_eq!(cached.status, 304);
    is_sandboxed(&cached, "cached");
    assert_eq!(cached.header("cross-origin-resource-policy"), Some("same-origin"));
}

#[tokio::test]
async fn attachments_are_sandboxed() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    for (kind, sent) in [
        ("text/html", "text/html"),
        ("image/svg+xml", "image/svg+xml"),
        ("application/xhtml+xml", "application/xhtml+xml"),
        ("multipart/x-mixed-replace; boundary=a", "application/octet-stream"),
    ] {
        let file = json!({"_attachments": {"a": {"content_type": kind, "data": "PGI+"}}}).to_string();
        let id = format!("/db/{}", kind.replace(['/', '+', ';', ' ', '='], "-"));
        assert_eq!(client.call("PUT", &id, &[], file.as_bytes()).await.status, 201);
        let answer = client.call("GET", &format!("{id}/a"), &[], b"").await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(sent)));
        is_sandboxed(&answer, kind);
        // Pages of other origins may embed them.
        assert_eq!(answer.header("cross-origin-resource-policy"), None);
        let tag = answer.header("etag").unwrap().to_owned();
        let cached = client.call("GET", &format!("{id}/a"), &[("if-none-match", &tag)], b"").await;
        assert_eq!(cached.status, 304);
        is_sandboxed(&cached, kind);
    }
}

#[tokio::test]
async fn functions_see_no_credentials() {
    let setting = |key: &str, text: &str| ("chttpd_auth".to_owned(), key.to_owned(), text.to_owned());
    let server = Store::new()
        .serve(ServerOptions {
            // Names that do not tell their purpose.
            settings: vec![
                setting("x_auth_username", "X-Remote-User"),
                setting("x_auth_roles", "X-Remote-Groups"),
                setting("x_auth_token", "X-Remote-Proof"),
            ],
            ..ServerOptions::with_admin()
        })
        .await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/db", &[ADMIN], b"").await.status, 201);
    let design = json!({
        "shows": {"s": "function (doc, req) { return JSON.stringify(req); }"},
        "updates": {"u": "function (doc, req) { return [null, JSON.stringify(req)]; }"},
        "lists": {"l": "function (head, req) { return JSON.stringify(req); }"},
        "filters": {"f": "function (doc, req) { var text = JSON.stringify(req); \
                    return text.indexOf('visible') > 0 && text.indexOf('sesame') < 0 && text.indexOf('YWRtaW46') < 0; }"},
    });
    assert_eq!(client.call("PUT", "/db/_design/d", &[ADMIN], design.to_string().as_bytes()).await.status, 201);
    let rewrites = json!({"rewrites": "function (req) { return {code: 200, body: JSON.stringify(req)}; }"});
    assert_eq!(client.call("PUT", "/db/_design/r", &[ADMIN], rewrites.to_string().as_bytes()).await.status, 201);
    let headers = [
        ADMIN,
        ("proxy-authorization", "sesame"),
        ("cookie", "other=sesame"),
        ("x-auth-couchdb-username", "sesame"),
        ("x-auth-couchdb-roles", "sesame"),
        ("x-auth-couchdb-token", "sesame"),
        ("x-remote-user", "sesame"),
        ("x-remote-groups", "sesame"),
        ("x-remote-proof", "sesame"),
        ("x-forwarded-access-token", "sesame"),
        ("cf-access-jwt-assertion", "sesame"),
        ("x-api-key", "sesame"),
        ("x-mine", "visible"),
    ];
    for (method, path) in
        [("GET", "d/_show/s"), ("POST", "d/_update/u"), ("GET", "d/_list/l/_all_docs"), ("GET", "r/_rewrite/x")]
    {
        let answer = client.call(method, &format!("/db/_design/{path}"), &headers, b"").await;
        assert_eq!((answer.status, answer.body.contains("visible")), (200, true), "{path} {answer:?}");
        for secret in ["sesame", "YWRtaW46"] {
            assert!(!answer.body.contains(secret), "{path} {answer:?}");
        }
    }
    let changes = client.call("GET", "/db/_changes?filter=d/f", &headers, b"").await.json();
    assert_eq!(changes["results"].as_array().map(Vec::len), Some(2), "{changes}");
}
