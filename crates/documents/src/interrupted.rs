//! The memory of pages, and the interruption of streamed answers.

use flatbed_http::CHUNK_BYTES;
use flatbed_layer::Document;

/// Returns the size of a page in bytes: its documents' bodies, and an estimate of ids and revisions per row.
pub fn page_bytes<'d>(rows: usize, documents: impl Iterator<Item = &'d Document>) -> usize {
    const ROW_BYTES: usize = 1_024;
    CHUNK_BYTES + rows * ROW_BYTES + documents.map(|document| document.body.len()).sum::<usize>()
}

/// A failure after the headers were sent. The connection is cut, so that a partial answer never looks complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

impl From<flatbed_http::ClientGone> for Interrupted {
    fn from(_: flatbed_http::ClientGone) -> Self {
        Interrupted
    }
}

impl From<flatbed_layer::Error> for Interrupted {
    fn from(error: flatbed_layer::Error) -> Self {
        // Deletion of a database during a read is normal.
        if matches!(error, flatbed_layer::Error::DatabaseNotFound) {
            tracing::debug!(%error, "a stream broke off");
        } else {
            tracing::warn!(%error, "a stream broke off");
        }
        Interrupted
    }
}

impl From<flatbed_service::FeedError> for Interrupted {
    fn from(error: flatbed_service::FeedError) -> Self {
        match error {
            flatbed_service::FeedError::Layer(error) => error.into(),
            // A tenant's function may fail, which is no error of the server.
            error => {
                tracing::debug!(%error, "a stream broke off");
                Interrupted
            }
        }
    }
}
