//! Reads a request's multipart body part by part.

use std::ops::DerefMut;

use hyper::{StatusCode, header};

use crate::arriving::TextBuffer;
use crate::body_memory::Body;
use crate::multipart::boundary_of;
use crate::multipart::read::{Event, MultipartError, Parser, PartHeaders};
use crate::rejection::{Rejection, Result};
use crate::request::Request;

impl From<MultipartError> for Rejection {
    fn from(error: MultipartError) -> Self {
        Rejection::bad_request(error.to_string())
    }
}

/// A request's multipart body. `R` is the surface's wrapper of the request.
///
/// All reads fail with the errors of [`Request::read_body`], and with 400 for a malformed body.
#[derive(Debug)]
pub struct Parts<'r, R> {
    request: &'r mut R,
    parser: Parser,
}

impl<'r, R: DerefMut<Target = Request>> Parts<'r, R> {
    /// Begins to read the body of `request`, which must be of the media type `kind`.
    ///
    /// # Errors
    /// 400 without a boundary, 415 if the body is compressed as a whole.
    pub fn new(request: &'r mut R, kind: &str) -> Result<Parts<'r, R>> {
        if !matches!(request.header(header::CONTENT_ENCODING).map(str::trim), None | Some("" | "identity")) {
            let reason = "A multipart body is not compressed as a whole";
            return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
        }
        let boundary = boundary_of(request.header(header::CONTENT_TYPE).unwrap_or_default(), kind);
        let missing = || Rejection::bad_request(format!("Content-Type {kind} needs a boundary"));
        let parser = Parser::new(boundary.ok_or_else(missing)?);
        Ok(Parts { request, parser })
    }

    /// Returns the request.
    pub fn request(&self) -> &R {
        self.request
    }

    /// Returns the next event. Must not be called after [`Event::End`].
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.parser.next()? {
                return Ok(event);
            }
            let piece = self.request.next_piece().await?.ok_or(MultipartError::BrokenOff)?;
            self.parser.push(&piece);
        }
    }

    /// Returns the headers of the next part, `None` at the end.
    pub async fn part(&mut self) -> Result<Option<PartHeaders>> {
        match self.next().await? {
            Event::Part(headers) => Ok(Some(headers)),
            _ => Ok(None),
        }
    }

    /// Returns more of the part's data, `None` at its end.
    pub async fn data(&mut self) -> Result<Option<bytes::Bytes>> {
        match self.next().await? {
            Event::Data(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// Skips the part's data.
    pub async fn skip(&mut self) -> Result<()> {
        while self.data().await?.is_some() {}
        Ok(())
    }

    /// Returns all of the part's data, within the limits of a body.
    pub async fn text(&mut self) -> Result<Body> {
        let mut text = TextBuffer::new(&self.request.body, None);
        while let Some(bytes) = self.data().await? {
            text.push(&bytes).await?;
        }
        text.finish(self.request.client.as_ref()).await
    }

    /// Returns all of the part's data, or `None` once it exceeds `bytes_max`, without reading the rest.
    pub async fn short_text(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        while let Some(bytes) = self.data().await? {
            if text.len() + bytes.len() > bytes_max {
                return Ok(None);
            }
            text.extend_from_slice(&bytes);
        }
        Ok(Some(text))
    }
}
