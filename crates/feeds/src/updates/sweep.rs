//! Removes creations and deletions from the log that later ones supersede.

use std::collections::HashSet;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::server::Inner;
use flatbed_kit::TransactionContext as _;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, RootKeys};
use flatbed_store::proto;
use flatbed_store::root::in_use;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction, conflict_with};
use prost::Message;

/// Entries that one transaction reads or removes.
const SWEPT_ENTRIES_MAX: usize = 1_000;

/// Deletions of unused names to keep; older ones are removed.
const DELETIONS_KEPT: usize = 100_000;

/// Removes entries that are older than `kept_for` and superseded by a later one of the same name, and returns their
/// number; until then followers see each. Several processes may do so at once.
///
/// Takes memory for the names of all databases and for [`DELETIONS_KEPT`] deleted ones.
#[boxed]
pub async fn sweep(inner: &Inner, kept_for: Duration) -> Result<u64> {
    let Inner { db, metrics, keys, .. } = inner;
    let older_than_ms = metrics.clock().unix_ms().saturating_sub(kept_for.as_millis() as u64);
    let mut seen: HashSet<String> = HashSet::new();
    let (mut deletions, mut removed) = (0, 0);
    let mut epoch = None;
    let mut rest = Some(keys.database_events());
    while let Some(range) = rest {
        let mut page = ReadLogPage { keys, range: &range };
        let (found, entries, next) = transaction::read(db, metrics, &mut page).await?;
        if *epoch.get_or_insert(found) != found {
            // The page is of another epoch: the next sweep begins again.
            return Ok(removed);
        }
        let mut superseded = Vec::new();
        for (key, event) in entries {
            deletions += usize::from(event.deleted);
            let is_newest = seen.insert(event.name);
            let is_kept = is_newest && (!event.deleted || deletions <= DELETIONS_KEPT);
            if !is_kept && event.at_ms <= older_than_ms {
                superseded.push(key);
            }
        }
        if !superseded.is_empty() {
            let mut remove = Remove { keys, superseded: &superseded, epoch: found };
            if !transaction::write(db, metrics, &mut remove).await? {
                return Ok(removed);
            }
            removed += superseded.len() as u64;
        }
        rest = next;
    }
    Ok(removed)
}

struct ReadLogPage<'a> {
    keys: &'a RootKeys,
    range: &'a KeyRange,
}

impl Operation for ReadLogPage<'_> {
    type Output = (u32, Vec<(Vec<u8>, proto::DatabaseEvent)>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let root = trx.get(&self.keys.instance(), true);
        let page = trx.range(self.range, true).reverse(true).page(SWEPT_ENTRIES_MAX).await?;
        let epoch = in_use(root.await?.as_deref())?.epoch;
        let entries = page.iter().map(|row| Ok((row.key().to_vec(), proto::DatabaseEvent::decode(row.value())?)));
        Ok((epoch, entries.collect::<Result<_>>()?, page.rest))
    }
}

/// Removes entries that were read in an epoch; false if the epoch has changed.
struct Remove<'a> {
    keys: &'a RootKeys,
    superseded: &'a [Vec<u8>],
    epoch: u32,
}

impl Operation for Remove<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let root_key = self.keys.instance();
        conflict_with(trx, &root_key)?;
        if in_use(trx.get(&root_key, true).await?.as_deref())?.epoch != self.epoch {
            return Ok(false);
        }
        let quiet = Quiet(trx);
        self.superseded.iter().try_for_each(|key| quiet.clear(key))?;
        Ok(true)
    }
}
