//! Mango queries.

use std::sync::Arc;

use flatbed_mango::Plan;
use flatbed_operations::find::catalog::{self, JsonIndexes};
use flatbed_operations::find::query::{self, Find, FindOptions};
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
}
