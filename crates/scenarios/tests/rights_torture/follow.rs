//! Feeds that end when their readers lose access, and whose readers miss nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flatbed_testkit::{PATIENCE, WaitLoop, pass};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::ask::proof_of;
use super::model::{DATABASES, GRACE, Needs, Outcomes, USERS, When, database_name, parsed};
use super::proof::Proof;
use super::{Client, Outcome, World, lock};
use flatbed_testkit::http::Connection;
use flatbed_testkit::timeline::Span;

/// The interval at which an idle reader checks if the feed should have ended.
const LOOK: Duration = Duration::from_millis(50);

/// The final state of a follower.
pub struct Held {
    pub follower: u64,
    pub database: usize,
    /// The revisions of live documents.
    pub documents: BTreeMap<String, String>,
}

pub struct Follower {
    client: Client,
    number: u64,
    database: usize,
    /// The number of the followed database; `None`: none yet, or it is unknown.
    of: Option<u64>,
    since: String,
    documents: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feed {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
}

/// An open feed.
struct Open {
    feed: Feed,
    path: String,
    proof: Proof,
    server: SocketAddr,
    came: Instant,
    /// The numbers of the databases that it may follow.
    of: BTreeSet<u64>,
    /// True if the request may have counted as anonymous: its credentials did not count then, and do not count later.
    may_be_nobodys: bool,
}

/// The end of a feed.
#[derive(Debug)]
enum End {
    /// The follower left.
    Left,
    /// The feed ended with `last_seq`.
    Whole,
    /// The feed ended with a line that gives the reason.
    Refused(#[allow(dead_code, reason = "shown where it is wrong")] String),
    /// The connection was cut.
    Cut,
}

impl Follower {
    pub fn new(world: &Arc<World>, number: u64) -> Follower {
        Follower {
            client: Client::new(world, 0x10_000 + number),
            number,
            database: number as usize % DATABASES,
            of: None,
            since: "0".into(),
            documents: BTreeMap::new(),
        }
    }

    /// Follows one feed after the other, and at the end the remaining rows.
    pub async fn run(mut self) -> Held {
        let world = self.client.world.clone();
        while !world.is_over() {
            let feed = match self.client.random.below(10) {
                0 => Feed::Normal,
                1..3 => Feed::Longpoll,
                3..7 => Feed::Continuous,
                _ => Feed::EventSource,
            };
            self.follow(feed, None).await;
            pass(Duration::from_millis(self.client.random.below(200))).await;
        }
        let mut waiting = WaitLoop::begin();
        while !self.is_opened() {
            waiting.pause("all is open").await;
        }
        // All servers know then.
        pass(GRACE).await;
        let (what, mut waiting) = (format!("follower {} comes to the end", self.number), WaitLoop::begin());
        while !self.follow(Feed::Normal, Some(Proof::Nothing)).await {
            waiting.pause(&what).await;
        }
        Held { follower: self.number, database: self.database, documents: self.documents }
    }

    fn is_opened(&self) -> bool {
        let model = lock(&self.client.world.model);
        let is_open = |of: &super::model::Database| of.security == Default::default();
        let now = super::model::moment();
        let names_wanted = model.wants_names.possible(now).contains(&&true);
        let possible = model.databases[self.database].possible(now);
        !names_wanted && possible.iter().all(|of| of.as_ref().is_some_and(is_open))
    }

    /// Drops the state, unless it is surely of the same database.
    fn keep(&mut self, of: &BTreeSet<u64>, has_none: bool) {
        let one = of.first().copied().filter(|_| of.len() == 1 && !has_none);
        if one.is_none() || one != self.of {
            self.of = one;
            self.since = "0".into();
            self.documents.clear();
        }
    }

    /// Opens a feed and reads it. Returns true if the feed ended properly.
    async fn follow(&mut self, feed: Feed, proof: Option<Proof>) -> bool {
        let world = self.client.world.clone();
        let server = self.client.server();
        let user = self.client.random.index(USERS);
        let proof = match proof {
            Some(proof) => proof,
            None => self.likely_proof(server, user),
        };
        {
            // The database may have changed since the last feed.
            let now = super::model::moment();
            let (of, has_none) = lock(&world.model).databases(self.database, now);
            self.keep(&of, has_none);
        }
        let name = match feed {
            Feed::Normal => "normal",
            Feed::Longpoll => "longpoll",
            Feed::Continuous => "continuous",
            Feed::EventSource => "eventsource",
        };
        let beat = if self.client.random.percent(50) { 200 } else { 60_000 };
        let path =
            format!("/{}/_changes?feed={name}&since={}&heartbeat={beat}", database_name(self.database), self.since);
        let needs = Needs::Member(self.database);
        let came = Instant::now();
        let Ok(mut connection) = Connection::open(server).await else { return false };
        let sent = timeout(PATIENCE, connection.send("GET", &path, &proof.headers(), "")).await;
        let Ok(status) = sent.unwrap_or_else(|_| panic!("{path}: no answer")) else { return false };
        let span = Span { from: came, to: Instant::now() };
        if status != 200 {
            let mut body = String::new();
            while let Ok(Some(line)) = connection.line().await {
                body += &line;
            }
            let answer = super::Answer { status, headers: Vec::new(), body };
            if let Some(outcome) = Outcome::of(&answer, &proof) {
                world.judge(&("GET", &path, server, &answer), &proof, needs, When::answered(span), outcome);
            }
            return false;
        }
        world.judge(&("GET", &path, server), &proof, needs, When::answered(span), Outcome::Answered);
        world.count("feeds");
        let (of, has_none) = lock(&world.model).databases(self.database, span);
        self.keep(&of, has_none);
        let when = When::answered(span);
        let (of, (may_be_nobodys, is_nobodys)) = {
            let model = lock(&world.model);
            (model.databases(self.database, when.records).0, model.is_nobody(&proof, when))
        };
        let proof = if is_nobodys { Proof::Nothing } else { proof };
        let open = Open { feed, path, proof, server, came, of, may_be_nobodys };
        let end = self.read(&open, &mut connection).await;
        self.ended(&open, &end);
        // The last rows may be of a recreated database.
        let (of, has_none) = lock(&world.model).databases(self.database, Span { from: came, to: Instant::now() });
        self.keep(&of, has_none);
        matches!(end, End::Whole) && self.of.is_some()
    }

    /// Returns credentials, mostly of a user with access, if any.
    fn likely_proof(&mut self, server: SocketAddr, user: usize) -> Proof {
        let world = self.client.world.clone();
        let mut proof = proof_of(&mut self.client, server, user);
        for _ in 0..10 {
            let when = When::answered(super::model::moment());
            if lock(&world.model).outcomes(&proof, Needs::Member(self.database), when).answered {
                break;
            }
            let user = self.client.random.index(USERS);
            proof = proof_of(&mut self.client, server, user);
        }
        proof
    }

    async fn read(&mut self, open: &Open, connection: &mut Connection) -> End {
        let world = self.client.world.clone();
        let leaves = Instant::now() + Duration::from_millis(200 + self.client.random.below(8_000));
        let mut text = String::new();
        loop {
            let line = timeout(LOOK, connection.line()).await;
            self.must_go_on(open);
            let line = match line {
                // A follower that has lost its right stays until the server ends the feed.
                Err(_)
                    if open.feed != Feed::Normal
                        && (Instant::now() >= leaves || world.is_over())
                        && self.may_follow(open, super::model::moment()).answered =>
                {
                    return End::Left;
                }
                Err(_) => continue,
                Ok(Err(_)) => return End::Cut,
                Ok(Ok(None)) => break,
                Ok(Ok(Some(line))) => line,
            };
            let row = match open.feed {
                Feed::Normal | Feed::Longpoll => {
                    text += &line;
                    continue;
                }
                Feed::Continuous if line.is_empty() => continue,
                Feed::Continuous => parsed(&line),
                Feed::EventSource => match line.strip_prefix("data: ").or_else(|| line.strip_prefix("data:")) {
                    Some(row) if !row.is_empty() => parsed(row),
                    _ => continue,
                },
            };
            if let Some(why) = row["error"].as_str() {
                return End::Refused(why.to_owned());
            }
            if row.get("last_seq").is_none() {
                self.row(&row);
            }
        }
        if matches!(open.feed, Feed::Continuous | Feed::EventSource) {
            return End::Whole;
        }
        let answer = parsed(&text);
        assert!(answer["last_seq"].is_string(), "{}: {text}", open.path);
        for row in answer["results"].as_array().expect("rows") {
            self.row(row);
        }
        answer["last_seq"].as_str().expect("a place").clone_into(&mut self.since);
        End::Whole
    }

    fn row(&mut self, row: &Value) {
        self.client.world.count("rows");
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{row}")).to_owned();
        self.since = text(&row["seq"]);
        let id = text(&row["id"]);
        if row["deleted"] == true {
            self.documents.remove(&id);
        } else {
            self.documents.insert(id, text(&row["changes"][0]["rev"]));
        }
    }

    /// Returns the possible outcomes of the feed's request in a span.
    fn may_follow(&self, open: &Open, span: Span) -> Outcomes {
        let (needs, model) = (Needs::Member(self.database), lock(&self.client.world.model));
        model.outcomes_in(&open.proof, needs, When::within(span), |number| open.of.contains(&number))
    }

    /// Asserts that the right existed a second ago, plus the lateness of this machine.
    fn must_go_on(&self, open: &Open) {
        let world = &self.client.world;
        let now = Instant::now();
        let began = now.checked_sub(2 * GRACE).unwrap_or(now);
        let from = now.checked_sub(GRACE + world.canary.slack(began)).unwrap_or(now);
        if from <= open.came {
            return;
        }
        let span = Span { from, to: now };
        let possible = self.may_follow(open, span);
        if !possible.answered {
            let (needs, when) = (Needs::Member(self.database), When::within(span));
            let Open { feed, path, proof, server, came, of, .. } = open;
            let (slack, age) = (now - from, came.elapsed());
            world.fail(
                &format!(
                    "{feed:?} {path} at {server} as {proof:?} of {of:?} goes on, {age:?} old, with {slack:?} to end: {possible:?}"
                ),
                needs,
                when,
            );
        }
    }

    /// Asserts that the feed had a reason to end.
    fn ended(&mut self, open: &Open, end: &End) {
        let world = &self.client.world;
        let now = Instant::now();
        let from = now
            .checked_sub(GRACE + world.canary.slack(now.checked_sub(2 * GRACE).unwrap_or(now)))
            .unwrap_or(now)
            .max(open.came);
        let span = Span { from, to: now };
        let when = When::answered(span);
        let (needs, proof) = (Needs::Member(self.database), &open.proof);
        let (possible, others) = {
            let model = lock(&world.model);
            // The recreated database may have decided, too.
            let mut possible = model.outcomes(proof, needs, when);
            if open.may_be_nobodys {
                possible.refused |= model.outcomes(&Proof::Nothing, needs, when).refused;
            }
            let (numbers, has_none) = model.databases(self.database, when.records);
            (possible, has_none || numbers.len() > 1)
        };
        let is_right = match end {
            End::Left => true,
            End::Whole => matches!(open.feed, Feed::Normal | Feed::Longpoll) || others || possible.absent,
            End::Refused(_) | End::Cut => possible.refused || possible.absent || others,
        };
        let has_died = matches!(end, End::Cut | End::Whole) && !lock(&world.servers).contains(&open.server);
        if !(is_right || world.may_break && has_died) {
            let Open { feed, path, server, came, of, .. } = open;
            let age = came.elapsed();
            world.fail(
                &format!("{feed:?} {path} at {server} as {proof:?} of {of:?}, {age:?} old, ended: {end:?}"),
                needs,
                when,
            );
        }
        world.count(match end {
            End::Left => "feeds that were left",
            End::Whole => "feeds that came to their end",
            End::Refused(_) => "feeds that lost their right",
            End::Cut => "feeds that were cut",
        });
    }
}
