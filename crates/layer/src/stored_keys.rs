//! The keys of a document.

use flatbed_operations::read::stored_keys::{self, StoredKeys};
use flatbed_store::error::Result;

use crate::handle::Reader;

impl Reader {
    /// Returns a page of the keys of a document, behind the `next` of an earlier page. A document that does not exist
    /// has none. Shows names of fields but no values, and is meant for administrators.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), and errors of the storage.
    pub async fn stored_keys(&self, id: &str, after: Option<&[u8]>) -> Result<StoredKeys> {
        stored_keys::stored_keys(&self.handle, id, after).await
    }
}
