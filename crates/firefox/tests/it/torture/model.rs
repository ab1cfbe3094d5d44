//! A model of a user's store: the API's rules in memory, one operation after the other. It uses only texts and numbers
//! and no code under test. A server's time is taken from the answer; times are in hundredths of a second.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A client's change of a record; `None` members are omitted.
#[derive(Debug, Clone)]
pub struct Change {
    pub id: String,
    pub payload: Option<Arc<str>>,
    pub sortindex: Option<i32>,
    pub ttl: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    None,
    ModifiedSince(i64),
    UnmodifiedSince(i64),
}

#[derive(Debug, Clone)]
pub enum Write {
    Put(String, Change),
    Post(String, Vec<Change>),
    Begin(String, Vec<Change>),
    Append(String, String, Vec<Change>),
    Commit(String, String, Vec<Change>),
    DeleteOne(String, String),
    DeleteIds(String, Vec<String>),
    DeleteCollection(String),
    DeleteAll,
}

#[derive(Debug, Clone)]
pub struct Record {
    pub id: String,
    pub modified: i64,
    pub payload: Arc<str>,
    pub sortindex: Option<i32>,
    pub expires: Option<i64>,
}

#[derive(Debug, Clone, Default)]
pub struct Collection {
    pub modified: i64,
    records: BTreeMap<String, Record>,
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The user's clock, and the shown time.
    pub last: i64,
    pub shown: i64,
    pub collections: BTreeMap<String, Collection>,
    pub batches: BTreeMap<String, BTreeMap<String, Change>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Newest,
    Oldest,
    Index,
}

impl Condition {
    /// Returns 304 or 412, if the condition does not hold for a time.
    pub fn fails(self, modified: i64) -> Option<u16> {
        match self {
            Condition::ModifiedSince(since) if modified <= since => Some(304),
            Condition::UnmodifiedSince(since) if modified > since => Some(412),
            _ => None,
        }
    }
}

impl Record {
    /// Returns whether it precedes another record in a list.
    pub fn before(&self, other: &Record, sort: Sort) -> std::cmp::Ordering {
        match sort {
            Sort::Oldest => (self.modified, &self.id).cmp(&(other.modified, &other.id)),
            Sort::Newest => (other.modified, &other.id).cmp(&(self.modified, &self.id)),
            Sort::Index => (other.sortindex, &other.id).cmp(&(self.sortindex, &self.id)),
        }
    }

    pub fn text(&self) -> String {
        let sortindex = self.sortindex.map_or_else(String::new, |sortindex| format!(",\"sortindex\":{sortindex}"));
        let time = time(self.modified);
        format!("{{\"id\":\"{}\",\"modified\":{time},\"payload\":\"{}\"{sortindex}}}", self.id, self.payload)
    }
}

/// Returns a time in the form of answers.
pub fn time(hundredths: i64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

impl Model {
    pub fn time_of(&self, name: &str) -> i64 {
        self.collections.get(name).map_or(0, |collection| collection.modified)
    }

    pub fn get(&self, name: &str, id: &str, now: i64) -> Option<&Record> {
        let record = self.collections.get(name)?.records.get(id)?;
        record.expires.is_none_or(|expires| expires > now).then_some(record)
    }

    /// Returns the time that a write's condition is checked against, which is also the answer's `X-Last-Modified` if
    /// that is an earlier time.
    pub fn subject(&self, write: &Write, now: i64) -> i64 {
        match write {
            Write::Put(name, Change { id, .. }) | Write::DeleteOne(name, id) => {
                self.get(name, id, now).map_or(0, |record| record.modified)
            }
            Write::Post(name, _)
            | Write::Begin(name, _)
            | Write::Append(name, ..)
            | Write::Commit(name, ..)
            | Write::DeleteIds(name, _)
            | Write::DeleteCollection(name) => self.time_of(name),
            Write::DeleteAll => self.shown,
        }
    }

    pub fn status(&self, write: &Write, condition: Condition, now: i64) -> u16 {
        if let Write::Append(_, batch, _) | Write::Commit(_, batch, _) = write
            && !self.batches.contains_key(batch)
        {
            return 400;
        }
        if let Some(status) = condition.fails(self.subject(write, now)) {
            return status;
        }
        match write {
            Write::Begin(..) | Write::Append(..) => 202,
            Write::DeleteOne(name, id) if self.get(name, id, now).is_none() => 404,
            _ => 200,
        }
    }

    pub fn has_time(&self, write: &Write) -> bool {
        match write {
            Write::Begin(..) | Write::Append(..) => false,
            Write::DeleteCollection(name) => self.collections.contains_key(name),
            _ => true,
        }
    }

    /// Applies a write with its time. `batch`: the id in the answer, for a new batch.
    pub fn apply(&mut self, write: &Write, at: i64, batch: Option<&str>) {
        if self.has_time(write) {
            (self.last, self.shown) = (at, at);
        }
        match write {
            Write::Put(name, change) => {
                self.change(name, change, at, false);
            }
            Write::Post(name, changes) => {
                self.touch(name, at);
                changes.iter().for_each(|change| self.change(name, change, at, false));
            }
            Write::Begin(_, changes) => self.stage(batch.unwrap(), changes),
            Write::Append(_, batch, changes) => self.stage(batch, changes),
            Write::Commit(name, batch, changes) => {
                self.stage(batch, changes);
                self.touch(name, at);
                let staged = self.batches.remove(batch).unwrap();
                staged.values().for_each(|change| self.change(name, change, at, true));
            }
            Write::DeleteOne(name, id) => {
                self.touch(name, at);
                self.collections.get_mut(name).unwrap().records.remove(id);
            }
            Write::DeleteIds(name, ids) => {
                self.touch(name, at);
                let records = &mut self.collections.get_mut(name).unwrap().records;
                ids.iter().for_each(|id| drop(records.remove(id)));
            }
            Write::DeleteCollection(name) => drop(self.collections.remove(name)),
            Write::DeleteAll => {
                self.shown = 0;
                self.collections.clear();
                self.batches.clear();
            }
        }
    }

    fn touch(&mut self, name: &str, at: i64) {
        self.collections.entry(name.to_owned()).or_default().modified = at;
    }

    fn stage(&mut self, batch: &str, changes: &[Change]) {
        let staged = self.batches.entry(batch.to_owned()).or_default();
        for change in changes {
            let merged = staged.entry(change.id.clone()).or_insert_with(|| change.clone());
            merged.payload = change.payload.clone().or_else(|| merged.payload.take());
            merged.sortindex = change.sortindex.or(merged.sortindex);
            merged.ttl = change.ttl.or(merged.ttl);
        }
    }

    fn change(&mut self, name: &str, change: &Change, at: i64, is_batch: bool) {
        let old = self.get(name, &change.id, at);
        let is_moved = is_batch || change.payload.is_some() || change.sortindex.is_some();
        let record = Record {
            id: change.id.clone(),
            modified: old.filter(|_| !is_moved).map_or(at, |old| old.modified),
            payload: change.payload.clone().or_else(|| old.map(|old| old.payload.clone())).unwrap_or_default(),
            sortindex: change.sortindex.or_else(|| old.and_then(|old| old.sortindex)),
            expires: change.ttl.map(|ttl| at + 100 * ttl).or_else(|| old.and_then(|old| old.expires)),
        };
        self.touch(name, at);
        self.collections.get_mut(name).unwrap().records.insert(change.id.clone(), record);
    }

    pub fn live(&self, name: &str, now: i64) -> impl Iterator<Item = &Record> {
        let records = self.collections.get(name).into_iter().flat_map(|collection| collection.records.values());
        records.filter(move |record| record.expires.is_none_or(|expires| expires > now))
    }

    /// Returns the content of `info/collections`.
    pub fn times(&self) -> BTreeMap<String, i64> {
        self.collections.iter().map(|(name, collection)| (name.clone(), collection.modified)).collect()
    }

    /// Returns records and bytes of the collections that are not empty.
    pub fn sizes(&self, now: i64) -> BTreeMap<String, (u64, u64)> {
        let size = |name| {
            let bytes = self.live(name, now).map(|record| record.payload.len() as u64);
            bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
        };
        let sizes = self.collections.keys().map(|name| (name.clone(), size(name)));
        sizes.filter(|(_, (count, _))| *count > 0).collect()
    }
}
