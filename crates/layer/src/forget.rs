//! The cache of databases forgets those that are gone, and holds a bounded number of those that are there.
//!
//! Who asks for a database by its name finds out when it is gone. One that was deleted, here or by another process, and
//! that nobody asks for again, would stay: from time to time all names whose entry may be out of date are looked up.

use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message;

use crate::error::Result;
use crate::instance::InstanceId;
use crate::layer::Inner;
use crate::store::keys::METADATA_VERSION;
use crate::store::proto;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// Between two looks at all entries.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Names that are looked up in one transaction.
const NAMES_AT_ONCE: usize = 500;

/// Of a full cache this part goes at once: so the look at all entries is paid for by many that come.
const PART_THAT_GOES: usize = 8;

/// Forgets databases that are gone, for as long as there is the layer.
pub(crate) fn start(inner: &Arc<Inner>) {
    let weak: Weak<Inner> = Arc::downgrade(inner);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(inner) = weak.upgrade().filter(|inner| !inner.is_closing()) else { return };
            if let Err(error) = forget_gone(&inner).await {
                tracing::debug!(%error, "databases that are gone could not be forgotten");
            }
        }
    });
}

/// An entry of the cache: the name, and which database of that name it is.
type Known = (String, InstanceId);

/// Takes the entries of databases out that are gone, or others by now; returns how many there were.
pub(crate) async fn forget_gone(inner: &Inner) -> Result<usize> {
    let version = transaction::read(&inner.db, &inner.metrics, &mut Version).await?;
    let stale: Vec<Known> = inner
        .databases
        .iter()
        .filter(|entry| entry.seen != version)
        .map(|entry| (entry.key().clone(), entry.instance.id()))
        .collect();
    let mut count = 0;
    for known in stale.chunks(NAMES_AT_ONCE) {
        for (name, id) in transaction::read(&inner.db, &inner.metrics, &mut Gone { inner, known }).await? {
            let removed = inner.databases.remove_if(&name, |_, cached| cached.instance.id() == id);
            count += usize::from(removed.is_some());
        }
    }
    Ok(count)
}

/// Makes room in a full cache: what goes is read again when it is asked for. What is being followed or used stays.
pub(crate) fn make_room(inner: &Inner) {
    let most = inner.options.databases_cached_max;
    if inner.databases.len() <= most {
        return;
    }
    let mut left = most / PART_THAT_GOES + 1;
    inner.databases.retain(|_, cached| {
        let is_used = Arc::strong_count(&cached.instance) > 1 || Arc::strong_count(&cached.instance.hub) > 1;
        let goes = left > 0 && !is_used;
        left -= usize::from(goes);
        !goes
    });
}

struct Version;

impl Operation for Version {
    type Output = Vec<u8>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u8>> {
        Ok(trx.get(METADATA_VERSION, true).await?.as_deref().unwrap_or_default().to_vec())
    }
}

/// Finds those of some entries that are out of date.
struct Gone<'a> {
    inner: &'a Inner,
    known: &'a [Known],
}

impl Operation for Gone<'_> {
    type Output = Vec<Known>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<Known>> {
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
