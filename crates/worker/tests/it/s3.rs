use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use flatbed_client::Url;
use flatbed_testkit::until;
use flatbed_worker::connect::{AnyTarget, Reach, Secrets, connect};
use flatbed_worker::documents::{Connections, Description, Document, read};
use flatbed_worker::output::s3::sign::{CanonicalRequest, Signer, encode_key, hash, timestamp};
use flatbed_worker::output::{Delivery, DeliveryState, Target};
use flatbed_worker::peer::{Bounds, Peer};
use flatbed_worker::rows::Product;
use flatbed_worker::run::{Counts, RunEnd, Runner};
use flatbed_worker::secret::{Secret, SecretRef};
use hyper::Method;
use hyper::header::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, Mishap, Unlucky, job, once, redactor};
use crate::server::{Request, plain, serve};

fn reach(id: &str, key: &str) -> Reach {
    let variables = [("FLATBED_WORKER_ID", id), ("FLATBED_WORKER_KEY", key)];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    crate::server::reach(Secrets { directory: None, variables }, None)
}

/// Creates a job into the bucket `b` at a server, with further members of its output.
pub(crate) fn into(url: &str, members: Value, system: Value) -> Description {
    let mut output = json!({"id": "out", "provider": "s3", "bucket": "b", "endpoint_url": url,
        "access_key_id": "env:FLATBED_WORKER_ID", "secret_access_key": "env:FLATBED_WORKER_KEY"});
    output.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let mut merged = json!({"retry": {"backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}});
    merged.as_object_mut().unwrap().extend(system.as_object().unwrap().clone());
    job("cloud", output, Value::Null, merged)
}

pub(crate) fn target(job: &Description) -> AnyTarget {
    connect(job, &reach("AKID", "key")).unwrap().target
}

fn delivery(id: &str, seq: &str, state: DeliveryState) -> Delivery {
    Delivery { id: id.into(), rev: "1-x".into(), seq: seq.into(), state, attachments: Vec::new() }
}

fn is(json: &str) -> DeliveryState {
    DeliveryState::Is(Product::Json(json.to_owned()))
}

#[tokio::test]
async fn objects_are_put_and_deleted() {
    let (url, requests) = serve(|_| (200, "", String::new())).await;
    let job = into(&url, json!({"key_template": "in/{id}.json", "region": "eu-1"}), json!({}));
    let mut target = target(&job);
    target.begin(3).await.unwrap();
    let batch = vec![delivery("a/../b c", "1", is("{\"n\":1}")), delivery("gone", "2", DeliveryState::Gone)];
    target.deliver(batch, None).await.unwrap();
    let requests = requests.lock().unwrap();
    let of = |request: &Request| format!("{} {} {}", request.method, request.path, request.body);
    let mut sent: Vec<_> = requests.iter().map(of).collect();
    sent.sort();
    assert_eq!(sent, ["DELETE /b/in/gone.json ", "PUT /b/in/a%252F..%252Fb%2520c.json {\"n\":1}"]);
    let header = |request: &Request, name: &str| {
        request.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    for request in requests.iter() {
        let authorization = header(request, "authorization");
        assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKID/"), "{authorization}");
        assert!(authorization.contains("/eu-1/s3/aws4_request,"), "{authorization}");
        assert_eq!(header(request, "x-amz-content-sha256"), hash(request.body.as_bytes()));
    }
}

#[tokio::test]
async fn deletions_that_are_kept_out_or_written_down() {
    let (url, requests) = serve(|_| (200, "", String::new())).await;
    let batch = || vec![delivery("a", "1", is("{\"k\":\"x\"}")), delivery("b", "2", DeliveryState::Gone)];
    for (members, expected) in [
        (json!({"key_template": "{k}/{id}", "on_delete": "ignore"}), "/b/x/a {\"k\":\"x\"}"),
        (
            json!({"key_template": "{epoch}/{seq}", "on_delete": "tombstone"}),
            "/b/7/1 {\"k\":\"x\"}\n/b/7/2 {\"_id\":\"b\",\"_deleted\":true}",
        ),
        (
            json!({"key_template": "{first_seq}-{seq}", "format": "json_lines"}),
            "/b/1-2 {\"id\":\"a\",\"rev\":\"1-x\",\"seq\":\"1\",\"doc\":{\"k\":\"x\"}}\n{\"id\":\"b\",\"rev\":\"1-x\",\"seq\":\"2\",\"deleted\":true}\n",
        ),
        (
            json!({"key_template": "{first_seq}-{seq}", "format": "json_lines", "on_delete": "ignore"}),
            "/b/1-1 {\"id\":\"a\",\"rev\":\"1-x\",\"seq\":\"1\",\"doc\":{\"k\":\"x\"}}\n",
        ),
    ] {
        let job = into(&url, members.clone(), json!({"processing": {"sequential": true}}));
        let mut target = target(&job);
        target.begin(7).await.unwrap();
        target.deliver(batch(), None).await.unwrap();
        let sent: Vec<_> = requests.lock().unwrap().drain(..).map(|it| format!("{} {}", it.path, it.body)).collect();
        assert_eq!(sent.join("\n"), expected, "{members}");
    }
}

#[tokio::test]
async fn objects_of_many_have_as_many_as_they_may() {
    let (url, requests) = serve(|_| (200, "", String::new())).await;
    for (batch, expected) in [
        (json!({"max_docs": 3}), vec!["/b/3", "/b/6", "/b/7"]),
        // A line has 57 bytes.
        (json!({"max_bytes": 120}), vec!["/b/2", "/b/4", "/b/6", "/b/7"]),
        (json!({"max_bytes": 1}), vec!["/b/1", "/b/2", "/b/3", "/b/4", "/b/5", "/b/6", "/b/7"]),
        (json!({}), vec!["/b/7"]),
    ] {
        let job = into(&url, json!({"key_template": "{seq}", "format": "json_lines", "batch": batch}), json!({}));
        let deliveries = (1..=7).map(|at| delivery("a", &at.to_string(), is("{\"n\":12345}"))).collect();
        target(&job).deliver(deliveries, None).await.unwrap();
        let sent: Vec<_> = requests.lock().unwrap().drain(..).collect();
        assert_eq!(sent.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), expected, "{batch}");
        assert_eq!(sent.iter().map(|it| it.body.lines().count()).sum::<usize>(), 7);
    }
}

#[tokio::test]
async fn parquet_is_an_object_of_each_table() {
    let (url, requests) = serve(|_| (200, "", String::new())).await;
    let mapping = json!({"tables": [
        {"name": "o", "primary_key": "id", "columns": {"id": "$._id"}},
        {"name": "i", "parent": "o", "foreign_key": {"column": "o", "references": "id"}, "source_array": "$.items", "columns": {"n": "$"}}]});
    let output = |template: &str, format: &str| {
        json!({"id": "out", "provider": "s3", "bucket": "b", "endpoint_url": url, "format": format, "key_template": template,
            "batch": {"max_docs": 2}})
    };
    let described = |template: &str, format: &str, mapping: &Value| {
        let job = json!({"type": "job", "id": "j", "output_type": "cloud", "outputs": [output(template, format)], "mapping": mapping,
            "inputs": [{"id": "in", "source_type": "couchdb", "url": "http://localhost:5984/db"}]});
        let Document::Job(job) = read(job.to_string().as_bytes()).unwrap() else { panic!() };
        Connections::default().resolve(&job)
    };
    let job = described("{table}/{seq}.parquet", "parquet", &mapping).unwrap();
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    for at in 0..3 {
        source.write(&format!("d{at}"), json!({"items": ["x"]}));
    }
    let (end, counts, _) = once(&job, &source, target(&job), &queue, 1).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 3));
    let requests = requests.lock().unwrap();
    let paths: Vec<_> = requests.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/b/o/2.parquet", "/b/i/2.parquet", "/b/o/3.parquet", "/b/i/3.parquet"]);
    assert!(requests.iter().all(|request| request.body.starts_with("PAR1")));
    // Ambiguous keys, or no table.
    assert!(described("{seq}", "parquet", &mapping).is_err());
    assert!(described("{table}/{seq}", "parquet", &json!({})).is_err());
    assert!(described("{table}/{seq}", "json_lines", &mapping).is_err());
    assert!(described("{seq}", "parquet", &json!({})).is_ok());
}

#[tokio::test]
async fn what_a_store_refuses() {
    let error = |code: &str| format!("<Error><Code>{code}</Code><Message>hunter2</Message></Error>");
    let (url, _) = serve(move |request: &Request| match request.path.as_str() {
        "/b/long" => (400, "", error("KeyTooLongError")),
        path if path.starts_with("/b/") => (200, "", String::new()),
        _ => (404, "", error("NoSuchBucket")),
    })
    .await;
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    for id in ["a", "long", "z"] {
        source.write(id, json!({}));
    }
    // An id that makes no valid key is the document's fault too.
    source.write(&"x".repeat(1_100), json!({}));
    let job_ = into(&url, json!({"key_template": "{id}"}), json!({}));
    let (end, counts, _) = once(&job_, &source, target(&job_), &queue, 1).await;
    assert_eq!((end, counts), (RunEnd::Done, Counts { delivered: 2, queued: 2, ..Counts::default() }));
    assert!(queue.documents().contains(&"long".to_owned()));
    assert!(queue.0.lock().unwrap().values().all(|entry| !entry.error.contains("hunter2")));
    // A missing bucket is an outage, and no document goes to the queue.
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.write("a", json!({}));
    let gone = into(
        &url,
        json!({"key_template": "{id}", "bucket": "gone"}),
        json!({"halt_on_failure": true, "retry": {"max_retries": 1, "backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}}),
    );
    let (end, ..) = once(&gone, &source, target(&gone), &queue, 1).await;
    assert!(matches!(&end, RunEnd::GaveUp(reason) if reason.contains("NoSuchBucket")), "{end:?}");
    assert!(queue.documents().is_empty());
}

/// moto's server from PyPI, which checks signatures, with a bucket. `tests/worker/requirements.txt` fixes its version:
/// some others, such as 5.2.1, hash another path than the one sent, so they refuse keys with percent signs.
pub(crate) struct Server {
    process: Child,
    url: String,
    keys: [String; 2],
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the server that `FLATBED_MOTO_SERVER` names, and no other, since its version matters. `None`: it is unset;
/// the test is skipped, or fails under `FLATBED_REQUIRE_SERVERS=1`.
pub(crate) async fn server() -> Option<Server> {
    let Ok(program) = std::env::var("FLATBED_MOTO_SERVER") else {
        let is_required = std::env::var("FLATBED_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
        assert!(!is_required, "FLATBED_MOTO_SERVER is not set");
        eprintln!("skipped: FLATBED_MOTO_SERVER is not set; `make test-worker` installs moto's server");
        return None;
    };
    let mut process = Command::new(&program)
        .args(["-H", "127.0.0.1", "-p", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    let mut server = Server { process, url: String::new(), keys: Default::default() };
    while server.url.is_empty() {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it does not say where it listens");
        if let Some((_, url)) = line.split_once("Running on ") {
            server.url = url.trim().to_owned();
        }
    }
    // Drains the log.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    let ask = async |method: Method, path: &str, headers: &[(&'static str, &str)], body: &'static str| {
        let peer = Peer::new(Url::parse(&server.url).unwrap(), HeaderMap::new(), plain());
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let answer = peer.call(method, path, &headers, Bytes::from(body), BOUNDS).await.unwrap();
        assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
        String::from_utf8(answer.body.to_vec()).unwrap()
    };
    // The server checks no key before one exists.
    let text = [("content-type", "text/plain")];
    ask(Method::POST, "/moto-api/reset-auth", &text, "1000").await;
    let credential = |service: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=x"
        )
    };
    let iam = [("authorization", &*credential("iam")), ("content-type", "application/x-www-form-urlencoded")];
    ask(Method::POST, "/", &iam, "Action=CreateUser&UserName=w&Version=2010-05-08").await;
    let made = ask(Method::POST, "/", &iam, "Action=CreateAccessKey&UserName=w&Version=2010-05-08").await;
    let policy = "Action=PutUserPolicy&UserName=w&PolicyName=p&Version=2010-05-08&PolicyDocument=\
        %7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C%22Action%22%3A%22%2A%22%2C%22Resource%22%3A%22%2A%22%7D%5D%7D";
    ask(Method::POST, "/", &iam, policy).await;
    ask(Method::PUT, "/bucket", &[("authorization", &credential("s3"))], "").await;
    ask(Method::POST, "/moto-api/reset-auth", &text, "0").await;
    let between = |begin: &str, end: &str| made.split_once(begin).unwrap().1.split_once(end).unwrap().0.to_owned();
    let keys = [between("<AccessKeyId>", "</AccessKeyId>"), between("<SecretAccessKey>", "</SecretAccessKey>")];
    server.keys = keys;
    Some(server)
}

impl Server {
    /// Creates a job that gives up if the store keeps refusing, so that the test fails instead of waiting.
    pub(crate) fn job(&self, members: Value, system: Value) -> Description {
        let mut whole = json!({"bucket": "bucket"});
        whole.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let retry = json!({"max_retries": 20, "backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002});
        let mut ending = json!({"halt_on_failure": true, "retry": retry});
        ending.as_object_mut().unwrap().extend(system.as_object().unwrap().clone());
        into(&self.url, whole, ending)
    }

    pub(crate) fn target(&self, job: &Description) -> AnyTarget {
        connect(job, &reach(&self.keys[0], &self.keys[1])).unwrap().target
    }
}

const BOUNDS: Bounds = Bounds { bytes_max: 1 << 20, time_max: std::time::Duration::from_secs(60) };

pub(crate) async fn get(server: &Server, key: &str, query: &str) -> (u16, String) {
    let peer = Peer::new(Url::parse(&server.url).unwrap(), HeaderMap::new(), plain());
    let secret = |at: usize| Secret::of(&SecretRef::File("x".to_owned()), server.keys[at].as_bytes()).unwrap();
    let signer = Signer { access_key_id: secret(0), secret_access_key: secret(1), region: "us-east-1".to_owned() };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (date, empty, host) = (timestamp(now), hash(b""), peer.host());
    let path = if key.is_empty() { "/bucket".to_owned() } else { format!("/bucket/{}", encode_key(key)) };
    let headers = [("host", host.as_str()), ("x-amz-content-sha256", &empty), ("x-amz-date", &date)];
    let authorization = signer
        .sign(&CanonicalRequest { method: "GET", path: &path, query, headers: &headers, body_hash: &empty }, &date);
    let mut sent = HeaderMap::new();
    for (name, value) in
        [("x-amz-content-sha256", empty.as_str()), ("x-amz-date", &date), ("authorization", &authorization)]
    {
        sent.insert(name, value.parse().unwrap());
    }
    let path = if query.is_empty() { path } else { format!("{path}?{query}") };
    let answer = peer.call(Method::GET, &path, &sent, Bytes::new(), BOUNDS).await.unwrap();
    (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
}

pub(crate) async fn keys(server: &Server) -> Vec<String> {
    let (status, list) = get(server, "", "list-type=2").await;
    assert_eq!(status, 200, "{list}");
    let unescaped = |key: &str| key.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    list.split("<Key>").skip(1).map(|rest| unescaped(rest.split("</Key>").next().unwrap())).collect()
}

#[tokio::test]
async fn a_store_has_what_the_source_has() {
    let Some(server) = server().await else { return };
    let ids = ["a", "order::1", "a/b", "..", "ä ö", "100%", "x+y&z", "{id}", "<b>"];
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    for (at, id) in ids.iter().enumerate() {
        source.write(id, json!({"n": at}));
        source.write(&format!("gone{at}"), json!({}));
    }
    let job = server.job(json!({"key_template": "in/{id}.json"}), json!({}));
    let mishaps = vec![Some(Mishap::KilledAfter), Some(Mishap::Outage)];
    let unlucky = Unlucky { target: server.target(&job), mishaps };
    assert_eq!(once(&job, &source, unlucky, &queue, 1).await.0, RunEnd::Superseded);
    for at in 0..ids.len() {
        source.write(&format!("gone{at}"), Value::Null);
    }
    source.write("a", json!({"n": "newer"}));
    let (end, ..) = once(&job, &source, server.target(&job), &queue, 2).await;
    assert_eq!((end, queue.documents()), (RunEnd::Done, Vec::new()));
    let documents = source.documents();
    assert_eq!(keys(&server).await.len(), documents.len());
    for (id, body) in documents {
        let key = match id.as_str() {
            "a/b" => "a%2Fb",
            ".." => "%2E.",
            "ä ö" => "ä%20ö",
            "100%" => "100%25",
            "x+y&z" => "x%2By%26z",
            "{id}" => "%7Bid%7D",
            "<b>" => "%3Cb%3E",
            id => id,
        };
        let (status, text) = get(&server, &format!("in/{key}.json"), "").await;
        assert_eq!(status, 200, "{key}: {text}");
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&found["_id"], &found["n"]), (&id.into(), &body["n"]));
    }
    // Another key is refused, and the job waits.
    let system = json!({"halt_on_failure": true, "retry": {"max_retries": 0}});
    let wrong = server.job(json!({"key_template": "in/{id}.json"}), system);
    source.write("b", json!({}));
    let refused = connect(&wrong, &reach(&server.keys[0], "another")).unwrap().target;
    let (end, ..) = once(&wrong, &source, refused, &queue, 3).await;
    assert!(matches!(&end, RunEnd::GaveUp(reason) if reason.contains("SignatureDoesNotMatch")), "{end:?}");
}

#[tokio::test]
async fn the_last_line_of_each_document_is_its_newest_state() {
    let Some(server) = server().await else { return };
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    let members = json!({"key_template": "{date}/{seq_number}-{epoch}-{seq}.jsonl", "format": "json_lines", "batch": {"max_docs": 7}});
    let job = server.job(members, json!({}));
    for round in 1..=6_u64 {
        for at in 0..30 {
            let body = if (at + round) % 5 == 0 { Value::Null } else { json!({"n": at * 100 + round}) };
            source.write(&format!("d{}", at * round % 23), body);
        }
        let mishaps = match round % 3 {
            0 => vec![None, Some(Mishap::Outage), None],
            1 => vec![Some(Mishap::KilledAfter), None],
            _ => vec![Some(Mishap::KilledBefore), None, None],
        };
        once(&job, &source, Unlucky { target: server.target(&job), mishaps }, &queue, round).await;
    }
    assert_eq!(once(&job, &source, server.target(&job), &queue, 7).await.0, RunEnd::Done);
    // Keys sort by position in the feed, and then by epoch.
    let mut newest: BTreeMap<String, Value> = BTreeMap::new();
    for key in keys(&server).await {
        let (_, text) = get(&server, &key, "").await;
        assert!(text.lines().count() <= 7);
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let id = line["id"].as_str().unwrap().to_owned();
            let seq = |line: &Value| line["seq"].as_str().unwrap().parse::<u64>().unwrap();
            if newest.get(&id).is_none_or(|before| seq(before) <= seq(&line)) {
                newest.insert(id, line);
            }
        }
    }
    let found: BTreeMap<String, Value> = newest
        .into_iter()
        .filter(|(_, line)| line["deleted"] != true)
        .map(|(id, line)| (id, json!({"n": line["doc"]["n"]})))
        .collect();
    assert_eq!(found, source.documents());
}

#[tokio::test]
async fn what_is_gathered_is_delivered_at_the_end_of_the_job() {
    let (url, requests) = serve(|_| (200, "", String::new())).await;
    let members =
        json!({"key_template": "{seq}", "format": "json_lines", "batch": {"max_docs": 5, "max_seconds": 3600}});
    let job = into(&url, members, json!({}));
    let (source, queue) = (FakeSource::filled(12), FakeQueue::default());
    let (stop, stopping) = watch::channel(false);
    let progress: Arc<flatbed_worker::progress::Progress> = Arc::default();
    let runner = Runner::new(&job, source.clone(), target(&job), queue.clone(), redactor(), stopping, 1);
    let runner = runner.with_progress(progress.clone());
    let watching = async {
        // Full objects are stored at once; the rest is held and counted.
        until("the objects are stored", async || progress.delivered() >= 12).await;
        source.write("late", json!({}));
        source.write("later", json!({}));
        until("the changes are held", async || progress.lag().rows >= 2).await;
        let stored = requests.lock().unwrap().len();
        stop.send_replace(true);
        stored
    };
    let ((end, counts, ..), stored) = tokio::join!(runner.run(), watching);
    assert_eq!((end, counts.delivered), (RunEnd::Stopped, 14));
    assert_eq!(requests.lock().unwrap().len(), stored + 1);
    assert_eq!(requests.lock().unwrap().last().unwrap().body.lines().count(), 2);
    // The checkpoint excludes the rest.
    let kept = source.0.lock().unwrap().locals.values().next().unwrap().0.clone();
    assert_eq!(kept.seq.as_str(), "14");
}
