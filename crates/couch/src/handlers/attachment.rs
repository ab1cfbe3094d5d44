//! `/{db}/{doc}/{attachment}`

use flatbed_http::{Reply, TenantReply};
use flatbed_layer::{AttachmentEdit, GetOptions, Reader, Refusal, RevId};
use flatbed_service::{Read, Uploads, Write, Writer};
use hyper::{StatusCode, header};

use crate::error::{Failure, Result};
use crate::handlers::document::named_rev;
use crate::handlers::partition::{refuse_in_partitioned, without_partition};
use crate::json_out;
use crate::query::{encode, revision};
use crate::request::Request;
use flatbed_documents::{BaseError, BaseRevision, DEFAULT_TYPE, DocumentError, StreamedUpload, base64, check_name};

pub(crate) async fn attachment(request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    match request.method.as_str() {
        "PUT" => put(request.context.database(db, Write).await?, request, db, id, name).await,
        "DELETE" => delete(request.context.database(db, Write).await?, request, id, name).await,
        _ => get(request.context.database(db, Read).await?, request, id, name).await.map(Reply::from),
    }
}

async fn get(database: Reader, request: Request, id: &str, name: &str) -> Result<TenantReply> {
    let rev = revision(&request.query, "rev")?;
    refuse_in_partitioned(&database, without_partition(std::iter::once(id))).await?;
    let reader = database.attachment(id, rev.as_ref(), name).await?;
    Ok(flatbed_documents::attachment(reader, &request)?)
}

fn base_failure(error: BaseError) -> Failure {
    match error {
        BaseError::Unnamed => Refusal::Conflict.into(),
        BaseError::Missing => Failure::new(StatusCode::CONFLICT, "not_found", "missing_rev"),
        BaseError::Layer(error) => error.into(),
    }
}

async fn put(database: Writer, mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    let checked = async {
        flatbed_layer::check_document_id(id)?;
        check_name(name)?;
        BaseRevision::read(&database, id, named_rev(&request)?).await.map_err(base_failure)
    };
    let base = checked.await;
    let base = request.skip_if_refused(base).await?;
    let content_type = request.header(header::CONTENT_TYPE).unwrap_or(DEFAULT_TYPE).to_owned();
    let is_gzip = match request.header(header::CONTENT_ENCODING).map(str::trim) {
        None | Some("" | "identity") => false,
        Some("gzip") => true,
        Some(_) => {
            let reason = "Only gzip and identity content-encodings are supported";
            return request.refuse(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_ctype", reason)).await;
        }
    };
    let expected_md5 = request.header(hyper::header::HeaderName::from_static("content-md5")).map(str::to_owned);
    let mut uploads = Uploads::new(&database);
    let data = StreamedUpload::receive(&content_type, is_gzip, &mut request, &mut uploads).await?;
    if expected_md5.is_some_and(|expected| expected.trim() != base64(&data.sent_md5)) {
        return Err(DocumentError::WrongDigest.into());
    }
    let edit = base.edit(id, name, Some(AttachmentEdit::Data { content_type, revpos: None, data }));
    uploads.stage().await?;
    let rev = database.update(&edit).await?.rev;
    uploads.mark_taken();
    let mut reply = written(StatusCode::CREATED, id, &rev);
    reply.header(header::LOCATION, &format!("{}/{}/{}/{}", request.base(), encode(db), encode(id), encode(name)));
    Ok(reply)
}

async fn delete(database: Writer, mut request: Request, id: &str, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let Some(rev) = named_rev(&request)? else {
        let document = database.get(id, &GetOptions::default()).await?;
        let is_there = document.attachments.iter().any(|attachment| attachment.name == name);
        let refusal = if is_there { Refusal::Conflict } else { Refusal::AttachmentNotFound };
        return Err(refusal.into());
    };
    let base = BaseRevision::read(&database, id, Some(rev)).await.map_err(base_failure)?;
    if !base.has(name) {
        return Err(Refusal::AttachmentNotFound.into());
    }
    let rev = database.update(&base.edit(id, name, None)).await?.rev;
    Ok(written(StatusCode::OK, id, &rev))
}

fn written(status: StatusCode, id: &str, rev: &RevId) -> Reply {
    let mut out = Vec::new();
    json_out::written(id, rev, &mut out);
    Reply::json(status, out)
}
