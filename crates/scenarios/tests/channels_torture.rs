//! Forty users of one database with sixty channels: documents that change channels and grants at random, conflicts of
//! replication with leaves in different channels, deletions, files, drop boxes, documents that end, users and roles
//! that come and go, and the function replaced, at two servers.
//!
//! A model decides (`channels_torture/model.rs`). It knows the acknowledged changes and their times, and nothing of the
//! layer. A read must show nothing that was forbidden throughout the request, and must show everything that was visible
//! throughout. A feed must send nothing that was forbidden for the whole last second, plus the time that
//! `rights_torture/canary.rs` adds for a late machine. A write must have been allowed at some moment of its request,
//! and a refused write forbidden at some moment. Each user has a follower that leaves and resumes, and a replica: at
//! the end each has what the model gives that user, and the checker finds nothing.
//!
//! `FLATBED_TEST_SECONDS` sets the duration. `FLATBED_TEST_SEED` sets the seed of the random choices; their results
//! still depend on timing.
#[path = "channels_torture/ask.rs"]
mod ask;
#[path = "rights_torture/canary.rs"]
mod canary;
#[path = "channels_torture/change.rs"]
mod change;
#[path = "channels_torture/end.rs"]
mod end;
#[path = "channels_torture/follow.rs"]
mod follow;
#[path = "channels_torture/model.rs"]
mod model;
#[path = "rights_torture/mortal.rs"]
mod mortal;
#[path = "channels_torture/replica.rs"]
mod replica;
#[path = "channels_torture/write.rs"]
mod write;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::TURN;
use crate::support::{self, ServerOptions, Store};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use canary::Canary;
use flatbed_auth::PasswordHash;
use flatbed_layer::json::{self as layer_json, Value as Members};
use flatbed_layer::{Background, BackgroundOptions, Database};
use flatbed_testkit::http::{Answer, Connection};
use flatbed_testkit::timeline::Span;
use flatbed_testkit::{PATIENCE, Random, Torture, WaitLoop, length, seed, soon};
use model::{DOCS, Model, ROLES, USERS, doc_id, ends, user_name};
use mortal::Mortal;
use ring::hmac;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const WRITERS: u64 = 8;
const CHANGERS: u64 = 3;
const ASKERS: u64 = 8;

/// The salt of all accounts.
const SALT: &str = "salt";

/// The document that is written last.
const END: &str = "end";

/// The document written before [`END`]; it ends and is in no channel.
const NOTED: &str = "noted";

/// The largest age of a state that an answer may use.
const GRACE: Duration = Duration::from_secs(1);

/// The deviation of a document's end from its second: clocks differ, and seconds are whole.
const CLOCKS: Duration = Duration::from_secs(1);

/// The time for which a feed of a disabled reader may stay open without rows: after a storage error the shared reader
/// of all followers waits for a second.
const FEEDS_END_WITHIN: Duration = Duration::from_secs(3);

/// The age from which a decision is repeated before its result is sent.
const JUDGED_WITHIN: Duration = Duration::from_millis(500);

/// The idle time from which a connection is not reused: the server may be about to close it.
const IDLE: Duration = Duration::from_secs(5);

/// The counts that a run must reach to prove anything.
const SHOWN: [&str; 5] = ["writes", "rows", "revisions shown by right", "documents hidden", "functions"];

#[tokio::test(flavor = "multi_thread")]
async fn users_see_what_is_theirs() {
    let store = Arc::new(Store::new());
    torture(&store, length(5.0), 1, false).await;
}

/// Late and spurious watches, and the errors 1007, 1020 and 1021.
#[tokio::test(flavor = "multi_thread")]
async fn users_see_what_is_theirs_under_faults() {
    let Some(store) = Store::with_faults() else { return };
    torture(&Arc::new(store), length(4.0), 2, false).await;
}

/// One of the servers is killed repeatedly, at any moment, and another one replaces it.
#[tokio::test(flavor = "multi_thread")]
async fn users_see_what_is_theirs_beside_servers_that_die() {
    let Some(store) = Store::with_faults() else { return };
    torture(&Arc::new(store), length(4.0), 3, true).await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A recent change: requests prefer its subject.
#[derive(Debug, Clone, Copy)]
pub(crate) enum About {
    User(usize),
    Doc(usize),
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User(usize),
}

/// Returns a session cookie of an account with this salt, built from its documented format: it needs no password check.
fn session(secret: &[u8], name: &str, salt: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    let mut text = format!("{name}:{now:X}").into_bytes();
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &[secret, salt.as_bytes()].concat()), &text);
    text.push(b':');
    text.extend_from_slice(mac.as_ref());
    format!("AuthSession={}", BASE64_URL_SAFE_NO_PAD.encode(text))
}

/// A revision that was sent before the model knew it.
struct Deferred {
    user: usize,
    doc: usize,
    rev: String,
    deleted: bool,
    span: Span,
    asked: String,
}

pub(crate) struct World {
    servers: Mutex<Vec<SocketAddr>>,
    may_break: bool,
    /// Over once nothing changes any more.
    torture: Torture,
    /// True while the last write is under way.
    is_closed: AtomicBool,
    is_ended: AtomicBool,
    model: Mutex<Model>,
    /// The database as seen by a process without a server.
    database: Database,
    deferred: Mutex<Vec<Deferred>>,
    recent: Mutex<VecDeque<About>>,
    /// One lock for each document; those of users and roles are `principals`. Changes under a lock are serial.
    turns: Vec<tokio::sync::Mutex<()>>,
    principals: Vec<tokio::sync::Mutex<()>>,
    canary: Canary,
    /// The next unique number.
    numbers: AtomicU64,
    /// The session cookie of each user.
    cookies: Vec<String>,
    has_failed: AtomicBool,
    seed: u64,
}

impl World {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn count(&self, what: &'static str) {
        self.torture.count(what);
    }

    fn headers(&self, who: Who) -> Vec<(&'static str, String)> {
        vec![match who {
            Who::Root => ("authorization", format!("Basic {}", BASE64_STANDARD.encode("root:test"))),
            Who::User(user) => ("cookie", self.cookies[user].clone()),
        }]
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&self, about: About) {
        let mut recent = lock(&self.recent);
        recent.push_front(about);
        recent.truncate(8);
    }

    /// Judges a revision that was sent to a user at some moment of a span.
    fn sent(&self, user: usize, doc: usize, rev: &str, deleted: bool, span: Span, asked: impl Fn() -> String) {
        let body = lock(&self.model).revs.get(&(doc, rev.to_owned())).cloned();
        match body {
            Some(body) if deleted => ask::judge(self, user, doc, &body, span, &asked()),
            Some(body) => ask::judge_whole(self, user, doc, &body, span, &asked()),
            None => {
                let mut deferred = lock(&self.deferred);
                deferred.push(Deferred { user, doc, rev: rev.to_owned(), deleted, span, asked: asked() });
                if deferred.len() > 500 {
                    drop(deferred);
                    self.judge_deferred(false);
                }
            }
        }
    }

    /// Judges revisions that were sent before the model knew them. At the end the model knows all but tombstones that
    /// the server wrote itself.
    fn judge_deferred(&self, at_end: bool) {
        let deferred = std::mem::take(&mut *lock(&self.deferred));
        for one in deferred {
            let body = lock(&self.model).revs.get(&(one.doc, one.rev.clone())).cloned();
            match body {
                Some(body) => judge_late(self, &one, &body),
                None if one.deleted && ends(one.doc) => self.count("tombstones of the server's"),
                // The write was made and its document ended before its writer had an answer.
                None if ends(one.doc) => self.count("revisions that have ended unknown"),
                None if at_end => {
                    let Deferred { user, doc, rev, asked, .. } = one;
                    self.fail(&format!("{asked}: {rev} was never written"), user, Some(doc));
                }
                None => lock(&self.deferred).push(one),
            }
        }
    }

    fn fail(&self, what: &str, user: usize, doc: Option<usize>) -> ! {
        assert!(!self.has_failed.swap(true, Ordering::SeqCst), "the torture has failed before");
        let history = lock(&self.model).history(user, doc);
        let doc = doc.map(doc_id);
        panic!("seed {}: user {user}, document {doc:?}: {what}\n{history}", self.seed);
    }
}

fn judge_late(world: &World, one: &Deferred, body: &model::Body) {
    let judge = if one.deleted { ask::judge } else { ask::judge_whole };
    judge(world, one.user, one.doc, body, one.span, &one.asked);
}

/// The connections of a task, one to each server.
pub(crate) struct Client {
    world: Arc<World>,
    random: Random,
    /// Each connection with the time of its last use.
    connections: HashMap<SocketAddr, (Connection, Instant)>,
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
            Some((connection, used)) if used.elapsed() < IDLE => connection,
            _ => Connection::open(server).await.ok()?,
        };
        let from = Instant::now();
        let called = timeout(PATIENCE, connection.call(method, path, headers, body)).await;
        let called = called.unwrap_or_else(|_| panic!("{method} {path}: no answer"));
        if called.is_ok() && !connection.is_last {
            self.connections.insert(server, (connection, Instant::now()));
        }
        if called.is_err() {
            let may_break = self.world.may_break || !lock(&self.world.servers).contains(&server);
            // The server cuts the feed of a disabled reader.
            let reader = headers.iter().find_map(|(_, value)| self.world.cookies.iter().position(|of| of == value));
            let span = Span { from, to: Instant::now() };
            let is_kept_out = |user| !lock(&self.world.model).sure(user, span).is_enabled;
            // It also cuts an answer that waited until its reader's rights were checked again and some were gone.
            let may_have_lost = |user| {
                let model = lock(&self.world.model);
                from.elapsed() > JUDGED_WITHIN && model.sure(user, span) != model.possible(user, span)
            };
            let is_cut =
                || reader.is_some_and(|user| path.contains("/_changes") && is_kept_out(user) || may_have_lost(user));
            assert!(may_break || is_cut(), "{method} {path} broke");
            self.world.count("broken");
        }
        called.ok()
    }

    async fn root(&mut self, method: &str, path: &str, body: &str) -> Option<Answer> {
        let server = self.server();
        self.call(server, method, path, &self.world.headers(Who::Root), body).await
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
    let setting = |section: &str, key: &str, value: &str| (section.to_owned(), key.to_owned(), value.to_owned());
    let settings =
        vec![setting("chttpd_auth", "upgrade_hash_on_auth", "false"), setting("chttpd_auth", "timeout", "31536000")];
    ServerOptions { settings, ..ServerOptions::guarded_by("root", "test") }
}

/// Creates the server's accounts, whose password checks are cheap, and the database.
async fn prepare(world: &Arc<World>) {
    let mut client = Client::new(world, 0x9e9);
    client.must("PUT", "/_users", "", 412).await;
    let text = layer_json::to_vec(&Members::Object(PasswordHash::salted("test", SALT, 10).put_into(Vec::new())));
    let mut account: Value = serde_json::from_slice(&text).expect("JSON");
    for user in 0..USERS {
        account["name"] = json!(user_name(user));
        account["type"] = json!("user");
        account["roles"] = json!([]);
        let path = format!("/_users/org.couchdb.user:{}", user_name(user));
        client.must("PUT", &path, &account.to_string(), 409).await;
    }
    client.must("PUT", "/db", &json!({"sync": write::function(0)}).to_string(), 412).await;
    change::prepare(world).await;
}

async fn torture(store: &Arc<Store>, length: Duration, default_seed: u64, dies: bool) {
    let _alone = TURN.lock().await;
    let seed = seed(default_seed);
    let layer = store.layer().await;
    let secret = layer.sign_in_state().await.expect("read").0.secrets[0].bytes.clone();
    let first = store.serve_on(layer, options()).await;
    let second = Mortal::start(store).await;
    let layer = store.layer().await;
    let world = Arc::new(World {
        servers: Mutex::new(vec![first.address, second.address()]),
        may_break: dies,
        torture: Torture::new(SHOWN.into_iter().chain(dies.then_some("kills"))),
        is_closed: AtomicBool::new(false),
        is_ended: AtomicBool::new(false),
        model: Mutex::new(Model::new()),
        database: layer.database("db"),
        deferred: Mutex::default(),
        recent: Mutex::default(),
        turns: (0..DOCS).map(|_| tokio::sync::Mutex::default()).collect(),
        principals: (0..USERS + ROLES).map(|_| tokio::sync::Mutex::default()).collect(),
        canary: Canary::default(),
        numbers: AtomicU64::new(1),
        cookies: (0..USERS).map(|user| session(&secret, &user_name(user), SALT)).collect(),
        has_failed: AtomicBool::new(false),
        seed,
    });
    second.watch(&world);
    prepare(&world).await;
    // The process that sets a function starts to route documents to it; other processes soon notice the death of a
    // process.
    let background = BackgroundOptions {
        look_every: Duration::from_secs(1),
        silence_max: Duration::from_secs(3),
        ..BackgroundOptions::default()
    };
    let background = Background::new(&layer, layer.actor.clone(), background).expect("randomness");
    background.start();
    let torture = &world.torture;
    let (mut tasks, mut canaries) = (JoinSet::new(), JoinSet::new());
    canaries.spawn(canary::timers(world.clone()));
    canaries.spawn(canary::reads(world.clone(), store.layer().await));
    let (mut followers, mut replicas) = (JoinSet::new(), JoinSet::new());
    for user in 0..USERS {
        followers.spawn(torture.part(follow::Follower::new(&world, user).run()));
        replicas.spawn(torture.part(replica::Replica::new(&world, user).run()));
    }
    for number in 0..WRITERS {
        tasks.spawn(torture.part(write::write(world.clone(), number)));
    }
    for number in 0..CHANGERS {
        tasks.spawn(torture.part(change::change(world.clone(), number)));
    }
    for number in 0..ASKERS {
        tasks.spawn(torture.part(ask::ask(world.clone(), number)));
    }
    tasks.spawn(torture.part(change::functions(world.clone())));
    let is_shown = async {
        torture.until_shown(length).await;
        torture.end();
    };
    let (second, ()) = tokio::join!(second.killed_again_and_again(store, &world, dies), is_shown);
    tasks.join_all().await;
    assert!(!world.has_failed.load(Ordering::SeqCst), "a follower or a replica has failed");
    let began = Instant::now();
    end::settle(&world, &layer).await;
    println!("settled within {:?}", began.elapsed());
    world.is_closed.store(true, Ordering::SeqCst);
    end::close(&world).await;
    // All followers see the end.
    let followed = soon(followers.join_all()).await;
    println!("followed within {:?}", began.elapsed());
    let replicated = replicas.join_all().await;
    println!("replicated within {:?}", began.elapsed());
    world.is_ended.store(true, Ordering::SeqCst);
    canaries.join_all().await;
    end::compare(&world, followed, replicated).await;
    println!("{:?}", torture.counts());
    torture.must_have_shown();
    assert!(torture.counted("documents compared") > 0, "nothing was compared");
    background.stop().await;
    drop(second);
    first.stop().await;
}
