//! Attachments that clients write over HTTP, delivered by the binary's own worker to an endpoint and into a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_testkit::http::{ServerConnection, listen};
use flatbed_testkit::{until, until_wanted};
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, call, counters, storage};

/// The content of an endpoint: by path, the digest and the bytes.
type Stored = Arc<Mutex<BTreeMap<String, (String, Vec<u8>)>>>;

/// Starts an endpoint that stores what is put with its digest, and returns the digests of what it has.
async fn endpoint() -> (String, Stored) {
    let stored = Stored::default();
    let kept = stored.clone();
    let address = listen(move |connection| serve(connection, kept.clone()));
    (format!("http://{}", address.await), stored)
}

async fn serve(mut connection: ServerConnection, stored: Stored) -> Option<()> {
    loop {
        let request = connection.read().await?;
        let digest = request.header("flatbed-digest").unwrap_or_default().to_owned();
        let (status, headers) = {
            let mut stored = stored.lock().unwrap();
            match request.method.as_str() {
                "PUT" => {
                    stored.insert(request.path, (digest, request.body));
                    (201, String::new())
                }
                "DELETE" if stored.remove(&request.path).is_some() => (200, String::new()),
                "HEAD" if stored.contains_key(&request.path) => {
                    (200, format!("flatbed-digest: {}\r\n", stored[&request.path].0))
                }
                _ => (404, String::new()),
            }
        };
        connection.answer(status, &headers, "").await?;
    }
}

async fn ok(server: &Server, method: Method, path: &str, body: impl Into<Vec<u8>>) -> Value {
    let body: Vec<u8> = body.into();
    let answer = server.connect().await.call(method, path, body).await.unwrap();
    assert!(answer.status < 300, "{path}: {}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).unwrap()
}

async fn rev(server: &Server, id: &str) -> String {
    ok(server, Method::GET, &format!("/db/{id}"), "").await["_rev"].as_str().unwrap().to_owned()
}

/// Returns the attachments of each document at the source, by document and name.
async fn at_source(server: &Server) -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let all = ok(server, Method::GET, "/db/_all_docs?include_docs=true", "").await;
    let mut found = BTreeMap::new();
    for row in all["rows"].as_array().unwrap() {
        let id = row["id"].as_str().unwrap().to_owned();
        let mut attachments = BTreeMap::new();
        for name in row["doc"]["_attachments"].as_object().into_iter().flat_map(|all| all.keys()) {
            let path = format!("/db/{id}/{name}");
            let answer = server.connect().await.call(Method::GET, &path, "").await.unwrap();
            assert_eq!(answer.status, 200, "{path}");
            attachments.insert(name.clone(), answer.body.to_vec());
        }
        found.insert(id, attachments);
    }
    found
}

/// Returns an endpoint's attachments of each document. `None`: one of them is missing.
fn at_endpoint(stored: &Stored) -> Option<BTreeMap<String, BTreeMap<String, Vec<u8>>>> {
    let stored = stored.lock().unwrap();
    let documents = stored.iter().filter_map(|(path, (_, body))| Some((path.strip_prefix("/in/")?, body)));
    let mut found = BTreeMap::new();
    for (id, body) in documents.filter(|(rest, _)| !rest.contains('/')) {
        let document: Value = serde_json::from_slice(body).unwrap();
        let mut attachments = BTreeMap::new();
        for (name, stub) in document["_attachments"].as_object().into_iter().flatten() {
            let (digest, body) = stored.get(&format!("/in/{id}/{name}"))?;
            if stub["digest"] != **digest {
                return None;
            }
            attachments.insert(name.clone(), body.clone());
        }
        found.insert(id.to_owned(), attachments);
    }
    Some(found)
}

/// Returns these from the last line of each document in a file.
fn in_file(file: &Path) -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
        // The last line may be incomplete.
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let id = line["id"].as_str().unwrap().to_owned();
        if line["deleted"] == true {
            found.remove(&id);
            continue;
        }
        let all = line["doc"]["_attachments"].as_object().into_iter().flatten();
        let data = |said: &Value| BASE64.decode(said["data"].as_str().unwrap()).unwrap();
        found.insert(id, all.map(|(name, said)| (name.clone(), data(said))).collect());
    }
    found
}

async fn until_equal(server: &Server, stored: &Stored, file: &Path) {
    let source = at_source(server).await;
    let is_equal = async || at_endpoint(stored).as_ref() == Some(&source) && in_file(file) == source;
    until("the targets have what the source has", is_equal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_have_the_attachments_that_the_source_has() {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let mut arguments = storage(&directory.path().join("data"));
    arguments.extend(
        ["--worker", "--worker-files", files.to_str().unwrap(), "--worker-allow", "127.0.0.1"].map(str::to_owned),
    );
    let server = Server::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    ok(&server, Method::PUT, "/db", "").await;
    // One is larger than a single read of an answer, and not text.
    let large: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let within = json!({"n": 1, "_attachments": {"x.png": {"content_type": "image/png", "data": BASE64.encode([0_u8, 255, 128])}, "y": {"content_type": "text/plain", "data": BASE64.encode("y")}}});
    ok(&server, Method::PUT, "/db/a", within.to_string()).await;
    ok(&server, Method::PUT, "/db/b/large", large.clone()).await;
    // It came with an earlier revision, which the endpoint does not have.
    let mut b = ok(&server, Method::GET, "/db/b", "").await;
    b["n"] = 1.into();
    ok(&server, Method::PUT, "/db/b", b.to_string()).await;
    ok(&server, Method::PUT, "/db/c", "{}").await;
    let (url, stored) = endpoint().await;
    let input = json!([{"id": "in", "source_type": "flatbed", "local": "db"}]);
    let job = |id: &str, kind: &str, output: Value, mode: &str| {
        json!({"type": "job", "id": id, "inputs": input, "outputs": [output], "output_type": kind,
            "system": {"attachments": {"enabled": true, "mode": mode}}})
    };
    let file = json!({"id": "out", "provider": "file", "file": "x.jsonl"});
    for job in [
        job("h", "http", json!({"id": "out", "url": format!("{url}/in/{{id}}")}), "individual"),
        job("f", "cloud", file, "inline"),
    ] {
        let path = format!("/_worker/job::{}", job["id"].as_str().unwrap());
        // The server creates the database when it starts.
        let put = async || call(&mut server.connect().await, Method::PUT, &path, &job.to_string()).await;
        until_wanted("the job is written", put, |answer| answer.0 == 201).await;
    }
    let file = files.join("x.jsonl");
    until_equal(&server, &stored, &file).await;
    assert_eq!(at_endpoint(&stored).unwrap()["b"]["large"], large);
    // Document `a` changes and has its attachments by stubs: one with other bytes, one new, one removed; another
    // document is deleted.
    let mut a = ok(&server, Method::GET, "/db/a", "").await;
    a["n"] = 2.into();
    ok(&server, Method::PUT, "/db/a", a.to_string()).await;
    ok(&server, Method::PUT, &format!("/db/b/large?rev={}", rev(&server, "b").await), "small").await;
    ok(&server, Method::PUT, &format!("/db/c/z?rev={}", rev(&server, "c").await), "z").await;
    until_equal(&server, &stored, &file).await;
    ok(&server, Method::DELETE, &format!("/db/a/y?rev={}", rev(&server, "a").await), "").await;
    ok(&server, Method::DELETE, &format!("/db/c?rev={}", rev(&server, "c").await), "").await;
    until_equal(&server, &stored, &file).await;
    let endpoint = at_endpoint(&stored).unwrap();
    assert_eq!(endpoint.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(endpoint["a"].keys().collect::<Vec<_>>(), ["x.png"]);
    assert_eq!(&*endpoint["b"]["large"], b"small");
    // Attachments that the endpoint had were not fetched again, since the document's change was separated from theirs.
    let told = |id: &'static str| {
        let server = &server;
        async move { ok(server, Method::GET, &format!("/_worker/_api/jobs/{id}"), "").await["attachments"].clone() }
    };
    let (h, f) = (told("h").await, told("f").await);
    let sum = |name: &str| (h[name].as_u64().unwrap() + f[name].as_u64().unwrap()) as f64;
    assert!(h["held"].as_u64() > Some(0) && h["fetched"].as_u64() >= Some(5), "{h}");
    assert!(f["held"] == 0 && f["bytes"].as_u64() > Some(300_000), "{f}");
    for (name, metric) in [
        ("fetched", "flatbed_worker_attachments_total"),
        ("bytes", "flatbed_worker_attachment_bytes_total"),
        ("held", "flatbed_worker_attachments_held_total"),
        ("failed", "flatbed_worker_attachments_failed_total"),
    ] {
        assert_eq!(counters(&server, metric).await, sum(name), "{name}");
    }
    assert!(server.stop());
}
