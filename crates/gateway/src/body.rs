//! Parses documents of requests.

use flatbed_channels::Expiry;
use flatbed_clock::Clock;
use flatbed_documents::AttachmentMember;
use flatbed_layer::json::Value;
use flatbed_layer::{DocumentId, Edit, EditParts, REVS_LIMIT_MAX, RevId};
use hyper::StatusCode;

use crate::error::{Failure, Result};

/// The most ancestors read from `_revisions`; older ones are beyond any limit.
const REVISIONS_MAX: usize = REVS_LIMIT_MAX as usize;

/// Parses an edit and its attachments, which the caller uploads. `id` of the path overrides the document's `_id`.
pub(crate) fn edit_of<'b>(
    value: Value<'b>,
    id: Option<&str>,
    new_edits: bool,
    clock: &Clock,
) -> Result<(Edit<'b>, Vec<AttachmentMember<'b>>)> {
    if value.get("_removed").is_some_and(|removed| *removed != Value::Bool(false)) {
        return Err(Failure::not_found("Document revision is not accessible"));
    }
    if let Some(expiry) = value.get("_exp") {
        Expiry::parse(expiry, clock.unix_seconds()).map_err(|error| Failure::bad_request(error.to_string()))?;
    }
    let is_revisions = |value: &Value<'_>| matches!(value, Value::Object(_));
    if !new_edits && !value.get("_revisions").is_none_or(is_revisions) {
        return Err(bad_revisions());
    }
    let mut parts = EditParts::from_json(value, clock)?;
    let written = flatbed_documents::parse_attachments(parts.attachments.take())?;
    let history = if new_edits { None } else { Some(history_of(&parts)?) };
    let parent = parts.rev.filter(|_| new_edits);
    let id = match (id, parts.id) {
        (Some(id), _) => id.to_owned().into(),
        (None, Some(id)) if !id.is_empty() => id,
        _ => "".into(),
    };
    let edit = Edit {
        id,
        parent,
        history,
        deleted: parts.deleted,
        expiry: parts.expiry,
        attachments: Vec::new(),
        body: parts.body,
    };
    Ok((edit, written))
}

/// Returns 400 for an illegal `_id`.
pub(crate) fn check_id(id: &str) -> Result<()> {
    match DocumentId::of(id).local_name().filter(|local| !local.is_empty()) {
        Some(local) => flatbed_layer::check_local_id(local)?,
        None => flatbed_layer::check_document_id(id)?,
    }
    Ok(())
}

fn bad_revisions() -> Failure {
    Failure::bad_request("Bad _revisions")
}

/// Returns a replicated revision and its ancestors, newest first.
fn history_of(parts: &EditParts<'_>) -> Result<Vec<RevId>> {
    match (&parts.revisions, &parts.rev) {
        (Some(revisions), _) => line_of(revisions),
        (None, Some(rev)) => Ok(vec![rev.clone()]),
        (None, None) => Err(bad_revisions()),
    }
}

/// Parses `_revisions`, newest first.
fn line_of(revisions: &Value<'_>) -> Result<Vec<RevId>> {
    let start: u64 = match revisions.get("start") {
        Some(Value::Number(start)) => start.parse().map_err(|_| bad_revisions())?,
        _ => return Err(bad_revisions()),
    };
    let Some(Value::Array(ids)) = revisions.get("ids") else { return Err(bad_revisions()) };
    let rev = |(at, id): (u64, &Value<'_>)| {
        let generation = start.checked_sub(at).filter(|generation| *generation > 0).ok_or_else(bad_revisions)?;
        RevId::from_parts(generation, id.as_str().ok_or_else(bad_revisions)?).map_err(|_| bad_revisions())
    };
    let line: Vec<RevId> = (0..).zip(ids).take(REVISIONS_MAX).map(rev).collect::<Result<_>>()?;
    if line.is_empty() { Err(bad_revisions()) } else { Ok(line) }
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    let failed = |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "no randomness");
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
