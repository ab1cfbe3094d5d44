//! The objects in clients' bodies: one in a PUT, a list in a POST.

use std::collections::HashSet;

use bytes::Bytes;
use flatbed_flatten::json::{Limits as Depth, Value, parse_unique};
use flatbed_syncstorage::{Change, Limits, RecordId, SORTINDEX_MAX, TTL_SECONDS_MAX};

use crate::error::{Failure, Result};

/// Ignored members may be nested this deep.
const DEPTH: Depth = Depth { depth_max: 32 };

/// The collection of the keys that encrypt everything else.
const CRYPTO: &str = "crypto";

/// A defect that a version of Firefox once wrote there: zeros in place of random bytes. Blanks may stand between the
/// two parts.
const KNOWN_BAD: [&[u8]; 2] = [b"IV\":", b"\"AAAAAAAAAAAAAAAAAAAAAA==\""];

/// The reason for too many objects.
const RETRY_RECORDS: &str = "retry bso";

/// The reason for too many bytes.
const RETRY_BYTES: &str = "retry bytes";

/// The members of an object, except its id. `None` leaves a member unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ObjectMembers {
    payload: Option<Bytes>,
    sortindex: Option<i32>,
    ttl: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PostedObjects {
    /// The valid objects in order, each id once.
    pub changes: Vec<Change>,
    /// The ids of the invalid ones, with reasons.
    pub failed: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON text.
    Json,
    /// One JSON text on each line.
    Newlines,
}

impl Form {
    /// Returns the format in `Content-Type`.
    ///
    /// # Errors
    /// 415.
    pub(crate) fn of(content_type: Option<&str>) -> Result<Form> {
        let kind = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &*kind {
            "application/json" | "text/plain" => Ok(Form::Json),
            "application/newlines" => Ok(Form::Newlines),
            _ => Err(Failure::unsupported_media_type()),
        }
    }
}

/// Parses the body of a PUT.
///
/// # Errors
/// 400 `8`.
pub(crate) fn put(body: &[u8], form: Form, collection: &str, id: RecordId, limits: &Limits) -> Result<Change> {
    if form == Form::Newlines {
        return Err(Failure::invalid_object("an object on lines"));
    }
    let value = parse_unique(body, &DEPTH).map_err(|error| Failure::invalid_object(error.to_string()))?;
    if !matches!(value.get("id"), None | Some(Value::Null | Value::String(_))) {
        return Err(Failure::invalid_object("the id is no text"));
    }
    let said = said(value).map_err(Failure::invalid_object)?;
    if said.is_known_bad(collection) {
        return Err(Failure::invalid_object("a payload that is known to be bad"));
    }
    if said.payload_bytes() > u64::from(limits.max_record_payload_bytes) {
        return Err(Failure::invalid_object("the payload is too large"));
    }
    Ok(said.of(id))
}

/// Parses the body of a POST. Invalid objects are among the failed ones.
///
/// # Errors
/// 400 `8` if the whole body is refused.
pub(crate) fn post(body: &[u8], form: Form, collection: &str, limits: &Limits) -> Result<PostedObjects> {
    let invalid = |reason: &str| Failure::invalid_object(reason);
    let mut reader = Reader { posted: PostedObjects::default(), known: HashSet::new(), bytes: 0, collection, limits };
    match form {
        Form::Json => {
            let value = parse_unique(body, &DEPTH).map_err(|error| Failure::invalid_object(error.to_string()))?;
            let Value::Array(items) = value else { return Err(invalid("no list")) };
            items.into_iter().try_for_each(|item| reader.take(item))?;
        }
        Form::Newlines if body.is_empty() => {}
        Form::Newlines => {
            for line in body.strip_suffix(b"\n").unwrap_or(body).split(|byte| *byte == b'\n') {
                let value = parse_unique(line, &DEPTH).map_err(|error| Failure::invalid_object(error.to_string()))?;
                reader.take(value)?;
            }
        }
    }
    Ok(reader.posted)
}

struct Reader<'r> {
    posted: PostedObjects,
    known: HashSet<String>,
    /// The payload bytes, including those of refused objects.
    bytes: u64,
    collection: &'r str,
    limits: &'r Limits,
}

impl Reader<'_> {
    fn take(&mut self, item: Value<'_>) -> Result<()> {
        let id = match item.get("id") {
            Some(Value::String(id)) => id.clone().into_owned(),
            _ => return Err(Failure::invalid_object("an object without an id")),
        };
        if !self.known.insert(id.clone()) {
            return Err(Failure::invalid_object("an id stands twice"));
        }
        let said = match said(item) {
            Ok(said) if said.is_known_bad(self.collection) => {
                return Err(Failure::invalid_object("a payload that is known to be bad"));
            }
            said => said.and_then(|said| {
                let id = RecordId::new(&id).ok_or("invalid id")?;
                self.fits(&said)?;
                Ok(said.of(id))
            }),
        };
        match said {
            Ok(change) => self.posted.changes.push(change),
            Err(reason) => self.posted.failed.push((id, reason.to_owned())),
        }
        Ok(())
    }

    /// Returns whether an object fits the remaining limits.
    fn fits(&mut self, said: &ObjectMembers) -> std::result::Result<(), &'static str> {
        self.bytes += said.payload_bytes();
        let is_large = said.payload_bytes() > u64::from(self.limits.max_record_payload_bytes);
        if self.posted.changes.len() as u64 >= u64::from(self.limits.max_post_records) {
            Err(RETRY_RECORDS)
        } else if is_large || self.bytes > u64::from(self.limits.max_post_bytes) {
            Err(RETRY_BYTES)
        } else {
            Ok(())
        }
    }
}

impl ObjectMembers {
    fn of(self, id: RecordId) -> Change {
        Change { id, payload: self.payload, sortindex: self.sortindex, ttl: self.ttl }
    }

    /// The payload's UTF-8 bytes.
    fn payload_bytes(&self) -> u64 {
        self.payload.as_ref().map_or(0, |payload| payload.len() as u64)
    }

    fn is_known_bad(&self, collection: &str) -> bool {
        let [name, value] = KNOWN_BAD;
        let is_bad = |payload: &Bytes| {
            memchr::memmem::find_iter(payload, name).any(|at| {
                let behind = payload.get(at + name.len()..).unwrap_or_default();
                behind.trim_ascii_start().starts_with(value)
            })
        };
        collection == CRYPTO && self.payload.as_ref().is_some_and(is_bad)
    }
}

/// Parses an object; returns the reason if a member is invalid.
fn said(value: Value<'_>) -> std::result::Result<ObjectMembers, &'static str> {
    let Value::Object(members) = value else { return Err("no object") };
    let mut said = ObjectMembers::default();
    for (name, value) in members {
        match (&*name, value) {
            ("id" | "modified" | "collection", _) | ("payload" | "sortindex" | "ttl", Value::Null) => {}
            ("payload", Value::String(payload)) => said.payload = Some(payload.into_owned().into()),
            ("payload", _) => return Err("invalid payload"),
            ("sortindex", value) => {
                let number = integer(&value, -i64::from(SORTINDEX_MAX), SORTINDEX_MAX.into())
                    .and_then(|number| number.try_into().ok());
                said.sortindex = Some(number.ok_or("invalid sortindex")?);
            }
            ("ttl", value) => {
                let number = integer(&value, 0, TTL_SECONDS_MAX.into()).and_then(|number| number.try_into().ok());
                said.ttl = Some(number.ok_or("invalid ttl")?);
            }
            _ => return Err("unknown member"),
        }
    }
    Ok(said)
}

/// Parses an integer without fraction or exponent, within bounds.
fn integer(value: &Value<'_>, min: i64, max: i64) -> Option<i64> {
    match value {
        Value::Number(text) if text != "-0" => text.parse().ok().filter(|number| (min..=max).contains(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> Limits {
        Limits { max_post_records: 3, max_post_bytes: 10, max_record_payload_bytes: 8, ..Limits::default() }
    }

    fn id() -> RecordId {
        RecordId::new("i").unwrap()
    }

    fn put_text(text: &str) -> Option<Change> {
        put(text.as_bytes(), Form::Json, "tabs", id(), &limits()).ok()
    }

    fn post_text(text: &str) -> Option<PostedObjects> {
        post(text.as_bytes(), Form::Json, "tabs", &limits()).ok()
    }

    #[test]
    fn one_object() {
        let change = Change { id: id(), payload: Some("p".into()), sortindex: Some(-5), ttl: Some(0) };
        assert_eq!(put_text(r#"{"payload":"p","sortindex":-5,"ttl":0,"modified":"x","collection":5}"#), Some(change));
        assert_eq!(
            put_text(r#"{"id":null,"payload":null,"sortindex":null,"ttl":null}"#),
            Some(ObjectMembers::default().of(id()))
        );
        for text in [
            "",
            "[]",
            "null",
            "12",
            r#"{"id":12}"#,
            r#"{"payload":12}"#,
            r#"{"unknown":1}"#,
            r#"{"sortindex":1000000000}"#,
            r#"{"sortindex":1.5}"#,
            r#"{"sortindex":-0}"#,
            r#"{"sortindex":"1"}"#,
            r#"{"ttl":-1}"#,
            r#"{"ttl":1000000000}"#,
            r#"{"sortindex":9999999999999999999}"#,
            r#"{"payload":"\ud800"}"#,
            r#"{"payload":"x","payload":"y"}"#,
            r#"{"payload":"123456789"}"#,
            r#"{"payload":"ééééx"}"#,
        ] {
            assert_eq!(put_text(text), None, "{text}");
        }
        assert!(put(b"{}", Form::Newlines, "tabs", id(), &limits()).is_err());
    }

    #[test]
    fn a_list_of_objects() {
        let posted = post_text(r#"[{"id":"a","payload":"1"},{"id":"","payload":"2"},{"id":"c","ttl":-1}]"#).unwrap();
        assert_eq!(posted.changes.iter().map(|change| change.id.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(posted.failed, [("".into(), "invalid id".into()), ("c".into(), "invalid ttl".into())]);
        for text in [
            "",
            "{}",
            "[12]",
            r#"["a"]"#,
            r#"[{"payload":"1"}]"#,
            r#"[{"id":1}]"#,
            r#"[{"id":"a"},{"id":"a"}]"#,
            "[null]",
        ] {
            assert_eq!(post_text(text), None, "{text}");
        }
        assert_eq!(post_text("[]"), Some(PostedObjects::default()));
    }

    #[test]
    fn what_is_too_much_fails() {
        let ids = |posted: &[(String, String)]| {
            posted.iter().map(|(id, reason)| format!("{id} {reason}")).collect::<Vec<_>>().join(", ")
        };
        let posted = post_text(r#"[{"id":"a"},{"id":"b"},{"id":"c"},{"id":"d"}]"#).unwrap();
        assert_eq!((posted.changes.len(), ids(&posted.failed)), (3, "d retry bso".into()));
        let posted =
            post_text(r#"[{"id":"a","payload":"1234567"},{"id":"b","payload":"1234"},{"id":"c","payload":"1"}]"#);
        assert_eq!(ids(&posted.unwrap().failed), "b retry bytes, c retry bytes");
        let posted =
            post_text(r#"[{"id":"a","payload":"123456789"},{"id":"b","payload":"1"},{"id":"c","payload":"1"}]"#);
        assert_eq!(ids(&posted.unwrap().failed), "a retry bytes, c retry bytes");
    }

    #[test]
    fn lines() {
        let ids = |text: &str| {
            let posted = post(text.as_bytes(), Form::Newlines, "tabs", &limits()).ok()?;
            Some(posted.changes.iter().map(|change| change.id.as_str()).collect::<String>())
        };
        assert_eq!(ids("").as_deref(), Some(""));
        assert_eq!(ids("{\"id\":\"a\"}\n{\"id\":\"b\"}").as_deref(), Some("ab"));
        assert_eq!(ids("{\"id\":\"a\"}\r\n{\"id\":\"b\"}\r\n").as_deref(), Some("ab"));
        for text in [
            "\n",
            "{\"id\":\"a\"}\n\n",
            "{\"id\":\"a\"}\n\n{\"id\":\"b\"}",
            "[{\"id\":\"a\"}]",
            "{\"id\":\"a\"} {\"id\":\"b\"}",
        ] {
            assert_eq!(ids(text), None, "{text:?}");
        }
    }

    #[test]
    fn keys_of_zeros() {
        let bad = br#"{"payload":"{\"IV\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}"}"#;
        let limits = Limits::default();
        assert!(put(bad, Form::Json, "crypto", id(), &limits).is_err());
        assert!(put(bad, Form::Json, "bookmarks", id(), &limits).is_ok());
        let blank = br#"{"payload":"{\"a\":1, \"IV\": \"AAAAAAAAAAAAAAAAAAAAAA==\"}"}"#;
        assert!(put(blank, Form::Json, "crypto", id(), &limits).is_err());
        let good = br#"{"payload":"{\"IV\":\"AAAAAAAAAAAAAAAAAAAAAB==\"}"}"#;
        assert!(put(good, Form::Json, "crypto", id(), &limits).is_ok());
        let list = br#"[{"id":"a","payload":"{\"IV\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}"},{"id":"b"}]"#;
        assert!(post(list, Form::Json, "crypto", &limits).is_err());
    }

    #[test]
    fn forms() {
        assert_eq!(Form::of(Some("Application/JSON; charset=utf-8")).unwrap(), Form::Json);
        assert_eq!(Form::of(Some("text/plain")).unwrap(), Form::Json);
        assert_eq!(Form::of(Some("application/newlines")).unwrap(), Form::Newlines);
        for kind in [None, Some(""), Some("text/html"), Some("nonsense")] {
            assert_eq!(Form::of(kind).unwrap_err().status.as_u16(), 415);
        }
    }

    proptest! {
        #[test]
        fn each_object_is_stored_or_has_failed(
            items in prop::collection::vec(("[a-z]{0,3}", "[a-z]{0,6}", -2_i64..3, any::<bool>()), 0..6)
        ) {
            let text = items.iter().map(|(id, payload, ttl, is_good)| {
                let more = if *is_good { "" } else { r#","x":1"# };
                format!(r#"{{"id":"{id}","payload":"{payload}","ttl":{ttl}{more}}}"#)
            });
            let text = format!("[{}]", text.collect::<Vec<_>>().join(","));
            if let Some(posted) = post_text(&text) {
                prop_assert_eq!(posted.changes.len() + posted.failed.len(), items.len());
                prop_assert!(posted.changes.len() <= 3);
                prop_assert!(posted.changes.iter().flat_map(|change| &change.payload).map(Bytes::len).sum::<usize>() <= 10);
            }
        }

        #[test]
        fn any_body_is_taken(body in r#"[\[{]{0,2}("[a-z]{0,3}"|[:,\]}0-9n -]){0,12}|.{0,40}"#) {
            for form in [Form::Json, Form::Newlines] {
                let _ = put(body.as_bytes(), form, "crypto", id(), &limits());
                let _ = post(body.as_bytes(), form, "crypto", &limits());
            }
        }
    }
}
