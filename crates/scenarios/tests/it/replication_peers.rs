//! Replications with a peer that is broken, unreachable or answers nonsense.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flatbed_layer::LayerOptions;
use flatbed_replicator::ReplicatorOptions;
use flatbed_testkit::http::{ServerConnection, listen};
use flatbed_testkit::{pass, until, until_wanted};

use crate::support::{Running, ServerOptions, Store};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

fn options() -> ReplicatorOptions {
    ReplicatorOptions { first_pause: Duration::from_millis(100), ..ReplicatorOptions::default() }
}

/// The answer of a fake peer.
enum PeerAnswer {
    Json(u16, Value),
    Text(&'static str),
    /// Raw bytes.
    Raw(String),
    /// A beginning, followed by an endless repetition.
    Endless(&'static str, &'static str),
    /// JSON, once the gate is open.
    Late(watch::Receiver<bool>, u16, Value),
}

/// Starts a fake peer. `answer` gets the method, the path after the database's, and the body.
async fn peer(answer: impl Fn(&str, &str, &Value) -> PeerAnswer + Send + Sync + 'static) -> String {
    let answer = Arc::new(answer);
    let address = listen(move |connection| converse(connection, answer.clone()));
    format!("http://{}/db", address.await)
}

async fn converse(
    mut connection: ServerConnection,
    answer: Arc<impl Fn(&str, &str, &Value) -> PeerAnswer + Send + Sync + 'static>,
) -> Option<()> {
    loop {
        let request = connection.read().await?;
        let body = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        let says = answer(&request.method, request.path.strip_prefix("/db")?, &body);
        let (status, text, more) = match says {
            PeerAnswer::Json(status, value) => (status, value.to_string(), None),
            PeerAnswer::Text(text) => (200, text.to_owned(), None),
            PeerAnswer::Raw(text) => (200, text, None),
            PeerAnswer::Endless(text, more) => (200, text.to_owned(), Some(more)),
            PeerAnswer::Late(mut gate, status, value) => {
                let _ = gate.wait_for(|is_open| *is_open).await;
                (status, value.to_string(), None)
            }
        };
        let kind = "content-type: application/json\r\n";
        let Some(more) = more else {
            connection.answer(status, kind, &text).await?;
            continue;
        };
        connection.send(&format!("HTTP/1.1 {status} X\r\n{kind}connection: close\r\n\r\n{text}")).await?;
        let more = more.repeat(100_000 / more.len() + 1);
        loop {
            connection.send(&more).await?;
        }
    }
}

/// The default answers of a source with one document.
fn source(path: &str) -> PeerAnswer {
    match path {
        "" => PeerAnswer::Json(200, json!({"db_name": "db"})),
        _ if path.starts_with("/_changes") => {
            let row = json!({"seq": "1-a", "id": "x", "changes": [{"rev": "1-abc"}]});
            PeerAnswer::Json(200, json!({"results": [row], "last_seq": "1-a", "pending": 0}))
        }
        _ if path.starts_with("/_bulk_get") => {
            let doc = json!({"_id": "x", "_rev": "1-abc", "_revisions": {"start": 1, "ids": ["abc"]}, "n": 1});
            PeerAnswer::Json(200, json!({"results": [{"id": "x", "docs": [{"ok": doc}]}]}))
        }
        _ if path.starts_with("/_local") => PeerAnswer::Json(404, json!({"error": "not_found"})),
        _ => PeerAnswer::Json(500, json!({})),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_answers_nonsense_fails_clearly() {
    let server = Store::new().serve(options()).await;
    let doc = |id: &str, rev: &str, revisions: Value| {
        let doc = json!({"_id": id, "_rev": rev, "_revisions": revisions});
        PeerAnswer::Json(200, json!({"results": [{"id": "x", "docs": [{"ok": doc}]}]}))
    };
    type Answer = Box<dyn Fn(&str) -> Option<PeerAnswer> + Send + Sync>;
    let at = |prefix: &'static str, says: fn() -> PeerAnswer| -> Answer {
        Box::new(move |path| path.starts_with(prefix).then(says))
    };
    let revisions = || json!({"start": 1, "ids": ["other"]});
    let cases: Vec<(&str, Answer, &str)> = vec![
        (
            "a page of a web server",
            Box::new(|_| Some(PeerAnswer::Text("<html>hello</html>"))),
            "_changes is not well-formed",
        ),
        (
            "changes that are none",
            at("/_changes", || PeerAnswer::Json(200, json!({"results": [1], "last_seq": 1}))),
            "_changes",
        ),
        (
            "changes without an end",
            at("/_changes", || PeerAnswer::Endless("{\"results\":[", " \n")),
            "larger than 64 MB",
        ),
        (
            "revisions that are none",
            at("/_bulk_get", || PeerAnswer::Text("{\"results\":[{\"docs\":[{\"ok\":[]}]}]}")),
            "revision",
        ),
        ("no list at all", at("/_bulk_get", || PeerAnswer::Endless("", " ")), "has no end"),
        ("a list without an end", at("/_bulk_get", || PeerAnswer::Endless("{\"results\":[", "\n\n")), "has no end"),
        (
            "a row without an end",
            at("/_bulk_get", || PeerAnswer::Endless("{\"results\":[{", "\"a\":[],")),
            "has no end",
        ),
        ("rows without an end", at("/_bulk_get", || PeerAnswer::Endless("[", "{\"id\":\"x\"},")), "more rows"),
        (
            "another document",
            Box::new(move |path| {
                path.starts_with("/_bulk_get").then(|| doc("y", "1-abc", json!({"start": 1, "ids": ["abc"]})))
            }),
            "not asked for",
        ),
        (
            "another branch",
            Box::new(move |path| path.starts_with("/_bulk_get").then(|| doc("x", "1-other", revisions()))),
            "not asked for",
        ),
        (
            "another's ancestry",
            Box::new(move |path| {
                path.starts_with("/_bulk_get").then(|| doc("x", "1-abc", json!({"start": 7, "ids": ["q"]})))
            }),
            "ancestry of another",
        ),
        ("nothing", at("/_bulk_get", || PeerAnswer::Json(200, json!({"results": []}))), "leaves out"),
        (
            "a refusal",
            at("/_bulk_get", || PeerAnswer::Json(403, json!({"error": "forbidden", "reason": "no"}))),
            "forbidden: no",
        ),
    ];
    for (number, (name, says, wanted)) in cases.into_iter().enumerate() {
        let url = peer(move |_, path, _| says(path).unwrap_or_else(|| source(path))).await;
        let spec = json!({"source": url, "target": format!("t{number}"), "create_target": true});
        let (status, answer) = server.json("POST", "/_replicate", spec).await;
        assert_eq!(status, 500, "{name}: {answer}");
        let reason = answer["reason"].as_str().unwrap();
        assert!(reason.contains(wanted) && reason.len() < 1_000, "{name}: {answer}");
        assert_eq!(server.ok("GET", &format!("/t{number}"), Value::Null).await["doc_count"], 0, "{name}");
        // No checkpoint is recorded.
        let logs = server.ok("GET", &format!("/t{number}/_local_docs"), Value::Null).await;
        assert_eq!(logs["rows"], json!([]), "{name}");
    }
    // The unmodified fake source works; refused documents are counted.
    let url = peer(|_, path, _| source(path)).await;
    let answer = server
        .ok(
            "POST",
            "/_replicate",
            json!({"source": url, "target": "t", "create_target": true,
        "use_checkpoints": false}),
        )
        .await;
    assert_eq!(answer["history"][0]["docs_written"], 1, "{answer}");
    let url = peer(move |_, path, _| match path {
        _ if path.starts_with("/_bulk_get") => {
            let doc = json!({"_id": "x", "_rev": "1-abc", "_revisions": {"start": 1, "ids": ["abc"]}, "_unknown": 1});
            PeerAnswer::Json(200, json!({"results": [{"id": "x", "docs": [{"ok": doc}]}]}))
        }
        _ => source(path),
    })
    .await;
    let answer = server
        .ok(
            "POST",
            "/_replicate",
            json!({"source": url, "target": "u", "create_target": true,
        "use_checkpoints": false}),
        )
        .await;
    let entry = &answer["history"][0];
    assert_eq!((&entry["docs_written"], &entry["doc_write_failures"]), (&json!(0), &json!(1)), "{answer}");
    server.stop().await;
}

/// The job must write what it has checked: readers may differ on repeated members or spellings.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_names_a_member_twice_fails_the_job() {
    let server = Store::new().serve(options()).await;
    let row = |doc: &str| format!(r#"{{"results":[{{"id":"x","docs":[{{"ok":{doc}}}]}}]}}"#);
    let line = r#""_revisions":{"start":1,"ids":["abc"]}"#;
    let docs = [
        format!(r#"{{"_id":"x","_id":"y","_rev":"1-abc",{line}}}"#),
        format!(r#"{{"_id":"x","\u005fid":"y","_rev":"1-abc",{line}}}"#),
        format!(r#"{{"_id":"x","_rev":"1-abc","_r\u0065v":"9-f",{line}}}"#),
        format!(r#"{{"_id":"x","_rev":"1-abc","_rev":"9-f",{line}}}"#),
        format!(r#"{{"_id":"x","_rev":"1-abc",{line},"_revisions":{{"start":9,"ids":["f"]}}}}"#),
        format!(r#"{{"_id":"x","_rev":"1-abc",{line},"\u005frevisions":{{"start":9,"ids":["f"]}}}}"#),
        r#"{"_id":"x","_rev":"1-abc","_revisions":{"start":1,"ids":["abc"],"ids":["f"]}}"#.to_owned(),
        format!(r#"{{"_id":"x","_rev":"1-abc",{line},"_deleted":false,"_deleted":true}}"#),
        format!(r#"{{"_id":"x","_rev":"1-abc",{line},"_attachments":{{}},"_attachments":{{"a":{{"data":""}}}}}}"#),
        format!(
            r#"{{"_id":"x","_rev":"1-abc",{line},"_attachments":{{"a":{{"data":""}},"\u0061":{{"data":"eA=="}}}}}}"#
        ),
    ];
    let bulk = docs.iter().map(|doc| ("/_bulk_get", row(doc), "a revision"));
    let single = docs.iter().take(7).map(|doc| ("/x?revs", format!("[{{\"ok\":{doc}}}]"), "a revision"));
    let mut cases: Vec<(&str, String, &str)> = bulk.chain(single).collect();
    let ok = format!(r#"{{"_id":"x","_rev":"1-abc",{line}}}"#);
    cases.extend([
        ("/_bulk_get", format!(r#"{{"results":[{{"id":"x","id":"y","docs":[{{"ok":{ok}}}]}}]}}"#), "well-formed"),
        ("/_bulk_get", format!(r#"{{"results":[{{"id":"x","docs":[{{"ok":{ok},"ok":{ok}}}]}}]}}"#), "well-formed"),
    ]);
    for changes in [
        r#"{"results":[{"seq":1,"id":"y","\u0069d":"x","changes":[{"rev":"1-abc"}]}],"last_seq":1}"#,
        r#"{"results":[{"seq":1,"seq":2,"id":"x","changes":[{"rev":"1-abc"}]}],"last_seq":1}"#,
        r#"{"results":[{"seq":1,"id":"x","changes":[],"changes":[{"rev":"1-abc"}]}],"last_seq":1}"#,
        r#"{"results":[{"seq":1,"id":"x","changes":[{"rev":"1-f","rev":"1-abc"}]}],"last_seq":1}"#,
        r#"{"results":[],"results":[{"seq":1,"id":"x","changes":[{"rev":"1-abc"}]}],"last_seq":1}"#,
    ] {
        cases.push(("/_changes", changes.to_owned(), "_changes is not well-formed"));
    }
    let large = r#""_attachments":{"a":{"content_type":"a/b","length":3000000,"stub":true}}"#;
    let listed = row(&format!(r#"{{"_id":"x","_rev":"1-abc",{line},{large}}}"#));
    for fetched in [
        format!(r#"{{"_id":"x","_rev":"9-f","_revisions":{{"start":9,"ids":["f"]}},{large}}}"#),
        format!(r#"{{"_id":"y","_rev":"1-abc",{line},{large}}}"#),
        format!(r#"{{"_id":"x","_rev":"1-abc","\u005frev":"9-f",{line},{large}}}"#),
    ] {
        cases.push(("/x?revs", fetched, ""));
    }
    for (number, (place, text, wanted)) in cases.into_iter().enumerate() {
        let (listed, shown) = (listed.clone(), text.clone());
        let url = peer(move |_, path, _| match path {
            _ if path.starts_with(place) => PeerAnswer::Raw(shown.clone()),
            // Single revisions are requested from a source without `_bulk_get`, or for attachments.
            _ if path.starts_with("/_bulk_get") && shown.starts_with('[') => PeerAnswer::Json(404, json!({})),
            _ if path.starts_with("/_bulk_get") && place == "/x?revs" => PeerAnswer::Raw(listed.clone()),
            _ => source(path),
        })
        .await;
        let spec =
            json!({"source": url, "target": format!("t{number}"), "create_target": true, "use_checkpoints": false});
        let (status, answer) = server.json("POST", "/_replicate", spec).await;
        assert_eq!(status, 500, "{text}: {answer}");
        let reason = answer["reason"].as_str().unwrap();
        assert!(reason.contains(wanted), "{text}: {answer}");
        let info = server.ok("GET", &format!("/t{number}"), Value::Null).await;
        assert_eq!(info["doc_count"], 0, "{text}");
        assert_eq!(info["doc_del_count"], 0, "{text}");
    }
    // A target with this answer gets no documents.
    server.ok("PUT", "/a", Value::Null).await;
    server.ok("PUT", "/a/x", json!({})).await;
    let rev = server.ok("GET", "/a/x", Value::Null).await["_rev"].as_str().unwrap().to_owned();
    let url = peer(move |_, path, _| match path {
        "/_revs_diff" => PeerAnswer::Raw(format!(r#"{{"x":{{"missing":[]}},"\u0078":{{"missing":["{rev}"]}}}}"#)),
        "/_bulk_docs" => PeerAnswer::Json(201, json!([])),
        _ => source(path),
    })
    .await;
    let (status, answer) =
        server.json("POST", "/_replicate", json!({"source": "a", "target": url, "use_checkpoints": false})).await;
    assert!(status == 500 && answer["reason"].as_str().unwrap().contains("_revs_diff"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_source_that_does_not_move_on_is_asked_no_faster() {
    let server = Store::new().serve(options()).await;
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    // It answers an empty feed at once instead of waiting.
    let url = peer(move |_, path, _| {
        if path.starts_with("/_changes") {
            counted.fetch_add(1, Ordering::Relaxed);
            return PeerAnswer::Json(200, json!({"results": [], "last_seq": 0, "pending": 0}));
        }
        source(path)
    })
    .await;
    let spec = json!({"source": url, "target": "t", "create_target": true, "continuous": true});
    let least = Instant::now() + Duration::from_secs(1);
    let begun = server.ok("POST", "/_replicate", spec).await;
    // At most three requests at the beginning.
    until("it is asked again", async || asked.load(Ordering::Relaxed) > 3).await;
    assert!(Instant::now() >= least, "it was asked four times within a second");
    server.ok("POST", "/_replicate", json!({"cancel": true, "id": begun["_local_id"]})).await;
    // It reports changes with the sequence that was requested.
    let url = peer(|_, path, _| match path {
        _ if path.starts_with("/_changes") => {
            let row = json!({"seq": 0, "id": "x", "changes": [{"rev": "1-abc"}]});
            PeerAnswer::Json(200, json!({"results": [row], "last_seq": "0"}))
        }
        _ => source(path),
    })
    .await;
    let spec = json!({"source": url, "target": "t", "since_seq": "0"});
    let (status, answer) = server.json("POST", "/_replicate", spec).await;
    assert!(status == 500 && answer["reason"].as_str().unwrap().contains("same sequence"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_asks_for_what_it_was_not_told_of_does_not_get_it() {
    let server = Store::new().serve(options()).await;
    server.ok("PUT", "/a", Value::Null).await;
    server.ok("PUT", "/a/public", json!({})).await;
    server.ok("PUT", "/a/private", json!({})).await;
    let rev = |doc: Value| doc["_rev"].as_str().unwrap().to_owned();
    let revs =
        [rev(server.ok("GET", "/a/public", Value::Null).await), rev(server.ok("GET", "/a/private", Value::Null).await)];
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let url = peer(move |_, path, body| match path {
        "" => PeerAnswer::Json(200, json!({"db_name": "db"})),
        "/_revs_diff" => PeerAnswer::Json(
            200,
            json!({"public": {"missing": [revs[0], "9-made"]}, "private": {"missing": [revs[1]]}}),
        ),
        "/_bulk_docs" => {
            for doc in body["docs"].as_array().unwrap() {
                sender.send(doc["_id"].clone()).unwrap();
            }
            PeerAnswer::Json(201, json!([]))
        }
        _ if path.starts_with("/_local") => PeerAnswer::Json(404, json!({})),
        _ => PeerAnswer::Json(500, json!({})),
    })
    .await;
    let spec = json!({"source": "a", "target": url, "doc_ids": ["public"], "use_checkpoints": false});
    let answer = server.ok("POST", "/_replicate", spec).await;
    assert_eq!(answer["history"][0]["missing_found"], 1, "{answer}");
    server.stop().await;
    let mut taken = Vec::new();
    while let Ok(id) = receiver.try_recv() {
        taken.push(id);
    }
    assert_eq!(taken, ["public"]);
}

/// Starts a source with one document and counts how often a replication begins.
async fn counted_source() -> (String, Arc<AtomicU32>) {
    let begun = Arc::new(AtomicU32::new(0));
    let counted = begun.clone();
    let url = peer(move |method, path, _| {
        if path.is_empty() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        if method == "PUT" { PeerAnswer::Json(201, json!({"ok": true, "rev": "0-1"})) } else { source(path) }
    });
    (url.await, begun)
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_and_addresses_have_a_bound() {
    let server = Store::new().serve(options()).await;
    server.ok("PUT", "/_replicator", Value::Null).await;
    server.ok("PUT", "/t", Value::Null).await;
    let long = "s".repeat(12_000);
    for (of_row, last) in [(json!("1"), json!(long)), (json!(long), json!("1"))] {
        let url = peer(move |_, path, _| match path {
            _ if path.starts_with("/_changes") => {
                let row = json!({"seq": of_row, "id": "x", "changes": [{"rev": "1-abc"}]});
                PeerAnswer::Json(200, json!({"results": [row], "last_seq": last}))
            }
            _ => source(path),
        })
        .await;
        let (status, answer) = server.json("POST", "/_replicate", json!({"source": url, "target": "t"})).await;
        assert!(status == 500 && answer["reason"].as_str().unwrap().contains("sequence is longer"), "{answer}");
    }
    let headers: Value = (0..40).map(|n| (format!("x-{n}"), json!("y".repeat(1_000)))).collect();
    for (source, what) in [
        (json!(format!("http://127.0.0.1:1/{}", "x".repeat(9_000))), "longer than"),
        (json!({"url": "http://127.0.0.1:1/x", "headers": headers}), "headers"),
    ] {
        let spec = json!({"source": source, "target": "t"});
        let (status, answer) = server.json("POST", "/_replicate", spec.clone()).await;
        assert!(status == 400 && answer["reason"].as_str().unwrap().contains(what), "{status} {answer}");
        server.ok("PUT", &format!("/_replicator/{}", &what[..4]), spec).await;
        let path = format!("/_replicator/{}", &what[..4]);
        let failed = server.until(&path, |doc| doc["_replication_state"] == "failed").await;
        assert!(failed["_replication_state_reason"].as_str().unwrap().contains(what), "{failed}");
    }
    let spec = json!({"source": "a", "target": "t", "since_seq": long});
    assert_eq!(server.json("POST", "/_replicate", spec).await.0, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_asked_for_at_once_have_a_bound() {
    let store = Store::new();
    let replicator = ReplicatorOptions { jobs_max: 2, ..ReplicatorOptions::default() };
    let server = store.serve(replicator).await;
    let spec = |n: u32| json!({"source": format!("http://127.0.0.1:1/{n}"), "target": "t", "continuous": true});
    let mut begun = Vec::new();
    for n in [1, 2, 1] {
        begun.push(server.ok("POST", "/_replicate", spec(n)).await["_local_id"].clone());
    }
    for continuous in [true, false] {
        let mut third = spec(3);
        third["continuous"] = json!(continuous);
        let (status, answer) = server.json("POST", "/_replicate", third).await;
        assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
    }
    assert_eq!(server.ok("GET", "/_scheduler/jobs", Value::Null).await["total_rows"], 2);
    server.ok("POST", "/_replicate", json!({"cancel": true, "id": begun[0]})).await;
    // The job frees its memory shortly after it reports its end.
    let ask = async || server.json("POST", "/_replicate", spec(3)).await;
    let again = until_wanted("there is room", ask, |(status, _)| *status != 503).await;
    assert_eq!(again.0, 202, "{}", again.1);
    let mut long = spec(4);
    long["doc_ids"] = (0..200_000).map(|n| format!("{n}")).collect();
    let (status, answer) = server.json("POST", "/_replicate", long).await;
    assert_eq!((status, &answer["error"]), (413, &json!("too_large")), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_too_long_is_failed() {
    let server = Store::new().serve(options()).await;
    server.ok("PUT", "/_replicator", Value::Null).await;
    let (url, begun) = counted_source().await;
    let long = json!({"source": url, "target": "t", "create_target": true, "pad": "x".repeat(1_100_000)});
    let rev = server.ok("PUT", "/_replicator/long", long).await["rev"].clone();
    let path = "/_scheduler/docs/_replicator/long";
    let shown = server.until(path, |doc| doc["state"] == "failed").await;
    assert!(shown["info"]["error"].as_str().unwrap().contains("longer than"), "{shown}");
    assert_eq!(shown["doc_id"], "long");
    let all = server.ok("GET", "/_scheduler/docs", Value::Null).await;
    assert_eq!(all["docs"][0], shown, "{all}");
    // It succeeds once it is short enough.
    let short = json!({"_rev": rev, "source": url, "target": "t", "create_target": true});
    assert_eq!(begun.load(Ordering::SeqCst), 0);
    server.ok("PUT", "/_replicator/long", short).await;
    server.until("/_replicator/long", |doc| doc["_replication_state"] == "completed").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_cannot_be_noted_is_not_worked_for_again() {
    let store = Store::new();
    // The limit of 2,000 bytes leaves no room for the final state.
    let layer = store.layer_with(LayerOptions { document_bytes_max: 2_000, ..LayerOptions::default() }).await;
    let server = store.serve_on(layer, options()).await;
    server.ok("PUT", "/_replicator", Value::Null).await;
    let (url, begun) = counted_source().await;
    let doc = json!({"source": url, "target": "t", "create_target": true, "pad": "x".repeat(1_800)});
    let rev = server.ok("PUT", "/_replicator/full", doc).await["rev"].clone();
    let path = "/_scheduler/docs/_replicator/full";
    let shown = server.until(path, |doc| doc["error_count"].as_u64() >= Some(2)).await;
    assert!(shown["info"]["error"].as_str().unwrap().contains("could not be noted"), "{shown}");
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    // A change of the document wakes the job.
    let doc = json!({"_rev": rev, "source": url, "target": "t"});
    server.ok("PUT", "/_replicator/full", doc).await;
    server.until("/_replicator/full", |doc| doc["_replication_state"] == "completed").await;
    assert_eq!(begun.load(Ordering::SeqCst), 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_at_once_is_bounded_in_bytes() {
    let server = Store::new().serve(options()).await;
    server.ok("PUT", "/t", Value::Null).await;
    let longest = Arc::new(AtomicU32::new(0));
    let seen = longest.clone();
    let url = peer(move |method, path, body| match path {
        _ if method == "PUT" => PeerAnswer::Json(201, json!({"ok": true, "rev": "0-1"})),
        _ if path.starts_with("/_changes") => {
            let revs = |count: u32| (0..count).map(|n| json!({"rev": format!("1-{n:032x}")})).collect::<Vec<_>>();
            let rows = [
                json!({"seq": "1-a", "id": "i".repeat(2_000), "changes": revs(2_000)}),
                // The id is too long for any document.
                json!({"seq": "2-a", "id": "j".repeat(9_000), "changes": revs(2_000)}),
            ];
            PeerAnswer::Json(200, json!({"results": rows, "last_seq": "2-a"}))
        }
        _ if path.starts_with("/_bulk_get") => {
            seen.fetch_max(u32::try_from(body.to_string().len()).unwrap(), Ordering::SeqCst);
            let row = |doc: &Value| json!({"id": doc["id"], "docs": [{"error": {"error": "not_found"}}]});
            PeerAnswer::Json(
                200,
                json!({"results": body["docs"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()}),
            )
        }
        _ => source(path),
    })
    .await;
    let answer = server.ok("POST", "/_replicate", json!({"source": url, "target": "t"})).await;
    assert_eq!(answer["history"][0]["missing_found"], 2_000, "{answer}");
    assert_eq!(answer["history"][0]["doc_write_failures"], 1, "{answer}");
    let longest = longest.load(Ordering::SeqCst);
    assert!((1..300_000).contains(&longest), "{longest}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_becomes_too_large_a_tree_is_asked_for_in_parts() {
    let server = Store::new().serve(options()).await;
    server.ok("PUT", "/t", Value::Null).await;
    let never = peer(|_, path, _| match path {
        _ if path.starts_with("/_changes") => {
            PeerAnswer::Raw(format!("{{\"results\":[],\"last_seq\":1,\"x\":[0{}]}}", ",0".repeat(5_000_000)))
        }
        _ => source(path),
    })
    .await;
    let (status, answer) = server.json("POST", "/_replicate", json!({"source": never, "target": "t"})).await;
    assert!(status == 500 && answer["reason"].as_str().unwrap().contains("more memory than there is"), "{answer}");
    // Pages that are large because of many rows are requested with fewer rows.
    let in_parts = peer(|method, path, _| match path {
        _ if method == "PUT" => PeerAnswer::Json(201, json!({"ok": true, "rev": "0-1"})),
        _ if path.starts_with("/_changes") && path.contains("limit=2000") => {
            PeerAnswer::Raw(format!("{{\"results\":[{}0]", "0,".repeat(5_000_000)))
        }
        _ => source(path),
    })
    .await;
    let answer = server.ok("POST", "/_replicate", json!({"source": in_parts, "target": "t"})).await;
    assert_eq!(answer["history"][0]["docs_written"], 1, "{answer}");
    // All memory is released.
    let metrics = server.call("GET", "/metrics", "").await.body;
    for part in ["text", "tree", "page"] {
        assert!(metrics.contains(&format!("flatbed_memory_used_bytes{{part=\"replication_{part}\"}} 0")), "{metrics}");
    }
    server.stop().await;
}

/// Forwards connections to `to` while the door is open, each with a receiver of that state; otherwise drops them.
async fn door(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (open, is_open) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            if !*is_open.borrow() {
                continue;
            }
            let mut is_open = is_open.clone();
            tokio::spawn(async move {
                let mut to = TcpStream::connect(to).await?;
                let closed = async {
                    let _ = is_open.wait_for(|is_open| !is_open).await;
                };
                tokio::select! {
                    done = tokio::io::copy_bidirectional(&mut from, &mut to) => done.map(|_| ()),
                    () = closed => Ok(()),
                }
            });
        }
    });
    (address, open)
}

async fn count_of(server: &Running, database: &str) -> Value {
    server.json("GET", &format!("/{database}"), Value::Null).await.1["doc_count"].clone()
}

/// As in CouchDB, which shows non-string sequences as strings.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_listed_once_its_start_is_known() {
    let server = Store::new().serve(options()).await;
    let (_shut, never) = watch::channel(false);
    for (since, start) in [(json!("5-x"), "5-x"), (json!(7), "7"), (Value::Null, "0")] {
        let (open, is_open) = watch::channel(false);
        let asked = Arc::new(AtomicU32::new(0));
        let (counted, never) = (asked.clone(), never.clone());
        let url = peer(move |_, path, _| match path {
            _ if path.starts_with("/_local") => {
                counted.fetch_add(1, Ordering::SeqCst);
                PeerAnswer::Late(is_open.clone(), 404, json!({}))
            }
            _ if path.starts_with("/_changes") => PeerAnswer::Late(never.clone(), 500, json!({})),
            _ => source(path),
        })
        .await;
        let spec = json!({"source": url, "target": "t", "create_target": true, "continuous": true, "since_seq": since});
        let begun = server.ok("POST", "/_replicate", spec).await;
        until("the source is asked for its log", async || asked.load(Ordering::SeqCst) > 0).await;
        assert_eq!(server.ok("GET", "/_active_tasks", Value::Null).await, json!([]));
        open.send_replace(true);
        let tasks = server.until("/_active_tasks", |tasks| *tasks != json!([])).await;
        for member in ["source_seq", "through_seq", "checkpointed_source_seq"] {
            assert_eq!(tasks[0][member], start, "{member} {tasks}");
        }
        server.ok("POST", "/_replicate", json!({"cancel": true, "id": begun["_local_id"]})).await;
        server.until("/_active_tasks", |tasks| *tasks == json!([])).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_peer_is_away_backs_off_and_recovers() {
    let (store, other_store) = (Store::new(), Store::new());
    let server = store.serve(options()).await;
    let other = other_store.serve(ServerOptions::default()).await;
    for database in ["_replicator", "a"] {
        server.ok("PUT", &format!("/{database}"), Value::Null).await;
    }
    server.ok("PUT", "/a/x", json!({})).await;
    let (address, open) = door(other.address).await;
    let remote = format!("http://{address}/b");
    let push =
        json!({"source": "a", "target": remote, "create_target": true, "continuous": true, "checkpoint_interval": 50});
    let pull =
        json!({"source": remote, "target": "c", "create_target": true, "continuous": true, "checkpoint_interval": 50});
    server.ok("PUT", "/_replicator/push", push).await;
    server.ok("PUT", "/_replicator/pull", pull).await;
    for id in ["push", "pull"] {
        let path = format!("/_scheduler/docs/_replicator/{id}");
        let shown = server.until(&path, |doc| doc["error_count"].as_u64() >= Some(1)).await;
        assert!(shown["state"] == "crashing" || shown["state"] == "running", "{shown}");
    }
    let jobs = server.ok("GET", "/_scheduler/jobs", Value::Null).await;
    for job in jobs["jobs"].as_array().unwrap() {
        let crash = job["history"].as_array().unwrap().iter().find(|event| event["type"] == "crashed");
        assert!(crash.unwrap()["reason"].as_str().unwrap().starts_with(&format!("http://{address}/b/: ")), "{job}");
    }
    open.send_replace(true);
    server.until("/c/x", |doc| doc["_id"] == "x").await;
    // The door closes during transfers; later writes are copied when it opens.
    open.send_replace(false);
    until("all connections are cut", async || open.receiver_count() == 1).await;
    let docs: Vec<Value> = (0..100).map(|n| json!({"_id": format!("doc{n}")})).collect();
    server.ok("POST", "/a/_bulk_docs", json!({"docs": docs})).await;
    pass(Duration::from_millis(100)).await;
    assert_eq!(count_of(&other, "b").await, 1);
    open.send_replace(true);
    server.until("/c", |database| database["doc_count"] == 101).await;
    assert_eq!(count_of(&other, "b").await, 101);
    server.stop().await;
    other.stop().await;
}
