//! HTTP targets: a request per document.
//!
//! Attachments that are delivered individually are sent before their document, each in a request of its own.
//!
//! There are no transactions. The endpoint may have taken some documents of a refused batch. The target remembers these
//! until the batch, or the part that contains them, has been taken whole, so that a retry sends only the rest.
//!
//! A deletion of a missing document counts as done. The documents of a batch go before its deletions, because they show
//! whether an endpoint that answers 404 knows its path at all: see `doubts`.

mod doubts;
pub mod path;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use flatbed_flatten::json::{Limits, Value, parse};
use futures_util::future::join_all;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use self::doubts::Doubts;
use self::path::{has_members, path_of};
use super::body::{Format, deletion};
use super::{Delivery, DeliveryError, DeliveryState, Target};
use crate::attachments::{Attachment, Stub};
use crate::checkpoint::Checkpoint;
use crate::failure::{Class, Failure};
use crate::mapping::Table;
use crate::peer::{Answer, Bounds, Peer, PeerError};
use crate::retry::retry_after;
use crate::rows::{Product, rows_json};

const ANSWER_BYTES_MAX: usize = 64 << 10;

const DIGEST: HeaderName = HeaderName::from_static("flatbed-digest");

/// The settings of an endpoint.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// The template of paths, appended to the peer's URL: `/in/{id}`.
    pub template: String,
    /// The method for documents.
    pub method: Method,
    /// The method for deletions.
    pub delete_method: Method,
    /// True if a deletion has a body.
    pub is_delete_with_body: bool,
    /// True if deletions are not sent.
    pub is_delete_ignored: bool,
    /// The format of bodies.
    pub format: Format,
    /// The template of paths of attachments that are delivered individually, with `{attachment}`.
    pub attachments: Option<String>,
    /// The timeout of an answer.
    pub time_max: Duration,
}

/// An endpoint.
#[derive(Debug)]
pub struct Http {
    peer: Peer,
    ways: HttpSettings,
    tables: Vec<Table>,
    at_once: usize,
    epoch: u64,
    /// The documents taken from a refused batch, by id with their sequences. One per document, since a newer change may
    /// replace it.
    taken: HashMap<String, String>,
    doubts: Doubts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointAnswer {
    /// The document is taken.
    Taken,
    /// 404 to a deletion: the document or the whole path does not exist.
    Unknown,
    /// 410 to a deletion, or deletions are not sent.
    Gone,
}

/// Returns the JSON of a document's product; `None` for a deletion.
pub(super) fn json_of(delivery: &Delivery, tables: &[Table]) -> Option<String> {
    match &delivery.state {
        DeliveryState::Is(Product::Json(text)) => Some(text.clone()),
        DeliveryState::Is(Product::Rows(rows)) => Some(rows_json(tables, rows)),
        DeliveryState::Is(Product::Nothing) | DeliveryState::Gone => None,
    }
}

fn is_gone(delivery: &Delivery) -> bool {
    matches!(delivery.state, DeliveryState::Gone | DeliveryState::Is(Product::Nothing))
}

impl Http {
    /// Creates an endpoint for a mapping with these tables and at most `at_once` concurrent requests.
    pub fn new(peer: Peer, ways: HttpSettings, tables: Vec<Table>, at_once: usize) -> Http {
        Http { peer, ways, tables, at_once: at_once.max(1), epoch: 0, taken: HashMap::new(), doubts: Doubts::default() }
    }

    async fn one(&self, delivery: &Delivery) -> Result<EndpointAnswer, DeliveryError> {
        let json = json_of(delivery, &self.tables);
        if json.is_none() && self.ways.is_delete_ignored {
            return Ok(EndpointAnswer::Gone);
        }
        let (method, text) = match &json {
            Some(json) => (self.ways.method.clone(), Some(json.clone())),
            None if self.ways.is_delete_with_body => (self.ways.delete_method.clone(), Some(deletion(&delivery.id))),
            None => (self.ways.delete_method.clone(), None),
        };
        let body = match text {
            Some(text) => self.ways.format.body(text).ok_or_else(|| {
                DeliveryError::failed(Failure::TooLarge, "the product of the document is nested too deeply")
            })?,
            None => Bytes::new(),
        };
        let (path, places) = {
            let template = self.ways.attachments.as_deref().unwrap_or_default();
            let is_needed = has_members(&self.ways.template) || has_members(template);
            let value = json.as_ref().filter(|_| is_needed);
            let value = value.and_then(|json| parse(json.as_bytes(), &Limits::default()).ok());
            let value = value.as_ref().unwrap_or(&Value::Null);
            let place = |attachment: &Attachment| path_of(template, delivery, value, Some(&attachment.stub.name));
            let places: Vec<_> = delivery.attachments.iter().map(place).collect();
            (path_of(&self.ways.template, delivery, value, None), places)
        };
        for (attachment, place) in delivery.attachments.iter().zip(places) {
            self.attach(delivery, attachment, place).await?;
        }
        let path = path
            .ok_or_else(|| DeliveryError::failed(Failure::TooLarge, "the template makes no path of this document"))?;
        let mut headers = HeaderMap::new();
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.ways.format.content_type()));
        }
        self.send(method, &path, headers, delivery, body, json.is_none()).await
    }

    /// Repeats the deletions in doubt once the endpoint is known to have lost its path when it answered them. Changes
    /// of the same documents in `batch` are newer.
    async fn settle_doubts(&mut self, batch: &[Delivery]) -> Result<(), DeliveryError> {
        if !self.doubts.is_to_be_settled() {
            return Ok(());
        }
        // A change in the batch is newer, unless it is this deletion itself, which is resent only here once it was
        // answered.
        let seqs: HashMap<&str, &str> = batch.iter().map(|it| (it.id.as_str(), it.seq.as_str())).collect();
        let is_newest = |it: &&Delivery| seqs.get(it.id.as_str()).is_none_or(|seq| *seq == it.seq);
        let again: Vec<Delivery> = self.doubts.deletions().filter(is_newest).cloned().collect();
        for group in again.chunks(self.at_once) {
            for sent in join_all(group.iter().map(|delivery| self.one(delivery))).await {
                match sent {
                    // No document of the batch is the cause. The endpoint's message may contain a secret.
                    Err(DeliveryError::Failed { failure, .. }) if failure.class() == Class::Poison => {
                        tracing::warn!(
                            status = failure.status(),
                            "an endpoint refuses a deletion that it did not know before"
                        );
                    }
                    sent => drop(sent?),
                }
            }
        }
        self.doubts.settle();
        Ok(())
    }

    async fn attach(
        &self,
        delivery: &Delivery,
        attachment: &Attachment,
        path: Option<String>,
    ) -> Result<(), DeliveryError> {
        let Attachment { stub, body: Some(body) } = attachment else { return Ok(()) };
        let path = path.ok_or_else(|| {
            DeliveryError::failed(Failure::TooLarge, "the template makes no path of an attachment of this document")
        })?;
        let mut headers = HeaderMap::new();
        let octets = || HeaderValue::from_static("application/octet-stream");
        let kind = HeaderValue::from_str(&stub.content_type).ok().filter(|kind| !kind.is_empty());
        headers.insert(header::CONTENT_TYPE, kind.unwrap_or_else(octets));
        headers.extend(HeaderValue::from_str(&stub.digest).ok().map(|digest| (DIGEST, digest)));
        self.send(self.ways.method.clone(), &path, headers, delivery, body.clone(), false).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        mut headers: HeaderMap,
        delivery: &Delivery,
        body: Bytes,
        is_deletion: bool,
    ) -> Result<EndpointAnswer, DeliveryError> {
        // `POST` and `PUT` would create the document; a path that answers 404 or 410 to them has not taken it.
        let may_be_gone = is_deletion && matches!(method, Method::DELETE | Method::PATCH);
        headers.insert("flatbed-epoch", HeaderValue::from(self.epoch));
        if let Ok(seq) = HeaderValue::from_str(&delivery.seq) {
            headers.insert("flatbed-seq", seq);
        }
        let bounds = Bounds { bytes_max: ANSWER_BYTES_MAX, time_max: self.ways.time_max };
        let answer = match self.peer.call(method, path, &headers, body, bounds).await {
            // The long body is not read; the status suffices.
            Err(PeerError::TooLarge(status)) => {
                let body = Bytes::from_static(b"an answer of more than 64 kB");
                Ok(Answer { status, retry_after: None, headers: HeaderMap::new(), body })
            }
            answer => answer,
        };
        match answer {
            Ok(answer) if (200..300).contains(&answer.status) => Ok(EndpointAnswer::Taken),
            Ok(answer) if is_deletion && answer.status == 410 => Ok(EndpointAnswer::Gone),
            Ok(answer) if may_be_gone && answer.status == 404 => Ok(EndpointAnswer::Unknown),
            Ok(answer) => {
                let now = self.peer.clock().unix_seconds();
                Err(DeliveryError::Failed {
                    failure: Failure::Http(answer.status),
                    error: String::from_utf8_lossy(&answer.body).into_owned(),
                    retry_after: answer.retry_after.as_deref().and_then(|header| retry_after(header, now)),
                })
            }
            Err(error) => Err(DeliveryError::failed(Failure::Connection, error)),
        }
    }
}

impl Target for Http {
    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        self.epoch = epoch;
        Ok(None)
    }

    /// Requests the stored attachment's headers: `Flatbed-Digest`, or an `ETag` with the same MD5, as in CouchDB.
    async fn holds(&mut self, delivery: &Delivery, stub: &Stub) -> bool {
        let Some(template) = &self.ways.attachments else { return false };
        let place = |json: String| {
            let value = parse(json.as_bytes(), &Limits::default()).ok()?;
            path_of(template, delivery, &value, Some(&stub.name))
        };
        // Runs for each attachment of a document.
        let path = if has_members(template) {
            json_of(delivery, &self.tables).and_then(place)
        } else {
            path_of(template, delivery, &Value::Null, Some(&stub.name))
        };
        let Some(path) = path else { return false };
        let bounds = Bounds { bytes_max: ANSWER_BYTES_MAX, time_max: self.ways.time_max };
        let answer = self.peer.call(Method::HEAD, &path, &HeaderMap::new(), Bytes::new(), bounds).await;
        let Ok(Answer { status: 200, headers, .. }) = answer else { return false };
        let said = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let tag = said(&header::ETAG).map(|tag| tag.trim_matches('"'));
        said(&DIGEST) == Some(&stub.digest) || tag.is_some_and(|tag| stub.digest.strip_prefix("md5-") == Some(tag))
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        self.settle_doubts(&batch).await?;
        let left = batch.iter().filter(|delivery| self.taken.get(&delivery.id) != Some(&delivery.seq));
        // Documents go first: they show whether the path exists.
        let (deletions, documents): (Vec<&Delivery>, Vec<&Delivery>) = left.partition(|delivery| is_gone(delivery));
        for group in documents.chunks(self.at_once).chain(deletions.chunks(self.at_once)) {
            let this = &*self;
            let sent = join_all(group.iter().map(|delivery| this.one(delivery))).await;
            let mut refused = None;
            for (delivery, sent) in group.iter().zip(sent) {
                match sent {
                    Ok(told) => {
                        self.doubts.note(delivery, told);
                        self.taken.insert(delivery.id.clone(), delivery.seq.clone());
                    }
                    Err(error) => {
                        self.doubts.note_refused(&error);
                        refused = refused.or(Some(error));
                    }
                }
            }
            if let Some(refused) = refused {
                return Err(refused);
            }
            self.settle_doubts(&batch).await?;
        }
        for delivery in &batch {
            self.taken.remove(&delivery.id);
        }
        Ok(())
    }
}
