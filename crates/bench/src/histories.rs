//! The cost of a long history and of many conflicts: updates and reads of such documents beside plain ones. The kinds
//! take turns in short rounds, so that other work of the machine affects all of them.

use std::time::Instant;

use bytes::Bytes;
use flatbed_client::Connection;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::{
    documents,
    load::{self, LoadError, Target, expect},
    stats::{cpu_s, median, rounded},
};

/// The revisions of a long history: CouchDB's and Flatbed's limit, so that each further one drops the oldest.
const HISTORY: usize = 1000;

/// The losing leaves of a document with conflicts.
const CONFLICTS: u64 = 50;

/// The documents with a long history, and those with conflicts.
const DOCUMENTS: u64 = 128;

/// The plain documents. Each is updated only a few times, so that its history stays short.
const PLAIN_DOCUMENTS: u64 = DOCUMENTS * 16;

/// The connections, each with its own documents.
const WORKERS: usize = 16;

/// The requests of a kind in a round.
const ROUND: usize = 2048;

const ROUNDS: usize = 7;

/// The kinds, with the names of their figures: rates per second, and the server's processor time for a request.
const KINDS: [Kind; 3] = [
    Kind { name: "plain", documents: PLAIN_DOCUMENTS, revisions: 1, conflicts: 0 },
    Kind { name: "history", documents: DOCUMENTS, revisions: HISTORY, conflicts: 0 },
    Kind { name: "conflicts", documents: DOCUMENTS, revisions: 1, conflicts: CONFLICTS },
];

struct Kind {
    name: &'static str,
    documents: u64,
    revisions: usize,
    conflicts: u64,
}

/// The documents of one kind, and their measurements.
struct MeasuredKind {
    kind: Kind,
    target: Target,
    /// The winning revision of each document.
    revs: Vec<String>,
    /// The number of requests so far. Documents take turns.
    done: usize,
    updates: Rounds,
    reads: Rounds,
}

#[derive(Default)]
struct Rounds {
    per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

/// Returns the medians of all rounds: `update_plain`, `update_history`, `update_conflicts` and the same with `read_`,
/// per second; and each with the suffix `_cpu_us`: the server's processor time for one request in microseconds. Must
/// run on a current-thread runtime.
pub(crate) async fn run(target: &Target) -> Result<Value, LoadError> {
    let mut all = Vec::new();
    for kind in KINDS {
        let target = Target { database: format!("{}-{}", target.database, kind.name), ..target.clone() };
        load::fresh(&target).await?;
        let revs = make(&target, &kind).await?;
        all.push(MeasuredKind { kind, target, revs, done: 0, updates: Rounds::default(), reads: Rounds::default() });
    }
    for _ in 0..ROUNDS {
        for measured in &mut all {
            round(measured, Method::PUT).await?;
            round(measured, Method::GET).await?;
        }
    }
    let mut figures = json!({
        "load": "histories", "documents": DOCUMENTS, "revisions": HISTORY, "conflicts": CONFLICTS, "workers": WORKERS,
        "rounds": ROUNDS, "requests_a_round": ROUND,
    });
    for MeasuredKind { kind, updates, reads, .. } in &mut all {
        for (verb, rounds) in [("update", updates), ("read", reads)] {
            figures[format!("{verb}_{}", kind.name)] = json!(rounded(median(&mut rounds.per_s), 10.0));
            figures[format!("{verb}_{}_cpu_us", kind.name)] = json!(rounded(median(&mut rounds.cpu_us), 10.0));
        }
    }
    Ok(figures)
}

/// Creates the documents, and returns their winners.
async fn make(target: &Target, kind: &Kind) -> Result<Vec<String>, LoadError> {
    let mut connection = Connection::open(&target.url).await?;
    let mut revs = Vec::new();
    for from in (0..kind.documents).step_by(1000) {
        let body = documents::bulk(from..(from + 1000).min(kind.documents));
        revs.extend(bulk(target, &mut connection, body).await?);
    }
    // Conflicts fork from the first revision, and the continued branch wins.
    let first = revs.clone();
    for _ in 1..kind.revisions.max(if kind.conflicts > 0 { 3 } else { 1 }) {
        let documents: Vec<String> = (0..).zip(&revs).map(|(number, rev)| next(number, rev, true)).collect();
        revs = bulk(target, &mut connection, format!("{{\"docs\":[{}]}}", documents.join(","))).await?;
    }
    if kind.conflicts > 0 {
        for (number, first) in (0..).zip(&first) {
            let fork = first.strip_prefix("1-").unwrap_or_default();
            let leaf = |conflict| {
                let hash = format!("{:032x}", documents::mix(number * kind.conflicts + conflict));
                let path = json!({"start": 2, "ids": [hash, fork]});
                let text = documents::text(number, true);
                format!("{{\"_revisions\":{path},{}", text.strip_prefix('{').unwrap_or_default())
            };
            let leaves: Vec<String> = (0..kind.conflicts).map(leaf).collect();
            let body = format!("{{\"new_edits\":false,\"docs\":[{}]}}", leaves.join(","));
            bulk(target, &mut connection, body).await?;
        }
    }
    Ok(revs)
}

/// Returns the text of a document's next revision.
fn next(number: u64, rev: &str, with_id: bool) -> String {
    let text = documents::text(number, with_id);
    format!("{{\"_rev\":\"{rev}\",{}", text.strip_prefix('{').unwrap_or_default())
}

/// Returns the revisions in the answer to a `_bulk_docs`.
async fn bulk(target: &Target, connection: &mut Connection, body: String) -> Result<Vec<String>, LoadError> {
    let path = format!("{}/_bulk_docs", target.database);
    let answer = expect(connection, Method::POST, &path, body.into()).await?;
    let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let rows = answer.as_array().into_iter().flatten();
    rows.map(|row| match row["rev"].as_str() {
        Some(rev) => Ok(rev.to_owned()),
        None => Err(LoadError::Status { method: Method::POST, path: path.clone(), status: 201, text: row.to_string() }),
    })
    .collect()
}

/// Runs one round of updates or reads. Each connection uses its documents in turn.
async fn round(measured: &mut MeasuredKind, method: Method) -> Result<(), LoadError> {
    let pid = measured.target.pid;
    let count = measured.revs.len();
    let mut shares: Vec<Vec<(usize, String)>> = vec![Vec::new(); WORKERS];
    let requests = ROUND.min(count);
    for at in 0..requests {
        let number = (measured.done + at) % count;
        shares[at % WORKERS].push((number, measured.revs[number].clone()));
    }
    measured.done += requests;
    let turns = ROUND / requests;
    let mut connections = Vec::new();
    for _ in 0..WORKERS {
        connections.push(Connection::open(&measured.target.url).await?);
    }
    let (started, cpu_before_s) = (Instant::now(), pid.map_or(0.0, cpu_s));
    let (local, mut tasks) = (LocalSet::new(), JoinSet::new());
    for (share, connection) in shares.into_iter().zip(connections) {
        let worker = worker(measured.target.database.clone(), connection, method.clone(), share, turns);
        tasks.spawn_local_on(worker, &local);
    }
    let finished = local.run_until(tasks.join_all()).await;
    let seconds = started.elapsed().as_secs_f64();
    let cpu_s = pid.map_or(0.0, cpu_s) - cpu_before_s;
    for share in finished {
        for (number, rev) in share? {
            measured.revs[number] = rev;
        }
    }
    let rounds = if method == Method::PUT { &mut measured.updates } else { &mut measured.reads };
    rounds.per_s.push((requests * turns) as f64 / seconds);
    rounds.cpu_us.push(cpu_s * 1e6 / (requests * turns) as f64);
    Ok(())
}

async fn worker(
    database: String,
    mut connection: Connection,
    method: Method,
    mut share: Vec<(usize, String)>,
    turns: usize,
) -> Result<Vec<(usize, String)>, LoadError> {
    for _ in 0..turns {
        for (number, rev) in &mut share {
            let path = format!("{database}/{}", documents::id(*number as u64));
            if method == Method::GET {
                expect(&mut connection, method.clone(), &path, Bytes::new()).await?;
                continue;
            }
            let body = next(*number as u64, rev, false);
            let answer = expect(&mut connection, method.clone(), &path, body.into()).await?;
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            *rev = answer["rev"].as_str().unwrap_or_default().to_owned();
        }
    }
    Ok(share)
}
