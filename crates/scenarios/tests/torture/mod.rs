//! Many writers, and many more followers that connect and leave at random. At the end each follower's replica equals
//! the database.
//!
//! The last write is a document that passes every filter, so a follower that has it has everything; no test waits for a
//! time. Each connection is checked as it is read: sequences ascend, so no row is repeated; each row passes the filter
//! and has its own document; the final sequence of a feed is not before any row; and a complete answer has all writes
//! acknowledged before its request.

// Each test program uses a part of this module.
#![allow(dead_code)]

mod client;
mod follower;
mod quiet;
mod writer;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_client::{Connection, Url};
use flatbed_testkit::{Random, RequestStart, RunningTime, Torture, pass, seed, within};
use hyper::Method;
use serde_json::{Value, json};

pub const DOCUMENTS: u64 = 500;

/// The number of kinds. An edit may change a document's kind, and some followers filter by kind.
pub const KINDS: u64 = 8;

/// One in this many documents gets conflicts.
pub const CONFLICTS_EVERY: u64 = 20;

/// The id of the last document.
pub const END: &str = "end";

/// The time within which all followers have the last write. It is shorter than the interval of polls without a signal,
/// so a missed signal is detected.
const LAST_WITHIN: Duration = Duration::from_secs(40);

/// The server gives up a request after conflicts for this long.
const GIVES_UP_AFTER: Duration = Duration::from_secs(30);

/// The counts that must not be 0 for a valid run.
const SHOWN: [&str; 3] = ["writes", "rows", "wakes"];

/// Metrics that may explain a broken connection.
const TELLING: [&str; 3] = ["flatbed_refused", "flatbed_answers_broken_off", "flatbed_retries"];

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The database. A quiet database exists beside it.
    pub name: &'static str,
    /// The query string with which both are created.
    pub created_with: &'static str,
    /// True if servers are killed, so that connections may break or be refused.
    pub may_break: bool,
    pub writers: u64,
    pub followers: u64,
    /// True if some followers filter by a function of a design document.
    pub has_functions: bool,
}

impl Plan {
    pub const DEFAULT: Plan =
        Plan { name: "db", created_with: "", may_break: false, writers: 32, followers: 200, has_functions: false };
}

/// The servers' addresses and the writers' knowledge.
pub struct World {
    servers: Mutex<Vec<SocketAddr>>,
    plan: Plan,
    torture: Torture,
    running: RunningTime,
    /// True once the last document is written: followers stay until they see it.
    has_end: AtomicBool,
    /// Each document's newest known revision.
    revs: Mutex<HashMap<String, String>>,
    /// The generation of each document's newest acknowledged write, except for documents with conflicts.
    acknowledged: Mutex<HashMap<String, u64>>,
    seed: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub fn new(servers: Vec<SocketAddr>, plan: Plan) -> Arc<World> {
        Arc::new(World {
            servers: Mutex::new(servers),
            plan,
            torture: Torture::new(SHOWN),
            running: RunningTime::start(),
            has_end: AtomicBool::new(false),
            revs: Mutex::default(),
            acknowledged: Mutex::default(),
            seed: seed(1),
        })
    }

    fn database(&self) -> String {
        format!("/{}", self.plan.name)
    }

    fn quiet(&self) -> String {
        format!("/quiet-{}", self.plan.name)
    }

    /// Replaces the address of a killed server.
    pub fn moved(&self, to: SocketAddr) {
        *lock(&self.servers) = vec![to];
    }

    /// Adds a server. Its cache begins later than the followers' sequences.
    pub fn came(&self, at: SocketAddr) {
        lock(&self.servers).push(at);
    }

    fn server(&self, random: &mut Random) -> SocketAddr {
        let servers = lock(&self.servers);
        servers[random.below(servers.len() as u64) as usize]
    }

    /// Counts a request that the server gave up without writing.
    fn count_given_up(&self, request: &RequestStart) {
        let is_held_up = request.is_held_up(GIVES_UP_AFTER);
        self.torture.count(if is_held_up { "given up on a slow machine" } else { "given up" });
    }

    /// Handles a broken or refused connection. Only killed servers cause these; otherwise panics with the server's
    /// metrics.
    async fn broke(&self, what: &str) {
        if !self.plan.may_break {
            panic!("{what}: the connection broke; {}", self.figures().await);
        }
        self.torture.count("broken");
        pass(Duration::from_millis(20)).await;
    }

    /// Returns the servers' counts of refused and cut answers and of storage errors.
    async fn figures(&self) -> String {
        let servers = lock(&self.servers).clone();
        let mut figures = Vec::new();
        for server in servers {
            let url = Url::parse(&format!("http://{server}")).expect("a URL");
            let mut connection = Connection::open(&url).await.expect("a server that is not killed");
            let answer = connection.call(Method::GET, "/metrics", String::new()).await.expect("its metrics");
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let lines = text.lines().filter(|line| !line.ends_with(" 0"));
            figures.extend(lines.filter(|line| TELLING.iter().any(|name| line.starts_with(name))).map(str::to_owned));
        }
        figures.join(", ")
    }

    /// Sends one request, and repeats it until there is an answer.
    async fn call(&self, random: &mut Random, method: Method, path: &str, body: &str) -> (u16, Value) {
        loop {
            let url = Url::parse(&format!("http://{}", self.server(random))).expect("a URL");
            let answer = async { Connection::open(&url).await?.call(method.clone(), path, body.to_owned()).await };
            match answer.await {
                Ok(answer) => return (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)),
                Err(_) => self.broke(path).await,
            }
        }
    }
}

/// Runs the torture. Writers run for `length` and until `meanwhile` is done, which may kill servers.
pub async fn run(world: Arc<World>, length: Duration, meanwhile: impl Future<Output = ()>) {
    let torture = &world.torture;
    let mut random = Random(world.seed);
    let Plan { name, created_with, writers, followers, has_functions, .. } = world.plan;
    for path in [world.database(), world.quiet()] {
        let (status, answer) = world.call(&mut random, Method::PUT, &format!("{path}{created_with}"), "").await;
        assert!(matches!(status, 201 | 412), "{path}: {status} {answer}");
    }
    if has_functions {
        let function = "function(doc, req) { return String(doc.kind) === req.query.kind || doc.end === true; }";
        let design = json!({ "filters": { "kind": function } }).to_string();
        let path = format!("{}/_design/torture", world.database());
        let (status, answer) = world.call(&mut random, Method::PUT, &path, &design).await;
        assert!(matches!(status, 201 | 409), "{path}: {status} {answer}");
    }
    let alone = tokio::time::Instant::now() + (length / 3).min(Duration::from_secs(20));
    quiet::wakes(&world, || torture.counted("wakes") > 0 && tokio::time::Instant::now() > alone).await;
    let followers: Vec<_> = (0..followers).map(|number| follower::Follower::new(world.clone(), number)).collect();
    let followers: Vec<_> = followers.into_iter().map(|follower| tokio::spawn(torture.part(follower.run()))).collect();
    let write = |number| tokio::spawn(torture.part(writer::write(world.clone(), number)));
    let writers: Vec<_> = (0..writers).map(write).collect();
    let also = world.clone();
    let quiet = async move { quiet::wakes(&also, || also.torture.is_over()).await };
    let quiet = tokio::spawn(torture.part(quiet));
    tokio::join!(torture.until_shown(length), meanwhile);
    torture.end();
    for writer in writers {
        writer.await.expect("a writer is done");
    }
    quiet.await.expect("followers of a quiet database are woken");
    torture.must_have_shown();
    let (status, answer) =
        world.call(&mut random, Method::PUT, &format!("{}/{END}", world.database()), "{\"end\":true}").await;
    // The answer of the first attempt may have been lost.
    assert!(matches!(status, 201 | 409), "{status} {answer}");
    world.has_end.store(true, Ordering::SeqCst);
    let database = reference(&world, &mut random).await;
    let mut have_it = 0;
    let have_all = within(LAST_WITHIN, async {
        for follower in followers {
            follower.await.expect("a follower").must_equal(&database);
            have_it += 1;
        }
    });
    let have_all = have_all.await.is_some();
    assert!(have_all, "follower {have_it} does not get the last row");
    let (writes, given_up) = (torture.counted("writes"), torture.counted("given up"));
    assert!(given_up <= 1 + writes / 1_000, "{given_up} requests were given up, beside {writes} writes");
    println!("{name}, {length:?}: {:?}", torture.counts());
}

#[derive(Debug)]
struct StoredDocument {
    seq: String,
    rev: String,
    leaves: Vec<String>,
    deleted: bool,
    document: Value,
}

/// Reads the final state in two ways.
async fn reference(world: &World, random: &mut Random) -> HashMap<String, StoredDocument> {
    let path = format!("{}/_changes?style=all_docs&include_docs=true", world.database());
    let (status, changes) = world.call(random, Method::GET, &path, "").await;
    assert_eq!(status, 200, "{changes}");
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned();
    let mut held = HashMap::new();
    for row in changes["results"].as_array().expect("rows") {
        let leaves: Vec<String> =
            row["changes"].as_array().expect("leaves").iter().map(|leaf| text(&leaf["rev"])).collect();
        let rev = leaves[0].clone();
        let deleted = row["deleted"] == json!(true);
        let before = held.insert(
            text(&row["id"]),
            StoredDocument { seq: text(&row["seq"]), rev, leaves, deleted, document: row["doc"].clone() },
        );
        assert!(before.is_none(), "{row}: a document comes twice");
    }
    let path = format!("{}/_all_docs?include_docs=true", world.database());
    let (status, all) = world.call(random, Method::GET, &path, "").await;
    assert_eq!(status, 200, "{all}");
    let rows = all["rows"].as_array().expect("rows");
    for row in rows {
        let held = &held[row["id"].as_str().expect("an id")];
        assert!(!held.deleted && held.document == row["doc"], "{row} but {held:?}");
    }
    assert_eq!(rows.len(), held.values().filter(|held| !held.deleted).count());
    for (id, generation) in lock(&world.acknowledged).iter() {
        assert!(generation_of(&held[id].rev) >= *generation, "{id}: an acknowledged write is lost");
    }
    let servers = lock(&world.servers).clone();
    for server in servers {
        agree(world, server, &held).await;
    }
    held
}

/// Asserts that one server's other endpoints agree with the final state.
async fn agree(world: &World, server: SocketAddr, held: &HashMap<String, StoredDocument>) {
    let path = world.database();
    let get = async |path: String| -> Value {
        let url = Url::parse(&format!("http://{server}")).expect("a URL");
        let answer = Connection::open(&url).await.expect("connected").call(Method::GET, &path, "").await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
        serde_json::from_slice(&answer.body).expect("JSON")
    };
    let deleted = held.values().filter(|held| held.deleted).count();
    let mut in_order: Vec<(&str, &str)> = held.iter().map(|(id, held)| (held.seq.as_str(), id.as_str())).collect();
    in_order.sort_unstable();
    let last = in_order.last().expect("the end").0;
    let info = get(path.clone()).await;
    let counts = (info["doc_count"].as_u64(), info["doc_del_count"].as_u64());
    assert_eq!(counts, (Some((held.len() - deleted) as u64), Some(deleted as u64)), "{info}");
    assert_eq!(info["update_seq"], last, "{info}");
    let all = get(format!("{path}/_all_docs?limit=0")).await;
    assert_eq!(all["total_rows"], held.len() - deleted, "{all}");
    let now = get(format!("{path}/_changes?since=now")).await;
    assert_eq!((&now["last_seq"], &now["pending"]), (&json!(last), &json!(0)), "{now}");
    let rows = |page: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        page["results"].as_array().expect("rows").iter().map(|row| (text(&row["seq"]), text(&row["id"]))).collect()
    };
    let is_equal = |(seq, id): &(String, String), expected: &(&str, &str)| (seq.as_str(), id.as_str()) == *expected;
    let backwards = rows(&get(format!("{path}/_changes?descending=true")).await);
    assert!(backwards.len() == held.len() && backwards.iter().rev().zip(&in_order).all(|(a, b)| is_equal(a, b)));
    let (mut since, mut at) = ("0".to_owned(), 0);
    while at < in_order.len() {
        let page = get(format!("{path}/_changes?limit=83&since={since}")).await;
        let found = rows(&page);
        assert!(!found.is_empty() && found.iter().zip(&in_order[at..]).all(|(a, b)| is_equal(a, b)), "{since}: {page}");
        at += found.len();
        let (left, pending) = (in_order.len() - at, page["pending"].as_u64().expect("a number") as usize);
        let is_right = if left > 500 { (501..=in_order.len()).contains(&pending) } else { pending == left };
        assert!(is_right, "{pending} are pending of {left}");
        page["last_seq"].as_str().expect("a place").clone_into(&mut since);
        assert_eq!(since, in_order[at - 1].0);
    }
}

fn generation_of(rev: &str) -> u64 {
    rev.split('-')
        .next()
        .and_then(|generation| generation.parse().ok())
        .unwrap_or_else(|| panic!("{rev} is no revision"))
}
