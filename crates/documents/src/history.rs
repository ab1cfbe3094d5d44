//! Ids and revisions of documents in requests.

use flatbed_layer::json::Value;
use flatbed_layer::{DocumentId, EditParts, REVS_LIMIT_MAX, Refusal, RevId, check_document_id, check_local_id};

/// The most ancestors read from `_revisions`; older ones are beyond any limit.
const REVISIONS_MAX: usize = REVS_LIMIT_MAX as usize;

/// The reason why a replicated edit has no revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryError {
    /// It has neither `_rev` nor `_revisions`.
    Missing,
    /// `_revisions` is malformed.
    Malformed,
}

/// Checks the id of a document or, with the prefix `_local/`, of a local document.
///
/// # Errors
/// [`Refusal::InvalidDocument`].
pub fn check_any_id(id: &str) -> Result<(), Refusal> {
    match DocumentId::of(id).local_name().filter(|local| !local.is_empty()) {
        Some(local) => check_local_id(local),
        None => check_document_id(id),
    }
}

/// Returns a replicated revision and its ancestors, newest first.
///
/// # Errors
/// [`HistoryError`].
pub fn history_of(parts: &EditParts<'_>) -> Result<Vec<RevId>, HistoryError> {
    match (&parts.revisions, &parts.rev) {
        (Some(revisions), _) => parse_revisions(revisions).ok_or(HistoryError::Malformed),
        (None, Some(rev)) => Ok(vec![rev.clone()]),
        (None, None) => Err(HistoryError::Missing),
    }
}

/// Parses `_revisions`, newest first. `None` if it is malformed or names no revision.
pub fn parse_revisions(revisions: &Value<'_>) -> Option<Vec<RevId>> {
    let Some(Value::Number(start)) = revisions.get("start") else { return None };
    let Some(Value::Array(ids)) = revisions.get("ids") else { return None };
    let start: u64 = start.parse().ok()?;
    let rev = |(at, id): (u64, &Value<'_>)| RevId::from_parts(start.checked_sub(at)?, id.as_str()?).ok();
    let line: Vec<RevId> = (0..).zip(ids).take(REVISIONS_MAX).map(rev).collect::<Option<_>>()?;
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use flatbed_layer::json::{Limits, parse};

    use super::*;

    #[test]
    fn revisions_are_newest_first() {
        for (text, expected) in [
            (r#"{"start":3,"ids":["c","b"]}"#, Some("3-c 2-b")),
            (r#"{"start":1,"ids":["a"]}"#, Some("1-a")),
            (r#"{"start":1,"ids":["b","a"]}"#, Some("1-b 0-a")),
            (r#"{"start":0,"ids":["b","a"]}"#, None),
            (r#"{"start":3,"ids":[]}"#, None),
            (r#"{"start":3,"ids":["c",1]}"#, None),
            (r#"{"start":"3","ids":["c"]}"#, None),
            (r#"{"start":-1,"ids":["c"]}"#, None),
            (r#"{"ids":["c"]}"#, None),
            (r#"{"start":3}"#, None),
            ("1", None),
        ] {
            let line = parse_revisions(&parse(text.as_bytes(), &Limits::default()).unwrap());
            let line = line.map(|line| line.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            assert_eq!(line.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn local_ids_are_checked_as_such() {
        for (id, is_valid) in [("a", true), ("_local/a", true), ("_local/", false), ("_a", false), ("", false)] {
            assert_eq!(check_any_id(id).is_ok(), is_valid, "{id}");
        }
    }
}
