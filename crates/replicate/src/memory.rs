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
//! Owners share texts and pages (`shared.rs`): the owner with the least is served first, and the owner with the most
//! gives way to it, so that endless or slow peers of one user do not delay the replications of others. The reserve
//! passes between owners in turns. Otherwise a peer may be slow as long as no other task needs the memory that it
//! holds.

mod shared;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_admission::{Budget, Grant, Turn, Turns};
use tokio::time::Instant;

use self::shared::{MemoryOwner, SharedBudget, SharedHolder};

const UNIT_BYTES: usize = 4 << 10;

/// Rooms below this size are not counted, because the numbers of jobs and batches are limited.
const FREE_BYTES: usize = 16 << 10;

/// The most bytes that one room holds: a revision being read into a buffer that grew by doubling, a copy of it to be
/// written, and another in the request that writes it.
pub(crate) const ROOM_BYTES_MAX: usize = 4 * crate::transfer::REVISION_BYTES_MAX + (16 << 20);

const WAIT_MAX: Duration = Duration::from_secs(600);

/// The time that a task waits for texts, or for a page, before other owners give way. Healthy peers return texts within
/// it. A replication that gives way for a page begins anew at its last checkpoint.
const TEXT_PATIENCE: Duration = Duration::from_millis(500);
const PAGE_PATIENCE: Duration = Duration::from_secs(5);

/// The smallest request that waits, in bytes, unless that is more than a quarter of all: then no other owner would hold
/// twice as much and give way. A room grows in small steps, and would otherwise wait at each one.
const ADVANCE_BYTES: usize = 1 << 20;

/// The most tasks that wait for the reserve. There are at most a few for each job.
const RESERVE_WAITING_MAX: usize = 100_000;

/// The time for which a room is kept if other tasks wait; below, the bytes per second that extend it.
const GRACE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: usize = 128 << 10;

/// As [`BYTES_PER_SECOND`], for the room with the reserve.
const RESERVE_BYTES_PER_SECOND: usize = 1 << 20;

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

fn usage(part: &SharedBudget) -> MemoryUsage {
    MemoryUsage { used: part.used(), limit: part.limit() }
}

#[derive(Debug)]
struct Parts {
    texts: Arc<SharedBudget>,
    trees: Arc<Budget>,
    pages: Arc<SharedBudget>,
    reserve: Arc<Turns<MemoryOwner>>,
    /// The used part of the reserve of [`ROOM_BYTES_MAX`].
    reserve_used: AtomicUsize,
}

/// One owner's handle of the memory for all replications of a process. Clones share the memory.
#[derive(Debug, Clone)]
pub struct Memory {
    parts: Arc<Parts>,
    owner: MemoryOwner,
}

impl Memory {
    /// The smallest total, in bytes.
    pub const BYTES_MIN: usize = ROOM_BYTES_MAX + (64 << 20);

    /// Creates memory of `total_bytes`, including the reserve, at least [`Memory::BYTES_MIN`], and returns the
    /// administrators' handle.
    pub fn new(total_bytes: usize) -> Memory {
        let shared = total_bytes.max(Memory::BYTES_MIN) - ROOM_BYTES_MAX;
        Memory::of_parts(shared / 2, shared / 4, shared / 4)
    }

    pub(crate) fn of_parts(trees: usize, texts: usize, pages: usize) -> Memory {
        let [texts, trees, pages] = [texts, trees, pages].map(|bytes| bytes.max(UNIT_BYTES));
        let (reserve, reserve_used) = (Turns::new(1, RESERVE_WAITING_MAX), AtomicUsize::new(0));
        let (texts, pages) = (SharedBudget::new(texts, TEXT_PATIENCE), SharedBudget::new(pages, PAGE_PATIENCE));
        let trees = Budget::new(trees, UNIT_BYTES);
        Memory { parts: Arc::new(Parts { texts, trees, pages, reserve, reserve_used }), owner: None }
    }

    /// Returns a user's handle of the same memory. `None`: the handle of all administrators, who are one owner.
    pub fn of_owner(&self, user: Option<&str>) -> Memory {
        Memory { parts: self.parts.clone(), owner: user.map(Arc::from) }
    }

    /// Returns the use of texts (with the reserve), trees, and pages of changes.
    pub fn usage(&self) -> [MemoryUsage; 3] {
        let mut texts = usage(&self.parts.texts);
        texts.used += self.parts.reserve_used.load(Ordering::Relaxed);
        texts.limit += ROOM_BYTES_MAX;
        let trees = MemoryUsage { used: self.parts.trees.used(), limit: self.parts.trees.limit() };
        [texts, trees, usage(&self.parts.pages)]
    }

    pub(crate) fn room(&self) -> Arc<Room> {
        let holder = self.parts.texts.holder(self.owner.clone());
        Arc::new(Room { memory: self.clone(), holder, held: Mutex::default() })
    }

    /// Acquires memory for a tree. The caller must return it before it waits for anything else.
    pub(crate) async fn tree(&self, bytes: usize) -> Result<Option<Grant>, NoRoom> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        take(&self.parts.trees, bytes).await.map(Some)
    }

    /// Returns the pages of a replication that begins.
    pub(crate) fn pages(&self) -> Arc<Pages> {
        let holder = self.parts.pages.holder(self.owner.clone());
        Arc::new(Pages { parts: self.parts.clone(), holder, ages: Mutex::default() })
    }
}

/// The pages of changes that one run of a replication holds.
#[derive(Debug)]
pub(crate) struct Pages {
    parts: Arc<Parts>,
    holder: SharedHolder,
    ages: Mutex<PageAges>,
}

/// The time since which each page is held.
#[derive(Debug, Default)]
struct PageAges {
    since: BTreeMap<u64, Instant>,
    last_id: u64,
}

impl Pages {
    fn ages(&self) -> MutexGuard<'_, PageAges> {
        self.ages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page_of(self: &Arc<Self>, bytes: usize) -> PageRoom {
        let mut ages = self.ages();
        ages.last_id += 1;
        let id = ages.last_id;
        ages.since.insert(id, Instant::now());
        drop(ages);
        PageRoom { pages: self.clone(), id, bytes }
    }

    /// Acquires memory for a page if it is available at once.
    pub(crate) fn try_page(self: &Arc<Self>, bytes: usize) -> Option<PageRoom> {
        self.holder.try_take(bytes).then(|| self.page_of(bytes))
    }

    /// Waits for memory for a page. The caller must hold none except earlier pages.
    pub(crate) async fn page(self: &Arc<Self>, bytes: usize) -> Result<PageRoom, NoRoom> {
        if !self.parts.pages.fits(bytes) {
            return Err(NoRoom::Ever);
        }
        let _waiter = self.parts.pages.waiter();
        tokio::select! {
            biased;
            () = self.holder.take(bytes) => Ok(self.page_of(bytes)),
            () = tokio::time::sleep(WAIT_MAX) => Err(NoRoom::Now),
        }
    }

    /// Returns once the pages must be returned: another owner needs them, or one was held for [`PAGE_GRACE`] while
    /// other tasks wait.
    pub(crate) async fn overdue(&self) {
        loop {
            let oldest = self.ages().since.values().min().copied();
            if self.parts.pages.is_waited_for() && oldest.is_some_and(|since| since.elapsed() > PAGE_GRACE) {
                return;
            }
            tokio::select! {
                () = self.holder.recalled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

/// The memory of a page of changes, returned on drop.
#[derive(Debug)]
pub(crate) struct PageRoom {
    pages: Arc<Pages>,
    id: u64,
    bytes: usize,
}

impl PageRoom {
    /// Returns the memory beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.pages.holder.give_back(self.bytes.saturating_sub(bytes));
        self.bytes = self.bytes.min(bytes);
    }

    pub(crate) fn holds(&self, bytes: usize) -> bool {
        bytes <= self.bytes
    }
}

impl Drop for PageRoom {
    fn drop(&mut self) {
        self.pages.ages().since.remove(&self.id);
        self.pages.holder.give_back(self.bytes);
    }
}

#[derive(Debug, Default)]
struct RoomUse {
    bytes: usize,
    reserve: Option<Turn<MemoryOwner>>,
    /// The time since which counted bytes were held.
    since: Option<Instant>,
}

impl RoomUse {
    /// Returns the bytes to count, in whole units.
    fn counted(&self) -> usize {
        self.bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES) * UNIT_BYTES
    }
}

/// The memory that one batch or one whole answer holds of texts. Only one task at a time may grow it.
#[derive(Debug)]
pub(crate) struct Room {
    memory: Memory,
    holder: SharedHolder,
    held: Mutex<RoomUse>,
}

impl Room {
    fn held(&self) -> MutexGuard<'_, RoomUse> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self, held: &RoomUse) -> usize {
        held.counted().saturating_sub(self.holder.bytes())
    }

    /// Acquires more memory, waiting for it.
    async fn grow(&self, bytes: usize) -> Result<(), NoRoom> {
        let parts = &*self.memory.parts;
        if self.holder.is_recalled() {
            return Err(NoRoom::Now);
        }
        let missing = {
            let mut held = self.held();
            if held.bytes + bytes > ROOM_BYTES_MAX {
                return Err(NoRoom::Ever);
            }
            held.bytes += bytes;
            if held.counted() > 0 {
                held.since.get_or_insert_with(Instant::now);
            }
            let missing = self.missing(&held);
            if held.reserve.is_some() {
                parts.reserve_used.store(missing, Ordering::Relaxed);
                return Ok(());
            }
            if self.holder.try_take(missing) {
                return Ok(());
            }
            missing
        };
        let mut growth = Growth { room: self, bytes };
        let _waiter = parts.texts.waiter();
        let shared = async {
            let advance = missing.max(ADVANCE_BYTES);
            if parts.texts.fits(4 * advance) {
                self.holder.take(advance).await;
            } else if parts.texts.fits(2 * missing) {
                self.holder.take(missing).await;
            } else {
                // Waiting for most of it would block all other tasks until the rest is available.
                std::future::pending().await
            }
        };
        tokio::select! {
            biased;
            () = shared => {}
            Ok(reserve) = parts.reserve.wait([self.memory.owner.clone()]) => {
                self.held().reserve = Some(reserve);
                self.holder.keep(true);
                parts.reserve_used.store(missing, Ordering::Relaxed);
            }
            () = self.holder.recalled() => return Err(NoRoom::Now),
            () = tokio::time::sleep(WAIT_MAX) => return Err(NoRoom::Now),
        }
        growth.bytes = 0;
        Ok(())
    }

    fn shrink(&self, bytes: usize) {
        let mut held = self.held();
        held.bytes = held.bytes.saturating_sub(bytes);
        let missing = self.missing(&held);
        if held.reserve.is_some() {
            self.memory.parts.reserve_used.store(missing, Ordering::Relaxed);
        }
        if missing == 0 {
            held.reserve = None;
            self.holder.keep(false);
            self.holder.give_back(self.holder.bytes().saturating_sub(held.counted()));
        }
        if held.counted() == 0 {
            held.since = None;
        }
    }

    /// Returns whether another owner needs the room, or it was held longer than its size allows while other tasks wait.
    pub(crate) fn is_overdue(&self) -> bool {
        if self.holder.is_recalled() {
            return true;
        }
        let held = self.held();
        let bytes_per_second = if held.reserve.is_some() { RESERVE_BYTES_PER_SECOND } else { BYTES_PER_SECOND };
        let allowed = GRACE + Duration::from_secs((held.bytes / bytes_per_second) as u64);
        self.memory.parts.texts.is_waited_for() && held.since.is_some_and(|since| since.elapsed() > allowed)
    }

    /// Returns once [`Room::is_overdue`].
    pub(crate) async fn overdue(&self) {
        while !self.is_overdue() {
            tokio::select! {
                () = self.holder.recalled() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.held().reserve.is_some() {
            self.memory.parts.reserve_used.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes that a room waits for. If the wait ends without them, or is dropped, the room does not count them.
struct Growth<'r> {
    room: &'r Room,
    bytes: usize,
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.room.shrink(self.bytes);
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
        assert!(!memory.parts.texts.is_waited_for());
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
    async fn a_wait_that_is_dropped_leaves_nothing_in_its_room() {
        let memory = Memory::of_parts(MB, MB, MB);
        let [first, second, room] = [(); 3].map(|()| memory.room());
        let (mut full, mut reserve) = (Share::new(&first), Share::new(&second));
        full.set(MB).await.unwrap();
        reserve.set(MB).await.unwrap();
        let mut waits = Share::new(&room);
        assert!(tokio::time::timeout(TEXT_PATIENCE, waits.set(MB / 2)).await.is_err());
        drop(waits);
        assert_eq!(room.held().bytes, 0);
        drop((full, reserve));
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_and_trees_are_waited_for() {
        let memory = Memory::of_parts(MB, MB, MB);
        assert_eq!(memory.tree(2 * MB).await.unwrap_err(), NoRoom::Ever);
        assert!(memory.tree(FREE_BYTES).await.unwrap().is_none());
        let pages = memory.pages();
        assert_eq!(pages.page(2 * MB).await.unwrap_err(), NoRoom::Ever);
        let mut page = pages.try_page(MB).unwrap();
        assert!(pages.try_page(1).is_none());
        page.shrink(MB / 2);
        assert!(page.holds(MB / 2) && !page.holds(MB));
        let second = pages.page(MB / 2).await.unwrap();
        let third = memory.pages();
        let waits = tokio::spawn(async move { third.page(MB).await.is_ok() });
        pages.overdue().await;
        drop((page, second));
        assert!(waits.await.unwrap());
        assert_eq!(memory.usage()[2].used, 0);
    }

    /// Reads an endless answer, as [`crate::peer::Peer`] does: a piece every 10 ms, and a new answer after a failure.
    async fn read_endless_answers(memory: Memory) {
        loop {
            let room = memory.room();
            let mut share = Share::new(&room);
            for bytes in (0..).step_by(64 << 10) {
                let taken = tokio::select! {
                    taken = share.set(bytes) => taken,
                    () = room.overdue() => Err(NoRoom::Now),
                };
                if taken.is_err() {
                    break;
                }
                pass(Duration::from_millis(10)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn endless_answers_of_some_owners_do_not_delay_another_one() {
        let memory = Memory::of_parts(MB, 60 * MB, MB);
        let endless: Vec<_> = (0..120)
            .map(|at| tokio::spawn(read_endless_answers(memory.of_owner(Some(&format!("user{}", at % 6))))))
            .collect();
        pass(Duration::from_secs(60)).await;
        assert!(memory.parts.texts.is_waited_for());
        let nora = memory.of_owner(Some("nora"));
        for at in 0..100 {
            let mut share = Share::new(&nora.room());
            let grown = async {
                for bytes in (0..=MB).step_by(4 << 10) {
                    share.set(bytes).await?;
                }
                Ok::<(), NoRoom>(())
            };
            let taken = tokio::time::timeout(2 * TEXT_PATIENCE, grown).await;
            assert_eq!(taken.ok(), Some(Ok(())), "answer {at}");
        }
        endless.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_of_one_owner_do_not_delay_another_one() {
        let memory = Memory::of_parts(MB, MB, 10 * MB);
        let of_eve: Vec<_> = (0..10).map(|_| memory.of_owner(Some("eve")).pages()).collect();
        let held: Vec<_> = of_eve.iter().map(|pages| pages.try_page(MB).unwrap()).collect();
        let given_up = tokio::spawn(async move {
            of_eve[0].overdue().await;
            drop(held);
        });
        let nora = memory.of_owner(Some("nora")).pages();
        let page = tokio::time::timeout(2 * PAGE_PATIENCE, nora.page(MB)).await;
        assert!(page.is_ok_and(|page| page.is_ok()));
        given_up.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_room_that_holds_nothing_is_never_overdue() {
        let memory = Memory::of_parts(MB, MB, MB);
        let heartbeats = memory.room();
        let mut share = Share::new(&heartbeats);
        share.set(2).await.unwrap();
        let _waiter = memory.parts.texts.waiter();
        pass(2 * GRACE).await;
        assert!(!heartbeats.is_overdue());
        share.set(MB / 2).await.unwrap();
        pass(2 * GRACE).await;
        assert!(heartbeats.is_overdue());
    }

    #[tokio::test(start_paused = true)]
    async fn the_reserve_passes_between_owners() {
        let memory = Memory::of_parts(MB, MB, MB);
        let [eve, nora] = ["eve", "nora"].map(|name| memory.of_owner(Some(name)));
        // Two rooms of eve's hold the reserve and wait for it.
        let mut first = Share::new(&eve.room());
        first.set(4 * MB).await.unwrap();
        let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (name, memory) in [("eve", &eve), ("eve", &eve), ("nora", &nora)] {
            let (memory, ended) = (memory.clone(), ended.clone());
            tokio::spawn(async move {
                Share::new(&memory.room()).set(4 * MB).await.unwrap();
                ended.send(name).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        let mut names = Vec::new();
        for _ in 0..3 {
            names.push(order.recv().await.unwrap());
        }
        assert_eq!(names, ["eve", "nora", "eve"]);
    }
}
