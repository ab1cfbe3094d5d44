//! `PUT /{db}/{doc}` with `multipart/related`: the document's JSON is the first part, and each attachment that follows
//! is one part. Data is uploaded as it arrives.

use flatbed_http::Reply;
use flatbed_http::multipart::Parts;
use flatbed_http::multipart::{MultipartError, PartHeaders};
use flatbed_layer::StagedUpload;
use flatbed_service::{Uploads, Write};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::handlers::document::{edit_put, write_put};
use crate::multipart::is_kind;
use crate::request::Request;
use crate::uploading::upload_part;
use flatbed_documents::{AttachmentMember, Source, attachment_edits};

pub(crate) async fn put(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    let done = put_parts(&mut request, name, id).await;
    // Skips the rest of the body after the last boundary or after a refusal, but not after a timeout, which would wait
    // a second time.
    if !done.as_ref().is_err_and(|failure| failure.status == StatusCode::REQUEST_TIMEOUT) {
        request.skip_body().await;
    }
    done
}

async fn put_parts(request: &mut Request, name: &str, id: &str) -> Result<Reply> {
    let mut parts = Parts::new(request, "multipart/related")?;
    let first = parts.part().await?.ok_or(MultipartError::NoBoundary)?;
    if !is_kind(first.get("content-type").unwrap_or_default(), "application/json") {
        let reason = "Content-Type must be application/json";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_ctype", reason));
    }
    let body = parts.text().await?;
    let (mut edit, written) = edit_put(&body.bytes, id, parts.request())?;
    let mut uploads = Uploads::new(&parts.request().context.database(name, Write).await?);
    let mut followed = ExpectedAttachments::new(&written);
    while let Some(headers) = parts.part().await? {
        let at = followed.place(&headers)?;
        let Some(awaited) = written.get(at) else { break };
        let data = upload_part(&mut parts, &mut uploads, &awaited.content_type, awaited.is_gzip).await?;
        followed.data.push((awaited.name.clone(), data));
    }
    let mut data = followed.data;
    let found = |name: &str| {
        let at = data.iter().position(|(found, _)| found == name)?;
        Some(data.swap_remove(at).1)
    };
    edit.attachments = attachment_edits(&mut uploads, written, found).await?;
    uploads.stage().await?;
    let reply = write_put(parts.request(), name, &edit).await?;
    // A replicated revision may be known already, and then its uploads are unused.
    if edit.history.is_none() {
        uploads.mark_taken();
    }
    Ok(reply)
}

/// The expected attachments, in the order of the JSON, and those already received.
struct ExpectedAttachments {
    /// Names and indexes in the list of all attachments.
    awaited: Vec<(String, usize)>,
    come: Vec<String>,
    data: Vec<(String, StagedUpload)>,
}

impl ExpectedAttachments {
    fn new(written: &[AttachmentMember<'_>]) -> ExpectedAttachments {
        let follows = written.iter().enumerate().filter(|(_, attachment)| matches!(attachment.source, Source::Follows));
        let awaited = follows.map(|(at, attachment)| (attachment.name.clone(), at)).collect();
        ExpectedAttachments { awaited, come: Vec::new(), data: Vec::new() }
    }

    /// Returns the index of a part's attachment. The part's file name decides if it matches one. Otherwise the order
    /// decides, as it always does in CouchDB, because names may be encoded differently.
    fn place(&mut self, headers: &PartHeaders) -> Result<usize> {
        let surplus = || Failure::bad_request("The multipart body has a part without an attachment in the JSON");
        let file_name = headers.disposition("filename");
        if file_name.is_some_and(|name| self.come.iter().any(|come| come == name)) {
            return Err(surplus());
        }
        let by_name = self.awaited.iter().position(|(name, _)| Some(name.as_str()) == file_name);
        if self.awaited.is_empty() {
            return Err(surplus());
        }
        let (name, at) = self.awaited.remove(by_name.unwrap_or(0));
        self.come.push(name);
        Ok(at)
    }
}
