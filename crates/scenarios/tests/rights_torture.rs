//! Fifty users, twenty databases, and random changes of `_security`, roles, passwords, keys of tokens, administrators
//! and settings beside requests and feeds at two servers.
//!
//! A model decides (`rights_torture/model.rs`): it knows when each change began and when it was acknowledged. A request
//! that was forbidden, or allowed, for the whole time from a second before its start to its answer must have been
//! refused, or answered; otherwise either is right. An acknowledged write is fenced: it must have been allowed at some
//! moment between its start and its answer. A feed ends only after the loss of its right, and then within a second,
//! plus the time that `canary.rs` adds for a late machine. A follower that has lost its right does not leave before. At
//! the end followers have all documents of their databases, and databases hold all acknowledged writes and no refused
//! one.
//!
//! `FLATBED_TEST_SECONDS` sets the duration. `FLATBED_TEST_SEED` sets the seed of the random choices; their results
//! still depend on timing.
#[path = "rights_torture/ask.rs"]
mod ask;
#[path = "rights_torture/canary.rs"]
mod canary;
#[path = "rights_torture/change.rs"]
mod change;
#[path = "rights_torture/follow.rs"]
mod follow;
#[path = "rights_torture/model.rs"]
mod model;
#[path = "rights_torture/mortal.rs"]
mod mortal;
#[path = "rights_torture/probe.rs"]
mod probe;
#[path = "rights_torture/proof.rs"]
mod proof;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::TURN;
use crate::support::{self, ServerOptions, Store};
use canary::Canary;
use flatbed_testkit::http::{Answer, Connection};
use flatbed_testkit::timeline::Span;
use flatbed_testkit::{PATIENCE, Random, Torture, WaitLoop, length, pass, seed};
use model::{DATABASES, Model, Needs, Outcomes, When, database_name, parsed};
use mortal::Mortal;
use proof::{Keys, Proof, basic};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const CLIENTS: u64 = 16;
const CHANGERS: u64 = 8;
const FOLLOWERS: u64 = 40;

/// The duration of each phase.
const PHASE: Duration = Duration::from_secs(3);

/// The counts that a run must reach to prove anything. Answers are "sure" if the model allows only one.
const SHOWN: [&str; 7] =
    ["surely answered", "surely refused", "surely absent", "writes", "feeds that lost their right", "rows", "changes"];

#[tokio::test(flavor = "multi_thread")]
async fn rights_follow_changes() {
    let store = Arc::new(Store::new());
    torture(&store, length(5.0), 1, false).await;
}

/// Late and spurious watches, and the errors 1007, 1020 and 1021.
#[tokio::test(flavor = "multi_thread")]
async fn rights_follow_changes_under_faults() {
    let Some(store) = Store::with_faults() else { return };
    torture(&Arc::new(store), length(5.0), 2, false).await;
}

/// One of the servers is killed repeatedly, at any moment, and another one replaces it.
#[tokio::test(flavor = "multi_thread")]
async fn rights_follow_changes_beside_servers_that_die() {
    let Some(store) = Store::with_faults() else { return };
    torture(&Arc::new(store), length(5.0), 3, true).await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recent change: requests prefer its subject.
#[derive(Debug, Clone, Copy)]
pub(crate) enum About {
    User(usize),
    Database(usize),
}

/// The load of a phase. Servers learn from requests: they check refused and conflicting requests again, and each
/// transaction tells whether records have changed. In some phases they therefore learn little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All kinds of requests.
    Busy,
    /// Only changes of rights are written, and no wrong credentials are shown.
    Calm,
    /// Requests only probe the rights that a change has revoked or granted.
    Quiet,
}

/// The known outcomes of writes.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By database: its number, and the ids of documents that it must hold.
    written: HashMap<usize, (u64, HashSet<String>)>,
    /// The ids of documents that no database may hold.
    refused: HashSet<String>,
}

/// A token's key, the number of its version, the user and the roles.
type TokenOf = (usize, usize, usize, Vec<usize>);

pub(crate) struct World {
    servers: Mutex<Vec<SocketAddr>>,
    may_break: bool,
    torture: Torture,
    is_ended: AtomicBool,
    model: Mutex<Model>,
    keys: Mutex<Keys>,
    tokens: Mutex<HashMap<TokenOf, Proof>>,
    /// The key that signs sessions and the proxies' tokens.
    secret: Vec<u8>,
    ledger: Mutex<Ledger>,
    recent: Mutex<VecDeque<About>>,
    /// One lock for each changed item: changes of it are serial.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// Passwords that a server has accepted, with the salts of their hashes.
    known: Mutex<HashSet<(SocketAddr, usize, String)>>,
    /// The earliest time of the next password check: each takes a core for a fifth of a second.
    next_check: Mutex<Instant>,
    canary: Canary,
    /// The next unique number.
    numbers: AtomicU64,
    began: Instant,
    seed: u64,
}

impl World {
    fn is_over(&self) -> bool {
        self.torture.is_over()
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn count(&self, what: &'static str) {
        self.torture.count(what);
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn phase(&self) -> Phase {
        match self.began.elapsed().as_millis() / PHASE.as_millis() % 3 {
            0 => Phase::Busy,
            1 => Phase::Calm,
            _ => Phase::Quiet,
        }
    }

    /// Returns a token, the same one for equal arguments.
    fn token(&self, key: usize, number: usize, user: usize, roles: Vec<usize>) -> Proof {
        let mut tokens = lock(&self.tokens);
        let made = || Proof::token(&lock(&self.keys), key, number, user, roles.clone());
        tokens.entry((key, number, user, roles.clone())).or_insert_with(made).clone()
    }

    /// Returns whether a password may be checked now.
    fn may_check(&self) -> bool {
        let mut next = lock(&self.next_check);
        let now = Instant::now();
        let may = *next <= now;
        if may {
            *next = now + Duration::from_millis(300);
        }
        may
    }

    fn note(&self, about: About) {
        let mut recent = lock(&self.recent);
        recent.push_front(about);
        recent.truncate(6);
    }

    fn judge(&self, asked: &dyn std::fmt::Debug, proof: &Proof, needs: Needs, when: When, outcome: Outcome) {
        let possible = lock(&self.model).outcomes(proof, needs, when);
        self.compare(asked, proof, needs, when, outcome, possible);
    }

    fn compare(
        &self,
        asked: &dyn std::fmt::Debug,
        proof: &Proof,
        needs: Needs,
        when: When,
        outcome: Outcome,
        possible: Outcomes,
    ) {
        let is_possible = match outcome {
            Outcome::Answered => possible.answered,
            Outcome::Refused => possible.refused,
            Outcome::Absent => possible.absent,
        };
        if !is_possible {
            self.fail(
                &format!("{asked:?} as {proof:?}, which needs {needs:?}: {outcome:?}, but possible is {possible:?}"),
                needs,
                when,
            );
        }
        let is_certain = [possible.answered, possible.refused, possible.absent].iter().filter(|one| **one).count() == 1;
        self.count(match (is_certain, outcome) {
            (true, Outcome::Answered) => "surely answered",
            (true, Outcome::Refused) => "surely refused",
            (true, Outcome::Absent) => "surely absent",
            (false, _) => "either",
        });
    }

    fn fail(&self, what: &str, needs: Needs, when: When) -> ! {
        let now = Instant::now();
        let ago = |span: Span| (now - span.from, now - span.to);
        let model = lock(&self.model);
        let history = needs.database().map(|database| model.databases[database].history());
        let keys: Vec<String> = model.keys.iter().map(|key| key.history()).collect();
        let text = format!(
            "{what}\nit was {:?} ago, with keys {keys:?},\nnames wanted: {},\nproxies believed: {},\nthe database: {}",
            ago(when.records),
            model.wants_names.history(),
            model.believes_proxies.history(),
            history.unwrap_or_default(),
        );
        let users: Vec<String> = (0..model::USERS)
            .filter(|user| what.contains(&format!("user: {user},")))
            .map(|user| {
                let admin = model.admins.get(user).map(|admin| admin.history()).unwrap_or_default();
                format!("{}; as an administrator: {admin}", model.users[user].history())
            })
            .collect();
        drop(model);
        panic!("seed {}: {text},\nthe user: {users:?}", self.seed);
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    Refused,
    Absent,
}

impl Outcome {
    /// Returns the outcome; `None`: it is unknown.
    fn of(answer: &Answer, proof: &Proof) -> Option<Outcome> {
        match answer.status {
            200..=299 | 409 | 412 => Some(Outcome::Answered),
            401 | 403 => Some(Outcome::Refused),
            // An invalid token.
            400 if matches!(proof, Proof::Token { .. }) => Some(Outcome::Refused),
            404 if parsed(&answer.body)["reason"] == "Database does not exist." => Some(Outcome::Absent),
            404 => Some(Outcome::Answered),
            429 | 503 => None,
            _ => panic!("{answer:?}"),
        }
    }
}

/// The connections of a task, one to each server.
pub(crate) struct Client {
    world: Arc<World>,
    random: Random,
    connections: HashMap<SocketAddr, Connection>,
}

impl Client {
    fn new(world: &Arc<World>, number: u64) -> Client {
        Client { world: world.clone(), random: Random(world.seed ^ (number << 32)), connections: HashMap::new() }
    }

    fn server(&mut self) -> SocketAddr {
        let servers = lock(&self.world.servers);
        *self.random.one_of(&servers)
    }

    /// Sends one request to a server; `None`: the connection broke, and the outcome is unknown.
    async fn call(
        &mut self,
        server: SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&'static str, String)],
        body: &str,
    ) -> Option<Answer> {
        let mut connection = match self.connections.remove(&server) {
            Some(connection) => connection,
            None => Connection::open(server).await.ok()?,
        };
        let called = timeout(PATIENCE, connection.call(method, path, headers, body)).await;
        let called = called.unwrap_or_else(|_| panic!("{method} {path}: no answer"));
        if called.is_ok() && !connection.is_last {
            self.connections.insert(server, connection);
        }
        if called.is_err() {
            self.world.count("broken");
        }
        called.ok()
    }

    /// Like [`Client::call`], as the administrator that is never removed.
    async fn root_at(&mut self, server: SocketAddr, method: &str, path: &str, body: &str) -> Option<Answer> {
        self.call(server, method, path, &[("authorization", basic("root", "test"))], body).await
    }

    async fn root(&mut self, method: &str, path: &str, body: &str) -> Option<Answer> {
        let server = self.server();
        self.root_at(server, method, path, body).await
    }

    /// Repeats a request until it succeeds, or fails with the status `or`.
    async fn must(&mut self, method: &str, path: &str, body: &str, or: u16) -> Value {
        let mut waiting = WaitLoop::begin();
        loop {
            let answer = self.root(method, path, body).await;
            if let Some(answer) = answer.as_ref().filter(|answer| answer.status < 300 || answer.status == or) {
                return parsed(&answer.body);
            }
            waiting.pause(&format!("{method} {path}: {answer:?}")).await;
        }
    }
}

fn options() -> ServerOptions {
    ServerOptions::guarded_by("root", "test")
}

async fn torture(store: &Arc<Store>, length: Duration, default_seed: u64, dies: bool) {
    let _alone = TURN.lock().await;
    let seed = seed(default_seed);
    let layer = store.layer().await;
    let secret = layer.sign_in_state().await.expect("read").0.secrets[0].bytes.clone();
    let first = store.serve_on(layer, options()).await;
    let second = Mortal::start(store).await;
    let world = Arc::new(World {
        servers: Mutex::new(vec![first.address, second.address()]),
        may_break: dies,
        torture: Torture::new(SHOWN.into_iter().chain(dies.then_some("kills"))),
        is_ended: AtomicBool::new(false),
        model: Mutex::new(Model::new()),
        keys: Mutex::new(Keys::new(model::KEYS)),
        tokens: Mutex::default(),
        secret,
        ledger: Mutex::default(),
        recent: Mutex::default(),
        turns: (0..change::TURNS).map(|_| tokio::sync::Mutex::default()).collect(),
        known: Mutex::default(),
        next_check: Mutex::new(Instant::now()),
        canary: Canary::default(),
        numbers: AtomicU64::new(1),
        began: Instant::now(),
        seed,
    });
    let torture = &world.torture;
    second.watch(&world);
    change::prepare(&world).await;
    // All servers know of the settled changes.
    pass(model::GRACE).await;
    let (mut tasks, mut canaries) = (JoinSet::new(), JoinSet::new());
    canaries.spawn(canary::timers(world.clone()));
    canaries.spawn(canary::reads(world.clone(), store.layer().await));
    let mut followers = JoinSet::new();
    for number in 0..FOLLOWERS {
        followers.spawn(torture.part(follow::Follower::new(&world, number).run()));
    }
    for number in 0..CLIENTS {
        tasks.spawn(torture.part(ask::ask(world.clone(), number)));
    }
    for number in 0..CHANGERS {
        tasks.spawn(torture.part(change::change(world.clone(), number)));
    }
    let is_shown = async {
        torture.until_shown(length).await;
        torture.end();
    };
    let (second, ()) = tokio::join!(second.killed_again_and_again(store, &world, dies), is_shown);
    tasks.join_all().await;
    change::open_all(&world).await;
    let held = followers.join_all().await;
    world.is_ended.store(true, Ordering::SeqCst);
    canaries.join_all().await;
    compare(&world, held).await;
    println!("{:?}", torture.counts());
    torture.must_have_shown();
    drop(second);
    first.stop().await;
}

/// Compares the databases with the state of followers and writers.
async fn compare(world: &Arc<World>, held: Vec<follow::Held>) {
    let mut client = Client::new(world, 0xe2d);
    let mut all = Vec::new();
    for database in 0..DATABASES {
        let found = client.must("GET", &format!("/{}/_all_docs", database_name(database)), "", 0).await;
        let rows = found["rows"].as_array().expect("rows");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let rows: BTreeMap<String, String> =
            rows.iter().map(|row| (text(&row["id"]), text(&row["value"]["rev"]))).collect();
        all.push(rows);
    }
    for follow::Held { follower, database, documents } in held {
        let rows = &all[database];
        let lacks: Vec<_> = rows.iter().filter(|(id, rev)| documents.get(*id) != Some(rev)).collect();
        let more: Vec<_> = documents.keys().filter(|id| !rows.contains_key(*id)).collect();
        assert!(
            lacks.is_empty() && more.is_empty(),
            "seed {}: follower {follower} of {} lacks {lacks:?}, and has {more:?}",
            world.seed,
            database_name(database)
        );
    }
    let ledger = lock(&world.ledger);
    let model = lock(&world.model);
    for (database, rows) in all.iter().enumerate() {
        let number = model.databases[database].newest().as_ref().map(|database| database.number);
        if let Some((of, written)) = ledger.written.get(&database)
            && Some(*of) == number
        {
            let lost: Vec<_> = written.iter().filter(|id| !rows.contains_key(*id)).collect();
            assert!(lost.is_empty(), "seed {}: acknowledged but missing: {lost:?}", world.seed);
        }
        let there: Vec<_> = rows.keys().filter(|id| ledger.refused.contains(*id)).collect();
        assert!(there.is_empty(), "seed {}: refused but present: {there:?}", world.seed);
    }
}

/// Returns at most `count` different numbers below `end`.
fn some(random: &mut Random, count: u64, end: usize) -> Vec<usize> {
    let mut found: Vec<usize> = (0..random.below(count + 1)).map(|_| random.index(end)).collect();
    found.sort_unstable();
    found.dedup();
    found
}
