//! Starts engine processes ahead of their use, and waits for those that were killed.
//!
//! A thread of its own does both: the kernel kills a process with the thread that has started it, and one that gives its memory back
//! takes longer for that than its callers have. It waits for none: others want theirs.

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
use crate::shared::{Page, Shared, Total};
use crate::wire::Frame;

/// Processes that are ready before they are needed.
const SPARE_MAX: usize = 2;

/// So many that do not start are one failure: the system may have killed them.
const TRIES: u32 = 3;

/// After processes did not start.
const RETRY: Duration = Duration::from_secs(1);

/// The log says so often that none starts.
const TELL: Duration = Duration::from_secs(60);

/// How often is looked whether those that were killed are gone, at first.
const REAP: Duration = Duration::from_millis(5);

/// How often what processes have counted of the memory of all is added up anew.
const RECOUNT: Duration = Duration::from_secs(1);

/// A server may have inherited that nobody waits for its children: then the system does not keep how they have ended.
fn allow_waiting() {
    // SAFETY: numbers and pointers of zeros are an action; what is read and written lives through the calls. No handler is replaced.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }
}

/// Starts processes and ends them.
pub(crate) struct Nursery {
    state: Mutex<State>,
    /// A process is ready, or does not start.
    ready: Condvar,
    /// There is something to do.
    work: Condvar,
    total: Arc<Shared<Total>>,
    file: OwnedFd,
    /// The most bytes that one process may claim to have counted. Its address space has no room for more.
    of_one_max: usize,
    pub(crate) figures: Arc<FunctionFigures>,
}

#[derive(Default)]
struct State {
    spare: Vec<Process>,
    /// Those that were killed.
    dead: Vec<(Child, Arc<Shared<Page>>)>,
    /// Pages of those that were started and not waited for.
    pages: Vec<Arc<Shared<Page>>>,
    /// When what they have was added up.
    counted: Option<Instant>,
    /// Callers that wait for one.
    waiting: usize,
    /// How many did not start since one did.
    failing: u32,
    /// How often none started for callers that waited.
    failures: u64,
    /// When the log said that none starts.
    told: Option<Instant>,
    /// None is started before one is needed, or [`Nursery::prepare`].
    is_used: bool,
    is_closed: bool,
}

impl Nursery {
    pub(crate) fn start(code: &Code, memory_all_max: usize) -> std::io::Result<Arc<Nursery>> {
        Nursery::begin(Setup::write(code, memory_all_max), code.memory_max.saturating_mul(ENGINES_MAX))
    }

    fn begin(setup: Frame, of_one_max: usize) -> std::io::Result<Arc<Nursery>> {
        allow_waiting();
        let (total, file) = Shared::create()?;
        let (state, ready, work) = Default::default();
        let figures = Arc::default();
        let nursery = Arc::new(Nursery { state, ready, work, total: Arc::new(total), file, of_one_max, figures });
        let its = nursery.clone();
        std::thread::Builder::new().name("functions".to_owned()).spawn(move || its.run(setup))?;
        Ok(nursery)
    }

    /// Starts spare processes: where none starts the log says so each minute from now on.
    pub(crate) fn prepare(&self) {
        self.lock().is_used = true;
        self.work.notify_one();
    }

    /// Ends all processes that nothing else has.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let spare = std::mem::take(&mut state.spare);
        drop(state);
        drop(spare);
        self.work.notify_all();
        self.ready.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that the engines of all processes have.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> usize {
        self.total.bytes.load(Ordering::Relaxed)
    }

    /// A process that has run nothing. `None`: it does not start, or nothing is to run any more.
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
        // It counts from now on, and is to be replaced.
        self.work.notify_one();
        process
    }

    /// Kills a process; what it has of the memory of all is counted no more once it is gone.
    pub(crate) fn bury(&self, mut child: Child, page: Arc<Shared<Page>>) {
        let _ = child.kill();
        self.lock().dead.push((child, page));
        self.work.notify_one();
    }

    fn run(self: &Arc<Self>, mut setup: Frame) {
        let mut state = self.lock();
        let mut pause = REAP;
        loop {
            if self.reap(&mut state) {
                pause = REAP;
            }
            // Spare ones that were killed are none. It is seen when one is taken.
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
                        Self::tell(is_filtered);
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
                        if state.failing < TRIES {
                            continue;
                        }
                        let now = Instant::now();
                        if state.told.is_none_or(|told| now >= told + TELL) {
                            state.told = Some(now);
                            tracing::error!(%error, "no process for functions of design documents starts: their calls get 503");
                        }
                        state.failures += 1;
                        self.ready.notify_all();
                        state = self.work.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner).0;
                        continue;
                    }
                }
            }
            let wait = if !state.dead.is_empty() {
                pause = RECOUNT.min(2 * pause);
                Some(pause)
            } else {
                // Spare ones have nothing to count.
                (state.pages.len() > state.spare.len()).then_some(RECOUNT)
            };
            state = match wait {
                Some(wait) => self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Waits for those that were killed and have ended, and adds up what the others have: whether there were any.
    fn reap(&self, state: &mut State) -> bool {
        let has_ended = |(child, _): &mut (Child, _)| !matches!(child.try_wait(), Ok(None));
        let ended: Vec<_> = state.dead.extract_if(.., has_ended).collect();
        for (_, page) in &ended {
            state.pages.retain(|of_one| !Arc::ptr_eq(of_one, page));
            self.figures.function_processes.add(-1);
        }
        let now = Instant::now();
        if !ended.is_empty() || state.counted.is_none_or(|counted| now >= counted + RECOUNT) {
            // One that was killed as it counted has left a difference, and one that was taken over counts what it likes.
            let each = state.pages.iter().map(|page| page.counted.load(Ordering::Relaxed).min(self.of_one_max));
            self.total.bytes.store(each.fold(0, usize::saturating_add), Ordering::Relaxed);
            state.counted = Some(now);
        }
        !ended.is_empty()
    }

    /// There is one more, until it is buried.
    pub(crate) fn born(&self, page: Arc<Shared<Page>>) {
        self.lock().pages.push(page);
        self.figures.function_processes.add(1);
        self.figures.function_processes_started.add(1);
    }

    fn tell(is_filtered: bool) {
        static TELL: Once = Once::new();
        if !is_filtered {
            TELL.call_once(|| {
                tracing::warn!("the system filters no system calls: functions of design documents run without that");
            });
        }
    }
}

#[cfg(test)]
mod tests;
