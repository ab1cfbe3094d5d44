//! Processor time and priority of threads and processes.

use std::time::Duration;
#[cfg(not(target_os = "linux"))]
use std::time::Instant;

#[derive(Debug, Clone)]
pub(crate) struct Thread {
    #[cfg(target_os = "linux")]
    id: libc::pid_t,
    #[cfg(target_os = "linux")]
    clock: libc::clockid_t,
    #[cfg(not(target_os = "linux"))]
    began: Instant,
}

#[cfg(target_os = "linux")]
impl Thread {
    /// Returns the calling thread. It must not be used after the thread's end: the system may reuse its number.
    pub(crate) fn current() -> Thread {
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: they query the calling thread and write to `clock`.
        let id = unsafe {
            libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock);
            libc::gettid()
        };
        Thread { id, clock }
    }

    /// Returns the only thread of a child process. It must not be used after the process was reaped.
    pub(crate) fn of_process(id: u32) -> Thread {
        let id = libc::pid_t::try_from(id).unwrap_or(0);
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: it writes to `clock`.
        unsafe { libc::clock_getcpuclockid(id, &mut clock) };
        Thread { id, clock }
    }

    pub(crate) fn ran(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes to `time`.
        if unsafe { libc::clock_gettime(self.clock, &mut time) } != 0 {
            return Duration::ZERO;
        }
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// Raises its niceness by `steps`, which cannot be reverted. Does nothing if the system refuses.
    pub(crate) fn lower(&self, steps: i32) {
        if let Ok(id) = libc::id_t::try_from(self.id) {
            // SAFETY: they take numbers.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, id, libc::getpriority(libc::PRIO_PROCESS, id) + steps) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Thread {
    pub(crate) fn current() -> Thread {
        Thread { began: Instant::now() }
    }

    pub(crate) fn of_process(_id: u32) -> Thread {
        Thread::current()
    }

    /// Returns the age of the thread: other systems have no such clock.
    pub(crate) fn ran(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn lower(&self, _steps: i32) {}
}
