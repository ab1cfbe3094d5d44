//! Parses a feed's parameters from the query, the body, or the first message of a WebSocket.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Scope, Since};
use flatbed_service::Follow;

use crate::error::{Failure, Result};
use crate::query::Query;

/// The default timeout.
const WAIT: Duration = Duration::from_secs(300);
const WAIT_MAX: Duration = Duration::from_secs(900);

/// The shortest heartbeat interval.
const HEARTBEAT_MIN: Duration = Duration::from_secs(25);

/// The largest number of ids in a filter; more are refused.
const IDS_MAX: usize = 100_000;

/// The largest number of channels in a filter; more are refused. Each is a range of its own for a reader with
/// unrestricted access.
const CHANNELS_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Normal,
    Longpoll,
    Continuous,
    WebSocket,
}

impl Form {
    fn of(name: Option<&str>) -> Result<Form> {
        match name {
            None | Some("normal") => Ok(Form::Normal),
            Some("longpoll") => Ok(Form::Longpoll),
            Some("continuous") => Ok(Form::Continuous),
            Some("websocket") => Ok(Form::WebSocket),
            Some(_) => Err(Failure::bad_request("Unknown feed type")),
        }
    }

    /// Returns true for one JSON object, false for rows one by one.
    pub(super) fn is_list(self) -> bool {
        matches!(self, Form::Normal | Form::Longpoll)
    }

    pub(super) fn follow(self) -> Follow {
        match self {
            Form::Normal => Follow::No,
            Form::Longpoll => Follow::UntilFirst,
            Form::Continuous | Form::WebSocket => Follow::On,
        }
    }
}

/// The parameters of a feed. The query takes precedence over the body.
#[derive(Debug)]
pub(super) struct FeedParameters {
    pub(super) form: Form,
    pub(super) since: Since,
    pub(super) limit: Option<u64>,
    pub(super) all_leaves: bool,
    pub(super) include_docs: bool,
    pub(super) active_only: bool,
    pub(super) revocations: bool,
    pub(super) scope: Scope,
    pub(super) timeout: Duration,
    pub(super) heartbeat: Option<Duration>,
}

fn since(text: &str) -> Result<Since> {
    match text.trim_matches('"') {
        "" | "0" => Ok(Since::Beginning),
        text => Ok(Since::After(text.parse()?)),
    }
}

impl FeedParameters {
    pub(super) fn new(query: &Query, posted: &Value<'_>) -> Result<FeedParameters> {
        let text = |name: &str| match query.get(name) {
            Some(text) => Some(text),
            None => posted.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()),
        };
        let flag = |name: &str| query.flag(name) || posted.get(name) == Some(&Value::Bool(true));
        let number = |name: &str| match posted.get(name) {
            Some(Value::Number(number)) if query.get(name).is_none() => number.parse::<u64>().ok(),
            _ => query.number(name),
        };
        let wrong = |what: &str| Failure::bad_request(format!("Invalid JSON: {what}"));
        for name in ["limit", "heartbeat", "timeout"] {
            if !matches!(posted.get(name), None | Some(Value::Number(_) | Value::Null)) {
                return Err(wrong(name));
            }
        }
        if !matches!(posted.get("doc_ids"), None | Some(Value::Array(_) | Value::Null)) {
            return Err(wrong("doc_ids"));
        }
        for name in ["filter", "channels", "feed", "style"] {
            if !matches!(posted.get(name), None | Some(Value::String(_) | Value::Null)) {
                return Err(wrong(name));
            }
        }
        let form = Form::of(text("feed"))?;
        let since = match (query.get("since"), posted.get("since")) {
            (Some(text), _) => since(text)?,
            (None, Some(Value::String(text))) => since(text)?,
            (None, Some(Value::Number(number))) => since(number)?,
            (None, None | Some(Value::Null)) => Since::Beginning,
            (None, Some(_)) => return Err(Failure::bad_request("Invalid sequence")),
        };
        let scope = match text("filter") {
            None => Scope::All,
            Some("_doc_ids") => Scope::Ids(doc_ids(query, posted)?),
            Some("sync_gateway/bychannel") => Scope::Channels(Arc::new(by_channel(text("channels"))?)),
            Some(_) => {
                return Err(Failure::bad_request("Unknown filter; try sync_gateway/bychannel or _doc_ids"));
            }
        };
        if matches!(scope, Scope::Ids(_)) && form != Form::Normal {
            return Err(Failure::bad_request("Filter '_doc_ids' is only valid for feed=normal replications"));
        }
        let timeout = number("timeout").map_or(WAIT, |wait| Duration::from_millis(wait).min(WAIT_MAX));
        let heartbeat = number("heartbeat").filter(|every| *every > 0);
        Ok(FeedParameters {
            form,
            since,
            limit: number("limit").filter(|limit| *limit > 0),
            all_leaves: text("style") == Some("all_docs"),
            include_docs: flag("include_docs"),
            active_only: flag("active_only"),
            revocations: flag("revocations"),
            scope,
            timeout,
            heartbeat: heartbeat.map(|every| Duration::from_millis(every).clamp(HEARTBEAT_MIN, WAIT_MAX)),
        })
    }

    /// Parses the first message of a WebSocket, which takes precedence over the query. `channels` needs no `filter`
    /// there.
    pub(super) fn of_message(query: Query, message: &Value<'_>) -> Result<FeedParameters> {
        let Value::Object(members) = message else {
            return Err(Failure::bad_request("Invalid JSON: it is no object"));
        };
        // The form is already fixed.
        let is_nothing = |value: &Value<'_>| *value == Value::Null || value.as_str().is_some_and(str::is_empty);
        let is_said = |name: &str| name != "feed" && message.get(name).is_some_and(|value| !is_nothing(value));
        let has_channels = message.get("channels").and_then(Value::as_str).is_some_and(|names| !names.is_empty());
        let mut members = members.clone();
        if has_channels && !is_said("filter") {
            members.retain(|(name, _)| name != "filter");
            members.push(("filter".into(), Value::String("sync_gateway/bychannel".into())));
        }
        let members = Value::Object(members);
        FeedParameters::new(&query.without(|name| is_said(name) || (has_channels && name == "filter")), &members)
    }
}

fn by_channel(channels: Option<&str>) -> Result<BTreeSet<String>> {
    let channels = channels.ok_or_else(|| Failure::bad_request("Missing 'channels' filter parameter"))?;
    let mut named = BTreeSet::new();
    for channel in channels.split(',') {
        flatbed_layer::check_channel(channel).map_err(|illegal| Failure::bad_request(illegal.to_string()))?;
        named.insert(channel.to_owned());
        if named.len() > CHANNELS_MAX {
            return Err(Failure::bad_request(format!("at most {CHANNELS_MAX} channels in a filter")));
        }
    }
    Ok(named)
}

fn doc_ids(query: &Query, posted: &Value<'_>) -> Result<Arc<HashSet<String>>> {
    let missing = || Failure::bad_request("Missing 'doc_ids' filter parameter");
    let read;
    let list = match (query.get("doc_ids"), posted.get("doc_ids")) {
        (Some(text), _) => match json::parse(text.as_bytes(), &Limits::default()) {
            Ok(list) => {
                read = list;
                &read
            }
            // Comma-separated instead of JSON.
            Err(_) => {
                let ids: HashSet<String> = text.split(',').map(str::to_owned).collect();
                return Ok(Arc::new(ids));
            }
        },
        (None, Some(list)) => list,
        (None, None) => return Err(missing()),
    };
    let Value::Array(list) = list else { return Err(missing()) };
    if list.is_empty() && query.get("doc_ids").is_none() {
        return Err(Failure::bad_request("Empty doc_ids list"));
    }
    if list.is_empty() || list.len() > IDS_MAX {
        return Err(missing());
    }
    let ids: Option<HashSet<String>> = list.iter().map(|id| id.as_str().map(str::to_owned)).collect();
    Ok(Arc::new(ids.ok_or_else(missing)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str, posted: &str) -> std::result::Result<FeedParameters, String> {
        let posted = json::parse(posted.as_bytes(), &Limits::default()).unwrap();
        FeedParameters::new(&Query::parse(Some(query)).unwrap(), &posted).map_err(|failure| failure.reason)
    }

    fn said(query: &str, message: &str) -> std::result::Result<FeedParameters, String> {
        let message = json::parse(message.as_bytes(), &Limits::default()).unwrap();
        FeedParameters::of_message(Query::parse(Some(query)).unwrap(), &message).map_err(|failure| failure.reason)
    }

    #[test]
    fn what_a_websocket_begins_with() {
        let query = "feed=websocket&since=0&limit=5&filter=sync_gateway/bychannel&channels=A";
        let found = said(query, r#"{"limit":7,"include_docs":true,"feed":"normal","accept_encoding":"gzip"}"#).unwrap();
        assert_eq!((found.form, found.limit, found.include_docs), (Form::WebSocket, Some(7), true));
        let channels =
            |names: &[&str]| Scope::Channels(Arc::new(names.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(found.scope, channels(&["A"]));
        assert_eq!(said("feed=websocket", "{}").unwrap().scope, Scope::All);
        for query in [query, "feed=websocket"] {
            assert_eq!(said(query, r#"{"channels":"B,C"}"#).unwrap().scope, channels(&["B", "C"]));
        }
        for (message, reason) in [
            ("[]", "Invalid JSON: it is no object"),
            (r#"{"since":"x"}"#, "Invalid sequence"),
            (r#"{"filter":"_doc_ids"}"#, "Missing 'doc_ids' filter parameter"),
            (r#"{"channels":"A,,B"}"#, "Illegal channel name \"\""),
            (r#"{"channels":["A"]}"#, "Invalid JSON: channels"),
        ] {
            assert_eq!(said("feed=websocket", message).unwrap_err(), reason);
        }
    }

    #[test]
    fn what_is_asked_for() {
        let found = asked("limit=3&style=all_docs&timeout=99999999&heartbeat=1", r#"{"limit":7,"include_docs":true}"#);
        let found = found.unwrap();
        assert_eq!((found.limit, found.all_leaves, found.include_docs), (Some(3), true, true));
        assert_eq!((found.timeout, found.heartbeat), (WAIT_MAX, Some(HEARTBEAT_MIN)));
        for limit in ["limit=abc", "limit=-1", "limit=0", "limit="] {
            assert_eq!(asked(limit, "null").unwrap().limit, None);
        }
        for (query, posted, reason) in [
            ("feed=bogus", "null", "Unknown feed type"),
            (
                "feed=websocket&filter=_doc_ids",
                r#"{"doc_ids":["a"]}"#,
                "Filter '_doc_ids' is only valid for feed=normal replications",
            ),
            ("filter=bogus", "null", "Unknown filter; try sync_gateway/bychannel or _doc_ids"),
            ("filter=sync_gateway/bychannel", "null", "Missing 'channels' filter parameter"),
            ("filter=sync_gateway/bychannel&channels=A,,B", "null", "Illegal channel name \"\""),
            ("filter=_doc_ids&doc_ids=[]", "null", "Missing 'doc_ids' filter parameter"),
            ("filter=_doc_ids", r#"{"doc_ids":[1]}"#, "Missing 'doc_ids' filter parameter"),
            ("since=abc", "null", "Invalid sequence"),
            ("since=now", "null", "Invalid sequence"),
            ("", r#"{"since":true}"#, "Invalid sequence"),
            ("", r#"{"limit":"x"}"#, "Invalid JSON: limit"),
            ("", r#"{"channels":["A"]}"#, "Invalid JSON: channels"),
        ] {
            assert_eq!(asked(query, posted).unwrap_err(), reason);
        }
        let many = (0..=CHANNELS_MAX).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
        let failure = asked(&format!("filter=sync_gateway/bychannel&channels={many}"), "null").unwrap_err();
        assert_eq!(failure, "at most 1000 channels in a filter");
        let found = asked("filter=sync_gateway/bychannel&channels=B,A,B&revocations=true", "null").unwrap();
        assert_eq!(found.scope, Scope::Channels(Arc::new(["A", "B"].map(str::to_owned).into())));
        assert!(found.revocations);
        let ids = asked("filter=_doc_ids&doc_ids=a,b", "null").unwrap().scope;
        assert_eq!(ids, Scope::Ids(Arc::new(["a", "b"].map(str::to_owned).into())));
    }
}
