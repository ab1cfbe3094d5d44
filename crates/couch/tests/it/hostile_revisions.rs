//! Revisions, histories and attachments that no honest replica sends. Each is refused or stored in bounded time and
//! memory, and the server continues.

use crate::support::{Answer, Client, Running, Store};

const RELATED: (&str, &str) = ("content-type", "multipart/related; boundary=\"abc\"");

async fn serve() -> (Running, Client) {
    let server = Store::new().serve_database().await;
    let client = server.connect().await;
    (server, client)
}

async fn post(client: &mut Client, path: &str, body: &str) -> Answer {
    client.call("POST", path, &[], body.as_bytes()).await
}

async fn put(client: &mut Client, path: &str, body: &str) -> Answer {
    client.call("PUT", path, &[], body.as_bytes()).await
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(","))
}

async fn ends_clean(server: Running) {
    assert_eq!(server.call("GET", "/db", "").await.status, 200, "the server goes on");
    server.stop_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_revisions() {
    let (server, mut client) = serve().await;
    let (longest, longer) = ("h".repeat(512), "h".repeat(513));
    let greatest = 1_u64 << 53;
    for (rev, is_taken) in [
        (format!("1-{longest}"), true),
        (format!("1-{longer}"), false),
        (format!("{greatest}-x"), true),
        (format!("{}-x", greatest + 1), false),
        ("18446744073709551616-x".to_owned(), false),
        (format!("{}-x", "9".repeat(10_000)), false),
        ("0-x".to_owned(), true),
        ("-1-x".to_owned(), false),
        ("+1-x".to_owned(), false),
        ("1.0-x".to_owned(), false),
        ("1e3-x".to_owned(), false),
        ("x".to_owned(), false),
        (String::new(), false),
        (format!("1-{}", "g".repeat(32)), false),
        (format!("0-{}", "g".repeat(32)), true),
        ("1-\\u0000".to_owned(), true),
        ("1-\\r\\nx: y".to_owned(), true),
        ("1-\\ud83d\\ude00\\u007f".to_owned(), true),
    ] {
        let shown: String = rev.chars().take(40).collect();
        let status = |taken| if is_taken { taken } else { 400 };
        let asked = format!("{{\"d\":[\"{rev}\"]}}");
        for path in ["/db/_revs_diff", "/db/_missing_revs"] {
            let answer = post(&mut client, path, &asked).await;
            assert_eq!(answer.status, status(200), "{path} {shown}: {answer:?}");
        }
        assert_eq!(post(&mut client, "/db/_purge", &asked).await.status, status(201), "{shown}");
        let one = format!(r#"{{"docs":[{{"id":"d","rev":"{rev}"}}]}}"#);
        let answer = post(&mut client, "/db/_bulk_get", &one).await.json();
        let error = &answer["results"][0]["docs"][0]["error"]["error"];
        assert_eq!(error, if is_taken { "not_found" } else { "bad_request" }, "{shown}");
        let id = format!("d{}", shown.len());
        let document = format!(r#"{{"_rev":"{rev}","a":1}}"#);
        let written = put(&mut client, &format!("/db/{id}?new_edits=false"), &document).await;
        assert_eq!(written.status, status(201), "{shown}: {written:?}");
        assert!(written.header("x").is_none(), "{written:?}");
        if written.status == 201 {
            let found = client.call("GET", &format!("/db/{id}?revs=true&meta=true"), &[], b"").await;
            assert_eq!(found.status, 200, "{shown}: {found:?}");
            let expected: serde_json::Value = serde_json::from_str(&format!("\"{rev}\"")).unwrap();
            assert_eq!(found.json()["_rev"], expected);
            assert_eq!(client.call("GET", "/db/_changes?style=all_docs", &[], b"").await.status, 200);
            let path = format!("/db/{id}?open_revs=all");
            assert_eq!(client.call("GET", &path, &[("accept", "multipart/mixed")], b"").await.status, 200);
            // Another edit, if one more is allowed.
            let next = put(&mut client, &format!("/db/{id}"), &document).await;
            assert_eq!(next.status, if rev.starts_with("9007") { 400 } else { 201 }, "{shown}: {next:?}");
        }
    }
    ends_clean(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories() {
    let (server, mut client) = serve().await;
    let ids = |count: usize| list((0..count).map(|at| format!("{at:032x}")));
    for (revisions, status) in [
        (r#"{"start":1,"ids":["a","b"]}"#.to_owned(), 201),
        (r#"{"start":1,"ids":["a","b","c"]}"#.to_owned(), 400),
        (r#"{"start":0,"ids":["a"]}"#.to_owned(), 201),
        (r#"{"start":0,"ids":["a","b"]}"#.to_owned(), 400),
        (r#"{"start":-1,"ids":["a"]}"#.to_owned(), 400),
        (r#"{"start":1.5,"ids":["a"]}"#.to_owned(), 400),
        (r#"{"start":"1","ids":["a"]}"#.to_owned(), 400),
        (r#"{"start":9007199254740993,"ids":["a"]}"#.to_owned(), 400),
        (r#"{"start":9007199254740992,"ids":["a","b"]}"#.to_owned(), 201),
        (r#"{"start":1e400,"ids":["a"]}"#.to_owned(), 400),
        (r#"{"start":2,"ids":[]}"#.to_owned(), 400),
        (r#"{"start":2,"ids":["a",1]}"#.to_owned(), 400),
        (r#"{"start":2,"ids":["a",["b"]]}"#.to_owned(), 400),
        (r#"{"start":2,"ids":{"a":1}}"#.to_owned(), 400),
        (r#"{"start":2}"#.to_owned(), 400),
        ("[]".to_owned(), 400),
        (format!(r#"{{"start":2,"ids":["a","{}"]}}"#, "b".repeat(513)), 400),
        (format!(r#"{{"start":100000,"ids":{}}}"#, ids(100_000)), 201),
        (format!(r#"{{"start":99999,"ids":{}}}"#, ids(100_000)), 201),
        (format!(r#"{{"start":1000,"ids":{}}}"#, list((0..1000).map(|at| format!("{at}{}", "l".repeat(500))))), 201),
    ] {
        let shown: String = revisions.chars().take(60).collect();
        let path = format!("/db/d{}?new_edits=false", revisions.len());
        let document = format!(r#"{{"_revisions":{revisions}}}"#);
        let written = put(&mut client, &path, &document).await;
        assert_eq!(written.status, status, "{shown}: {written:?}");
        let bulk =
            format!(r#"{{"new_edits":false,"docs":[{{"_id":"b{}","_revisions":{revisions}}}]}}"#, revisions.len());
        let written = post(&mut client, "/db/_bulk_docs", &bulk).await;
        let is_taken = written.status == 201 && written.json() == serde_json::json!([]);
        assert_eq!(is_taken, status == 201, "{shown}: {written:?}");
        if is_taken {
            let found = client.call("GET", &format!("/db/b{}?revs=true", revisions.len()), &[], b"").await.json();
            assert!(found["_revisions"]["ids"].as_array().is_some_and(|ids| ids.len() <= 1_000), "{shown}");
        }
    }
    // A branch that repeats a revision.
    let twice = r#"{"_revisions":{"start":3,"ids":["a","a","a"]}}"#;
    assert_eq!(put(&mut client, "/db/twice?new_edits=false", twice).await.status, 201);
    ends_clean(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists() {
    let (server, mut client) = serve().await;
    // A document with a large tree, for the comparisons.
    let leaf = |at: usize| format!(r#"{{"_id":"d","_revisions":{{"start":2,"ids":["{at:032x}","root"]}}}}"#);
    let leaves: Vec<String> = (0..200).map(leaf).collect();
    let made =
        post(&mut client, "/db/_bulk_docs", &format!(r#"{{"new_edits":false,"docs":[{}]}}"#, leaves.join(","))).await;
    assert_eq!((made.status, made.body.trim()), (201, "[]"));
    let revs = list((0..10_000).map(|at| format!("{}-{at:0512}", 1 + at % 7)));
    let asked = format!(r#"{{"d":{revs},"none":{revs}}}"#);
    for (path, pointer) in [("/db/_revs_diff", "/d/missing"), ("/db/_missing_revs", "/missing_revs/d")] {
        let answer = post(&mut client, path, &asked).await;
        assert_eq!(answer.status, 200);
        let missing = answer.json().pointer(pointer).and_then(|list| list.as_array().map(Vec::len));
        assert_eq!(missing, Some(10_000), "{path}");
    }
    for asked in [asked.as_str(), &format!("{{{}}}", vec![r#""d":["1-x"]"#; 1_000].join(",")), "{\"d\":\"1-x\"}", "[]"]
    {
        let refused = post(&mut client, "/db/_purge", asked).await;
        assert!(refused.status == 400 || refused.status == 201, "{refused:?}");
    }
    let many = format!("{{{}}}", (0..101).map(|at| format!(r#""n{at}":["1-x"]"#)).collect::<Vec<_>>().join(","));
    assert_eq!(post(&mut client, "/db/_purge", &many).await.status, 400);
    // A URL cannot hold very many revisions, and at most a thousand are looked up.
    for (count, expected) in [(1_000, &[200][..]), (5_000, &[400, 414, 431]), (100_000, &[400, 414, 431])] {
        let revs = format!("[{}]", vec!["%221-x%22"; count].join(","));
        let request =
            format!("GET /db/d?open_revs={revs} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\r\n");
        let status = status_of(&server, request.as_bytes()).await;
        assert!(expected.contains(&status) || (status == 0 && count == 100_000), "{count}: {status}");
    }
    let entries = vec![r#"{"id":"d","rev":"1-x"}"#; 20_000].join(",");
    let shown = post(&mut client, "/db/_bulk_get", &format!(r#"{{"docs":[{entries}]}}"#)).await;
    assert_eq!(shown.json()["results"].as_array().map(Vec::len), Some(20_000));
    ends_clean(server).await;
}

/// Returns the status, or 0 if the connection is cut.
async fn status_of(server: &Running, request: &[u8]) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let mut answer = [0; 12];
    // The server may close before it has read everything.
    let _ = stream.write_all(request).await;
    match crate::support::soon(stream.read_exact(&mut answer)).await {
        Ok(_) => std::str::from_utf8(&answer[9..]).ok().and_then(|status| status.parse().ok()).unwrap_or(0),
        Err(_) => 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_leaves() {
    let (server, mut client) = serve().await;
    let leaf = |at: usize| format!(r#"{{"_id":"d","_rev":"1-{at:032x}"}}"#);
    let leaves: Vec<String> = (0..250).map(leaf).collect();
    let body = format!(r#"{{"new_edits":false,"docs":[{}]}}"#, leaves.join(","));
    for _ in 0..2 {
        let made = post(&mut client, "/db/_bulk_docs", &body).await;
        assert_eq!((made.status, made.body.trim()), (201, "[]"));
    }
    let shown = client.call("GET", "/db/d?conflicts=true", &[], b"").await.json();
    assert_eq!(shown["_conflicts"].as_array().map(Vec::len), Some(249));
    let shown = client.call("GET", "/db/d?open_revs=all", &[], b"").await.json();
    assert_eq!(shown.as_array().map(Vec::len), Some(250));
    let row = client.call("GET", "/db/_changes?style=all_docs", &[], b"").await.json();
    assert_eq!(row["results"][0]["changes"].as_array().map(Vec::len), Some(250));
    ends_clean(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments() {
    let (server, mut client) = serve().await;
    let secret = put(&mut client, "/db/secret", r#"{"_attachments":{"s":{"data":"c2VjcmV0"}}}"#).await;
    assert_eq!(secret.status, 201);
    let digest = client.call("GET", "/db/secret", &[], b"").await.json()["_attachments"]["s"]["digest"].clone();
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    let deeper = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let million = (0..200_000).map(|at| format!("\"{at}\":{{}}")).collect::<Vec<_>>().join(",");
    for (attachments, status) in [
        // Knowing a digest does not give access to the data.
        (format!(r#"{{"s":{{"stub":true,"digest":{digest},"revpos":1,"length":6}}}}"#), 412),
        (format!(r#"{{"s":{{"digest":{digest},"length":6}}}}"#), 400),
        (format!(r#"{{"s":{{"follows":true,"digest":{digest},"length":6}}}}"#), 400),
        (r#"{"s":{"stub":true,"digest":"md5-AAAAAAAAAAAAAAAAAAAAAA=="}}"#.to_owned(), 412),
        (r#"{"s":{"stub":true,"digest":"sha1-x"}}"#.to_owned(), 412),
        ("[]".to_owned(), 400),
        ("\"x\"".to_owned(), 400),
        (r#"{"a":[]}"#.to_owned(), 400),
        (r#"{"a":null}"#.to_owned(), 400),
        (r#"{"a":{}}"#.to_owned(), 400),
        (format!(r#"{{"a":{deep}}}"#), 400),
        (format!(r#"{{"a":{{"data":{deep}}}}}"#), 400),
        (format!(r#"{{"a":{deeper}}}"#), 400),
        (r#"{"a":{"data":"!"}}"#.to_owned(), 400),
        (r#"{"a":{"data":"eA="}}"#.to_owned(), 400),
        (r#"{"a":{"data":"eA==eA=="}}"#.to_owned(), 400),
        (r#"{"a":{"data":"eA\u0000=="}}"#.to_owned(), 400),
        (r#"{"a":{"data":"eA==","encoding":"gzip"}}"#.to_owned(), 400),
        (format!("{{{million}}}"), 413),
    ] {
        let shown: String = attachments.chars().take(60).collect();
        let document = format!(r#"{{"_attachments":{attachments}}}"#);
        let mut client = server.connect().await;
        let refused = put(&mut client, "/db/d", &document).await;
        assert_eq!(refused.status, status, "{shown}: {refused:?}");
        let foreign = format!(r#"{{"_rev":"1-x","_attachments":{attachments}}}"#);
        let refused = put(&mut client, "/db/d?new_edits=false", &foreign).await;
        assert_eq!(refused.status, status, "{shown}: {refused:?}");
        let bulk = format!(r#"{{"new_edits":false,"docs":[{{"_id":"d","_rev":"1-x","_attachments":{attachments}}}]}}"#);
        let refused = post(&mut server.connect().await, "/db/_bulk_docs", &bulk).await;
        assert!(refused.status >= 400 || refused.body.contains("error"), "{shown}: {refused:?}");
        assert_eq!(server.call("GET", "/db/d", "").await.status, 404, "{shown}");
    }
    let one = r#"{"_attachments":{"a":{"follows":true,"length":1}}}"#;
    let head = format!("--abc\r\nContent-Type: application/json\r\n\r\n{one}");
    for rest in [
        // Too long; a wrong boundary; the data before the document; a thousand surplus parts.
        "\r\n--abc\r\n\r\nxy\r\n--abc--".to_owned(),
        "\r\n--abcd\r\n\r\nx\r\n--abc--".to_owned(),
        "\r\n--abc--\r\n--abc\r\n\r\nx\r\n--abc--".to_owned(),
        format!("{}\r\n--abc--", "\r\n--abc\r\n\r\nx".repeat(1_000)),
        format!("\r\n--abc\r\n{}\r\nx\r\n--abc--", "h: v\r\n".repeat(100_000)),
        format!("\r\n--abc\r\n\r\n{}", "\r\n--ab".repeat(100_000)),
    ] {
        let mut client = server.connect().await;
        let refused = client.call("PUT", "/db/d", &[RELATED], format!("{head}{rest}").as_bytes()).await;
        let shown: String = rest.chars().take(60).collect();
        assert_eq!(refused.status, 400, "{shown}: {refused:?}");
    }
    let first = format!("--abc\r\n\r\nx\r\n{head}\r\n--abc--");
    let refused = server.connect().await.call("PUT", "/db/d", &[RELATED], first.as_bytes()).await;
    assert_eq!(refused.status, 415, "{refused:?}");
    assert_eq!(server.call("GET", "/db/d", "").await.status, 404);
    for (id, status) in [("nul%00", 201), ("line%0D%0A", 201), ("%EF%BF%BF", 201), ("%C0%80", 400), ("%ED%A0%80", 400)]
    {
        let made = server.call("PUT", &format!("/db/{id}"), r#"{"_attachments":{"\u0000\n":{"data":"eA=="}}}"#).await;
        assert_eq!(made.status, status, "{id}: {made:?}");
    }
    let all = server.call("GET", "/db/_all_docs?include_docs=true&attachments=true", "").await;
    assert_eq!((all.status, all.json()["rows"].as_array().map(Vec::len)), (200, Some(4)));
    ends_clean(server).await;
}
