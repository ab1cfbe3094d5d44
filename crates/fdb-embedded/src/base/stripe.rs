//! What many threads write to without meeting in one line of the processors' caches.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many copies there are of what is striped.
pub(crate) const STRIPES: usize = 4;

/// Has cache lines of its own: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The number of the copy that this thread uses; threads get them in turn.
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
