//! Requests to a source's feed, and the handling of its answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_client::Url;
use flatbed_clock::ManualClock;
use flatbed_testkit::http::ServerConnection;
use flatbed_testkit::{soon, until};
use flatbed_worker::change::ChangeContent;
use flatbed_worker::checkpoint::Seq;
use flatbed_worker::documents::{ChangesFeed, SourceType};
use flatbed_worker::output::lines::Lines;
use flatbed_worker::peer::{Peer, PeerError};
use flatbed_worker::run::RunEnd;
use flatbed_worker::source::{HttpSource, PageLimits, Source, SourceError};
use hyper::header::HeaderMap;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::fake::{FakeQueue, FakeSource, once};
use crate::server::{Request, plain, serve};

fn source(url: &str, feed: Value) -> HttpSource {
    let feed: ChangesFeed = serde_json::from_value(feed).unwrap();
    let url = Url::parse_either(&format!("{url}/db")).unwrap();
    HttpSource::new(Peer::new(url, HeaderMap::new(), plain()), SourceType::Couchdb, feed)
}

fn ask(is_to_wait: bool) -> PageLimits {
    PageLimits { limit: 10, bytes_max: 1 << 20, is_to_wait }
}

#[tokio::test]
async fn what_a_job_is_about_is_asked_of_the_source() {
    let (url, requests) = serve(|_: &Request| (200, "", json!({"results": [], "last_seq": "7-x"}).to_string())).await;
    for (feed, part, body) in [
        (json!({}), "feed=normal&since=7&include_docs=true&limit=10", Value::Null),
        (json!({"filter": "a/b"}), "&filter=a%2Fb&", Value::Null),
        (json!({"channels": ["x", "y z"]}), "&filter=sync_gateway%2Fbychannel&channels=x%2Cy%20z&", Value::Null),
        (json!({"doc_ids": ["a", "b/c"]}), "&filter=_doc_ids&", json!({"doc_ids": ["a", "b/c"]})),
        (json!({"selector": {"n": {"$gt": 5}}}), "&filter=_selector&", json!({"selector": {"n": {"$gt": 5}}})),
        (json!({"include_docs": false}), "since=7&limit=10", Value::Null),
    ] {
        let page = source(&url, feed).page(&Seq::parse("7").unwrap(), ask(false)).await.unwrap();
        assert_eq!((page.rows, page.last_seq.as_str()), (0, "7-x"));
        let request = requests.lock().unwrap().pop().unwrap();
        assert!(request.path.contains(part), "{} {part}", request.path);
        let sent = serde_json::from_str(&request.body).unwrap_or(Value::Null);
        assert_eq!((sent.clone(), request.method.as_str()), (body, if sent.is_null() { "GET" } else { "POST" }));
    }
    // At the feed's end: the source waits, or the worker polls.
    for (feed, part) in
        [(json!({}), "feed=longpoll"), (json!({"feed_type": "normal", "poll_interval_seconds": 0}), "feed=normal")]
    {
        source(&url, feed).page(&Seq::default(), ask(true)).await.unwrap();
        let request = requests.lock().unwrap().pop().unwrap();
        assert!(request.path.contains(part), "{}", request.path);
    }
    let (url, _) = serve(|_: &Request| (200, "", "x".repeat(2 << 20))).await;
    let found = source(&url, json!({})).page(&Seq::default(), ask(false)).await;
    assert_eq!(found, Err(SourceError::Peer(PeerError::TooLarge(200))));
}

#[tokio::test]
async fn documents_that_rows_lack_are_read_in_bulk() {
    let has_bulk = Arc::new(Mutex::new(200));
    let status = has_bulk.clone();
    let (url, requests) = serve(move |request: &Request| {
        if request.path.contains("_changes") {
            let row =
                |at: u32| json!({"seq": at, "id": format!("d{at}"), "changes": [{"rev": "1-x"}], "deleted": at == 3});
            return (200, "", json!({"results": (0..5).map(row).collect::<Vec<_>>(), "last_seq": 5}).to_string());
        }
        let asked: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let result = |doc: &Value| match doc["id"].as_str().unwrap() {
            "d0" => json!({"id": "d0", "docs": [{"ok": {"_id": "d0", "_rev": "1-x", "n": 1.5}}]}),
            // Another revision, an error, and a document that the row lacks.
            "d1" => json!({"id": "d1", "docs": [{"ok": {"_id": "d1", "_rev": "2-x"}}]}),
            "d2" => json!({"id": "d2", "docs": [{"error": {"id": "d2", "error": "not_found"}}]}),
            id => json!({"id": id, "docs": [{"ok": {"_id": id, "_rev": "1-x", "_deleted": true}}]}),
        };
        let docs = asked["docs"].as_array().map(|docs| docs.iter().map(result).collect::<Vec<_>>());
        (*status.lock().unwrap(), "", json!({"results": docs}).to_string())
    })
    .await;
    let of = source(&url, json!({"include_docs": false}));
    let whats = |page: flatbed_worker::change::ChangePage| {
        page.changes.into_iter().map(|change| change.what).collect::<Vec<_>>()
    };
    let first = ChangeContent::Changed(r#"{"_id":"d0","_rev":"1-x","n":1.5}"#.to_owned());
    let page = of.page(&Seq::default(), ask(false)).await.unwrap();
    assert_eq!(
        whats(page),
        [first, ChangeContent::ToBeRead, ChangeContent::ToBeRead, ChangeContent::Deleted, ChangeContent::Deleted]
    );
    let bulk: Value = serde_json::from_str(&requests.lock().unwrap()[1].body).unwrap();
    assert_eq!(bulk["docs"].as_array().unwrap().len(), 4, "not of what is deleted: {bulk}");
    // The source lacks it: each document is read at its turn, and the source is not asked again.
    *has_bulk.lock().unwrap() = 404;
    for requests_made in [4, 5] {
        let page = of.page(&Seq::default(), ask(false)).await.unwrap();
        assert_eq!(whats(page).iter().filter(|what| **what == ChangeContent::ToBeRead).count(), 4);
        assert_eq!(requests.lock().unwrap().len(), requests_made);
    }
    *has_bulk.lock().unwrap() = 503;
    let again = source(&url, json!({"include_docs": false})).page(&Seq::default(), ask(false)).await;
    assert_eq!(again, Err(SourceError::Status(503)));
}

#[tokio::test]
async fn a_feed_is_looked_at_again_after_its_interval() {
    let (url, requests) = serve(|_: &Request| (200, "", json!({"results": [], "last_seq": "7-x"}).to_string())).await;
    let (manual, feed) = (ManualClock::new(), json!({"feed_type": "normal", "poll_interval_seconds": 600}));
    let peer = Peer::new(Url::parse_either(&format!("{url}/db")).unwrap(), HeaderMap::new(), plain());
    let feed = serde_json::from_value(feed).unwrap();
    let of = HttpSource::new(peer.with_clock(manual.clock()), SourceType::Couchdb, feed);
    let interval = async {
        until("the interval is waited for", async || manual.waiting() == 1).await;
        manual.advance(Duration::from_secs(599));
        tokio::task::yield_now().await;
        assert_eq!((manual.waiting(), requests.lock().unwrap().len()), (1, 0));
        manual.advance(Duration::from_secs(1));
    };
    let since = Seq::default();
    let (page, ()) = soon(async { tokio::join!(of.page(&since, ask(true)), interval) }).await;
    assert_eq!((page.unwrap().rows, requests.lock().unwrap().len()), (0, 1));
}

/// Starts a continuous feed that the test controls. Each connection gets what is sent from then on; `None` closes it.
async fn live() -> (String, mpsc::UnboundedSender<Option<&'static str>>, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut lines) = mpsc::unbounded_channel::<Option<&'static str>>();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = asked.clone();
    tokio::spawn(async move {
        while let Some(mut connection) = ServerConnection::accept(&listener).await {
            let request = connection.read().await.unwrap();
            kept.lock().unwrap().push(request.path);
            connection.send("HTTP/1.1 200 X\r\nconnection: close\r\n\r\n").await.unwrap();
            while let Some(Some(line)) = lines.recv().await {
                if connection.send(line).await.is_none() {
                    break;
                }
            }
        }
    });
    (url, sender, asked)
}

#[tokio::test]
async fn a_feed_that_goes_on() {
    let (url, lines, asked) = live().await;
    let of = source(&url, json!({"feed_type": "continuous", "heartbeat_ms": 2000}));
    let row = |line: &'static str| lines.send(Some(line)).unwrap();
    row("\n");
    row("{\"seq\":\"1-a\",\"id\":\"a\",\"changes\":[{\"rev\":\"1-x\"}],\"doc\":{\"_id\":\"a\",\"_rev\":\"1-x\"}}\n");
    let since = Seq::parse("0").unwrap();
    let page = of.page(&since, ask(true)).await.unwrap();
    assert_eq!((page.changes[0].id.as_str(), page.last_seq.as_str()), ("a", "1-a"));
    // The same answer continues with a row in two parts.
    row("{\"seq\":\"2-b\",\"id\":\"b\",\"changes\":[{\"re");
    row("v\":\"1-x\"}],\"deleted\":true}\n\n");
    let page = of.page(&page.last_seq, ask(true)).await.unwrap();
    assert_eq!((page.changes[0].what.clone(), page.last_seq.as_str()), (ChangeContent::Deleted, "2-b"));
    assert_eq!(asked.lock().unwrap().len(), 1);
    // It ends, and another one begins behind the last row.
    row("{\"last_seq\":\"2-b\",\"pending\":0}\n");
    lines.send(None).unwrap();
    let page = of.page(&page.last_seq, ask(true)).await.unwrap();
    assert_eq!((page.rows, page.last_seq.as_str()), (0, "2-b"));
    row("{\"seq\":\"3-c\",\"id\":\"c\",\"changes\":[{\"rev\":\"1-x\"}],\"deleted\":true}\n");
    let page = of.page(&page.last_seq, ask(true)).await.unwrap();
    assert_eq!(page.last_seq.as_str(), "3-c");
    {
        let asked = asked.lock().unwrap();
        assert!(asked[0].contains("feed=continuous&since=0&include_docs=true&heartbeat=2000"), "{asked:?}");
        assert!(asked.len() == 2 && asked[1].contains("since=2-b"), "{asked:?}");
    }
    // Another position requires another answer; the open one is dropped.
    lines.send(None).unwrap();
    row("{\"seq\":\"2-b\",\"id\":\"b\",\"changes\":[{\"rev\":\"1-x\"}],\"deleted\":true}\n");
    let page = of.page(&Seq::parse("1-a").unwrap(), ask(true)).await.unwrap();
    assert_eq!((page.last_seq.as_str(), asked.lock().unwrap().len()), ("2-b", 3));
    // A dropped call loses nothing: the next one begins at the same position.
    assert!(tokio::time::timeout(Duration::from_millis(50), of.page(&page.last_seq, ask(true))).await.is_err());
    lines.send(None).unwrap();
    row("nonsense\n");
    let found = of.page(&page.last_seq, ask(true)).await;
    assert!(matches!(found, Err(SourceError::MalformedAnswer(_))), "{found:?}");
    // A line beyond the size limit.
    lines.send(None).unwrap();
    let long: &'static str = Box::leak("x".repeat(2 << 20).into_boxed_str());
    row(long);
    let found = of.page(&page.last_seq, ask(true)).await;
    assert_eq!(found, Err(SourceError::Peer(PeerError::TooLarge(200))));
}

#[tokio::test]
async fn deletions_of_what_a_new_target_never_had_are_left_out() {
    let run = async |source: &FakeSource, active_only: bool| {
        let input = json!({"id": "in", "source_type": "flatbed", "url": "http://localhost:5984/db", "changes_feed": {"active_only": active_only}});
        let output = json!({"id": "out", "provider": "stdout"});
        let job = json!({"type": "job", "id": "j", "inputs": [input], "outputs": [output], "output_type": "cloud", "mapping": null});
        let flatbed_worker::documents::Document::Job(job) =
            flatbed_worker::documents::read(job.to_string().as_bytes()).unwrap()
        else {
            panic!()
        };
        let job = flatbed_worker::documents::Connections::default().resolve(&job).unwrap();
        let target = Lines::new(Vec::new(), Vec::new());
        let (end, _, target) = once(&job, source, target, &FakeQueue::default(), 1).await;
        assert_eq!(end, RunEnd::Done);
        let text = String::from_utf8(target.into_inner().unwrap()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let filled = || {
        let source = FakeSource::default();
        source.write("a", json!({"n": 1}));
        source.write("b", json!({"n": 1}));
        source.write("a", Value::Null);
        source
    };
    let source = filled();
    assert_eq!(run(&source, true).await, ["b"]);
    // From then on deletions are delivered.
    source.write("b", Value::Null);
    assert_eq!(run(&source, true).await, ["b"]);
    assert_eq!(run(&filled(), false).await, ["b", "a"]);
}
