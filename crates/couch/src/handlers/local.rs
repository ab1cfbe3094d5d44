//! Local documents: `_local/...`.

use flatbed_http::{Reply, Sender};
use flatbed_layer::json::{self, Limits, Object, Value, name};
use flatbed_layer::{
    DocumentId, Edit, EditParts, LocalDocument, LocalEdit, NotFound, Outcome, Reader, Refusal, RevId, WrittenRevision,
    check_local_id, local_id,
};
use flatbed_service::{Read, Write, Writer};
use hyper::{StatusCode, header};

use crate::error::{Failure, Result};
use crate::handlers::document::Destination;
use crate::query::{encode, revision};
use crate::reply::Interrupted;
use crate::request::Request;

/// The largest batch of local edits.
const EDITS_AT_ONCE: usize = 250;

/// The approximate bound of a batch's bodies, in bytes.
const EDITS_BYTES: usize = 1_000_000;

/// Answers `_local` without an id, with any method.
pub(crate) async fn no_id(mut request: Request) -> Result<Reply> {
    request.refuse(Failure::bad_request("Invalid _local document id.")).await
}

/// Handles `/{db}/_local/{id}`; `id` is the path after `_local/`.
pub(crate) async fn document(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    if id.is_empty() {
        return no_id(request).await;
    }
    request.skip_if_refused(check_local_id(id)).await?;
    match request.method.as_str() {
        "GET" | "HEAD" => {
            let document = request.context.database(name, Read).await?.get_local(id).await?;
            let document = document.ok_or_else(|| Failure::not_found("missing"))?;
            let mut out = Vec::new();
            write(&document, &mut out);
            let mut reply = Reply::json(StatusCode::OK, out);
            reply.header(header::ETAG, &format!("\"0-{}\"", document.revision));
            Ok(reply)
        }
        "PUT" => put(request.context.database(name, Write).await?, request, name, id).await,
        "DELETE" => {
            request.skip_body().await;
            if !request.context.database(name, Write).await?.delete_local(id).await? {
                return Err(Failure::not_found("missing"));
            }
            Ok(written(StatusCode::OK, id, 0))
        }
        "COPY" => {
            request.skip_body().await;
            let destination = Destination::of(&request)?;
            let document = request.context.database(name, Read).await?.get_local(id).await?;
            let document = document.ok_or_else(|| Failure::not_found("missing"))?;
            Box::pin(destination.write(&request, name, &document.body, Vec::new())).await
        }
        _ => request.refuse(Failure::method("DELETE,GET,HEAD,POST,PUT,COPY")).await,
    }
}

async fn put(database: Writer, mut request: Request, name: &str, id: &str) -> Result<Reply> {
    let body = request.read_body().await?;
    let value = json::parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    let EditParts { rev, deleted, body, .. } = EditParts::from_json(value, request.context.clock())?;
    let named = revision(&request.query, "rev")?;
    if deleted {
        if !request.context.database(name, Write).await?.delete_local(id).await? {
            return Err(Failure::not_found("missing"));
        }
        return Ok(written(StatusCode::CREATED, id, 0));
    }
    let document =
        LocalDocument { id: id.to_owned(), revision: next(rev.or(named).as_ref())?, body: json::members_to_vec(&body) };
    database.put_local(&document).await?;
    let mut reply = written(StatusCode::CREATED, id, document.revision);
    let location = format!("{}/{}/{}", request.base(), encode(name), encode(&local_id(id)));
    reply.header(header::LOCATION, &location);
    Ok(reply)
}

/// Writes or deletes the local documents of a `_bulk_docs`, in batches. Returns one outcome per edit, in order.
pub(crate) async fn edit(database: &Writer, edits: &[&Edit<'_>]) -> flatbed_layer::Result<Vec<Outcome>> {
    let mut outcomes: Vec<(usize, Outcome)> = Vec::with_capacity(edits.len());
    let mut rest = edits.iter().enumerate();
    while outcomes.len() < edits.len() {
        let (mut revs, mut ready, mut bytes) = (Vec::new(), Vec::new(), 0);
        while ready.len() < EDITS_AT_ONCE
            && bytes < EDITS_BYTES
            && let Some((place, edit)) = rest.next()
        {
            match ready_edit(edit) {
                Ok((rev, edit)) => {
                    bytes += if let LocalEdit::Put(document) = &edit { document.body.len() } else { 0 };
                    ready.push(edit);
                    revs.push((place, rev));
                }
                Err(refusal) => outcomes.push((place, Err(refusal))),
            }
        }
        let done = database.edit_locals(&ready).await?;
        outcomes.extend(
            revs.into_iter().zip(done).map(|((place, rev), done)| (place, done.map(|()| WrittenRevision { rev }))),
        );
    }
    outcomes.sort_unstable_by_key(|(place, _)| *place);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

pub(crate) async fn edit_one(database: &Writer, edit: &Edit<'_>) -> flatbed_layer::Result<WrittenRevision> {
    let (rev, edit) = ready_edit(edit)?;
    match edit {
        LocalEdit::Put(document) => database.put_local(&document).await?,
        LocalEdit::Delete(id) if database.delete_local(&id).await? => {}
        LocalEdit::Delete(_) => return Err(Refusal::DocumentNotFound(NotFound::Missing).into()),
    }
    Ok(WrittenRevision { rev })
}

/// Returns the new revision and the layer's edit.
fn ready_edit(edit: &Edit<'_>) -> std::result::Result<(RevId, LocalEdit), Refusal> {
    let id = DocumentId::of(&edit.id).local_name().unwrap_or_default().to_owned();
    let named = edit.history.as_ref().and_then(|history| history.first()).or(edit.parent.as_ref());
    let (revision, edit) = if edit.deleted {
        (0, LocalEdit::Delete(id))
    } else {
        let revision = next(named)?;
        (revision, LocalEdit::Put(LocalDocument { id, revision, body: json::members_to_vec(&edit.body) }))
    };
    Ok((RevId::from_parts(0, &revision.to_string())?, edit))
}

pub(super) fn short(id: &str) -> &str {
    DocumentId::of(id).local_name().unwrap_or(id)
}

/// Returns the next number after a revision `0-N`.
fn next(rev: Option<&RevId>) -> std::result::Result<u64, Refusal> {
    let Some(rev) = rev else { return Ok(1) };
    let number = rev.hash_text().parse::<u64>().ok().filter(|_| rev.generation() == 0);
    number.and_then(|number| number.checked_add(1)).ok_or(Refusal::InvalidRevision)
}

fn written(status: StatusCode, id: &str, revision: u64) -> Reply {
    let out = Object::text(|object| {
        object.bool("ok", true).string("id", &local_id(id)).string("rev", &format!("0-{revision}"));
    });
    let mut reply = Reply::json(status, out);
    reply.header(header::ETAG, &format!("\"0-{revision}\""));
    reply
}

pub(super) fn write(document: &LocalDocument, out: &mut Vec<u8>) {
    let mut object = Object::new(out);
    object.string("_id", &local_id(&document.id)).string("_rev", &format!("0-{}", document.revision));
    object.members(&document.body);
}

pub(super) fn write_row(document: &LocalDocument, include_docs: bool, out: &mut Vec<u8>) {
    let id = local_id(&document.id);
    let mut object = Object::new(out);
    object.string("id", &id).string("key", &id);
    object.object("value").string("rev", &format!("0-{}", document.revision));
    if include_docs {
        write(document, object.place("doc"));
    }
}

pub(super) fn write_missing(key: &Value<'_>, out: &mut Vec<u8>) {
    Object::new(out).value(name!("key"), key).string(name!("error"), "not_found");
}

/// Looks up a local document by its id and writes its row, or that of a missing id.
pub(super) async fn write_found(
    database: &Reader,
    key: &Value<'_>,
    include_docs: bool,
    write_missing: fn(&Value<'_>, &mut Vec<u8>),
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let id = key.as_str().and_then(|id| DocumentId::of(id).local_name()).filter(|id| check_local_id(id).is_ok());
    let found = match id {
        Some(id) => sender.unless_gone(database.get_local(id)).await??,
        None => None,
    };
    match found {
        Some(document) => write_row(&document, include_docs, &mut sender.buffer),
        None => write_missing(key, &mut sender.buffer),
    }
    Ok(())
}
