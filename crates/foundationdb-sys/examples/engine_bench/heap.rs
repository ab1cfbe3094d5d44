//! An allocator that counts allocations on request.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);
static BLOCKS: AtomicI64 = AtomicI64::new(0);

/// The system's allocator; without a count in progress it costs one load of a flag per call.
pub struct Counting;

fn count(bytes: usize, blocks: i64) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        BYTES.fetch_add(bytes as i64 * blocks, Ordering::Relaxed);
        BLOCKS.fetch_add(blocks, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(new_size, 1);
        // SAFETY: the caller's promises.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

/// Returns the bytes and blocks that `work` allocated and did not free.
pub fn left_by<T>(work: impl FnOnce() -> T) -> (T, f64, f64) {
    BYTES.store(0, Ordering::Relaxed);
    BLOCKS.store(0, Ordering::Relaxed);
    IS_COUNTING.store(true, Ordering::Relaxed);
    let result = work();
    IS_COUNTING.store(false, Ordering::Relaxed);
    (result, BYTES.load(Ordering::Relaxed) as f64, BLOCKS.load(Ordering::Relaxed) as f64)
}
