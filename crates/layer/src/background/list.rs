//! The list of due work: its entries and their changes.
//!
//! A look reads a bounded page of the work due at once and of each part of the work due at a time. If more is due at
//! once, it reads a page of each kind, from a slice that each look draws, so that no kind hides another one. If more is
//! due in a part, its oldest entries are moved to the work due at once: there the entries of a database are one, and
//! kinds do not hide each other.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use flatbed_databases::server::Inner;
use flatbed_jobs::Lease;
use flatbed_store::due;
use flatbed_store::error::Result;
use flatbed_store::keys::{DUE_PARTS, DueKey};
use flatbed_store::proto;
use flatbed_store::root::epoch_for_write;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use foundationdb::future::FdbKeyValue;
use futures_util::future::{try_join, try_join_all};
use prost::Message;

use crate::sweeper;

/// The most entries that a look reads of the work due at once, while it is so few.
const AT_ONCE_MAX: usize = 256;

/// The most entries of one kind that a look reads on each side of its first slice, if more work is due at once.
const OF_KIND_MAX: usize = 64;

/// The most entries that a look reads of each part of the work due at a time.
const OF_PART_MAX: usize = 64;

/// The most entries that one transaction moves: some 50 kB with names of 100 bytes.
const MOVED_AT_ONCE: usize = 250;

/// The most times that one look moves entries of each crowded part.
const MOVES_MAX: usize = 20;

/// The most leases that a look reads.
const LEASES_MAX: usize = 1_000;

const WRITTEN_AT_ONCE: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct DueEntry {
    pub key: DueKey,
    pub due: proto::Due,
}

impl DueEntry {
    /// Returns the time for which the work was listed, also if the entry was moved since. 0: at once.
    pub(super) fn listed_for_ms(&self) -> u64 {
        self.key.at_ms.max(self.due.at_ms)
    }
}

#[derive(Debug, Default)]
pub(super) struct DueWork {
    pub slices: BTreeMap<u8, Vec<DueEntry>>,
    pub leases: HashMap<u8, Lease>,
    /// The parts in which more is due than was read.
    crowded: Vec<u8>,
}

/// Reads the work that is due within `ahead`, and makes room in crowded parts. If much is due at once, the read of each
/// kind begins at the slice `from`.
pub(super) async fn look(inner: &Inner, ahead: Duration, from: u8) -> Result<DueWork> {
    let mut found = read_due(inner, ahead, from).await?;
    for _ in 0..MOVES_MAX {
        if found.crowded.is_empty() {
            break;
        }
        for part in found.crowded {
            let mut moving = MoveDue { inner, until_ms: until_ms(inner, ahead), part };
            let moved = transaction::write(&inner.db, &inner.metrics, &mut moving).await?;
            inner.metrics.background_moved.add(moved);
        }
        found = read_due(inner, ahead, from).await?;
    }
    Ok(found)
}

/// Reads work that is due within `ahead`, and changes nothing.
pub(super) async fn read_due(inner: &Inner, ahead: Duration, from: u8) -> Result<DueWork> {
    let mut read = ReadDue { inner, until_ms: until_ms(inner, ahead), from };
    transaction::read(&inner.db, &inner.metrics, &mut read).await
}

fn until_ms(inner: &Inner, ahead: Duration) -> u64 {
    inner.clock.unix_ms().saturating_add(u64::try_from(ahead.as_millis()).unwrap_or(u64::MAX))
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
        // All reads are issued before the first is awaited.
        let at_once = trx.range(&keys.due_at_once(), true).first(AT_ONCE_MAX + 1);
        let part = |part| trx.range(&keys.due_until(part, self.until_ms), true).first(OF_PART_MAX + 1);
        let parts = try_join_all((0..DUE_PARTS).map(part));
        let (at_once, parts) = try_join(at_once, parts).await?;
        let mut found = DueWork::default();
        if at_once.len() > AT_ONCE_MAX {
            let ranges = due::DueKind::ALL.into_iter().flat_map(|kind| keys.due_at_once_of(kind as u64, self.from));
            let kinds = try_join_all(ranges.map(|range| trx.range(&range, true).first(OF_KIND_MAX)));
            kinds.await?.iter().for_each(|rows| self.add(rows.iter(), &mut found));
        } else {
            self.add(at_once.iter(), &mut found);
        }
        for (part, rows) in (0..DUE_PARTS).zip(&parts) {
            self.add(rows.iter().take(OF_PART_MAX), &mut found);
            if rows.len() > OF_PART_MAX {
                found.crowded.push(part);
            }
        }
        if !found.slices.is_empty() {
            let leases = trx.range(&keys.leases(), true).first(LEASES_MAX).await?;
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
    fn add<'r>(&self, rows: impl Iterator<Item = &'r FdbKeyValue>, found: &mut DueWork) {
        for row in rows {
            match entry_of(self.inner, row) {
                // Only a newer program knows this kind.
                Ok(entry) if due::DueKind::of(entry.key.kind).is_none() => {}
                Ok(entry) => found.slices.entry(entry.key.slice).or_default().push(entry),
                Err(error) => tracing::warn!(%error, "an entry of the list of due work cannot be read"),
            }
        }
    }
}

fn entry_of(inner: &Inner, row: &FdbKeyValue) -> Result<DueEntry> {
    let key = inner.keys.split_due(row.key())?;
    Ok(DueEntry { key, due: proto::Due::decode(row.value())? })
}

/// Moves the oldest due entries of a part to the work due at once, and returns their number. The entries of one kind
/// and database become one.
struct MoveDue<'a> {
    inner: &'a Inner,
    until_ms: u64,
    part: u8,
}

impl Operation for MoveDue<'_> {
    type Output = u64;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
        let keys = &self.inner.keys;
        // With a conflict: entries that are removed or written anew meanwhile are not moved.
        let oldest = trx.range(&keys.due_until(self.part, self.until_ms), false).first(MOVED_AT_ONCE);
        epoch_for_write(trx, keys).await?;
        let oldest = oldest.await?;
        let mut moved: BTreeMap<Vec<u8>, proto::Due> = BTreeMap::new();
        for row in oldest.iter() {
            let Ok(entry) = entry_of(self.inner, row) else { continue };
            let due = proto::Due { at_ms: entry.listed_for_ms(), ..entry.due };
            trx.clear(row.key());
            let known = moved.entry(keys.due(&DueKey { at_ms: 0, ..entry.key })).or_insert(due);
            let (failures, at_ms) = (known.failures.max(due.failures), known.at_ms.max(due.at_ms));
            *known = proto::Due { failures, at_ms, ..due };
        }
        moved.iter().for_each(|(key, due)| trx.set(key, &due.encode_to_vec()));
        Ok(oldest.len() as u64)
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

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;
    use flatbed_store::due::{DueKind, key_of, slice_of};
    use flatbed_store::waits::{self, Waits};
    use flatbed_testkit::pages_are_full;

    use super::*;
    use crate::tests::fenced::layer_at;

    fn count(found: &DueWork, kind: DueKind, name: &str) -> usize {
        let is_it = |entry: &&DueEntry| entry.key.kind == kind as u64 && entry.key.name == name;
        found.slices.values().flatten().filter(is_it).count()
    }

    #[tokio::test]
    async fn work_of_later_costs_a_look_nothing() {
        let manual = ManualClock::new();
        let (layer, _authority, _storage) = layer_at(&manual).await;
        let (inner, at_ms) = (&layer.inner, manual.clock().unix_ms() + 1);
        let later: Vec<DueKey> =
            (0..1_000).map(|number| key_of(DueKind::Views, &format!("db{number}"), at_ms)).collect();
        write(inner, &later).await.unwrap();
        let (found, waited) = waits::count(look(inner, Duration::ZERO, 0)).await;
        assert!(found.unwrap().slices.is_empty());
        assert_eq!(waited, Waits { transactions: 1, range_reads: 17, path: waited.path, ..Waits::default() });
        assert_eq!(waited.path.depth(), 2);
    }

    #[tokio::test]
    async fn a_thousand_entries_of_one_kind_hide_no_other_kind() {
        let manual = ManualClock::new();
        let (layer, _authority, _storage) = layer_at(&manual).await;
        let inner = &layer.inner;
        // Both before and behind the other kind.
        for kind in [DueKind::Superseded, DueKind::Principals] {
            let stuck: Vec<DueKey> = (0..1_000).map(|number| key_of(kind, &format!("stuck{number}"), 0)).collect();
            write(inner, &stuck).await.unwrap();
        }
        write(inner, &[key_of(DueKind::Views, "other", 0)]).await.unwrap();
        let mut seen = std::collections::HashSet::new();
        for from in 0..=255 {
            let (found, waited) = waits::count(look(inner, Duration::ZERO, from)).await;
            let found = found.unwrap();
            assert_eq!((count(&found, DueKind::Views, "other"), waited.commits), (1, 0));
            assert!(waited.keys_read < 600, "{waited:?}");
            // 17 ranges, the first of which takes two replies, two for each kind, and the leases.
            assert!(waited.range_reads <= 18 + 20 + 1 || !pages_are_full(), "{waited:?}");
            let entries = found.slices.into_values().flatten().filter(|entry| entry.key.kind != DueKind::Views as u64);
            seen.extend(entries.map(|entry| (entry.key.kind, entry.key.name)));
        }
        // Looks begin at other slices, so each entry is seen by some.
        assert_eq!(seen.len(), 2_000);
    }

    #[tokio::test]
    async fn a_thousand_entries_of_one_database_hide_no_other_database() {
        let manual = ManualClock::new();
        let (layer, _authority, _storage) = layer_at(&manual).await;
        let (inner, now_ms) = (&layer.inner, manual.clock().unix_ms());
        let stuck: Vec<DueKey> = (1..=1_000).map(|age_ms| key_of(DueKind::Views, "stuck", now_ms - age_ms)).collect();
        write(inner, &stuck).await.unwrap();
        let is_beside = |name: &String| slice_of(name) % DUE_PARTS == slice_of("stuck") % DUE_PARTS;
        let other = (0..).map(|number| format!("db{number}")).find(is_beside).unwrap();
        write(inner, &[key_of(DueKind::Views, &other, now_ms)]).await.unwrap();
        let found = look(inner, Duration::ZERO, 0).await.unwrap();
        assert_eq!(count(&found, DueKind::Views, &other), 1);
        // The moved entries are one, which keeps the newest time.
        assert_eq!((count(&found, DueKind::Views, "stuck"), inner.metrics.background_moved.get()), (1, 1_000));
        let (found, waited) = waits::count(look(inner, Duration::ZERO, 0)).await;
        let found = found.unwrap();
        let mut entries = found.slices.values().flatten();
        let moved = entries.find(|entry| entry.key.name == "stuck").unwrap();
        assert_eq!((moved.key.at_ms, moved.listed_for_ms(), waited.commits), (0, now_ms - 1, 0));
        settle(inner, moved, None).await.unwrap();
        assert_eq!(count(&look(inner, Duration::ZERO, 0).await.unwrap(), DueKind::Views, "stuck"), 0);
    }
}
