//! Local documents: `_local/` in CouchDB.

use flatbed_operations::read::local::{self, LocalDocument, LocalEdit, LocalOutcome};
use flatbed_store::error::Result;

use crate::handle::{Database, Reader};

impl Reader {
    /// Reads a local document; `None`: it does not exist. `id` is without `_local/`.
    ///
    /// # Errors
    /// [`Refusal::InvalidDocument`](crate::Refusal::InvalidDocument) for an id that no local document can have, as for
    /// all local documents.
    pub async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        local::get_local(&self.handle, id).await
    }

    /// Reads a page of the ids of local documents in order, from `from` on (with it, or after it), and whether it is
    /// the last.
    pub async fn list_local(&self, from: Option<(&str, bool)>, descending: bool) -> Result<(Vec<String>, bool)> {
        local::list_local(&self.handle, from, descending).await
    }
}

impl Database {
    /// Writes a local document over the one of its id.
    ///
    /// # Errors
    /// [`Refusal::DocumentTooLarge`](crate::Refusal::DocumentTooLarge) above [`crate::LOCAL_BYTES_MAX`]. Beyond the
    /// bound of bytes [`Refusal::LocalDocumentsFull`](crate::Refusal::LocalDocumentsFull), for anonymous users
    /// [`Refusal::Forbidden`](crate::Refusal::Forbidden).
    pub async fn put_local(&self, document: &LocalDocument) -> Result<()> {
        local::put_local(&self.handle, document).await
    }

    /// Removes a local document. Returns false if it does not exist.
    pub async fn delete_local(&self, id: &str) -> Result<bool> {
        local::delete_local(&self.handle, id).await
    }

    /// Writes and removes local documents one after the other, many in a transaction, and returns the outcome of each
    /// in order. Removing a document that does not exist is
    /// [`Refusal::DocumentNotFound`](crate::Refusal::DocumentNotFound).
    ///
    /// # Errors
    /// An error means that the database is gone or the storage gave up; the outcomes are then unknown.
    pub async fn edit_locals(&self, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
        local::edit_locals(&self.handle, edits).await
    }
}
