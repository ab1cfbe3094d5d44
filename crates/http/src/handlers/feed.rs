//! What the feeds of a database and of the whole server are asked for in the same words.

use std::time::Duration;

use flatbed_layer::Since;

use crate::error::{Failure, Result};
use crate::query::Query;

/// How long a feed waits for something new, and between heartbeats, if it says nothing else, and at most (CouchDB's
/// `changes_timeout`).
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// No heartbeat comes more often.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
}

impl Feed {
    /// `None`: there is no such feed.
    pub(crate) fn named(name: Option<&str>) -> Option<Feed> {
        match name {
            None | Some("normal") => Some(Feed::Normal),
            Some("longpoll") => Some(Feed::Longpoll),
            Some("continuous") => Some(Feed::Continuous),
            Some("eventsource") => Some(Feed::EventSource),
            Some(_) => None,
        }
    }

    /// What tells a waiting client that the connection lives.
    pub(crate) fn heartbeat(self) -> &'static [u8] {
        if self == Feed::EventSource { b"event: heartbeat\ndata: \n\n" } else { b"\n" }
    }
}

/// A browser that connects again says in a header where it was; it alone is asked (as in CouchDB), since others may send
/// on what they do not know.
pub(crate) fn since(feed: Feed, query: &Query, last_event_id: Option<&str>) -> Result<Since> {
    let last_event_id = last_event_id.filter(|_| feed == Feed::EventSource);
    let text = last_event_id.or(query.get("last-event-id")).or(query.get("since")).unwrap_or_default();
    Ok(match text.trim_matches('"') {
        "" | "0" => Since::Beginning,
        "now" => Since::Now,
        seq => Since::After(seq.parse().map_err(Failure::from)?),
    })
}

/// A number of the query as CouchDB's feeds read it; `allowed` is the least one. Numbers beyond 64 bits are the largest.
pub(crate) fn whole_number(
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

/// The bounds of how often a heartbeat comes.
pub(crate) fn between_heartbeats(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).clamp(HEARTBEAT_MIN, WAIT_MAX)
}

/// `timeout` in milliseconds.
pub(crate) fn waits_for(milliseconds: Option<u64>) -> Duration {
    milliseconds.map_or(WAIT_MAX, |wait| Duration::from_millis(wait).min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

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
