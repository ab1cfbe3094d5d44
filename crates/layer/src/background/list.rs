//! The list of due work: its entries and their changes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use flatbed_databases::server::Inner;
use flatbed_jobs::Lease;
use flatbed_store::due;
use flatbed_store::error::Result;
use flatbed_store::keys::{DueKey, KeyRange};
use flatbed_store::proto;
use flatbed_store::root::epoch_for_write;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use prost::Message;

use crate::sweeper;

/// The most entries that a process reads at once.
const ENTRIES_MAX: usize = 1_000;

const WRITTEN_AT_ONCE: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct DueEntry {
    pub key: DueKey,
    pub due: proto::Due,
}

#[derive(Debug, Default)]
pub(super) struct DueWork {
    pub slices: BTreeMap<u8, Vec<DueEntry>>,
    pub leases: HashMap<u8, Lease>,
}

/// Reads the work that is due within `ahead`; if it exceeds the limit, some of it from slice `from` on.
pub(super) async fn read_due(inner: &Inner, ahead: Duration, from: u8) -> Result<DueWork> {
    let until_ms = inner.clock.unix_ms().saturating_add(u64::try_from(ahead.as_millis()).unwrap_or(u64::MAX));
    transaction::read(&inner.db, &inner.metrics, &mut ReadDue { inner, until_ms, from }).await
}

struct ReadDue<'a> {
    inner: &'a Inner,
    until_ms: u64,
    from: u8,
}

impl Operation for ReadDue<'_> {
    type Output = DueWork;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<DueWork> {
        let keys = &self.inner.keys;
        let mut found = DueWork::default();
        let is_more = self.page(trx, &keys.due_until(self.until_ms, 0), &mut found).await?;
        if is_more {
            // Beyond the limit each process begins at another slice.
            found = DueWork::default();
            self.page(trx, &keys.due_until(self.until_ms, self.from), &mut found).await?;
            if found.slices.is_empty() {
                self.page(trx, &keys.due_until(self.until_ms, 0), &mut found).await?;
            }
        }
        if !found.slices.is_empty() {
            let leases = trx.range(&keys.leases(), true).first(ENTRIES_MAX).await?;
            for row in leases.iter() {
                if let Ok(slice) = keys.lease_id(row.key())?.parse() {
                    found.leases.insert(slice, flatbed_store::leases::decode(row.value())?);
                }
            }
        }
        Ok(found)
    }
}

impl ReadDue<'_> {
    async fn page(&self, trx: &Transaction, range: &KeyRange, found: &mut DueWork) -> Result<bool> {
        let page = trx.range(range, true).page(ENTRIES_MAX).await?;
        for row in &page {
            let entry = self.inner.keys.split_due(row.key()).and_then(|key| {
                let due = proto::Due::decode(row.value())?;
                Ok(DueEntry { key, due })
            });
            match entry {
                // Only a newer program knows this kind.
                Ok(entry) if due::DueKind::of(entry.key.kind).is_none() => {}
                Ok(entry) => found.slices.entry(entry.key.slice).or_default().push(entry),
                Err(error) => tracing::warn!(%error, "an entry of the list of due work cannot be read"),
            }
        }
        Ok(!page.is_all())
    }
}

/// Writes the work that this process has noted.
pub(super) async fn write_noted(inner: &Inner) -> Result<()> {
    let noted = inner.due.take(&inner.clock, u64::try_from(sweeper::KEPT_FOR.as_millis()).unwrap_or(u64::MAX));
    let written = write(inner, &noted).await;
    if written.is_err() {
        inner.due.put_back(noted);
    }
    written
}

/// Writes entries without reading first.
pub(super) async fn write(inner: &Inner, due: &[DueKey]) -> Result<()> {
    struct Write<'a>(&'a Inner, &'a [DueKey]);
    impl Operation for Write<'_> {
        type Output = ();
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            epoch_for_write(trx, &self.0.keys).await?;
            self.1.iter().try_for_each(|key| due::mark_failed(trx, &self.0.keys, key, 0))
        }
    }
    for due in due.chunks(WRITTEN_AT_ONCE) {
        transaction::write(&inner.db, &inner.metrics, &mut Write(inner, due)).await?;
    }
    Ok(())
}

pub(super) async fn is_due(inner: &Inner, entry: &DueEntry) -> Result<bool> {
    struct IsDue<'a>(&'a Inner, &'a DueEntry);
    impl Operation for IsDue<'_> {
        type Output = bool;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
            let found = trx.get(&self.0.keys.due(&self.1.key), true).await?;
            Ok(found.map(|bytes| proto::Due::decode(&*bytes)).transpose()? == Some(self.1.due))
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut IsDue(inner, entry)).await
}

/// Removes an entry whose work is done, unless it was noted again since. `next` is then due, with its failure count:
/// the higher one, if it is already due with another.
pub(super) async fn settle(inner: &Inner, entry: &DueEntry, next: Option<(DueKey, u32)>) -> Result<()> {
    transaction::write(&inner.db, &inner.metrics, &mut Settle { inner, entry, next }).await
}

struct Settle<'a> {
    inner: &'a Inner,
    entry: &'a DueEntry,
    next: Option<(DueKey, u32)>,
}

impl Operation for Settle<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let keys = &self.inner.keys;
        let key = keys.due(&self.entry.key);
        // With a conflict: entries noted before the commit stay.
        let found = trx.get(&key, false);
        let next = self.next.as_ref().filter(|(_, failures)| *failures > 0);
        let next = next.map(|(next, _)| trx.get(&keys.due(next), true));
        epoch_for_write(trx, keys).await?;
        let Some(found) = found.await? else { return Ok(()) };
        let failed = match next {
            Some(next) => {
                next.await?.map(|bytes| proto::Due::decode(&*bytes)).transpose()?.unwrap_or_default().failures
            }
            None => 0,
        };
        if proto::Due::decode(&*found)?.token == self.entry.due.token {
            trx.clear(&key);
        }
        match &self.next {
            Some((next, failures)) => due::mark_failed(trx, keys, next, failed.max(*failures)),
            None => Ok(()),
        }
    }
}
