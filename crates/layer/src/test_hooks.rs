//! Sweeps that only tests call: [`crate::Background`] sweeps what is due, one database at a time.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::ServerActor;
use flatbed_databases::document::staging;
use flatbed_feeds::updates;
use flatbed_store::error::{Error, Result};

use crate::database_names::NameRange;
use crate::handle::Layer;

impl Layer {
    /// Removes the staged large bodies of all databases that were begun longer ago than `broken_after`:
    /// [`crate::Background`] sweeps one database at a time. Returns their number.
    #[boxed]
    pub async fn sweep_broken_uploads(&self, _: &ServerActor, broken_after: Duration) -> Result<u64> {
        let mut blobs = 0;
        for name in self.all_databases(&NameRange::default()).await? {
            match staging::sweep_database(&self.inner, &name, broken_after, None).await {
                Ok(swept) => blobs += swept.blobs,
                Err(Error::DatabaseNotFound) => {}
                // A failure must not keep the next databases from being swept.
                Err(error) => tracing::warn!(database = name, %error, "broken uploads could not be swept"),
            }
        }
        Ok(blobs)
    }

    /// Removes creations and deletions older than `kept_for` that later ones of the same name supersede.
    /// [`crate::Background`] does so when it is due. Returns their number.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage), [`Corrupt`](crate::Error::Corrupt).
    #[boxed]
    pub async fn sweep_database_updates(&self, _: &ServerActor, kept_for: Duration) -> Result<u64> {
        updates::sweep(&self.inner, kept_for).await
    }
}
