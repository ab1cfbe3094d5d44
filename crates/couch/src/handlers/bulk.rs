//! `_bulk_docs`, and helpers for JSON objects in bodies.

use std::time::Duration;

use flatbed_http::{Client, Reply};
use flatbed_layer::json::{self, Array, Limits, Value, name};
use flatbed_layer::{DocumentId, Edit, NotJudged, Outcome, Refusal, WrittenRevision, check_partitioned_id};
use flatbed_service::{Uploads, Write, Writer, with_functions_until};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::handlers::document::edit_from;
use crate::handlers::local;
use crate::json_out;
use crate::request::{Body, Request};
use crate::state::State;
use flatbed_documents::attachment_edits;

/// Reads a body, which must be declared as JSON.
pub(crate) async fn json_body(request: &mut Request) -> Result<Body> {
    let allowed = request.require_json();
    request.skip_if_refused(allowed).await?;
    Ok(request.read_body().await?)
}

pub(crate) fn object<'b>(bytes: &'b [u8]) -> Result<Value<'b>> {
    match json::parse(bytes, &Limits::default()) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(Failure::bad_request("Request body must be a JSON object")),
        Err(_) => Err(Failure::invalid_json()),
    }
}

pub(crate) fn take<'v>(value: Value<'v>, name: &str) -> Option<Value<'v>> {
    match value {
        Value::Object(members) => members.into_iter().find(|(found, _)| found == name).map(|(_, value)| value),
        _ => None,
    }
}

pub(crate) const ENTRIES_MAX: usize = 100_000;

pub(crate) fn too_many(what: &str) -> Failure {
    let reason = format!("at most {ENTRIES_MAX} {what} in a request");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
}

/// The longest time in which the functions of a `_bulk_docs` run. Beyond it the remaining documents are not written.
const FUNCTIONS_MAX: Duration = Duration::from_secs(300);

type EditOutcome<'e> = (Edit<'e>, Outcome);

/// Writes documents, then local documents in batches. Outcomes are in the order of the edits.
async fn write<'e>(database: &Writer, edits: Vec<Edit<'e>>) -> Result<Vec<EditOutcome<'e>>> {
    if !edits.iter().any(|edit| DocumentId::of(&edit.id).is_local()) {
        let outcomes = database.bulk_update(&edits).await?;
        return Ok(edits.into_iter().zip(outcomes).collect());
    }
    let is_local = |(_, edit): &(usize, Edit<'e>)| DocumentId::of(&edit.id).is_local();
    let (locals, others): (Vec<_>, Vec<_>) = edits.into_iter().enumerate().partition(is_local);
    let (places, others): (Vec<usize>, Vec<Edit<'e>>) = others.into_iter().unzip();
    let outcomes = database.bulk_update(&others).await?;
    let mut written: Vec<(usize, EditOutcome<'e>)> = places.into_iter().zip(others.into_iter().zip(outcomes)).collect();
    let outcomes = local::edit(database, &locals.iter().map(|(_, edit)| edit).collect::<Vec<_>>()).await?;
    written.extend(locals.into_iter().zip(outcomes).map(|((place, edit), outcome)| (place, (edit, outcome))));
    written.sort_unstable_by_key(|(place, _)| *place);
    Ok(written.into_iter().map(|(_, written)| written).collect())
}

/// Refuses all edits if the database is partitioned and an id is illegal there, as CouchDB does.
async fn check_ids(database: &Writer, edits: &[Edit<'_>]) -> Result<()> {
    if database.is_partitioned_known() == Some(false) {
        return Ok(());
    }
    let is_local = |edit: &&Edit<'_>| DocumentId::of(&edit.id).is_local();
    let refusal = edits.iter().filter(|edit| !is_local(edit)).find_map(|edit| check_partitioned_id(&edit.id).err());
    match refusal {
        Some(refusal) if database.is_partitioned().await? => Err(refusal.into()),
        _ => Ok(()),
    }
}

/// Refuses `all_or_nothing`, because many edits need more than one transaction.
fn no_transaction(edits: &[Edit<'_>]) -> Reply {
    let mut out = Vec::new();
    let mut rows = Array::new(&mut out);
    for edit in edits {
        let rev = edit.parent.as_ref().map_or_else(|| "0-".to_owned(), ToString::to_string);
        let mut row = rows.object();
        row.string(name!("id"), &edit.id).string(name!("rev"), &rev);
        row.string(name!("error"), "not_implemented");
        row.string(name!("reason"), "all_or_nothing is not supported");
    }
    rows.end();
    Reply::json(StatusCode::EXPECTATION_FAILED, out)
}

pub(crate) async fn bulk_docs(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let value = object(&body.bytes)?;
    let new_edits = match value.get("new_edits") {
        None | Some(Value::Bool(true)) => true,
        Some(Value::Bool(false)) => false,
        Some(_) => return Err(Failure::bad_request("`new_edits` parameter must be a boolean.")),
    };
    // As in CouchDB, replicated revisions ignore `all_or_nothing`.
    let all_or_nothing = new_edits && matches!(value.get("all_or_nothing"), Some(Value::Bool(true)));
    let docs = match take(value, "docs") {
        None => return Err(Failure::bad_request("POST body must include `docs` parameter.")),
        Some(Value::Array(docs)) => docs,
        Some(_) => return Err(Failure::bad_request("`docs` parameter must be an array.")),
    };
    let database = request.context.database(name, Write).await?;
    let mut uploads = Uploads::new(&database);
    let mut edits = Vec::with_capacity(docs.len());
    for doc in docs {
        let (mut edit, written): (Edit<'_>, _) = edit_from(doc, None, new_edits, database.clock())?;
        if !written.is_empty() && !all_or_nothing {
            edit.attachments = attachment_edits(&mut uploads, written, |_| None).await?;
        }
        if edit.id.is_empty() {
            edit.id = state.next_uuid()?.into();
        }
        edits.push(edit);
    }
    check_ids(&database, &edits).await?;
    if all_or_nothing {
        database.exists().await?;
        return Ok(no_transaction(&edits));
    }
    database.enter(edits.iter().map(|edit| &edit.id))?;
    uploads.stage().await?;
    // The request outlives its client, and may have 100,000 documents that are judged for seconds each.
    let client = request.client.as_ref();
    let ended = async {
        let _ = tokio::time::timeout(FUNCTIONS_MAX, Client::wait_until_gone(client)).await;
    };
    let outcomes = with_functions_until(ended, write(&database, edits)).await?;
    // A replicator retries a request but skips a document. Its retry does not judge the written revisions again.
    let is_unjudged =
        |(_, outcome): &&EditOutcome<'_>| matches!(outcome, Err(Refusal::NotJudged { because: NotJudged::Busy, .. }));
    if !new_edits && let Some((_, Err(refusal))) = outcomes.iter().find(is_unjudged) {
        return Err(refusal.clone().into());
    }
    // A replicated revision may be known already, and then its uploads are unused.
    if new_edits && outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
        uploads.mark_taken();
    }
    // CouchDB refuses the whole request for a stub of a missing attachment.
    let missing_stub = |(_, outcome): &&EditOutcome<'_>| matches!(outcome, Err(Refusal::MissingStub { .. }));
    if let Some((_, Err(refusal))) = outcomes.iter().find(missing_stub) {
        return Err(refusal.clone().into());
    }
    let mut out = Vec::with_capacity(100 * outcomes.len() + 2);
    let mut rows = Array::new(&mut out);
    for (edit, outcome) in outcomes {
        // For replicated revisions only failures are answered.
        if outcome.is_ok() && !new_edits {
            continue;
        }
        match outcome {
            Ok(WrittenRevision { rev }) => json_out::written(&edit.id, &rev, rows.place()),
            Err(refusal) => {
                let failure = Failure::from(refusal);
                let mut row = rows.object();
                row.string(name!("id"), &edit.id);
                if let Some(rev) = edit.history.as_ref().and_then(|history| history.first()) {
                    json_out::rev(rev, row.place(name!("rev")));
                }
                row.string(name!("error"), &failure.error).string(name!("reason"), &failure.reason);
            }
        }
    }
    rows.end();
    Ok(Reply::json(StatusCode::CREATED, out))
}
