//! `/{db}/{doc}/{attachment}`

use flatbed_http::{Reply, TenantReply};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{AttachmentEdit, Edit, Error as LayerError, GetOptions, Reader, Refusal, RevId};
use flatbed_service::{Read, Uploads, Write, Writer};
use hyper::{StatusCode, header};

use crate::error::{Failure, Result};
use crate::handlers::document::named_rev;
use crate::handlers::partition::{refuse_in_partitioned, without_partition};
use crate::json_out;
use crate::query::{encode, revision};
use crate::request::Request;
use flatbed_documents::{DEFAULT_TYPE, DocumentError, Uploading, base64, check_name};

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

/// The revision that an attachment is added to or removed from.
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
        (Ok(document), None) if !document.deleted => Err(Refusal::Conflict.into()),
        (Ok(_), None) | (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), None) => {
            Ok(Base { parent: None, body: b"{}".to_vec(), names: Vec::new() })
        }
        (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), Some(_)) => {
            Err(Failure::new(StatusCode::CONFLICT, "not_found", "missing_rev"))
        }
        (Err(error), _) => Err(error.into()),
    }
}

async fn put(database: Writer, mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    let checked = async {
        flatbed_layer::check_document_id(id)?;
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
    let is_gzip = match request.header(header::CONTENT_ENCODING).map(str::trim) {
        None | Some("" | "identity") => false,
        Some("gzip") => true,
        Some(_) => {
            request.skip_body().await;
            let reason = "Only gzip and identity content-encodings are supported";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_ctype", reason));
        }
    };
    let expected_md5 = request.header(hyper::header::HeaderName::from_static("content-md5")).map(str::to_owned);
    let mut uploads = Uploads::new(&database);
    let mut uploading = Uploading::new(&content_type, is_gzip);
    while let Some(piece) = request.next_piece().await? {
        uploading.add(piece, &request.body, &uploads).await?;
    }
    let data = uploading.finish(&mut uploads).await?;
    if expected_md5.is_some_and(|expected| expected.trim() != base64(&data.sent_md5)) {
        return Err(DocumentError::WrongDigest.into());
    }
    let mut attachments = vec![(name.to_owned(), AttachmentEdit::Data { content_type, revpos: None, data })];
    let others = base.names.iter().filter(|other| *other != name);
    attachments.extend(others.map(|other| (other.clone(), AttachmentEdit::Stub { revpos: None })));
    uploads.stage().await?;
    let rev = write(&database, id, &base, attachments).await?;
    uploads.taken();
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
    let base = base(&database, id, Some(rev)).await?;
    if !base.names.iter().any(|other| other == name) {
        return Err(Refusal::AttachmentNotFound.into());
    }
    let others = base.names.iter().filter(|other| *other != name);
    let others = others.map(|other| (other.clone(), AttachmentEdit::Stub { revpos: None })).collect();
    let rev = write(&database, id, &base, others).await?;
    Ok(written(StatusCode::OK, id, &rev))
}

async fn write(database: &Writer, id: &str, base: &Base, attachments: Vec<(String, AttachmentEdit)>) -> Result<RevId> {
    let body = json::parse(&base.body, &Limits::default()).unwrap_or(Value::Object(Vec::new()));
    let parent = base.parent.clone();
    let edit = Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments, body };
    Ok(database.update(&edit).await?.rev)
}

fn written(status: StatusCode, id: &str, rev: &RevId) -> Reply {
    let mut out = Vec::new();
    json_out::written(id, rev, &mut out);
    Reply::json(status, out)
}
