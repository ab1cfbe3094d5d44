//! Parameters and forms that `_changes` and `_db_updates` share.

use std::time::Duration;

use flatbed_http::{Reply, Sender};
use flatbed_layer::Since;
use flatbed_service::Follow;
use hyper::header::{self, HeaderName};

use crate::error::{Failure, Result};
use crate::metrics::FeedKind;
use crate::query::Query;
use crate::reply::Interrupted;

/// The header with which a browser resumes an event source.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// CouchDB's default `limit`, which determines the rows that carry their sequence.
const LIMIT_WITHOUT: u64 = 1_000_000_000_000_000;

/// The default and maximum of a feed's timeout and heartbeat interval (CouchDB's `changes_timeout`).
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The shortest heartbeat interval.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
    /// Flatbed's extension, with the rows of a continuous feed.
    WebSocket,
}

impl Feed {
    pub(crate) fn from_name(name: Option<&str>) -> Option<Feed> {
        match name {
            None | Some("normal") => Some(Feed::Normal),
            Some("longpoll") => Some(Feed::Longpoll),
            Some("continuous") => Some(Feed::Continuous),
            Some("eventsource") => Some(Feed::EventSource),
            Some("websocket") => Some(Feed::WebSocket),
            Some(_) => None,
        }
    }

    /// Returns the reply's head and the sender of its rows. Only normal feeds have an `etag`.
    pub(crate) fn answer(self, etag: Option<&str>) -> (Reply, Sender) {
        let (mut reply, sender) = Reply::stream();
        if let Some(etag) = etag {
            reply.header(header::ETAG, etag);
        }
        if self == Feed::EventSource {
            reply.header(header::CONTENT_TYPE, "text/event-stream");
            reply.header(header::CACHE_CONTROL, "no-cache");
        }
        (reply, if self.is_list() { sender } else { sender.in_whole_pieces() })
    }

    /// Returns true for one JSON object, false for one line per row.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Feed::Normal | Feed::Longpoll)
    }

    /// Returns whether a feed without rows sends an empty line at once, as in CouchDB, so that the client sees the
    /// connection.
    pub(crate) fn begins_with_newline(self) -> bool {
        matches!(self, Feed::Continuous | Feed::EventSource)
    }

    pub(crate) fn kind(self) -> FeedKind {
        match self {
            Feed::Normal => FeedKind::Normal,
            Feed::Longpoll => FeedKind::Longpoll,
            Feed::Continuous => FeedKind::Continuous,
            Feed::EventSource => FeedKind::EventSource,
            Feed::WebSocket => FeedKind::WebSocket,
        }
    }

    pub(crate) fn follow(self) -> Follow {
        match self {
            Feed::Normal => Follow::No,
            Feed::Longpoll => Follow::UntilFirst,
            Feed::Continuous | Feed::EventSource | Feed::WebSocket => Follow::On,
        }
    }

    /// Ends a feed. If the reader lost its rights, sends the reason where the form allows it; other failures cut the
    /// connection.
    pub(crate) async fn finish(
        self,
        mut sender: Sender,
        done: std::result::Result<(), Interrupted>,
        lost: Option<Failure>,
    ) {
        match (done, lost.and_then(|failure| self.end(&failure))) {
            (Ok(()), _) => {
                let _ = sender.finish().await;
            }
            (Err(_), Some(end)) => {
                sender.buffer.extend_from_slice(&end);
                let _ = sender.finish().await;
            }
            (Err(_), None) => {}
        }
    }

    /// Returns the last row of a feed whose reader lost its rights. A feed that is one JSON object is cut instead.
    fn end(self, failure: &Failure) -> Option<Vec<u8>> {
        let text = failure.text();
        match self {
            Feed::Normal | Feed::Longpoll => None,
            Feed::Continuous | Feed::WebSocket => Some([&text[..], b"\n"].concat()),
            Feed::EventSource => Some([b"event: error\ndata: ", &text[..], b"\n\n"].concat()),
        }
    }

    pub(crate) fn heartbeat(self) -> &'static [u8] {
        if self == Feed::EventSource { b"event: heartbeat\ndata: \n\n" } else { b"\n" }
    }
}

/// Parses the feed's start. The header counts for event sources only, as in CouchDB.
pub(crate) fn since(feed: Feed, query: &Query, last_event_id: Option<&str>) -> Result<Since> {
    let last_event_id = last_event_id.filter(|_| feed == Feed::EventSource);
    let asked = last_event_id.or(query.get("last-event-id")).or(query.get("Last-Event-ID")).or(query.get("since"));
    Ok(match asked.unwrap_or_default().trim_matches('"') {
        "" | "0" => Since::Beginning,
        "now" => Since::Now,
        seq => Since::After(seq.parse().map_err(Failure::from)?),
    })
}

pub(crate) fn not_negative(query: &Query, name: &str) -> Result<Option<u64>> {
    whole_number(query, name, 0, |is_number| {
        let what = if is_number { "value" } else { "parameter" };
        format!("The {name} {what} should be a non-negative integer")
    })
}

/// Parses the heartbeat interval. `None`: the feed ends at its timeout.
pub(crate) fn heartbeat(query: &Query, name: &str) -> Result<Option<Duration>> {
    match query.get(name) {
        Some("false" | "") => return Ok(None),
        Some("true") => return Ok(Some(WAIT_MAX)),
        _ => {}
    }
    let asked = whole_number(query, name, 1, |is_number| match is_number {
        true => "The heartbeat value should be a positive integer (in milliseconds).".into(),
        false => "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).".into(),
    })?;
    Ok(asked.map(between_heartbeats))
}

/// Selects the rows that carry their sequence: those where the rest of the limit is a multiple of `seq_interval`, as in
/// CouchDB. If the limit is a multiple of the interval, the first row of each batch does.
#[derive(Debug)]
pub(crate) struct SeqInterval {
    interval: u64,
    left: u64,
}

impl SeqInterval {
    pub(crate) fn new(query: &Query, limit: Option<u64>) -> Result<Self> {
        let interval = whole_number(query, "seq_interval", 1, |_| "invalid_seq_interval".into())?.unwrap_or(1);
        Ok(SeqInterval { interval, left: limit.unwrap_or(LIMIT_WITHOUT) })
    }

    pub(crate) fn shows(&mut self) -> bool {
        let shows = self.left.is_multiple_of(self.interval);
        self.left = self.left.saturating_sub(1);
        shows
    }
}

/// Parses a number as CouchDB's feeds do; `allowed` is the minimum. Numbers beyond 64 bits become the maximum.
pub(super) fn whole_number(
    query: &Query,
    name: &str,
    allowed: u64,
    failure: impl Fn(bool) -> String,
) -> Result<Option<u64>> {
    let Some(text) = query.get(name) else { return Ok(None) };
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_negative = digits.strip_prefix('-').is_some_and(is_number);
    let number = is_number(digits).then(|| digits.parse().unwrap_or(u64::MAX));
    match number {
        Some(number) if number >= allowed => Ok(Some(number)),
        _ => Err(Failure::bad_request(failure(number.is_some() || is_negative))),
    }
}

/// Converts a heartbeat interval, within its bounds.
pub(super) fn between_heartbeats(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).clamp(HEARTBEAT_MIN, WAIT_MAX)
}

/// Converts a timeout in milliseconds, within the bound that is also its default.
pub(crate) fn waits_for(query: &Query, milliseconds: Option<u64>) -> Duration {
    let most = query.bounds().feed_wait_ms.map_or(WAIT_MAX, |wait| Duration::from_millis(wait).min(WAIT_MAX));
    milliseconds.map_or(most, |wait| Duration::from_millis(wait).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::QueryBounds;

    #[test]
    fn a_feed_waits_at_most_as_long_as_the_settings_say() {
        for (bound, asked, expected) in [
            (None, None, 60_000),
            (Some(5), None, 5),
            (Some(5), Some(9), 5),
            (Some(5), Some(3), 3),
            (Some(90_000), Some(70_000), 60_000),
        ] {
            let query = Query::default().with_bounds(QueryBounds { feed_wait_ms: bound, ..QueryBounds::default() });
            assert_eq!(waits_for(&query, asked), Duration::from_millis(expected), "{bound:?} {asked:?}");
        }
    }

    #[test]
    fn rows_carry_their_sequence_where_couchdb_has_it() {
        let shown = |interval, limit| {
            let mut seqs = SeqInterval { interval, left: limit };
            (0..8).map(|_| seqs.shows()).collect::<Vec<_>>()
        };
        assert_eq!(shown(4, 8), [true, false, false, false, true, false, false, false]);
        assert_eq!(shown(3, 8), [false, false, true, false, false, true, false, false]);
        assert_eq!(shown(3, LIMIT_WITHOUT), [false, true, false, false, true, false, false, true]);
        for query in ["seq_interval=0", "seq_interval=-1", "seq_interval=x"] {
            let refused = SeqInterval::new(&Query::parse(Some(query)).unwrap(), None).unwrap_err();
            assert_eq!(refused.reason, "invalid_seq_interval");
        }
    }

    #[test]
    fn numbers_are_couchdbs() {
        let query = Query::parse(Some("a=5&b=-1&c=x&d=%2B7&e=&f=99999999999999999999&g=0&h=-")).unwrap();
        let read = |name: &str, least| {
            let failure = |is_number: bool| is_number.to_string();
            whole_number(&query, name, least, failure).map_err(|failure| failure.reason.to_string())
        };
        assert_eq!(read("a", 0), Ok(Some(5)));
        assert_eq!(read("d", 0), Ok(Some(7)));
        assert_eq!(read("f", 0), Ok(Some(u64::MAX)));
        assert_eq!(read("missing", 0), Ok(None));
        assert_eq!(read("g", 0), Ok(Some(0)));
        assert_eq!(read("g", 1), Err("true".into()));
        assert_eq!(read("b", 0), Err("true".into()));
        for name in ["c", "e", "h"] {
            assert_eq!(read(name, 0), Err("false".into()), "{name}");
        }
    }
}
