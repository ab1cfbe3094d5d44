//! Requests with many documents: `_bulk_docs`, `_revs_diff`, `_purge`.

use std::borrow::Cow;

use flatbed_clock::Clock;
use flatbed_documents::{AttachmentMember, DocumentError, attachment_edits, check_any_id};
use flatbed_http::Reply;
use flatbed_layer::json::{Array, Object, Value};
use flatbed_layer::{DocumentId, Edit, Refusal, RevId};
use flatbed_service::{Purge, Read, Uploads, Write, json_out};
use hyper::{StatusCode, header};

use crate::body::{edit_of, new_id};
use crate::error::{Failure, Result};
use crate::local;
use crate::reply::{json, uncached};
use crate::request::{Request, object, take};

pub(crate) const ENTRIES_MAX: usize = 100_000;

/// The largest batch of documents in one lookup.
const DOCUMENTS_AT_ONCE: usize = 100;

/// A parsed entry of `_bulk_docs`.
enum BulkEntry<'e> {
    Edit(Box<(Edit<'e>, Vec<AttachmentMember<'e>>)>),
    Local(Box<Edit<'e>>),
    Invalid { id: Option<String>, failure: Failure },
}

pub(crate) fn too_many() -> Failure {
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("at most {ENTRIES_MAX} entries in a request"))
}

fn wanted<'e>(doc: Value<'e>, new_edits: bool, clock: &Clock) -> Result<BulkEntry<'e>> {
    let Value::Object(mut members) = doc else {
        return Err(Failure::bad_request("Document body must be JSON"));
    };
    // As recorded from Sync Gateway, an `_id` that is no string is ignored and a new id is generated.
    members.retain(|(name, value)| name != "_id" || matches!(value, Value::String(_)));
    let doc = Value::Object(members);
    let id = doc.get("_id").and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
    let made = edit_of(doc, None, new_edits, clock).and_then(|(mut edit, written)| {
        if edit.id.is_empty() {
            if !new_edits {
                return Err(Failure::bad_request("Invalid doc ID"));
            }
            edit.id = new_id()?.into();
        }
        check_any_id(&edit.id)?;
        Ok((edit, written))
    });
    Ok(match made {
        Ok((edit, _)) if DocumentId::of(&edit.id).is_local() => BulkEntry::Local(Box::new(edit)),
        Ok(made) => BulkEntry::Edit(Box::new(made)),
        Err(failure) => BulkEntry::Invalid { id, failure },
    })
}

pub(crate) async fn bulk_docs(mut request: Request, name: &str) -> Result<Reply> {
    let body = request.json().await?;
    let value = object(&body.bytes)?;
    let new_edits = value.get("new_edits") != Some(&Value::Bool(false));
    let Some(Value::Array(docs)) = take(value, "docs") else {
        return Err(Failure::bad_request("missing 'docs' property"));
    };
    if docs.len() > ENTRIES_MAX {
        return Err(too_many());
    }
    let clock = request.context.clock();
    let wanted = docs.into_iter().map(|doc| wanted(doc, new_edits, clock));
    let wanted: Vec<BulkEntry<'_>> = wanted.collect::<Result<_>>()?;
    let database = request.context.database(name, Write).await?;
    let mut uploads = Uploads::new(&database);
    let (mut edits, mut rest) = (Vec::new(), Vec::with_capacity(wanted.len()));
    for wanted in wanted {
        rest.push(match wanted {
            BulkEntry::Edit(made) => {
                let (mut edit, written) = *made;
                match attachment_edits(&mut uploads, written, |_| None).await {
                    Ok(attachments) => {
                        edit.attachments = attachments;
                        edits.push(edit);
                        None
                    }
                    Err(error @ DocumentError::Malformed(_)) => {
                        Some(BulkEntry::Invalid { id: Some(edit.id.into_owned()), failure: error.into() })
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            other => Some(other),
        });
    }
    uploads.stage().await?;
    database.enter(edits.iter().map(|edit| &edit.id))?;
    let outcomes = database.bulk_update(&edits).await?;
    // A replicated revision may be known already, and then its uploads are unused.
    if new_edits && outcomes.iter().all(|outcome| outcome.is_ok()) {
        uploads.mark_taken();
    }
    let mut done = edits.iter().zip(outcomes);
    let mut out = Vec::with_capacity(100 * rest.len() + 2);
    let mut rows = Array::new(&mut out);
    // As recorded from Sync Gateway, local documents come last.
    let (locals, others): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|other| matches!(other, Some(BulkEntry::Local(_))));
    for other in others.into_iter().chain(locals) {
        let (id, outcome) = match other {
            None => match done.next() {
                Some((edit, outcome)) => {
                    let names_parent = edit.parent.is_some() || edit.history.is_some();
                    let outcome = outcome.map(|updated| updated.rev.to_string());
                    let outcome = outcome.map_err(|refusal| Failure::of_refused_write(refusal, names_parent));
                    (Some(edit.id.to_string()), outcome)
                }
                None => break,
            },
            Some(BulkEntry::Local(edit)) => {
                let Edit { id, parent, body, .. } = *edit;
                let short = DocumentId::of(&id).local_name().unwrap_or_default().to_owned();
                let written = Box::pin(local::write(&request, name, &short, parent, body)).await;
                (Some(id.into_owned()), written.map(|document| format!("0-{}", document.revision)))
            }
            Some(BulkEntry::Invalid { id, failure }) => (id, Err(failure)),
            Some(BulkEntry::Edit(_)) => continue,
        };
        let mut row = rows.object();
        match outcome {
            Ok(rev) => {
                row.string("id", &id.unwrap_or_default()).string("rev", &rev);
            }
            Err(failure) => {
                row.string("error", &failure.row_error());
                if let Some(id) = &id {
                    row.string("id", id);
                }
                row.string("reason", &failure.reason).number("status", failure.status.as_u16().into());
            }
        }
    }
    rows.end();
    Ok(json(StatusCode::CREATED, out))
}

/// Parses a document's id and revisions.
fn named((id, list): (Cow<'_, str>, Value<'_>)) -> Result<(String, Vec<RevId>)> {
    let invalid = || Failure::bad_request("Bad JSON: the body must be an object of lists of revisions");
    let Value::Array(list) = list else { return Err(invalid()) };
    let rev = |rev: &Value<'_>| -> Result<RevId> {
        Ok(rev.as_str().ok_or_else(invalid)?.parse::<RevId>().map_err(|_| Refusal::InvalidRevision)?)
    };
    Ok((id.into_owned(), list.iter().map(rev).collect::<Result<_>>()?))
}

pub(crate) async fn revs_diff(mut request: Request, name: &str) -> Result<Reply> {
    let body = request.json().await?;
    let Value::Object(members) = object(&body.bytes)? else { return Err(Failure::bad_request("Bad JSON")) };
    let count = |list: &Value<'_>| if let Value::Array(list) = list { list.len().max(1) } else { 1 };
    if members.iter().map(|(_, list)| count(list)).sum::<usize>() > ENTRIES_MAX {
        return Err(too_many());
    }
    let database = request.context.database(name, Read).await?;
    if members.is_empty() {
        database.exists().await?;
    }
    let mut out = Vec::new();
    let mut answer = Object::new(&mut out);
    let mut members = members.into_iter();
    loop {
        let part = members.by_ref().take(DOCUMENTS_AT_ONCE).map(named).collect::<Result<Vec<_>>>()?;
        if part.is_empty() {
            break;
        }
        let missing = database.missing_revs(&part).await?;
        for ((id, _), (revs, ancestors)) in part.iter().zip(missing).filter(|(_, (revs, _))| !revs.is_empty()) {
            let mut document = answer.object(id.as_str());
            json_out::revs(&revs, document.place("missing"));
            if !ancestors.is_empty() {
                json_out::revs(&ancestors, document.place("possible_ancestors"));
            }
        }
    }
    answer.end();
    let mut reply = json(StatusCode::OK, out);
    reply.header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
    Ok(reply)
}

/// Purges all revisions of documents: `{"id":["*"],...}`. Entries for single revisions are ignored.
pub(crate) async fn purge(mut request: Request, name: &str) -> Result<Reply> {
    let body = request.body().await?;
    let Ok(Value::Object(members)) = object(&body.bytes) else {
        return Err(Failure::bad_request("_purge document ID's must be passed as a JSON"));
    };
    if members.len() > ENTRIES_MAX {
        return Err(too_many());
    }
    let database = request.context.database(name, Purge).await?;
    if members.is_empty() {
        database.exists().await?;
    }
    let mut out = Vec::new();
    let mut answer = Object::new(&mut out);
    let mut purged = answer.object("purged");
    for (id, revs) in &members {
        let is_all = matches!(revs, Value::Array(revs) if matches!(&revs[..], [Value::String(rev)] if rev == "*"));
        if !is_all || flatbed_layer::check_document_id(id).is_err() || !purge_all(&database, id).await? {
            continue;
        }
        purged.array(&**id).string("*");
    }
    purged.end();
    answer.end();
    Ok(uncached(json(StatusCode::OK, out)))
}

/// The number of retries for leaves added concurrently.
const PURGES_MAX: usize = 10;

/// Purges a document and returns whether it existed.
async fn purge_all(database: &flatbed_service::PurgeAccess, id: &str) -> Result<bool> {
    let mut was_there = false;
    for _ in 0..PURGES_MAX {
        let options = flatbed_layer::GetOptions { no_body: true, ..Default::default() };
        let (leaves, _) = database.open_revs(id, &flatbed_layer::OpenRevs::All, 0, true, &options).await?;
        let revs: Vec<RevId> = leaves.into_iter().flatten().map(|leaf| leaf.rev).collect();
        if revs.is_empty() {
            return Ok(was_there);
        }
        database.purge(id, &revs).await?;
        was_there = true;
    }
    Ok(was_there)
}
