//! `_db_updates`: all feeds, across two servers on one store.

use super::store;
use crate::support::{ServerOptions, soon};
use serde_json::Value;

fn rows(answer: &Value) -> Vec<(&str, &str)> {
    let rows = answer["results"].as_array().expect("rows");
    rows.iter().map(|row| (row["db_name"].as_str().unwrap(), row["type"].as_str().unwrap())).collect()
}

fn parse(line: Option<String>) -> Value {
    serde_json::from_str(&line.expect("a line")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_databases_is_listed() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    let none = server.call("GET", "/_db_updates", "").await;
    let seq = none.text("last_seq");
    assert_eq!(none.body, format!("{{\"results\":[\n\n],\n\"last_seq\":\"{seq}\"}}\n"));
    server.call("PUT", "/a", "").await;
    server.call("PUT", "/b", "").await;
    for n in 0..3 {
        assert_eq!(server.call("PUT", &format!("/a/{n}"), "{}").await.status, 201);
    }
    server.call("DELETE", "/b", "").await;
    let some = server.call("GET", "/_db_updates", "").await;
    let answer = some.json();
    assert_eq!(rows(&answer), [("a", "created"), ("b", "created"), ("a", "updated"), ("b", "deleted")]);
    assert_eq!(answer["last_seq"], answer["results"][3]["seq"]);
    assert!(
        some.body.starts_with("{\"results\":[\n{\"db_name\":\"a\",\"type\":\"created\",\"seq\":\""),
        "{}",
        some.body
    );
    assert!(some.body.contains("\"},\r\n{\"db_name\":"), "{}", some.body);
    let tag = some.header("etag").expect("a tag").to_owned();
    let mut client = server.connect().await;
    assert_eq!(client.call("GET", "/_db_updates", &[("if-none-match", &tag)], b"").await.status, 304);
    let seq = |at: usize| answer["results"][at]["seq"].as_str().unwrap().to_owned();
    let get = |query: String| {
        let server = &server;
        async move { server.call("GET", &format!("/_db_updates?{query}"), "").await.json() }
    };
    let part = get(format!("since={}&limit=1", seq(0))).await;
    assert_eq!((rows(&part), part["last_seq"].as_str()), (vec![("b", "created")], Some(seq(1).as_str())));
    let down = get(format!("descending=true&since={}", seq(1))).await;
    assert_eq!(rows(&down), [("b", "deleted"), ("a", "updated")]);
    let nothing = get(format!("limit=0&since={}", seq(1))).await;
    assert_eq!((rows(&nothing).len(), nothing["last_seq"].as_str()), (0, Some(seq(1).as_str())));
    let now = get("since=now".into()).await;
    assert_eq!((rows(&now).len(), now["last_seq"].as_str()), (0, Some(seq(3).as_str())));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_wrongly_is_refused() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    for query in ["limit=-1", "limit=x", "timeout=x", "heartbeat=-5", "since=nonsense"] {
        let answer = server.call("GET", &format!("/_db_updates?{query}"), "").await;
        assert_eq!((answer.status, answer.text("error").as_str()), (400, "bad_request"), "{query}");
        assert!(query.starts_with("since") || answer.text("reason") == "invalid_integer");
    }
    let answer = server.call("GET", "/_db_updates?feed=live", "").await;
    assert_eq!(answer.text("reason"), "Supported `feed` types: normal, continuous, longpoll, eventsource");
    let answer = server.call("POST", "/_db_updates", "{}").await;
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET")));
    assert_eq!(server.call("HEAD", "/_db_updates?feed=continuous", "").await.status, 200);
    server.stop().await;
    let guarded = store.serve(ServerOptions::guarded_by("root", "secret")).await;
    assert_eq!(guarded.call("GET", "/_db_updates", "").await.status, 401);
    guarded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_see_what_another_server_does() {
    let Some(store) = store() else { return };
    let (writer, reader) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    let mut continuous = reader.connect().await;
    continuous.send("GET", "/_db_updates?feed=continuous&since=now&heartbeat=20", &[], b"").await;
    assert_eq!(soon(continuous.head()).await.status, 200);
    let mut longpoll = reader.connect().await;
    longpoll.send("GET", "/_db_updates?feed=longpoll&since=now", &[], b"").await;
    soon(longpoll.head()).await;
    assert_eq!(longpoll.chunks_until("\n").await, "{\"results\":[\n", "the head comes before anything has happened");
    let mut rest = String::new();
    let mut last = String::new();
    for (method, path, body, kind) in [
        ("PUT", "/db", "", "created"),
        ("PUT", "/db/x", "{}", "updated"),
        ("PUT", "/db/y", "{}", "updated"),
        ("DELETE", "/db", "", "deleted"),
        ("PUT", "/db", "", "created"),
    ] {
        assert!(writer.call(method, path, body).await.status < 300);
        let row = parse(continuous.feed_line(&mut rest).await);
        assert_eq!((row["db_name"].as_str(), row["type"].as_str()), (Some("db"), Some(kind)), "{path}");
        let seq = row["seq"].as_str().unwrap().to_owned();
        assert!(seq > last);
        last = seq;
    }
    let mut text = "{\"results\":[\n".to_owned();
    loop {
        let chunk = soon(longpoll.chunk()).await;
        if chunk.is_empty() {
            break;
        }
        text.push_str(&chunk);
    }
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(rows(&answer)[0], ("db", "created"));
    // A longpoll that times out returns its start.
    let path = format!("/_db_updates?feed=longpoll&timeout=1&since={last}");
    let nothing = reader.call("GET", &path, "").await.json();
    assert_eq!((rows(&nothing).len(), nothing["last_seq"].as_str()), (0, Some(last.as_str())));
    // When the server stops, the feed ends with its sequence.
    let ended = reader.begin_to_stop();
    let end = parse(continuous.feed_line(&mut rest).await);
    assert_eq!((end["last_seq"].as_str(), end.as_object().map(|end| end.len())), (Some(last.as_str()), Some(1)));
    assert_eq!(continuous.feed_line(&mut rest).await, None, "the body has its proper end");
    soon(ended).await.unwrap();
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_connects_again_where_it_was() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    for name in ["a", "b", "c"] {
        server.call("PUT", &format!("/{name}"), "").await;
    }
    let mut feed = server.connect().await;
    feed.send("GET", "/_db_updates?feed=eventsource&limit=2", &[], b"").await;
    let head = soon(feed.head()).await;
    assert_eq!(
        (head.header("content-type"), head.header("cache-control")),
        (Some("text/event-stream"), Some("no-cache"))
    );
    let (mut rest, mut lines) = (String::new(), Vec::new());
    while let Some(line) = feed.feed_line(&mut rest).await {
        lines.push(line);
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
    let id = lines[3].strip_prefix("id: ").expect("an id");
    assert!(lines[2].starts_with("data: {\"db_name\":\"b\",\"type\":\"created\",\"seq\":"));
    assert!(lines[2].contains(id));
    let mut feed = server.connect().await;
    let again = [("last-event-id", id)];
    feed.send("GET", "/_db_updates?feed=eventsource&heartbeat=10&since=0", &again, b"").await;
    soon(feed.head()).await;
    let mut rest = String::new();
    assert!(feed.feed_line(&mut rest).await.unwrap().contains("\"db_name\":\"c\""));
    assert!(feed.feed_line(&mut rest).await.unwrap().starts_with("id: "));
    assert_eq!(feed.feed_line(&mut rest).await.unwrap(), "event: heartbeat");
    drop(feed);
    // Other feeds ignore the header.
    let mut client = server.connect().await;
    let all = client.call("GET", "/_db_updates", &again, b"").await.json();
    assert_eq!(rows(&all).len(), 3);
    drop(client);
    server.stop().await;
}
