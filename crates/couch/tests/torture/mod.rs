//! Many writers, and many more followers that come and go as they like: what each of them has put together at the end is
//! what the database holds.
//!
//! The last write of all is a document that every filter passes. A follower has all that came before once it has that
//! one; nobody waits for a time to pass. What a connection gives is checked as it comes: the order never goes back, so no
//! row comes twice; a row is one that the filter passes, with its own document; a sequence given at the end of a feed
//! is not before a row of it; and a whole answer has all that was acknowledged before it was asked for.

// Each test program uses its own part of this.
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
use flatbed_testkit::{Begun, Random, RunningTime, Torture, pass, seed, within};
use hyper::Method;
use serde_json::{Value, json};

pub const DOCUMENTS: u64 = 500;

/// Documents have one of so many kinds, and another with each edit; some followers want one kind.
pub const KINDS: u64 = 8;

/// Every so manyth document gets conflicts.
pub const CONFLICTS_EVERY: u64 = 20;

/// The document that is written last.
pub const END: &str = "end";

/// Within this time after the last write all followers have it. What looks again without a signal does so later: a
/// follower that was forgotten is found.
const LAST_WITHIN: Duration = Duration::from_secs(40);

/// The server gives up a request that meets conflicts for so long.
const GIVES_UP_AFTER: Duration = Duration::from_secs(30);

/// The counts without which a run has shown nothing.
const SHOWN: [&str; 3] = ["writes", "rows", "wakes"];

/// What of `/metrics` may say why a connection broke.
const TELLING: [&str; 3] = ["flatbed_refused", "flatbed_answers_broken_off", "flatbed_retries"];

/// What a torture is of.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The database, beside which one lies where little happens.
    pub name: &'static str,
    /// What both are created with, behind a `?`.
    pub created_with: &'static str,
    /// Servers are killed: connections may break, and are refused.
    pub may_break: bool,
    pub writers: u64,
    pub followers: u64,
    /// Some followers filter by a function of a design document.
    pub has_functions: bool,
}

impl Plan {
    pub const DEFAULT: Plan =
        Plan { name: "db", created_with: "", may_break: false, writers: 32, followers: 200, has_functions: false };
}

/// Where the servers are, and what the writers know.
pub struct World {
    servers: Mutex<Vec<SocketAddr>>,
    plan: Plan,
    torture: Torture,
    running: RunningTime,
    /// The end is written: nobody leaves before having seen it.
    has_end: AtomicBool,
    /// A document's newest revision, as far as is known.
    revs: Mutex<HashMap<String, String>>,
    /// The generation of each document's newest write that was acknowledged; those with conflicts are left out.
    acknowledged: Mutex<HashMap<String, u64>>,
    seed: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// One whose servers are at these addresses.
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

    /// The path of its database.
    fn database(&self) -> String {
        format!("/{}", self.plan.name)
    }

    /// That of the one where little happens.
    fn quiet(&self) -> String {
        format!("/quiet-{}", self.plan.name)
    }

    /// Another server took the place of one that was killed.
    pub fn moved(&self, to: SocketAddr) {
        *lock(&self.servers) = vec![to];
    }

    /// One more server: what it tells begins later than what followers have.
    pub fn came(&self, at: SocketAddr) {
        lock(&self.servers).push(at);
    }

    fn server(&self, random: &mut Random) -> SocketAddr {
        let servers = lock(&self.servers);
        servers[random.below(servers.len() as u64) as usize]
    }

    /// The server has given up a request, and has written nothing.
    fn count_given_up(&self, request: &Begun) {
        let is_held_up = request.is_held_up(GIVES_UP_AFTER);
        self.torture.count(if is_held_up { "given up on a slow machine" } else { "given up" });
    }

    /// A connection broke, or was refused. Only a server that is killed does that; of another its figures may say why.
    async fn broke(&self, what: &str) {
        if !self.plan.may_break {
            panic!("{what}: the connection broke; {}", self.figures().await);
        }
        self.torture.count("broken");
        pass(Duration::from_millis(20)).await;
    }

    /// What servers have refused or cut, and errors of the storage.
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

    /// One request, repeated until there is an answer.
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

/// Runs all of it. Writers write for so long, and until `meanwhile` is done: it may kill servers.
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
    // An answer may have been lost.
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

/// A document as the database holds it in the end.
#[derive(Debug)]
struct Held {
    seq: String,
    rev: String,
    leaves: Vec<String>,
    deleted: bool,
    document: Value,
}

/// What the database holds, asked in two ways.
async fn reference(world: &World, random: &mut Random) -> HashMap<String, Held> {
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
            Held { seq: text(&row["seq"]), rev, leaves, deleted, document: row["doc"].clone() },
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

/// What one server says of the database in its other ways, after the last write.
async fn agree(world: &World, server: SocketAddr, held: &HashMap<String, Held>) {
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
