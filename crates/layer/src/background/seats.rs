//! The seats of a slice's tasks, and the work that waits for them.
//!
//! Kinds take turns. They share a few seats, and each kind has one seat more: slow work of one kind does not hold up
//! another kind. A task that only waits for other tasks or processes gives up its seat.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::background::list::DueEntry;

/// The seats that all kinds share.
pub(super) const SHARED_SEATS: usize = 4;

/// The taken seats of a slice.
#[derive(Default)]
pub(super) struct Seats {
    taken: Mutex<BTreeMap<u64, usize>>,
    /// Notified when a seat becomes free.
    pub(super) freed: Notify,
}

impl Seats {
    /// Returns whether a task of a kind may begin: a shared seat is free, or no task of the kind has one.
    pub(super) fn has_room(&self, kind: u64) -> bool {
        let taken = self.taken();
        !taken.contains_key(&kind) || taken.values().sum::<usize>() < SHARED_SEATS
    }

    /// Takes a seat, free or not: see [`Seats::has_room`].
    pub(super) fn take(self: &Arc<Self>, kind: u64) -> Seat {
        *self.taken().entry(kind).or_default() += 1;
        Seat { seats: Arc::clone(self), kind }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A taken seat. It is given up when it is dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    kind: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        if let Some(count) = taken.get_mut(&self.kind) {
            *count = count.saturating_sub(1);
        }
        taken.retain(|_, count| *count > 0);
        drop(taken);
        self.seats.freed.notify_one();
    }
}

/// Work that waits for a seat, by kind.
#[derive(Default)]
pub(super) struct WaitingWork {
    /// None of them is empty.
    by_kind: BTreeMap<u64, VecDeque<DueEntry>>,
    /// The kind of the entry that was taken last.
    last: u64,
}

impl WaitingWork {
    pub(super) fn push(&mut self, entry: DueEntry) {
        self.by_kind.entry(entry.key.kind).or_default().push_back(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_kind.values().map(VecDeque::len).sum()
    }

    /// Begins each kind at another entry. `first`: the part of its entries to put behind the others, in 256ths.
    pub(super) fn rotate(&mut self, first: u8) {
        for entries in self.by_kind.values_mut() {
            let first = usize::from(first) * entries.len() / 256;
            entries.rotate_left(first);
        }
    }

    /// Takes the first entry of the next kind that may begin.
    pub(super) fn take(&mut self, may_begin: impl Fn(u64) -> bool) -> Option<DueEntry> {
        let behind = self.by_kind.range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut kinds = behind.chain(self.by_kind.range(..=self.last)).map(|(kind, _)| *kind);
        let kind = kinds.find(|kind| may_begin(*kind))?;
        let entries = self.by_kind.get_mut(&kind)?;
        let entry = entries.pop_front();
        if entries.is_empty() {
            self.by_kind.remove(&kind);
        }
        self.last = kind;
        entry
    }
}

#[cfg(test)]
mod tests {
    use flatbed_store::due::{DueKind, key_of};
    use flatbed_store::proto;

    use super::*;

    fn entry(kind: DueKind, number: u64) -> DueEntry {
        DueEntry { key: key_of(kind, &format!("db{number}"), 0), due: proto::Due::default() }
    }

    #[test]
    fn slow_work_of_one_kind_leaves_a_seat_to_each_other_kind() {
        let (seats, mut waiting) = (Arc::new(Seats::default()), WaitingWork::default());
        (0..1_000).for_each(|number| waiting.push(entry(DueKind::Compaction, number)));
        let begin = |waiting: &mut WaitingWork| {
            let entry = waiting.take(|kind| seats.has_room(kind))?;
            Some((entry.key.kind, seats.take(entry.key.kind)))
        };
        let mut slow: Vec<_> = std::iter::from_fn(|| begin(&mut waiting)).collect();
        assert_eq!((slow.len(), waiting.len()), (SHARED_SEATS, 1_000 - SHARED_SEATS));
        // The seats are never given up, and other kinds begin at once, each with one task.
        (0..3).for_each(|number| waiting.push(entry(DueKind::Views, number)));
        waiting.push(entry(DueKind::Indexes, 0));
        let others: Vec<_> = std::iter::from_fn(|| begin(&mut waiting)).collect();
        let kinds: Vec<u64> = others.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [DueKind::Indexes as u64, DueKind::Views as u64]);
        drop(others);
        // Kinds take turns at a free seat.
        slow.truncate(SHARED_SEATS - 1);
        waiting.push(entry(DueKind::Uploads, 0));
        let turns: Vec<u64> = std::iter::from_fn(|| begin(&mut waiting).map(|(kind, _seat)| kind)).take(3).collect();
        assert_eq!(turns, [DueKind::Compaction as u64, DueKind::Uploads as u64, DueKind::Views as u64]);
    }

    #[test]
    fn kinds_begin_at_another_entry_each_time() {
        let mut waiting = WaitingWork::default();
        (0..4).for_each(|number| waiting.push(entry(DueKind::Views, number)));
        waiting.rotate(128);
        let names: Vec<String> = std::iter::from_fn(|| waiting.take(|_| true)).map(|entry| entry.key.name).collect();
        assert_eq!(names, ["db2", "db3", "db0", "db1"]);
        assert!(waiting.is_empty());
    }
}
