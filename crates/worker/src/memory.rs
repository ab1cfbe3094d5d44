//! The memory budget shared by all jobs of a process.
//!
//! There are two pools: one for changes read from sources, one for products made for targets until they are delivered.
//! The rules of acquisition exclude deadlock: a job waits for the first pool only while it holds nothing of either,
//! reads ahead only if memory is available at once, acquires the second pool once per part of a batch, and releases
//! that when the target has answered, with success or not. Waiters are served in order, including large requests. A job
//! whose target is down releases its changes if others wait for the first pool (`Memory::is_short`), and reads them
//! again later.
//!
//! Trees of parsed JSON are larger than their texts, at most 16 times (an array of digits), and do not live across an await:
//! there are at most as many as the process has threads. Texts from [`LARGE_TEXT_BYTES`] on are parsed one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatbed_admission::{Budget, Grant};
use tokio::sync::Semaphore;

const UNIT_BYTES: usize = 1 << 10;

/// The smallest budget: below it the largest document does not fit.
pub const MEMORY_BYTES_MIN: usize = 128 << 20;

/// The default budget.
pub const MEMORY_BYTES: usize = 512 << 20;

/// The size in bytes from which texts are parsed one at a time.
pub const LARGE_TEXT_BYTES: usize = 1 << 20;

/// Both pools. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Pools>);

#[derive(Debug)]
struct Pools {
    changes: Arc<Budget>,
    products: Arc<Budget>,
    large: Semaphore,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new(MEMORY_BYTES)
    }
}

impl Memory {
    /// Creates a budget with half of `bytes` for each pool. Fewer than [`MEMORY_BYTES_MIN`] do not suffice for large
    /// documents.
    pub fn new(bytes: usize) -> Memory {
        let pool = || Budget::new((bytes / 2).max(UNIT_BYTES), UNIT_BYTES);
        Memory(Arc::new(Pools { changes: pool(), products: pool(), large: Semaphore::new(1) }))
    }

    /// Acquires memory for changes, at most the whole pool, for a job that holds none.
    pub(crate) async fn changes(&self, bytes: usize) -> Charge {
        if let Some(charge) = self.try_changes(bytes) {
            return charge;
        }
        let _waiter = self.0.changes.waiter();
        take(&self.0.changes, bytes).await
    }

    /// Acquires memory for changes if it is available at once.
    pub(crate) fn try_changes(&self, bytes: usize) -> Option<Charge> {
        try_take(&self.0.changes, bytes)
    }

    /// Acquires memory for products, at most the whole pool.
    pub(crate) async fn products(&self, bytes: usize) -> Charge {
        take(&self.0.products, bytes).await
    }

    /// Acquires memory for products if it is available at once.
    pub(crate) fn try_products(&self, bytes: usize) -> Option<Charge> {
        try_take(&self.0.products, bytes)
    }

    /// Returns whether other jobs wait for the first pool, so that a stalled job should release its changes.
    pub(crate) fn is_short(&self) -> bool {
        self.0.changes.is_waited_for()
    }

    /// Waits until [`Memory::is_short`].
    pub(crate) async fn short(&self) {
        self.0.changes.waited_for().await;
    }

    /// Waits until a text of this size may be parsed. The caller must not await while it holds the permit.
    pub(crate) async fn parsing(&self, bytes: usize) -> Option<tokio::sync::SemaphorePermit<'_>> {
        if bytes < LARGE_TEXT_BYTES {
            return None;
        }
        self.0.large.acquire().await.ok()
    }

    /// Returns the bytes acquired from the two pools: changes and products.
    pub fn taken(&self) -> (usize, usize) {
        (self.0.changes.used(), self.0.products.used())
    }
}

async fn take(pool: &Arc<Budget>, bytes: usize) -> Charge {
    Charge { grant: pool.take(bytes.clamp(1, pool.limit())).await, own: None }
}

fn try_take(pool: &Arc<Budget>, bytes: usize) -> Option<Charge> {
    let grant = pool.try_take(bytes.clamp(1, pool.limit()))?;
    Some(Charge { grant: Some(grant), own: None })
}

/// Acquired memory, released on drop.
#[derive(Debug)]
pub struct Charge {
    grant: Option<Grant>,
    /// A second counter that includes this charge.
    own: Option<Arc<AtomicUsize>>,
}

impl Charge {
    pub(crate) fn none() -> Charge {
        Charge { grant: None, own: None }
    }

    fn bytes(&self) -> usize {
        self.grant.as_ref().map_or(0, Grant::bytes)
    }

    /// Splits off at most `bytes`, which `own` counts until the part is dropped.
    pub(crate) fn split(&mut self, bytes: usize, own: &Arc<AtomicUsize>) -> Charge {
        let part = Charge { grant: self.grant.as_mut().map(|grant| grant.split(bytes)), own: Some(own.clone()) };
        own.fetch_add(part.bytes(), Ordering::Relaxed);
        part
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            own.fetch_sub(self.bytes(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flatbed_testkit::pass;

    use super::*;

    #[tokio::test]
    async fn what_is_taken_comes_back() {
        let memory = Memory::new(2 << 20);
        let own = Arc::new(AtomicUsize::new(0));
        let mut charge = memory.changes(600 << 10).await;
        let part = charge.split(100 << 10, &own);
        assert_eq!(own.load(Ordering::Relaxed), 100 << 10);
        let rest = charge.split(10 << 20, &own);
        drop(charge);
        assert_eq!((own.load(Ordering::Relaxed), memory.taken()), (600 << 10, (600 << 10, 0)));
        assert!(memory.try_changes(500 << 10).is_none() && !memory.is_short());
        let waits = tokio::spawn({
            let memory = memory.clone();
            async move { memory.changes(500 << 10).await }
        });
        memory.short().await;
        assert!(memory.is_short());
        waits.abort();
        assert!(waits.await.is_err() && !memory.is_short());
        let more = memory.try_changes(400 << 10).unwrap();
        drop((part, rest, more));
        assert_eq!((own.load(Ordering::Relaxed), memory.taken()), (0, (0, 0)));
        // A request beyond the pool gets the whole pool.
        let all = memory.products(1 << 40).await;
        assert_eq!(memory.taken(), (0, 1 << 20));
        drop(all);
    }

    #[tokio::test(start_paused = true)]
    async fn who_wants_much_has_its_turn() {
        let memory = Memory::new(2 << 20);
        let some = memory.products(600 << 10).await;
        let much = tokio::spawn({
            let memory = memory.clone();
            async move { memory.products(1 << 20).await }
        });
        pass(Duration::from_secs(1)).await;
        // A small request would fit but is served in order.
        let little = tokio::spawn({
            let memory = memory.clone();
            async move { memory.products(1 << 10).await }
        });
        pass(Duration::from_secs(1)).await;
        assert!(!much.is_finished() && !little.is_finished());
        drop(some);
        let much = much.await.unwrap();
        assert!(!little.is_finished());
        drop(much);
        little.await.unwrap();
    }
}
