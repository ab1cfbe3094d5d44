//! One thread for everything that happens later: retries, timeouts, closing old snapshots, late watches.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use crate::base::call::shielded;
use crate::base::lock::lock;

type Task = Box<dyn FnOnce() + Send>;

/// Names a task that may still be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId(Instant, u64);

#[derive(Default)]
struct Inner {
    tasks: BTreeMap<TimerId, Task>,
    next: u64,
    is_closed: bool,
}

/// Lets the calling thread be woken when it is due: else Linux takes its time, up to 50 µs, to wake several at once.
pub fn wake_exactly() {
    #[cfg(target_os = "linux")]
    // SAFETY: the option takes a number of nanoseconds, and touches no memory. Where it fails, answers come a little later.
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
    /// Runs the task at `at` on the timer's thread; at once, on the caller's, when the engine is closing.
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

    /// Takes a task back; false when it ran or runs.
    pub(crate) fn cancel(&self, id: TimerId) -> bool {
        lock(&self.inner).tasks.remove(&id).is_some()
    }

    /// Lets the thread run what is left, whenever it was due, and end.
    pub(crate) fn close(&self) {
        lock(&self.inner).is_closed = true;
        self.changed.notify_one();
    }

    /// The thread's body.
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
                        shielded(task);
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
