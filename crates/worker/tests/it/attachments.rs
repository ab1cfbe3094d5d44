//! Attachments with each kind of target.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_worker::connect::AnyTarget;
use flatbed_worker::documents::{
    self, ChangesFeed, ConfigurationError, Connections, Description, Document, SourceType,
};
use flatbed_worker::output::sqlite::Sqlite;
use flatbed_worker::peer::{Peer, PeerError};
use flatbed_worker::run::{Counts, ReplayRequest, RunEnd};
use flatbed_worker::source::{HttpSource, Source, SourceError};
use hyper::header::HeaderMap;
use serde_json::{Value, json};

use crate::fake::{FakeQueue, FakeSource, Mishap, Unlucky, job, once};
use crate::s3::{into, target};
use crate::server::{Request, plain, serve};

/// Objects by key: type, digest and text.
type Objects = Arc<Mutex<BTreeMap<String, (String, String, String)>>>;

fn header(request: &Request, name: &str) -> String {
    request.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone()).unwrap_or_default()
}

/// Starts a bucket `b` in memory, whose lists have at most two keys, and records its requests.
async fn bucket() -> (String, Objects, Arc<Mutex<Vec<Request>>>) {
    let objects: Objects = Arc::default();
    let kept = objects.clone();
    let answer = move |request: &Request| {
        let mut objects = kept.lock().unwrap();
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let key = path.strip_prefix("/b/").unwrap_or_default().to_owned();
        match request.method.as_str() {
            "PUT" => {
                let said = (header(request, "content-type"), header(request, "x-amz-meta-flatbed-digest"));
                objects.insert(key, (said.0, said.1, request.body.clone()));
                (200, "", String::new())
            }
            "HEAD" => match objects.get(&key) {
                Some((_, digest, _)) => {
                    let line = format!("x-amz-meta-flatbed-digest: {digest}\r\n");
                    (200, &*Box::leak(line.into_boxed_str()), String::new())
                }
                None => (404, "", String::new()),
            },
            "DELETE" => {
                objects.remove(&key);
                (204, "", String::new())
            }
            _ => {
                let of = |name: &str| {
                    form_urlencoded::parse(query.as_bytes())
                        .find(|(of, _)| of == name)
                        .map(|(_, value)| value.into_owned())
                };
                let (prefix, after) = (of("prefix").unwrap(), of("continuation-token").unwrap_or_default());
                // The path encodes a key once more than the list does.
                let plain = |key: &String| {
                    form_urlencoded::parse(format!("k={}", key.replace('+', "%2B")).as_bytes())
                        .next()
                        .unwrap()
                        .1
                        .into_owned()
                };
                let all: Vec<String> =
                    objects.keys().map(plain).filter(|key| key.starts_with(&prefix) && *key > after).collect();
                let two: Vec<String> =
                    all.iter().take(2).map(|key| format!("<Contents><Key>{key}</Key></Contents>")).collect();
                let next = match all.get(1).filter(|_| all.len() > 2) {
                    Some(last) => {
                        format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>")
                    }
                    None => "<IsTruncated>false</IsTruncated>".to_owned(),
                };
                (200, "", format!("<ListBucketResult>{}{next}</ListBucketResult>", two.concat()))
            }
        }
    };
    let (url, requests) = serve(answer).await;
    (url, objects, requests)
}

fn fetched(source: &FakeSource) -> Vec<String> {
    let mut fetched = std::mem::take(&mut source.0.lock().unwrap().fetched);
    fetched.sort();
    fetched
}

fn apart(members: Value) -> Value {
    let mut whole = json!({"enabled": true, "mode": "individual"});
    whole.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    json!({"attachments": whole})
}

#[tokio::test]
async fn objects_follow_the_attachments_of_their_document() {
    let (url, objects, requests) = bucket().await;
    let keys = || objects.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    let job = into(&url, json!({"key_template": "in/{id}.json"}), apart(json!({})));
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.attach(
        "a",
        json!({}),
        &[("x y.png", "image/png", b"\x01\x02"), ("b.txt", "text/plain; charset=utf-8", b"hello")],
    );
    source.attach("a/b", json!({}), &[("1", "", b"1"), ("2", "a  b", b"2"), ("../3", "é", b"3")]);
    source.write("plain", json!({}));
    let (end, counts, _) = once(&job, &source, target(&job), &queue, 1).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 3));
    // Folder, document and name stay apart with any characters.
    let of_b = ["attachments/a%252Fb/%252E.%252F3", "attachments/a%252Fb/1", "attachments/a%252Fb/2"];
    let in_ = ["in/a%252Fb.json", "in/a.json", "in/plain.json"];
    let of_a = ["attachments/a/b.txt", "attachments/a/x%2520y.png"];
    assert_eq!(keys(), [of_b.as_slice(), &of_a, &in_].concat());
    let of = |key: &str| objects.lock().unwrap()[key].clone();
    assert_eq!((of(of_a[0]).0.as_str(), of(of_a[0]).2.as_str()), ("text/plain; charset=utf-8", "hello"));
    // Invalid header values are not sent.
    assert!(of_b.iter().all(|key| of(key).0 == "application/octet-stream"));
    {
        // Attachments are stored before their document.
        let requests = requests.lock().unwrap();
        let at = |key: &str| requests.iter().position(|request| request.path == format!("/b/{key}")).unwrap();
        assert!(of_a.iter().all(|key| at(key) < at("in/a.json")));
        // Nothing is listed for a first revision.
        assert!(
            requests.iter().all(|request| request.method == "PUT"
                || request.path.contains("prefix=attachments%2Fa%252Fb%2F")
                || request.path.contains("prefix=attachments%2Fplain")),
            "{requests:?}"
        );
    }
    assert_eq!(fetched(&source), ["a/b.txt?1-x", "a/b/../3?2-x", "a/b/1?2-x", "a/b/2?2-x", "a/x y.png?1-x"]);
    // Stored attachments are not fetched again; removed ones are deleted, and no other document's.
    source.attach("a", json!({"n": 2}), &[("x y.png", "image/png", b"\x01\x02"), ("c", "text/plain", b"new")]);
    source.write("a/b", Value::Null);
    assert_eq!(once(&job, &source, target(&job), &queue, 2).await.0, RunEnd::Done);
    assert_eq!(fetched(&source), ["a/c?4-x"]);
    assert_eq!(keys(), ["attachments/a/c", "attachments/a/x%2520y.png", "in/a.json", "in/plain.json"]);
    // Other bytes under the same name are fetched; attachments that a store lost come with the next revision.
    source.attach("a", json!({"n": 3}), &[("x y.png", "image/png", b"\x01\x02"), ("c", "text/plain", b"newer")]);
    objects.lock().unwrap().remove("attachments/a/x%2520y.png");
    assert_eq!(once(&job, &source, target(&job), &queue, 3).await.0, RunEnd::Done);
    assert_eq!(fetched(&source), ["a/c?6-x", "a/x y.png?6-x"]);
    assert_eq!((of("attachments/a/c").2.as_str(), keys().len()), ("newer", 4));
    source.write("a", json!({}));
    assert_eq!(once(&job, &source, target(&job), &queue, 4).await.0, RunEnd::Done);
    assert_eq!(keys(), ["in/a.json", "in/plain.json"]);
    assert!(queue.documents().is_empty());
}

#[tokio::test]
async fn a_real_store_has_them() {
    let Some(server) = crate::s3::server().await else { return };
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    let members = json!({"key_template": "{seq_number}-{seq}.jsonl", "format": "json_lines"});
    let job =
        server.job(members, apart(json!({"destination": {"key_template": "of/{job} &+%/{doc_id}/{attachment_name}"}})));
    let names = ["a", "ä ö", "x+y&z", "<b>", "..", "a/b", "100%"];
    let all: Vec<(&str, &str, &[u8])> = names.iter().map(|name| (*name, "text/plain", name.as_bytes())).collect();
    source.attach("d/1", json!({}), &all);
    source.attach("d", json!({}), &all[..1]);
    let unlucky = Unlucky { target: server.target(&job), mishaps: vec![Some(Mishap::KilledAfter)] };
    assert_eq!(once(&job, &source, unlucky, &queue, 1).await.0, RunEnd::Superseded);
    assert_eq!(once(&job, &source, server.target(&job), &queue, 2).await.0, RunEnd::Done);
    let folder = |id: &str| format!("of/j &+%/{id}/");
    let keys = async |id: &str| {
        let all = crate::s3::keys(&server).await;
        all.into_iter().filter_map(|key| Some(key.strip_prefix(&folder(id))?.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(keys("d%2F1").await, ["%2E.", "%3Cb%3E", "100%25", "a", "a%2Fb", "x%2By%26z", "ä%20ö"]);
    assert_eq!(crate::s3::get(&server, &format!("{}ä%20ö", folder("d%2F1")), "").await, (200, "ä ö".to_owned()));
    // They are new in this revision, and a restarted process does not know what was stored before.
    assert_eq!(fetched(&source).len(), 16);
    source.attach("d/1", json!({}), &all[1..3]);
    assert_eq!(once(&job, &source, server.target(&job), &queue, 3).await.0, RunEnd::Done);
    assert_eq!((fetched(&source), keys("d%2F1").await), (Vec::new(), vec!["x%2By%26z".to_owned(), "ä%20ö".to_owned()]));
    source.write("d/1", Value::Null);
    assert_eq!(once(&job, &source, server.target(&job), &queue, 4).await.0, RunEnd::Done);
    assert_eq!((keys("d%2F1").await, keys("d").await), (Vec::new(), vec!["a".to_owned()]));
    assert!(queue.documents().is_empty());
}

fn to(url: &str, members: Value, system: Value) -> Description {
    let mut output = json!({"id": "out", "url": format!("{url}/in/{{id}}")});
    output.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let mut whole = json!({"retry": {"backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}});
    whole.as_object_mut().unwrap().extend(system.as_object().unwrap().clone());
    job("http", output, Value::Null, whole)
}

#[tokio::test]
async fn endpoints_get_requests_of_their_own() {
    let (url, requests) = serve(|request: &Request| match (request.method.as_str(), request.path.as_str()) {
        ("HEAD", "/in/a/same") => (200, "etag: \"7\"\r\n", String::new()),
        ("HEAD", "/in/a/known") => (200, "flatbed-digest: md5-7\r\n", String::new()),
        ("HEAD", _) => (405, "", String::new()),
        (_, "/in/bad/1") => (415, "", "no such type".to_owned()),
        _ => (201, "", String::new()),
    })
    .await;
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    // The digest matches no bytes.
    source.attach("a", json!({}), &[("known", "", b""), ("same", "", b""), ("x y", "image/png", b"png")]);
    source.attach("bad", json!({}), &[("1", "a/b", b"1")]);
    let job = to(&url, json!({}), apart(json!({})));
    let (end, counts, _) = once(&job, &source, target(&job), &queue, 5).await;
    assert_eq!((end, counts), (RunEnd::Done, Counts { delivered: 1, queued: 1, ..Counts::default() }));
    assert_eq!(queue.0.lock().unwrap().values().next().unwrap().reason, "client_error:415");
    let sent = || {
        let of = |request: Request| format!("{} {}", request.method, request.path);
        requests.lock().unwrap().drain(..).map(of).filter(|line| line.contains("/a")).collect::<Vec<_>>()
    };
    {
        let requests = requests.lock().unwrap();
        let png = requests.iter().find(|request| request.path == "/in/a/x%20y").unwrap();
        let headers = ["content-type", "flatbed-epoch", "flatbed-seq"].map(|name| header(png, name));
        assert_eq!((headers, png.body.as_str()), (["image/png", "5", "1"].map(str::to_owned), "png"));
        assert!(header(png, "flatbed-digest").starts_with("md5-"));
    }
    assert_eq!(sent(), ["PUT /in/a/known", "PUT /in/a/same", "PUT /in/a/x%20y", "PUT /in/a"]);
    // The halves of a split part use the cache.
    assert_eq!(fetched(&source).len(), 4);
    // For another revision the endpoint is asked again.
    source.attach("a", json!({}), &[("known", "", b""), ("same", "", b""), ("x y", "image/png", b"png")]);
    once(&job, &source, target(&job), &queue, 6).await;
    let again = ["HEAD /in/a/known", "HEAD /in/a/same", "HEAD /in/a/x%20y"];
    assert_eq!(sent(), [again.as_slice(), &["PUT /in/a/x%20y", "PUT /in/a"]].concat());
    // A refused document is replayed with its attachments.
    let entries = queue.0.lock().unwrap().clone();
    queue.1.lock().unwrap().extend(entries.into_values().map(|entry| ReplayRequest { entry, by_hand: true }));
    let elsewhere = apart(json!({"destination": {"url_template": "/files/{doc_id}?name={attachment_name}"}}));
    let job = to(&url, json!({}), elsewhere);
    assert_eq!(once(&job, &source, target(&job), &queue, 7).await.1.replayed, 1);
    let paths: Vec<String> = requests.lock().unwrap().iter().map(|request| request.path.clone()).collect();
    assert_eq!(paths, ["/files/bad?name=1", "/in/bad"]);
    assert!(queue.documents().is_empty());
}

#[tokio::test]
async fn documents_have_them_within() {
    let (url, requests) = serve(|_| (201, "", String::new())).await;
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    // Larger than the products of a part.
    let large = vec![7_u8; 7 << 20];
    source.attach("large", json!({}), &[("1", "a/b", &large)]);
    source.attach("small", json!({"n": 1}), &[("x", "text/plain", b"hello"), ("y.bin", "a/b", b"\x00")]);
    source.write("none", json!({}));
    let within = json!({"attachments": {"enabled": true, "filter": {"name_pattern": "^[0-9x]"}}});
    let job = to(&url, json!({}), within);
    let (end, counts, _) = once(&job, &source, target(&job), &queue, 1).await;
    assert_eq!((end, counts.delivered, queue.documents()), (RunEnd::Done, 3, Vec::new()));
    let requests = requests.lock().unwrap();
    let body = |id: &str| {
        let request = requests.iter().find(|request| request.path == format!("/in/{id}")).unwrap();
        serde_json::from_str::<Value>(&request.body).unwrap()["_attachments"].clone()
    };
    assert_eq!(
        (&body("small")["x"]["data"], &body("small")["x"]["stub"]),
        (&json!(BASE64.encode("hello")), &Value::Null)
    );
    assert_eq!((&body("small")["y.bin"]["stub"], &body("none")), (&json!(true), &Value::Null));
    assert_eq!(body("large")["1"]["data"].as_str().unwrap().len(), large.len().div_ceil(3) * 4);
    assert_eq!(fetched(&source), ["large/1?1-x", "small/x?2-x"]);
}

#[tokio::test]
async fn what_is_too_large_or_missing() {
    let (url, requests) = serve(|_| (201, "", String::new())).await;
    for (settings, queued, sent) in [
        (json!({}), vec!["large", "total"], "gone=1 unsaid=1"),
        (json!({"on_too_large": "stub"}), vec![], "gone=1 large=1 total=0 unsaid=1"),
        (json!({"on_missing_attachment": "dlq", "on_too_large": "stub"}), vec!["gone"], "large=1 total=0 unsaid=1"),
    ] {
        let (source, queue) = (FakeSource::default(), FakeQueue::default());
        source.attach("large", json!({}), &[("1", "", b"1"), ("2", "", &[0; 11])]);
        source.attach("total", json!({}), &[("1", "", &[0; 8]), ("2", "", &[0; 8])]);
        source.attach("gone", json!({}), &[("1", "", b"1"), ("2", "", b"22")]);
        // Another length than declared, and a missing attachment.
        source.0.lock().unwrap().attachments.insert(("gone".to_owned(), "2".to_owned()), b"2".to_vec());
        source.attach("unsaid", json!({"_attachments": {"2": {"stub": true}}}), &[("1", "", b"1")]);
        let mut whole = json!({"filter": {"max_size_bytes": 10, "max_total_bytes_per_doc": 15}});
        whole.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        // A missing attachment counts the same.
        if settings["on_missing_attachment"] == "dlq" {
            source.0.lock().unwrap().attachments.insert(("unsaid".to_owned(), "2".to_owned()), vec![0; 11]);
        }
        let job = to(&url, json!({}), apart(whole));
        let (end, ..) = once(&job, &source, target(&job), &queue, 1).await;
        assert_eq!(
            (end, queue.documents()),
            (RunEnd::Done, queued.iter().map(|id| (*id).to_owned()).collect()),
            "{settings}"
        );
        assert!(queue.0.lock().unwrap().values().all(|entry| entry.reason == "data_error:attachments"));
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for request in requests.lock().unwrap().drain(..) {
            let mut names = request.path.split('/').skip(2);
            let count = counts.entry(names.next().unwrap().to_owned()).or_default();
            *count += usize::from(names.next().is_some());
        }
        let counts: Vec<String> = counts.iter().map(|(id, count)| format!("{id}={count}")).collect();
        assert_eq!(counts.join(" "), sent, "{settings}");
    }
}

#[tokio::test]
async fn a_source_that_is_away_is_waited_for() {
    let (url, requests) = serve(|_| (201, "", String::new())).await;
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    for at in 0..20 {
        source.attach(&format!("d{at}"), json!({}), &[("1", "", b"1"), ("2", "", b"2")]);
    }
    let job = to(&url, json!({}), apart(json!({})));
    source.0.lock().unwrap().failing = 9;
    let (end, counts, _) = once(&job, &source, target(&job), &queue, 1).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 20, 0));
    assert_eq!(requests.lock().unwrap().len(), 60);
}

#[tokio::test]
async fn rows_follow_the_attachments_of_their_document() {
    let mapping = json!({"source": {"match": {"t": "x"}}, "tables": [
        {"name": "docs", "primary_key": "id", "columns": {"id": "$._id"}},
        {"name": "files", "parent": "docs", "foreign_key": {"column": "id", "references": "id"}, "source_array": "$._attachments",
            "primary_key": ["id", "name"], "columns": [{"name": "id", "path": "$$._id"}, {"name": "name", "path": "$.name"},
            {"name": "kind", "path": "$.content_type"}, {"name": "data", "path": "$.data", "type": "bytea"}]}]});
    let system = json!({"attachments": {"enabled": true, "mode": "list"}});
    let job = job("rdbms", json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite"}), mapping, system);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.sqlite");
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    let run = async |epoch: u64| {
        let target = Sqlite::in_file(&file, "j", job.mapping.tables(), true);
        assert_eq!(once(&job, &source, target, &queue, epoch).await.0, RunEnd::Done);
        let connection = rusqlite::Connection::open(&file).unwrap();
        let mut statement = connection.prepare("SELECT name, kind, data FROM files ORDER BY name").unwrap();
        let row = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<Vec<u8>>>(2)?))
        };
        let rows: Vec<_> = statement.query_map([], row).unwrap().map(Result::unwrap).collect();
        rows
    };
    let row = |name: &str, data: &[u8]| (name.to_owned(), "a/b".to_owned(), Some(data.to_vec()));
    source.attach("d", json!({"t": "x"}), &[("1", "a/b", b"\x00\xff"), ("2", "a/b", b"two")]);
    // Attachments of unmatched documents are not fetched.
    source.attach("other", json!({"t": "y"}), &[("1", "a/b", b"1")]);
    assert_eq!(run(1).await, [row("1", b"\x00\xff"), row("2", b"two")]);
    assert_eq!(fetched(&source), ["d/1?1-x", "d/2?1-x"]);
    source.attach("d", json!({"t": "x"}), &[("2", "a/b", b"zwei")]);
    assert_eq!(run(2).await, [row("2", b"zwei")]);
    source.write("d", json!({"t": "x"}));
    assert_eq!(run(3).await, []);
    assert!(queue.documents().is_empty());
}

#[tokio::test]
async fn a_source_is_asked_for_a_revisions_attachment() {
    let (url, requests) = serve(|request: &Request| match request.path.as_str() {
        "/db/a%2Fb/c%20d%2Fe?rev=2-x" => (200, "", "hello".to_owned()),
        "/db/_design/d/1?rev=2-x" => (503, "", String::new()),
        _ => (404, "", "{}".to_owned()),
    })
    .await;
    let url = flatbed_client::Url::parse(&format!("{url}/db")).unwrap();
    let peer = Peer::new(url, HeaderMap::new(), plain());
    let source = HttpSource::new(peer, SourceType::Couchdb, ChangesFeed::default());
    assert_eq!(source.attachment("a/b", "2-x", "c d/e", 5).await.unwrap().unwrap(), "hello");
    assert_eq!(source.attachment("a/b", "3-x", "c d/e", 5).await, Ok(None));
    assert_eq!(source.attachment("a/b", "2-x", "c d/e", 4).await, Err(SourceError::Peer(PeerError::TooLarge(200))));
    assert_eq!(source.attachment("_design/d", "2-x", "1", 4).await, Err(SourceError::Status(503)));
    assert_eq!(requests.lock().unwrap().len(), 4);
}

#[test]
fn what_no_job_may_say() {
    let resolved = |output_type: &str, output: Value, mapping: Value, attachments: Value| {
        let input = json!({"id": "in", "source_type": "couchdb", "url": "http://localhost:5984/db"});
        let job = json!({"type": "job", "id": "j", "inputs": [input], "outputs": [output], "output_type": output_type,
            "mapping": mapping, "system": {"attachments": attachments}});
        let Document::Job(job) = documents::read(job.to_string().as_bytes()).map_err(|error| error.to_string())? else {
            panic!()
        };
        Connections::default().resolve(&job).map(drop).map_err(|error: ConfigurationError| error.to_string())
    };
    let individual = |destination: Value| json!({"enabled": true, "mode": "individual", "destination": destination});
    let s3 = |template: &str| json!({"id": "out", "provider": "s3", "bucket": "b", "key_template": template});
    let http = |url: &str| json!({"id": "out", "url": url});
    let hook = json!({"id": "out", "url": "http://h", "on_delete": "ignore"});
    let tables = json!({"tables": [{"name": "t", "primary_key": "id", "columns": {"id": "$._id"}}]});
    let sqlite = json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite"});
    let stdout = json!({"id": "out", "provider": "stdout"});
    for (kind, output, attachments) in [
        ("rdbms", sqlite.clone(), individual(json!({}))),
        ("cloud", stdout.clone(), individual(json!({}))),
        ("cloud", s3("attachments/{id}"), individual(json!({}))),
        ("cloud", s3("{type}/{id}"), individual(json!({}))),
        ("cloud", s3("{id}"), individual(json!({"key_template": "{id}/{attachment}"}))),
        ("http", http("http://h/{id}?x=1"), individual(json!({}))),
        ("http", json!({"id": "out", "url": "http://h/{type}", "on_delete": "ignore"}), individual(json!({}))),
        ("http", http("http://h/{id}"), individual(json!({"url_template": "/{id}/{attachment"}))),
        ("cloud", s3("{id}"), individual(json!({"key_template": "a/{table}/{id}/{attachment}"}))),
        ("cloud", s3("{id}/{attachment}"), individual(json!({}))),
        ("http", http("http://h/{id}"), individual(json!({"url_template": "/{id}"}))),
        ("http", http("http://h/{id}"), individual(json!({"url_template": "x/{id}/{attachment}"}))),
        ("http", http("http://h/{id}"), json!({"enabled": true, "filter": {"name_pattern": "("}})),
        ("http", http("http://h/{id}"), json!({"enabled": true, "mode": "stream"})),
    ] {
        let mapping = if kind == "rdbms" { tables.clone() } else { Value::Null };
        assert!(resolved(kind, output.clone(), mapping, attachments.clone()).is_err(), "{output} {attachments}");
    }
    for (kind, output, attachments) in [
        ("rdbms", sqlite, json!({"enabled": true, "mode": "list"})),
        ("cloud", stdout, json!({"enabled": true})),
        ("cloud", s3("{id}"), individual(json!({}))),
        ("http", http("http://h/{id}"), individual(json!({}))),
        ("http", hook.clone(), individual(json!({"url_template": "/{type}/{id}/{attachment}"}))),
        // Attachments that are not delivered are not validated.
        ("http", hook, json!({"mode": "individual"})),
    ] {
        let mapping = if kind == "rdbms" { tables.clone() } else { Value::Null };
        assert_eq!(resolved(kind, output.clone(), mapping, attachments.clone()), Ok(()), "{output} {attachments}");
    }
    assert!(matches!(target(&to("http://127.0.0.1:9", json!({}), json!({}))), AnyTarget::Http(_)));
}
