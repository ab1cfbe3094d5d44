//! Striping of data that many threads write, to avoid sharing cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const STRIPES: usize = 4;

/// A value in cache lines of its own. The alignment is two lines because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheAligned<T>(pub(crate) T);

/// Returns the stripe of this thread. Threads are assigned round robin.
#[inline]
pub(crate) fn own_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static OWN: Cell<usize> = const { Cell::new(usize::MAX) } }
    let own = OWN.get();
    if own < STRIPES {
        return own;
    }
    let own = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    OWN.set(own);
    own
}
