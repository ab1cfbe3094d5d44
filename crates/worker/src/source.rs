//! A source over HTTP: CouchDB's `_changes`, and Sync Gateway's.

use std::time::Duration;

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_flatten::json::{Limits, Value, parse};
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};

use crate::change::{Nonsense, Page};
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity};
use crate::documents::{ChangesFeed, SourceType};
use crate::peer::{Answer, Bounds, Peer, PeerError};
use crate::transform::json_of;

/// The longest page.
const PAGE_BYTES_MAX: usize = 64 << 20;

/// For a page that is there, and for one that is waited for beyond the wait.
const PAGE_TIME_MAX: Duration = Duration::from_secs(300);

/// Answers that are short.
const SHORT: Bounds = Bounds { bytes_max: 1 << 20, time_max: Duration::from_secs(60) };

/// For how long a source is waited for that has no changes.
pub const WAIT: Duration = Duration::from_secs(25);

/// Why a source did not answer what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It cannot be reached, or not now.
    #[error("the source: {0}")]
    Peer(#[from] PeerError),
    /// Its status says no.
    #[error("the source answers {0}")]
    Status(u16),
    /// It answers something else.
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
}

/// What a job asks of a source.
pub trait Source: Send {
    /// Which database it is, and where its feed ends now.
    ///
    /// # Errors
    /// [`SourceError`].
    fn identity(&mut self) -> impl Future<Output = Result<(SourceIdentity, Seq), SourceError>> + Send;

    /// The next rows behind a place, at most `limit`; `is_to_wait`: where there are none it waits some time for one.
    ///
    /// # Errors
    /// [`SourceError`].
    fn page(
        &mut self,
        since: &Seq,
        limit: usize,
        is_to_wait: bool,
    ) -> impl Future<Output = Result<Page, SourceError>> + Send;

    /// A document's newest state as JSON text; `None` where there is none that the job may see.
    ///
    /// # Errors
    /// [`SourceError`].
    fn document(&mut self, id: &str) -> impl Future<Output = Result<Option<String>, SourceError>> + Send;

    /// A checkpoint at the source, with its revision.
    ///
    /// # Errors
    /// [`SourceError`].
    fn checkpoint(
        &mut self,
        id: &str,
    ) -> impl Future<Output = Result<Option<(Checkpoint, String)>, SourceError>> + Send;

    /// Writes one, in the place of that revision; gives the new one.
    ///
    /// # Errors
    /// [`SourceError`]; [`SourceError::Status`] 409 where another one wrote it.
    fn write_checkpoint(
        &mut self,
        id: &str,
        checkpoint: &Checkpoint,
        rev: Option<&str>,
    ) -> impl Future<Output = Result<String, SourceError>> + Send;
}

/// A database behind HTTP.
#[derive(Debug)]
pub struct HttpSource {
    peer: Peer,
    kind: SourceType,
    feed: ChangesFeed,
}

impl HttpSource {
    /// Of a peer whose URL is the database's.
    pub fn new(peer: Peer, kind: SourceType, feed: ChangesFeed) -> HttpSource {
        HttpSource { peer, kind, feed }
    }

    async fn get(&self, path: &str, bounds: Bounds) -> Result<Answer, SourceError> {
        Ok(self.peer.call(Method::GET, path, &json_headers(), Bytes::new(), bounds).await?)
    }

    fn changes_path(&self, since: &Seq, limit: usize, is_to_wait: bool) -> String {
        let feed = if is_to_wait { "longpoll" } else { "normal" };
        let mut path =
            format!("/_changes?feed={feed}&include_docs=true&limit={limit}&since={}", encode_segment(since.as_str()));
        if is_to_wait {
            path.push_str(&format!("&timeout={}", WAIT.as_millis()));
        }
        match (&self.feed.filter, self.feed.channels.is_empty()) {
            (Some(filter), _) => path.push_str(&format!("&filter={}", encode_segment(filter))),
            (None, false) => {
                let channels = self.feed.channels.join(",");
                path.push_str(&format!("&filter=sync_gateway%2Fbychannel&channels={}", encode_segment(&channels)));
            }
            (None, true) => {}
        }
        path
    }
}

fn json_headers() -> HeaderMap {
    let json = HeaderValue::from_static("application/json");
    [(header::ACCEPT, json.clone()), (header::CONTENT_TYPE, json)].into_iter().collect()
}

impl Source for HttpSource {
    async fn identity(&mut self) -> Result<(SourceIdentity, Seq), SourceError> {
        let answer = self.get("", SHORT).await?;
        if answer.status != 200 {
            return Err(SourceError::Status(answer.status));
        }
        let value =
            parse(&answer.body, &Limits::default()).map_err(|_| Nonsense("what it says of its database is no JSON"))?;
        let update_seq = value.get("update_seq").or(value.get("committed_update_seq")).and_then(Seq::of);
        let update_seq = update_seq.ok_or(Nonsense("it does not say where its feed ends"))?;
        let text = |name: &str| match value.get(name) {
            Some(Value::String(text) | Value::Number(text)) if text.len() <= 1_000 => Some(text.clone().into_owned()),
            _ => None,
        };
        // Sync Gateway's is the moment at which its process began to serve the database.
        let instance = match self.kind {
            SourceType::Flatbed | SourceType::Couchdb => text("instance_start_time"),
            _ => None,
        };
        Ok((SourceIdentity { instance, server: text("server_uuid") }, update_seq))
    }

    async fn page(&mut self, since: &Seq, limit: usize, is_to_wait: bool) -> Result<Page, SourceError> {
        let mut limit = limit.max(1);
        loop {
            let bounds = Bounds { bytes_max: PAGE_BYTES_MAX, time_max: PAGE_TIME_MAX };
            match self.get(&self.changes_path(since, limit, is_to_wait), bounds).await {
                Ok(answer) if answer.status == 200 => return Ok(Page::read(&answer.body)?),
                Ok(answer) => return Err(SourceError::Status(answer.status)),
                // Fewer rows, down to a single one.
                Err(SourceError::Peer(PeerError::TooLarge)) if limit > 1 => limit = (limit / 8).max(1),
                Err(error) => return Err(error),
            }
        }
    }

    async fn document(&mut self, id: &str) -> Result<Option<String>, SourceError> {
        // What a design document is called keeps its slash.
        let path = match id.strip_prefix("_design/") {
            Some(name) => format!("/_design/{}", encode_segment(name)),
            None => format!("/{}", encode_segment(id)),
        };
        let answer = self.get(&path, Bounds { bytes_max: PAGE_BYTES_MAX, time_max: PAGE_TIME_MAX }).await?;
        match answer.status {
            200 => {
                let value = parse(&answer.body, &Limits::default()).map_err(|_| Nonsense("a document is no JSON"))?;
                Ok(Some(json_of(&value)))
            }
            404 => Ok(None),
            status => Err(SourceError::Status(status)),
        }
    }

    async fn checkpoint(&mut self, id: &str) -> Result<Option<(Checkpoint, String)>, SourceError> {
        let answer = self.get(&format!("/_local/{}", encode_segment(id)), SHORT).await?;
        match answer.status {
            200 => {
                let value = parse(&answer.body, &Limits::default()).map_err(|_| Nonsense("a checkpoint is no JSON"))?;
                let rev = value.get("_rev").and_then(Value::as_str).unwrap_or_default().to_owned();
                let checkpoint = Checkpoint::read(&answer.body).ok_or(Nonsense("a checkpoint is none"))?;
                Ok(Some((checkpoint, rev)))
            }
            404 => Ok(None),
            status => Err(SourceError::Status(status)),
        }
    }

    async fn write_checkpoint(
        &mut self,
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
        let value =
            parse(&answer.body, &Limits::default()).map_err(|_| Nonsense("what it says of a write is no JSON"))?;
        Ok(value.get("rev").and_then(Value::as_str).unwrap_or_default().to_owned())
    }
}
