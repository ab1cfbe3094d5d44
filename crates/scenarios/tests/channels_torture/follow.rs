//! Followers of users: feeds of all kinds at any server, which leave and resume at random.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flatbed_testkit::{PATIENCE, pass};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::model::{doc_of, user_name};
use super::{Client, FEEDS_END_WITHIN, GRACE, Who, World, ask, lock, parsed};
use flatbed_testkit::http::Connection;
use flatbed_testkit::timeline::Span;

/// The interval at which an idle reader checks if the feed should have ended.
const LOOK: Duration = Duration::from_millis(50);

/// A follower's knowledge of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Rev(String),
    /// The document has left channels, and without its body it may still be visible.
    Perhaps(String),
}

/// The final state of a follower.
pub struct Followed {
    pub user: usize,
    pub told_of_losses: bool,
    pub documents: BTreeMap<usize, Known>,
    pub told: Told,
}

/// The rows of each document that a user was sent, with their times, for the failure message.
pub type Told = BTreeMap<usize, Vec<(Instant, String)>>;

/// Adds a row. The last 12 of a document are kept.
pub fn told(told: &mut Told, doc: usize, asked: &str, row: &Value) {
    let of = told.entry(doc).or_default();
    of.push((Instant::now(), format!("{asked} sent {row}")));
    if of.len() > 12 {
        of.remove(0);
    }
}

pub struct Follower {
    client: Client,
    user: usize,
    since: String,
    documents: BTreeMap<usize, Known>,
    told: Told,
    has_end: bool,
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
    came: Instant,
    with_docs: bool,
}

impl Follower {
    pub fn new(world: &Arc<World>, user: usize) -> Follower {
        let client = Client::new(world, 0x10_000 + user as u64);
        Follower { client, user, since: "0".into(), documents: BTreeMap::new(), told: Told::new(), has_end: false }
    }

    fn told_of_losses(&self) -> bool {
        self.user % 4 != 3
    }

    /// Follows one feed after the other until the end.
    pub async fn run(mut self) -> Followed {
        let world = self.client.world.clone();
        while !self.has_end {
            let feed = match self.client.random.below(10) {
                // A live feed must deliver the last write.
                _ if world.is_closed() => {
                    [Feed::Longpoll, Feed::Continuous, Feed::EventSource][self.client.random.index(3)]
                }
                0..2 => Feed::Normal,
                2..4 => Feed::Longpoll,
                4..7 => Feed::Continuous,
                _ => Feed::EventSource,
            };
            self.follow(feed).await;
            let pause = if world.is_closed() { 30 } else { 300 };
            pass(Duration::from_millis(self.client.random.below(pause))).await;
        }
        let told_of_losses = self.told_of_losses();
        Followed { user: self.user, told_of_losses, documents: self.documents, told: self.told }
    }

    async fn follow(&mut self, feed: Feed) {
        let world = self.client.world.clone();
        let server = self.client.server();
        let name = match feed {
            Feed::Normal => "normal",
            Feed::Longpoll => "longpoll",
            Feed::Continuous => "continuous",
            Feed::EventSource => "eventsource",
        };
        let random = &mut self.client.random;
        let (with_docs, all_leaves) = (random.percent(60), random.percent(30));
        let style = if all_leaves { "all_docs" } else { "main_only" };
        let mut path = format!(
            "/db/_changes?feed={name}&since={}&heartbeat=10000&include_docs={with_docs}&style={style}&revocations={}",
            self.since,
            self.user % 4 != 3,
        );
        if feed == Feed::Normal && random.percent(50) {
            path += &format!("&limit={}", 1 + random.below(20));
        }
        let came = Instant::now();
        let Ok(mut connection) = Connection::open(server).await else { return };
        let sent = timeout(PATIENCE, connection.send("GET", &path, &world.headers(Who::User(self.user)), "")).await;
        let Ok(status) = sent.unwrap_or_else(|_| panic!("{path}: no answer")) else { return };
        let span = Span { from: came, to: Instant::now() };
        if status != 200 {
            let mut body = String::new();
            while let Ok(Some(line)) = connection.line().await {
                body += &line;
            }
            let is_refused = matches!(status, 401 | 403) && !lock(&world.model).sure(self.user, span).is_enabled;
            if !is_refused && status != 503 {
                world.fail(&format!("{path}: {status} {body}"), self.user, None);
            }
            return;
        }
        world.count("feeds");
        self.read(&Open { feed, path, came, with_docs }, &mut connection).await;
    }

    /// Returns a span that contains a moment at which the row just sent was right.
    fn just_now(&self, open: &Open) -> Span {
        let world = &self.client.world;
        let now = Instant::now();
        let slack = world.canary.slack(now.checked_sub(2 * GRACE).unwrap_or(now));
        let from = match open.feed {
            Feed::Normal => open.came,
            _ => now.checked_sub(GRACE + slack).unwrap_or(now).max(open.came),
        };
        Span { from, to: now }
    }

    async fn read(&mut self, open: &Open, connection: &mut Connection) {
        let world = self.client.world.clone();
        let leaves = Instant::now() + Duration::from_millis(200 + self.client.random.below(6_000));
        let mut text = String::new();
        loop {
            let line = timeout(LOOK, connection.line()).await;
            let line = match line {
                Err(_) => {
                    self.must_go_on(open);
                    let may_leave = open.feed != Feed::Normal && Instant::now() >= leaves && !world.is_closed();
                    // A disabled follower stays until the server ends the feed.
                    if may_leave && self.is_enabled(Span { from: Instant::now(), to: Instant::now() }) {
                        return world.count("feeds that were left");
                    }
                    continue;
                }
                Ok(Err(_)) => return world.count("feeds that were cut"),
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
                Feed::EventSource => match line.strip_prefix("data:") {
                    Some(row) if !row.trim().is_empty() => parsed(row.trim()),
                    _ => continue,
                },
            };
            if row["error"].is_string() {
                return world.count("feeds that were ended");
            }
            if row.get("last_seq").is_none() {
                self.row(open, &row);
            }
            if self.has_end {
                return;
            }
        }
        if matches!(open.feed, Feed::Continuous | Feed::EventSource) {
            return world.count("feeds that came to their end");
        }
        let answer = parsed(&text);
        if let Some(rows) = answer["results"].as_array() {
            for row in rows {
                self.row(open, row);
            }
            answer["last_seq"].as_str().expect("a place").clone_into(&mut self.since);
        }
    }

    fn row(&mut self, open: &Open, row: &Value) {
        let world = self.client.world.clone();
        world.count("rows");
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{row}")).to_owned();
        self.since = text(&row["seq"]);
        let id = text(&row["id"]);
        if let Some(name) = id.strip_prefix("_user/") {
            if name != user_name(self.user) {
                world.fail(&format!("{}: {row}", open.path), self.user, None);
            }
            return;
        }
        if id == super::END {
            self.has_end = true;
            return;
        }
        if id == super::NOTED {
            return;
        }
        let doc = doc_of(&id).unwrap_or_else(|| panic!("{row}"));
        let span = self.just_now(open);
        told(&mut self.told, doc, &open.path, row);
        let rev = text(&row["changes"][0]["rev"]);
        let asked = || format!("{} sent {row}", open.path);
        let has_left = row["removed"].as_array().is_some_and(|removed| !removed.is_empty());
        let is_revoked = row["revoked"] == true;
        if row["doc"].is_object() {
            ask::shown(&world, self.user, doc, &row["doc"], span, &open.path);
        }
        let is_gone = row["deleted"] == true || is_revoked || row["doc"]["_removed"] == true;
        if !is_revoked && !has_left {
            for leaf in row["changes"].as_array().expect("leaves") {
                world.sent(self.user, doc, &text(&leaf["rev"]), row["deleted"] == true, span, asked);
            }
        } else {
            ask::was_had(&world, self.user, doc, asked);
            world.count("rows of what is gone");
        }
        if is_gone {
            self.documents.remove(&doc);
        } else if has_left && !open.with_docs {
            self.documents.insert(doc, Known::Perhaps(rev));
        } else {
            self.documents.insert(doc, Known::Rev(rev));
        }
    }

    /// Returns whether the user may have been enabled at some moment of a span.
    fn is_enabled(&self, span: Span) -> bool {
        lock(&self.client.world.model).possible(self.user, span).is_enabled
    }

    /// Asserts that the user was not disabled for the whole of the last seconds, plus the lateness of this machine.
    fn must_go_on(&self, open: &Open) {
        let span = self.just_now(open).since(FEEDS_END_WITHIN - GRACE);
        if span.from <= open.came {
            return;
        }
        if !self.is_enabled(span) {
            let world = &self.client.world;
            world.fail(&format!("{} goes on, {:?} old", open.path, open.came.elapsed()), self.user, None);
        }
    }
}
