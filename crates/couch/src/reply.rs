//! Answers in CouchDB's forms, and streams of what is read of the storage.

pub(crate) use flatbed_documents::{Interrupted, page_bytes};
pub(crate) use flatbed_http::Reply;
use hyper::{StatusCode, header};

use crate::error::Failure;

/// `{"ok":true}`
pub(crate) fn ok(status: StatusCode) -> Reply {
    Reply::json(status, b"{\"ok\":true}".to_vec())
}

/// The answer to a failure.
pub(crate) fn failed(failure: &Failure) -> Reply {
    let mut reply = Reply::json(failure.status, failure.text());
    if let Some(allow) = failure.allow {
        reply.header(header::ALLOW, allow);
    }
    if let Some(seconds) = failure.retry_after_seconds {
        reply.header(header::RETRY_AFTER, &seconds.to_string());
    }
    if failure.status == StatusCode::UPGRADE_REQUIRED {
        reply.header(header::CONNECTION, "upgrade");
        reply.header(header::UPGRADE, "websocket");
        reply.header(header::SEC_WEBSOCKET_VERSION, "13");
    }
    reply
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        // What a stranger's function fails with is no fault of the server's.
        tracing::debug!(error = %failure, "a stream broke off");
        Interrupted
    }
}
