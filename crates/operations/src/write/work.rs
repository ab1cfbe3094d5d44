//! The work of a request's edits, which is bounded and takes turns.

use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_databases::server::Inner;
use flatbed_store::error::{Refusal, Result};
use tokio::sync::SemaphorePermit;

use crate::judge::judgement::judge_of;

/// Leaves after whose reading a request takes turns with others like it, one transaction at a time: together they use
/// one processor.
const LEAVES_BEFORE_TURNS: u64 = 500_000;

/// The work of a request's edits. Counts the leaves that they have read: an edit reads all leaves of its document,
/// whatever its own size. The task outlives its client, so the work itself must be bounded.
#[derive(Debug)]
pub struct Work {
    /// The request, for the functions that judge its edits ([`Judge::caller`](crate::judge::judgement::Judge::caller)).
    /// All batches share it, because functions are loaded anew for each caller.
    pub(super) caller: u64,
    leaves: AtomicU64,
    leaves_max: u64,
}

impl Work {
    pub fn new(inner: &Inner) -> Work {
        let caller = judge_of(inner).map_or(0, |judge| judge.caller());
        Work { caller, leaves: AtomicU64::new(0), leaves_max: inner.options.leaves_read_max }
    }

    /// Counts an edit of a document with this many leaves.
    pub(super) fn begin_edit(&self, leaves: u32) -> Result<()> {
        // A single leaf comes with the document.
        if leaves < 2 {
            return Ok(());
        }
        let before = self.leaves.fetch_add(u64::from(leaves), Ordering::Relaxed);
        if before >= self.leaves_max { Err(Refusal::TooManyEdits.into()) } else { Ok(()) }
    }

    /// Waits for a turn, if the request has read many leaves.
    pub(super) async fn turn<'i>(&self, inner: &'i Inner) -> Option<SemaphorePermit<'i>> {
        if self.leaves.load(Ordering::Relaxed) < LEAVES_BEFORE_TURNS {
            return None;
        }
        inner.turns.heavy_writes.acquire().await.ok()
    }
}
