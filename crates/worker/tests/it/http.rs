use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_client::Url;
use flatbed_worker::checkpoint::{Checkpoint, Seq};
use flatbed_worker::documents::{ChangesFeed, SourceType};
use flatbed_worker::failure::Class;
use flatbed_worker::output::body::Format;
use flatbed_worker::output::http::{Http, HttpSettings};
use flatbed_worker::output::{Delivery, DeliveryError, DeliveryState, Target};
use flatbed_worker::peer::Peer;
use flatbed_worker::rows::Product;
use flatbed_worker::run::{Counts, RunEnd};
use flatbed_worker::source::{HttpSource, PageLimits, Source, SourceError};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::fake::{FakeQueue, FakeSource, job, once};
use crate::server::{Request, Response, plain, serve};

fn peer(url: &str) -> Peer {
    let headers: HeaderMap =
        [(hyper::header::AUTHORIZATION, HeaderValue::from_static("Basic x"))].into_iter().collect();
    Peer::new(Url::parse(url).unwrap(), headers, plain())
}

fn ok(body: Value) -> Response {
    (200, "", body.to_string())
}

#[tokio::test]
async fn a_source_is_asked_as_couchdb_answers() {
    let (url, requests) = serve(|request: &Request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/db") => ok(json!({"db_name": "db", "instance_start_time": "1700000000", "update_seq": "7-abc"})),
        ("GET", "/db/_local/checkpoint-1") => (404, "", "{}".to_owned()),
        ("GET", "/db/_local/checkpoint-2") => {
            ok(json!({"_id": "_local/checkpoint-2", "_rev": "0-3", "client_id": "w", "time": 1, "remote": "5"}))
        }
        ("PUT", "/db/_local/checkpoint-1") => (201, "", json!({"ok": true, "rev": "0-1"}).to_string()),
        ("PUT", _) => (409, "", "{}".to_owned()),
        ("GET", "/db/a%2Fb") => ok(json!({"_id": "a/b", "_rev": "1-x", "n": 1})),
        ("GET", path) if path.starts_with("/db/_changes") => {
            let row =
                json!({"seq": "7-abc", "id": "a", "changes": [{"rev": "1-x"}], "doc": {"_id": "a", "_rev": "1-x"}});
            ok(json!({"results": [row], "last_seq": "7-abc"}))
        }
        _ => (503, "retry-after: 1\r\n", "down".to_owned()),
    })
    .await;
    let feed = ChangesFeed { channels: vec!["a".to_owned(), "b&c".to_owned()], ..ChangesFeed::default() };
    let source = HttpSource::new(peer(&format!("{url}/db")), SourceType::SyncGateway, feed);
    let couchdb = HttpSource::new(peer(&format!("{url}/db")), SourceType::Couchdb, ChangesFeed::default());
    let seq = |text: &str| Seq::parse(text).unwrap();
    let (identity, update_seq) = couchdb.identity().await.unwrap();
    assert_eq!((identity.instance.as_deref(), update_seq), (Some("1700000000"), seq("7-abc")));
    assert_eq!(
        source
            .page(&seq("5 &x"), PageLimits { limit: 10, bytes_max: 1 << 20, is_to_wait: true })
            .await
            .unwrap()
            .changes
            .len(),
        1
    );
    assert_eq!(
        requests.lock().unwrap().last().unwrap().path,
        "/db/_changes?feed=longpoll&since=5%20%26x&include_docs=true&revocations=true&filter=sync_gateway%2Fbychannel&channels=a%2Cb%26c&limit=10&timeout=25000"
    );
    assert_eq!(source.document("a/b", 1 << 20).await.unwrap().unwrap(), r#"{"_id":"a/b","_rev":"1-x","n":1}"#);
    assert_eq!(source.checkpoint("checkpoint-1").await, Ok(None));
    let (checkpoint, rev) = source.checkpoint("checkpoint-2").await.unwrap().unwrap();
    assert_eq!((checkpoint.seq.as_str(), rev.as_str()), ("5", "0-3"));
    let checkpoint = Checkpoint::default();
    assert_eq!(source.write_checkpoint("checkpoint-1", &checkpoint, None).await, Ok("0-1".to_owned()));
    assert_eq!(source.write_checkpoint("checkpoint-2", &checkpoint, None).await, Err(SourceError::Status(409)));
    assert_eq!(source.document("gone", 1 << 20).await, Err(SourceError::Status(503)));
    assert!(
        requests
            .lock()
            .unwrap()
            .iter()
            .all(|request| request.headers.contains(&("authorization".to_owned(), "Basic x".to_owned())))
    );
}

fn ways() -> HttpSettings {
    HttpSettings {
        template: "/in/{id}".to_owned(),
        method: Method::PUT,
        delete_method: Method::DELETE,
        is_delete_with_body: false,
        is_delete_ignored: false,
        format: Format::Json,
        attachments: None,
        time_max: Duration::from_secs(60),
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_busy_and_breaks_off() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (url, requests) = serve(|request: &Request| match request.path.as_str() {
        "/in/poison" => (422, "", "no such thing, hunter2".to_owned()),
        "/in/gone" => (404, "", String::new()),
        // Every third request gets a transient refusal.
        _ if ASKED.fetch_add(1, Ordering::Relaxed) % 3 == 2 => (503, "retry-after: 0\r\n", "busy".to_owned()),
        _ => (201, "", String::new()),
    })
    .await;
    let system = json!({"retry": {"backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}});
    let job = job("http", json!({"id": "out", "url": format!("{url}/in/{{id}}")}), Value::Null, system);
    let (source, queue) = (FakeSource::filled(40), FakeQueue::default());
    source.write("poison", json!({"n": 0}));
    source.write("gone", Value::Null);
    let target = Http::new(peer(&url), ways(), Vec::new(), 4);
    let (end, counts, _) = once(&job, &source, target, &queue, 9).await;
    assert_eq!(
        (end, Counts { outages: 0, ..counts }),
        (RunEnd::Done, Counts { delivered: 41, queued: 1, ..Counts::default() })
    );
    assert_eq!(queue.documents(), ["poison"]);
    let entry = queue.0.lock().unwrap().values().next().unwrap().clone();
    assert_eq!(
        (entry.status, entry.reason.as_str(), entry.error.as_str()),
        (422, "client_error:422", "no such thing, ***")
    );
    let requests = requests.lock().unwrap();
    let of = |id: &str| requests.iter().filter(|request| request.path == format!("/in/{id}")).collect::<Vec<_>>();
    // Each document arrives once, with epoch and position in the headers.
    for at in 0..40 {
        let sent = of(&format!("d{at}"));
        let header = |name: &str| sent[0].headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
        assert!(!sent.is_empty() && sent[0].method == "PUT");
        assert_eq!(
            (header("flatbed-epoch"), header("flatbed-seq")),
            (Some("9".to_owned()), Some((at + 1).to_string()))
        );
        assert!(sent[0].body.contains(&format!("\"n\":{at}")));
    }
    assert_eq!(of("gone")[0].method, "DELETE");
    let all = requests.iter().filter(|request| request.path.starts_with("/in/d")).count();
    // Every third was refused, and no other was repeated.
    assert_eq!(all - all / 3, 40);
}

#[tokio::test]
async fn what_does_not_answer_is_an_outage() {
    let (url, _) = serve(|_| (503, "", "x".repeat(100_000))).await;
    let job = job(
        "http",
        json!({"id": "out", "url": "http://h/{id}"}),
        Value::Null,
        json!({"halt_on_failure": true, "retry": {"max_retries": 1, "backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}}),
    );
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.write("a", json!({}));
    let nobody = "http://127.0.0.1:9".to_owned();
    for (url, says) in [(url, "more than 64 kB"), (nobody, "refused")] {
        let target = Http::new(peer(&url), ways(), Vec::new(), 4);
        let (end, ..) = once(&job, &source, target, &queue, 1).await;
        let RunEnd::GaveUp(reason) = end else { panic!("{end:?}") };
        assert!(reason.contains(says), "{reason}");
    }
    assert!(queue.documents().is_empty());
}

/// An endpoint that echoes the stored document has taken it.
#[tokio::test]
async fn a_long_answer_means_what_its_status_says() {
    let (url, requests) = serve(|_| (201, "", "x".repeat(100_000))).await;
    let job = job("http", json!({"id": "out", "url": "http://h/{id}"}), Value::Null, json!({}));
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.write("a", json!({}));
    let target = Http::new(peer(&url), ways(), Vec::new(), 4);
    let (_, counts, _) = once(&job, &source, target, &queue, 1).await;
    assert_eq!((counts.delivered, requests.lock().unwrap().len()), (1, 1));
    assert!(queue.documents().is_empty());
}

fn delivery(id: &str, seq: u64, json: Option<&str>) -> Delivery {
    let state = json.map_or(DeliveryState::Gone, |json| DeliveryState::Is(Product::Json(json.to_owned())));
    Delivery { id: id.into(), rev: "1-x".into(), seq: seq.to_string(), state, attachments: Vec::new() }
}

/// Starts an endpoint that answers all requests with a status, and those for the missing document with 404.
async fn endpoint(status: Arc<AtomicU32>) -> (String, impl Fn() -> String) {
    let (url, requests) = serve(move |request: &Request| match status.load(Ordering::Relaxed) {
        200 if request.path.ends_with("/none") => (404, "", String::new()),
        status => (u16::try_from(status).unwrap(), "", String::new()),
    })
    .await;
    let sent = move || {
        let of = |request: Request| format!("{} {}", request.method, request.path.trim_start_matches("/in/"));
        requests.lock().unwrap().drain(..).map(of).collect::<Vec<_>>().join(", ")
    };
    (url, sent)
}

#[tokio::test]
async fn deletions_that_met_no_place_are_sent_again() {
    let status = Arc::new(AtomicU32::new(200));
    let (url, sent) = endpoint(status.clone()).await;
    let mut target = Http::new(peer(&url), ways(), Vec::new(), 1);
    let is = |id, seq| delivery(id, seq, Some("{}"));
    let gone = |id, seq| delivery(id, seq, None);
    let is_outage = |done: &Result<(), DeliveryError>| matches!(done, Err(DeliveryError::Failed { failure, .. }) if failure.class() == Class::Outage);
    // A missing document counts as deleted, and documents go first.
    target.deliver(vec![gone("none", 1), is("a", 2), is("b", 3)], None).await.unwrap();
    assert_eq!(sent(), "PUT a, PUT b, DELETE none");
    target.deliver(vec![is("c", 4)], None).await.unwrap();
    assert_eq!(sent(), "PUT c");
    // The path is lost for a while.
    status.store(404, Ordering::Relaxed);
    target.deliver(vec![gone("a", 5), gone("b", 6)], None).await.unwrap();
    for _ in 0..2 {
        assert!(is_outage(&target.deliver(vec![is("b", 7), is("d", 8)], None).await));
    }
    assert_eq!(sent(), "DELETE a, DELETE b, PUT b, PUT b");
    // Changes in the batch are newer.
    status.store(200, Ordering::Relaxed);
    target.deliver(vec![is("b", 7), is("d", 8)], None).await.unwrap();
    assert_eq!(sent(), "PUT b, DELETE a, PUT d");
    target.deliver(vec![is("d", 9)], None).await.unwrap();
    assert_eq!(sent(), "PUT d");
    // It is lost again, and fails before everything is repeated.
    status.store(404, Ordering::Relaxed);
    target.deliver(vec![gone("c", 10), gone("d", 11)], None).await.unwrap();
    assert!(target.deliver(vec![is("e", 12)], None).await.is_err());
    status.store(503, Ordering::Relaxed);
    assert!(is_outage(&target.deliver(vec![is("e", 12)], None).await));
    status.store(200, Ordering::Relaxed);
    sent();
    target.deliver(vec![is("e", 12)], None).await.unwrap();
    assert_eq!(sent(), "PUT e, DELETE c, DELETE d");
    // While documents are taken, deletions are not in doubt.
    target.deliver(vec![gone("none", 13)], None).await.unwrap();
    target.deliver(vec![is("f", 14)], None).await.unwrap();
    status.store(404, Ordering::Relaxed);
    assert!(target.deliver(vec![is("g", 15)], None).await.is_err());
    status.store(200, Ordering::Relaxed);
    target.deliver(vec![is("g", 15)], None).await.unwrap();
    assert_eq!(sent(), "DELETE none, PUT f, PUT g, PUT g");
}

/// A repeated deletion must not follow a newer state of its document, in whichever part of a batch that comes.
#[tokio::test]
async fn no_deletion_comes_after_what_is_newer() {
    let stored = Arc::<Mutex<BTreeSet<String>>>::default();
    let is_lost = Arc::<AtomicBool>::default();
    let (url, _) = serve({
        let (stored, is_lost) = (stored.clone(), is_lost.clone());
        move |request: &Request| {
            let id = request.path.trim_start_matches("/in/").to_owned();
            let is_there = match request.method.as_str() {
                _ if id == "away" => return (503, "", String::new()),
                _ if is_lost.load(Ordering::SeqCst) => return (404, "", String::new()),
                _ if id == "poison" => return (422, "", String::new()),
                "PUT" => {
                    stored.lock().unwrap().insert(id);
                    true
                }
                _ => stored.lock().unwrap().remove(&id),
            };
            (if is_there { 200 } else { 404 }, "", String::new())
        }
    })
    .await;
    let is = |id, seq| delivery(id, seq, Some("{}"));
    let gone = |id, seq| delivery(id, seq, None);
    // The batches after the path is found again, part by part.
    let found: [&[&[Delivery]]; 4] = [
        // In a bisected batch, `x` is taken with its first try.
        &[&[is("poison", 4), is("x", 5)], &[is("poison", 4)], &[is("x", 5)]],
        &[&[is("x", 5), is("poison", 6)], &[is("x", 5)], &[is("poison", 6)]],
        &[&[is("x", 4)], &[is("poison", 5)], &[is("z", 6)]],
        &[&[is("poison", 4), is("z", 5)], &[is("x", 6)], &[is("poison", 4)], &[is("z", 7)]],
    ];
    for parts in found {
        let mut target = Http::new(peer(&url), ways(), Vec::new(), 2);
        target.deliver(vec![is("x", 1)], None).await.unwrap();
        is_lost.store(true, Ordering::SeqCst);
        target.deliver(vec![gone("x", 2)], None).await.unwrap();
        target.deliver(vec![is("y", 3)], None).await.unwrap_err();
        is_lost.store(false, Ordering::SeqCst);
        for part in parts {
            let done = target.deliver(part.to_vec(), None).await;
            assert_eq!(done.is_err(), part.iter().any(|delivery| delivery.id == "poison"));
        }
        assert!(stored.lock().unwrap().contains("x"), "{parts:?}");
        // A deletion without a newer state of its document is repeated.
        is_lost.store(true, Ordering::SeqCst);
        target.deliver(vec![gone("x", 8)], None).await.unwrap();
        target.deliver(vec![is("y", 9)], None).await.unwrap_err();
        is_lost.store(false, Ordering::SeqCst);
        target.deliver(vec![is("y", 9)], None).await.unwrap();
        assert!(!stored.lock().unwrap().contains("x"), "{parts:?}");
    }
    // A deletion is not newer than itself, in a batch that repeats it after a refusal.
    let mut target = Http::new(peer(&url), ways(), Vec::new(), 1);
    target.deliver(vec![is("x", 1)], None).await.unwrap();
    is_lost.store(true, Ordering::SeqCst);
    target.deliver(vec![gone("x", 2), gone("away", 3)], None).await.unwrap_err();
    target.deliver(vec![gone("x", 2), is("y", 4)], None).await.unwrap_err();
    is_lost.store(false, Ordering::SeqCst);
    target.deliver(vec![gone("x", 2), is("y", 4)], None).await.unwrap();
    assert!(!stored.lock().unwrap().contains("x"));
}

#[tokio::test]
async fn what_a_status_says_of_a_deletion() {
    let status = Arc::new(AtomicU32::new(200));
    let (url, sent) = endpoint(status.clone()).await;
    for (method, answer, is_taken) in [
        (Method::DELETE, 404, true),
        (Method::DELETE, 410, true),
        (Method::PATCH, 404, true),
        (Method::POST, 410, true),
        // An endpoint that takes deletions by POST or PUT lacks the path.
        (Method::POST, 404, false),
        (Method::PUT, 404, false),
        (Method::DELETE, 405, false),
    ] {
        status.store(answer, Ordering::Relaxed);
        let ways = HttpSettings { delete_method: method.clone(), ..ways() };
        let done = Http::new(peer(&url), ways, Vec::new(), 1).deliver(vec![delivery("a", 1, None)], None).await;
        assert_eq!(done.is_ok(), is_taken, "{method} {answer}");
        assert_eq!(sent(), format!("{method} a"));
    }
    // Templates may have members if deletions are not sent.
    status.store(200, Ordering::Relaxed);
    let output = json!({"id": "out", "url": format!("{url}/in/{{type}}/{{_id}}"), "on_delete": "ignore"});
    let job = job("http", output, Value::Null, json!({}));
    let mut target = crate::s3::target(&job);
    let document = delivery("a", 1, Some(r#"{"_id":"a","type":"order"}"#));
    target.deliver(vec![document, delivery("b", 2, None)], None).await.unwrap();
    assert_eq!(sent(), "PUT order/a");
}

#[tokio::test]
async fn bodies_are_sent_as_what_a_job_says() {
    for (format, content_type, written, deleted) in [
        (Format::Json, "application/json", r#"{"_id":"a","_rev":"1-x","n":1}"#, r#"{"_id":"b","_deleted":true}"#),
        (Format::Form, "application/x-www-form-urlencoded", "_id=a&_rev=1-x&n=1", "_id=b&_deleted=true"),
        (Format::Msgpack, "application/msgpack", "\u{fffd}", "\u{fffd}"),
    ] {
        let (url, requests) = serve(|_| (200, "", String::new())).await;
        let output =
            json!({"id": "out", "url": format!("{url}/in/{{id}}"), "format": format!("{format:?}").to_lowercase()});
        let job = job("http", output, Value::Null, json!({}));
        let flatbed_worker::documents::Output::Http(output) = &job.output else { panic!() };
        assert_eq!(output.format, format);
        let mut target =
            Http::new(peer(&url), HttpSettings { is_delete_with_body: true, format, ..ways() }, Vec::new(), 1);
        let document = delivery("a", 1, Some(r#"{"_id":"a","_rev":"1-x","n":1}"#));
        target.deliver(vec![document, delivery("b", 2, None)], None).await.unwrap();
        let requests = requests.lock().unwrap();
        let sent: Vec<_> = requests.iter().map(|request| (request.method.as_str(), request.body.as_str())).collect();
        let is =
            |body: &str, expected: &str| body == expected || (expected == "\u{fffd}" && body.starts_with(expected));
        assert!(sent[0].0 == "PUT" && is(sent[0].1, written), "{sent:?}");
        assert!(sent[1].0 == "DELETE" && is(sent[1].1, deleted), "{sent:?}");
        let header = ("content-type".to_owned(), content_type.to_owned());
        assert!(requests.iter().all(|request| request.headers.contains(&header)), "{requests:?}");
    }
}
