//! Random changes of documents, and the rows of each of their states.
//!
//! A document is an order: a row with the key `k`, and a row for each item. No two documents have the same `k`, but a
//! document may take a key that another has given up, and two may exchange theirs. [`Documents::change`] has the
//! frequencies.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use flatbed_testkit::Random;
use serde_json::{Value, json};

/// The least `weight` that is too heavy for judging targets.
pub(super) const HEAVY: i64 = 1_000;

/// The rows of a target: table, key and the row's document; the values of the row as a text. Without tables, a document
/// whose newest state was refused may still have a key that belongs to another by now.
pub(super) type Rows = BTreeMap<(&'static str, i64, i64, String), String>;

/// Returns whether no target can map a document.
pub(super) fn is_unmappable(document: &Value) -> bool {
    document["t"] == "order" && document["weight"].is_string()
}

/// Returns whether judging targets refuse a document.
pub(super) fn is_heavy(document: &Value) -> bool {
    document["t"] == "order" && document["weight"].as_i64().is_some_and(|weight| weight >= HEAVY)
}

pub(super) fn add_rows(id: &str, document: &Value, rows: &mut Rows) {
    if document["t"] != "order" {
        return;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let k = document["k"].as_i64().unwrap();
    let values = format!("{}|{}|{}", document["n"], text(&document["name"]), document["weight"]);
    rows.insert(("orders", k, 0, id.to_owned()), values);
    for (at, item) in document["items"].as_array().into_iter().flatten().enumerate() {
        rows.insert(("items", k, at as i64, id.to_owned()), text(item));
    }
}

/// Adds the rows in an object that a target without tables got: an array for each table.
pub(super) fn add_sent_rows(sent: &Value, rows: &mut Rows) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for row in sent["orders"].as_array().into_iter().flatten() {
        let values = format!("{}|{}|{}", row["n"], text(&row["name"]), row["weight"]);
        rows.insert(("orders", row["k"].as_i64().unwrap(), 0, text(&row["id"])), values);
    }
    for row in sent["items"].as_array().into_iter().flatten() {
        let (k, position) = (row["k"].as_i64().unwrap(), row["flatbed_position"].as_i64().unwrap());
        rows.insert(("items", k, position, text(&row["id"])), text(&row["name"]));
    }
}

/// Returns at most ten differences. Rows of excused documents may exist besides.
pub(super) fn differences(expected: &Rows, found: &Rows, excused: &HashSet<String>) -> Vec<String> {
    let wrong = expected.iter().filter(|(key, row)| found.get(key) != Some(row));
    let wrong = wrong.map(|(key, row)| format!("{key:?}: {row:?} expected, {:?} found", found.get(key)));
    let surplus = found.iter().filter(|(key, _)| !expected.contains_key(key) && !excused.contains(&key.3));
    wrong.chain(surplus.map(|(key, row)| format!("{key:?}: {row:?} should not be there"))).take(10).collect()
}

/// The last acknowledged state of a document.
#[derive(Clone, Default)]
struct Document {
    rev: Option<String>,
    /// The body; `None`: the document is deleted.
    body: Option<Value>,
    /// True if the result of a write is unknown, so that another document may have its key.
    is_unclear: bool,
}

/// The known content of the source.
pub(super) struct Documents {
    documents: Vec<Document>,
    random: Random,
    /// The documents by key, and the free keys.
    holders: HashMap<i64, usize>,
    free: BTreeSet<i64>,
    next_key: i64,
    next_n: i64,
}

const NAMES: [&str; 6] = ["plain", "O'Neill", "\"quoted\"", "größer", "日本語", "100%_x"];

fn id_of(at: usize) -> String {
    format!("d{at:06}")
}

fn at_of(id: &str) -> Option<usize> {
    id.strip_prefix('d')?.parse().ok()
}

fn key_of(body: Option<&Value>) -> Option<i64> {
    body.and_then(|body| body["k"].as_i64())
}

impl Documents {
    pub(super) fn new(count: usize, random: Random) -> Documents {
        let (holders, free) = Default::default();
        Documents { documents: vec![Document::default(); count], random, holders, free, next_key: 0, next_n: 0 }
    }

    fn new_key(&mut self) -> i64 {
        self.next_key += 1;
        self.next_key
    }

    /// Returns a key, sometimes a free one, which its former document may still have at the target.
    fn key(&mut self) -> i64 {
        let some = self.random.below(self.next_key as u64 + 1) as i64;
        match self.free.range(some..).next().copied().filter(|_| some % 3 == 0) {
            Some(key) => {
                self.free.remove(&key);
                key
            }
            None => self.new_key(),
        }
    }

    fn order(&mut self, k: i64) -> Value {
        self.next_n += 1;
        let count = self.random.below(5);
        let items: Vec<String> = (0..count).map(|at| format!("{} {at}", self.random.one_of(&NAMES))).collect();
        let weight = match self.random.below(100) {
            0 => Value::from("heavy"),
            1 => Value::from(HEAVY + self.random.below(100) as i64),
            _ => Value::from(self.random.below(HEAVY as u64)),
        };
        json!({"t": "order", "k": k, "n": self.next_n, "name": self.random.one_of(&NAMES), "weight": weight, "items": items})
    }

    /// Returns the initial documents.
    pub(super) fn first(&mut self, range: std::ops::Range<usize>) -> Vec<Value> {
        let mut batch = Vec::new();
        for at in range {
            let k = self.new_key();
            let body = self.order(k);
            batch.push(self.written(at, Some(body)));
        }
        batch
    }

    /// Returns changes of some documents, for one request.
    pub(super) fn change(&mut self, count: usize) -> Vec<Value> {
        let chosen: BTreeSet<usize> = (0..count).map(|_| self.random.index(self.documents.len())).collect();
        let mut chosen = chosen.into_iter();
        let mut batch = Vec::new();
        while let Some(at) = chosen.next() {
            let Document { body, is_unclear, .. } = self.documents[at].clone();
            let own = key_of(body.as_ref()).filter(|_| !is_unclear);
            let next = match (own, self.random.below(100)) {
                (Some(_), ..12) => None,
                // It changes to a kind that is not selected.
                (Some(k), 12..18) => {
                    self.next_n += 1;
                    Some(json!({"t": "note", "k": k, "n": self.next_n}))
                }
                (Some(_), 18..35) => {
                    let k = self.key();
                    Some(self.order(k))
                }
                (Some(k), 35..45) => match chosen.next() {
                    // The two exchange their keys.
                    Some(other) if !self.documents[other].is_unclear => {
                        let of_other = key_of(self.documents[other].body.as_ref());
                        let body = of_other.map(|_| self.order(k));
                        batch.extend(body.map(|body| self.written(other, Some(body))));
                        Some(self.order(of_other.unwrap_or(k)))
                    }
                    _ => Some(self.order(k)),
                },
                (Some(k), 45..60) => {
                    let mut body = self.order(k);
                    let items = body["items"].as_array_mut().unwrap();
                    items.truncate(items.len() / 2);
                    Some(body)
                }
                (Some(k), _) => Some(self.order(k)),
                (None, _) if is_unclear => {
                    let k = self.new_key();
                    Some(self.order(k))
                }
                (None, _) => {
                    let k = self.key();
                    Some(self.order(k))
                }
            };
            batch.push(self.written(at, next));
        }
        batch
    }

    /// Returns new keys for documents that may have another's.
    pub(super) fn cleared(&mut self) -> Vec<Value> {
        let unclear = (0..self.documents.len()).filter(|at| self.documents[*at].is_unclear);
        let mut batch = Vec::new();
        for at in unclear.take(200).collect::<Vec<_>>() {
            let k = self.new_key();
            let body = self.order(k);
            batch.push(self.written(at, Some(body)));
        }
        batch
    }

    /// Turns documents that no target can map into mappable ones.
    pub(super) fn mended(&mut self) -> Vec<Value> {
        let mut batch = Vec::new();
        for (at, document) in self.documents.iter().enumerate() {
            if let Some(mut body) = document.body.clone().filter(is_unmappable) {
                body["weight"] = 5.into();
                batch.push(self.written(at, Some(body)));
            }
        }
        batch
    }

    fn written(&self, at: usize, body: Option<Value>) -> Value {
        let mut document = body.unwrap_or_else(|| json!({"_deleted": true}));
        document["_id"] = id_of(at).into();
        if let Some(rev) = &self.documents[at].rev {
            document["_rev"] = rev.as_str().into();
        }
        document
    }

    fn set(&mut self, at: usize, rev: Option<&str>, body: Option<&Value>, is_unclear: bool) {
        let body = body.filter(|body| body["_deleted"] != true).map(|body| {
            let mut body = body.clone();
            body.as_object_mut().unwrap().retain(|name, _| !name.starts_with('_'));
            body
        });
        let (before, after) = (key_of(self.documents[at].body.as_ref()), key_of(body.as_ref()));
        if let Some(k) = before.filter(|k| before != after && self.holders.get(k) == Some(&at)) {
            self.holders.remove(&k);
            // A document with a known state is the key's owner.
            if !is_unclear && !self.documents[at].is_unclear {
                self.free.insert(k);
            }
        }
        if let Some(k) = after {
            self.holders.insert(k, at);
            self.free.remove(&k);
        }
        self.documents[at] = Document { rev: rev.map(str::to_owned), body, is_unclear };
    }

    /// Notes that a document of a request was accepted.
    pub(super) fn acknowledge(&mut self, document: &Value, rev: &str) {
        let at = document["_id"].as_str().and_then(at_of).unwrap();
        self.set(at, Some(rev), Some(document), false);
    }

    /// Notes the source's state of a document after a request without an answer, or after a refusal.
    pub(super) fn find(&mut self, id: &str, rev: Option<&str>, body: Option<&Value>) {
        self.set(at_of(id).unwrap(), rev, body, true);
    }

    /// Returns whether the source has exactly the acknowledged documents.
    pub(super) fn are(&self, at_source: &HashMap<String, (String, Value)>) -> bool {
        let there = self.documents.iter().enumerate().filter(|(_, document)| document.body.is_some());
        let is_same = |(at, document): (usize, &Document)| {
            at_source.get(&id_of(at)).is_some_and(|(rev, _)| Some(rev) == document.rev.as_ref())
        };
        there.clone().count() == at_source.len() && there.into_iter().all(is_same)
    }
}
