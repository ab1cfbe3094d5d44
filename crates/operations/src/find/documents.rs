//! Reads the documents of a page together, matches them by their rows, and returns the selected ones.

use std::collections::VecDeque;
use std::time::Duration;

use flatbed_databases::document::attachments::Attachment;
use flatbed_databases::document::body::Rows;
use flatbed_databases::document::edit::Document;
use flatbed_databases::document::latest::{LatestRead, begin_latest_of, whole_body};
use flatbed_databases::document::text::digest;
use flatbed_flatten::DecodeError;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_mango::{BESIDE, Interrupts, MatchInterrupted, Progress, RowSelector, RowsError, Selector, slice_steps};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::records::Info;
use flatbed_store::seq::STAMP_BYTES;
use foundationdb::FdbResult;
use foundationdb::future::FdbValues;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::find::query::{Query, Stop};
use crate::index::json::key::special;
use crate::index::maintainers::IndexContext;
use crate::read::get::{KnownDocument, read_ahead, shown};

/// The least number of concurrent reads of documents, so that a page of an answer takes one round trip.
const READ_AHEAD_MIN: usize = 64;

/// The bytes that each document's first read returns, until documents are known to be small.
const FIRST_BYTES: usize = 16_000;

/// The time after which a match yields to other tasks.
const TURN: Duration = Duration::from_millis(2);

/// The number of times that a match begins again because its document has changed. The last of them does not pause: a
/// document that changes faster than its match would never be passed. It takes at most some tenths of a second, at the
/// very worst two seconds, as each match does.
const RESTARTS_MAX: u32 = 2;

/// A paused match of a document, and the position to resume at.
#[derive(Debug, Clone)]
pub struct PausedMatch {
    id: String,
    /// The document's last change. If the document has changed since, the match begins again.
    stamp: [u8; STAMP_BYTES],
    progress: Progress,
    restarts: u32,
}

pub struct Matcher<'a> {
    within: &'a IndexContext<'a>,
    selector: &'a Selector,
    rows: RowSelector<'a>,
    /// True if the selector tests members beside the body.
    asks_beside: bool,
    conflicts: bool,
    stop: Option<&'a Stop>,
    has_waiters: Option<&'a Stop>,
    paused: Option<PausedMatch>,
    turn: Instant,
    matched: Duration,
}

impl<'a> Matcher<'a> {
    /// `paused`: the match of an earlier transaction to resume.
    pub fn new(
        within: &'a IndexContext<'a>,
        selector: &'a Selector,
        query: &'a Query,
        paused: Option<PausedMatch>,
    ) -> Self {
        let rows = selector.for_rows(&within.instance.fields.view());
        let asks_beside = BESIDE.iter().any(|member| selector.asks_about(member));
        let turn = within.trx.clock().now();
        Matcher {
            within,
            selector,
            rows,
            asks_beside,
            conflicts: query.conflicts,
            stop: query.stop.as_ref(),
            has_waiters: query.has_waiters.as_ref(),
            paused,
            turn,
            matched: Duration::ZERO,
        }
    }

    pub fn take_paused(&mut self) -> Option<PausedMatch> {
        self.paused.take()
    }

    pub fn matched(&self) -> Duration {
        self.matched
    }

    /// Returns whether other processes may have given ids to names that this one lacks.
    pub fn lacks_ids(&self) -> bool {
        self.rows.lacks_ids()
    }

    /// Returns whether a document is selected. `None`: its slice is over and other work waits for a turn; see
    /// [`Matcher::take_paused`].
    pub async fn selects(&mut self, id: &str, found: &(Info, Rows)) -> Result<Option<bool>> {
        let clock = self.within.trx.clock();
        if clock.since(self.turn) > TURN {
            tokio::task::yield_now().await;
            self.turn = clock.now();
        }
        // The selector itself checks `stop` only within a slow match.
        if self.stop.is_some_and(|stop| stop()) {
            return Err(Refusal::SelectorExhausted.into());
        }
        let (info, rows) = found;
        let (mut progress, restarts) = match self.paused.take().filter(|paused| paused.id == id) {
            Some(paused) if paused.stamp == info.stamp => (paused.progress, paused.restarts),
            Some(paused) => (Progress::default(), paused.restarts.saturating_add(1)),
            None => (Progress::default(), 0),
        };
        let pauses = self.has_waiters.is_some() && restarts < RESTARTS_MAX;
        let mut is_reloaded = false;
        let document = if self.asks_beside && (info.has_attachments || self.conflicts && info.leaf_count > 1) {
            let IndexContext { inner, trx, instance } = *self.within;
            let document = Box::pin(shown(found, trx, inner, instance, id, self.conflicts.into())).await?;
            Some(whole(&document)?)
        } else {
            None
        };
        let selected = loop {
            let of_slice = |matcher: &Self, interrupts: Interrupts<'_>| -> std::result::Result<bool, RowsError> {
                if let Some(document) = &document {
                    return Ok(matcher.selector.matches_in_slices(document, &mut progress, interrupts)?);
                }
                let names = matcher.within.instance.fields.view();
                let special = || special(id, &info.winner);
                matcher.rows.matches_in_slices(rows.iter(), names, special, &mut progress, interrupts)
            };
            match self.slice(info, of_slice) {
                Err(RowsError::Decode(DecodeError::UnknownFieldId(_))) if !is_reloaded => {
                    let IndexContext { inner, instance, .. } = *self.within;
                    Box::pin(instance.reload_names(inner)).await?;
                    self.rows = self.selector.for_rows(&instance.fields.view());
                    is_reloaded = true;
                }
                // A query shares the runtime's threads, also while it keeps its turn or without turns.
                Err(RowsError::Exhausted(MatchInterrupted::Paused)) if !pauses => {
                    tokio::task::yield_now().await;
                }
                done => break done,
            }
        };
        match selected {
            Ok(is_selected) => Ok(Some(is_selected)),
            Err(RowsError::Exhausted(MatchInterrupted::Paused)) => {
                self.paused = Some(PausedMatch { id: id.to_owned(), stamp: info.stamp, progress, restarts });
                Ok(None)
            }
            Err(RowsError::Exhausted(MatchInterrupted::TooLong | MatchInterrupted::Stopped)) => {
                Err(Refusal::SelectorExhausted.into())
            }
            Err(RowsError::Decode(error)) => Err(Error::Corrupt(format!("the body of {id:?}: {error}"))),
        }
    }

    fn slice(
        &mut self,
        info: &Info,
        matches: impl FnOnce(&Self, Interrupts<'_>) -> std::result::Result<bool, RowsError>,
    ) -> std::result::Result<bool, RowsError> {
        let (stop, pause) = (self.stop, self.has_waiters);
        let (stop, pause) = (|| stop.is_some_and(|stop| stop()), || pause.is_none_or(|pause| pause()));
        let steps = slice_steps(usize::try_from(info.stored_bytes).unwrap_or(usize::MAX));
        let clock = self.within.trx.clock();
        let began = clock.now();
        let matched = matches(&*self, Interrupts { stop: &stop, pause: &pause, steps });
        self.matched += clock.since(began);
        matched
    }

    /// Returns whether the document of an index's fields, which is small, is selected. Its match does not pause.
    pub fn selects_value(&mut self, document: &Value<'_>) -> Result<bool> {
        let (clock, stop) = (self.within.trx.clock(), || self.stop.is_some_and(|stop| stop()));
        let began = clock.now();
        let selects = self.selector.matches_unless(document, &stop);
        self.matched += clock.since(began);
        selects.map_err(|_| Refusal::SelectorExhausted.into())
    }
}

/// Returns a document as selectors see it, with its special members.
fn whole(document: &Document) -> Result<Value<'static>> {
    let text = [b"{", document.body.as_slice(), b"}"].concat();
    let body = parse(&text, &Limits::default()).map_err(|error| Error::Corrupt(error.to_string()))?;
    let Value::Object(mut members) = special(&document.id, &document.rev) else { return Ok(Value::Null) };
    if let Value::Object(body) = body.into_owned() {
        members.extend(body);
    }
    if !document.attachments.is_empty() {
        let all = document.attachments.iter().map(|one| (one.name.clone().into(), stub(one))).collect();
        members.push(("_attachments".into(), Value::Object(all)));
    }
    if let Some(conflicts) = document.conflicts.as_ref().filter(|conflicts| !conflicts.is_empty()) {
        let revs = conflicts.iter().map(|rev| Value::String(rev.to_string().into())).collect();
        members.push(("_conflicts".into(), Value::Array(revs)));
    }
    Ok(Value::Object(members))
}

fn stub(attachment: &Attachment) -> Value<'static> {
    let number = |number: u64| Value::Number(number.to_string().into());
    Value::Object(vec![
        ("content_type".into(), Value::String(attachment.content_type.clone().into())),
        ("revpos".into(), number(attachment.revpos)),
        ("digest".into(), Value::String(digest(attachment).into())),
        ("length".into(), number(attachment.length)),
        ("stub".into(), Value::Bool(true)),
    ])
}

/// Reads documents in order and ahead, except those that are already known.
pub struct Documents<'a> {
    within: &'a IndexContext<'a>,
    ids: &'a [&'a str],
    known: Vec<KnownDocument>,
    ahead: usize,
    reads: VecDeque<(usize, LatestRead<BoxFuture<'static, FdbResult<FdbValues>>>)>,
    bytes: usize,
}

impl<'a> Documents<'a> {
    pub fn new(within: &'a IndexContext<'a>, ids: &'a [&'a str], mut known: Vec<KnownDocument>) -> Self {
        known.resize_with(ids.len(), KnownDocument::default);
        Documents { within, ids, known, ahead: 0, reads: VecDeque::new(), bytes: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the document at `at`, which must be behind all earlier calls.
    pub async fn get(&mut self, at: usize) -> Result<Option<(Info, Rows)>> {
        let IndexContext { trx, instance, .. } = *self.within;
        let found = match self.known.get_mut(at).map(std::mem::take).unwrap_or_default() {
            KnownDocument::Absent => None,
            KnownDocument::Found(info, rows) => Some(Box::pin(whole_body(trx, instance, *info, rows)).await?),
            KnownDocument::Unread => {
                if self.ahead <= at {
                    self.reads.clear();
                    self.ahead = at;
                }
                let (width, target_bytes) = match read_ahead(self.bytes, at) {
                    (width, _) if width < READ_AHEAD_MIN => (READ_AHEAD_MIN, FIRST_BYTES),
                    small => small,
                };
                while self.reads.len() < width
                    && let Some(id) = self.ids.get(self.ahead)
                {
                    if matches!(self.known.get(self.ahead), Some(KnownDocument::Unread)) {
                        let read = begin_latest_of(trx, instance, id, target_bytes).boxed();
                        self.reads.push_back((self.ahead, read));
                    }
                    self.ahead += 1;
                }
                // The caller may have skipped some documents before it.
                while self.reads.front().is_some_and(|(of, _)| *of < at) {
                    self.reads.pop_front();
                }
                match self.reads.pop_front() {
                    Some((_, read)) => Box::pin(read.finish(trx, instance)).await?,
                    None => None,
                }
            }
        };
        self.bytes += found.as_ref().map_or(0, |(info, _)| usize::try_from(info.stored_bytes).unwrap_or(usize::MAX));
        Ok(found)
    }
}
