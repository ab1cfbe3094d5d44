//! A request's multipart body, part by part, with a place for the data of each.

use flatbed_layer::Uploaded;
use hyper::{StatusCode, header};

use crate::arriving::{Gathering, Uploading};
use crate::attached::Uploads;
use crate::error::{Failure, Result};
use crate::multipart::boundary_of;
use crate::multipart::read::{Event, MultipartError, Parser, PartHeaders};
use crate::request::{Body, Request};

impl From<MultipartError> for Failure {
    fn from(error: MultipartError) -> Self {
        Failure::bad_request(error.to_string())
    }
}

/// A request's multipart body.
pub(crate) struct Parts<'r> {
    request: &'r mut Request,
    parser: Parser,
}

impl<'r> Parts<'r> {
    /// 400 without a boundary, 415 for a body that is compressed as a whole.
    pub(crate) fn new(request: &'r mut Request, kind: &str) -> Result<Parts<'r>> {
        if !matches!(request.header(header::CONTENT_ENCODING).map(str::trim), None | Some("" | "identity")) {
            let reason = "A multipart body is not compressed as a whole";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
        }
        let boundary = boundary_of(request.header(header::CONTENT_TYPE).unwrap_or_default(), kind);
        let missing = || Failure::bad_request(format!("Content-Type {kind} needs a boundary"));
        let parser = Parser::new(boundary.ok_or_else(missing)?);
        Ok(Parts { request, parser })
    }

    /// The request whose body this is.
    pub(crate) fn request(&self) -> &Request {
        self.request
    }

    /// What comes next; nothing is asked for behind [`Event::End`].
    pub(crate) async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.parser.next()? {
                return Ok(event);
            }
            let piece = self.request.next_piece().await?.ok_or(MultipartError::BrokenOff)?;
            self.parser.push(&piece);
        }
    }

    /// The next part's headers; `None` at the end.
    pub(crate) async fn part(&mut self) -> Result<Option<PartHeaders>> {
        match self.next().await? {
            Event::Part(headers) => Ok(Some(headers)),
            _ => Ok(None),
        }
    }

    /// More of the part's data; `None` at its end.
    pub(crate) async fn data(&mut self) -> Result<Option<bytes::Bytes>> {
        match self.next().await? {
            Event::Data(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// Passes over the part's data.
    pub(crate) async fn skip(&mut self) -> Result<()> {
        while self.data().await?.is_some() {}
        Ok(())
    }

    /// All of the part's data, within the bounds of a body.
    pub(crate) async fn text(&mut self) -> Result<Body> {
        let mut text = Gathering::new(&self.request.body, None);
        while let Some(bytes) = self.data().await? {
            text.push(&bytes).await?;
        }
        text.finish(self.request.client.as_ref()).await
    }

    /// All of the part's data; `None` where it is longer than this, which is not read to its end then.
    pub(crate) async fn short_text(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        while let Some(bytes) = self.data().await? {
            if text.len() + bytes.len() > bytes_max {
                return Ok(None);
            }
            text.extend_from_slice(&bytes);
        }
        Ok(Some(text))
    }

    /// Uploads the part's data.
    pub(crate) async fn upload(&mut self, uploads: &mut Uploads, kind: &str, is_gzip: bool) -> Result<Uploaded> {
        let mut uploading = Uploading::new(kind, is_gzip);
        while let Some(bytes) = self.data().await? {
            uploading.add(bytes, &self.request.body, uploads).await?;
            uploads.renew().await?;
        }
        uploading.finish(uploads).await
    }
}
