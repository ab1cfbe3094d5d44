//! A client of `_worker` through CouchDB's API: jobs, copies of checkpoints, and queues.

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

const BOUNDS: Bounds = Bounds { bytes_max: 32 << 20, time_max: Duration::from_secs(60) };

/// The most attempts to update a document under conflicts.
const CONFLICTS_MAX: u32 = 20;

/// The design document with the queue's indexes and views.
const DESIGN: &str = "flatbed_queue";

/// Its indexes, with name and members.
const INDEXES: [(&str, &[&str]); 5] = [
    ("job", &["type", "job", "time"]),
    ("reason", &["type", "reason", "time"]),
    ("state", &["type", "state", "time"]),
    ("time", &["type", "time"]),
    // Finds expired entries without reading the others.
    (EXPIRY, &["type", "job", "state", "expires_at"]),
];

const EXPIRY: &str = "expiry";

/// The error of a request to the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The database does not answer.
    #[error("the database _worker does not answer: {0}")]
    Peer(#[from] PeerError),
    /// The database refuses the request.
    #[error("{reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// CouchDB's `error`.
        error: String,
        /// CouchDB's `reason`.
        reason: String,
    },
    /// A malformed server URL.
    #[error("the address: {0}")]
    Address(String),
}

impl StoreError {
    /// Returns the HTTP status, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        match self {
            StoreError::Refused { status, .. } => Some(*status),
            StoreError::Peer(_) | StoreError::Address(_) => None,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// A client of the database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Peer>);

/// Returns a text member of a document, or an empty text.
pub(crate) fn text_of<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn set(value: &mut Value, name: &str, to: impl Into<Value>) {
    if let Some(members) = value.as_object_mut() {
        members.insert(name.to_owned(), to.into());
    }
}

impl Store {
    /// Creates a client of a server that grants administrator rights, with timeouts by this clock.
    ///
    /// # Errors
    /// [`StoreError::Address`].
    pub fn new(server: &Local, clock: &Clock) -> Result<Store> {
        let peer = server.peer(WORKER, HeaderMap::new());
        let peer = peer.map_err(|error| StoreError::Address(error.to_string()))?;
        Ok(Store(Arc::new(peer.with_clock(clock.clone()))))
    }

    /// Sends a request and returns the status and JSON of the answer.
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

    /// Sends a request that must succeed.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        self.call_within(method, path, body, BOUNDS.time_max).await
    }

    /// Sends a request that must succeed within a time.
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

    /// Creates the database and the queue's design document if they are missing.
    pub async fn ensure(&self) -> Result<()> {
        match self.call(Method::PUT, "", None).await {
            Ok(_) => tracing::info!(database = WORKER, "created the database of the worker's jobs"),
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

    /// Returns a document with its id and revision.
    pub async fn get(&self, id: &str) -> Result<Option<Value>> {
        match self.call(Method::GET, &format!("/{}", encode_segment(id)), None).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a document over the revision that it names and returns the new revision.
    ///
    /// # Errors
    /// [`StoreError`]; status 409 means a conflict.
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
    /// [`StoreError`]; status 409 means a conflict.
    pub async fn delete(&self, id: &str, rev: &str) -> Result<()> {
        let path = format!("/{}?rev={}", encode_segment(id), encode_segment(rev));
        self.call(Method::DELETE, &path, None).await.map(drop)
    }

    /// Updates a document and retries on conflicts. `change` returns whether the document must be written. `None`: the
    /// document does not exist.
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

    /// Deletes the documents of a `_find` result, except those changed since, and returns their number.
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

    /// Passes the documents from `begin` to `end` to `take`.
    pub async fn walk(&self, begin: &str, end: &str, mut take: impl FnMut(Value)) -> Result<()> {
        let mut from = (begin.to_owned(), false);
        while let Some(next) = self.page(&from, end, 50, &mut take).await? {
            from = (next, true);
        }
        Ok(())
    }

    /// Returns a page of documents from an id on, or after it, and the last id unless the page was the last.
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

/// Returns the `_find` request for expired entries of a job in a state.
pub(crate) fn expired(job: &str, state: &str, now: u64, limit: u64) -> Value {
    let due = json!({"$gt": 0, "$lte": now});
    let selector = json!({"type": "dlq", "job": job, "state": state, "expires_at": due});
    json!({"selector": selector, "use_index": [DESIGN, EXPIRY], "fields": ["_id", "_rev"], "limit": limit})
}

/// A filter of queue entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The job.
    pub job: Option<String>,
    /// The reason.
    pub reason: Option<String>,
    /// The state.
    pub state: Option<String>,
    /// The earliest time of the first failure, in seconds of Unix time.
    pub since: Option<u64>,
    /// The latest time of the first failure, in seconds of Unix time.
    pub until: Option<u64>,
}

impl Filter {
    /// Returns whether the filter matches all entries.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Returns the selector, and the index that answers it with its members.
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

    pub(crate) fn find(&self, fields: &[&str], limit: u64) -> Value {
        let (selector, index, by) = self.selector();
        let sort: Vec<Value> = by.iter().map(|name| json!({*name: "asc"})).collect();
        json!({"selector": selector, "use_index": index, "sort": sort, "fields": fields, "limit": limit})
    }
}
