//! `_changes` across two servers on one store, and how feeds end.

use super::{serve_database, store};
use crate::support::{ServerOptions, soon};
use serde_json::Value;

fn parse(line: Option<String>) -> Value {
    serde_json::from_str(&line.expect("a line")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_writes_another_tells() {
    let Some(store) = store() else { return };
    let (writer, reader) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    assert_eq!(writer.call("PUT", "/db", "").await.status, 201);
    let mut feed = reader.connect().await;
    feed.send("GET", "/db/_changes?feed=continuous&include_docs=true&heartbeat=20", &[], b"").await;
    assert_eq!(soon(feed.head()).await.status, 200);
    let mut rest = String::new();
    for number in 0..5 {
        writer.call("PUT", &format!("/db/{number}"), "{\"a\":1}").await;
        let row = parse(feed.feed_line(&mut rest).await);
        assert_eq!((row["id"].as_str(), row["doc"]["a"].as_i64()), (Some(number.to_string().as_str()), Some(1)));
    }
    // Both servers see the database created again under the same name, without the old sequences.
    let old = reader.call("GET", "/db", "").await.text("update_seq");
    assert_eq!(writer.call("DELETE", "/db", "").await.status, 200);
    assert_eq!(writer.call("PUT", "/db", "").await.status, 201);
    assert_eq!(reader.call("PUT", "/db/new", "{\"b\":1}").await.status, 201);
    let rows = reader.call("GET", &format!("/db/_changes?since={old}"), "").await.json();
    assert_eq!(rows["results"].as_array().unwrap().len(), 1);
    assert_eq!(writer.call("GET", "/db/new", "").await.json()["b"], 1);
    writer.stop().await;
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn longpoll_waits_for_the_first_change() {
    let Some(server) = serve_database().await else { return };
    let since = server.call("PUT", "/db/a", "{}").await;
    assert_eq!(since.status, 201);
    let mut feed = server.connect().await;
    feed.send("GET", "/db/_changes?feed=longpoll&since=now", &[], b"").await;
    soon(feed.head()).await;
    let mut text = feed.chunks_until("\n").await;
    assert_eq!(text, "{\"results\":[\n", "the head comes before anything has changed");
    server.call("PUT", "/db/b", "{}").await;
    loop {
        let chunk = soon(feed.chunk()).await;
        if chunk.is_empty() {
            break;
        }
        text.push_str(&chunk);
    }
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["results"][0]["id"], "b");
    let since = answer["last_seq"].as_str().unwrap();
    let rest = server.call("GET", &format!("/db/_changes?feed=longpoll&timeout=1&since={since}"), "").await.json();
    assert_eq!((rest["results"].as_array().unwrap().len(), rest["last_seq"].as_str()), (0, Some(since)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_couchdbs() {
    let Some(server) = serve_database().await else { return };
    let none = server.call("GET", "/db/_changes", "").await;
    let seq = none.text("last_seq");
    assert_eq!(none.body, format!("{{\"results\":[\n\n],\n\"last_seq\":\"{seq}\",\"pending\":0}}\n"));
    let none = server.call("GET", "/db/_all_docs", "").await;
    assert_eq!(none.body, "{\"total_rows\":0,\"offset\":0,\"rows\":[\r\n\r\n]}\n");
    for id in ["a", "b", "c"] {
        server.call("PUT", &format!("/db/{id}"), "{}").await;
    }
    let some = server.call("GET", "/db/_changes?limit=2", "").await;
    assert_eq!(some.json()["pending"], 1);
    assert!(some.body.contains("]},\r\n{\"seq\":"), "{}", some.body);
    let down = server.call("GET", "/db/_changes?limit=2&descending=true", "").await.json();
    assert_eq!((down["results"][0]["id"].as_str(), down["pending"].as_i64()), (Some("c"), Some(0)));
    let mut feed = server.connect().await;
    feed.send("GET", "/db/_changes?feed=eventsource&heartbeat=20&limit=2", &[], b"").await;
    assert_eq!(soon(feed.head()).await.header("content-type"), Some("text/event-stream"));
    let mut rest = String::new();
    let (mut id, mut rows) = (String::new(), 0);
    while let Some(line) = feed.feed_line(&mut rest).await {
        rows += usize::from(line.starts_with("data: {"));
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        }
    }
    assert_eq!(rows, 2);
    // A browser sends this when it reconnects.
    let mut feed = server.connect().await;
    let again = [("last-event-id", id.as_str())];
    feed.send("GET", "/db/_changes?feed=eventsource&heartbeat=10", &again, b"").await;
    soon(feed.head()).await;
    let mut rest = String::new();
    assert!(feed.feed_line(&mut rest).await.unwrap().contains("\"id\":\"c\""));
    assert!(feed.feed_line(&mut rest).await.unwrap().starts_with("id: "));
    assert_eq!(feed.feed_line(&mut rest).await.unwrap(), "event: heartbeat");
    drop(feed);
    server.stop().await;
}

/// A feed sends its first bytes before any row: an empty line for feeds of lines.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_begins_at_once() {
    let Some(server) = serve_database().await else { return };
    server.call("PUT", "/db/a", "{}").await;
    for path in ["/db/_changes?since=now", "/_db_updates?since=now", "/db/_changes?filter=_design&since=0"] {
        for feed in ["continuous", "eventsource"] {
            let mut client = server.connect().await;
            client.send("GET", &format!("{path}&feed={feed}&heartbeat=60000"), &[], b"").await;
            soon(client.head()).await;
            assert_eq!(soon(client.chunk()).await, "\n", "{path} {feed}");
        }
    }
    // No empty line before a row.
    let body = server.call("GET", "/db/_changes?feed=continuous&timeout=1", "").await.body;
    assert!(body.starts_with('{'), "{body}");
    server.stop().await;
}

/// A PHP client reads only decimal digits in chunk sizes. The lines of a feed stay in one chunk.
#[tokio::test(flavor = "multi_thread")]
async fn sizes_of_chunks_have_no_letters() {
    let Some(server) = serve_database().await else { return };
    for length in 1..20 {
        server.call("PUT", &format!("/db/{}", "x".repeat(length)), "{}").await;
    }
    let mut client = server.connect().await;
    for limit in 0..20 {
        client.send("GET", &format!("/db/_all_docs?limit={limit}"), &[], b"").await;
        assert_eq!(soon(client.head()).await.header("transfer-encoding"), Some("chunked"));
        let body = soon(client.rest()).await;
        let (mut rest, mut is_over) = (body.as_str(), false);
        while !is_over {
            let (size, behind) = rest.split_once("\r\n").unwrap();
            assert!(size.bytes().all(|byte| byte.is_ascii_digit()), "{size} of {body}");
            let length = usize::from_str_radix(size, 16).unwrap();
            (rest, is_over) = (&behind[length + 2..], length == 0);
        }
    }
    client.send("GET", "/db/_changes?feed=continuous&timeout=1", &[], b"").await;
    soon(client.head()).await;
    let mut text = soon(client.chunk()).await;
    while !text.is_empty() {
        assert!(text.ends_with('\n'), "{text}");
        text = soon(client.chunk()).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_tells_its_feeds() {
    let Some(server) = serve_database().await else { return };
    server.call("PUT", "/db/a", "{}").await;
    let (mut continuous, mut longpoll) = (server.connect().await, server.connect().await);
    continuous.send("GET", "/db/_changes?feed=continuous&heartbeat=20", &[], b"").await;
    longpoll.send("GET", "/db/_changes?feed=longpoll&since=now", &[], b"").await;
    soon(continuous.head()).await;
    soon(longpoll.head()).await;
    let mut rest = String::new();
    let row = parse(continuous.feed_line(&mut rest).await);
    let ended = server.begin_to_stop();
    let last = parse(continuous.feed_line(&mut rest).await);
    assert_eq!(last["last_seq"], row["seq"]);
    assert_eq!(continuous.feed_line(&mut rest).await, None, "the body has its proper end");
    let mut text = String::new();
    loop {
        let chunk = soon(longpoll.chunk()).await;
        if chunk.is_empty() {
            break;
        }
        text.push_str(&chunk);
    }
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["last_seq"], row["seq"]);
    soon(ended).await.unwrap();
}
