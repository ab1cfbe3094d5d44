//! Reads a body line by line: feeds and `_all_docs` have one row per line.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::Error;

/// The longest line, in bytes. A document of 8 MB with every character escaped fits.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The lines of a streamed body, without their line ends.
pub struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// The length of the prefix of `buffer` without a line end.
    searched: usize,
    bytes: u64,
    line_bytes_max: usize,
}

impl Lines {
    /// Reads `body` from its start.
    pub fn new(body: Incoming) -> Lines {
        Lines { body, buffer: BytesMut::new(), searched: 0, bytes: 0, line_bytes_max: LINE_BYTES_MAX }
    }

    /// Limits lines to this length, and at most 64 MB.
    #[must_use]
    pub fn bounded(self, line_bytes_max: usize) -> Lines {
        Lines { line_bytes_max: line_bytes_max.min(LINE_BYTES_MAX), ..self }
    }

    /// Returns the number of bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next line, including empty ones (heartbeats); `None` at the regular end of the body. Cancel-safe: an
    /// incomplete line is kept.
    ///
    /// # Errors
    /// [`Error::Http`] if the connection broke, [`Error::TooLarge`] for a line beyond the limit.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let fresh = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', fresh) {
                let mut line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                line.truncate(line.len() - 1);
                if line.last() == Some(&b'\r') {
                    line.truncate(line.len() - 1);
                }
                return Ok(Some(line.freeze()));
            }
            self.searched = self.buffer.len();
            if self.searched > self.line_bytes_max {
                return Err(Error::TooLarge);
            }
            match self.body.frame().await.transpose()? {
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.bytes += data.len() as u64;
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    self.searched = 0;
                    return Ok(Some(self.buffer.split().freeze()));
                }
            }
        }
    }
}
