//! The server with the documents, the jobs and their queue, as a client sees it. It may be away for a while.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use flatbed_client::{Connection, Url};
use flatbed_testkit::{WaitLoop, until};
use hyper::Method;
use serde_json::{Value, json};

use super::model::Documents;

const PAGE: usize = 1_000;

#[derive(Clone)]
pub(super) struct Source {
    pub(super) url: Url,
}

pub(super) struct Entry {
    pub(super) job: String,
    pub(super) id: String,
    pub(super) rev: String,
    pub(super) is_overtaken: bool,
    /// The document that failed.
    pub(super) document: Value,
    pub(super) why: String,
}

/// A position in the feed: the number, and the rest as a text, which orders positions within a transaction.
pub(super) type FeedPosition = (u128, String);

fn place_of(seq: &Value) -> Option<FeedPosition> {
    let (number, rest) = seq.as_str()?.split_once('-')?;
    Some((number.parse().ok()?, rest.to_owned()))
}

impl Source {
    /// Sends a request once. `None`: there is no answer, and its result is unknown.
    async fn try_ask(&self, method: Method, path: &str, body: &Value) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let asked = async {
            let mut connection = Connection::open(&self.url).await.ok()?;
            connection.call(method, path, body).await.ok()
        };
        let answer = tokio::time::timeout(Duration::from_secs(60), asked).await.ok()??;
        Some((answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
    }

    /// Sends a request until it is done. The request must be idempotent.
    pub(super) async fn ask(&self, method: Method, path: &str, body: Value) -> Value {
        let mut waiting = WaitLoop::begin();
        loop {
            let last = self.try_ask(method.clone(), path, &body).await;
            match &last {
                Some((status, answer)) if *status < 300 => return answer.clone(),
                Some((status, answer)) if (400..500).contains(status) && ![408, 409, 429].contains(status) => {
                    panic!("{path}: {status} {answer}")
                }
                _ => waiting.pause(&format!("{path}: {last:?}")).await,
            }
        }
    }

    /// Waits until something exists.
    pub(super) async fn until_there(&self, path: &str) {
        let look = async || self.try_ask(Method::GET, path, &Value::Null).await;
        until(path, async || look().await.is_some_and(|(status, _)| status == 200)).await;
    }

    pub(super) async fn write(&self, documents: &mut Documents, batch: &[Value]) {
        if batch.is_empty() {
            return;
        }
        let done = self.try_ask(Method::POST, "/db/_bulk_docs", &json!({"docs": batch})).await;
        let rows = done.filter(|(status, _)| *status == 201).and_then(|(_, answer)| answer.as_array().cloned());
        let rows = rows.unwrap_or_default();
        let mut unclear = Vec::new();
        for (at, document) in batch.iter().enumerate() {
            match rows.get(at).filter(|row| row["ok"] == true).and_then(|row| row["rev"].as_str()) {
                Some(rev) => documents.acknowledge(document, rev),
                None => unclear.push(document["_id"].clone()),
            }
        }
        if unclear.is_empty() {
            return;
        }
        let found = self.ask(Method::POST, "/db/_all_docs?include_docs=true", json!({"keys": unclear})).await;
        for (id, row) in unclear.iter().zip(found["rows"].as_array().unwrap()) {
            let document = Some(&row["doc"]).filter(|document| document.is_object());
            // A new edit of a deleted document needs no revision.
            let rev = document.and_then(|document| document["_rev"].as_str());
            documents.find(id.as_str().unwrap(), rev, document);
        }
    }

    /// Returns the position of each job up to which all is delivered or queued. `None`: there is no answer.
    pub(super) async fn reached(&self) -> Option<HashMap<String, FeedPosition>> {
        let (_, jobs) = self.try_ask(Method::GET, "/_worker/_api/jobs", &Value::Null).await?;
        let of = |job: &Value| Some((job["id"].as_str()?.to_owned(), place_of(&job["seq"])?));
        Some(jobs["jobs"].as_array()?.iter().filter_map(of).collect())
    }

    /// Returns the documents in the order of their last changes, with positions and without deleted ones. `None`: there
    /// is no answer.
    pub(super) async fn changes(&self) -> Option<Vec<(FeedPosition, Value)>> {
        let (_, feed) = self.try_ask(Method::GET, "/db/_changes?include_docs=true", &Value::Null).await?;
        let rows = feed["results"].as_array()?.iter().filter(|row| row["deleted"] != true);
        rows.map(|row| Some((place_of(&row["seq"])?, row["doc"].clone()))).collect()
    }

    /// Returns all documents by id, with their revisions.
    pub(super) async fn documents(&self) -> HashMap<String, (String, Value)> {
        let mut all = HashMap::new();
        for mut document in self.all("/db", "d", "e").await {
            let members = document.as_object_mut().unwrap();
            let text = |value: Option<Value>| value.unwrap().as_str().unwrap().to_owned();
            let (id, rev) = (text(members.remove("_id")), text(members.remove("_rev")));
            all.insert(id, (rev, document));
        }
        all
    }

    async fn all(&self, database: &str, from: &str, to: &str) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        let (mut from, mut skip) = (from.to_owned(), 0);
        loop {
            let range = json!({"include_docs": true, "startkey": from, "endkey": to, "skip": skip, "limit": PAGE});
            let page = self.ask(Method::POST, &format!("{database}/_all_docs"), range).await;
            let rows = page["rows"].as_array().unwrap();
            all.extend(rows.iter().map(|row| row["doc"].clone()));
            if rows.len() < PAGE {
                return all;
            }
            (from, skip) = (rows[PAGE - 1]["id"].as_str().unwrap().to_owned(), 1);
        }
    }

    /// Returns ids and revisions of the documents in a job's queue. `None`: there is no answer.
    pub(super) async fn queued(&self, job: &str) -> Option<HashSet<(String, String)>> {
        let path = format!("/_worker/_api/dlq?limit=1000&job={job}");
        let (_, list) = self.try_ask(Method::GET, &path, &Value::Null).await?;
        let text = |entry: &Value, name: &str| entry[name].as_str().map(str::to_owned);
        let of = |entry: &Value| Some((text(entry, "doc_id_original")?, text(entry, "rev")?));
        list["entries"].as_array()?.iter().map(of).collect()
    }

    pub(super) async fn entries(&self) -> Vec<Entry> {
        let of = |document: Value| {
            let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
            Entry {
                job: text("job"),
                id: text("doc_id_original"),
                rev: text("rev"),
                is_overtaken: document["state"] == "overtaken",
                document: serde_json::from_str(&text("doc_data")).unwrap_or_default(),
                why: format!("{} {} {}", text("method"), text("reason"), text("error")),
            }
        };
        self.all("/_worker", "dlq:", "dlq:~").await.into_iter().map(of).collect()
    }

    pub(super) async fn jobs(&self) -> Value {
        self.ask(Method::GET, "/_worker/_api/jobs", Value::Null).await
    }

    pub(super) async fn reset(&self, job: &str) {
        self.ask(Method::POST, &format!("/_worker/_api/jobs/{job}/reset"), json!({"to": "beginning"})).await;
    }

    pub(super) async fn replay(&self, job: &str) {
        self.ask(Method::POST, "/_worker/_api/dlq/retry", json!({"job": job})).await;
    }

    pub(super) async fn clear_overtaken(&self, job: &str) {
        self.ask(Method::DELETE, &format!("/_worker/_api/dlq?job={job}&state=overtaken"), Value::Null).await;
    }
}
