//! Lists the names of all databases in order.

use async_recursion::async_recursion as boxed;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

use crate::handle::Layer;

/// The range of names that [`Layer::all_databases`] lists.
#[derive(Debug, Clone, Default)]
pub struct NameRange {
    /// The first name, or the last one if `descending`.
    pub start: Option<String>,
    /// The other end.
    pub end: Option<String>,
    /// Excludes `end` itself.
    pub exclusive_end: bool,
    /// Descending order.
    pub descending: bool,
    /// Number of names to skip.
    pub skip: usize,
    /// Limit of names.
    pub limit: Option<usize>,
}

impl Layer {
    /// Lists names of databases in bytewise order.
    #[boxed]
    pub async fn all_databases(&self, range: &NameRange) -> Result<Vec<String>> {
        transaction::read(&self.inner.db, &self.inner.metrics, &mut List { inner: &self.inner, range }).await
    }
}

struct List<'a> {
    inner: &'a Inner,
    range: &'a NameRange,
}

impl Operation for List<'_> {
    type Output = Vec<String>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<String>> {
        let wanted = self.range;
        let all = self.inner.keys.databases();
        let after = |name: &str| {
            let mut key = self.inner.keys.database(name);
            key.push(0);
            key
        };
        let (mut range, low, high) =
            if wanted.descending { (all, &wanted.end, &wanted.start) } else { (all, &wanted.start, &wanted.end) };
        if let Some(low) = low {
            let exclusive = wanted.descending && wanted.exclusive_end;
            range.begin = if exclusive { after(low) } else { self.inner.keys.database(low) };
        }
        if let Some(high) = high {
            let exclusive = !wanted.descending && wanted.exclusive_end;
            range.end = if exclusive { self.inner.keys.database(high) } else { after(high) };
        }
        let limit = wanted.limit.unwrap_or(usize::MAX);
        let mut names = Vec::new();
        if limit == 0 || range.begin >= range.end {
            return Ok(names);
        }
        let mut skip = wanted.skip;
        let mut rest = Some(range);
        while let Some(range) = rest {
            let page = trx.range(&range, true).reverse(wanted.descending).reply().await?;
            for row in &page {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                names.push(self.inner.keys.database_name(row.key())?);
                if names.len() == limit {
                    return Ok(names);
                }
            }
            rest = page.rest;
        }
        Ok(names)
    }
}
