//! Removes deleted databases from the cache.
//!
//! A request for a deleted database removes its entry. A database that was deleted by any process and is not requested
//! again would stay, so from time to time all names with a possibly outdated entry are looked up.

use async_recursion::async_recursion as boxed;
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

/// Removes the entries of databases that were deleted or replaced, and returns their number.
async fn forget_gone(inner: &Inner) -> Result<usize> {
    let version = transaction::read(&inner.db, &inner.metrics, &mut Version).await?;
    let stale: Vec<CacheEntry> = inner
        .databases
        .iter()
        .filter(|entry| *entry.seen.version() != *version)
        .map(|entry| (entry.key().clone(), entry.instance.id()))
        .collect();
    let mut count = 0;
    for known in stale.chunks(NAMES_AT_ONCE) {
        for (name, id) in transaction::read(&inner.db, &inner.metrics, &mut FindStale { inner, known }).await? {
            let removed = inner.databases.remove_if(&name, |_, cached| cached.instance.id() == id);
            count += usize::from(removed.is_some());
        }
    }
    Ok(count)
}

struct Version;

impl Operation for Version {
    type Output = Vec<u8>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u8>> {
        Ok(trx.get(METADATA_VERSION, true).await?.as_deref().unwrap_or_default().to_vec())
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
            if record.is_none_or(|record| InstanceId::from(&record) != known.1) {
                gone.push(known.clone());
            }
        }
        Ok(gone)
    }
}
