//! Memory of all engines together, whatever processes they are in.
//!
//! Each engine has a bound of its own, and those of all that may run at once would be gigabytes. So what all have is counted, and
//! beyond a bound those get no more that have more than a small share: who is within it is not kept from its work by others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rquickjs::allocator::{Allocator, RustAllocator};

use crate::shared::{Page, Shared, Total};

/// An engine gets so much, whatever the others have.
pub(crate) const SHARE_BYTES: usize = 8 << 20;

/// The memory of all engines, as one process counts it.
#[derive(Debug)]
pub(crate) struct Budget {
    max: usize,
    total: Arc<Shared<Total>>,
    /// The bytes that this process has counted. The server subtracts them when the process is killed.
    page: Arc<Shared<Page>>,
    /// The most that it has counted.
    peak: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(max: usize, total: Arc<Shared<Total>>, page: Arc<Shared<Page>>) -> Arc<Budget> {
        Arc::new(Budget { max, total, page, peak: AtomicUsize::new(0) })
    }

    fn used(&self) -> usize {
        self.total.bytes.load(Ordering::Relaxed)
    }

    /// The most that the engines of the process have had, in bytes.
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
    /// Takes what is no longer used out of the sum. It never goes below nothing, whatever a process has counted.
    pub(crate) fn give(&self, bytes: usize) {
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

/// What one engine has.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: AtomicUsize,
    is_refused: AtomicBool,
    is_exhausted: AtomicBool,
    is_stopped: AtomicBool,
}

impl Usage {
    /// Bytes.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether it did not get something because of the others. What it has made of that is not what it makes of its input.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Whether it did not get something because it has all that it may have. A function does not learn it for certain: where there
    /// is no room for the error either, QuickJS throws `null`.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// It is not to go on, now or ever.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether it was stopped. What it has made since is not to be relied on, even where it came to an end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}

/// What an engine that is stopped may have besides: with the error that says so it cannot go on, and without room for that it could.
const RESERVE_BYTES: usize = 64 << 10;

/// All engines together count in such steps: what each takes and gives by the thousands a call is its own.
const STEP_BYTES: usize = 64 << 10;

/// Counts what it gives. One thread has it, which alone writes its [`Usage`].
pub(crate) struct Counted {
    budget: Arc<Budget>,
    /// Bytes that the engine may have.
    max: usize,
    usage: Arc<Usage>,
    /// What is counted of it among what all have.
    counted: usize,
    /// What is left for it once it is stopped.
    reserve: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget.give(self.counted);
    }
}

impl Counted {
    /// For an engine that may have `max` bytes.
    pub(crate) fn new(budget: &Arc<Budget>, max: usize) -> (Counted, Arc<Usage>) {
        let usage = Arc::<Usage>::default();
        (Counted { budget: budget.clone(), max, usage: usage.clone(), counted: 0, reserve: RESERVE_BYTES }, usage)
    }

    /// Whether it may have so much more.
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

    /// It has this now, if it is something.
    fn took(&mut self, taken: *mut u8) -> *mut u8 {
        if !taken.is_null() {
            // SAFETY: the same allocator has just given it.
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
        // A step stays, or each call would go up and down it.
        if used + 2 * STEP_BYTES <= self.counted {
            let steps = (self.counted - used - STEP_BYTES) / STEP_BYTES * STEP_BYTES;
            self.counted -= steps;
            self.budget.give(steps);
        }
    }
}

// SAFETY: all memory is `RustAllocator`'s, which keeps the contract; here it is counted and, as it may be, not given.
unsafe impl Allocator for Counted {
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
        // SAFETY: who calls says that it came from here, and so from that allocator.
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
        let (total, _) = Shared::create().unwrap();
        let (page, _) = Shared::create().unwrap();
        Budget::new(max, Arc::new(total), Arc::new(page))
    }

    #[test]
    fn a_share_is_always_there_and_more_as_long_as_there_is_some() {
        // Steps beside it, as they are counted.
        let budget = budget(SHARE_BYTES * 2 + STEP_BYTES);
        let engine = || Counted::new(&budget, SHARE_BYTES * 3);
        let ((mut one, its), (mut other, others)) = (engine(), engine());
        let large = one.alloc(SHARE_BYTES + SHARE_BYTES / 2);
        assert!(!large.is_null() && its.used() > SHARE_BYTES && budget.used() == its.used());
        assert_eq!(budget.used() % STEP_BYTES, 0);
        assert!(one.alloc(SHARE_BYTES).is_null() && its.is_refused());
        let small = other.calloc(SHARE_BYTES / 8, 8);
        assert!(!small.is_null() && !others.is_refused() && others.used() == SHARE_BYTES);
        assert!(other.alloc(64).is_null() && others.is_refused());
        // SAFETY: they were given just now.
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
        // A process that has counted what it never took.
        budget.total.give(1);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_engine_has_its_own_bound_and_says_when_it_was_reached() {
        let budget = budget(1 << 20);
        let (mut engine, its) = Counted::new(&budget, 1 << 16);
        let first = engine.alloc(1 << 15);
        assert!(!first.is_null() && engine.alloc(1 << 16).is_null());
        assert!(its.is_exhausted() && !its.is_refused());
        // SAFETY: it was given just now.
        unsafe { engine.dealloc(first) };
        let (mut engine, its) = Counted::new(&budget, 1 << 16);
        let all = engine.alloc(60_000);
        assert!(!all.is_null() && !its.is_exhausted());
        // SAFETY: as above; a block that was not moved is still there.
        unsafe {
            assert!(engine.realloc(all, 70_000).is_null() && its.is_exhausted());
            engine.dealloc(all);
        }
    }
}
