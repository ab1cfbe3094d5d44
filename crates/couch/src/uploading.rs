//! Attachments on their way from a request into the storage.

use bytes::Bytes;
use flatbed_http::multipart::Parts;
use flatbed_http::{Arriving, FREE_BYTES, UploadRoom};
use flatbed_layer::{Upload, Uploaded, is_compressible};
use flatbed_service::Uploads;

use crate::error::Result;
use crate::request::Request;

/// An upload of what arrives. What is no longer than every body may be is kept until it is complete, and takes no room.
pub(crate) struct Uploading {
    content_type: String,
    is_gzip: bool,
    beginning: Vec<u8>,
    under_way: Option<(Upload, UploadRoom)>,
}

impl Uploading {
    pub(crate) fn new(content_type: &str, is_gzip: bool) -> Uploading {
        Uploading { content_type: content_type.to_owned(), is_gzip, beginning: Vec::new(), under_way: None }
    }

    /// Takes more of it, waiting for room where it becomes long.
    pub(crate) async fn add(&mut self, piece: Bytes, arriving: &Arriving, uploads: &Uploads) -> Result<()> {
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

    /// It is complete.
    pub(crate) async fn finish(self, uploads: &mut Uploads) -> Result<Uploaded> {
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

/// Uploads the data of a part.
pub(crate) async fn upload_part(
    parts: &mut Parts<'_, Request>,
    uploads: &mut Uploads,
    kind: &str,
    is_gzip: bool,
) -> Result<Uploaded> {
    let mut uploading = Uploading::new(kind, is_gzip);
    while let Some(bytes) = parts.data().await? {
        uploading.add(bytes, &parts.request().body, uploads).await?;
        uploads.renew().await?;
    }
    uploading.finish(uploads).await
}
