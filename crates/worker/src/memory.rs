//! The memory that all jobs of a process have in common.
//!
//! There are two rooms. What is read of sources waits in one, what is made of it for targets is in the other while it is delivered.
//! That nobody waits for ever follows from how they are asked for: a job waits for the first only while it has nothing of either, reads
//! ahead only where there is room at once, asks once for the second for a part of a batch, and gives that back when the target has
//! answered, whatever it says. Whoever waits is served in turn, also who wants much. A job whose target is down gives back what waits
//! for it where others wait for the first room (`Memory::is_short`), and reads it again later.
//!
//! Trees of parsed JSON are larger than their texts, at worst [`TREE_FACTOR`] times, and live from one await to the next: as many at once
//! as the process has threads. Texts from [`LARGE_TEXT_BYTES`] on are parsed one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Bytes that are counted as one.
const UNIT_BYTES: usize = 1 << 10;

/// What a process may have at least: less than that is no room for the largest document.
pub const MEMORY_BYTES_MIN: usize = 128 << 20;

/// Where nothing is said.
pub const MEMORY_BYTES: usize = 512 << 20;

/// From how many bytes on a text is parsed while no other one so large is.
pub const LARGE_TEXT_BYTES: usize = 1 << 20;

/// Bytes of a parsed tree for each of its text, at worst: an array of digits.
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

    /// All of it, if more is asked for than there is.
    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units_max)
    }
}

/// The rooms. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    changes: Room,
    products: Room,
    large: Semaphore,
    /// Jobs that wait for the first room, and who is notified when another one begins to.
    waiting: AtomicUsize,
    needed: Notify,
}

/// Somebody waits for the first room, as long as this is there.
struct Waits<'r>(&'r Rooms);

impl<'r> Waits<'r> {
    fn new(rooms: &'r Rooms) -> Waits<'r> {
        rooms.waiting.fetch_add(1, Ordering::SeqCst);
        rooms.needed.notify_waiters();
        Waits(rooms)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for Memory {
    /// [`MEMORY_BYTES`].
    fn default() -> Memory {
        Memory::new(MEMORY_BYTES)
    }
}

impl Memory {
    /// Half of `bytes` for each room, which are [`MEMORY_BYTES_MIN`] or more for who has large documents.
    pub fn new(bytes: usize) -> Memory {
        let (changes, products) = (Room::new(bytes / 2), Room::new(bytes / 2));
        let (large, waiting, needed) = (Semaphore::new(1), AtomicUsize::new(0), Notify::new());
        Memory(Arc::new(Rooms { changes, products, large, waiting, needed }))
    }

    /// Room for what is read, for a job that has none: all of it at most.
    pub(crate) async fn changes(&self, bytes: usize) -> Charge {
        if let Some(charge) = self.try_changes(bytes) {
            return charge;
        }
        let (room, _waits) = (&self.0.changes, Waits::new(&self.0));
        Charge { permit: room.units.clone().acquire_many_owned(room.units(bytes)).await.ok(), own: None }
    }

    /// Room for what is read, if it is to be had at once.
    pub(crate) fn try_changes(&self, bytes: usize) -> Option<Charge> {
        let room = &self.0.changes;
        let permit = room.units.clone().try_acquire_many_owned(room.units(bytes)).ok()?;
        Some(Charge { permit: Some(permit), own: None })
    }

    /// Room for what is made for a target: all of it at most.
    pub(crate) async fn products(&self, bytes: usize) -> Charge {
        let room = &self.0.products;
        Charge { permit: room.units.clone().acquire_many_owned(room.units(bytes)).await.ok(), own: None }
    }

    /// Room for what is made, if it is to be had at once.
    pub(crate) fn try_products(&self, bytes: usize) -> Option<Charge> {
        let room = &self.0.products;
        let permit = room.units.clone().try_acquire_many_owned(room.units(bytes)).ok()?;
        Some(Charge { permit: Some(permit), own: None })
    }

    /// Whether a job that cannot go on should give back what it holds of what was read: others wait for it.
    pub(crate) fn is_short(&self) -> bool {
        self.0.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns once it is.
    pub(crate) async fn short(&self) {
        let mut needed = std::pin::pin!(self.0.needed.notified());
        needed.as_mut().enable();
        if !self.is_short() {
            needed.await;
        }
    }

    /// Waits until a text of so many bytes may be parsed; nothing is to be waited for while it is.
    pub(crate) async fn parsing(&self, bytes: usize) -> Option<tokio::sync::SemaphorePermit<'_>> {
        if bytes < LARGE_TEXT_BYTES {
            return None;
        }
        self.0.large.acquire().await.ok()
    }

    /// Bytes that are taken of the two rooms, of what is read and of what is made.
    pub fn taken(&self) -> (usize, usize) {
        let of = |room: &Room| {
            let free = room.units.available_permits();
            usize::try_from(room.units_max).unwrap_or(usize::MAX).saturating_sub(free).saturating_mul(UNIT_BYTES)
        };
        (of(&self.0.changes), of(&self.0.products))
    }
}

/// Room that a job has; it is given back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    permit: Option<OwnedSemaphorePermit>,
    /// What this is counted in, too.
    own: Option<Arc<AtomicUsize>>,
}

impl Charge {
    /// None.
    pub(crate) fn none() -> Charge {
        Charge { permit: None, own: None }
    }

    fn bytes(&self) -> usize {
        self.permit.as_ref().map_or(0, |permit| permit.num_permits().saturating_mul(UNIT_BYTES))
    }

    /// A part of it, as far as there is so much, which `own` counts as long as it is held.
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
        // No more than there is.
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
        // Who asks for more than there is gets all.
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
        // A little would fit, and comes after it all the same.
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
