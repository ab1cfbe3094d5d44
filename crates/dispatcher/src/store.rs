//! `_worker` by CouchDB's API: where jobs, their copies of checkpoints and their queues lie.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_clock::Clock;
use flatbed_layer::WORKER;
use flatbed_worker::connect::Local;
use flatbed_worker::peer::{Bounds, Peer, PeerError};
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};
use serde_json::{Value, json};

/// What is read of an answer.
const BOUNDS: Bounds = Bounds { bytes_max: 32 << 20, time_max: Duration::from_secs(60) };

/// How often a document is read and written again where somebody else wrote it meanwhile.
const CONFLICTS_MAX: u32 = 20;

/// The design document of the queue's indexes and figures.
const DESIGN: &str = "flatbed_queue";

/// Its indexes, each by name and members.
const INDEXES: [(&str, &[&str]); 5] = [
    ("job", &["type", "job", "time"]),
    ("reason", &["type", "reason", "time"]),
    ("state", &["type", "state", "time"]),
    ("time", &["type", "time"]),
    // What may go by itself is found without the entries that may not.
    (EXPIRY, &["type", "job", "state", "expires_at"]),
];

const EXPIRY: &str = "expiry";

/// Why the database did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It does not answer.
    #[error("the database _worker does not answer: {0}")]
    Peer(#[from] PeerError),
    /// It says no.
    #[error("{reason}")]
    Refused {
        /// HTTP's status.
        status: u16,
        /// CouchDB's word.
        error: String,
        /// In words.
        reason: String,
    },
    /// The server's address cannot be read.
    #[error("the address: {0}")]
    Address(String),
}

impl StoreError {
    /// HTTP's status, where it answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            StoreError::Refused { status, .. } => Some(*status),
            StoreError::Peer(_) | StoreError::Address(_) => None,
        }
    }
}

/// Result with [`StoreError`].
pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// The database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Peer>);

/// A text member of a document.
pub(crate) fn text_of<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Sets a member of an object.
pub(crate) fn set(value: &mut Value, name: &str, to: impl Into<Value>) {
    if let Some(members) = value.as_object_mut() {
        members.insert(name.to_owned(), to.into());
    }
}

impl Store {
    /// Of a server that answers as to an administrator, in a time by this clock.
    ///
    /// # Errors
    /// [`StoreError::Address`].
    pub fn new(server: &Local, clock: &Clock) -> Result<Store> {
        let peer = server.peer(WORKER, HeaderMap::new());
        let peer = peer.map_err(|error| StoreError::Address(error.to_string()))?;
        Ok(Store(Arc::new(peer.timed_by(clock.clone()))))
    }

    /// Asks for something: its status and the JSON that it answers.
    ///
    /// # Errors
    /// [`StoreError::Peer`].
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        self.ask_within(method, path, body, BOUNDS).await
    }

    async fn ask_within(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        bounds: Bounds,
    ) -> Result<(u16, Value)> {
        let json = HeaderValue::from_static("application/json");
        let headers = [(header::ACCEPT, json.clone()), (header::CONTENT_TYPE, json)].into_iter().collect();
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let answer = self.0.call(method, path, &headers, body, bounds).await?;
        Ok((answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
    }

    /// As [`Store::ask`], for what has to go well.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        self.call_within(method, path, body, BOUNDS.time_max).await
    }

    /// As [`Store::call`], with an answer in such a time or none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn call_within(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        time_max: Duration,
    ) -> Result<Value> {
        let (status, value) = self.ask_within(method, path, body, Bounds { time_max, ..BOUNDS }).await?;
        if (200..300).contains(&status) {
            return Ok(value);
        }
        let of = |name: &str| text_of(&value, name).chars().take(1_000).collect();
        Err(StoreError::Refused { status, error: of("error"), reason: of("reason") })
    }

    /// Makes the database if it is not there, and what its queue is read by.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ensure(&self) -> Result<()> {
        match self.call(Method::PUT, "", None).await {
            Ok(_) => tracing::info!(database = WORKER, "made the database of the worker's jobs"),
            Err(error) if error.status() == Some(412) => {}
            Err(error) => return Err(error),
        }
        for (name, fields) in INDEXES {
            let index = json!({"index": {"fields": fields}, "ddoc": DESIGN, "name": name, "type": "json"});
            self.call(Method::POST, "/_index", Some(&index)).await?;
        }
        let figures = json!({"language": "javascript", "views": {"figures": {"reduce": "_count",
            "map": "function (doc) { if (doc.type === 'dlq') { emit([doc.job || '', doc.reason || '', doc.state || 'waiting'], null); } }"}}});
        let id = format!("_design/{DESIGN}_figures");
        match self.put(&id, &figures).await {
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A document with its id and revision.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, id: &str) -> Result<Option<Value>> {
        match self.call(Method::GET, &format!("/{}", encode_segment(id)), None).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a document in the place of the revision that it has; gives the new one.
    ///
    /// # Errors
    /// [`StoreError`]; with status 409 it is another one.
    pub async fn put(&self, id: &str, document: &Value) -> Result<String> {
        let path = match id.strip_prefix("_design/") {
            Some(name) => format!("/_design/{}", encode_segment(name)),
            None => format!("/{}", encode_segment(id)),
        };
        let answer = self.call(Method::PUT, &path, Some(document)).await?;
        Ok(text_of(&answer, "rev").to_owned())
    }

    /// Deletes a revision.
    ///
    /// # Errors
    /// [`StoreError`]; with status 409 there is another one.
    pub async fn delete(&self, id: &str, rev: &str) -> Result<()> {
        let path = format!("/{}?rev={}", encode_segment(id), encode_segment(rev));
        self.call(Method::DELETE, &path, None).await.map(drop)
    }

    /// Changes a document, once more where somebody else changes it meanwhile. `change` says whether there is something to be written.
    /// `None`: there is no such document.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn update(&self, id: &str, mut change: impl FnMut(&mut Value) -> bool) -> Result<Option<Value>> {
        let mut conflicts = 0;
        loop {
            let Some(mut document) = self.get(id).await? else { return Ok(None) };
            if !change(&mut document) {
                return Ok(Some(document));
            }
            match self.put(id, &document).await {
                Ok(_) => return Ok(Some(document)),
                Err(error) if error.status() == Some(409) && conflicts < CONFLICTS_MAX => conflicts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes those that `_find` has answered, a page of them, as far as they are as it found them; gives how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn delete_found(&self, found: &Value) -> Result<u64> {
        let gone = |document: &Value| json!({"_id": text_of(document, "_id"), "_rev": text_of(document, "_rev"), "_deleted": true});
        let gone: Vec<Value> = found.get("docs").and_then(Value::as_array).into_iter().flatten().map(gone).collect();
        if gone.is_empty() {
            return Ok(0);
        }
        let done = self.call(Method::POST, "/_bulk_docs", Some(&json!({"docs": gone}))).await?;
        let is_done = |row: &&Value| row.get("ok") == Some(&Value::Bool(true));
        Ok(done.as_array().into_iter().flatten().filter(is_done).count() as u64)
    }

    /// Documents of ids from `begin` on, in pages that `take` is given.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn walk(&self, begin: &str, end: &str, mut take: impl FnMut(Value)) -> Result<()> {
        let mut from = (begin.to_owned(), false);
        while let Some(next) = self.page(&from, end, 50, &mut take).await? {
            from = (next, true);
        }
        Ok(())
    }

    /// A page of documents from an id on, or behind it; the last id, unless it was the last page.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn page(
        &self,
        (from, is_behind): &(String, bool),
        end: &str,
        mut limit: usize,
        take: &mut impl FnMut(Value),
    ) -> Result<Option<String>> {
        let key = |id: &str| encode_segment(&Value::from(id).to_string());
        loop {
            let skip = usize::from(*is_behind);
            let path = format!(
                "/_all_docs?include_docs=true&startkey={}&endkey={}&skip={skip}&limit={limit}",
                key(from),
                key(end)
            );
            let answer = match self.call(Method::GET, &path, None).await {
                Err(StoreError::Peer(PeerError::TooLarge(_))) if limit > 1 => {
                    limit = (limit / 8).max(1);
                    continue;
                }
                answer => answer?,
            };
            let Some(Value::Array(rows)) = answer.get("rows") else { return Ok(None) };
            let last = rows.last().map(|row| text_of(row, "id").to_owned()).filter(|_| rows.len() == limit);
            for row in rows {
                if let Some(document) = row.get("doc").filter(|document| document.is_object()) {
                    take(document.clone());
                }
            }
            return Ok(last);
        }
    }
}

/// The request of `_find` for entries of a job in a state whose time has come.
pub(crate) fn expired(job: &str, state: &str, now: u64, limit: u64) -> Value {
    let due = json!({"$gt": 0, "$lte": now});
    let selector = json!({"type": "dlq", "job": job, "state": state, "expires_at": due});
    json!({"selector": selector, "use_index": [DESIGN, EXPIRY], "fields": ["_id", "_rev"], "limit": limit})
}

/// What `_find` and its like are asked, of the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this job.
    pub job: Option<String>,
    /// With this reason.
    pub reason: Option<String>,
    /// In this state.
    pub state: Option<String>,
    /// That failed first at this time or later, in seconds of Unix time.
    pub since: Option<u64>,
    /// ... or earlier.
    pub until: Option<u64>,
}

impl Filter {
    /// Whether it leaves none out.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// The selector, and the index that it is answered by with its members.
    pub(crate) fn selector(&self) -> (Value, [&'static str; 2], &'static [&'static str]) {
        let mut time = json!({"$gte": self.since.unwrap_or(0)});
        if let Some(until) = self.until {
            set(&mut time, "$lte", until);
        }
        let mut selector = json!({"type": "dlq", "time": time});
        for (name, value) in [("job", &self.job), ("reason", &self.reason), ("state", &self.state)] {
            if let Some(value) = value {
                set(&mut selector, name, value.as_str());
            }
        }
        let at = match self {
            Filter { job: Some(_), .. } => 0,
            Filter { reason: Some(_), .. } => 1,
            Filter { state: Some(_), .. } => 2,
            _ => 3,
        };
        let (name, fields) = INDEXES.get(at).copied().unwrap_or(("time", &["type", "time"]));
        (selector, [DESIGN, name], fields)
    }

    /// The request of `_find`.
    pub(crate) fn find(&self, fields: &[&str], limit: u64) -> Value {
        let (selector, index, by) = self.selector();
        let sort: Vec<Value> = by.iter().map(|name| json!({*name: "asc"})).collect();
        json!({"selector": selector, "use_index": index, "sort": sort, "fields": fields, "limit": limit})
    }
}
