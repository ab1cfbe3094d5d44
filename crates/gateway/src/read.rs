//! One document, as it is read for an answer.

use flatbed_http::{PagePermit, Pages, first_room, shrink};
use flatbed_layer::{Document, Error as LayerError, GetOptions, Reader, Refusal};

use crate::error::Result;
use crate::reply::page_bytes;

/// Reads a document, and finds room for it where it is large.
///
/// # Errors
/// As of [`Reader::get`]; 503 where there is no room.
pub(crate) async fn document(database: &Reader, id: &str, mut options: GetOptions) -> Result<(Document, PagePermit)> {
    // Most documents are small, and wait for no room.
    options.small_only = true;
    match database.get(id, &options).await {
        Err(LayerError::Refused(Refusal::LargeDocument)) => {
            let mut room = first_room(&Pages::new(true)).await?;
            options.small_only = false;
            let document = database.get(id, &options).await?;
            // Twice: as it was read, and as text.
            shrink(&mut room, 2 * page_bytes(1, std::iter::once(&document)));
            Ok((document, room))
        }
        document => Ok((document?, None)),
    }
}
