//! Proxies that assert a user, trusted by the connection's address and by the server's secret.

use flatbed_http::Proxies;
use serde_json::{Value, json};

use crate::support::{ADMIN, Running, ServerOptions, Store, within_a_second};

const NAME: &str = "x-auth-couchdb-username";
const ROLES: &str = "x-auth-couchdb-roles";
const TOKEN: &str = "x-auth-couchdb-token";

fn options(peers: &str) -> ServerOptions {
    let text = |section: &str, key: &str, text: &str| (section.to_owned(), key.to_owned(), text.to_owned());
    ServerOptions { settings: vec![text("proxy_auth", "peers", peers)], ..ServerOptions::with_admin() }
}

/// Returns the token that a proxy computes from its secret.
async fn token(store: &Store, name: &str, algorithm: ring::hmac::Algorithm) -> String {
    let secrets = store.layer().await.sign_in_state().await.unwrap().0.secrets;
    let tag = ring::hmac::sign(&ring::hmac::Key::new(algorithm, &secrets[0].bytes), name.as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns `name: roles` and the authentication method.
async fn who(server: &Running, headers: &[(&str, &str)]) -> String {
    let answer = server.connect().await.call("GET", "/_session", headers, b"").await;
    let found = answer.json();
    let roles: Vec<&str> = found["userCtx"]["roles"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    match found["userCtx"]["name"].as_str() {
        None => "nobody".to_owned(),
        Some(name) => format!("{name}: {} by {}", roles.join(","), found["info"]["authenticated"].as_str().unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxys_right_and_wrong_word() {
    let store = Store::new();
    let server = store.serve(options("127.0.0.1")).await;
    let (right, sha1) = (
        token(&store, "anna", ring::hmac::HMAC_SHA256).await,
        token(&store, "anna", ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY).await,
    );
    for token in [&right, &sha1] {
        let said = [(NAME, "anna"), (ROLES, "friends,_admin,r"), (TOKEN, token)];
        assert_eq!(who(&server, &said).await, "anna: friends,r by proxy");
    }
    let upper = right.to_uppercase();
    let wrong = [
        vec![(NAME, "anna")],
        vec![(NAME, "anna"), (TOKEN, "")],
        vec![(NAME, "bob"), (TOKEN, &right)],
        vec![(NAME, "admin"), (TOKEN, &right)],
        vec![(NAME, "anna"), (TOKEN, right.get(..63).unwrap())],
        vec![(NAME, "anna"), (TOKEN, &upper)],
        vec![(ROLES, "friends"), (TOKEN, &right)],
    ];
    for said in wrong {
        assert_eq!(who(&server, &said).await, "nobody", "{said:?}");
    }

    // Their rights follow from their roles.
    let mut admin = server.connect().await;
    assert_eq!(admin.call("PUT", "/db", &[ADMIN], b"").await.status, 201);
    let members = json!({"members": {"roles": ["friends"]}}).to_string();
    assert_eq!(admin.call("PUT", "/db/_security", &[ADMIN], members.as_bytes()).await.status, 200);
    let mut client = server.connect().await;
    for (roles, status) in [("friends", 201), ("strangers", 403), ("_admin", 403)] {
        let said = [(NAME, "anna"), (ROLES, roles), (TOKEN, &*right)];
        let path = format!("/db/{roles}");
        assert_eq!(client.call("PUT", &path, &said, b"{}").await.status, status, "{roles}");
        assert_eq!(client.call("GET", "/_all_dbs", &said, b"").await.status, 401);
    }

    // A replaced secret stays valid for the lifetime of a session; the new one is valid at once.
    store.layer().await.rotate_secret().await.unwrap();
    let new = token(&store, "anna", ring::hmac::HMAC_SHA256).await;
    for token in [&new, &right] {
        let said = [(NAME, "anna"), (TOKEN, &**token)];
        within_a_second("it counts", async || who(&server, &said).await == "anna:  by proxy").await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_named_says_nothing() {
    let store = Store::new();
    // The test's address may forward client addresses but not assert users.
    let forwarding = Proxies { forwarding: "127.0.0.1".parse().unwrap(), ..Proxies::default() };
    let elsewhere = store.serve(ServerOptions { proxies: forwarding.clone(), ..options("10.0.0.0/8") }).await;
    let right = token(&store, "anna", ring::hmac::HMAC_SHA256).await;
    let said = [(NAME, "anna"), (ROLES, "friends"), (TOKEN, &*right)];
    assert_eq!(who(&elsewhere, &said).await, "nobody");
    for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let said = [said.as_slice(), &[(header, "10.0.0.1")]].concat();
        assert_eq!(who(&elsewhere, &said).await, "nobody", "{header}");
    }
    // The connection's address counts, not the forwarded one.
    let named = store.serve(ServerOptions { proxies: forwarding, ..options("127.0.0.1") }).await;
    let through = [said.as_slice(), &[("x-forwarded-for", "203.0.113.1")]].concat();
    assert_eq!(who(&named, &through).await, "anna: friends by proxy");
    // Without trusted proxies the headers have no effect.
    let none = store.serve(options("")).await;
    assert_eq!(who(&none, &said).await, "nobody");
    for server in [elsewhere, named, none] {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trusted_proxies_and_other_headers() {
    let store = Store::new();
    let mut options = options("127.0.0.0/8");
    for (section, key, text) in [
        ("proxy_auth", "trusts_system_roles", "true"),
        ("chttpd_auth", "x_auth_username", "X-Name"),
        ("chttpd_auth", "x_auth_roles", "X-Roles"),
        ("chttpd_auth", "x_auth_token", "X-Token"),
    ] {
        options.settings.push((section.to_owned(), key.to_owned(), text.to_owned()));
    }
    let server = store.serve(options).await;
    let right = token(&store, "anna", ring::hmac::HMAC_SHA256).await;
    let said = [("x-name", "anna"), ("x-roles", "_admin"), ("x-token", &*right)];
    assert_eq!(who(&server, &said).await, "anna: _admin by proxy");
    assert_eq!(server.connect().await.call("PUT", "/db", &said, b"").await.status, 201);
    assert_eq!(who(&server, &[(NAME, "anna"), (ROLES, "r"), (TOKEN, &right)]).await, "nobody");
    server.stop().await;
}
