//! Parameters of `_changes`, with CouchDB's error texts.

use crate::support::{Running, Store, soon};
use serde_json::Value;

/// Starts a server with a database of documents `a` to `f`.
async fn serve_filled(store: &Store) -> Running {
    let server = store.serve_database().await;
    for id in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(server.call("PUT", &format!("/db/{id}"), "{\"n\":1}").await.status, 201);
    }
    server
}

async fn lines(server: &Running, path: &str, headers: &[(&str, &str)]) -> Vec<String> {
    let mut feed = server.connect().await;
    feed.send("GET", path, headers, b"").await;
    assert_eq!(soon(feed.head()).await.status, 200, "{path}");
    let (mut rest, mut lines) = (String::new(), Vec::new());
    while let Some(line) = feed.feed_line(&mut rest).await {
        lines.push(line);
    }
    lines
}

fn has_seq(rows: &Value) -> Vec<bool> {
    rows["results"].as_array().expect("rows").iter().map(|row| !row["seq"].is_null()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn some_rows_carry_their_sequence() {
    let server = serve_filled(&Store::new()).await;
    let get = |query: &str| {
        let path = format!("/db/_changes?{query}");
        let server = &server;
        async move { server.call("GET", &path, "").await.json() }
    };
    let all = get("").await;
    assert_eq!(has_seq(&all), [true; 6]);
    assert_eq!(has_seq(&get("seq_interval=2").await), [true, false, true, false, true, false]);
    assert_eq!(has_seq(&get("seq_interval=3&limit=5").await), [false, false, true, false, false]);
    let batch = get("seq_interval=4&limit=4").await;
    assert_eq!(has_seq(&batch), [true, false, false, false]);
    assert_eq!(batch["last_seq"], all["results"][3]["seq"], "where to go on is always told");
    assert_eq!(batch["pending"], 2);
    let lines = lines(&server, "/db/_changes?feed=eventsource&seq_interval=4&limit=4", &[]).await;
    assert!(lines[2].starts_with("data: {\"seq\":null,\"id\":\"b\""), "{lines:?}");
    assert_eq!(lines[3], format!("id: {}", all["results"][1]["seq"]), "a browser can come back to every row");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_refused_as_couchdb_refuses_them() {
    let server = serve_filled(&Store::new()).await;
    for (query, reason) in [
        ("limit=-1", "The limit value should be a non-negative integer"),
        ("limit=x", "The limit parameter should be a non-negative integer"),
        ("timeout=-1", "The timeout value should be a non-negative integer"),
        ("timeout=1s", "The timeout parameter should be a non-negative integer"),
        ("heartbeat=0", "The heartbeat value should be a positive integer (in milliseconds)."),
        ("heartbeat=-7", "The heartbeat value should be a positive integer (in milliseconds)."),
        ("heartbeat=yes", "Invalid heartbeat value. Expecting a positive integer value (in milliseconds)."),
        ("seq_interval=0", "invalid_seq_interval"),
        ("seq_interval=many", "invalid_seq_interval"),
        ("feed=push", "Supported `feed` types: normal, continuous, live, longpoll, eventsource"),
    ] {
        let answer = server.call("GET", &format!("/db/_changes?{query}"), "").await;
        let told = (answer.status, answer.text("error"), answer.text("reason"));
        assert_eq!(told, (400, "bad_request".into(), reason.into()), "{query}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_all_that_can_come_does_not_wait() {
    let server = serve_filled(&Store::new()).await;
    for feed in ["normal", "longpoll", "continuous", "live", "eventsource"] {
        // With heartbeats it would never time out.
        let path = format!("/db/_changes?feed={feed}&limit=0&heartbeat=true");
        let text = lines(&server, &path, &[]).await.concat();
        match feed {
            "eventsource" => assert_eq!(text, ""),
            _ => {
                let answer: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(
                    (answer["pending"].as_u64(), answer["results"].as_array().map_or(0, Vec::len)),
                    (Some(6), 0)
                );
            }
        }
        let path = format!("/db/_changes?feed={feed}&descending=true&heartbeat=true");
        let text = lines(&server, &path, &[]).await.concat();
        assert_eq!(text.matches("\"changes\":").count(), 6, "{feed}");
        assert!(text.find("\"id\":\"f\"") < text.find("\"id\":\"a\""));
        let path = format!("/db/_changes?feed={feed}&descending=true&heartbeat=true&limit=2");
        assert_eq!(lines(&server, &path, &[]).await.concat().matches("\"changes\":").count(), 2, "{feed}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_feed_begins() {
    let server = serve_filled(&Store::new()).await;
    let all = server.call("GET", "/db/_changes", "").await.json();
    let third = all["results"][2]["seq"].as_str().unwrap().to_owned();
    let header = [("last-event-id", third.as_str())];
    let path = "/db/_changes?feed=eventsource&timeout=1&since=0";
    assert_eq!(lines(&server, path, &header).await.len(), 6, "three events of two lines");
    // Only event sources read the header.
    assert_eq!(lines(&server, "/db/_changes?feed=continuous&timeout=1&since=0", &header).await.len(), 7);
    for name in ["last-event-id", "Last-Event-ID"] {
        let path = format!("/db/_changes?feed=continuous&timeout=1&{name}={third}");
        assert_eq!(lines(&server, &path, &[]).await.len(), 4, "{name}");
    }
    // The body is for the filter; other parameters come from the query, as in GET.
    let posted = server.call("POST", &format!("/db/_changes?since={third}&limit=2"), "{\"limit\":1}").await.json();
    assert_eq!((posted["results"].as_array().unwrap().len(), posted["pending"].as_u64()), (2, Some(1)));
    let mut client = server.connect().await;
    let plain = [("content-type", "text/plain")];
    assert_eq!(client.call("POST", "/db/_changes", &plain, b"{}").await.status, 415);
    assert_eq!(server.call("POST", "/db/_changes", "[]").await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_with_attachments_and_conflicts() {
    let server = Store::new().serve_database().await;
    let attached = r#"{"_attachments":{"t.txt":{"content_type":"text/plain","data":"aGVsbG8="}}}"#;
    assert_eq!(server.call("PUT", "/db/a", attached).await.status, 201);
    for rev in ["1-aa", "1-bb"] {
        let body = format!("{{\"docs\":[{{\"_id\":\"c\",\"_rev\":\"{rev}\"}}],\"new_edits\":false}}");
        assert_eq!(server.call("POST", "/db/_bulk_docs", &body).await.status, 201);
    }
    for feed in ["normal", "continuous", "eventsource"] {
        let path = format!("/db/_changes?feed={feed}&timeout=1&style=all_docs&include_docs=true&conflicts=true");
        let stubs = lines(&server, &path, &[]).await.concat();
        assert!(stubs.contains("\"stub\":true") && !stubs.contains("aGVsbG8="), "{stubs}");
        assert!(stubs.contains("\"changes\":[{\"rev\":\"1-bb\"},{\"rev\":\"1-aa\"}]"), "{stubs}");
        assert!(stubs.contains("\"_conflicts\":[\"1-aa\"]"), "{stubs}");
        let whole = lines(&server, &format!("{path}&attachments=true&att_encoding_info=true"), &[]).await.concat();
        assert!(whole.contains("\"data\":\"aGVsbG8=\"") && !whole.contains("\"stub\""), "{whole}");
        // These options need `include_docs`.
        let path = format!("/db/_changes?feed={feed}&timeout=1&conflicts=true&attachments=true");
        let bare = lines(&server, &path, &[]).await.concat();
        assert!(!bare.contains("_conflicts") && !bare.contains("_attachments") && !bare.contains("\"doc\""), "{bare}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_tail_some_rows_carry_their_sequence_too() {
    let server = serve_filled(&Store::new()).await;
    let mut feed = server.connect().await;
    feed.send("GET", "/db/_changes?feed=continuous&since=now&heartbeat=20&seq_interval=2&limit=4", &[], b"").await;
    soon(feed.head()).await;
    let (mut rest, mut seen) = (String::new(), Vec::new());
    for id in ["g", "h", "i", "j"] {
        server.call("PUT", &format!("/db/{id}"), "{}").await;
        let row: Value = serde_json::from_str(&feed.feed_line(&mut rest).await.expect("a row")).unwrap();
        assert_eq!(row["id"], id);
        seen.push(!row["seq"].is_null());
    }
    assert_eq!(seen, [true, false, true, false]);
    let end: Value = serde_json::from_str(&feed.feed_line(&mut rest).await.expect("an end")).unwrap();
    assert_eq!(end["pending"], 0);
    drop(feed);
    server.stop().await;
}
