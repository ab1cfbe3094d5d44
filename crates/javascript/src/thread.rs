//! The processor time of threads and processes, and their share of the processor where others want it too.

use std::time::Duration;
#[cfg(not(target_os = "linux"))]
use std::time::Instant;

/// A thread, or a process of one.
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
    /// This one. It is not to be asked for after its end: another may have its number.
    pub(crate) fn current() -> Thread {
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: they are asked about the calling thread, and write a number to where it has room.
        let id = unsafe {
            libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock);
            libc::gettid()
        };
        Thread { id, clock }
    }

    /// The only thread of a process that this one has started. It is not to be asked for once that was waited for.
    pub(crate) fn of_process(id: u32) -> Thread {
        let id = libc::pid_t::try_from(id).unwrap_or(0);
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: it writes a number to where it has room.
        unsafe { libc::clock_getcpuclockid(id, &mut clock) };
        Thread { id, clock }
    }

    /// How long it has had the processor.
    pub(crate) fn ran(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes a time to where it has room.
        if unsafe { libc::clock_gettime(self.clock, &mut time) } != 0 {
            return Duration::ZERO;
        }
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// Gives it less of the processor than it had, by so many steps of niceness, where others want it too. It does not get
    /// more again; where that is refused it stays as it was.
    pub(crate) fn lower(&self, steps: i32) {
        if let Ok(id) = libc::id_t::try_from(self.id) {
            // SAFETY: they take numbers alone.
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

    /// For how long it has been there.
    pub(crate) fn ran(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn lower(&self, _steps: i32) {}
}
