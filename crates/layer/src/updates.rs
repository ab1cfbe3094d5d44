//! The updates of all databases.

use flatbed_feeds::updates::{self, DatabaseUpdates, DatabaseUpdatesQuery};
use flatbed_store::error::Result;
use flatbed_store::seq::Seq;

use crate::handle::Layer;

impl Layer {
    /// Opens a feed of the creations, deletions and changes of all databases in the order of commits: each creation and
    /// deletion, and the newest change of each database. A database with shards may appear twice, first with an earlier
    /// change, on two pages.
    pub fn database_updates(&self, query: DatabaseUpdatesQuery) -> DatabaseUpdates {
        updates::database_updates(&self.inner, query)
    }

    /// Returns the sequence of the newest update of any database.
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage), [`Error::Corrupt`](crate::Error::Corrupt).
    pub async fn newest_database_update(&self) -> Result<Seq> {
        updates::newest_database_update(&self.inner).await
    }
}
