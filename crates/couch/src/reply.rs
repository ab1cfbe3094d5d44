//! Answers in CouchDB's forms, and streamed answers.

pub(crate) use flatbed_documents::{Interrupted, page_bytes};
pub(crate) use flatbed_http::Reply;
use hyper::{StatusCode, header};

use crate::error::Failure;

pub(crate) fn ok(status: StatusCode) -> Reply {
    Reply::json(status, b"{\"ok\":true}".to_vec())
}

/// The largest number of characters of a warning.
const WARNING_CHARACTERS_MAX: usize = 1_500;

/// Adds a header `Warning`. 299 is the code of a persistent warning about anything.
pub(crate) fn warn(reply: &mut Reply, text: &str) {
    let quoted = |sign| match sign {
        '"' | '\\' => '\'',
        ' '..='~' => sign,
        _ => '?',
    };
    let text: String = text.chars().take(WARNING_CHARACTERS_MAX).map(quoted).collect();
    reply.header(header::WARNING, &format!("299 flatbed \"{text}\""));
}

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
        // A tenant's function may fail, which is no error of the server.
        tracing::debug!(error = %failure, "a stream broke off");
        Interrupted
    }
}
