//! A user's writing device. Every answer is compared with the model's, and the whole store at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flatbed_testkit::Random;
use serde_json::{Value, json};

use super::model::{Change, Condition, Model, Record, Sort, Write, time};
use super::world::{ApiRequest, Client, Timed, World};

/// The most records of a POST.
pub const POST_RECORDS: u64 = 400;

/// The fewest steps of a user.
const STEPS_MIN: u32 = 3;

/// The most records of a list.
const LIST_RECORDS: u64 = 10_000;

/// The record that shows whether a write was done.
const FENCE: &str = "fence";

/// The collections in use.
const NAMES: [&str; 3] = ["bookmarks", "tabs", "x.y"];

/// The collection whose batches write all records of a group, each time with a greater number.
pub const GROUP: &str = "history";

/// The state that readers of a user's group need.
#[derive(Debug)]
pub struct Generations {
    /// The number of records without the marker.
    pub size: u64,
    pub begun: AtomicU64,
    pub acknowledged: AtomicU64,
}

pub struct Writer {
    client: Client,
    world: Arc<World>,
    random: Random,
    model: Model,
    /// Open batches and their collections.
    open: BTreeMap<String, String>,
    /// Batches that the server may have begun with an unknown id.
    lost: u64,
    group: Option<Arc<Generations>>,
}

impl Writer {
    pub fn new(world: &Arc<World>, uid: u64, random: Random, group: Option<Arc<Generations>>) -> Writer {
        let client = Client::new(world, uid);
        Writer { client, world: world.clone(), random, model: Model::default(), open: BTreeMap::new(), lost: 0, group }
    }

    /// Writes until the end, with pauses of up to `pause` milliseconds; a minimum of steps, so that most users have
    /// data.
    pub async fn run(mut self, pause: u64) -> Writer {
        let mut steps = 0;
        let torture = self.world.torture.clone();
        while torture.pass(Duration::from_millis(self.random.below(pause + 1))).await || steps < STEPS_MIN {
            steps += 1;
            if self.group.is_some() && self.random.one_in(6) {
                self.generation().await;
            } else {
                self.step().await;
            }
            self.look().await;
        }
        self
    }

    fn id(&mut self) -> String {
        format!("r{}", self.random.below(40))
    }

    fn change(&mut self, id: String) -> Change {
        let length = match self.random.below(60) {
            0 => 8_001 + self.random.below(30_000),
            1..=4 => 0,
            _ => self.random.below(80),
        };
        let letter = ["a", "b", "c", "d"][usize::try_from(self.random.below(4)).unwrap()];
        let payload = (!self.random.one_in(4)).then(|| letter.repeat(usize::try_from(length).unwrap()).into());
        let sortindex = self.random.one_in(3).then(|| i32::try_from(self.random.below(20)).unwrap() - 10);
        let ttl = self.random.one_in(5).then(|| *self.random.one_of(&[0, 1, 2, 100_000, 100_000]));
        Change { id, payload, sortindex, ttl }
    }

    fn changes(&mut self) -> Vec<Change> {
        let count = if self.random.one_in(10) { 100 } else { self.random.below(8) };
        let mut ids: Vec<String> = (0..count).map(|_| self.id()).collect();
        ids.sort();
        ids.dedup();
        ids.into_iter().map(|id| self.change(id)).collect()
    }

    fn condition(&mut self, near: i64) -> Condition {
        let time = (near + i64::try_from(self.random.below(3)).unwrap() - 1).max(0);
        match self.random.below(14) {
            0 => Condition::ModifiedSince(time),
            1..=2 => Condition::UnmodifiedSince(time),
            _ => Condition::None,
        }
    }

    /// Makes one random write.
    async fn step(&mut self) {
        let mut name = (*self.random.one_of(&NAMES)).to_owned();
        if self.group.is_some() && self.random.one_in(4) {
            // Other records beside the group.
            GROUP.clone_into(&mut name);
        }
        let may_delete = name != GROUP;
        let write = match self.random.below(20) {
            0..=4 => {
                let id = self.id();
                Write::Put(name, self.change(id))
            }
            5..=8 => Write::Post(name, self.changes()),
            9..=10 if self.open.len() < 5 && self.lost < 80 => Write::Begin(name, self.changes()),
            11..=12 if !self.open.is_empty() => {
                let (batch, name) = self.batch();
                Write::Append(name, batch, self.changes())
            }
            13..=14 if !self.open.is_empty() => {
                let (batch, name) = self.batch();
                Write::Commit(name, batch, self.changes())
            }
            15..=16 => Write::DeleteOne(name, self.id()),
            17 => Write::DeleteIds(name, (0..1 + self.random.below(4)).map(|_| self.id()).collect()),
            18 if may_delete && self.random.one_in(2) => Write::DeleteCollection(name),
            19 if self.group.is_none() && !self.model.collections.is_empty() && self.random.one_in(3) => {
                Write::DeleteAll
            }
            _ => return,
        };
        let near = self.model.subject(&write, self.model.last);
        let condition = self.condition(near);
        self.write(write, condition).await;
    }

    fn batch(&mut self) -> (String, String) {
        let open: Vec<(String, String)> = self.open.clone().into_iter().collect();
        self.random.one_of(&open).clone()
    }

    /// Writes each record of the group in a batch.
    async fn generation(&mut self) {
        let group = self.group.clone().unwrap();
        let number = group.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let mut changes: Vec<Change> =
            (0..group.size).map(|at| format!("g{at:05}")).map(|id| self.member(id, number)).collect();
        // The marker's position is random.
        let at = usize::try_from(self.random.below(group.size)).unwrap();
        let marker = self.member("marker".to_owned(), number);
        changes.insert(at, marker);
        let mut batch: Option<String> = None;
        let most = if group.size > POST_RECORDS { POST_RECORDS } else { group.size / 2 };
        while !changes.is_empty() {
            let count = usize::try_from(1 + most / 2 + self.random.below(most / 2)).unwrap().min(changes.len());
            let some: Vec<Change> = changes.drain(..count).collect();
            let name = GROUP.to_owned();
            match batch.clone() {
                None => batch = self.write(Write::Begin(name, some), Condition::None).await,
                Some(batch) if changes.is_empty() => {
                    self.write(Write::Commit(name, batch, some), Condition::None).await;
                }
                Some(batch) => drop(self.write(Write::Append(name, batch, some), Condition::None).await),
            }
            // The batch must be committed with its marker.
            if let Some(batch) = &batch {
                self.open.remove(batch);
            }
            if !changes.is_empty() && self.random.one_in(4) {
                self.step().await;
            }
        }
        if group.size > 2_000 {
            self.world.count("batches of thousands");
        }
        self.world.count("generations");
        group.acknowledged.store(number, Ordering::SeqCst);
        // Written over during the fold: the newer values stay.
        for _ in 0..self.random.below(8) {
            self.retouch(number, group.size).await;
        }
    }

    /// Writes some records of the group again, with the same number.
    async fn retouch(&mut self, generation: u64, size: u64) {
        let ids: BTreeSet<u64> = (0..1 + self.random.below(8)).map(|_| self.random.below(size)).collect();
        let ids: Vec<String> = ids.into_iter().map(|at| format!("g{at:05}")).collect();
        let mut changes: Vec<Change> = ids.iter().map(|id| self.member(id.clone(), generation)).collect();
        for change in &mut changes {
            if self.random.one_in(3) {
                change.payload = None;
            }
        }
        self.write(Write::Post(GROUP.to_owned(), changes), Condition::None).await;
        self.look_at_record(GROUP, &ids[0]).await;
    }

    fn member(&mut self, id: String, generation: u64) -> Change {
        let fill = "x".repeat(usize::try_from(self.random.below(40)).unwrap());
        let sortindex = self.random.one_in(4).then(|| i32::try_from(self.random.below(9)).unwrap());
        Change { id, payload: Some(format!("{generation}:{fill}").into()), sortindex, ttl: None }
    }

    /// Writes, and returns the batch that was begun.
    async fn write(&mut self, write: Write, condition: Condition) -> Option<String> {
        let asked = asked(&write, condition);
        loop {
            if let Some(timed) = self.client.ask(&asked, &mut self.random).await {
                return self.check(&write, condition, &timed);
            }
            if self.was_done(&write, condition).await {
                self.world.count("done without an answer");
                return None;
            }
            self.world.count("not done");
            // A batch must continue.
            if !matches!(write, Write::Begin(..) | Write::Append(..) | Write::Commit(..)) && self.random.one_in(2) {
                return None;
            }
        }
    }

    fn what(&self, write: &dyn std::fmt::Debug, timed: &Timed) -> String {
        let mut what = format!("user {}: {write:?}", self.client.uid);
        what.truncate(600);
        let mut answer = format!("{timed:?}");
        answer.truncate(1_500);
        format!("{what}, last {}: {answer}", time(self.model.last))
    }

    /// Returns the user's time.
    fn now(&self, timed: &Timed, what: &str) -> i64 {
        let now = timed.time("x-weave-timestamp").unwrap_or_else(|| panic!("{what}"));
        let last = self.model.last;
        assert!((last.max(timed.from)..=last.max(timed.to)).contains(&now), "{now} is not now: {what}");
        now
    }

    /// Compares the answer to a write.
    fn check(&mut self, write: &Write, condition: Condition, timed: &Timed) -> Option<String> {
        let what = self.what(&(write, condition), timed);
        let (status, body) = (timed.answer.status, timed.text());
        let modified = timed.time("x-last-modified");
        if status == 400 {
            assert_eq!(self.model.status(write, condition, 0), 400, "{what}");
            return None;
        }
        if matches!(status, 202 | 304 | 404 | 412) {
            let now = self.now(timed, &what);
            assert_eq!(self.model.status(write, condition, now), status, "{what}");
            if status == 404 {
                assert_eq!((modified, body), (None, "0"), "{what}");
                return None;
            }
            assert_eq!(modified, Some(self.model.subject(write, now)), "{what}");
            if status != 202 {
                assert_eq!(body, "", "{what}");
                return None;
            }
            let (Write::Begin(name, changes) | Write::Append(name, _, changes)) = write else { panic!("{what}") };
            let batch = timed.answer.json()["batch"].as_str().unwrap().to_owned();
            assert_eq!(body, posted("batch", &format!("\"{batch}\""), changes), "{what}");
            if let Write::Append(_, known, _) = write {
                assert_eq!(batch, *known, "{what}");
            } else {
                assert!(!self.model.batches.contains_key(&batch), "{what}");
                self.open.insert(batch.clone(), name.clone());
            }
            self.model.apply(write, 0, Some(&batch));
            return Some(batch);
        }
        assert_eq!(status, 200, "{what}");
        if !self.model.has_time(write) {
            let now = self.now(timed, &what);
            assert_eq!(self.model.status(write, condition, now), 200, "{what}");
            assert_eq!((modified, body), (Some(0), &*time(self.model.shown)), "{what}");
            return None;
        }
        let last = self.model.last;
        let at = match write {
            Write::DeleteAll => {
                assert_eq!((modified, body), (Some(self.model.shown), "null"), "{what}");
                self.now(timed, &what).max(last + 1)
            }
            Write::DeleteOne(..) | Write::DeleteCollection(_) => timed.time("x-weave-timestamp").unwrap(),
            _ => modified.unwrap(),
        };
        let range = (last + 1).max(timed.from)..=(last + 1).max(timed.to);
        assert!(range.contains(&at), "not within {range:?}: {what}");
        // The server's clock may have been at the last write's time, or at this one's.
        let is_right = |now| self.model.status(write, condition, now) == 200;
        assert!(is_right(last) || is_right(at), "{what}");
        let text = time(at);
        match write {
            Write::Put(..) | Write::DeleteIds(..) => assert_eq!(body, text, "{what}"),
            Write::Post(_, changes) | Write::Commit(_, _, changes) => {
                assert_eq!(body, posted("modified", &text, changes), "{what}");
            }
            Write::DeleteOne(..) => {
                let before = [last, at].map(|now| Some(self.model.subject(write, now)));
                assert!(before.contains(&modified), "{what}");
                assert_eq!(body, format!("{{\"modified\":{text}}}"), "{what}");
            }
            Write::DeleteCollection(name) => {
                assert_eq!((modified, body), (Some(self.model.time_of(name)), &*text), "{what}");
            }
            Write::DeleteAll | Write::Begin(..) | Write::Append(..) => {}
        }
        if !matches!(write, Write::DeleteAll) {
            assert_eq!(timed.time("x-weave-timestamp"), Some(at), "{what}");
        }
        self.done(write, at);
        None
    }

    fn done(&mut self, write: &Write, at: i64) {
        self.model.apply(write, at, None);
        self.open.retain(|batch, _| self.model.batches.contains_key(batch));
    }

    /// Returns whether a write without an answer was done. Another write follows it, so that the former can no longer
    /// be done; then times tell.
    async fn was_done(&mut self, write: &Write, condition: Condition) -> bool {
        let body = Some(json!({"payload": "x"}).to_string());
        let fence = ApiRequest { method: "PUT", target: format!("/storage/{FENCE}/f"), header: None, body };
        let timed = self.client.read(&fence, &mut self.random).await;
        let what = self.what(&("fence", write, condition), &timed);
        assert_eq!(timed.answer.status, 200, "{what}");
        let at = timed.time("x-last-modified").unwrap();
        let last = self.model.last;
        assert!(at > last, "{what}");
        let times = self.client.read(&ApiRequest::get("/info/collections"), &mut self.random).await;
        let what = format!("{what}\n{}", self.what(&"times", &times));
        let found = times_of(&times);
        let mark = Change { id: "f".to_owned(), payload: Some("x".into()), sortindex: None, ttl: None };
        let mark = Write::Put(FENCE.to_owned(), mark);
        if let Write::Begin(..) = write {
            self.lost += 1;
        }
        let mut undone = self.model.clone();
        undone.apply(&mark, at, None);
        if found == undone.times() {
            self.model = undone;
            if let Write::DeleteAll = write {
                // The state cannot show whether it was done.
                self.model.batches.clear();
                self.open.clear();
            }
            return false;
        }
        assert!(!matches!(write, Write::Begin(..) | Write::Append(..)), "{what}");
        let done_at = match write {
            Write::Put(name, _)
            | Write::Post(name, _)
            | Write::Commit(name, ..)
            | Write::DeleteOne(name, _)
            | Write::DeleteIds(name, _) => found.get(name).copied().unwrap_or_else(|| panic!("{what}")),
            _ => last + 1,
        };
        assert!(last < done_at && done_at < at, "{what}");
        let is_right = |now| self.model.status(write, condition, now) == 200;
        assert!(is_right(last) || is_right(done_at), "{what}");
        self.done(write, done_at);
        self.model.apply(&mark, at, None);
        assert_eq!(found, self.model.times(), "{what}");
        true
    }

    /// Makes one random read.
    async fn look(&mut self) {
        match self.random.below(6) {
            0 => self.look_at_info().await,
            1 => {
                let name = (*self.random.one_of(&NAMES)).to_owned();
                let id = self.id();
                self.look_at_record(&name, &id).await;
            }
            _ => {
                let name =
                    if self.group.is_some() && self.random.one_in(5) { GROUP } else { self.random.one_of(&NAMES) };
                let sort = *self.random.one_of(&[Sort::Newest, Sort::Oldest, Sort::Index]);
                self.look_at_list(name, sort).await;
            }
        }
    }

    async fn look_at_info(&mut self) {
        let condition = self.condition(self.model.shown);
        let mut asked = ApiRequest::get("/info/collections");
        asked.header = header(condition);
        let timed = self.client.read(&asked, &mut self.random).await;
        let what = self.what(&(&asked, self.model.times()), &timed);
        self.now(&timed, &what);
        assert_eq!(timed.time("x-last-modified"), Some(self.model.shown), "{what}");
        if let Some(status) = condition.fails(self.model.shown) {
            assert_eq!((timed.answer.status, timed.text()), (status, ""), "{what}");
            return;
        }
        assert_eq!(timed.answer.status, 200, "{what}");
        assert_eq!(times_of(&timed), self.model.times(), "{what}");
        assert_eq!(timed.answer.header("x-weave-records"), Some(self.model.times().len().to_string()), "{what}");
        for (path, is_count) in [("collection_counts", true), ("collection_usage", false)] {
            let asked = ApiRequest::get(format!("/info/{path}"));
            let timed = self.client.read(&asked, &mut self.random).await;
            let sizes = self.model.sizes(self.now(&timed, &what));
            let what = self.what(&(path, &sizes), &timed);
            let wanted = sizes.into_iter().map(|(name, (count, bytes))| {
                let wanted = if is_count { json!(count) } else { json!(bytes as f64 / 1_024.0) };
                (name, wanted)
            });
            let found = timed.answer.json();
            let wanted: BTreeMap<String, Value> = wanted.collect();
            assert_eq!(found.as_object().unwrap().len(), wanted.len(), "{what}");
            for (name, wanted) in wanted {
                assert_eq!(found[&name].as_f64(), wanted.as_f64(), "{name}: {what}");
            }
        }
        let timed = self.client.read(&ApiRequest::get("/info/quota"), &mut self.random).await;
        let what = self.what(&"quota", &timed);
        let used: u64 = self.model.sizes(self.now(&timed, &what)).values().map(|(_, bytes)| bytes).sum();
        assert_eq!(timed.answer.json()[0].as_f64(), Some(used as f64 / 1_024.0), "{what}");
    }

    async fn look_at_record(&mut self, name: &str, id: &str) {
        let near = self.model.get(name, id, 0).map_or(0, |record| record.modified);
        let condition = self.condition(near);
        let mut asked = ApiRequest::get(format!("/storage/{name}/{id}"));
        asked.header = header(condition);
        let timed = self.client.read(&asked, &mut self.random).await;
        let what = self.what(&asked, &timed);
        let now = self.now(&timed, &what);
        let record = self.model.get(name, id, now);
        let modified = record.map(|record| record.modified);
        let (status, text) = match (condition.fails(modified.unwrap_or_default()), record) {
            (Some(status), _) => (status, String::new()),
            (None, None) => (404, "0".to_owned()),
            (None, Some(record)) => (200, record.text()),
        };
        assert_eq!((timed.answer.status, timed.text()), (status, &*text), "{what}");
        if status != 404 {
            assert_eq!(timed.time("x-last-modified"), Some(modified.unwrap_or_default()), "{what}");
        }
    }

    /// Reads a list, by pages or at once.
    async fn look_at_list(&mut self, name: &str, sort: Sort) {
        let near = self.model.last;
        let since = |random: &mut Random, one_in, span| {
            random.one_in(one_in).then(|| (near - i64::try_from(random.below(span)).unwrap()).max(0))
        };
        let newer = since(&mut self.random, 4, 500);
        let older = since(&mut self.random, 5, 200);
        let ids: Option<Vec<String>> = self.random.one_in(6).then(|| (0..3).map(|_| self.id()).collect());
        let limit = self.random.one_in(3).then(|| 1 + self.random.below(30)).filter(|_| name != GROUP);
        let full = self.random.one_in(2);
        let condition = self.condition(self.model.time_of(name));
        let word = match sort {
            Sort::Newest => "newest",
            Sort::Oldest => "oldest",
            Sort::Index => "index",
        };
        let mut target = format!("/storage/{name}?sort={word}");
        newer.iter().for_each(|newer| target += &format!("&newer={}", time(*newer)));
        older.iter().for_each(|older| target += &format!("&older={}", time(*older)));
        limit.iter().for_each(|limit| target += &format!("&limit={limit}"));
        ids.iter().for_each(|ids| target += &format!("&ids={}", ids.join(",")));
        if full {
            target += "&full=1";
        }
        let (mut behind, mut offset): (Option<Record>, _) = (None, String::new());
        loop {
            let mut asked = ApiRequest::get(format!("{target}{offset}"));
            asked.header = header(condition);
            let timed = self.client.read(&asked, &mut self.random).await;
            let what = self.what(&asked, &timed);
            let now = self.now(&timed, &what);
            let modified = self.model.time_of(name);
            assert_eq!(timed.time("x-last-modified"), Some(modified), "{what}");
            if let Some(status) = condition.fails(modified) {
                assert_eq!((timed.answer.status, timed.text()), (status, ""), "{what}");
                return;
            }
            let mut records: Vec<&Record> = self
                .model
                .live(name, now)
                .filter(|record| newer.is_none_or(|newer| record.modified > newer))
                .filter(|record| older.is_none_or(|older| record.modified < older))
                .filter(|record| ids.as_ref().is_none_or(|ids| ids.contains(&record.id)))
                .filter(|record| behind.as_ref().is_none_or(|behind| behind.before(record, sort).is_lt()))
                .collect();
            records.sort_by(|one, other| one.before(other, sort));
            let limit = usize::try_from(limit.unwrap_or(LIST_RECORDS)).unwrap();
            let rest = records.len().saturating_sub(limit);
            records.truncate(records.len() - rest);
            let texts: Vec<String> =
                records.iter().map(|record| if full { record.text() } else { format!("\"{}\"", record.id) }).collect();
            let wanted = format!("[{}]", texts.join(","));
            assert!(timed.answer.status == 200 && timed.text() == wanted, "wanted is {wanted:.1500}: {what}");
            assert_eq!(timed.answer.header("x-weave-records"), Some(records.len().to_string()), "{what}");
            let next = timed.answer.header("x-weave-next-offset");
            assert_eq!(next.is_some(), rest > 0, "{what}");
            let Some(next) = next else { return };
            offset = format!("&offset={next}");
            behind = records.last().map(|record| (*record).clone());
        }
    }

    /// Reads everything, at the end.
    pub async fn look_at_all(&mut self) {
        self.look_at_info().await;
        let names: Vec<String> = self.model.collections.keys().cloned().collect();
        for name in names {
            let sort = *self.random.one_of(&[Sort::Newest, Sort::Oldest, Sort::Index]);
            self.look_at_list(&name, sort).await;
        }
    }
}

fn header(condition: Condition) -> Option<(&'static str, String)> {
    match condition {
        Condition::None => None,
        Condition::ModifiedSince(since) => Some(("x-if-modified-since", time(since))),
        Condition::UnmodifiedSince(since) => Some(("x-if-unmodified-since", time(since))),
    }
}

fn asked(write: &Write, condition: Condition) -> ApiRequest {
    let list = |changes: &[Change]| Some(Value::Array(changes.iter().map(text).collect()).to_string());
    let (method, target, body) = match write {
        Write::Put(name, change) => ("PUT", format!("/storage/{name}/{}", change.id), Some(text(change).to_string())),
        Write::Post(name, changes) => ("POST", format!("/storage/{name}"), list(changes)),
        Write::Begin(name, changes) => ("POST", format!("/storage/{name}?batch=true"), list(changes)),
        Write::Append(name, batch, changes) => ("POST", format!("/storage/{name}?batch={batch}"), list(changes)),
        Write::Commit(name, batch, changes) => {
            ("POST", format!("/storage/{name}?batch={batch}&commit=true"), list(changes))
        }
        Write::DeleteOne(name, id) => ("DELETE", format!("/storage/{name}/{id}"), None),
        Write::DeleteIds(name, ids) => ("DELETE", format!("/storage/{name}?ids={}", ids.join(",")), None),
        Write::DeleteCollection(name) => ("DELETE", format!("/storage/{name}"), None),
        Write::DeleteAll => ("DELETE", "/storage".to_owned(), None),
    };
    ApiRequest { method, target, header: header(condition), body }
}

fn text(change: &Change) -> Value {
    let mut text = json!({"id": change.id});
    change.payload.iter().for_each(|payload| text["payload"] = json!(**payload));
    change.sortindex.iter().for_each(|sortindex| text["sortindex"] = json!(sortindex));
    change.ttl.iter().for_each(|ttl| text["ttl"] = json!(ttl));
    text
}

fn posted(name: &str, value: &str, changes: &[Change]) -> String {
    let ids: Vec<String> = changes.iter().map(|change| format!("\"{}\"", change.id)).collect();
    format!("{{\"{name}\":{value},\"success\":[{}],\"failed\":{{}}}}", ids.join(","))
}

/// Returns the content of `info/collections`.
pub fn times_of(timed: &Timed) -> BTreeMap<String, i64> {
    let text = timed.text().trim_matches(['{', '}']);
    let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once(':').unwrap());
    pairs.map(|(name, time)| (name.trim_matches('"').to_owned(), time.replace('.', "").parse().unwrap())).collect()
}
