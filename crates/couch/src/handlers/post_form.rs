//! `POST /{db}/{doc}` with `multipart/form-data`: uploads of attachments from a web page. The fields are CouchDB's: one
//! `_attachments` per file, and either `_doc` with a document's JSON or `_rev` with an existing revision. Other fields
//! are ignored. Files are uploaded as they arrive, in any order.

use flatbed_http::Reply;
use flatbed_http::multipart::Parts;
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{AttachmentEdit, Edit, GetOptions, Reader, StagedUpload};
use flatbed_service::{Uploads, Write};
use hyper::{StatusCode, header};

use crate::error::{Failure, Result, parse_rev};
use crate::handlers::document::{edit_of_client, name_parent, write_one};
use crate::multipart::is_kind;
use crate::request::{Body, Request};
use crate::uploading::upload_part;
use flatbed_documents::{DEFAULT_TYPE, attachment_edits, check_name};

const KIND: &str = "multipart/form-data";

/// The largest number of fields; a revision cannot have more attachments.
const FIELDS_MAX: usize = 1_000;

/// The largest `_rev` in bytes; it stays in memory until the form ends.
const REV_BYTES_MAX: usize = 1_024;

pub(crate) async fn post(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    let done = post_form(&mut request, name, id).await;
    // Skips the rest of the body after the last boundary or after a refusal, but not after a timeout, which would wait
    // a second time.
    if !done.as_ref().is_err_and(|failure| failure.status == StatusCode::REQUEST_TIMEOUT) {
        request.skip_body().await;
    }
    done
}

async fn post_form(request: &mut Request, name: &str, id: &str) -> Result<Reply> {
    check_referer(request)?;
    flatbed_layer::check_document_id(id)?;
    if !is_kind(request.header(header::CONTENT_TYPE).unwrap_or_default(), KIND) {
        let reason = "Content-Type must be multipart/form-data";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
    }
    let database = request.context.database(name, Write).await?;
    let mut uploads = Uploads::new(&database);
    let mut parts = Parts::new(request, KIND)?;
    let form = Form::read(&mut parts, &mut uploads).await?;
    let text;
    let mut edit = match (&form.document, &form.rev) {
        (Some(document), _) => {
            let (mut edit, written) = edit_of_client(&document.bytes, id, database.clock())?;
            name_parent(parts.request(), &mut edit)?;
            let kept = written.into_iter().filter(|attachment| !form.has_file(&attachment.name)).collect();
            edit.attachments = attachment_edits(&mut uploads, kept, |_| None).await?;
            edit
        }
        (None, Some(rev)) => {
            let rev = parse_rev(rev)?;
            let there = of_revision(&database, id, rev).await?;
            text = there.text;
            let body = json::parse(&text, &Limits::default()).map_err(|_| Failure::invalid_json())?;
            let kept = there.names.into_iter().filter(|name| !form.has_file(name));
            let attachments = kept.map(|name| (name, AttachmentEdit::Stub { revpos: None })).collect();
            let parent = Some(there.rev);
            Edit { expiry: None, id: id.into(), parent, history: None, deleted: there.deleted, attachments, body }
        }
        (None, None) => return Err(Failure::bad_request("The form needs a field _doc or a field _rev")),
    };
    // New attachments come first, as in CouchDB, because the order enters the revision's hash.
    edit.attachments.splice(0..0, form.files);
    uploads.stage().await?;
    let reply = write_one(&database, &edit, false).await?;
    uploads.mark_taken();
    Ok(reply)
}

/// Checks that a page of this server sent the form. Browsers would send another site's form with the user's
/// credentials.
fn check_referer(request: &Request) -> Result<()> {
    let Some(referer) = request.header(header::REFERER) else {
        return Err(Failure::bad_request("Referer header required."));
    };
    let authority = |address: &str| {
        let rest = address.split_once("://").map_or("", |(_, rest)| rest);
        rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase()
    };
    if authority(referer) == authority(&request.base()) {
        return Ok(());
    }
    Err(Failure::bad_request("Referer header must match host."))
}

#[derive(Default)]
struct Form {
    document: Option<Body>,
    rev: Option<String>,
    files: Vec<(String, AttachmentEdit)>,
}

impl Form {
    /// 400 for two files of one name and for too many fields.
    async fn read(parts: &mut Parts<'_, Request>, uploads: &mut Uploads) -> Result<Form> {
        let mut form = Form::default();
        let mut count = 0;
        while let Some(headers) = parts.part().await? {
            count += 1;
            if count > FIELDS_MAX {
                return Err(Failure::bad_request(format!("The form has more than {FIELDS_MAX} fields")));
            }
            let file = headers.disposition("filename");
            match (headers.disposition("name"), file) {
                // The first of repeated fields counts, as in CouchDB.
                (Some("_doc"), _) if form.document.is_none() => form.document = Some(parts.text().await?),
                (Some("_rev"), _) if form.rev.is_none() => {
                    let invalid = || Failure::bad_request("Invalid rev format");
                    let rev = parts.short_text(REV_BYTES_MAX).await?.ok_or_else(invalid)?;
                    form.rev = Some(String::from_utf8_lossy(&rev).into_owned());
                }
                (Some("_attachments"), Some(file)) => {
                    // Without parameters, as CouchDB stores it.
                    let kind = headers.get("content-type").and_then(|kind| kind.split(';').next()).map(str::trim);
                    let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_TYPE).to_owned();
                    form.file(parts, uploads, file.to_owned(), kind).await?;
                }
                _ => parts.skip().await?,
            }
        }
        Ok(form)
    }

    async fn file(
        &mut self,
        parts: &mut Parts<'_, Request>,
        uploads: &mut Uploads,
        name: String,
        content_type: String,
    ) -> Result<()> {
        if name.is_empty() {
            // Browsers send an empty part for a field without a chosen file.
            let is_empty = parts.data().await?.is_none();
            return if is_empty { Ok(()) } else { Ok(check_name(&name)?) };
        }
        check_name(&name)?;
        if self.has_file(&name) {
            return Err(Failure::bad_request("Duplicate attachments"));
        }
        let data: StagedUpload = upload_part(parts, uploads, &content_type, false).await?;
        self.files.push((name, AttachmentEdit::Data { content_type, revpos: None, data }));
        Ok(())
    }

    fn has_file(&self, name: &str) -> bool {
        self.files.iter().any(|(file, _)| file == name)
    }
}

/// The existing revision.
struct BaseRevision {
    rev: flatbed_layer::RevId,
    deleted: bool,
    text: Vec<u8>,
    names: Vec<String>,
}

async fn of_revision(database: &Reader, id: &str, rev: flatbed_layer::RevId) -> Result<BaseRevision> {
    let options = GetOptions { rev: Some(rev), tombstone: true, ..GetOptions::default() };
    let document = database.get(id, &options).await?;
    Ok(BaseRevision {
        rev: document.rev,
        deleted: document.deleted,
        text: [b"{", document.body.as_slice(), b"}"].concat(),
        names: document.attachments.into_iter().map(|attachment| attachment.name).collect(),
    })
}
