//! Answers in Sync Gateway's forms.

pub(crate) use flatbed_documents::{Interrupted, page_bytes};
use flatbed_http::{Reply, ReplyBody, Sender};
use flatbed_layer::json::Object;
use hyper::header::{self, HeaderMap};
use hyper::{Method, StatusCode};

use crate::error::Failure;

/// The challenge sent to anonymous clients.
const CHALLENGE: &str = "Basic realm=\"Couchbase Sync Gateway\"";

pub(crate) fn empty(status: StatusCode) -> Reply {
    Reply { status, headers: HeaderMap::new(), body: ReplyBody::Full(None), held: None }
}

pub(crate) fn json(status: StatusCode, text: Vec<u8>) -> Reply {
    plain(Reply::json(status, text))
}

pub(crate) fn object(status: StatusCode, write: impl FnOnce(&mut Object<'_>)) -> Reply {
    plain(Reply::object(status, write))
}

/// Returns a streamed JSON answer.
pub(crate) fn stream() -> (Reply, Sender) {
    let (reply, sender) = Reply::stream();
    (plain(reply), sender)
}

/// Removes CouchDB's cache headers.
pub(crate) fn plain(mut reply: Reply) -> Reply {
    reply.headers.remove(header::CACHE_CONTROL);
    reply
}

/// Adds headers that forbid caching.
pub(crate) fn uncached(mut reply: Reply) -> Reply {
    reply.header(header::CACHE_CONTROL, "private, max-age=0, no-cache, no-store");
    reply
}

/// Redirects to `location`, which begins with one slash.
pub(crate) fn moved(location: &str, method: &Method) -> Reply {
    let mut reply = empty(StatusCode::MOVED_PERMANENTLY);
    reply.header(header::LOCATION, location);
    if *method == Method::GET {
        let shown = location.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
        reply.header(header::CONTENT_TYPE, "text/html; charset=utf-8");
        reply.body = ReplyBody::Full(Some(format!("<a href=\"{shown}\">Moved Permanently</a>.\n\n").into()));
    }
    reply
}

pub(crate) fn failed(failure: &Failure) -> Reply {
    let mut reply = json(failure.status, failure.text());
    if let Some(allow) = failure.allow {
        reply.header(header::ALLOW, allow);
    }
    if failure.asks {
        reply.header(header::WWW_AUTHENTICATE, CHALLENGE);
    }
    if let Some(seconds) = failure.retry_after_seconds {
        reply.header(header::RETRY_AFTER, &seconds.to_string());
    }
    reply
}
