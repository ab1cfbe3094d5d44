//! Multipart bodies in CouchDB's ways.

pub(crate) use flatbed_http::multipart::{accepts, is_kind};

use crate::error::Result;

/// A boundary that nobody can have put into a document.
pub(crate) fn new_boundary() -> Result<String> {
    crate::ids::random()
}
