//! What is due in the background: a small index of work, written where something becomes due, for whichever process has time.
//!
//! An entry says that a database is to be looked at, by when and what for. It is written blindly and may be written again: the
//! same time, kind and name are the same key. Whoever has done the work takes it away, unless it was noted anew meanwhile, which
//! its token tells. One that is there without need costs a look. What must not be forgotten is noted in the transaction that
//! makes it due. What may come a little late, or will be noted by the next of its kind, is noted in memory ([`Noted`]) and
//! written by the process's worker, outside of any write.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use flatbed_clock::Clock;
use prost::Message;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::store::keys::{DueKey, RootKeys};
use crate::store::proto;
use crate::store::transaction::Transaction;

/// When documents that end are looked for: rounded up to this.
const ENDS_ROUNDED_TO_MS: u64 = 60 * 1_000;

/// Times are rounded up to this, so that what becomes due again and again is one entry.
const ROUNDED_TO_MS: u64 = 10 * 60 * 1_000;

/// Names that a process remembers to note; where no worker takes them, further ones are noted by whoever meets them next.
const NOTED_MAX: usize = 10_000;

/// What is to be done. A number is never given a second meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// See whether a database has so much that is superseded that it should be compacted.
    Superseded = 1,
    /// Compact a database.
    Compaction = 2,
    /// Remove broken uploads of a database, and free what left its documents.
    Uploads = 3,
    /// Remove old marks of operations.
    Marks = 4,
    /// Remove what is superseded in the log of databases.
    Events = 5,
    /// Enter into a database's indexes what was there before they were defined.
    Indexes = 7,
    /// See whether the groups of views of a database have followed its documents, and drop those that no design document names.
    Views = 8,
    /// Bring a database's documents to where its sync function puts them.
    Resync = 9,
    /// Write tombstones for documents of a database that have ended.
    Expiry = 10,
    /// Remove sessions of users of a database that have ended, and that principals changed an hour ago.
    Principals = 11,
}

impl Kind {
    /// `None`: a later program knows it.
    pub(crate) fn of(number: u64) -> Option<Kind> {
        use Kind::*;
        let all = [Superseded, Compaction, Uploads, Marks, Events, Indexes, Views, Resync, Expiry, Principals];
        all.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// Which of 256 parts of the work a name's is in: FNV-1a of 64 bits over the name, its bytes combined by XOR.
pub(crate) fn slice_of(name: &str) -> u8 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.to_be_bytes().into_iter().fold(0, |slice, byte| slice ^ byte)
}

/// The key of an entry; at 0: at once.
pub(crate) fn key_of(kind: Kind, name: &str, at_ms: u64) -> DueKey {
    DueKey { at_ms, slice: slice_of(name), kind: kind as u64, name: name.to_owned() }
}

/// When something is due that is due after a time from now.
pub(crate) fn after_ms(clock: &Clock, milliseconds: u64) -> u64 {
    rounded_ms(clock.unix_ms().saturating_add(milliseconds))
}

/// A time as it stands in entries.
pub(crate) fn rounded_ms(at_ms: u64) -> u64 {
    rounded_to(at_ms, ROUNDED_TO_MS)
}

/// A time rounded up to a multiple of others.
pub(crate) fn rounded_to(at_ms: u64, to_ms: u64) -> u64 {
    let to_ms = to_ms.max(1);
    at_ms.div_ceil(to_ms).saturating_mul(to_ms)
}

/// Notes that a document ends.
pub(crate) fn mark_end(trx: &Transaction, keys: &RootKeys, name: &str, at_ms: u64) -> Result<()> {
    mark(trx, keys, Kind::Expiry, name, rounded_to(at_ms, ENDS_ROUNDED_TO_MS))
}

/// Notes something in a transaction: blindly.
pub(crate) fn mark(trx: &Transaction, keys: &RootKeys, kind: Kind, name: &str, at_ms: u64) -> Result<()> {
    mark_failed(trx, keys, &key_of(kind, name, at_ms), 0)
}

/// The same, with how often it has failed.
pub(crate) fn mark_failed(trx: &Transaction, keys: &RootKeys, key: &DueKey, failures: u32) -> Result<()> {
    let mut token = [0; 8];
    getrandom::fill(&mut token).map_err(|_| Error::NoRandomness)?;
    let due = proto::Due { token: u64::from_le_bytes(token), failures };
    trx.set(&keys.due(key), &due.encode_to_vec());
    Ok(())
}

/// What this process is to note.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    names: Mutex<HashSet<(Kind, String)>>,
    /// Operations have left marks, and databases have been created or deleted.
    marks: AtomicBool,
    events: AtomicBool,
    /// When what was noted last of these two is due.
    marks_at: AtomicU64,
    events_at: AtomicU64,
    /// Told when something is due at once.
    pub wake: Notify,
}

impl Noted {
    /// Something of a database is due at once.
    pub(crate) fn note(&self, kind: Kind, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < NOTED_MAX && names.insert((kind, name.to_owned())) {
            self.wake.notify_one();
        }
    }

    /// An operation leaves a mark.
    pub(crate) fn note_mark(&self) {
        self.marks.store(true, Ordering::Relaxed);
    }

    /// A database is created or deleted.
    pub(crate) fn note_event(&self) {
        self.events.store(true, Ordering::Relaxed);
    }

    /// What is to be written: what was noted in memory, and when it is due. It is noted again with [`Noted::put_back`] where
    /// that fails. `after_ms`: of marks and events.
    pub(crate) fn take(&self, clock: &Clock, after: u64) -> Vec<DueKey> {
        let names = std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner));
        let mut due: Vec<DueKey> = names.into_iter().map(|(kind, name)| key_of(kind, &name, 0)).collect();
        let at_ms = after_ms(clock, after);
        for (noted, last, kind) in
            [(&self.marks, &self.marks_at, Kind::Marks), (&self.events, &self.events_at, Kind::Events)]
        {
            // What is due then was written before.
            if noted.swap(false, Ordering::Relaxed) && last.swap(at_ms, Ordering::Relaxed) != at_ms {
                due.push(key_of(kind, "", at_ms));
            }
        }
        due
    }

    /// See [`Noted::take`].
    pub(crate) fn put_back(&self, due: Vec<DueKey>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for due in due {
            match Kind::of(due.kind) {
                Some(Kind::Marks) => {
                    self.marks_at.store(0, Ordering::Relaxed);
                    self.marks.store(true, Ordering::Relaxed);
                }
                Some(Kind::Events) => {
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
        // They stand in keys: never to be changed.
        assert_eq!([slice_of(""), slice_of("db"), slice_of("_users")], SLICES);
    }

    const SLICES: [u8; 3] = [225, 28, 14];

    #[test]
    fn what_was_noted_is_written_once_for_each_time() {
        let (noted, clock) = (Noted::default(), flatbed_clock::ManualClock::new().clock());
        noted.note(Kind::Superseded, "a");
        noted.note(Kind::Superseded, "a");
        noted.note_mark();
        let taken = noted.take(&clock, 0);
        assert_eq!(taken.len(), 2);
        noted.note_mark();
        // Its entry is there.
        assert!(noted.take(&clock, 0).is_empty());
        noted.put_back(taken);
        let mut kinds: Vec<u64> = noted.take(&clock, 0).iter().map(|due| due.kind).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [Kind::Superseded as u64, Kind::Marks as u64]);
    }
}
