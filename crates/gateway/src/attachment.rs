//! `/{db}/{id}/{attachment}`

use flatbed_documents::{DEFAULT_TYPE, Uploading, check_name};
use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{AttachmentEdit, Edit, Error as LayerError, GetOptions, Reader, Refusal, RevId};
use flatbed_service::{Read, Uploads, Write};
use hyper::{Method, StatusCode, header};

use crate::document::{named_rev, write};
use crate::error::{Failure, Result};
use crate::reply::{failed, plain};
use crate::request::Request;

/// Media types without scripts. Others are sent for download only.
const SAFE_TYPES: &[&str] = &["text/plain", "image/png", "image/jpeg", "image/gif", "image/webp"];

pub(crate) async fn attachment(mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    if let Err(refusal) = flatbed_layer::check_document_id(id) {
        request.skip_body().await;
        return Err(refusal.into());
    }
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

/// The revision that an attachment is added to.
struct Base {
    parent: Option<RevId>,
    body: Vec<u8>,
    names: Vec<String>,
}

async fn base(database: &Reader, id: &str, rev: Option<RevId>) -> Result<Base> {
    let options = GetOptions { rev: rev.clone(), tombstone: true, ..GetOptions::default() };
    match (database.get(id, &options).await, rev) {
        (Ok(document), Some(rev)) => Ok(Base {
            parent: Some(rev),
            body: [b"{", document.body.as_slice(), b"}"].concat(),
            names: document.attachments.into_iter().map(|attachment| attachment.name).collect(),
        }),
        (Ok(document), None) if !document.deleted => {
            Err(Failure::conflict("Cannot modify attachments without a specific rev ID"))
        }
        (Ok(_), None) | (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), None) => {
            Ok(Base { parent: None, body: b"{}".to_vec(), names: Vec::new() })
        }
        (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), Some(_)) => Err(Refusal::Conflict.into()),
        (Err(error), _) => Err(error.into()),
    }
}

async fn put(mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    let database = request.context.database(db, Write).await?;
    let checked = async {
        check_name(name)?;
        base(&database, id, named_rev(&request)?).await
    };
    let base = match checked.await {
        Ok(base) => base,
        Err(failure) => {
            request.skip_body().await;
            return Err(failure);
        }
    };
    let content_type = request.header(header::CONTENT_TYPE).unwrap_or(DEFAULT_TYPE).to_owned();
    if !matches!(request.header(header::CONTENT_ENCODING).map(str::trim), None | Some("" | "identity")) {
        request.skip_body().await;
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported Content-Encoding"));
    }
    let mut uploads = Uploads::new(&database);
    let mut uploading = Uploading::new(&content_type, false);
    while let Some(piece) = request.next_piece().await? {
        uploading.add(piece, &request.body, &uploads).await?;
    }
    let data = uploading.finish(&mut uploads).await?;
    let mut attachments = vec![(name.to_owned(), AttachmentEdit::Data { content_type, revpos: None, data })];
    let others = base.names.iter().filter(|other| *other != name);
    attachments.extend(others.map(|other| (other.clone(), AttachmentEdit::Stub { revpos: None })));
    uploads.stage().await?;
    let body = json::parse(&base.body, &Limits::default()).unwrap_or(Value::Object(Vec::new()));
    let edit =
        Edit { id: id.into(), parent: base.parent, history: None, deleted: false, expiry: None, attachments, body };
    let (rev, mut reply) = write(&request, db, &edit).await?;
    uploads.taken();
    reply.status = StatusCode::CREATED;
    reply.header(header::ETAG, &format!("\"{rev}\""));
    Ok(reply)
}
