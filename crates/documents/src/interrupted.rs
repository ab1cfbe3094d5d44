//! Streams of what is read of the storage: what their pages take, and that they break off.

use flatbed_http::CHUNK_BYTES;
use flatbed_layer::Document;

/// What a page takes once it is read, beside its documents' bodies: ids and revisions of so many rows.
pub fn page_bytes<'d>(rows: usize, documents: impl Iterator<Item = &'d Document>) -> usize {
    const ROW_BYTES: usize = 1_024;
    CHUNK_BYTES + rows * ROW_BYTES + documents.map(|document| document.body.len()).sum::<usize>()
}

/// A stream cannot go on after its headers were sent: its task ends without its end, so that what came never looks
/// complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

impl From<flatbed_http::Gone> for Interrupted {
    fn from(_: flatbed_http::Gone) -> Self {
        Interrupted
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

impl From<flatbed_service::FeedError> for Interrupted {
    fn from(error: flatbed_service::FeedError) -> Self {
        match error {
            flatbed_service::FeedError::Layer(error) => error.into(),
            // What a stranger's function fails with is no fault of the server's.
            error => {
                tracing::debug!(%error, "a stream broke off");
                Interrupted
            }
        }
    }
}
