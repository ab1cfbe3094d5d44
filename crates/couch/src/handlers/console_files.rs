//! Serves the console's files.

use bytes::Bytes;
use flatbed_console::{CONTENT_SECURITY_POLICY, File, file};
use flatbed_http::{Reply, ReplyBody};
use hyper::StatusCode;
use hyper::header::{self, HeaderName};

use crate::error::{Failure, Result};
use crate::request::Request;

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

const PLACE: &str = "/_utils";

pub(super) fn reply(request: &Request) -> Result<Reply> {
    let Some(path) = request.uri.path().strip_prefix(PLACE) else {
        return Err(Failure::not_found("missing"));
    };
    if path.is_empty() {
        // Relative, as all addresses of the console, because a proxy may add a prefix.
        let mut reply = Reply::json(StatusCode::MOVED_PERMANENTLY, Vec::new());
        reply.header(header::LOCATION, "_utils/");
        return Ok(reply);
    }
    let found = path.strip_prefix('/').and_then(file).ok_or_else(|| Failure::not_found("missing"))?;
    let mut reply = if request.accepts_cached(&found.etag) { Reply::not_modified(&found.etag) } else { whole(found) };
    // Browsers revalidate, because another version of the server has other files.
    reply.header(header::CACHE_CONTROL, "no-cache");
    reply.header(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    reply.header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    reply.header(header::X_FRAME_OPTIONS, "DENY");
    reply.header(header::REFERRER_POLICY, "no-referrer");
    // Isolates the console: its opener has no handle to it, and other sites cannot load its files.
    reply.header(OPENER_POLICY, "same-origin");
    reply.header(RESOURCE_POLICY, "same-origin");
    Ok(reply)
}

fn whole(found: &File) -> Reply {
    let mut reply = Reply::json(StatusCode::OK, Vec::new());
    reply.body = ReplyBody::Full(Some(Bytes::from_static(found.bytes)));
    reply.header(header::CONTENT_TYPE, found.content_type);
    reply.header(header::ETAG, &found.etag);
    reply
}
