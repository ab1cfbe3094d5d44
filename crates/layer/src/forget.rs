//! Removes deleted databases from the cache.
//!
//! A request for a deleted database removes its entry. A database that was deleted by any process and is not requested
//! again would stay, so from time to time all entries that are not known to be current are removed, and those in use are
//! looked up.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::confirmed::ConfirmedVersion;
use flatbed_databases::instance::InstanceId;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::keys::METADATA_VERSION;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use prost::Message;

use crate::handle::Layer;

const NAMES_AT_ONCE: usize = 500;

impl Layer {
    /// Removes deleted databases from the cache, and returns their number. [`crate::Background`] calls it from time to
    /// time.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage).
    #[boxed]
    pub async fn forget_gone_databases(&self) -> Result<usize> {
        forget_gone(&self.inner).await
    }
}

type CacheEntry = (String, InstanceId);

/// Removes the entries of databases that were deleted or replaced, or that are unused and possibly outdated, and returns
/// their number.
async fn forget_gone(inner: &Inner) -> Result<usize> {
    let newest = transaction::read(&inner.db, &inner.metrics, &mut Learn(inner)).await?;
    let entries = inner.databases.iter().filter(|entry| !entry.is_current(&newest));
    let mut stale: Vec<CacheEntry> = entries.map(|entry| (entry.instance.name.clone(), entry.instance.id())).collect();
    let found = stale.len();
    // An unused one costs its next request the same if it is not there.
    stale.retain(|(name, id)| {
        !inner.databases.remove_if(name, |cached| cached.instance.id() == *id && !cached.is_used())
    });
    let mut count = found - stale.len();
    for known in stale.chunks(NAMES_AT_ONCE) {
        for (name, id) in transaction::read(&inner.db, &inner.metrics, &mut FindStale { inner, known }).await? {
            count += usize::from(inner.databases.remove_if(&name, |cached| cached.instance.id() == id));
        }
    }
    Ok(count)
}

/// Learns which records have changed.
struct Learn<'a>(&'a Inner);

impl Operation for Learn<'_> {
    type Output = Arc<ConfirmedVersion>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Arc<ConfirmedVersion>> {
        let version = trx.get(METADATA_VERSION, true).await?;
        self.0.learn(trx, version.as_deref().unwrap_or_default()).await
    }
}

/// Finds the outdated entries among some.
struct FindStale<'a> {
    inner: &'a Inner,
    known: &'a [CacheEntry],
}

impl Operation for FindStale<'_> {
    type Output = Vec<CacheEntry>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<CacheEntry>> {
        let reads: Vec<_> = self.known.iter().map(|(name, _)| trx.get(&self.inner.keys.database(name), true)).collect();
        let mut gone = Vec::new();
        for (known, read) in self.known.iter().zip(reads) {
            let record = read.await?.map(|bytes| proto::DatabaseRecord::decode(&*bytes)).transpose()?;
            if record.is_none_or(|record| !known.1.is_of(&record)) {
                gone.push(known.clone());
            }
        }
        Ok(gone)
    }
}
