//! `/{db}/_local/{id}`: checkpoints.

use flatbed_http::Reply;
use flatbed_layer::json::{self, Value};
use flatbed_layer::{EditParts, LocalDocument, Refusal, RevId, check_local_id, local_id};
use flatbed_service::{Read, Write};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::reply::{self, empty};
use crate::request::{Request, object};

pub(crate) fn written(status: StatusCode, id: &str, rev: &str) -> Reply {
    reply::object(status, |object| {
        object.string("id", id).bool("ok", true).string("rev", rev);
    })
}

fn conflict() -> Failure {
    Failure::conflict("Document update conflict")
}

/// Handles `/{db}/_local/{id}`; `id` is the path after `_local/`.
pub(crate) async fn document(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_if_refused(check_local_id(id)).await?;
    match request.method {
        Method::PUT => put(request, name, id).await,
        Method::DELETE => {
            request.skip_body().await;
            let database = request.context.database(name, Write).await?;
            let found = database.get_local(id).await?;
            let Some(found) = found else {
                return Err(match request.query.get("rev") {
                    Some(_) => Failure::not_found("No previous revision to replace"),
                    None => Failure::not_found("missing"),
                });
            };
            let rev =
                request.query.get("rev").map(str::parse::<RevId>).transpose().map_err(|_| Refusal::InvalidRevision)?;
            if !is_of(rev.as_ref(), found.revision) {
                return Err(conflict());
            }
            database.delete_local(id).await?;
            Ok(empty(StatusCode::OK))
        }
        _ => {
            let database = request.context.database(name, Read).await?;
            let document = database.get_local(id).await?.ok_or_else(|| Failure::not_found("missing"))?;
            Ok(reply::object(StatusCode::OK, |object| {
                object.string("_id", &local_id(id)).string("_rev", &format!("0-{}", document.revision));
                object.members(&document.body);
            }))
        }
    }
}

/// Returns whether a revision matches the stored one.
fn is_of(rev: Option<&RevId>, revision: u64) -> bool {
    rev.is_some_and(|rev| rev.to_string() == format!("0-{revision}"))
}

async fn put(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    let body = request.json().await?;
    let EditParts { rev, body, .. } = EditParts::from_json(object(&body.bytes)?, request.context.clock())?;
    let document = write(&request, name, id, rev, body).await?;
    Ok(written(StatusCode::CREATED, &local_id(id), &format!("0-{}", document.revision)))
}

/// Writes a local document if the named revision is current.
pub(crate) async fn write(
    request: &Request,
    name: &str,
    id: &str,
    rev: Option<RevId>,
    body: Value<'_>,
) -> Result<LocalDocument> {
    let database = request.context.database(name, Write).await?;
    let found = database.get_local(id).await?.map(|document| document.revision);
    let revision = match (found, &rev) {
        (None, None) => 1,
        (Some(found), rev) if is_of(rev.as_ref(), found) => found.saturating_add(1),
        _ => return Err(conflict()),
    };
    let mut members = Vec::new();
    if let Value::Object(body) = &body {
        json::write_members(body, &mut members);
    }
    let document = LocalDocument { id: id.to_owned(), revision, body: members };
    database.put_local(&document).await?;
    Ok(document)
}
