//! Reads one document for an answer.

use flatbed_http::{PagePermit, Pages, first_room, shrink};
use flatbed_layer::{Document, Error as LayerError, GetOptions, Reader, Refusal};

use crate::error::Result;
use crate::interrupted::page_bytes;

/// Reads a document, with a memory reservation if it is large.
///
/// # Errors
/// 503 without memory; the layer's errors.
pub async fn read_document(database: &Reader, id: &str, mut options: GetOptions) -> Result<(Document, PagePermit)> {
    // Small documents are read without waiting for memory.
    options.small_only = true;
    match database.get(id, &options).await {
        Err(LayerError::Refused(Refusal::LargeDocument)) => {
            let mut room = first_room(&Pages::new(true)).await?;
            options.small_only = false;
            let document = database.get(id, &options).await?;
            // Counted twice: the document and its JSON text.
            shrink(&mut room, 2 * page_bytes(1, std::iter::once(&document)));
            Ok((document, room))
        }
        document => Ok((document?, None)),
    }
}
