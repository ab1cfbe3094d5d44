//! `_session`: cookies and wrong passwords.

use std::io::Write;
use std::time::{Duration, Instant};

use flatbed_auth::PasswordHash;
use flatbed_couch::CouchOptions;
use flatbed_http::Cors;
use flatbed_layer::json::{self, Value};
use flatbed_testkit::pass;
use tokio::io::AsyncWriteExt;

use crate::support::{ADMIN, Answer, Client, Running, ServerOptions, Store, soon, within_a_second};

const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Returns a user document's text.
fn user(name: &str, password: &str, salt: &str, rev: Option<&str>) -> Vec<u8> {
    let members = PasswordHash::salted(password, salt, 600_000).put_into(Vec::new());
    let mut text = json::to_vec(&Value::Object(members));
    text.pop();
    let rev = rev.map(|rev| format!(r#","_rev":"{rev}""#)).unwrap_or_default();
    text.extend_from_slice(format!(r#","name":"{name}","type":"user","roles":["r"]{rev}}}"#).as_bytes());
    text
}

/// Returns an answer's cookie as a browser sends it.
fn cookie(answer: &Answer) -> String {
    let header = answer.header("set-cookie").expect("a cookie");
    header.split(';').next().unwrap().to_owned()
}

async fn sign_in(client: &mut Client, name: &str, password: &str) -> Answer {
    let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
    client.call("POST", "/_session", &[JSON], body.as_bytes()).await
}

async fn who(client: &mut Client, cookie: &str) -> (u16, Option<String>) {
    let answer = client.call("GET", "/_session", &[("cookie", cookie)], b"").await;
    (answer.status, answer.json()["userCtx"]["name"].as_str().map(str::to_owned))
}

/// At the server that wrote the change, it applies at once rather than within a second.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_changed_is_another_at_once() {
    const ANNA: (&str, &str) = ("authorization", "Basic YW5uYTpwdw==");
    let server = Store::new().serve(ServerOptions::with_admin()).await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/_users", &[ADMIN], b"").await.status, 201);
    let text = String::from_utf8(user("anna", "pw", "s", None)).unwrap();
    let mut rev = None;
    for (method, path, role) in [
        ("PUT", "/_users/org.couchdb.user:anna", "first"),
        ("PUT", "/_users/org.couchdb.user:anna", "second"),
        ("POST", "/_users/_bulk_docs", "third"),
    ] {
        let named =
            rev.map(|rev: String| format!(r#""_id":"org.couchdb.user:anna","_rev":"{rev}","#)).unwrap_or_default();
        let text = text.replacen('{', &format!("{{{named}"), 1).replace(r#"["r"]"#, &format!(r#"["{role}"]"#));
        let body = if method == "POST" { format!(r#"{{"docs":[{text}]}}"#) } else { text };
        let written = client.call(method, path, &[ADMIN, JSON], body.as_bytes()).await;
        let answer = written.json();
        let row = if method == "POST" { &answer[0] } else { &answer };
        rev = Some(row["rev"].as_str().unwrap_or_else(|| panic!("{written:?}")).to_owned());
        let found = client.call("GET", "/_session", &[ANNA], b"").await.json();
        assert_eq!(found["userCtx"]["roles"], serde_json::json!([role]), "{path}");
    }
    let purged = serde_json::json!({"org.couchdb.user:anna": [rev]}).to_string();
    assert_eq!(client.call("POST", "/_users/_purge", &[ADMIN, JSON], purged.as_bytes()).await.status, 201);
    assert_eq!(client.call("GET", "/_session", &[ANNA], b"").await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_goes_on_and_ends() {
    let store = Store::new();
    let server = store.serve(ServerOptions::with_admin()).await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/_users", &[ADMIN], b"").await.status, 201);
    let path = "/_users/org.couchdb.user:anna";
    let written = client.call("PUT", path, &[ADMIN, JSON], &user("anna", "pw", "s", None)).await;
    assert_eq!(written.status, 201);
    let rev = written.text("rev");

    let begun = sign_in(&mut client, "anna", "pw").await;
    assert_eq!((begun.status, begun.json()), (200, serde_json::json!({"ok": true, "name": "anna", "roles": ["r"]})));
    let header = begun.header("set-cookie").unwrap();
    assert!(header.contains("; Max-Age=600; Path=/; HttpOnly") && !header.contains("Secure"), "{header}");
    let session = cookie(&begun);
    let found = client.call("GET", "/_session", &[("cookie", &session)], b"").await;
    assert_eq!(
        found.json(),
        serde_json::json!({
            "ok": true,
            "userCtx": {"name": "anna", "roles": ["r"]},
            "info": {"authentication_handlers": ["cookie", "default"], "authenticated": "cookie"},
        })
    );
    assert_eq!(found.header("set-cookie"), None);
    // A cookie takes precedence over a password.
    let both = client.call("GET", "/_session", &[ADMIN, ("cookie", &session)], b"").await;
    assert_eq!(both.json()["userCtx"]["name"], "anna");

    let form = client.call("POST", "/_session?next=/db%0Ax", &[FORM], b"name=anna&password=p%77").await;
    assert_eq!(form.status, 302);
    assert!(form.header("location").unwrap().ends_with("/db%0Ax"));
    let next = "/_session?next=/db/%7Ba%7D%7C%22%3Cb%3E%5E%60%5C%5B%5D%20%C3%A9";
    let kept = client.call("POST", next, &[FORM], b"name=anna&password=p%77").await;
    assert!(kept.header("location").unwrap().ends_with("/db/{a}|\"<b>^`\\[]%20%C3%A9"), "{kept:?}");
    assert_eq!(who(&mut client, &cookie(&form)).await, (200, Some("anna".to_owned())));
    for (path, headers, body, status) in [
        ("/_session", JSON, r#"{"name":"anna","password":"no"}"#, 401),
        ("/_session", JSON, r#"{"name":"nobody","password":"pw"}"#, 401),
        ("/_session?fail=/x", JSON, r#"{"name":"anna"}"#, 302),
        ("/_session?next=http://example.com/", JSON, r#"{"name":"anna","password":"pw"}"#, 400),
        ("/_session", JSON, r#"{"password":"pw"}"#, 400),
        ("/_session", JSON, "[]", 400),
        ("/_session", JSON, r#"{"name":"#, 400),
        ("/_session", ("content-type", "text/plain"), "name=anna&password=pw", 415),
        ("/_session", FORM, "", 400),
    ] {
        let answer = client.call("POST", path, &[headers], body.as_bytes()).await;
        assert_eq!(answer.status, status, "{path} {body}");
        let cleared = answer.header("set-cookie").is_some_and(|header| header.starts_with("AuthSession=; "));
        assert_eq!(cleared, [401, 302].contains(&status), "{path} {body}");
    }
    let ended = client.call("DELETE", "/_session", &[("cookie", &session)], b"").await;
    assert_eq!((ended.status, cookie(&ended)), (200, "AuthSession=".to_owned()));
    for (sent, expected) in [
        ("AuthSession=", (200, None)),
        ("AuthSession=nonsense", (400, None)),
        ("AuthSession=YWRtaW46NUY6", (200, None)),
        (&*format!("other=1; {session}"), (200, Some("anna".to_owned()))),
        (&*format!("{session}x"), (200, None)),
    ] {
        assert_eq!(who(&mut client, sent).await, expected, "{sent}");
    }
    assert_eq!(client.call("PUT", "/_session", &[JSON], b"{}").await.status, 405);
    assert_eq!(client.call("GET", "/_session?basic=true", &[], b"").await.status, 401);

    // A changed password ends the session within a second, also at another server.
    let other = store.serve(ServerOptions::with_admin()).await;
    let mut elsewhere = other.connect().await;
    assert_eq!(who(&mut elsewhere, &session).await, (200, Some("anna".to_owned())));
    let changed = client.call("PUT", path, &[ADMIN, JSON], &user("anna", "new", "t", Some(&rev))).await;
    assert_eq!(changed.status, 201);
    // The new password works at once.
    assert_eq!(sign_in(&mut elsewhere, "anna", "new").await.status, 200);
    for client in [&mut client, &mut elsewhere] {
        within_a_second("its session ends", async || who(client, &session).await == (200, None)).await;
    }
    server.stop().await;
    other.stop().await;
}

fn compressed(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_by_a_body_that_is_compressed() {
    let server = Store::new().serve(ServerOptions::with_admin()).await;
    const GZIP: (&str, &str) = ("content-encoding", "gzip");
    let right = br#"{"name":"admin","password":"password"}"#;
    let large = [right.as_slice(), &[b' '; 1 << 20]].concat();
    for (headers, body, status) in [
        ([JSON, GZIP], compressed(right), 200),
        ([FORM, GZIP], compressed(b"name=admin&password=password"), 200),
        ([JSON, GZIP], compressed(br#"{"name":"admin","password":"wrong"}"#), 401),
        ([JSON, GZIP], right.to_vec(), 400),
        // Small as sent, but larger than any name and password.
        ([JSON, GZIP], compressed(&large), 413),
    ] {
        let answer = server.connect().await.call("POST", "/_session", &headers, &body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(
            answer.header("set-cookie").is_some_and(|cookie| !cookie.starts_with("AuthSession=;")),
            status == 200
        );
    }
    server.stop().await;
}

/// Sign-in bodies need no credentials, so their timeout is shorter than a document's.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_begin_by_a_body_that_takes_too_long() {
    let store = Store::new();
    let body = br#"{"name":"admin","password":"password"}"#;
    let head = format!(
        "POST /_session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // Occasional bytes do not reset the timeout.
    let send = async |server: &Running| {
        let mut client = server.connect().await;
        let began = Instant::now();
        client.stream.write_all(head.as_bytes()).await.unwrap();
        for byte in body.chunks(1) {
            if client.stream.write_all(byte).await.is_err() {
                break;
            }
            pass(Duration::from_millis(50)).await;
        }
        (soon(client.answer(false)).await, began.elapsed())
    };
    assert_eq!(CouchOptions::default().session_body_max, Duration::from_secs(30));
    let least = Duration::from_secs(1);
    let server = store.serve(ServerOptions { session_body_max: least, ..ServerOptions::with_admin() }).await;
    let (answer, took) = send(&server).await;
    assert_eq!((answer.status, answer.header("set-cookie")), (408, None), "{answer:?}");
    assert!(took >= least, "{took:?}");
    server.stop().await;
    // With a longer timeout the same body signs in.
    let server = store
        .serve(ServerOptions { session_body_max: Duration::from_secs(3_600), ..ServerOptions::with_admin() })
        .await;
    assert_eq!(send(&server).await.0.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_secret_renews_what_the_old_one_has_signed() {
    let store = Store::new();
    let server = store.serve(ServerOptions::with_admin()).await;
    let mut client = server.connect().await;
    let begun = sign_in(&mut client, "admin", "password").await;
    assert_eq!(begun.json()["roles"][0], "_admin");
    let old = cookie(&begun);
    store.layer().await.rotate_secret().await.unwrap();
    // On any answer, and only once.
    let mut new = None;
    within_a_second("the new secret signs", async || {
        let answer = client.call("GET", "/db", &[("cookie", &old)], b"").await;
        assert_eq!(answer.status, 404);
        new = answer.header("set-cookie").map(|_| cookie(&answer));
        new.is_some()
    })
    .await;
    let new = new.unwrap();
    assert_ne!(new, old);
    let again = client.call("GET", "/_all_dbs", &[("cookie", &new)], b"").await;
    assert_eq!((again.status, again.header("set-cookie")), (200, None));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_are_few_and_their_address_is_locked_out() {
    let server = Store::new().serve(ServerOptions::with_admin()).await;
    let mut client = server.connect().await;
    let session = cookie(&sign_in(&mut client, "admin", "password").await);
    for at in 0..5 {
        assert_eq!(sign_in(&mut client, "admin", &format!("wrong{at}")).await.status, 401);
    }
    let locked = sign_in(&mut client, "admin", "wrong").await;
    let reason = "Account is temporarily locked due to multiple authentication failures";
    assert_eq!((locked.status, locked.text("reason")), (403, reason.to_owned()));
    // Remembered passwords and sessions need no check.
    assert_eq!(client.call("GET", "/_all_dbs", &[ADMIN], b"").await.status, 200);
    assert_eq!(client.call("GET", "/_all_dbs", &[("cookie", &session)], b"").await.status, 200);
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(server.connect().await);
    }
    let asked = clients.iter_mut().enumerate().map(|(at, client)| async move {
        let answer = sign_in(client, &format!("nobody{at}"), "wrong").await;
        (answer.status, answer.text("error"))
    });
    let found = futures_util::future::join_all(asked).await;
    assert!(found.iter().all(|(status, _)| [401, 429].contains(status)), "{found:?}");
    assert!(found.contains(&(429, "too_many_requests".to_owned())) && found.iter().any(|(status, _)| *status == 401));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_administrators_nothing_is_signed() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let answer = sign_in(&mut server.connect().await, "anna", "s3cret").await;
    assert_eq!((answer.status, answer.header("set-cookie")), (200, None), "{answer:?}");
    assert_eq!(answer.body.trim_end(), r#"{"ok":true,"name":null,"roles":["_admin"]}"#);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_under_another_name_of_this_machine_is_told_that_it_has_no_session() {
    let store = Store::new();
    let origins = ["http://localhost:3000", "http://127.0.0.1:3000", "https://app.example"];
    let cors = Cors { origins: origins.map(str::to_owned).into(), credentials: true, ..Cors::default() };
    let server = store.serve(ServerOptions { cors, ..ServerOptions::guarded_by("root", "secret") }).await;
    for (origin, host, is_warned) in [
        (Some("http://localhost:3000"), "127.0.0.1:5984", true),
        (Some("http://127.0.0.1:3000"), "localhost:5984", true),
        (Some("http://127.0.0.1:3000"), "127.0.0.1:5984", false),
        (Some("http://localhost:3000"), "LOCALHOST", false),
        (Some("https://app.example"), "127.0.0.1:5984", false),
        (None, "127.0.0.1:5984", false),
    ] {
        let body = r#"{"name":"root","password":"secret"}"#;
        let origin_line = origin.map(|origin| format!("origin: {origin}\r\n")).unwrap_or_default();
        let length = body.len();
        let request = format!(
            "POST /_session HTTP/1.1\r\nhost: {host}\r\n{origin_line}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let mut client = server.connect().await;
        client.stream.write_all(request.as_bytes()).await.unwrap();
        let answer = soon(client.answer(false)).await;
        assert_eq!(answer.status, 200, "{origin:?} {host}: {answer:?}");
        let warning = answer.header("warning").unwrap_or_default();
        assert_eq!(warning.contains("Browsers take the two for different sites"), is_warned, "{origin:?} {host}");
    }
}
