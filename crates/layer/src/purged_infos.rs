//! The log of purges.

use flatbed_operations::read::purged_infos::{self, PurgeLogPosition, PurgedInfos};
use flatbed_store::error::Result;

use crate::handle::Reader;

impl Reader {
    /// Returns a page of the recorded purges, from the position of an earlier page or from the oldest. The last
    /// `purged_infos_limit` purges are recorded, and older ones while groups of views may need them.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), and errors of the storage.
    pub async fn purged_infos(&self, from: Option<&PurgeLogPosition>) -> Result<PurgedInfos> {
        purged_infos::purged_infos(&self.handle, from).await
    }
}
