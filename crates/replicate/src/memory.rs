//! The memory that all replications of a process may hold for answers of peers.
//!
//! There are three parts, so that no task waits for memory held by tasks that wait for it:
//! - Texts: whole answers, and revisions in transit. They take memory as they arrive. A task that finds none waits for
//!   some, or for the *reserve*, which is as large as the most that one [`Room`] ever holds and belongs to one room at
//!   a time. So at least one task always proceeds.
//! - Trees of whole answers: acquired at once, and built and dropped without waiting for anything.
//! - Pages of changes: a task that waits for one holds only earlier pages of the same replication, which proceed
//!   without it.
//!
//! A peer may be slow as long as no other task needs the memory that it holds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_admission::{Budget, Grant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

const UNIT_BYTES: usize = 4 << 10;

/// Rooms below this size are not counted, because the numbers of jobs and batches are limited.
const FREE_BYTES: usize = 16 << 10;

/// The most bytes that one room holds: a revision being read into a buffer that grew by doubling, a copy of it to be
/// written, and another in the request that writes it.
pub(crate) const ROOM_BYTES_MAX: usize = 4 * crate::transfer::REVISION_BYTES_MAX + (16 << 20);

const WAIT_MAX: Duration = Duration::from_secs(600);

/// The time for which a room is kept if other tasks wait; below, the bytes per second that extend it.
const GRACE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: usize = 128 << 10;

/// The time for which a page is kept if other tasks wait: shorter than they wait.
const PAGE_GRACE: Duration = Duration::from_secs(300);

/// The interval at which waiting tasks are checked.
const LOOK: Duration = Duration::from_secs(5);

/// There is no memory in time, or the request can never be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Now,
    Ever,
}

/// The use and limit of a part, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The current use.
    pub used: usize,
    /// The limit.
    pub limit: usize,
}

/// Takes bytes of a part, all at once.
async fn take(part: &Arc<Budget>, bytes: usize) -> Result<Grant, NoRoom> {
    if !part.fits(bytes) {
        return Err(NoRoom::Ever);
    }
    if let Some(grant) = part.try_take(bytes) {
        return Ok(grant);
    }
    let _waiter = part.waiter();
    tokio::time::timeout(WAIT_MAX, part.take(bytes)).await.ok().flatten().ok_or(NoRoom::Now)
}

fn usage(part: &Budget) -> MemoryUsage {
    MemoryUsage { used: part.used(), limit: part.limit() }
}

#[derive(Debug)]
struct Parts {
    texts: Arc<Budget>,
    trees: Arc<Budget>,
    pages: Arc<Budget>,
    reserve: Arc<Semaphore>,
    /// The used part of the reserve of [`ROOM_BYTES_MAX`].
    reserve_used: AtomicUsize,
}

/// The memory of all replications of a process. Clones share it.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Parts>);

impl Memory {
    /// The smallest total, in bytes.
    pub const BYTES_MIN: usize = ROOM_BYTES_MAX + (64 << 20);

    /// Creates memory of `total_bytes`, including the reserve, at least [`Memory::BYTES_MIN`].
    pub fn new(total_bytes: usize) -> Memory {
        let shared = total_bytes.max(Memory::BYTES_MIN) - ROOM_BYTES_MAX;
        Memory::of_parts(shared / 2, shared / 4, shared / 4)
    }

    fn of_parts(trees: usize, texts: usize, pages: usize) -> Memory {
        let [texts, trees, pages] = [texts, trees, pages].map(|bytes| Budget::new(bytes.max(UNIT_BYTES), UNIT_BYTES));
        let (reserve, reserve_used) = (Arc::new(Semaphore::new(1)), AtomicUsize::new(0));
        Memory(Arc::new(Parts { texts, trees, pages, reserve, reserve_used }))
    }

    /// Returns the use of texts (with the reserve), trees, and pages of changes.
    pub fn usage(&self) -> [MemoryUsage; 3] {
        let mut texts = usage(&self.0.texts);
        texts.used += self.0.reserve_used.load(Ordering::Relaxed);
        texts.limit += ROOM_BYTES_MAX;
        [texts, usage(&self.0.trees), usage(&self.0.pages)]
    }

    pub(crate) fn room(&self) -> Arc<Room> {
        Arc::new(Room { memory: self.clone(), held: Mutex::default() })
    }

    /// Acquires memory for a tree. The caller must return it before it waits for anything else.
    pub(crate) async fn tree(&self, bytes: usize) -> Result<Option<Grant>, NoRoom> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        take(&self.0.trees, bytes).await.map(Some)
    }

    /// Acquires memory for a page of changes if it is available at once.
    pub(crate) fn try_page(&self, bytes: usize) -> Option<PageRoom> {
        let grant = self.0.pages.try_take(bytes)?;
        Some(PageRoom { memory: self.clone(), grant, since: Instant::now() })
    }

    /// Waits for memory for a page of changes. The caller must hold none except earlier pages.
    pub(crate) async fn page(&self, bytes: usize) -> Result<PageRoom, NoRoom> {
        let grant = take(&self.0.pages, bytes).await?;
        Ok(PageRoom { memory: self.clone(), grant, since: Instant::now() })
    }
}

/// The memory of a page of changes, returned on drop.
#[derive(Debug)]
pub(crate) struct PageRoom {
    memory: Memory,
    grant: Grant,
    since: Instant,
}

impl PageRoom {
    /// Returns the memory beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.grant.shrink(bytes);
    }

    pub(crate) fn holds(&self, bytes: usize) -> bool {
        bytes <= self.grant.bytes()
    }

    /// Returns once the page was held for [`PAGE_GRACE`] and other tasks wait.
    pub(crate) async fn overdue(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.memory.0.pages.is_waited_for() && self.since.elapsed() > PAGE_GRACE {
                return;
            }
        }
    }
}

#[derive(Debug, Default)]
struct RoomUse {
    bytes: usize,
    grant: Option<Grant>,
    reserve: Option<OwnedSemaphorePermit>,
    /// The time since which the room was never empty.
    since: Option<Instant>,
}

impl RoomUse {
    /// Returns the bytes to count, in whole units.
    fn counted(&self) -> usize {
        self.bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES) * UNIT_BYTES
    }

    fn missing(&self) -> usize {
        self.counted().saturating_sub(self.grant.as_ref().map_or(0, Grant::bytes))
    }

    fn add(&mut self, more: Grant) {
        match &mut self.grant {
            // All are of one budget. A grant of another one would be returned to it.
            Some(grant) => drop(grant.merge(more)),
            None => self.grant = Some(more),
        }
    }
}

/// The memory that one batch or one whole answer holds of texts. Only one task at a time may grow it.
#[derive(Debug)]
pub(crate) struct Room {
    memory: Memory,
    held: Mutex<RoomUse>,
}

impl Room {
    fn held(&self) -> MutexGuard<'_, RoomUse> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires more memory, waiting for it.
    async fn grow(&self, bytes: usize) -> Result<(), NoRoom> {
        let parts = &*self.memory.0;
        let missing = {
            let mut held = self.held();
            held.since.get_or_insert_with(Instant::now);
            if held.bytes + bytes > ROOM_BYTES_MAX {
                return Err(NoRoom::Ever);
            }
            held.bytes += bytes;
            let missing = held.missing();
            if held.reserve.is_some() {
                parts.reserve_used.store(missing, Ordering::Relaxed);
                return Ok(());
            }
            if let Some(more) = parts.texts.try_take(missing) {
                held.add(more);
                return Ok(());
            }
            missing
        };
        let _waiter = parts.texts.waiter();
        let shared = async {
            // Holding a part of it would block all other tasks until the rest is available.
            match parts.texts.fits(2 * missing) {
                true => parts.texts.take(missing).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(more) = shared => self.held().add(more),
            Ok(reserve) = parts.reserve.clone().acquire_owned() => {
                self.held().reserve = Some(reserve);
                parts.reserve_used.store(missing, Ordering::Relaxed);
            }
            () = tokio::time::sleep(WAIT_MAX) => {
                self.shrink(bytes);
                return Err(NoRoom::Now);
            }
            else => return Err(NoRoom::Now),
        }
        Ok(())
    }

    fn shrink(&self, bytes: usize) {
        let mut held = self.held();
        held.bytes = held.bytes.saturating_sub(bytes);
        let missing = held.missing();
        if held.reserve.is_some() {
            self.memory.0.reserve_used.store(missing, Ordering::Relaxed);
        }
        if missing == 0 {
            held.reserve = None;
            let counted = held.counted();
            if let Some(grant) = &mut held.grant {
                grant.shrink(counted);
            }
        }
        if held.bytes <= FREE_BYTES {
            held.since = None;
        }
    }

    /// Returns whether the room was held longer than its size allows while other tasks wait.
    pub(crate) fn is_overdue(&self) -> bool {
        let held = self.held();
        let allowed = GRACE + Duration::from_secs((held.bytes / BYTES_PER_SECOND) as u64);
        self.memory.0.texts.is_waited_for() && held.since.is_some_and(|since| since.elapsed() > allowed)
    }

    /// Returns once [`Room::is_overdue`].
    pub(crate) async fn overdue(&self) {
        while !self.is_overdue() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.held().reserve.is_some() {
            self.memory.0.reserve_used.store(0, Ordering::Relaxed);
        }
    }
}

/// A part of a room, returned on drop.
#[derive(Debug)]
pub(crate) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Share {
    pub(crate) fn new(room: &Arc<Room>) -> Share {
        Share { room: room.clone(), bytes: 0 }
    }

    /// Sets its size.
    pub(crate) async fn set(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes > self.bytes {
            self.room.grow(bytes - self.bytes).await?;
        } else {
            self.room.shrink(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.room.memory
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::pass;

    use super::*;

    const MB: usize = 1 << 20;

    fn used(memory: &Memory) -> usize {
        memory.usage()[0].used
    }

    #[tokio::test(start_paused = true)]
    async fn two_that_hold_and_want_more_both_come_to_their_end() {
        let memory = Memory::of_parts(MB, 10 * MB, MB);
        let mut tasks = Vec::new();
        for _ in 0..5 {
            let memory = memory.clone();
            tasks.push(tokio::spawn(async move {
                let mut share = Share::new(&memory.room());
                for bytes in (0..=60 * MB).step_by(MB / 4) {
                    share.set(bytes).await.unwrap();
                    tokio::task::yield_now().await;
                    // One room holds the reserve.
                    assert!(used(&memory) <= 10 * MB + ROOM_BYTES_MAX);
                }
                // A second part of the same room does not wait for the first.
                let mut second = Share::new(share.room());
                second.set(60 * MB).await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(used(&memory), 0);
        assert!(!memory.0.texts.is_waited_for());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_is_told_so_if_others_wait() {
        let memory = Memory::of_parts(MB, MB, MB);
        let (slow, reserve) = (memory.room(), memory.room());
        let (mut slow_share, mut reserve_share) = (Share::new(&slow), Share::new(&reserve));
        slow_share.set(MB).await.unwrap();
        reserve_share.set(MB).await.unwrap();
        pass(Duration::from_secs(300)).await;
        assert!(!slow.is_overdue() && !reserve.is_overdue());
        let third = memory.clone();
        let waits = tokio::spawn(async move { Share::new(&third.room()).set(MB).await });
        slow.overdue().await;
        drop((slow_share, slow));
        drop((reserve_share, reserve));
        assert_eq!(waits.await.unwrap(), Ok(()));
        assert_eq!(used(&memory), 0);

        let (one, two) = (memory.room(), memory.room());
        let (mut one, mut two) = (Share::new(&one), Share::new(&two));
        one.set(MB).await.unwrap();
        two.set(MB).await.unwrap();
        assert_eq!(Share::new(&memory.room()).set(MB).await, Err(NoRoom::Now));
        assert_eq!(two.set(ROOM_BYTES_MAX + 1).await, Err(NoRoom::Ever));
        drop((one, two));
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_and_trees_are_waited_for() {
        let memory = Memory::of_parts(MB, MB, MB);
        assert_eq!(memory.tree(2 * MB).await.unwrap_err(), NoRoom::Ever);
        assert!(memory.tree(FREE_BYTES).await.unwrap().is_none());
        let mut page = memory.try_page(MB).unwrap();
        assert!(memory.try_page(1).is_none());
        page.shrink(MB / 2);
        assert!(page.holds(MB / 2) && !page.holds(MB));
        let second = memory.page(MB / 2).await.unwrap();
        let third = memory.clone();
        let waits = tokio::spawn(async move { third.page(MB).await.is_ok() });
        page.overdue().await;
        drop((page, second));
        assert!(waits.await.unwrap());
    }
}
