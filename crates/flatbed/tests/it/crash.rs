//! kill -9 while writers write and views are built. Afterwards every acknowledged write exists, also in views and a
//! json index, and the checker finds no problem.
//!
//! `FLATBED_CRASH_KILLS` is the number of kills (`make crash`: 50).

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{Server, call};
use flatbed_client::{Connection, Url};
use flatbed_testkit::{number, pass, until};
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const WRITERS: usize = 8;

/// A writer's knowledge of a document: the last acknowledged state, and whether a later write was outstanding.
#[derive(Clone, Default)]
struct Known {
    acknowledged: Option<String>,
    deleted: bool,
    unsure: bool,
}

type Documents = Arc<Mutex<HashMap<String, Known>>>;

#[tokio::test]
async fn acknowledged_writes_outlive_a_kill() {
    let kills = number("FLATBED_CRASH_KILLS").unwrap_or(5);
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let documents = Documents::default();
    let mut acknowledged_before = 0;
    for round in 0..kills {
        let server = Server::start(&data);
        call(&mut server.connect().await, Method::PUT, "/crash", "").await;
        verify(&server, &documents, round).await;
        define(&server, round).await;
        let asker = tokio::spawn(ask(server.url.clone(), round));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write(server.url.clone(), format!("{round}-{writer}"), documents.clone())))
            .collect();
        // Some kills meet the first commits, some the hundredth; none comes before the first.
        pass(Duration::from_millis(60 + (round * 137) % 600)).await;
        until("a write is acknowledged", async || {
            acknowledged(&documents) > acknowledged_before || writers.iter().all(JoinHandle::is_finished)
        })
        .await;
        server.kill();
        for writer in writers {
            writer.await.expect("a writer ends with its connection");
        }
        asker.await.expect("the reader ends with its connection");
        check(&data, round);
        let acknowledged = acknowledged(&documents);
        eprintln!("kill {}: {acknowledged} documents acknowledged", round + 1);
        assert!(acknowledged > acknowledged_before, "the writers of round {round} got nothing done");
        acknowledged_before = acknowledged;
    }
    let server = Server::start(&data);
    verify(&server, &documents, kills).await;
    must_equal(&server, kills).await;
    assert!(server.stop());
}

fn acknowledged(documents: &Documents) -> usize {
    documents.lock().unwrap().values().filter(|known| known.acknowledged.is_some()).count()
}

/// Creates, edits and deletes documents, one of them large enough to be staged, until the connection breaks.
async fn write(url: Url, writer: String, documents: Documents) {
    let Ok(mut connection) = Connection::open(&url).await else { return };
    for number in 0.. {
        let id = format!("{writer}-{number}");
        let large = if number % 40 == 7 { "x".repeat(1_500_000) } else { String::new() };
        let mut body = format!("{{\"n\":{number},\"tags\":[\"a\",{{\"b\":null}}],\"large\":\"{large}\"}}");
        for step in 0..=number % 3 {
            let deleted = step == 2;
            if let Some(rev) = &known(&documents, &id).acknowledged {
                body = format!("{{\"_rev\":\"{rev}\",\"_deleted\":{deleted},\"step\":{step}}}");
            }
            documents.lock().unwrap().entry(id.clone()).or_default().unsure = true;
            let Ok(answer) = connection.call(Method::PUT, &format!("/crash/{id}"), body.clone()).await else { return };
            assert!(matches!(answer.status, 200..=202), "{id}: {} {}", answer.status, answer.text());
            let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
            let acknowledged = answer["rev"].as_str().map(str::to_owned);
            documents.lock().unwrap().insert(id.clone(), Known { acknowledged, deleted, unsure: false });
        }
    }
}

/// The number of view groups. A killed process holds its builds for longer than a round takes, so most rounds build
/// another group.
const GROUPS: u64 = 4;

async fn define(server: &Server, round: u64) {
    let mut connection = server.connect().await;
    let index = json!({ "index": { "fields": ["n"] }, "ddoc": "index", "name": "n" }).to_string();
    assert_eq!(call(&mut connection, Method::POST, "/crash/_index", &index).await.0, 200);
    let group = round % GROUPS;
    let map = format!(
        "function (doc) {{ emit([doc.step === undefined ? 0 : doc.step, doc._id], doc.n === undefined ? {group} : doc.n); }}"
    );
    let written = "function (keys, values, rereduce) { return sum(values); }";
    let views = json!({ "sum": { "map": map, "reduce": "_sum" }, "written": { "map": map, "reduce": written } });
    let path = format!("/crash/_design/d{group}");
    let status = call(&mut connection, Method::PUT, &path, &json!({ "views": views }).to_string()).await.0;
    assert!(matches!(status, 201 | 409), "{status}");
}

/// Queries a round's views until the connection breaks, so that they are built meanwhile.
async fn ask(url: Url, round: u64) {
    let Ok(mut connection) = Connection::open(&url).await else { return };
    let path = format!("/crash/_design/d{}/_view/sum", round % GROUPS);
    while let Ok(answer) = connection.call(Method::GET, &path, "").await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Checks that views and the index match the documents.
async fn must_equal(server: &Server, kills: u64) {
    let mut connection = server.connect().await;
    let mut get = async |path: &str| {
        let (status, answer) = call(&mut connection, Method::GET, &format!("/crash/{path}"), "").await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    let rows_of = |answer: &Value| answer["rows"].as_array().expect("rows").clone();
    let documents: Vec<Value> = rows_of(&get("_all_docs?include_docs=true").await)
        .into_iter()
        .map(|row| row["doc"].clone())
        .filter(|doc| !doc["_id"].as_str().expect("an id").starts_with("_design/"))
        .collect();
    assert!(!documents.is_empty());
    for group in 0..kills.min(GROUPS) {
        let row = |doc: &Value| {
            let key = json!([doc["step"].as_u64().unwrap_or(0), doc["_id"]]);
            (doc["_id"].to_string(), (key, doc["n"].as_u64().unwrap_or(group)))
        };
        let expected: BTreeMap<String, (Value, u64)> = documents.iter().map(row).collect();
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for (key, value) in expected.values() {
            *sums.entry(key[0].as_u64().expect("a number")).or_default() += value;
        }
        let sums: Vec<Value> = sums.iter().map(|(step, sum)| json!({ "key": [step], "value": sum })).collect();
        for view in ["sum", "written"] {
            let view = format!("_design/d{group}/_view/{view}");
            let rows = rows_of(&get(&format!("{view}?reduce=false")).await);
            assert_eq!(rows.len(), documents.len(), "{view}");
            let row =
                |row: &Value| (row["id"].to_string(), (row["key"].clone(), row["value"].as_u64().expect("a number")));
            assert_eq!(rows.iter().map(row).collect::<BTreeMap<_, _>>(), expected, "{view}");
            assert_eq!(rows_of(&get(&format!("{view}?group_level=1")).await), sums, "{view}");
        }
    }
    let mut expected: Vec<(u64, &str)> =
        documents.iter().filter_map(|doc| Some((doc["n"].as_u64()?, doc["_id"].as_str().expect("an id")))).collect();
    expected.sort_unstable();
    let asked =
        json!({ "selector": { "n": { "$gte": 0 } }, "fields": ["_id", "n"], "limit": 1_000_000, "use_index": "index" });
    let (status, answer) = call(&mut connection, Method::POST, "/crash/_find", &asked.to_string()).await;
    assert!(status == 200 && answer["warning"].is_null(), "{answer}");
    let found = answer["docs"].as_array().expect("documents").iter();
    let mut found: Vec<(u64, &str)> =
        found.map(|doc| (doc["n"].as_u64().expect("a number"), doc["_id"].as_str().expect("an id"))).collect();
    assert!(found.is_sorted_by_key(|(n, _)| *n));
    found.sort_unstable();
    assert_eq!(found, expected);
}

fn known(documents: &Documents, id: &str) -> Known {
    documents.lock().unwrap().get(id).cloned().unwrap_or_default()
}

/// Checks that each document is in its last acknowledged state; one write without an answer may have landed on top of
/// it.
async fn verify(server: &Server, documents: &Documents, round: u64) {
    let mut connection = server.connect().await;
    let all: Vec<_> = documents.lock().unwrap().iter().map(|(id, known)| (id.clone(), known.clone())).collect();
    for (id, known) in all {
        let (status, document) = call(&mut connection, Method::GET, &format!("/crash/{id}"), "").await;
        let found = document["_rev"].as_str();
        let as_acknowledged = match &known.acknowledged {
            Some(_) if known.deleted => status == 404 && document["reason"] == "deleted",
            Some(rev) => status == 200 && found == Some(rev),
            None => status == 404,
        };
        let landed = || {
            let generation = |rev: &str| rev.split('-').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            let before = known.acknowledged.as_deref().map_or(0, generation);
            known.unsure && (document["reason"] == "deleted" || found.is_some_and(|rev| generation(rev) == before + 1))
        };
        assert!(as_acknowledged || landed(), "round {round}, {id}: {:?} but {status} {found:?}", known.acknowledged);
        if known.unsure {
            // The result is decided now: this state must stay.
            let now = Known {
                acknowledged: found.map(str::to_owned).or(known.acknowledged),
                deleted: document["reason"] == "deleted",
                unsure: false,
            };
            documents.lock().unwrap().insert(id, now);
        }
    }
}

fn check(data: &Path, round: u64) {
    let output = crate::support::check("crash", data);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "round {round}: {:?} {text}", output.status);
}
