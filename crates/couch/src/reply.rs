//! Answers in CouchDB's forms, and streams of what is read of the storage.

use flatbed_http::CHUNK_BYTES;
pub(crate) use flatbed_http::Reply;
use flatbed_layer::Document;

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
    if failure.status == StatusCode::UPGRADE_REQUIRED {
        reply.header(header::CONNECTION, "upgrade");
        reply.header(header::UPGRADE, "websocket");
        reply.header(header::SEC_WEBSOCKET_VERSION, "13");
    }
    reply
}

/// What a page takes once it is read, beside its documents' bodies: ids and revisions of so many rows.
pub(crate) fn page_bytes<'d>(rows: usize, documents: impl Iterator<Item = &'d Document>) -> usize {
    const ROW_BYTES: usize = 1_024;
    CHUNK_BYTES + rows * ROW_BYTES + documents.map(|document| document.body.len()).sum::<usize>()
}

/// A stream cannot go on after its headers were sent: its task ends without its end, so that what came never looks
/// complete.
pub(crate) struct Interrupted;

impl From<flatbed_http::Gone> for Interrupted {
    fn from(_: flatbed_http::Gone) -> Self {
        Interrupted
    }
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        // What a stranger's function fails with is no fault of the server's.
        tracing::debug!(error = %failure, "a stream broke off");
        Interrupted
    }
}

impl From<flatbed_service::FeedError> for Interrupted {
    fn from(error: flatbed_service::FeedError) -> Self {
        Failure::from(error).into()
    }
}

impl From<flatbed_layer::Error> for Interrupted {
    fn from(error: flatbed_layer::Error) -> Self {
        // That a database is deleted under its readers is nothing to be warned of.
        if matches!(error, flatbed_layer::Error::DatabaseNotFound) {
            tracing::debug!(%error, "a stream broke off");
        } else {
            tracing::warn!(%error, "a stream broke off");
        }
        Interrupted
    }
}
