//! Documents with attachments as multipart bodies, beyond CouchDB's recorded answers.

use std::time::{Duration, Instant};

use flatbed_layer::check::check_database;
use flatbed_layer::{Database, LayerOptions};
use flatbed_testkit::{pass, until};

use crate::support::{Answer, Client, ServerOptions, Store, soon};
use tokio::io::AsyncWriteExt;

const RELATED: (&str, &str) = ("content-type", "multipart/related; boundary=\"abc\"");

/// Builds a body of a JSON part and further parts with these headers; `|` is a line end.
fn body(json: &str, parts: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("--abc\r\nContent-Type: application/json\r\n\r\n{json}");
    for (headers, data) in parts {
        let headers = headers.split('|').filter(|line| !line.is_empty()).map(|line| format!("{line}\r\n"));
        text.push_str(&format!("\r\n--abc\r\n{}\r\n{data}", headers.collect::<String>()));
    }
    text.push_str("\r\n--abc--");
    text.into_bytes()
}

/// Returns the JSON of a document with attachments that follow.
fn follows(names: &[&str]) -> String {
    let one = |name: &&str| format!("\"{name}\":{{\"content_type\":\"a/b\",\"follows\":true}}");
    format!("{{\"_attachments\":{{{}}}}}", names.iter().map(one).collect::<Vec<_>>().join(","))
}

async fn put(client: &mut Client, path: &str, body: &[u8]) -> Answer {
    client.call("PUT", path, &[RELATED], body).await
}

async fn data(client: &mut Client, path: &str) -> String {
    client.call("GET", path, &[], b"").await.body
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_follows() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    // By order without a header; by name in another order; a name in another encoding; equal data.
    let order = body(&follows(&["a", "b/c"]), &[("", "one"), ("", "two")]);
    let made = put(&mut client, "/db/order", &order).await;
    assert_eq!((made.status, made.header("location")), (201, Some("http://localhost/db/order")), "{made:?}");
    let file = |name: &str| format!("Content-Disposition: attachment; filename=\"{name}\"");
    let (a, bc) = (file("a"), file("b/c"));
    let names = body(&follows(&["a", "b/c"]), &[(&bc, "two"), (&a, "one")]);
    assert_eq!(put(&mut client, "/db/names", &names).await.status, 201);
    let odd = body(&follows(&["a", "b/c"]), &[(&file("=?x?="), "one"), (&bc, "two")]);
    assert_eq!(put(&mut client, "/db/odd", &odd).await.status, 201);
    for id in ["order", "names", "odd"] {
        assert_eq!(data(&mut client, &format!("/db/{id}/a")).await, "one");
        assert_eq!(data(&mut client, &format!("/db/{id}/b/c")).await, "two");
        assert_eq!(data(&mut client, &format!("/db/{id}/b%2Fc")).await, "two");
    }
    // A replicated revision with inline, stub and following attachments.
    let json = r#"{"_revisions":{"start":5,"ids":["y","x"]},"_attachments":{"i":{"data":"b25l"},
        "f":{"content_type":"a/b","follows":true,"revpos":4,"length":3,"digest":"md5-uKnBYkS0N4wuxAq5rP2PbQ=="}}}"#;
    let digest = json.replace("uKnBYkS0N4wuxAq5rP2PbQ==", &md5_of(&mut client, "/db/order", "b/c").await);
    let foreign = put(&mut client, "/db/foreign?new_edits=false", &body(&digest, &[("", "two")])).await;
    assert_eq!((foreign.status, foreign.text("rev").as_str()), (201, "5-y"));
    let again = put(&mut client, "/db/foreign?new_edits=false", &body(&digest, &[("", "two")])).await;
    assert_eq!((again.status, again.text("rev").as_str()), (201, "5-y"));
    let shown = client.call("GET", "/db/foreign?attachments=true&revs=true", &[("accept", "multipart/*")], b"").await;
    let boundary = shown.header("content-type").and_then(|kind| kind.strip_prefix("multipart/related; boundary=\""));
    let boundary = boundary.expect("multipart").trim_end_matches('"').to_owned();
    assert_eq!(shown.body.matches("\"follows\":true").count(), 2);
    assert!(shown.body.contains("\"revpos\":4"), "{shown:?}");
    // The answer is accepted as a request.
    let kind = format!("multipart/related; boundary={boundary}");
    let copied =
        client.call("PUT", "/db/copied?new_edits=false", &[("content-type", &kind)], shown.body.as_bytes()).await;
    assert_eq!((copied.status, copied.text("rev").as_str()), (201, "5-y"));
    assert_eq!(data(&mut client, "/db/copied/f").await, "two");
    server.stop_clean().await;
}

/// Returns an attachment's digest without `md5-`.
async fn md5_of(client: &mut Client, path: &str, name: &str) -> String {
    let document = client.call("GET", path, &[("accept", "application/json")], b"").await.json();
    document["_attachments"][name]["digest"].as_str().expect("a digest").replace("md5-", "")
}

/// Waits until nothing is staged. Refused uploads are removed after the answer.
async fn no_upload_stays(database: &Database) {
    let is_swept = async || check_database(database, |_| {}).await.unwrap().staged_uploads == 0;
    until("nothing is staged", is_swept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_what_is_refused_nothing_stays() {
    let store = Store::new();
    let server = store.serve_database().await;
    let rev = server.call("PUT", "/db/there", r#"{"_attachments":{"i":{"data":"b25l"}}}"#).await.text("rev");
    let layer = store.layer().await;
    let one = follows(&["a"]);
    let with = |member: &str| one.replace("\"follows\"", &format!("{member},\"follows\""));
    let cut = |body: &[u8]| body[..body.len() - 2].to_vec();
    for (path, sent, status, error) in [
        ("/db/d", body(&one, &[]), 400, "bad_request"),
        ("/db/d", body(&one, &[("", "x"), ("", "y")]), 400, "bad_request"),
        ("/db/d", body("{}", &[("", "x")]), 400, "bad_request"),
        ("/db/d", body(&with("\"length\":2"), &[("", "x")]), 400, "bad_request"),
        (
            "/db/d",
            body(&with("\"digest\":\"md5-xxxxxxxxxxxxxxxxxxxxxx==\""), &[("", "x")]),
            400,
            "content_md5_mismatch",
        ),
        ("/db/d", body(&with("\"encoding\":\"gzip\""), &[("", "no gzip")]), 400, "bad_request"),
        ("/db/d", body("{", &[]), 400, "bad_request"),
        ("/db/d", cut(&body(&one, &[("", "x")])), 400, "bad_request"),
        (
            "/db/d",
            String::from_utf8(body(&one, &[("", "x")])).unwrap().replace("--abc", "--ab").into(),
            400,
            "bad_request",
        ),
        ("/db/d", body(&one, &[("no header", "x")]), 400, "bad_request"),
        ("/db/d", b"--abc--".to_vec(), 400, "bad_request"),
        ("/db/d", b"--abc\r\nContent-Type: text/plain\r\n\r\n{}\r\n--abc--".to_vec(), 415, "bad_ctype"),
        ("/db/_d", body(&one, &[("", "x")]), 400, "illegal_docid"),
        ("/db/there", body(&one, &[("", "x")]), 409, "conflict"),
        ("/db/there?rev=1-x", body(&one, &[("", "x")]), 409, "conflict"),
        (
            "/db/d",
            body(r#"{"_attachments":{"s":{"stub":true},"a":{"follows":true}}}"#, &[("", "x")]),
            412,
            "missing_stub",
        ),
        ("/none/d", body(&one, &[("", "x")]), 404, "not_found"),
    ] {
        // One connection per case, so a refused body must be read to its end.
        let mut client = server.connect().await;
        let answer = put(&mut client, path, &sent).await;
        let sent = String::from_utf8_lossy(&sent);
        assert_eq!((answer.status, answer.text("error").as_str()), (status, error), "{sent} {answer:?}");
        assert_eq!(client.call("GET", "/db/d", &[], b"").await.status, 404, "{sent}");
    }
    for kind in ["multipart/related", "multipart/related; boundary=\"\""] {
        let answer =
            server.connect().await.call("PUT", "/db/d", &[("content-type", kind)], &body(&one, &[("", "x")])).await;
        assert_eq!(answer.status, 400);
    }
    // A client that disconnects within its data.
    let mut client = server.connect().await;
    let large = body(&one, &[("", &"x".repeat(1_000_000))]);
    let length = large.len().to_string();
    client.send("PUT", "/db/d", &[RELATED, ("content-length", &length)], b"").await;
    client.stream.write_all(&large[..900_000]).await.unwrap();
    drop(client);
    // Refused uploads are removed at once, not by the hourly sweeper.
    no_upload_stays(&layer.database("db")).await;
    let there = server.call("GET", "/db/there", "").await;
    assert_eq!(there.text("_rev"), rev);
    server.stop().await;
}

/// A body that takes longer than the lifetime of idle uploads.
#[tokio::test(flavor = "multi_thread")]
async fn what_came_early_in_a_slow_body_is_kept() {
    let store = Store::new();
    let broken_after = Duration::from_secs(6);
    let options = LayerOptions { uploads_broken_after: broken_after, ..LayerOptions::default() };
    let layer = store.layer_with(options).await;
    let server = store.serve_on(layer.clone(), ServerOptions::default()).await;
    server.call("PUT", "/db", "").await;
    let mut client = server.connect().await;
    // The second part is staged in part and continues slowly.
    let (first, second) = ("1".repeat(1_000), "2".repeat(500_000));
    let whole = body(&follows(&["a", "b"]), &[("", &first), ("", &second)]);
    let length = whole.len().to_string();
    client.send("PUT", "/db/d", &[RELATED, ("content-length", &length)], b"").await;
    let (early, late) = whole.split_at(480_000);
    client.stream.write_all(early).await.unwrap();
    for piece in late.chunks(late.len() / 60 + 1) {
        let asked = Instant::now();
        pass(Duration::from_millis(120)).await;
        client.stream.write_all(piece).await.unwrap();
        layer.sweep_broken_uploads(&layer.actor, broken_after).await.unwrap();
        // If the machine stalls for that long, the test proves nothing.
        if asked.elapsed() > broken_after / 4 {
            return;
        }
    }
    let answer = soon(client.answer(false)).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(data(&mut client, "/db/d/a").await, first);
    assert_eq!(data(&mut client, "/db/d/b").await, second);
    no_upload_stays(&layer.database("db")).await;
    server.stop().await;
}

/// Builds a form's body from headers as in [`body`] and data.
fn form(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = String::new();
    for (headers, data) in fields {
        let headers = headers.replace('|', "\r\n");
        text.push_str(&format!("--abc\r\nContent-Disposition: form-data; {headers}\r\n\r\n{data}\r\n"));
    }
    text.push_str("--abc--");
    text.into_bytes()
}

async fn post(client: &mut Client, path: &str, fields: &[(&str, &str)]) -> Answer {
    let headers = [("content-type", "multipart/form-data; boundary=abc"), ("referer", "http://localhost/page?x")];
    client.call("POST", path, &headers, &form(fields)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_of_a_page() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    let document = r#"{"v":1,"_attachments":{"old":{"data":"b25l"},"kept":{"data":"b25l"}}}"#;
    let first = client.call("PUT", "/db/d", &[], document.as_bytes()).await.text("rev");
    // Files before the revision, one of which replaces an existing attachment.
    let new = "name=\"_attachments\"; filename=\"new é.txt\"|Content-Type: text/plain; charset=utf-8";
    let old = "name=\"_attachments\"; filename=\"old\"";
    let none_chosen = "name=\"_attachments\"; filename=\"\"|Content-Type: application/octet-stream";
    let fields =
        [(new, "new data"), (none_chosen, ""), ("name=\"other\"", "x"), (old, "two"), ("name=\"_rev\"", &first)];
    let made = post(&mut client, "/db/d", &fields).await;
    assert_eq!((made.status, made.text("id").as_str()), (201, "d"), "{made:?}");
    let rev = made.text("rev");
    assert_eq!(made.header("etag"), Some(format!("\"{rev}\"").as_str()));
    assert_eq!(made.header("location"), None);
    let shown = client.call("GET", "/db/d", &[], b"").await.json();
    assert_eq!((&shown["_rev"], &shown["v"]), (&rev.as_str().into(), &1.into()));
    let attached = |name: &str, member: &str| shown["_attachments"][name][member].clone();
    assert_eq!(attached("new é.txt", "content_type"), "text/plain");
    assert_eq!((attached("new é.txt", "revpos"), attached("kept", "revpos")), (2.into(), 1.into()));
    assert_eq!(attached("old", "content_type"), "application/octet-stream");
    assert_eq!(shown["_attachments"].as_object().map(|list| list.len()), Some(3));
    for (name, expected) in [("new%20%C3%A9.txt", "new data"), ("old", "two"), ("kept", "one")] {
        assert_eq!(data(&mut client, &format!("/db/d/{name}")).await, expected);
    }
    // With the document: a new one, and one whose stubs stay.
    let made = post(&mut client, "/db/e", &[("name=\"_doc\"", r#"{"w":1}"#), (old, "three")]).await;
    assert_eq!(made.status, 201, "{made:?}");
    let json = format!(r#"{{"_rev":"{}","w":2,"_attachments":{{"old":{{"stub":true}}}}}}"#, made.text("rev"));
    let made = post(&mut client, "/db/e", &[(new, "x"), ("name=\"_doc\"", &json), ("name=\"_doc\"", "{")]).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(client.call("GET", "/db/e", &[], b"").await.json()["w"], 2);
    assert_eq!(data(&mut client, "/db/e/old").await, "three");
    // Refused forms leave nothing staged.
    let underscore = "name=\"_attachments\"; filename=\"_x\"";
    let many = vec![("name=\"x\"", ""); 1_001];
    for (path, fields, status, error) in [
        ("/db/d", &[(new, "x"), ("name=\"_rev\"", first.as_str())][..], 409, "conflict"),
        ("/db/d", &[(new, "x"), ("name=\"_rev\"", "9-x")], 404, "not_found"),
        ("/db/d", &[(new, "x"), ("name=\"_rev\"", "x")], 400, "bad_request"),
        // The field would stay in memory until the form ends.
        ("/db/g", &[("name=\"_rev\"", &"x".repeat(2_000)), ("name=\"_doc\"", "{}")], 400, "bad_request"),
        ("/db/d", &[(new, "x"), ("name=\"_doc\"", "{")], 400, "bad_request"),
        ("/db/d", &[(new, "x"), ("name=\"_doc\"", "{}")], 409, "conflict"),
        ("/db/d", &[(new, "x")], 400, "bad_request"),
        ("/db/d", &[(new, "x"), (new, "y"), ("name=\"_rev\"", &rev)], 400, "bad_request"),
        ("/db/d", &[(underscore, "x"), ("name=\"_rev\"", &rev)], 400, "bad_request"),
        ("/db/d", &[(none_chosen, "x"), ("name=\"_rev\"", &rev)], 400, "bad_request"),
        ("/db/d", &many, 400, "bad_request"),
        ("/db/_d", &[("name=\"_doc\"", "{}")], 400, "illegal_docid"),
        ("/none/d", &[(new, "x"), ("name=\"_doc\"", "{}")], 404, "not_found"),
    ] {
        let mut client = server.connect().await;
        let answer = post(&mut client, path, fields).await;
        assert_eq!((answer.status, answer.text("error").as_str()), (status, error), "{fields:?} {answer:?}");
    }
    let whole = form(&[("name=\"_doc\"", "{}")]);
    let kind = ("content-type", "multipart/form-data; boundary=abc");
    for (headers, sent, status) in [
        (&[kind][..], &whole[..], 400),
        (&[kind, ("referer", "http://elsewhere/")], &whole, 403),
        (&[kind, ("referer", "test")], &whole, 403),
        (&[("referer", "http://localhost/")], &whole, 415),
        (&[("content-type", "multipart/form-data"), ("referer", "http://localhost/")], &whole, 400),
        (&[kind, ("referer", "http://localhost/")], &whole[..whole.len() - 2], 400),
    ] {
        let answer = server.connect().await.call("POST", "/db/f", headers, sent).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(server.call("GET", "/db/f", "").await.status, 404);
    assert_eq!(server.call("GET", "/db/d", "").await.text("_rev"), rev);
    server.stop_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_revisions() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    put(&mut client, "/db/d", &body(&follows(&["a"]), &[("", "data")])).await;
    client.call("PUT", "/db/plain", &[], b"{}").await;
    let mixed = [("accept", "multipart/mixed")];
    let shown = client.call("GET", "/db/plain?open_revs=%5B%221-x%22%5D", &mixed, b"").await;
    let text = "\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"1-x\"}\r\n--";
    assert!(shown.body.contains(text), "{shown:?}");
    let shown = client.call("GET", "/db/plain?open_revs=all", &mixed, b"").await;
    assert!(shown.body.contains("\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"plain\""), "{shown:?}");
    assert!(shown.body.ends_with("--"), "{shown:?}");
    let json = client.call("GET", "/db/d?open_revs=all", &[("accept", "application/json")], b"").await;
    assert_eq!(json.json()[0]["ok"]["_attachments"]["a"]["stub"], true);
    // Without data the answer is plain JSON.
    let rev = json.json()[0]["ok"]["_rev"].as_str().unwrap().to_owned();
    let path = format!("/db/d?atts_since=%5B%22{rev}%22%5D");
    let known = client.call("GET", &path, &[("accept", "multipart/related")], b"").await;
    assert_eq!(known.header("content-type"), Some("application/json"));
    assert_eq!(known.json()["_attachments"]["a"]["stub"], true);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_documents() {
    let server = Store::new().serve_database().await;
    let mut client = server.connect().await;
    let rev = put(&mut client, "/db/d", &body(&follows(&["a"]), &[("", "data")])).await.text("rev");
    client.call("PUT", "/db/plain", &[], b"{}").await;
    let wanted = br#"{"docs":[{"id":"d"},{"id":"plain"},{"id":"none"},{"id":"d","rev":"1-x"},{"id":"d","rev":1}]}"#;
    let mixed = [("accept", "multipart/mixed")];
    let shown = client.call("POST", "/db/_bulk_get", &mixed, wanted).await;
    let outer = shown.header("content-type").and_then(|kind| kind.strip_prefix("multipart/mixed; boundary=\""));
    let outer = outer.expect("multipart").trim_end_matches('"').to_owned();
    let parts: Vec<&str> = shown.body.split(&format!("\r\n--{outer}")).collect();
    assert_eq!(parts.len(), 7, "{shown:?}");
    assert_eq!((parts[0], parts[6]), ("", "--\r\n"));
    let head = format!("\r\nX-Doc-Id: d\r\nX-Rev-Id: {rev}\r\nContent-Type: multipart/related; boundary=--");
    assert!(parts[1].starts_with(&head) && parts[1].contains("\r\n\r\ndata\r\n--"), "{shown:?}");
    assert!(parts[2].starts_with("\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"plain\""), "{shown:?}");
    let error = "\r\nContent-Type: application/json; error=\"true\"\r\n\r\n";
    for (part, text) in [
        (parts[3], r#"{"id":"none","rev":"undefined","error":"not_found","reason":"missing"}"#),
        (parts[4], r#"{"rev":"1-x","error":"not_found","reason":"missing"}"#),
        (parts[5], r#"{"id":"d","rev":null,"error":"bad_request","reason":"Invalid rev format"}"#),
    ] {
        assert_eq!(part, format!("{error}{text}"));
    }
    for name in ["rev", "open_revs", "atts_since", "new_edits", "w"] {
        let refused = client.call("POST", &format!("/db/_bulk_get?{name}=1"), &[], wanted).await;
        assert_eq!((refused.status, refused.text("error").as_str()), (400, "bad_request"));
        assert_eq!(refused.text("reason"), format!("\"{name}\" query parameter is not acceptable"));
    }
    let none = client.call("POST", "/db/_bulk_get", &mixed, b"{\"docs\":[]}").await;
    assert_eq!((none.status, none.body.as_str()), (200, ""));
    let json = client.call("POST", "/db/_bulk_get", &[("accept", "multipart/mixed, application/json")], wanted).await;
    assert_eq!(json.json()["results"].as_array().unwrap().len(), 5);
    // Entries name the revisions that the client has.
    for (since, member, value) in [(rev.as_str(), "stub", "true"), ("1-x", "data", "\"ZGF0YQ==\"")] {
        let wanted = format!(r#"{{"docs":[{{"id":"d","rev":"{rev}","atts_since":["{since}"]}}]}}"#);
        let shown = client.call("POST", "/db/_bulk_get", &[], wanted.as_bytes()).await.json();
        let document = &shown["results"][0]["docs"][0]["ok"];
        assert_eq!(document["_attachments"]["a"][member].to_string(), value, "{shown}");
        assert!(document["_revisions"].is_null(), "{shown}");
    }
    server.stop().await;
}
