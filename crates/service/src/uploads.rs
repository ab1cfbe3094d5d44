//! Attachment data that is uploaded before its documents are written.

use async_recursion::async_recursion as boxed;
use flatbed_layer::{InflationBound, Result, SmallUpload, StagedUpload, Upload};
use tokio::time::Instant;

use crate::database::Writer;

/// The bytes of small attachments that are collected before they are staged together.
const KEPT_BYTES_MAX: usize = 400_000;

/// Data that is uploaded for edits; [`Uploads::stage`] precedes them. Dropping it removes data that no document has
/// taken.
pub struct Uploads {
    database: Writer,
    staged: Vec<StagedUpload>,
    /// Complete data that is not staged yet.
    kept: Vec<SmallUpload>,
    kept_data: Vec<StagedUpload>,
    kept_bytes: usize,
    inflation: InflationBound,
    /// When the staged data was last renewed, or the upload began.
    renewed_at: Instant,
}

impl Uploads {
    /// Creates an empty set of uploads.
    pub fn new(database: &Writer) -> Uploads {
        Uploads {
            database: database.clone(),
            staged: Vec::new(),
            kept: Vec::new(),
            kept_data: Vec::new(),
            kept_bytes: 0,
            inflation: InflationBound::default(),
            renewed_at: database.clock().now(),
        }
    }

    /// Renews the staged data as long as the request's body arrives. A stalled body ends after `BODY_IDLE_MAX`, which
    /// removes its uploads.
    #[boxed]
    pub async fn renew(&mut self) -> Result<()> {
        if self.database.clock().since(self.renewed_at) > self.database.renew_uploads_every() {
            self.database.renew_uploads(&self.staged).await?;
            self.renewed_at = self.database.clock().now();
        }
        Ok(())
    }

    /// Begins an upload; [`Uploads::finish`] follows. All uploads of this set share an [`InflationBound`].
    #[boxed]
    pub async fn begin(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        let mut upload = self.database.upload(content_type, is_gzip).await?;
        upload.bound_inflation(&self.inflation);
        Ok(upload)
    }

    /// Completes an upload.
    #[boxed]
    pub async fn finish(&mut self, upload: Upload) -> Result<StagedUpload> {
        let (data, unstaged) = upload.complete().await?;
        match unstaged {
            None => self.staged.push(data.clone()),
            Some(unstaged) => {
                self.kept_bytes += unstaged.bytes();
                self.kept.push(unstaged);
                self.kept_data.push(data.clone());
                if self.kept_bytes >= KEPT_BYTES_MAX {
                    self.stage().await?;
                }
            }
        }
        self.renew().await?;
        Ok(data)
    }

    /// Stages the remaining data together. Must precede the edits that use it, which would not find it.
    #[boxed]
    pub async fn stage(&mut self) -> Result<()> {
        if !self.kept.is_empty() {
            // Counts as staged even if the commit's outcome is unknown.
            self.staged.append(&mut self.kept_data);
            self.database.stage(&self.kept).await?;
            self.kept = Vec::new();
            self.kept_bytes = 0;
        }
        Ok(())
    }

    /// Marks all data as taken by documents, so that nothing is removed.
    pub fn mark_taken(mut self) {
        self.staged.clear();
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let staged = std::mem::take(&mut self.staged);
        if staged.is_empty() {
            return;
        }
        let database = self.database.clone();
        runtime.spawn(async move {
            for data in staged {
                database.discard(&data).await;
            }
        });
    }
}
