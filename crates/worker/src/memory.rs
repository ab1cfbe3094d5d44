//! The memory budget shared by all jobs of a process.
//!
//! There are two pools: one for changes read from sources, one for products made for targets until they are delivered.
//! The rules of acquisition exclude deadlock: a job waits for the first pool only while it holds nothing of either,
//! reads ahead only if memory is available at once, acquires the second pool once per part of a batch, and releases
//! that when the target has answered, with success or not. Waiters are served in order, including large requests. A job
//! whose target is down releases its changes if others wait for the first pool (`Memory::is_short`), and reads them
//! again later.
//!
//! Trees of parsed JSON are larger than their texts, at most [`TREE_FACTOR`] times, and do not live across an await:
//! there are at most as many as the process has threads. Texts from [`LARGE_TEXT_BYTES`] on are parsed one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

const UNIT_BYTES: usize = 1 << 10;

/// The smallest budget: below it the largest document does not fit.
pub const MEMORY_BYTES_MIN: usize = 128 << 20;

/// The default budget.
pub const MEMORY_BYTES: usize = 512 << 20;

/// The size in bytes from which texts are parsed one at a time.
pub const LARGE_TEXT_BYTES: usize = 1 << 20;

/// The largest ratio of a parsed tree to its text: an array of digits.
pub const TREE_FACTOR: usize = 16;

#[derive(Debug)]
struct Room {
    units: Arc<Semaphore>,
    units_max: u32,
}

impl Room {
    fn new(bytes: usize) -> Room {
        let units_max = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        let units = usize::try_from(units_max).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Room { units: Arc::new(Semaphore::new(units)), units_max }
    }

    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units_max)
    }
}

/// Both pools. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    changes: Room,
    products: Room,
    large: Semaphore,
    /// The number of jobs that wait for the first pool; `needed` is notified when it rises.
    waiting: AtomicUsize,
    needed: Notify,
}

/// Counts its owner as a waiter for the first pool until dropped.
struct WaiterCount<'r>(&'r Rooms);

impl<'r> WaiterCount<'r> {
    fn new(rooms: &'r Rooms) -> WaiterCount<'r> {
        rooms.waiting.fetch_add(1, Ordering::SeqCst);
        rooms.needed.notify_waiters();
        WaiterCount(rooms)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
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
        let (changes, products) = (Room::new(bytes / 2), Room::new(bytes / 2));
        let (large, waiting, needed) = (Semaphore::new(1), AtomicUsize::new(0), Notify::new());
        Memory(Arc::new(Rooms { changes, products, large, waiting, needed }))
    }

    /// Acquires memory for changes, at most the whole pool, for a job that holds none.
    pub(crate) async fn changes(&self, bytes: usize) -> Charge {
        if let Some(charge) = self.try_changes(bytes) {
            return charge;
        }
        let (room, _waits) = (&self.0.changes, WaiterCount::new(&self.0));
        Charge { permit: room.units.clone().acquire_many_owned(room.units(bytes)).await.ok(), own: None }
    }

    /// Acquires memory for changes if it is available at once.
    pub(crate) fn try_changes(&self, bytes: usize) -> Option<Charge> {
        let room = &self.0.changes;
        let permit = room.units.clone().try_acquire_many_owned(room.units(bytes)).ok()?;
        Some(Charge { permit: Some(permit), own: None })
    }

    /// Acquires memory for products, at most the whole pool.
    pub(crate) async fn products(&self, bytes: usize) -> Charge {
        let room = &self.0.products;
        Charge { permit: room.units.clone().acquire_many_owned(room.units(bytes)).await.ok(), own: None }
    }

    /// Acquires memory for products if it is available at once.
    pub(crate) fn try_products(&self, bytes: usize) -> Option<Charge> {
        let room = &self.0.products;
        let permit = room.units.clone().try_acquire_many_owned(room.units(bytes)).ok()?;
        Some(Charge { permit: Some(permit), own: None })
    }

    /// Returns whether other jobs wait for the first pool, so that a stalled job should release its changes.
    pub(crate) fn is_short(&self) -> bool {
        self.0.waiting.load(Ordering::SeqCst) > 0
    }

    /// Waits until [`Memory::is_short`].
    pub(crate) async fn short(&self) {
        let mut needed = std::pin::pin!(self.0.needed.notified());
        needed.as_mut().enable();
        if !self.is_short() {
            needed.await;
        }
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
        let of = |room: &Room| {
            let free = room.units.available_permits();
            usize::try_from(room.units_max).unwrap_or(usize::MAX).saturating_sub(free).saturating_mul(UNIT_BYTES)
        };
        (of(&self.0.changes), of(&self.0.products))
    }
}

/// Acquired memory, released on drop.
#[derive(Debug)]
pub struct Charge {
    permit: Option<OwnedSemaphorePermit>,
    /// A second counter that includes this charge.
    own: Option<Arc<AtomicUsize>>,
}

impl Charge {
    pub(crate) fn none() -> Charge {
        Charge { permit: None, own: None }
    }

    fn bytes(&self) -> usize {
        self.permit.as_ref().map_or(0, |permit| permit.num_permits().saturating_mul(UNIT_BYTES))
    }

    /// Splits off at most `bytes`, which `own` counts until the part is dropped.
    pub(crate) fn split(&mut self, bytes: usize, own: &Arc<AtomicUsize>) -> Charge {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        let permit = self.permit.as_mut().and_then(|permit| permit.split(units));
        let part = Charge { permit, own: Some(own.clone()) };
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
