//! The timer thread: retries, timeouts, closing of old snapshots, late watches.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use crate::base::call::run_shielded;
use crate::base::lock::lock;

type Task = Box<dyn FnOnce() + Send>;

/// The id of a task that can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId(Instant, u64);

#[derive(Default)]
struct Inner {
    tasks: BTreeMap<TimerId, Task>,
    next: u64,
    is_closed: bool,
}

/// Lets the calling thread wake on time; by default Linux delays it by up to 50 µs to wake several threads together.
pub fn wake_exactly() {
    #[cfg(target_os = "linux")]
    // SAFETY: the option takes a number of nanoseconds, and touches no memory. After a failure answers only come
    // later.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}

/// The tasks, and the wake-up of the thread that runs them.
#[derive(Default)]
pub(crate) struct Timer {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Timer {
    /// Runs the task at `at` on the timer's thread, or at once on the caller's when the engine is closing.
    pub(crate) fn schedule(&self, at: Instant, task: impl FnOnce() + Send + 'static) -> TimerId {
        let mut inner = lock(&self.inner);
        inner.next += 1;
        let id = TimerId(at, inner.next);
        if inner.is_closed {
            drop(inner);
            task();
            return id;
        }
        let is_first = inner.tasks.first_key_value().is_none_or(|(first, _)| id < *first);
        inner.tasks.insert(id, Box::new(task));
        drop(inner);
        if is_first {
            self.changed.notify_one();
        }
        id
    }

    /// Cancels a task; false if it ran or is running.
    pub(crate) fn cancel(&self, id: TimerId) -> bool {
        lock(&self.inner).tasks.remove(&id).is_some()
    }

    /// Lets the thread run the remaining tasks, due or not, and end.
    pub(crate) fn close(&self) {
        lock(&self.inner).is_closed = true;
        self.changed.notify_one();
    }

    pub(crate) fn run(&self) {
        let mut inner = lock(&self.inner);
        loop {
            let now = Instant::now();
            let first = inner.tasks.first_entry().map(|entry| entry.key().0);
            match first {
                Some(at) if at <= now || inner.is_closed => {
                    let task = inner.tasks.pop_first();
                    drop(inner);
                    if let Some((_, task)) = task {
                        run_shielded(task);
                    }
                    inner = lock(&self.inner);
                }
                None if inner.is_closed => return,
                None => inner = self.changed.wait(inner).unwrap_or_else(|broken| broken.into_inner()),
                Some(at) => {
                    let wait = at.duration_since(now);
                    inner = self.changed.wait_timeout(inner, wait).unwrap_or_else(|broken| broken.into_inner()).0;
                }
            }
        }
    }
}
