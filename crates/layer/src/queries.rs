//! Mango queries, recorded purges, and the keys of a document.

use std::sync::Arc;

use flatbed_mango::Plan;
use flatbed_operations::find::catalog::{self, JsonIndexes};
use flatbed_operations::find::query::{self, Find, FindOptions};
use flatbed_operations::read::purged_infos::{self, PurgeLogPosition, PurgedInfos};
use flatbed_operations::read::stored_keys::{self, StoredKeys};
use flatbed_store::error::Result;

use crate::handle::Reader;

impl Reader {
    /// Reads the database's current json indexes.
    ///
    /// # Errors
    /// [`crate::Error::DatabaseNotFound`], and those of the storage.
    pub async fn json_indexes(&self) -> Result<Arc<JsonIndexes>> {
        catalog::read_indexes(&self.handle).await
    }

    /// Returns the json indexes from this process's cache, without a read. `None`: the database is not cached, or
    /// filters must be compiled first. A query that was planned with outdated indexes is refused
    /// ([`crate::Refusal::IndexGone`]).
    pub fn json_indexes_known(&self) -> Option<Arc<JsonIndexes>> {
        catalog::known_indexes(&self.handle)
    }

    /// Begins a query with a plan that was made with these indexes of the database. It reads nothing yet.
    pub fn find(&self, indexes: &JsonIndexes, plan: &Plan<'_>, options: FindOptions) -> Find {
        query::find(&self.handle, indexes, plan, options)
    }

    /// Returns a page of the recorded purges, from the position of an earlier page or from the oldest. The last
    /// `purged_infos_limit` purges are recorded, and older ones while groups of views may need them.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), and errors of the storage.
    pub async fn purged_infos(&self, from: Option<&PurgeLogPosition>) -> Result<PurgedInfos> {
        purged_infos::purged_infos(&self.handle, from).await
    }

    /// Returns a page of the keys of a document, behind the `next` of an earlier page. A document that does not exist
    /// has none. Shows names of fields but no values, and is meant for administrators.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), and errors of the storage.
    pub async fn stored_keys(&self, id: &str, after: Option<&[u8]>) -> Result<StoredKeys> {
        stored_keys::stored_keys(&self.handle, id, after).await
    }
}
