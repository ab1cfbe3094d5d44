//! Replaces the console's files in a build without the feature `console`.

use flatbed_http::Reply;

use super::console::turned_off;
use crate::error::Result;
use crate::request::Request;

/// Refuses every request, as if the console were turned off.
pub(super) fn reply(_: &Request) -> Result<Reply> {
    Err(turned_off())
}
