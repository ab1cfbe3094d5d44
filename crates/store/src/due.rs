//! The index of due background work. An entry is written where work becomes due, and any process may do the work.
//!
//! An entry holds a time, a kind of work and the name of a database. It is written without being read and may be
//! written again: the same time, kind and name are the same key. The process that has done the work removes the entry,
//! unless the entry was written anew meanwhile, which its token shows. A superfluous entry costs one check. Work that
//! must not be lost is entered in the transaction that makes it due. Work that may be delayed, or that the next
//! operation of its kind enters again, is noted in memory ([`DueNotes`]), and the process's worker writes it outside of
//! any write.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use flatbed_clock::Clock;
use prost::Message;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::keys::{DueKey, RootKeys};
use crate::proto;
use crate::transaction::Transaction;

/// The granularity of document expiry: times are rounded up to this.
const ENDS_ROUNDED_TO_MS: u64 = 60 * 1_000;

/// The granularity of other times, so that work that becomes due repeatedly is one entry.
const ROUNDED_TO_MS: u64 = 10 * 60 * 1_000;

/// The most names that a process notes in memory. Without a worker that takes them, further names are dropped until
/// the next operation notes them.
const NOTED_MAX: usize = 10_000;

/// The kind of due work. A number is never given a second meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DueKind {
    /// Check whether a database has so many superseded revisions that it should be compacted.
    Superseded = 1,
    /// Compact a database.
    Compaction = 2,
    /// Remove broken uploads of a database, and free attachments that left its documents.
    Uploads = 3,
    /// Remove old marks of operations.
    Marks = 4,
    /// Remove superseded entries of the log of databases.
    Events = 5,
    /// Enter the existing documents of a database into newly defined indexes.
    Indexes = 7,
    /// Check that the view groups of a database follow its documents, and drop those that no design document names.
    Views = 8,
    /// Route a database's documents by its sync function.
    Resync = 9,
    /// Write tombstones for expired documents of a database.
    Expiry = 10,
    /// Remove expired sessions of a database's users, and log entries of principal changes older than an hour.
    Principals = 11,
}

impl DueKind {
    /// All kinds.
    pub const ALL: [DueKind; 10] = {
        use DueKind::*;
        [Superseded, Compaction, Uploads, Marks, Events, Indexes, Views, Resync, Expiry, Principals]
    };

    /// Returns the kind of a number. `None`: a later program's kind.
    pub fn of(number: u64) -> Option<DueKind> {
        DueKind::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// Returns the slice of a name, one of 256: FNV-1a of 64 bits, its bytes combined by XOR.
pub fn slice_of(name: &str) -> u8 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.to_be_bytes().into_iter().fold(0, |slice, byte| slice ^ byte)
}

/// Returns the key of an entry. Time 0 means due at once.
pub fn key_of(kind: DueKind, name: &str, at_ms: u64) -> DueKey {
    DueKey { at_ms, slice: slice_of(name), kind: kind as u64, name: name.to_owned() }
}

/// Returns the time, rounded up, that lies this many milliseconds ahead.
pub fn after_ms(clock: &Clock, milliseconds: u64) -> u64 {
    rounded_ms(clock.unix_ms().saturating_add(milliseconds))
}

/// Rounds a time up as in entries.
pub fn rounded_ms(at_ms: u64) -> u64 {
    rounded_to(at_ms, ROUNDED_TO_MS)
}

/// Rounds a time up to a multiple.
pub fn rounded_to(at_ms: u64, to_ms: u64) -> u64 {
    let to_ms = to_ms.max(1);
    at_ms.div_ceil(to_ms).saturating_mul(to_ms)
}

/// Enters the expiry of a document.
pub fn mark_end(trx: &Transaction, keys: &RootKeys, name: &str, at_ms: u64) -> Result<()> {
    mark(trx, keys, DueKind::Expiry, name, rounded_to(at_ms, ENDS_ROUNDED_TO_MS))
}

/// Enters work in a transaction, without a read.
pub fn mark(trx: &Transaction, keys: &RootKeys, kind: DueKind, name: &str, at_ms: u64) -> Result<()> {
    mark_failed(trx, keys, &key_of(kind, name, at_ms), 0)
}

/// Enters work again, with its number of failures.
pub fn mark_failed(trx: &Transaction, keys: &RootKeys, key: &DueKey, failures: u32) -> Result<()> {
    let mut token = [0; 8];
    getrandom::fill(&mut token).map_err(|_| Error::NoRandomness)?;
    let due = proto::Due { token: u64::from_le_bytes(token), failures, at_ms: 0 };
    trx.set(&keys.due(key), &due.encode_to_vec());
    Ok(())
}

/// The work that this process has noted and not yet written.
#[derive(Debug, Default)]
pub struct DueNotes {
    names: Mutex<HashSet<(DueKind, String)>>,
    /// True if operations have left marks, or databases were created or deleted.
    marks: AtomicBool,
    events: AtomicBool,
    /// The times of the last entries of these two.
    marks_at: AtomicU64,
    events_at: AtomicU64,
    /// Notified when work becomes due at once.
    pub wake: Notify,
}

impl DueNotes {
    /// Notes work of a database that is due at once.
    pub fn note(&self, kind: DueKind, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < NOTED_MAX && names.insert((kind, name.to_owned())) {
            self.wake.notify_one();
        }
    }

    /// Notes that an operation leaves a mark.
    pub fn note_mark(&self) {
        self.marks.store(true, Ordering::Relaxed);
    }

    /// Notes that a database is created or deleted.
    pub fn note_event(&self) {
        self.events.store(true, Ordering::Relaxed);
    }

    /// Takes the noted work to write, with its times. If the write fails, [`DueNotes::put_back`] notes it again.
    /// `after`: the delay of marks and events, in milliseconds.
    pub fn take(&self, clock: &Clock, after: u64) -> Vec<DueKey> {
        let names = std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner));
        let mut due: Vec<DueKey> = names.into_iter().map(|(kind, name)| key_of(kind, &name, 0)).collect();
        let at_ms = after_ms(clock, after);
        for (noted, last, kind) in
            [(&self.marks, &self.marks_at, DueKind::Marks), (&self.events, &self.events_at, DueKind::Events)]
        {
            // An entry of the same time was written before.
            if noted.swap(false, Ordering::Relaxed) && last.swap(at_ms, Ordering::Relaxed) != at_ms {
                due.push(key_of(kind, "", at_ms));
            }
        }
        due
    }

    /// Notes the work again, after a failed write.
    pub fn put_back(&self, due: Vec<DueKey>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for due in due {
            match DueKind::of(due.kind) {
                Some(DueKind::Marks) => {
                    self.marks_at.store(0, Ordering::Relaxed);
                    self.marks.store(true, Ordering::Relaxed);
                }
                Some(DueKind::Events) => {
                    self.events_at.store(0, Ordering::Relaxed);
                    self.events.store(true, Ordering::Relaxed);
                }
                Some(kind) => {
                    names.insert((kind, due.name));
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_in_all_slices() {
        let mut counts = [0_u32; 256];
        (0..25_600).for_each(|number| counts[usize::from(slice_of(&format!("db{number}")))] += 1);
        assert!(counts.iter().all(|count| (50..160).contains(count)), "{counts:?}");
        // Stored in keys, so they must never change.
        assert_eq!([slice_of(""), slice_of("db"), slice_of("_users")], SLICES);
    }

    const SLICES: [u8; 3] = [225, 28, 14];

    #[test]
    fn what_was_noted_is_written_once_for_each_time() {
        let (noted, clock) = (DueNotes::default(), flatbed_clock::ManualClock::new().clock());
        noted.note(DueKind::Superseded, "a");
        noted.note(DueKind::Superseded, "a");
        noted.note_mark();
        let taken = noted.take(&clock, 0);
        assert_eq!(taken.len(), 2);
        noted.note_mark();
        // Its entry exists already.
        assert!(noted.take(&clock, 0).is_empty());
        noted.put_back(taken);
        let mut kinds: Vec<u64> = noted.take(&clock, 0).iter().map(|due| due.kind).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [DueKind::Superseded as u64, DueKind::Marks as u64]);
    }
}
