//! Sources over HTTP: the `_changes` of CouchDB and of Sync Gateway.

mod live;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_flatten::json::{Limits, Value, parse, to_string};
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};
use serde_json::json;

use crate::change::{ChangeContent, ChangePage, MalformedAnswer, next_page};
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity};
use crate::documents::{ChangesFeed, FeedType, SourceType};
use crate::peer::{Answer, Bounds, Peer, PeerError};
use live::Live;

/// The timeout for a page; added to the wait for a page that waits for changes.
const PAGE_TIME_MAX: Duration = Duration::from_secs(300);

const SHORT: Bounds = Bounds { bytes_max: 1 << 20, time_max: Duration::from_secs(60) };

/// The time that a request waits for changes.
pub const WAIT: Duration = Duration::from_secs(25);

/// The most documents per `_bulk_get`, for rows without documents.
const BULK_MAX: usize = 100;

const POLL_SECONDS: f64 = 10.0;

/// The error of a request to a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The source is unreachable.
    #[error("the source: {0}")]
    Peer(#[from] PeerError),
    /// The source answers with an error status.
    #[error("the source answers {0}")]
    Status(u16),
    /// The answer is malformed.
    #[error(transparent)]
    MalformedAnswer(#[from] MalformedAnswer),
}

/// The limits of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    /// The most rows.
    pub limit: usize,
    /// The most bytes. A longer page yields [`PeerError::TooLarge`].
    pub bytes_max: usize,
    /// True if the request waits for changes when there are none.
    pub is_to_wait: bool,
}

/// A run's source.
pub trait Source: Send + Sync + 'static {
    /// Returns the database's identity and the current end of its feed.
    fn identity(&self) -> impl Future<Output = Result<(SourceIdentity, Seq), SourceError>> + Send;

    /// Reads the rows after a position.
    fn page(&self, since: &Seq, ask: PageLimits) -> impl Future<Output = Result<ChangePage, SourceError>> + Send;

    /// Reads a page as [`Source::page`] does. Sends the position of the following page to `next` as soon as it is known
    /// and if there is more, so that the caller can request that page while this one is still parsed. The position may
    /// be wrong; the returned page is authoritative.
    fn page_and(
        &self,
        since: &Seq,
        ask: PageLimits,
        next: impl FnOnce(Seq) + Send,
    ) -> impl Future<Output = Result<ChangePage, SourceError>> + Send {
        drop(next);
        self.page(since, ask)
    }

    /// Returns a document's newest state as JSON text; `None` if the job has no access to one.
    ///
    /// # Errors
    /// [`SourceError`]; [`PeerError::TooLarge`] beyond `bytes_max`.
    fn document(&self, id: &str, bytes_max: usize) -> impl Future<Output = Result<Option<String>, SourceError>> + Send;

    /// Returns an attachment of a document's revision; `None` if the revision has no such attachment.
    ///
    /// # Errors
    /// [`SourceError`]; [`PeerError::TooLarge`] beyond the limit.
    fn attachment(
        &self,
        id: &str,
        rev: &str,
        name: &str,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Option<Bytes>, SourceError>> + Send;

    /// Returns a checkpoint at the source, with its revision.
    fn checkpoint(&self, id: &str) -> impl Future<Output = Result<Option<(Checkpoint, String)>, SourceError>> + Send;

    /// Writes a checkpoint over revision `rev` and returns the new revision.
    ///
    /// # Errors
    /// [`SourceError`]; [`SourceError::Status`] 409 on a conflict.
    fn write_checkpoint(
        &self,
        id: &str,
        checkpoint: &Checkpoint,
        rev: Option<&str>,
    ) -> impl Future<Output = Result<String, SourceError>> + Send;
}

/// A database over HTTP.
#[derive(Debug)]
pub struct HttpSource {
    peer: Peer,
    kind: SourceType,
    feed: ChangesFeed,
    live: tokio::sync::Mutex<Option<Live>>,
    /// True if the source lacks `_bulk_get` or answers it in another form than JSON.
    has_no_bulk: AtomicBool,
}

impl HttpSource {
    /// Creates a source from a peer whose URL is the database's.
    pub fn new(peer: Peer, kind: SourceType, feed: ChangesFeed) -> HttpSource {
        HttpSource { peer, kind, feed, live: tokio::sync::Mutex::default(), has_no_bulk: AtomicBool::new(false) }
    }

    fn is_couchdb(&self) -> bool {
        matches!(self.kind, SourceType::Flatbed | SourceType::Couchdb)
    }

    async fn get(&self, path: &str, bounds: Bounds) -> Result<Answer, SourceError> {
        Ok(self.peer.call(Method::GET, path, &json_headers(), Bytes::new(), bounds).await?)
    }

    /// Builds a request for changes. A POST, if it names documents, whose ids may be too long for a path.
    fn changes(&self, feed: &str, since: &Seq) -> (Method, String, Bytes) {
        let mut path = format!("/_changes?feed={feed}&since={}", encode_segment(since.as_str()));
        let of = &self.feed;
        // A document that left one of these channels may still be in another. Only the document itself tells.
        if of.include_docs != Some(false) || !of.channels.is_empty() {
            path.push_str("&include_docs=true");
        }
        // Requests rows for documents to which the reader lost access. Sync Gateway supports it from version 3 on and
        // ignores it before.
        if self.kind != SourceType::Couchdb {
            path.push_str("&revocations=true");
        }
        if let Some(filter) = &of.filter {
            path.push_str(&format!("&filter={}", encode_segment(filter)));
        } else if !of.channels.is_empty() {
            let channels = encode_segment(&of.channels.join(","));
            path.push_str(&format!("&filter=sync_gateway%2Fbychannel&channels={channels}"));
        } else if !of.doc_ids.is_empty() {
            path.push_str("&filter=_doc_ids");
            return (Method::POST, path, Bytes::from(json!({"doc_ids": of.doc_ids}).to_string()));
        } else if let Some(selector) = &of.selector {
            path.push_str("&filter=_selector");
            return (Method::POST, path, Bytes::from(json!({"selector": selector}).to_string()));
        }
        (Method::GET, path, Bytes::new())
    }

    /// Reads the documents of rows that lack them, within the page's limits. The remaining ones are read one by one
    /// when they are delivered.
    async fn fill(&self, page: &mut ChangePage, mut bytes_max: usize) -> Result<(), SourceError> {
        let missing = page.changes.iter().enumerate().filter(|(_, change)| change.what == ChangeContent::ToBeRead);
        let missing: Vec<usize> = missing.map(|(at, _)| at).collect();
        for group in missing.chunks(BULK_MAX) {
            if group.len() < 2 || self.has_no_bulk.load(Ordering::Relaxed) {
                return Ok(());
            }
            let asked = group.iter().filter_map(|at| page.changes.get(*at));
            let asked: Vec<_> = asked.map(|change| json!({"id": change.id, "rev": change.rev})).collect();
            let body = Bytes::from(json!({"docs": asked}).to_string());
            let bounds = Bounds { bytes_max, time_max: PAGE_TIME_MAX };
            let answer = match self.peer.call(Method::POST, "/_bulk_get", &json_headers(), body, bounds).await {
                Err(PeerError::TooLarge(_)) => return Ok(()),
                answer => answer?,
            };
            match answer.status {
                200 => {}
                400 | 404 | 405 | 406 | 415 | 501 => {
                    self.has_no_bulk.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                status => return Err(SourceError::Status(status)),
            }
            let Ok(value) = parse(&answer.body, &Limits::default()) else {
                // Sync Gateway answers in multipart MIME.
                self.has_no_bulk.store(true, Ordering::Relaxed);
                return Ok(());
            };
            let Some(Value::Array(results)) = value.get("results") else {
                return Err(MalformedAnswer("the answer of `_bulk_get` has no `results`").into());
            };
            for (at, result) in group.iter().zip(results) {
                let Some(change) = page.changes.get_mut(*at) else { continue };
                let docs = match result.get("docs") {
                    Some(Value::Array(docs)) => docs.as_slice(),
                    _ => &[],
                };
                let found = docs.iter().find_map(|doc| doc.get("ok"));
                // A document of another revision is read at its turn.
                let is_it = |doc: &&Value<'_>| {
                    let is = |name: &str, text: &str| doc.get(name).and_then(Value::as_str) == Some(text);
                    is("_id", &change.id) && is("_rev", &change.rev)
                };
                let Some(doc) = found.filter(is_it) else { continue };
                change.what = if doc.get("_deleted") == Some(&Value::Bool(true)) {
                    ChangeContent::Deleted
                } else if is_hidden(doc) {
                    ChangeContent::Removed
                } else {
                    ChangeContent::Changed(to_string(doc))
                };
            }
            bytes_max = bytes_max.saturating_sub(answer.body.len());
        }
        Ok(())
    }
}

/// Returns a document's path. The id of a design document keeps its slash.
fn path_of(id: &str) -> String {
    match id.strip_prefix("_design/") {
        Some(name) => format!("/_design/{}", encode_segment(name)),
        None => format!("/{}", encode_segment(id)),
    }
}

/// Returns whether the document is a placeholder for one that left the reader's channels.
fn is_hidden(doc: &Value<'_>) -> bool {
    doc.get("_removed") == Some(&Value::Bool(true))
}

fn json_headers() -> HeaderMap {
    let json = HeaderValue::from_static("application/json");
    [(header::ACCEPT, json.clone()), (header::CONTENT_TYPE, json)].into_iter().collect()
}

impl Source for HttpSource {
    async fn identity(&self) -> Result<(SourceIdentity, Seq), SourceError> {
        // Sync Gateway redirects requests without the slash.
        let answer = self.get(if self.is_couchdb() { "" } else { "/" }, SHORT).await?;
        if answer.status != 200 {
            return Err(SourceError::Status(answer.status));
        }
        let value = parse(&answer.body, &Limits::default())
            .map_err(|_| MalformedAnswer("the database's information is not JSON"))?;
        let update_seq = value.get("update_seq").or(value.get("committed_update_seq")).and_then(Seq::of);
        let update_seq = update_seq.ok_or(MalformedAnswer("it does not say where its feed ends"))?;
        let text = |name: &str| match value.get(name) {
            Some(Value::String(text) | Value::Number(text)) if text.len() <= 1_000 => Some(text.clone().into_owned()),
            _ => None,
        };
        // Sync Gateway reports the time at which its process began to serve the database.
        let instance = if self.is_couchdb() { text("instance_start_time") } else { None };
        let incarnation = update_seq.incarnation().filter(|_| self.is_couchdb()).map(str::to_owned);
        Ok((SourceIdentity { instance, server: text("server_uuid"), incarnation }, update_seq))
    }

    async fn page(&self, since: &Seq, ask: PageLimits) -> Result<ChangePage, SourceError> {
        self.page_and(since, ask, drop).await
    }

    async fn page_and(
        &self,
        since: &Seq,
        ask: PageLimits,
        next: impl FnOnce(Seq) + Send,
    ) -> Result<ChangePage, SourceError> {
        let mut feed = "normal";
        if ask.is_to_wait {
            match self.feed.feed_type {
                FeedType::Longpoll => feed = "longpoll",
                FeedType::Continuous => {
                    let mut page = self.live(since, ask).await?;
                    self.fill(&mut page, ask.bytes_max).await?;
                    return Ok(page);
                }
                FeedType::Normal => {
                    // The schema limits the value to a day.
                    let seconds = self.feed.poll_interval_seconds.unwrap_or(POLL_SECONDS);
                    self.peer.clock().sleep(Duration::try_from_secs_f64(seconds).unwrap_or_default()).await;
                }
            }
        }
        let (method, mut path, body) = self.changes(feed, since);
        path.push_str(&format!("&limit={}", ask.limit.max(1)));
        if feed == "longpoll" {
            path.push_str(&format!("&timeout={}", WAIT.as_millis()));
        }
        let bounds = Bounds { bytes_max: ask.bytes_max, time_max: PAGE_TIME_MAX };
        let answer = self.peer.call(method, &path, &json_headers(), body, bounds).await?;
        if answer.status != 200 {
            return Err(SourceError::Status(answer.status));
        }
        if let Some(seq) = next_page(&answer.body) {
            next(seq);
            // Lets the receiver request the next page before this page is parsed.
            tokio::task::yield_now().await;
        }
        let mut page = ChangePage::read(&answer.body)?;
        let left = ask.bytes_max.saturating_sub(answer.body.len());
        drop(answer);
        self.fill(&mut page, left).await?;
        Ok(page)
    }

    async fn attachment(
        &self,
        id: &str,
        rev: &str,
        name: &str,
        bytes_max: usize,
    ) -> Result<Option<Bytes>, SourceError> {
        let path = format!("{}/{}?rev={}", path_of(id), encode_segment(name), encode_segment(rev));
        let bounds = Bounds { bytes_max, time_max: PAGE_TIME_MAX };
        let answer = self.peer.call(Method::GET, &path, &HeaderMap::new(), Bytes::new(), bounds).await?;
        match answer.status {
            200 => Ok(Some(answer.body)),
            404 => Ok(None),
            status => Err(SourceError::Status(status)),
        }
    }

    async fn document(&self, id: &str, bytes_max: usize) -> Result<Option<String>, SourceError> {
        let path = path_of(id);
        let answer = self.get(&path, Bounds { bytes_max, time_max: PAGE_TIME_MAX }).await?;
        match answer.status {
            200 => {
                let value =
                    parse(&answer.body, &Limits::default()).map_err(|_| MalformedAnswer("a document is no JSON"))?;
                Ok((!is_hidden(&value)).then(|| to_string(&value)))
            }
            404 => Ok(None),
            // The document is in none of the reader's channels.
            403 if !self.is_couchdb() => Ok(None),
            status => Err(SourceError::Status(status)),
        }
    }

    async fn checkpoint(&self, id: &str) -> Result<Option<(Checkpoint, String)>, SourceError> {
        let answer = self.get(&format!("/_local/{}", encode_segment(id)), SHORT).await?;
        match answer.status {
            200 => {
                let value =
                    parse(&answer.body, &Limits::default()).map_err(|_| MalformedAnswer("a checkpoint is no JSON"))?;
                let rev = value.get("_rev").and_then(Value::as_str).unwrap_or_default().to_owned();
                let checkpoint = Checkpoint::read(&answer.body).ok_or(MalformedAnswer("a checkpoint is malformed"))?;
                Ok(Some((checkpoint, rev)))
            }
            404 => Ok(None),
            status => Err(SourceError::Status(status)),
        }
    }

    async fn write_checkpoint(
        &self,
        id: &str,
        checkpoint: &Checkpoint,
        rev: Option<&str>,
    ) -> Result<String, SourceError> {
        let path = format!("/_local/{}", encode_segment(id));
        let body = Bytes::from(checkpoint.write(rev));
        let answer = self.peer.call(Method::PUT, &path, &json_headers(), body, SHORT).await?;
        if !matches!(answer.status, 200..=202) {
            return Err(SourceError::Status(answer.status));
        }
        let value = parse(&answer.body, &Limits::default())
            .map_err(|_| MalformedAnswer("the answer to a write is not JSON"))?;
        Ok(value.get("rev").and_then(Value::as_str).unwrap_or_default().to_owned())
    }
}
