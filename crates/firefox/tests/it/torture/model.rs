//! A user's store as a model: what the API says, in memory, one operation after the other. It knows nothing of the code under
//! test: texts and numbers alone. How late it is at a server an answer says itself; a time is in hundredths of a second.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a client says of a record; what is `None` is left out.
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

/// A write.
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
    /// The user's clock, and what is shown of it.
    pub last: i64,
    pub shown: i64,
    pub collections: BTreeMap<String, Collection>,
    /// Open ones, with what was merged into them.
    pub batches: BTreeMap<String, BTreeMap<String, Change>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Newest,
    Oldest,
    Index,
}

impl Condition {
    /// 304 or 412, if it does not hold of a time.
    pub fn fails(self, modified: i64) -> Option<u16> {
        match self {
            Condition::ModifiedSince(since) if modified <= since => Some(304),
            Condition::UnmodifiedSince(since) if modified > since => Some(412),
            _ => None,
        }
    }
}

impl Record {
    /// Whether it stands before another one in a list.
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

/// As answers have it.
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

    /// The time that a condition of a write is on, and the answer's `X-Last-Modified` where that is an earlier one.
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

    /// With which status a write is answered.
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

    /// Whether a write has a time.
    pub fn has_time(&self, write: &Write) -> bool {
        match write {
            Write::Begin(..) | Write::Append(..) => false,
            Write::DeleteCollection(name) => self.collections.contains_key(name),
            _ => true,
        }
    }

    /// A write, which has that time; `batch` is what was answered to a new one.
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

    /// What `info/collections` has.
    pub fn times(&self) -> BTreeMap<String, i64> {
        self.collections.iter().map(|(name, collection)| (name.clone(), collection.modified)).collect()
    }

    /// Records and bytes of collections that are not empty.
    pub fn sizes(&self, now: i64) -> BTreeMap<String, (u64, u64)> {
        let size = |name| {
            let bytes = self.live(name, now).map(|record| record.payload.len() as u64);
            bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
        };
        let sizes = self.collections.keys().map(|name| (name.clone(), size(name)));
        sizes.filter(|(_, (count, _))| *count > 0).collect()
    }
}
