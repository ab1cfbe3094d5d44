//! Memory for answers, granted in order and with a limit per client.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Usage;
use crate::turns::Who;

/// The wait after which slow clients are cut to make room.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// A number of bytes that are granted and returned.
#[derive(Debug)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    pub limit: usize,
    /// The number of tasks that have waited longer than [`PATIENCE`].
    waiting: AtomicUsize,
}

struct WaitCount<'b>(&'b AtomicUsize);

impl Drop for WaitCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Budget {
        let limit = limit.min(u32::MAX as usize);
        Budget { free: Arc::new(Semaphore::new(limit)), limit, waiting: AtomicUsize::new(0) }
    }

    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.limit)).unwrap_or(u32::MAX)
    }

    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(self.permits(bytes)).ok()
    }

    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        match self.try_take(bytes) {
            Some(taken) => Some(taken),
            // Boxed: it is rare, and its state would be part of every feed's.
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
        let _waiting = WaitCount(&self.waiting);
        taken.await.ok()
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { used: self.limit.saturating_sub(self.free.available_permits()), limit: self.limit }
    }

    pub(crate) fn lacks(&self, bytes: usize) -> bool {
        self.free.available_permits() < bytes.min(self.limit)
    }
}

#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    who: Who,
    pub pieces: Budget,
    pub documents: Budget,
    pub rows: Budget,
}

#[derive(Debug, Default)]
pub(crate) struct Shares(Mutex<HashMap<Who, Weak<Share>>>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareLimits {
    pub pieces: usize,
    pub documents: usize,
    pub rows: usize,
}

impl Shares {
    pub(crate) fn of(self: &Arc<Self>, who: Who, limits: ShareLimits) -> Arc<Share> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&who).and_then(Weak::upgrade) {
            return share;
        }
        let ShareLimits { pieces, documents, rows } = limits;
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

    pub(crate) fn are_waited_for(&self) -> bool {
        let shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The shares are dropped after the lock is released, because dropping one takes it.
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
        // The address may have a new share by now.
        if shares.get(&self.who).is_some_and(|share| share.strong_count() == 0) {
            shares.remove(&self.who);
        }
    }
}
