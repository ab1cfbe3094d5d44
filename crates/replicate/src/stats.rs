//! The counts of a replication, as in CouchDB.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use flatbed_flatten::json::Object;

/// The counts of one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Revisions checked at the target.
    pub missing_checked: u64,
    /// The checked revisions that the target lacked.
    pub missing_found: u64,
    /// Revisions read from the source.
    pub docs_read: u64,
    /// Revisions that the target accepted.
    pub docs_written: u64,
    /// Revisions that the target refused.
    pub doc_write_failures: u64,
    /// Revisions requested by `_bulk_get`.
    pub bulk_get_attempts: u64,
    /// Revisions received by `_bulk_get`.
    pub bulk_get_docs: u64,
}

/// The counts and position of a running session, read by others meanwhile.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) missing_checked: AtomicU64,
    pub(crate) missing_found: AtomicU64,
    pub(crate) docs_read: AtomicU64,
    pub(crate) docs_written: AtomicU64,
    pub(crate) doc_write_failures: AtomicU64,
    pub(crate) bulk_get_attempts: AtomicU64,
    pub(crate) bulk_get_docs: AtomicU64,
    pending: AtomicU64,
    bytes_read: AtomicU64,
    has_advanced: AtomicBool,
    seqs: Mutex<Seqs>,
}

/// Sequences of the source as JSON text; empty if unknown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seqs {
    pub source: String,
    pub through: String,
    pub checkpointed: String,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// The counts of one attempt of a batch, so that a retry does not count them again.
pub(crate) struct Tally<'p> {
    progress: &'p Progress,
    read: usize,
    written: usize,
    refused: usize,
}

impl<'p> Tally<'p> {
    pub(crate) fn new(progress: &'p Progress) -> Tally<'p> {
        Tally { progress, read: 0, written: 0, refused: 0 }
    }

    pub(crate) fn read(&mut self, count: usize) {
        self.read += count;
        add(&self.progress.docs_read, count);
    }

    pub(crate) fn written(&mut self, count: usize) {
        self.written += count;
        add(&self.progress.docs_written, count);
    }

    pub(crate) fn refused(&mut self, count: usize) {
        self.refused += count;
        add(&self.progress.doc_write_failures, count);
    }

    /// Reverts the counts of a failed attempt, except documents that the target accepted.
    pub(crate) fn take_back(self) {
        let subtract = |counter: &AtomicU64, count: usize| counter.fetch_sub(count as u64, Ordering::Relaxed);
        subtract(&self.progress.docs_read, self.read.saturating_sub(self.written));
        subtract(&self.progress.doc_write_failures, self.refused);
    }
}

impl Progress {
    /// Returns the current counts.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            missing_checked: read(&self.missing_checked),
            missing_found: read(&self.missing_found),
            docs_read: read(&self.docs_read),
            docs_written: read(&self.docs_written),
            doc_write_failures: read(&self.doc_write_failures),
            bulk_get_attempts: read(&self.bulk_get_attempts),
            bulk_get_docs: read(&self.bulk_get_docs),
        }
    }

    /// Returns whether a replication stopped now resumes beyond the start of this run: it writes checkpoints, and a
    /// batch is done.
    pub fn has_advanced(&self) -> bool {
        self.has_advanced.load(Ordering::Relaxed)
    }

    pub(crate) fn note_advance(&self) {
        self.has_advanced.store(true, Ordering::Relaxed);
    }

    /// Returns the changes of the source behind the last page that was read.
    pub fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Returns the bytes of revisions and attachments that were read from the source, those of repeated requests
    /// included.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    pub(crate) fn note_bytes(&self, bytes: usize) {
        add(&self.bytes_read, bytes);
    }

    pub(crate) fn set_pending(&self, pending: u64) {
        self.pending.store(pending, Ordering::Relaxed);
    }

    pub(crate) fn change_seqs(&self, change: impl FnOnce(&mut Seqs)) {
        change(&mut self.seqs.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns whether the run knows its first sequence, after reading the logs of both sides.
    pub fn has_begun(&self) -> bool {
        !self.seqs.lock().unwrap_or_else(PoisonError::into_inner).through.is_empty()
    }

    /// Writes the members of `info` in `_scheduler/jobs`. A sequence that is not a string is written as the string of
    /// its JSON text, as in CouchDB.
    pub fn write_info(&self, info: &mut Object<'_>) {
        let stats = self.stats();
        let seqs = self.seqs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        info.number("revisions_checked", stats.missing_checked).number("missing_revisions_found", stats.missing_found);
        info.number("docs_read", stats.docs_read).number("docs_written", stats.docs_written);
        info.number("changes_pending", self.pending.load(Ordering::Relaxed));
        info.number("doc_write_failures", stats.doc_write_failures);
        info.number("bulk_get_docs", stats.bulk_get_docs).number("bulk_get_attempts", stats.bulk_get_attempts);
        for (name, seq) in [
            ("checkpointed_source_seq", &seqs.checkpointed),
            ("source_seq", &seqs.source),
            ("through_seq", &seqs.through),
        ] {
            match seq.as_bytes().first() {
                None => info.null(name),
                Some(b'"') => info.raw(name, seq.as_bytes()),
                Some(_) => info.string(name, seq),
            };
        }
    }
}
