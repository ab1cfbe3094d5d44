//! CORS. Pages of any origin may call, since no request is authorised by a cookie, and each request is signed.

use flatbed_http::{Reply, Request};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};

use crate::reply;

const METHODS: [&str; 4] = ["DELETE", "GET", "POST", "PUT"];

/// The request headers that pages may send, as in Mozilla's server. Conditions are not among them.
const HEADERS: [&str; 11] = [
    "authorization",
    "content-type",
    "user-agent",
    "x-last-modified",
    "x-weave-timestamp",
    "x-weave-next-offset",
    "x-weave-records",
    "x-weave-bytes",
    "x-weave-total-records",
    "x-weave-total-bytes",
    "x-verify-code",
];

/// The time for which a browser may cache the answer to a preflight request.
const MAX_AGE_SECONDS: &str = "1728000";

/// Answers a preflight request; `None` for another request.
pub(crate) fn preflight(request: &Request) -> Option<Reply> {
    if request.method != Method::OPTIONS || !request.headers.contains_key(header::ORIGIN) {
        return None;
    }
    let method = request.header(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    let mut names = request.header(header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default().split(',');
    let is_known = |name: &str| name.is_empty() || HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name));
    let refused = |reason: &'static str| {
        let mut reply = reply::whole(StatusCode::BAD_REQUEST, None);
        reply.body = flatbed_http::ReplyBody::Full(Some(reason.into()));
        reply
    };
    Some(if !METHODS.contains(&method) {
        refused("Requested method is not allowed")
    } else if !names.all(|name| is_known(name.trim())) {
        refused("One or more request headers are not allowed")
    } else {
        let mut reply = reply::whole(StatusCode::OK, None);
        reply.header(header::ACCESS_CONTROL_ALLOW_METHODS, &METHODS.join(", "));
        reply.header(header::ACCESS_CONTROL_ALLOW_HEADERS, &HEADERS.join(", "));
        reply.header(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECONDS);
        allow(request.headers.get(header::ORIGIN), &mut reply.headers);
        reply
    })
}

/// Lets the requesting page read the answer.
pub(crate) fn allow(origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    }
}
