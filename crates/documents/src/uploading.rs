//! Uploads of attachments from a request's body.

use bytes::Bytes;
use flatbed_http::{FREE_BYTES, Request, RequestBody, UploadRoom};
use flatbed_layer::{StagedUpload, Upload, is_compressible};
use flatbed_service::Uploads;

use crate::error::Result;

/// An upload whose data arrives in pieces. Data up to [`FREE_BYTES`] stays in memory until it is complete and needs no
/// upload room.
pub struct StreamedUpload {
    content_type: String,
    is_gzip: bool,
    beginning: Vec<u8>,
    under_way: Option<(Upload, UploadRoom)>,
}

impl StreamedUpload {
    /// Creates an upload without data.
    pub fn new(content_type: &str, is_gzip: bool) -> StreamedUpload {
        StreamedUpload { content_type: content_type.to_owned(), is_gzip, beginning: Vec::new(), under_way: None }
    }

    /// Uploads the rest of a request's body.
    ///
    /// # Errors
    /// 408 and 400 of the body; those of [`StreamedUpload::add`].
    pub async fn receive(
        content_type: &str,
        is_gzip: bool,
        request: &mut Request,
        uploads: &mut Uploads,
    ) -> Result<StagedUpload> {
        let mut uploading = StreamedUpload::new(content_type, is_gzip);
        while let Some(piece) = request.next_piece().await? {
            uploading.add(piece, &request.body, uploads).await?;
        }
        uploading.finish(uploads).await
    }

    /// Adds a piece. Waits for upload room once the data exceeds [`FREE_BYTES`].
    ///
    /// # Errors
    /// 503 without upload room; the layer's errors.
    pub async fn add(&mut self, piece: Bytes, arriving: &RequestBody, uploads: &Uploads) -> Result<()> {
        if let Some((upload, _)) = &mut self.under_way {
            return Ok(upload.write(&piece).await?);
        }
        self.beginning.extend_from_slice(&piece);
        drop(piece);
        if self.beginning.len() > FREE_BYTES {
            let room = arriving.upload_room(self.is_gzip || is_compressible(&self.content_type)).await?;
            let mut upload = uploads.begin(&self.content_type, self.is_gzip).await?;
            upload.write(&std::mem::take(&mut self.beginning)).await?;
            self.under_way = Some((upload, room));
        }
        Ok(())
    }

    /// Completes the upload.
    ///
    /// # Errors
    /// The layer's errors.
    pub async fn finish(self, uploads: &mut Uploads) -> Result<StagedUpload> {
        let (upload, _room) = match self.under_way {
            Some((upload, room)) => (upload, Some(room)),
            None => {
                let mut upload = uploads.begin(&self.content_type, self.is_gzip).await?;
                upload.write(&self.beginning).await?;
                (upload, None)
            }
        };
        Ok(uploads.finish(upload).await?)
    }
}
