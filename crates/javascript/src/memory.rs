//! The memory of all engines in all processes.
//!
//! Each engine has its own limit, but the sum for all engines that may run at once would be gigabytes. So all memory
//! is counted together. Above the common limit, only engines within a small share get more, so that an engine within
//! its share is never refused because of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rquickjs::allocator::{Allocator, RustAllocator};

use crate::shared::{ProcessPage, SharedMemory, Total};

/// The share of an engine, in bytes: it gets this much whatever the others use.
pub(crate) const SHARE_BYTES: usize = 8 << 20;

/// The memory of all engines, as counted by one process.
#[derive(Debug)]
pub(crate) struct Budget {
    max: usize,
    total: Arc<SharedMemory<Total>>,
    /// The bytes that this process has counted. The server subtracts them when it kills the process.
    page: Arc<SharedMemory<ProcessPage>>,
    peak: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(
        max: usize,
        total: Arc<SharedMemory<Total>>,
        page: Arc<SharedMemory<ProcessPage>>,
    ) -> Arc<Budget> {
        Arc::new(Budget { max, total, page, peak: AtomicUsize::new(0) })
    }

    fn used(&self) -> usize {
        self.total.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) {
        let counted = self.page.counted.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(counted, Ordering::Relaxed);
        self.total.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give(&self, bytes: usize) {
        self.total.give(bytes);
        self.page.counted.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Total {
    /// Subtracts freed bytes. The sum stops at zero, whatever a process has counted.
    pub(crate) fn give(&self, bytes: usize) {
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: AtomicUsize,
    is_refused: AtomicBool,
    is_exhausted: AtomicBool,
    is_stopped: AtomicBool,
}

impl Usage {
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns true if an allocation failed because of the other engines. Results after that are not valid.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Returns true if an allocation failed because of the engine's own limit. The function may not see this: without
    /// memory for the error, QuickJS throws `null`.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns true if the engine was stopped. Results after that are not valid, even if the call ended normally.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}

/// The extra memory of a stopped engine. It lets QuickJS allocate the error that ends the function; a failed
/// allocation there could be caught.
const RESERVE_BYTES: usize = 64 << 10;

/// The step in which engines update the common count, in bytes, so that most allocations touch only the engine's own
/// count.
const STEP_BYTES: usize = 64 << 10;

/// An allocator that counts. One thread has it and alone writes its [`Usage`].
pub(crate) struct CountingAllocator {
    budget: Arc<Budget>,
    max: usize,
    usage: Arc<Usage>,
    counted: usize,
    reserve: usize,
}

impl Drop for CountingAllocator {
    fn drop(&mut self) {
        self.budget.give(self.counted);
    }
}

impl CountingAllocator {
    pub(crate) fn new(budget: &Arc<Budget>, max: usize) -> (CountingAllocator, Arc<Usage>) {
        let usage = Arc::<Usage>::default();
        (
            CountingAllocator { budget: budget.clone(), max, usage: usage.clone(), counted: 0, reserve: RESERVE_BYTES },
            usage,
        )
    }

    fn may(&mut self, more: usize) -> bool {
        if self.has_room(more) {
            return true;
        }
        let may = self.usage.is_stopped() && more <= self.reserve;
        if may {
            self.reserve -= more;
        }
        may
    }

    fn has_room(&self, more: usize) -> bool {
        if more > self.max.saturating_sub(self.usage.used()) {
            self.usage.is_exhausted.store(true, Ordering::Relaxed);
            return false;
        }
        let may = more == 0
            || self.usage.used() + more <= SHARE_BYTES
            || self.budget.used().saturating_add(more) <= self.budget.max;
        if !may {
            self.usage.is_refused.store(true, Ordering::Relaxed);
        }
        may
    }

    fn took(&mut self, taken: *mut u8) -> *mut u8 {
        if !taken.is_null() {
            // SAFETY: `RustAllocator` has just returned it.
            let bytes = unsafe { RustAllocator::usable_size(taken) };
            let used = self.usage.used() + bytes;
            self.usage.used.store(used, Ordering::Relaxed);
            if used > self.counted {
                let steps = (used - self.counted).next_multiple_of(STEP_BYTES);
                self.counted += steps;
                self.budget.take(steps);
            }
        }
        taken
    }

    fn gives(&mut self, bytes: usize) {
        let used = self.usage.used() - bytes;
        self.usage.used.store(used, Ordering::Relaxed);
        // One step stays counted; otherwise each call would add and remove it.
        if used + 2 * STEP_BYTES <= self.counted {
            let steps = (self.counted - used - STEP_BYTES) / STEP_BYTES * STEP_BYTES;
            self.counted -= steps;
            self.budget.give(steps);
        }
    }
}

// SAFETY: all memory comes from `RustAllocator`, which keeps the contract. This allocator counts, and may return
// null.
unsafe impl Allocator for CountingAllocator {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        if !self.may(size) {
            return std::ptr::null_mut();
        }
        self.took(RustAllocator.alloc(size))
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match count.checked_mul(size) {
            Some(bytes) if self.may(bytes) => self.took(RustAllocator.calloc(count, size)),
            _ => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&mut self, ptr: *mut u8) {
        // SAFETY: the caller guarantees that `ptr` came from this allocator, and so from `RustAllocator`.
        unsafe {
            self.gives(RustAllocator::usable_size(ptr));
            RustAllocator.dealloc(ptr);
        }
    }

    unsafe fn realloc(&mut self, ptr: *mut u8, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        let before = unsafe { RustAllocator::usable_size(ptr) };
        if !self.may(new_size.saturating_sub(before)) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        let moved = unsafe { RustAllocator.realloc(ptr, new_size) };
        if !moved.is_null() {
            self.gives(before);
        }
        self.took(moved)
    }

    unsafe fn usable_size(ptr: *mut u8) -> usize {
        // SAFETY: as above.
        unsafe { RustAllocator::usable_size(ptr) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(max: usize) -> Arc<Budget> {
        let (total, _) = SharedMemory::create().unwrap();
        let (page, _) = SharedMemory::create().unwrap();
        Budget::new(max, Arc::new(total), Arc::new(page))
    }

    #[test]
    fn a_share_is_always_there_and_more_as_long_as_there_is_some() {
        // One step more, because counts are rounded up.
        let budget = budget(SHARE_BYTES * 2 + STEP_BYTES);
        let engine = || CountingAllocator::new(&budget, SHARE_BYTES * 3);
        let ((mut one, its), (mut other, others)) = (engine(), engine());
        let large = one.alloc(SHARE_BYTES + SHARE_BYTES / 2);
        assert!(!large.is_null() && its.used() > SHARE_BYTES && budget.used() == its.used());
        assert_eq!(budget.used() % STEP_BYTES, 0);
        assert!(one.alloc(SHARE_BYTES).is_null() && its.is_refused());
        let small = other.calloc(SHARE_BYTES / 8, 8);
        assert!(!small.is_null() && !others.is_refused() && others.used() == SHARE_BYTES);
        assert!(other.alloc(64).is_null() && others.is_refused());
        // SAFETY: both blocks were just allocated.
        unsafe {
            let smaller = one.realloc(large, 1024);
            assert!(!smaller.is_null() && its.used() == 1024 && budget.used() == SHARE_BYTES + STEP_BYTES);
            let larger = other.realloc(small, SHARE_BYTES + 64);
            assert!(!larger.is_null());
            one.dealloc(smaller);
            other.dealloc(larger);
        }
        assert_eq!((its.used(), others.used(), budget.used()), (0, 0, 2 * STEP_BYTES));
        assert!(!its.is_exhausted() && !others.is_exhausted());
        assert!(one.alloc(usize::MAX).is_null() && one.calloc(usize::MAX, 2).is_null() && its.is_exhausted());
        assert_eq!(budget.page.counted.load(Ordering::Relaxed), budget.used());
        drop((one, other));
        assert_eq!(budget.used(), 0);
        // A process that gives back more than it took.
        budget.total.give(1);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_engine_has_its_own_bound_and_says_when_it_was_reached() {
        let budget = budget(1 << 20);
        let (mut engine, its) = CountingAllocator::new(&budget, 1 << 16);
        let first = engine.alloc(1 << 15);
        assert!(!first.is_null() && engine.alloc(1 << 16).is_null());
        assert!(its.is_exhausted() && !its.is_refused());
        // SAFETY: it was just allocated.
        unsafe { engine.dealloc(first) };
        let (mut engine, its) = CountingAllocator::new(&budget, 1 << 16);
        let all = engine.alloc(60_000);
        assert!(!all.is_null() && !its.is_exhausted());
        // SAFETY: as above; a block whose reallocation failed is still valid.
        unsafe {
            assert!(engine.realloc(all, 70_000).is_null() && its.is_exhausted());
            engine.dealloc(all);
        }
    }
}
