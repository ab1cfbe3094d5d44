//! Starts engine processes ahead of their use and reaps killed ones.
//!
//! A separate thread does both. The kernel kills a process together with the thread that started it, and freeing the
//! memory of a killed process takes longer than its callers can wait. The thread never blocks on one process.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::figures::FunctionFigures;
use crate::harden::ENGINES_MAX;
use crate::machine::Code;
use crate::message::Setup;
use crate::process::Process;
use crate::shared::{ProcessPage, SharedMemory, Total};
use crate::wire::Frame;

const SPARE_MAX: usize = 2;

/// The number of failed starts that count as one failure: the system may have killed the processes.
const START_ATTEMPTS: u32 = 3;

const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The interval of log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The initial interval at which killed processes are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(5);

const RECOUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Restores the default action of `SIGCHLD`. A server that inherited `SIG_IGN` could not learn how its children
/// ended.
fn allow_waiting() {
    // SAFETY: zeros are a valid `sigaction`, which lives through the calls. No handler is replaced.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }
}

pub(crate) struct Nursery {
    state: Mutex<NurseryState>,
    ready: Condvar,
    work: Condvar,
    total: Arc<SharedMemory<Total>>,
    file: OwnedFd,
    /// The most bytes that one process may claim to have counted: its address space has no room for more.
    of_one_max: usize,
    pub(crate) figures: Arc<FunctionFigures>,
}

#[derive(Default)]
struct NurseryState {
    spare: Vec<Process>,
    dead: Vec<(Child, Arc<SharedMemory<ProcessPage>>)>,
    pages: Vec<Arc<SharedMemory<ProcessPage>>>,
    counted: Option<Instant>,
    /// The number of callers that wait for a process.
    waiting: usize,
    failing: u32,
    failures: u64,
    logged: Option<Instant>,
    /// True once [`Nursery::take`] or [`Nursery::prepare`] was called. Spare processes start only after that.
    is_used: bool,
    is_closed: bool,
}

impl Nursery {
    pub(crate) fn start(code: &Code, memory_all_max: usize) -> std::io::Result<Arc<Nursery>> {
        Nursery::begin(Setup::write(code, memory_all_max), code.memory_max.saturating_mul(ENGINES_MAX))
    }

    fn begin(setup: Frame, of_one_max: usize) -> std::io::Result<Arc<Nursery>> {
        allow_waiting();
        let (total, file) = SharedMemory::create()?;
        let (state, ready, work) = Default::default();
        let figures = Arc::default();
        let nursery = Arc::new(Nursery { state, ready, work, total: Arc::new(total), file, of_one_max, figures });
        let its = nursery.clone();
        std::thread::Builder::new().name("functions".to_owned()).spawn(move || its.run(setup))?;
        Ok(nursery)
    }

    /// Starts spare processes. If none starts, the log says so each minute.
    pub(crate) fn prepare(&self) {
        self.lock().is_used = true;
        self.work.notify_one();
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let spare = std::mem::take(&mut state.spare);
        drop(state);
        drop(spare);
        self.work.notify_all();
        self.ready.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, NurseryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn counted(&self) -> usize {
        self.total.bytes.load(Ordering::Relaxed)
    }

    /// Takes a process that has run nothing. Returns `None` if no process starts or the nursery is closed.
    pub(crate) fn take(&self) -> Option<Process> {
        let mut state = self.lock();
        state.is_used = true;
        state.waiting += 1;
        let failures = state.failures;
        self.work.notify_one();
        let process = loop {
            if state.is_closed {
                break None;
            }
            if let Some(process) = state.spare.pop() {
                break Some(process);
            }
            if state.failures > failures {
                break None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.waiting -= 1;
        // The taken process now counts memory and needs a replacement.
        self.work.notify_one();
        process
    }

    /// Kills a process. Its memory stays counted until the process has been reaped.
    pub(crate) fn bury(&self, mut child: Child, page: Arc<SharedMemory<ProcessPage>>) {
        let _ = child.kill();
        self.lock().dead.push((child, page));
        self.work.notify_one();
    }

    fn run(self: &Arc<Self>, mut setup: Frame) {
        let mut state = self.lock();
        let mut pause = REAP_INTERVAL;
        loop {
            if self.reap(&mut state) {
                pause = REAP_INTERVAL;
            }
            // Spare processes that the system killed are replaced here.
            let gone: Vec<Process> = state.spare.extract_if(.., |process| !process.is_ready()).collect();
            if !gone.is_empty() {
                drop(state);
                drop(gone);
                state = self.lock();
                continue;
            }
            let wanted = state.waiting + if state.is_used { SPARE_MAX } else { 0 };
            if state.is_closed {
                if state.pages.is_empty() {
                    return;
                }
            } else if state.spare.len() < wanted {
                drop(state);
                let started = self.file.try_clone().and_then(|total| Process::start(self, total, &mut setup));
                state = self.lock();
                match started {
                    Ok((process, is_filtered)) => {
                        state.failing = 0;
                        Self::warn_unfiltered(is_filtered);
                        if !state.is_closed {
                            state.spare.push(process);
                            self.ready.notify_one();
                            continue;
                        }
                        drop(state);
                        drop(process);
                        state = self.lock();
                        continue;
                    }
                    Err(error) => {
                        state.failing = state.failing.saturating_add(1);
                        if state.failing < START_ATTEMPTS {
                            continue;
                        }
                        let now = Instant::now();
                        if state.logged.is_none_or(|logged| now >= logged + LOG_INTERVAL) {
                            state.logged = Some(now);
                            tracing::error!(%error, "cannot start a process for functions of design documents: their calls get 503");
                        }
                        state.failures += 1;
                        self.ready.notify_all();
                        state = self.work.wait_timeout(state, RETRY_DELAY).unwrap_or_else(PoisonError::into_inner).0;
                        continue;
                    }
                }
            }
            let wait = if !state.dead.is_empty() {
                pause = RECOUNT_INTERVAL.min(2 * pause);
                Some(pause)
            } else {
                // Spare processes count no memory.
                (state.pages.len() > state.spare.len()).then_some(RECOUNT_INTERVAL)
            };
            state = match wait {
                Some(wait) => self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Reaps killed processes that have ended and adds up the memory of the others. Returns true if any had ended.
    fn reap(&self, state: &mut NurseryState) -> bool {
        let has_ended = |(child, _): &mut (Child, _)| !matches!(child.try_wait(), Ok(None));
        let ended: Vec<_> = state.dead.extract_if(.., has_ended).collect();
        for (_, page) in &ended {
            state.pages.retain(|of_one| !Arc::ptr_eq(of_one, page));
            self.figures.function_processes.add(-1);
        }
        let now = Instant::now();
        if !ended.is_empty() || state.counted.is_none_or(|counted| now >= counted + RECOUNT_INTERVAL) {
            // A killed process may leave a difference, and a hostile one may count anything.
            let each = state.pages.iter().map(|page| page.counted.load(Ordering::Relaxed).min(self.of_one_max));
            self.total.bytes.store(each.fold(0, usize::saturating_add), Ordering::Relaxed);
            state.counted = Some(now);
        }
        !ended.is_empty()
    }

    pub(crate) fn register(&self, page: Arc<SharedMemory<ProcessPage>>) {
        self.lock().pages.push(page);
        self.figures.function_processes.add(1);
        self.figures.function_processes_started.add(1);
    }

    fn warn_unfiltered(is_filtered: bool) {
        static TELL: Once = Once::new();
        if !is_filtered {
            TELL.call_once(|| {
                tracing::warn!("the kernel has no system call filter: functions of design documents run without it");
            });
        }
    }
}

#[cfg(test)]
mod tests;
