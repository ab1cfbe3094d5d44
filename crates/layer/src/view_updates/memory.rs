//! Memory for the rows that maps emit: how much of it a process takes in all, and for one database.
//!
//! A task has a [`RowsRoom`] from before it maps documents until their rows are written. A room grows without waiting. If it cannot,
//! the task drops the rows, gives the room back and waits for one of the size that they had, in which it maps the documents again. So a
//! task that waits holds nothing, and every room comes back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};

/// Rows of several documents that are mapped together, in bytes, where the process has [`bytes_by_default`].
const PART_BYTES_MAX: usize = 32 << 20;

/// This part of [`RowsMemory::part_bytes`] is free: 256 kB, so that groups with few rows never wait for others.
const FREE_PART: usize = 128;

/// The unit in which room is given out, in bytes.
const UNIT_BYTES: usize = 1 << 10;

/// What counts as a turn where turns are given out, and not room: a database's share of two.
pub(crate) const TURN_BYTES: usize = UNIT_BYTES;

/// Databases that are known before those are forgotten that hold no room.
const KNOWN: usize = 64;

/// A database may have a part for each of the ranges that a first build maps at once, and all databases twice as much: 256 MB
/// with two processors.
pub(crate) fn bytes_by_default() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    2 * PART_BYTES_MAX * (processors.clamp(2, 64) + 2)
}

/// What all tasks of a process hold of rows that were emitted, in bytes.
#[derive(Debug)]
pub(crate) struct RowsMemory {
    all: Arc<Semaphore>,
    /// Units of one database: half of all.
    share: usize,
    /// The document that takes more than a database's share: one at a time.
    beyond: Arc<Semaphore>,
    /// By namespace.
    databases: Mutex<HashMap<u64, Weak<Semaphore>>>,
    held: AtomicUsize,
    most_held: AtomicUsize,
}

impl RowsMemory {
    /// `bytes`: of all databases together.
    pub(crate) fn new(bytes: usize) -> Arc<RowsMemory> {
        let share = (bytes / UNIT_BYTES / 2).clamp(1, Semaphore::MAX_PERMITS / 4).min(u32::MAX as usize);
        Arc::new(RowsMemory {
            all: Arc::new(Semaphore::new(2 * share)),
            share,
            beyond: Arc::new(Semaphore::new(1)),
            databases: Mutex::default(),
            held: AtomicUsize::new(0),
            most_held: AtomicUsize::new(0),
        })
    }

    /// What the rows of several documents that are mapped together may take, in bytes. A single document may have more.
    pub(crate) fn part_bytes(&self) -> usize {
        (self.share * UNIT_BYTES / 4).min(PART_BYTES_MAX)
    }

    /// The least that is more than a database's share, in bytes.
    pub(crate) fn beyond_share(&self) -> usize {
        self.share * UNIT_BYTES + 1
    }

    /// Bytes that are held now, and the most that ever were.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.held.load(Ordering::Relaxed), self.most_held.load(Ordering::Relaxed))
    }

    /// An empty room. What is free of it is all that it has at first.
    pub(crate) fn room(self: &Arc<Self>, namespace: u64) -> RowsRoom {
        let database = self.database(namespace);
        RowsRoom { memory: Arc::clone(self), database, permits: None, beyond: None, bytes: 0 }
    }

    /// Waits for room, in turn. A document that takes more than a database may have waits until it has all of that.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`].
    pub(crate) async fn take(self: &Arc<Self>, namespace: u64, bytes: usize) -> Result<RowsRoom> {
        let mut room = self.room(namespace);
        if self.is_beyond(bytes) {
            room.beyond = Some(self.beyond.clone().acquire_owned().await.map_err(|_| Error::ShuttingDown)?);
        }
        let units = self.units(bytes);
        let of_database = room.database.clone().acquire_many_owned(units).await.map_err(|_| Error::ShuttingDown)?;
        let of_all = self.all.clone().acquire_many_owned(units).await.map_err(|_| Error::ShuttingDown)?;
        room.permits = Some([of_database, of_all]);
        room.count(bytes);
        Ok(room)
    }

    fn is_beyond(&self, bytes: usize) -> bool {
        bytes > self.share * UNIT_BYTES
    }

    fn units(&self, bytes: usize) -> u32 {
        match bytes <= self.part_bytes() / FREE_PART {
            true => 0,
            false => u32::try_from(bytes.div_ceil(UNIT_BYTES).min(self.share)).unwrap_or(u32::MAX),
        }
    }

    fn database(&self, namespace: u64) -> Arc<Semaphore> {
        let mut databases = self.databases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = databases.get(&namespace).and_then(Weak::upgrade) {
            return known;
        }
        if databases.len() >= KNOWN {
            databases.retain(|_, semaphore| semaphore.strong_count() > 0);
        }
        let semaphore = Arc::new(Semaphore::new(self.share));
        databases.insert(namespace, Arc::downgrade(&semaphore));
        semaphore
    }
}

/// Room for rows, until this is dropped.
#[derive(Debug)]
pub(crate) struct RowsRoom {
    memory: Arc<RowsMemory>,
    database: Arc<Semaphore>,
    /// Of the database's share, and of all.
    permits: Option<[OwnedSemaphorePermit; 2]>,
    beyond: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl RowsRoom {
    /// Makes it at least as large as this without waiting; whether that was possible.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        if self.memory.is_beyond(bytes) && self.beyond.is_none() {
            let Ok(beyond) = self.memory.beyond.clone().try_acquire_owned() else { return false };
            self.beyond = Some(beyond);
        }
        let more = self.memory.units(bytes).saturating_sub(self.units());
        if more > 0 {
            let Ok(of_database) = self.database.clone().try_acquire_many_owned(more) else { return false };
            let Ok(of_all) = self.memory.all.clone().try_acquire_many_owned(more) else { return false };
            match &mut self.permits {
                Some([held_of_database, held_of_all]) => {
                    held_of_database.merge(of_database);
                    held_of_all.merge(of_all);
                }
                None => self.permits = Some([of_database, of_all]),
            }
        }
        self.count(bytes);
        true
    }

    /// Gives back what is more than this.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            return;
        }
        let surplus = self.units().saturating_sub(self.memory.units(bytes)) as usize;
        if let Some([of_database, of_all]) = &mut self.permits {
            drop((of_database.split(surplus), of_all.split(surplus)));
        }
        if !self.memory.is_beyond(bytes) {
            self.beyond = None;
        }
        self.count(bytes);
    }

    fn units(&self) -> u32 {
        let units = self.permits.as_ref().map_or(0, |[of_database, _]| of_database.num_permits());
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    fn count(&mut self, bytes: usize) {
        let RowsMemory { held, most_held, .. } = &*self.memory;
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes < before {
            held.fetch_sub(before - bytes, Ordering::Relaxed);
        } else {
            let now = held.fetch_add(bytes - before, Ordering::Relaxed) + (bytes - before);
            most_held.fetch_max(now, Ordering::Relaxed);
        }
    }
}

impl Drop for RowsRoom {
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
    async fn no_database_takes_all_room() {
        let memory = RowsMemory::new(64 * KB);
        assert_eq!(memory.part_bytes(), 8 * KB);
        let mut held = Vec::new();
        while let Some(room) = memory.take(1, 8 * KB).now_or_never() {
            held.push(room.unwrap());
        }
        assert_eq!(held.len(), 4);
        let other = memory.take(2, 32 * KB).now_or_never().expect("another database has its own").unwrap();
        assert!(memory.take(3, KB).now_or_never().is_none());
        assert_eq!(memory.usage(), (64 * KB, 64 * KB));
        drop(other);
        assert!(memory.take(3, KB).now_or_never().is_some());
        let waits = memory.take(1, 16 * KB);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        held.truncate(2);
        assert!(waits.now_or_never().is_some());
        drop(held);
        assert_eq!(memory.usage(), (0, 64 * KB));
    }

    #[tokio::test]
    async fn a_room_grows_without_waiting_and_shrinks() {
        let memory = RowsMemory::new(64 * KB);
        let mut room = memory.take(1, 8 * KB).await.unwrap();
        let mut other = memory.take(1, 8 * KB).await.unwrap();
        assert!(room.grow(24 * KB) && room.grow(4 * KB));
        assert!(!other.grow(9 * KB));
        assert_eq!(memory.usage().0, 32 * KB);
        room.shrink(3 * KB);
        assert!(other.grow(29 * KB) && !room.grow(4 * KB));
        assert_eq!(memory.usage().0, 32 * KB);
    }

    #[tokio::test]
    async fn few_rows_wait_for_nobody() {
        let memory = RowsMemory::new(64 * KB);
        let full = [memory.take(1, 32 * KB).await.unwrap(), memory.take(2, 32 * KB).await.unwrap()];
        let (free, mut small) = (memory.part_bytes() / FREE_PART, memory.room(1));
        assert!(small.grow(free) && !small.grow(free + 1));
        assert_eq!(memory.usage().0, 64 * KB + free);
        drop(full);
        assert!(small.grow(free + 1));
    }

    #[tokio::test]
    async fn a_document_beyond_the_share_goes_alone() {
        let memory = RowsMemory::new(64 * KB);
        let mut large = memory.take(1, 100 * KB).now_or_never().expect("it does not wait for ever").unwrap();
        assert!(large.grow(200 * KB));
        assert!(memory.take(2, 100 * KB).now_or_never().is_none(), "one at a time");
        let mut small = memory.take(2, KB).await.unwrap();
        assert!(!small.grow(33 * KB));
        large.shrink(KB);
        assert!(small.grow(33 * KB));
        drop((large, small));
        assert_eq!(memory.usage(), (0, 201 * KB));
    }

    #[tokio::test]
    async fn databases_without_room_are_forgotten() {
        let memory = RowsMemory::new(64 * KB);
        for namespace in 0..3 * KNOWN as u64 {
            drop(memory.take(namespace, KB).await.unwrap());
        }
        assert!(memory.databases.lock().unwrap().len() <= KNOWN);
    }
}
