//! `/{db}/{id}/{attachment}`

use flatbed_documents::{BaseError, BaseRevision, DEFAULT_TYPE, StreamedUpload, check_name};
use flatbed_http::Reply;
use flatbed_layer::{AttachmentEdit, Error as LayerError, Refusal, RevId};
use flatbed_service::{Read, Uploads, Write};
use hyper::{Method, StatusCode, header};

use crate::document::{named_rev, write};
use crate::error::{Failure, Result};
use crate::reply::{failed, plain};
use crate::request::Request;

/// Media types without scripts. Others are sent for download only.
const SAFE_TYPES: &[&str] = &["text/plain", "image/png", "image/jpeg", "image/gif", "image/webp"];

pub(crate) async fn attachment(mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    request.skip_if_refused(flatbed_layer::check_document_id(id)).await?;
    match request.method {
        Method::PUT => put(request, db, id, name).await,
        _ => get(request, db, id, name).await,
    }
}

async fn get(request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    let database = request.context.database(db, Read).await?;
    let missing = || Failure::not_found("missing");
    let rev = request.query.get("rev").map(|rev| rev.parse::<RevId>().map_err(|_| missing())).transpose()?;
    let reader = database.attachment(id, rev.as_ref(), name).await.map_err(|error| match error {
        LayerError::Refused(Refusal::AttachmentNotFound) => Failure::not_found(format!("missing attachment {name}")),
        error => error.into(),
    })?;
    let kind = reader.attachment().content_type.to_ascii_lowercase();
    let is_safe = SAFE_TYPES.contains(&kind.split(';').next().unwrap_or_default().trim());
    match flatbed_documents::attachment(reader, &request).map_err(Failure::from) {
        Ok(reply) => {
            let mut reply = plain(reply.into());
            // Any user may have written the attachment, so administrators always download it.
            if !is_safe || request.context.principal().is_admin {
                reply.header(header::CONTENT_DISPOSITION, "attachment");
            }
            Ok(reply)
        }
        Err(failure) if failure.status == StatusCode::RANGE_NOT_SATISFIABLE => {
            let mut reply = failed(&failure);
            reply.header(header::ACCEPT_RANGES, "bytes");
            Ok(reply)
        }
        Err(failure) => Err(failure),
    }
}

fn base_failure(error: BaseError) -> Failure {
    match error {
        BaseError::Unnamed => Failure::conflict("Cannot modify attachments without a specific rev ID"),
        BaseError::Missing => Refusal::Conflict.into(),
        BaseError::Layer(error) => error.into(),
    }
}

async fn put(mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    let database = request.context.database(db, Write).await?;
    let checked = async {
        check_name(name)?;
        BaseRevision::read(&database, id, named_rev(&request)?).await.map_err(base_failure)
    };
    let base = checked.await;
    let base = request.skip_if_refused(base).await?;
    let content_type = request.header(header::CONTENT_TYPE).unwrap_or(DEFAULT_TYPE).to_owned();
    if !matches!(request.header(header::CONTENT_ENCODING).map(str::trim), None | Some("" | "identity")) {
        return request.refuse(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported Content-Encoding")).await;
    }
    let mut uploads = Uploads::new(&database);
    let data = StreamedUpload::receive(&content_type, false, &mut request, &mut uploads).await?;
    let edit = base.edit(id, name, Some(AttachmentEdit::Data { content_type, revpos: None, data }));
    uploads.stage().await?;
    let (rev, mut reply) = write(&request, db, &edit).await?;
    uploads.mark_taken();
    reply.status = StatusCode::CREATED;
    reply.header(header::ETAG, &format!("\"{rev}\""));
    Ok(reply)
}
