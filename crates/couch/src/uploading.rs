//! Attachments in multipart bodies.

use flatbed_documents::StreamedUpload;
use flatbed_http::multipart::Parts;
use flatbed_layer::StagedUpload;
use flatbed_service::Uploads;

use crate::error::Result;
use crate::request::Request;

pub(crate) async fn upload_part(
    parts: &mut Parts<'_, Request>,
    uploads: &mut Uploads,
    kind: &str,
    is_gzip: bool,
) -> Result<StagedUpload> {
    let mut uploading = StreamedUpload::new(kind, is_gzip);
    while let Some(bytes) = parts.data().await? {
        uploading.add(bytes, &parts.request().body, uploads).await?;
        uploads.renew().await?;
    }
    Ok(uploading.finish(uploads).await?)
}
