//! Data of attachments that is uploaded before the documents that it is for are written.

use async_recursion::async_recursion as boxed;
use flatbed_layer::{Result, Unstaged, Upload, Uploaded};
use tokio::time::Instant;

use crate::database::Writer;

/// What is small is kept for others to come, up to so many bytes: then it is staged.
const KEPT_BYTES_MAX: usize = 400_000;

/// Data that is uploaded for edits; [`Uploads::stage`] comes before these. When this is dropped, what no document has taken is removed.
pub struct Uploads {
    database: Writer,
    staged: Vec<Uploaded>,
    /// What is complete and not staged yet, and what it takes.
    kept: Vec<Unstaged>,
    kept_data: Vec<Uploaded>,
    kept_bytes: usize,
    /// When what is staged was last renewed, or began to come.
    renewed_at: Instant,
}

impl Uploads {
    /// None yet.
    pub fn new(database: &Writer) -> Uploads {
        Uploads {
            database: database.clone(),
            staged: Vec::new(),
            kept: Vec::new(),
            kept_data: Vec::new(),
            kept_bytes: 0,
            renewed_at: database.clock().now(),
        }
    }

    /// More of the request has come: what came before is kept for as long as it goes on. A body that does not go on ends
    /// after `BODY_IDLE_MAX`, and what was uploaded is removed with it.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn renew(&mut self) -> Result<()> {
        if self.database.clock().since(self.renewed_at) > self.database.renew_uploads_every() {
            self.database.renew_uploads(&self.staged).await?;
            self.renewed_at = self.database.clock().now();
        }
        Ok(())
    }

    /// Begins an upload; [`Uploads::finish`] follows.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn begin(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        self.database.upload(content_type, is_gzip).await
    }

    /// The data of an upload is complete.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn finish(&mut self, upload: Upload) -> Result<Uploaded> {
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

    /// Stages what is left to be staged, all together: before the edits that it is for are written, which would not find it.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn stage(&mut self) -> Result<()> {
        if !self.kept.is_empty() {
            // Known as staged from now on, also where the outcome is not known.
            self.staged.append(&mut self.kept_data);
            self.database.stage(&self.kept).await?;
            self.kept = Vec::new();
            self.kept_bytes = 0;
        }
        Ok(())
    }

    /// All of it is known to be in documents: there is nothing to look after.
    pub fn taken(mut self) {
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
