//! Edits, deletions, bulk writes, conflicts, attachments, large documents, and concurrent edits of one document.

use std::sync::Arc;

use flatbed_client::{Connection, Url};
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{CONFLICTS_EVERY, DOCUMENTS, KINDS, Random, World, generation_of, lock};

/// Larger than the 64 kB up to which followers share documents.
const LARGE_BYTES: u64 = 70_000;

/// A request with the documents that it writes.
struct Request {
    method: Method,
    path: String,
    body: String,
    ids: Vec<String>,
    counts: bool,
}

pub async fn write(world: Arc<World>, number: u64) {
    let mut random = Random(world.seed ^ (number << 32));
    let mut connection = None;
    while !world.torture.is_over() {
        if random.percent(6) {
            crowd(&world, &mut random).await;
        }
        if connection.is_none() {
            let url = Url::parse(&format!("http://{}", world.server(&mut random))).expect("a URL");
            connection = Connection::open(&url).await.ok();
        }
        let Some(open) = &mut connection else {
            world.broke("a writer").await;
            continue;
        };
        let request = choose(&world, &mut random);
        let begun = world.running.begin();
        let Ok(answer) = open.call(request.method.clone(), &request.path, request.body.clone()).await else {
            connection = None;
            world.broke(&request.path).await;
            continue;
        };
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        match answer.status {
            200..=202 => acknowledged(&world, &request, &value),
            409 => count_refused(&world),
            // Another writer has deleted it.
            404 if request.method == Method::DELETE => count_refused(&world),
            503 => world.count_given_up(&begun),
            status => panic!("{} {}: {status} {value}", request.method, request.path),
        }
        if matches!(answer.status, 404 | 409) {
            // Another writer was faster, so the current revision is read.
            let id = &request.ids[0];
            let Ok(found) = open.call(Method::GET, &format!("{}/{id}", world.database()), "").await else {
                connection = None;
                world.broke(id).await;
                continue;
            };
            let found: Value = serde_json::from_slice(&found.body).unwrap_or(Value::Null);
            match found["_rev"].as_str() {
                Some(rev) => lock(&world.revs).insert(id.clone(), rev.to_owned()),
                None => lock(&world.revs).remove(id),
            };
        }
        if random.percent(5) {
            connection = None;
        }
    }
}

fn choose(world: &World, random: &mut Random) -> Request {
    let number = random.below(DOCUMENTS);
    let id = format!("doc{number:03}");
    let rev = lock(&world.revs).get(&id).cloned();
    let path = format!("{}/{id}", world.database());
    match (random.below(100), &rev) {
        (0..15, Some(rev)) => {
            let path = format!("{path}?rev={rev}");
            Request { method: Method::DELETE, path, body: String::new(), ids: vec![id], counts: true }
        }
        (15..25, _) => {
            let mut ids: Vec<String> =
                (0..1 + random.below(20)).map(|_| format!("doc{:03}", random.below(DOCUMENTS))).collect();
            ids.sort();
            ids.dedup();
            let documents: Vec<Value> = ids
                .iter()
                .map(|id| {
                    let rev = lock(&world.revs).get(id).cloned();
                    let mut document = document(id, rev.as_deref(), random);
                    if random.percent(20) {
                        document["_deleted"] = json!(true);
                    }
                    document
                })
                .collect();
            let body = json!({ "docs": documents }).to_string();
            Request { method: Method::POST, path: format!("{}/_bulk_docs", world.database()), body, ids, counts: true }
        }
        // A new branch, as a replication would add it.
        (25..35, _) if number.is_multiple_of(CONFLICTS_EVERY) => {
            let rev = format!("1-{:032x}", random.next());
            let document = document(&id, Some(&rev), random);
            let body = json!({ "new_edits": false, "docs": [document] }).to_string();
            Request {
                method: Method::POST,
                path: format!("{}/_bulk_docs", world.database()),
                body,
                ids: vec![id],
                counts: false,
            }
        }
        (35..38, Some(rev)) => {
            let path = format!("{path}/apart?rev={rev}");
            let body = "z".repeat(random.below(20_000) as usize);
            Request { method: Method::PUT, path, body, ids: vec![id], counts: true }
        }
        _ => {
            let body = document(&id, rev.as_deref(), random).to_string();
            Request { method: Method::PUT, path, body, ids: vec![id], counts: true }
        }
    }
}

fn document(id: &str, rev: Option<&str>, random: &mut Random) -> Value {
    let mut document = json!({ "_id": id, "kind": random.below(KINDS), "n": random.next() });
    if let Some(rev) = rev {
        document["_rev"] = json!(rev);
    }
    match random.below(200) {
        0 => document["text"] = json!("x".repeat(LARGE_BYTES as usize)),
        20..26 => {
            let data = "YWJj".repeat(random.below(400) as usize);
            document["_attachments"] = json!({ "within": { "content_type": "text/plain", "data": data } });
        }
        1..20 => document["text"] = json!("y".repeat(random.below(3_000) as usize)),
        _ => {}
    }
    document
}

/// Sends several edits of one revision at once to any servers; at most one succeeds.
async fn crowd(world: &World, random: &mut Random) {
    let id = format!("doc{:03}", random.below(DOCUMENTS));
    let Some(rev) = lock(&world.revs).get(&id).cloned() else { return };
    let edits: Vec<(Url, String)> = (0..2 + random.below(5))
        .map(|_| {
            let url = Url::parse(&format!("http://{}", world.server(random))).expect("a URL");
            (url, document(&id, Some(&rev), random).to_string())
        })
        .collect();
    let path = format!("{}/{id}", world.database());
    let (begun, mut answers) = (world.running.begin(), JoinSet::new());
    for (url, body) in edits {
        let path = path.clone();
        answers.spawn(async move { Connection::open(&url).await.ok()?.call(Method::PUT, &path, body).await.ok() });
    }
    let mut made = Vec::new();
    while let Some(answer) = answers.join_next().await {
        let Some(answer) = answer.expect("one of a crowd") else {
            world.broke("one of a crowd").await;
            continue;
        };
        match answer.status {
            201 => made.push(serde_json::from_slice::<Value>(&answer.body).expect("JSON")),
            409 => count_refused(world),
            503 => world.count_given_up(&begun),
            status => panic!("{path}: {status}"),
        }
    }
    assert!(made.len() < 2, "{id}: several edits of {rev} were made: {made:?}");
    world.torture.count("crowds");
    if let Some(made) = made.first() {
        let request = Request { method: Method::PUT, path, body: String::new(), ids: vec![id], counts: true };
        acknowledged(world, &request, made);
    }
}

fn acknowledged(world: &World, request: &Request, answer: &Value) {
    let one = std::slice::from_ref(answer);
    let rows = answer.as_array().map_or(one, |rows| rows.as_slice());
    for row in rows {
        let Some(id) = row["id"].as_str() else { continue };
        let Some(rev) = row["rev"].as_str() else {
            // Refused: the next edit reads the current revision.
            lock(&world.revs).remove(id);
            count_refused(world);
            continue;
        };
        world.torture.count("writes");
        lock(&world.revs).insert(id.to_owned(), rev.to_owned());
        let number: u64 = id.trim_start_matches("doc").parse().expect("a number");
        if request.counts && !number.is_multiple_of(CONFLICTS_EVERY) {
            let generation = generation_of(rev);
            let mut known = lock(&world.acknowledged);
            let known = known.entry(id.to_owned()).or_default();
            *known = generation.max(*known);
        }
    }
    if !request.counts {
        world.torture.count("writes");
    }
}

fn count_refused(world: &World) {
    world.torture.count("refused");
}
