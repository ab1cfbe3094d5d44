//! Multipart bodies as CouchDB writes them.

pub(crate) use flatbed_http::multipart::{accepts, is_kind};

use crate::error::Result;

/// Returns a random boundary, so that no document can contain it.
pub(crate) fn new_boundary() -> Result<String> {
    crate::ids::random()
}
