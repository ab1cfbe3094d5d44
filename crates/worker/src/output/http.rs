//! An HTTP target: a request for each document.
//!
//! Attachments that are delivered by themselves go before their document, each as a request of its own.
//!
//! It has no transactions: of a batch that is refused some documents may have been taken. Which they are is remembered until the
//! batch, or the part of it that they are in, is taken whole, so that what is tried again is what is left.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_flatten::json::{Limits, Value, parse};
use futures_util::future::join_all;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::body::{Format, deletion};
use super::{Delivery, Refused, State, Target};
use crate::attachments::{Attachment, Stub};
use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::peer::{Answer, Bounds, Peer, PeerError};
use crate::retry::retry_after;
use crate::rows::{Product, rows_json};
use crate::transform::text_of;

/// What is read of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The longest path that a template makes.
const PATH_BYTES_MAX: usize = 8 << 10;

/// What tells the bytes of an attachment from others.
const DIGEST: HeaderName = HeaderName::from_static("flatbed-digest");

/// How documents are sent.
#[derive(Debug, Clone)]
pub struct Ways {
    /// Behind the peer's URL: `/in/{id}`.
    pub template: String,
    /// How a document is sent.
    pub method: Method,
    /// How a deletion is.
    pub delete_method: Method,
    /// Whether a deletion has a body.
    pub is_delete_with_body: bool,
    /// What bodies are written as.
    pub format: Format,
    /// Where attachments go that are delivered by themselves: as the document's, with `{attachment}`.
    pub attachments: Option<String>,
    /// For an answer.
    pub time_max: Duration,
}

/// An endpoint.
#[derive(Debug)]
pub struct Http {
    peer: Peer,
    ways: Ways,
    tables: Vec<Table>,
    at_once: usize,
    epoch: u64,
    /// Sequences of documents that were taken, of a batch that was not.
    taken: HashSet<String>,
}

/// The path of a document, or of an attachment of it: `{id}`, `{rev}`, `{seq}`, `{attachment}` and members of what it produces
/// (`{customer.id}`), percent-encoded. `None`: it is too long, a member is missing, or the template has a name of nothing.
pub fn path_of(template: &str, delivery: &Delivery, body: &Value<'_>, attachment: Option<&str>) -> Option<String> {
    let mut path = String::with_capacity(template.len() + delivery.id.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        path.push_str(before);
        let value = match (name, attachment) {
            ("id", _) => encode_segment(&delivery.id),
            ("doc_id", Some(_)) => encode_segment(&delivery.id),
            ("rev", _) => encode_segment(&delivery.rev),
            ("seq", _) => encode_segment(&delivery.seq),
            ("attachment" | "attachment_name", Some(attachment)) => encode_segment(attachment),
            (member, _) => {
                let found = member.split('.').try_fold(body, |value, name| value.get(name))?;
                encode_segment(&text_of(found))
            }
        };
        // Dots alone would be a path of their own to whoever makes it plain.
        if matches!(value.as_str(), "" | "." | "..") {
            return None;
        }
        path.push_str(&value);
        rest = after;
    }
    path.push_str(rest);
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}

/// What a document is as JSON; `None`: it is to be deleted.
pub(super) fn json_of(delivery: &Delivery, tables: &[Table]) -> Option<String> {
    match &delivery.state {
        State::Is(Product::Json(text)) => Some(text.clone()),
        State::Is(Product::Rows(rows)) => Some(rows_json(tables, rows)),
        State::Is(Product::Nothing) | State::Gone => None,
    }
}

impl Http {
    /// An endpoint, for a mapping with such tables, with at most so many requests at once.
    pub fn new(peer: Peer, ways: Ways, tables: Vec<Table>, at_once: usize) -> Http {
        Http { peer, ways, tables, at_once: at_once.max(1), epoch: 0, taken: HashSet::new() }
    }

    async fn one(&self, delivery: &Delivery) -> Result<(), Refused> {
        let json = json_of(delivery, &self.tables);
        let (method, text) = match &json {
            Some(json) => (self.ways.method.clone(), Some(json.clone())),
            None if self.ways.is_delete_with_body => (self.ways.delete_method.clone(), Some(deletion(&delivery.id))),
            None => (self.ways.delete_method.clone(), None),
        };
        let body = match text {
            Some(text) => self.ways.format.body(text).ok_or_else(|| {
                Refused::failed(Failure::TooLarge, "what the document produces is too deep to be written")
            })?,
            None => Bytes::new(),
        };
        let (path, places) = {
            let value = json.as_ref().and_then(|json| parse(json.as_bytes(), &Limits::default()).ok());
            let value = value.as_ref().unwrap_or(&Value::Null);
            let template = self.ways.attachments.as_deref().unwrap_or_default();
            let place = |attachment: &Attachment| path_of(template, delivery, value, Some(&attachment.stub.name));
            let places: Vec<_> = delivery.attachments.iter().map(place).collect();
            (path_of(&self.ways.template, delivery, value, None), places)
        };
        for (attachment, place) in delivery.attachments.iter().zip(places) {
            self.attach(delivery, attachment, place).await?;
        }
        // A deletion cannot be sent to a place that the document's members name: nobody knows them any more.
        let path =
            path.ok_or_else(|| Refused::failed(Failure::TooLarge, "the template makes no path of this document"))?;
        let mut headers = HeaderMap::new();
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.ways.format.content_type()));
        }
        self.send(method, &path, headers, delivery, body, json.is_none()).await
    }

    /// Sends an attachment that the endpoint does not have.
    async fn attach(&self, delivery: &Delivery, attachment: &Attachment, path: Option<String>) -> Result<(), Refused> {
        let Attachment { stub, body: Some(body) } = attachment else { return Ok(()) };
        let path = path.ok_or_else(|| {
            Refused::failed(Failure::TooLarge, "the template makes no path of an attachment of this document")
        })?;
        let mut headers = HeaderMap::new();
        let octets = || HeaderValue::from_static("application/octet-stream");
        let kind = HeaderValue::from_str(&stub.content_type).ok().filter(|kind| !kind.is_empty());
        headers.insert(header::CONTENT_TYPE, kind.unwrap_or_else(octets));
        headers.extend(HeaderValue::from_str(&stub.digest).ok().map(|digest| (DIGEST, digest)));
        self.send(self.ways.method.clone(), &path, headers, delivery, body.clone(), false).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        mut headers: HeaderMap,
        delivery: &Delivery,
        body: Bytes,
        is_deletion: bool,
    ) -> Result<(), Refused> {
        headers.insert("flatbed-epoch", HeaderValue::from(self.epoch));
        if let Ok(seq) = HeaderValue::from_str(&delivery.seq) {
            headers.insert("flatbed-seq", seq);
        }
        let bounds = Bounds { bytes_max: ANSWER_BYTES_MAX, time_max: self.ways.time_max };
        let answer = match self.peer.call(method, path, &headers, body, bounds).await {
            // What it says at such length is not read, and what it means is known.
            Err(PeerError::TooLarge(status)) => {
                let body = Bytes::from_static(b"an answer of more than 64 kB");
                Ok(Answer { status, retry_after: None, headers: HeaderMap::new(), body })
            }
            answer => answer,
        };
        match answer {
            Ok(answer) if (200..300).contains(&answer.status) => Ok(()),
            // What is to go is not there.
            Ok(answer) if is_deletion && matches!(answer.status, 404 | 410) => Ok(()),
            Ok(answer) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                Err(Refused::Failed {
                    failure: Failure::Http(answer.status),
                    error: String::from_utf8_lossy(&answer.body).into_owned(),
                    retry_after: answer.retry_after.as_deref().and_then(|header| retry_after(header, now)),
                })
            }
            Err(error) => Err(Refused::failed(Failure::Connection, error)),
        }
    }
}

impl Target for Http {
    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, Refused> {
        self.epoch = epoch;
        Ok(None)
    }

    /// Asks for the head of what it stored: its `Flatbed-Digest`, or an `ETag` with the same MD5, as CouchDB has.
    async fn holds(&mut self, delivery: &Delivery, stub: &Stub) -> bool {
        let Some(template) = &self.ways.attachments else { return false };
        let place = |json: String| {
            let value = parse(json.as_bytes(), &Limits::default()).ok()?;
            path_of(template, delivery, &value, Some(&stub.name))
        };
        let Some(path) = json_of(delivery, &self.tables).and_then(place) else { return false };
        let bounds = Bounds { bytes_max: ANSWER_BYTES_MAX, time_max: self.ways.time_max };
        let answer = self.peer.call(Method::HEAD, &path, &HeaderMap::new(), Bytes::new(), bounds).await;
        let Ok(Answer { status: 200, headers, .. }) = answer else { return false };
        let said = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let tag = said(&header::ETAG).map(|tag| tag.trim_matches('"'));
        said(&DIGEST) == Some(&stub.digest) || tag.is_some_and(|tag| stub.digest.strip_prefix("md5-") == Some(tag))
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), Refused> {
        let left: Vec<&Delivery> = batch.iter().filter(|delivery| !self.taken.contains(&delivery.seq)).collect();
        for group in left.chunks(self.at_once) {
            let this = &*self;
            let sent = join_all(group.iter().map(|delivery| this.one(delivery))).await;
            let mut refused = None;
            for (delivery, sent) in group.iter().zip(sent) {
                match sent {
                    Ok(()) => {
                        self.taken.insert(delivery.seq.clone());
                    }
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            if let Some(refused) = refused {
                return Err(refused);
            }
        }
        for delivery in &batch {
            self.taken.remove(&delivery.seq);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_where_their_template_puts_them() {
        let delivery = |id: &str| Delivery {
            id: id.to_owned(),
            rev: "1-x".to_owned(),
            seq: "7".to_owned(),
            state: State::Gone,
            attachments: Vec::new(),
        };
        let body = parse(br#"{"customer":{"id":7},"name":"a/b?c"}"#, &Limits::default()).unwrap();
        let path = |template: &str, id: &str| path_of(template, &delivery(id), &body, None);
        assert_eq!(path("/in/{id}", "order::1/2").as_deref(), Some("/in/order%3A%3A1%2F2"));
        assert_eq!(
            path("/{customer.id}/{name}?rev={rev}&seq={seq}", "a").as_deref(),
            Some("/7/a%2Fb%3Fc?rev=1-x&seq=7")
        );
        assert_eq!(path("/x", "a").as_deref(), Some("/x"));
        let of = |name: &str| path_of("/in/{doc_id}/{attachment}", &delivery("a/b"), &body, Some(name));
        assert_eq!(of("c d/../e.png").as_deref(), Some("/in/a%2Fb/c%20d%2F..%2Fe.png"));
        assert_eq!([of(".."), path("/{id}/{attachment}", "a")], [None, None]);
        for (template, id) in [("/{id}", ".."), ("/{id}", "."), ("/{gone}", "a"), ("/{customer.x}", "a"), ("/{id", "a")]
        {
            assert_eq!(path(template, id), None, "{template} {id}");
        }
        assert_eq!(path("/{id}", &"a".repeat(PATH_BYTES_MAX)), None);
    }
}
