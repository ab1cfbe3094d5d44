//! Room for answers, in bytes: given out in order, to each client a part of it at most.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Usage;
use crate::turns::Who;

/// Who waits for longer than this waits because of others.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes that are given out and come back.
#[derive(Debug)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    pub limit: usize,
    /// Who has lost patience.
    waiting: AtomicUsize,
}

/// Somebody waits for room of a budget, until this is dropped.
struct Waiting<'b>(&'b AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Budget {
        let limit = limit.min(u32::MAX as usize);
        Budget { free: Arc::new(Semaphore::new(limit)), limit, waiting: AtomicUsize::new(0) }
    }

    /// What somebody gets who wants so many bytes: who wants more than there is gets all of it.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.limit)).unwrap_or(u32::MAX)
    }

    /// Takes room if it is there.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(self.permits(bytes)).ok()
    }

    /// Waits for room, in order.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        match self.try_take(bytes) {
            Some(taken) => Some(taken),
            // Boxed: it is rare, and its state would stand in that of every feed.
            None => Box::pin(self.wait(self.permits(bytes))).await,
        }
    }

    async fn wait(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        let mut taken = std::pin::pin!(self.free.clone().acquire_many_owned(bytes));
        tokio::select! {
            biased;
            // The semaphore is never closed.
            taken = &mut taken => return taken.ok(),
            () = tokio::time::sleep(PATIENCE) => {}
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        taken.await.ok()
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { used: self.limit.saturating_sub(self.free.available_permits()), limit: self.limit }
    }

    /// Whether there is none left even for so little.
    pub(crate) fn lacks(&self, bytes: usize) -> bool {
        self.free.available_permits() < bytes.min(self.limit)
    }
}

/// What the answers to one address may take of each kind of room.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    who: Who,
    pub pieces: Budget,
    pub documents: Budget,
    pub rows: Budget,
}

/// The shares of addresses to which something is answered now.
#[derive(Debug, Default)]
pub(crate) struct Shares(Mutex<HashMap<Who, Weak<Share>>>);

/// How much room there is: for pieces, for pages of documents, and of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub pieces: usize,
    pub documents: usize,
    pub rows: usize,
}

impl Shares {
    /// An address' share, which is the same for all its answers that are under way at once.
    pub(crate) fn of(self: &Arc<Self>, who: Who, limits: Limits) -> Arc<Share> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&who).and_then(Weak::upgrade) {
            return share;
        }
        let Limits { pieces, documents, rows } = limits;
        let share = Arc::new(Share {
            of: self.clone(),
            who,
            pieces: Budget::new(pieces),
            documents: Budget::new(documents),
            rows: Budget::new(rows),
        });
        shares.insert(who, Arc::downgrade(&share));
        share
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether anybody waits for room of their address' share.
    pub(crate) fn are_waited_for(&self) -> bool {
        let shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What is dropped takes the lock again.
        let all: Vec<Arc<Share>> = shares.values().filter_map(Weak::upgrade).collect();
        drop(shares);
        let is_waited_for = |share: &Arc<Share>| {
            [&share.pieces, &share.documents, &share.rows].iter().any(|budget| budget.is_waited_for())
        };
        all.iter().any(is_waited_for)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        // There may be a new one by now.
        if shares.get(&self.who).is_some_and(|share| share.strong_count() == 0) {
            shares.remove(&self.who);
        }
    }
}
