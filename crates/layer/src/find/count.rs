//! How many documents a query selects.

use async_recursion::async_recursion as boxed;
use flatbed_mango::{ExecutionStats, Plan};

use crate::error::Result;
use crate::find::catalog::JsonIndexes;
use crate::find::query::FindOptions;
use crate::handle::Reader;

impl Reader {
    /// The number of documents that a plan selects, and what it cost. Where the plan counts rows no document is read.
    ///
    /// # Errors
    /// As [`crate::Find::next_page`].
    #[boxed]
    pub async fn count(
        &self,
        indexes: &JsonIndexes,
        plan: &Plan<'_>,
        options: &FindOptions,
    ) -> Result<(u64, ExecutionStats)> {
        let mut find = self.find(indexes, plan, FindOptions { skip: 0, limit: u64::MAX, ..options.clone() });
        find.count_only(plan.counts_rows());
        while find.next_page().await?.is_some() {}
        let stats = find.stats();
        Ok((stats.results_returned, stats))
    }
}
