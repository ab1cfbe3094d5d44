//! Parses documents of requests.

use flatbed_channels::Expiry;
use flatbed_clock::Clock;
use flatbed_documents::{AttachmentMember, history_of, parse_attachments};
use flatbed_layer::json::Value;
use flatbed_layer::{Edit, EditParts, RevId};
use hyper::StatusCode;

use crate::error::{Failure, Result};

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
    let written = parse_attachments(parts.attachments.take())?;
    let history = if new_edits { None } else { Some(replicated_history(&parts)?) };
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

fn bad_revisions() -> Failure {
    Failure::bad_request("Bad _revisions")
}

/// Returns a replicated revision and its ancestors, newest first. `_revisions` has no generation 0 in Sync Gateway.
fn replicated_history(parts: &EditParts<'_>) -> Result<Vec<RevId>> {
    let history = history_of(parts).map_err(|_| bad_revisions())?;
    let has_zero = parts.revisions.is_some() && history.iter().any(|rev| rev.generation() == 0);
    if has_zero { Err(bad_revisions()) } else { Ok(history) }
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    let failed = |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "no randomness");
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
