//! A follower with random behaviour that must not lose anything.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_testkit::soon;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{BrokenConnection, Feed};
use super::{DOCUMENTS, END, KINDS, Random, StoredDocument, World, generation_of, lock, pass};

#[derive(Debug)]
enum Filter {
    All,
    DocIds(HashSet<String>),
    Selector(u64),
    /// A function of a design document.
    Function(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
}

/// A follower's state of a document.
#[derive(Debug)]
struct FollowedDocument {
    seq: String,
    rev: String,
    deleted: bool,
    /// Set if it requested all leaves.
    leaves: Option<Vec<String>>,
    /// Set if it requested documents.
    document: Option<Value>,
}

/// The replica that a follower has assembled.
#[derive(Debug)]
pub struct View {
    number: u64,
    filter: Filter,
    documents: HashMap<String, FollowedDocument>,
}

pub struct Follower {
    world: Arc<World>,
    random: Random,
    since: String,
    view: View,
    /// Consecutive connections that it left before a line came. On a slow machine it then stays longer.
    in_vain: u32,
}

struct ConnectionPlan {
    kind: Kind,
    include_docs: bool,
    all_leaves: bool,
    limit: Option<u64>,
    until: Option<Instant>,
    pause: Duration,
    /// The number of rows after which the follower pauses reading.
    stops_after: Option<u64>,
}

impl Follower {
    pub fn new(world: Arc<World>, number: u64) -> Follower {
        let mut random = Random(world.seed ^ (number << 40) ^ 1);
        let filter = match random.below(20) {
            0..9 => Filter::All,
            9..11 if world.plan.has_functions => Filter::Function(random.below(KINDS)),
            9..14 => Filter::Selector(random.below(KINDS)),
            // Longer lists are looked up only if a feed is far behind.
            list => {
                let length = if list < 18 { 20 } else { 150 };
                let ids = (0..length).map(|_| format!("doc{:03}", random.below(DOCUMENTS)));
                Filter::DocIds(ids.chain([END.to_owned()]).collect())
            }
        };
        let view = View { number, filter, documents: HashMap::new() };
        Follower { world, random, since: "0".into(), view, in_vain: 0 }
    }

    /// Follows until the last document.
    pub async fn run(mut self) -> View {
        while !self.view.documents.contains_key(END) {
            if self.random.percent(3) {
                self.since = "0".into();
                self.view.documents.clear();
            }
            let how = self.choose();
            let known =
                (how.kind == Kind::Normal && how.limit.is_none()).then(|| lock(&self.world.acknowledged).clone());
            self.world.torture.count("connections");
            match self.connect(&how).await {
                Ok(true) => self.view.must_have(&known.unwrap_or_default()),
                Ok(false) => {}
                Err(BrokenConnection) => {
                    let what = format!(
                        "follower {} ({:?}) with {:?} since {}",
                        self.view.number, self.view.filter, how.kind, self.since
                    );
                    self.world.broke(&what).await;
                }
            }
        }
        self.view
    }

    fn choose(&mut self) -> ConnectionPlan {
        let random = &mut self.random;
        let has_end = self.world.has_end.load(Ordering::SeqCst);
        let stays_max = 1_500 << self.in_vain.min(6);
        ConnectionPlan {
            kind: match random.below(20) {
                0..9 => Kind::Continuous,
                9..13 => Kind::EventSource,
                13..17 => Kind::Longpoll,
                _ => Kind::Normal,
            },
            include_docs: random.percent(40),
            // The function filters each leaf, and the row lists those that pass.
            all_leaves: random.percent(30) && !matches!(self.view.filter, Filter::Function(_)),
            limit: random.percent(15).then(|| 1 + random.below(40)),
            until: (!has_end).then(|| Instant::now() + Duration::from_millis(random.below(stays_max))),
            pause: Duration::from_millis(if random.percent(10) { random.below(5) } else { 0 }),
            stops_after: random.percent(5).then(|| random.below(100)),
        }
    }

    /// Runs one connection; true if the answer ended properly.
    async fn connect(&mut self, how: &ConnectionPlan) -> Result<bool, BrokenConnection> {
        let (path, id, body) = self.request(how);
        self.in_vain += 1;
        let server = self.world.server(&mut self.random);
        let receive_bytes = if self.random.percent(30) { 4_096 } else { 128 * 1_024 };
        let open = Feed::open(server, &path, id.as_deref(), &body, receive_bytes);
        let Some(opened) = unless_it_leaves(how.until, open).await else { return Ok(false) };
        let (status, mut feed) = opened?;
        if status == 503 {
            // The storage timed out before the answer began, so the request is repeated.
            pass(Duration::from_millis(100)).await;
            return Ok(false);
        }
        assert_eq!(status, 200, "{path}");
        let (mut rows, mut last) = (0, self.since.clone());
        loop {
            // Also if lines never pause: a busy process would read so slowly that it is cut.
            if how.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            let Some(line) = unless_it_leaves(how.until, feed.line()).await else { return Ok(false) };
            let Some(line) = line? else { break };
            self.in_vain = 0;
            match parse(how.kind, &line) {
                Line::Row(row) => {
                    rows += 1;
                    self.row(&row, how, &mut last);
                    let has_end = self.world.has_end.load(Ordering::SeqCst);
                    if !how.pause.is_zero() && !has_end {
                        pass(how.pause).await;
                    }
                    if how.stops_after == Some(rows) && !has_end {
                        pass(Duration::from_millis(300 + self.random.below(700))).await;
                    }
                    if row["id"] == END && matches!(how.kind, Kind::Continuous | Kind::EventSource) {
                        return Ok(false);
                    }
                }
                Line::Id(id) => assert_eq!(id, last, "the event's id is its row's place"),
                Line::Last(place) => {
                    assert!(place >= last, "{path}: {place} is given at the end, but {last} came before");
                    self.since = place;
                }
                Line::Nothing => {}
            }
        }
        assert!(how.limit.is_none_or(|limit| rows <= limit), "{path}: {rows} rows");
        Ok(true)
    }

    fn request(&mut self, how: &ConnectionPlan) -> (String, Option<String>, String) {
        let feed = match how.kind {
            Kind::Normal => "normal",
            Kind::Longpoll => "longpoll",
            Kind::Continuous => "continuous",
            Kind::EventSource => "eventsource",
        };
        let mut path = format!("{}/_changes?feed={feed}", self.world.database());
        let mut id = None;
        if how.kind == Kind::EventSource && self.since != "0" && self.random.percent(50) {
            id = Some(format!("\"{}\"", self.since));
        } else {
            path += &format!("&since={}", self.since);
        }
        path += if self.random.percent(30) { "&timeout=300" } else { "&heartbeat=1000" };
        if how.include_docs {
            path += "&include_docs=true";
        }
        if how.all_leaves {
            path += "&style=all_docs";
        }
        if let Some(limit) = how.limit {
            path += &format!("&limit={limit}");
        }
        let body = match &self.view.filter {
            Filter::All => String::new(),
            Filter::DocIds(ids) => {
                path += "&filter=_doc_ids";
                json!({ "doc_ids": ids.iter().collect::<Vec<_>>() }).to_string()
            }
            Filter::Function(kind) => {
                path += &format!("&filter=torture/kind&kind={kind}");
                String::new()
            }
            Filter::Selector(kind) => {
                path += "&filter=_selector";
                json!({ "selector": { "$or": [{ "kind": kind }, { "end": true }] } }).to_string()
            }
        };
        (path, id, body)
    }

    fn row(&mut self, row: &Value, how: &ConnectionPlan, last: &mut String) {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{row}: {value} is no text")).to_owned();
        self.world.torture.count("rows");
        let (seq, id) = (text(&row["seq"]), text(&row["id"]));
        assert!(*last == "0" || seq > *last, "{row} comes after {last}");
        let leaves: Vec<String> =
            row["changes"].as_array().expect("leaves").iter().map(|leaf| text(&leaf["rev"])).collect();
        assert!(how.all_leaves || leaves.len() == 1, "{row}: only the winner was asked for");
        let rev = leaves[0].clone();
        let deleted = row["deleted"] == json!(true);
        let document = row.get("doc").cloned();
        assert_eq!(document.is_some(), how.include_docs, "{row}");
        if let Some(document) = &document {
            let is_deleted = document["_deleted"] == json!(true);
            assert!(document["_rev"] == *rev && document["_id"] == *id && is_deleted == deleted, "{row}");
        }
        match (&self.view.filter, &document) {
            (Filter::DocIds(ids), _) => assert!(ids.contains(&id), "{row} was not asked for"),
            (Filter::Selector(kind) | Filter::Function(kind), Some(document)) => {
                assert!(passes(*kind, document), "{row} does not match")
            }
            _ => {}
        }
        if let Some(before) = self.view.documents.get(&id) {
            assert!(before.seq < seq, "{row} after {before:?}");
        }
        seq.clone_into(last);
        self.since = seq.clone();
        let leaves = how.all_leaves.then_some(leaves);
        self.view.documents.insert(id, FollowedDocument { seq, rev, deleted, leaves, document });
    }
}

fn passes(kind: u64, document: &Value) -> bool {
    document["kind"] == json!(kind) || document["end"] == json!(true)
}

/// Returns the future's result, or `None` when it is time to leave. Feeds are never silent for long: they have
/// heartbeats or end.
async fn unless_it_leaves<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        Some(until) => tokio::time::timeout_at(until, future).await.ok(),
        None => Some(soon(future).await),
    }
}

enum Line {
    Row(Value),
    Id(String),
    Last(String),
    Nothing,
}

fn parse(kind: Kind, line: &str) -> Line {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let place = |value: &Value| Line::Last(value["last_seq"].as_str().expect("a place").to_owned());
    match kind {
        Kind::EventSource => match line.split_once(": ") {
            Some(("data", text)) => Line::Row(json(text)),
            Some(("id", id)) => Line::Id(id.trim_matches('"').to_owned()),
            _ => Line::Nothing,
        },
        Kind::Continuous if line.is_empty() => Line::Nothing,
        Kind::Continuous => {
            let value = json(line);
            if value.get("last_seq").is_some() { place(&value) } else { Line::Row(value) }
        }
        Kind::Normal | Kind::Longpoll if line.starts_with("{\"seq\"") => Line::Row(json(line.trim_end_matches(','))),
        Kind::Normal | Kind::Longpoll if line.starts_with("\"last_seq\"") => place(&json(&format!("{{{line}"))),
        Kind::Normal | Kind::Longpoll => Line::Nothing,
    }
}

impl View {
    /// Returns whether this follower must have the document's newest revision.
    fn must_show(&self, id: &str, held: Option<&StoredDocument>) -> bool {
        match &self.filter {
            Filter::All => true,
            Filter::DocIds(ids) => ids.contains(id),
            Filter::Selector(kind) | Filter::Function(kind) => held.is_some_and(|held| passes(*kind, &held.document)),
        }
    }

    /// Asserts that a complete answer has all writes acknowledged before it.
    fn must_have(&self, acknowledged: &HashMap<String, u64>) {
        for (id, generation) in acknowledged.iter().filter(|(id, _)| self.must_show(id, None)) {
            let seen = self.documents.get(id);
            assert!(
                seen.is_some_and(|seen| generation_of(&seen.rev) >= *generation),
                "follower {}: {id} was acknowledged at {generation}, but {seen:?}",
                self.number
            );
        }
    }

    /// Asserts that the replica equals the database, as far as the filter passes.
    pub fn must_equal(&self, database: &HashMap<String, StoredDocument>) {
        let number = self.number;
        for (id, held) in database {
            let seen = self.documents.get(id);
            if !self.must_show(id, Some(held)) {
                // It may have matched earlier and not have been shown since.
                assert!(seen.is_none_or(|seen| seen.seq < held.seq), "follower {number}: {seen:?} but {held:?}");
                continue;
            }
            let seen = seen.unwrap_or_else(|| panic!("follower {number} has not seen {id}: {held:?}"));
            let is_same = (&seen.seq, &seen.rev, seen.deleted) == (&held.seq, &held.rev, held.deleted)
                && seen.leaves.as_ref().is_none_or(|leaves| *leaves == held.leaves)
                && seen.document.as_ref().is_none_or(|document| *document == held.document);
            assert!(is_same, "follower {number}: {seen:?} but {held:?}");
        }
        for id in self.documents.keys() {
            assert!(database.contains_key(id), "follower {number}: {id} is not there");
        }
    }
}
