//! The memory budget for emitted rows, per process and per database.
//!
//! A task holds a [`MemoryPermit`] from before it maps documents until their rows are written. A permit grows without
//! waiting. If the budget is exhausted, the task drops its rows and its permit, waits for a permit of the size that the
//! rows had, and maps the documents again. A waiting task therefore holds no memory, so tasks cannot deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatbed_admission::{Budget, Grant, Shares};
use flatbed_store::error::{Error, Result};
use flatbed_store::view_bounds::PART_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of at most [`MemoryBudget::part_bytes`] divided by this may be free: 256 kB by default, so groups with few
/// rows do not wait for those with many.
const FREE_PART: usize = 128;

/// The most permits that are free at the same time: together as large as two parts, 64 MB by default. Further ones use
/// the budget.
const FREE_PERMITS_MAX: usize = 2 * FREE_PART;

/// The unit of the budget, in bytes.
pub const UNIT_BYTES: usize = 1 << 10;

/// A memory budget that all tasks of a process share. One database may hold half of it.
#[derive(Debug)]
pub struct MemoryBudget {
    all: Arc<Budget>,
    /// The bytes of one database: half of all.
    share_bytes: usize,
    /// One permit, for a document that exceeds the share of a database.
    oversized: Arc<Semaphore>,
    /// A permit for each memory permit that may be free.
    free: Arc<Semaphore>,
    databases: Shares<u64, Budget>,
    held: AtomicUsize,
    most_held: AtomicUsize,
}

impl MemoryBudget {
    /// `bytes`: the budget of all databases together.
    pub fn new(bytes: usize) -> Arc<MemoryBudget> {
        let share_bytes = (bytes / UNIT_BYTES / 2).clamp(1, u32::MAX as usize / 2) * UNIT_BYTES;
        Arc::new(MemoryBudget {
            all: Budget::new(2 * share_bytes, UNIT_BYTES),
            share_bytes,
            oversized: Arc::new(Semaphore::new(1)),
            free: Arc::new(Semaphore::new(FREE_PERMITS_MAX)),
            databases: Shares::default(),
            held: AtomicUsize::new(0),
            most_held: AtomicUsize::new(0),
        })
    }

    /// Returns the largest part, in bytes of rows. A part of a single document may be larger.
    pub fn part_bytes(&self) -> usize {
        (self.share_bytes / 4).min(PART_BYTES_MAX)
    }

    fn free_bytes(&self) -> usize {
        self.part_bytes() / FREE_PART
    }

    /// Returns the size of the smallest permit that exceeds a database's share, in bytes.
    pub fn oversized_bytes_min(&self) -> usize {
        self.share_bytes + 1
    }

    /// Returns the bytes that permits hold now, and their maximum since the process began.
    pub fn usage(&self) -> (usize, usize) {
        (self.held.load(Ordering::Relaxed), self.most_held.load(Ordering::Relaxed))
    }

    pub fn permit(self: &Arc<Self>, namespace: u64) -> MemoryPermit {
        let database = self.databases.of(namespace, || Budget::new(self.share_bytes, UNIT_BYTES));
        MemoryPermit { memory: Arc::clone(self), database, grants: None, oversized: None, free: None, bytes: 0 }
    }

    /// Waits for a permit of this size, first come, first served. A permit that exceeds a database's share takes the
    /// whole share.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`].
    pub async fn acquire(self: &Arc<Self>, namespace: u64, bytes: usize) -> Result<MemoryPermit> {
        let mut permit = self.permit(namespace);
        if permit.try_acquire_free(bytes) {
            permit.count(bytes);
            return Ok(permit);
        }
        if self.exceeds_share(bytes) {
            permit.oversized = Some(self.oversized.clone().acquire_owned().await.map_err(|_| Error::ShuttingDown)?);
        }
        let counted = self.counted(bytes);
        let of_database = permit.database.take(counted).await.ok_or(Error::ShuttingDown)?;
        let of_all = self.all.take(counted).await.ok_or(Error::ShuttingDown)?;
        permit.grants = Some([of_database, of_all]);
        permit.count(bytes);
        Ok(permit)
    }

    fn exceeds_share(&self, bytes: usize) -> bool {
        bytes > self.share_bytes
    }

    /// Returns the bytes that a permit takes: whole units, at most the share of a database.
    fn counted(&self, bytes: usize) -> usize {
        bytes.min(self.share_bytes).next_multiple_of(UNIT_BYTES)
    }
}

/// A share of the budget, returned on drop.
#[derive(Debug)]
pub struct MemoryPermit {
    memory: Arc<MemoryBudget>,
    database: Arc<Budget>,
    /// From the database's share, and from the whole budget.
    grants: Option<[Grant; 2]>,
    oversized: Option<OwnedSemaphorePermit>,
    free: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl MemoryPermit {
    /// Grows the permit to at least this size without waiting. Returns whether the budget sufficed.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        if self.taken() == 0 && self.try_acquire_free(bytes) {
            self.count(bytes);
            return true;
        }
        if self.memory.exceeds_share(bytes) && self.oversized.is_none() {
            let Ok(oversized) = self.memory.oversized.clone().try_acquire_owned() else { return false };
            self.oversized = Some(oversized);
        }
        let more = self.memory.counted(bytes).saturating_sub(self.taken());
        if more > 0 {
            let Some(of_database) = self.database.try_take(more) else { return false };
            let Some(of_all) = self.memory.all.try_take(more) else { return false };
            match &mut self.grants {
                Some([held_of_database, held_of_all]) => {
                    if held_of_database.merge(of_database).is_err() || held_of_all.merge(of_all).is_err() {
                        return false;
                    }
                }
                None => self.grants = Some([of_database, of_all]),
            }
        }
        self.free = None;
        self.count(bytes);
        true
    }

    /// Returns everything beyond this size to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            return;
        }
        let needed = if bytes == 0 || self.try_acquire_free(bytes) { 0 } else { self.memory.counted(bytes) };
        for grant in self.grants.iter_mut().flatten() {
            grant.shrink(needed);
        }
        if !self.memory.exceeds_share(bytes) {
            self.oversized = None;
        }
        if bytes == 0 {
            self.free = None;
        }
        self.count(bytes);
    }

    /// Makes the permit a free one if this size may be free and fewer than [`FREE_PERMITS_MAX`] are. Returns whether it
    /// is free.
    fn try_acquire_free(&mut self, bytes: usize) -> bool {
        if bytes > self.memory.free_bytes() {
            return false;
        }
        if self.free.is_none() {
            self.free = self.memory.free.clone().try_acquire_owned().ok();
        }
        self.free.is_some()
    }

    /// Returns the bytes that are taken from the budget.
    fn taken(&self) -> usize {
        self.grants.as_ref().map_or(0, |[of_database, _]| of_database.bytes())
    }

    fn count(&mut self, bytes: usize) {
        let MemoryBudget { held, most_held, .. } = &*self.memory;
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes < before {
            held.fetch_sub(before - bytes, Ordering::Relaxed);
        } else {
            let now = held.fetch_add(bytes - before, Ordering::Relaxed) + (bytes - before);
            most_held.fetch_max(now, Ordering::Relaxed);
        }
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.count(0);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KB: usize = 1 << 10;

    #[tokio::test]
    async fn no_database_takes_the_whole_budget() {
        let memory = MemoryBudget::new(64 * KB);
        assert_eq!(memory.part_bytes(), 8 * KB);
        let mut held = Vec::new();
        while let Some(room) = memory.acquire(1, 8 * KB).now_or_never() {
            held.push(room.unwrap());
        }
        assert_eq!(held.len(), 4);
        let other = memory.acquire(2, 32 * KB).now_or_never().expect("another database has its own").unwrap();
        assert!(memory.acquire(3, KB).now_or_never().is_none());
        assert_eq!(memory.usage(), (64 * KB, 64 * KB));
        drop(other);
        assert!(memory.acquire(3, KB).now_or_never().is_some());
        let waits = memory.acquire(1, 16 * KB);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        held.truncate(2);
        assert!(waits.now_or_never().is_some());
        drop(held);
        assert_eq!(memory.usage(), (0, 64 * KB));
    }

    #[tokio::test]
    async fn a_permit_grows_without_waiting_and_shrinks() {
        let memory = MemoryBudget::new(64 * KB);
        let mut room = memory.acquire(1, 8 * KB).await.unwrap();
        let mut other = memory.acquire(1, 8 * KB).await.unwrap();
        assert!(room.try_grow(24 * KB) && room.try_grow(4 * KB));
        assert!(!other.try_grow(9 * KB));
        assert_eq!(memory.usage().0, 32 * KB);
        room.shrink(3 * KB);
        assert!(other.try_grow(29 * KB) && !room.try_grow(4 * KB));
        assert_eq!(memory.usage().0, 32 * KB);
    }

    #[tokio::test]
    async fn few_rows_wait_for_nobody() {
        let memory = MemoryBudget::new(64 * KB);
        let full = [memory.acquire(1, 32 * KB).await.unwrap(), memory.acquire(2, 32 * KB).await.unwrap()];
        let (free, mut small) = (memory.free_bytes(), memory.permit(1));
        assert!(small.try_grow(free) && !small.try_grow(free + 1));
        assert_eq!(memory.usage().0, 64 * KB + free);
        drop(full);
        assert!(small.try_grow(free + 1));
    }

    #[tokio::test]
    async fn permits_beyond_the_free_ones_use_the_budget() {
        let memory = MemoryBudget::new(64 * KB);
        let free = memory.free_bytes();
        let full = [memory.acquire(1, 32 * KB).await.unwrap(), memory.acquire(2, 32 * KB).await.unwrap()];
        let mut permits: Vec<MemoryPermit> =
            (0..=FREE_PERMITS_MAX as u64).map(|namespace| memory.permit(namespace)).collect();
        let has_grown: Vec<bool> = permits.iter_mut().map(|permit| permit.try_grow(free)).collect();
        assert_eq!(has_grown.iter().filter(|has_grown| **has_grown).count(), FREE_PERMITS_MAX);
        let mut last = permits.pop().unwrap();
        assert!(memory.acquire(3, free).now_or_never().is_none(), "it waits");
        drop(full);
        assert!(last.try_grow(free) && last.taken() == UNIT_BYTES);
        // A permit that grows returns its free place, and one that shrinks takes it.
        assert!(permits[0].try_grow(KB) && last.try_grow(2 * KB));
        last.shrink(free);
        assert_eq!((last.taken(), permits[0].taken()), (0, UNIT_BYTES));
        permits[1].shrink(0);
        assert!(memory.acquire(3, free).await.is_ok_and(|permit| permit.taken() == 0));
        drop((last, permits));
        assert_eq!((memory.free.available_permits(), memory.usage().0), (FREE_PERMITS_MAX, 0));
    }

    #[tokio::test]
    async fn a_document_beyond_the_share_goes_alone() {
        let memory = MemoryBudget::new(64 * KB);
        let mut large = memory.acquire(1, 100 * KB).now_or_never().expect("it does not wait for ever").unwrap();
        assert!(large.try_grow(200 * KB));
        assert!(memory.acquire(2, 100 * KB).now_or_never().is_none(), "one at a time");
        let mut small = memory.acquire(2, KB).await.unwrap();
        assert!(!small.try_grow(33 * KB));
        large.shrink(KB);
        assert!(small.try_grow(33 * KB));
        drop((large, small));
        assert_eq!(memory.usage(), (0, 201 * KB));
    }

    #[tokio::test]
    async fn databases_without_permits_are_forgotten() {
        let memory = MemoryBudget::new(64 * KB);
        for namespace in 0..200 {
            drop(memory.acquire(namespace, KB).await.unwrap());
        }
        assert!(memory.databases.all().is_empty());
    }
}
