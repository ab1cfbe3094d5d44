//! Sums over all documents of a database.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::due::DueKind;
use flatbed_store::error::Result;
use flatbed_store::keys::Counter;

use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, PendingWork, PurgedDocument};

/// The changes of one transaction, applied by one atomic ADD per counter.
#[derive(Default)]
pub struct Counters {
    deltas: [i64; Counter::ALL.len()],
}

impl IndexMaintainer for Counters {
    fn document<'a>(&'a mut self, _: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        let live = |deleted: bool| if deleted { [0, 1] } else { [1, 0] };
        let [old_live, old_deleted] = change.old.map_or([0, 0], |old| live(old.deleted));
        let [new_live, new_deleted] = live(change.new.deleted);
        let external = change.new.external_bytes as i64 - change.old.map_or(0, |old| old.external_bytes as i64);
        let stored = [change.stored_bytes_delta, change.superseded_bytes_delta];
        let changes = [new_live - old_live, new_deleted - old_deleted, external, stored[0], stored[1]];
        for (delta, change) in self.deltas.iter_mut().zip(changes) {
            *delta += change;
        }
        Ok(None)
    }

    fn purged<'a>(&'a mut self, _: &'a IndexContext<'a>, purged: &'a PurgedDocument<'a>) -> Result<PendingWork<'a>> {
        let [live, deleted] = if purged.old.deleted { [0, -1] } else { [-1, 0] };
        let external = -(purged.old.external_bytes as i64);
        let changes = [live, deleted, external, purged.stored_bytes_delta, purged.superseded_bytes_delta];
        for (delta, change) in self.deltas.iter_mut().zip(changes) {
            *delta += change;
        }
        Ok(None)
    }

    fn finish(&mut self, within: &IndexContext<'_>) -> Result<()> {
        let IndexContext { trx, instance, inner } = *within;
        for (counter, delta) in Counter::ALL.into_iter().zip(self.deltas) {
            if let (Counter::SupersededBytes, 1..) = (counter, delta) {
                note_superseded(inner, instance, delta.unsigned_abs());
            }
            if delta != 0 {
                instance.buckets.add(trx, counter, delta)?;
            }
        }
        Ok(())
    }
}

/// Bytes that a process supersedes in a database before it schedules a check for compaction: a quarter of the bytes
/// that make a compaction due.
const SUPERSEDED_NOTED_EACH: u64 = 4_000_000;

/// Bytes that this process has superseded, from a random start: each of many processes sees only a part, and
/// together they reach thresholds as often as a single one would.
struct SupersededBytes(AtomicU64);

impl State<Instance> for SupersededBytes {
    fn new_of(_: &Instance) -> SupersededBytes {
        SupersededBytes(AtomicU64::new(RandomState::new().hash_one(0) % SUPERSEDED_NOTED_EACH))
    }
}

/// Counts bytes that a write of this process supersedes in a database if it commits.
fn note_superseded(inner: &Inner, instance: &Instance, bytes: u64) {
    let before = instance.of_version.get::<SupersededBytes>(instance).0.fetch_add(bytes, Ordering::Relaxed);
    if before / SUPERSEDED_NOTED_EACH != before.saturating_add(bytes) / SUPERSEDED_NOTED_EACH {
        inner.due.note(DueKind::Superseded, &instance.name);
    }
}
