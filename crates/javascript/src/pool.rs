//! The threads that functions run on.
//!
//! What runs is asked to stop at its deadline, and answers soon after. Some built-in functions do not listen while they are
//! at it (a search in long strings, say): then the thread is given up. Another one takes its place, nothing more runs of
//! that design document for a while, and the thread ends with what it is at. The number of those is bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::machine::{Dispatch, Machine};
use crate::queue::{Full, Queue};
use crate::room::Rooms;
use crate::{Caller, Design, RunnerOptions};

/// Design documents that a thread keeps loaded, for the caller that it served last.
const LOADED_MAX: usize = 2;

/// After so long without a call they are dropped.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Stack of a thread. Functions may use 512 kB of it, and QuickJS heeds that where it looks; the rest is for a way down on
/// which it does not look, should there be one left. It is address space: what nobody has used takes no memory.
const THREAD_STACK_BYTES: usize = 64 * 1024 * 1024;

/// How long after its deadline a call may take to stop, before its thread is given up.
const GRACE: Duration = Duration::from_millis(300);

/// How often a waiting caller looks after the threads.
const LOOK: Duration = Duration::from_millis(100);

/// Threads that are given up at once; beyond that they are waited for.
const GIVEN_UP_MAX: usize = 4;

/// For how long a design document is refused whose function a thread was given up for.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// How many of these are remembered.
const REFUSED_MAX: usize = 64;

struct Job {
    design: Design,
    caller: Caller,
    kind: &'static str,
    path: String,
    input: String,
    time_max: Duration,
    state: Arc<JobState>,
    answer: oneshot::Sender<Result<String>>,
}

/// What a call's caller and its thread know of each other.
#[derive(Default)]
struct JobState {
    /// When it began to run: before, it waits, and its time does not pass.
    began: OnceLock<Instant>,
    abandoned: Arc<AtomicBool>,
}

/// Runs functions of design documents on threads of its own, which end with it. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    handle: Arc<Handle>,
    pub(crate) options: RunnerOptions,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Ends the threads when it is dropped.
struct Handle {
    pool: Arc<Pool>,
    callers: AtomicU64,
    rooms: Rooms,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.pool.is_closed.store(true, Ordering::Relaxed);
        let _queue = lock(&self.pool.queue);
        self.pool.come.notify_all();
    }
}

/// What the threads share.
struct Pool {
    dispatch: Dispatch,
    queue: Mutex<Queue<Job>>,
    /// Something may be taken from the queue.
    come: Condvar,
    is_closed: AtomicBool,
    workers: Mutex<Vec<Arc<Worker>>>,
    given_up: AtomicUsize,
    refused: Mutex<VecDeque<(Design, Instant)>>,
}

/// A thread.
#[derive(Default)]
struct Worker {
    at: Mutex<At>,
}

/// What a thread is at.
#[derive(Default)]
struct At {
    call: Option<Call>,
    is_given_up: bool,
}

struct Call {
    design: Design,
    began: Instant,
    deadline: Instant,
}

/// A call that has been made; without its caller it neither waits nor runs.
struct Ticket<'p> {
    pool: &'p Pool,
    database: Arc<str>,
    id: u64,
    state: Arc<JobState>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.state.abandoned.store(true, Ordering::Relaxed);
        if self.state.began.get().is_none() {
            lock(&self.pool.queue).remove(&self.database, self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn new(options: RunnerOptions) -> std::io::Result<Runner> {
        let threads = options.threads.max(1);
        let pool = Arc::new(Pool {
            dispatch: Dispatch::compile().map_err(std::io::Error::other)?,
            queue: Mutex::new(Queue::new(threads)),
            come: Condvar::new(),
            is_closed: AtomicBool::new(false),
            workers: Mutex::default(),
            given_up: AtomicUsize::new(0),
            refused: Mutex::default(),
        });
        let handle = Arc::new(Handle { pool: pool.clone(), callers: AtomicU64::new(0), rooms: Rooms::new() });
        for _ in 0..threads {
            let worker = pool.start()?;
            lock(&pool.workers).push(worker);
        }
        Ok(Runner { handle, options })
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.handle.rooms
    }

    /// A caller that there was not yet.
    pub fn caller(&self) -> Caller {
        Caller(self.handle.callers.fetch_add(1, Ordering::Relaxed))
    }

    /// The answer comes within `wait_max`, `time_max` and a second.
    pub(crate) async fn run(
        &self,
        design: Design,
        caller: Caller,
        kind: &'static str,
        path: String,
        input: String,
        time_max: Duration,
    ) -> Result<String> {
        let pool = &self.handle.pool;
        if pool.refuses(&design) {
            return Err(Error::Refused);
        }
        let (answer, mut answered) = oneshot::channel();
        let (asked, database, state) = (Instant::now(), design.database.clone(), Arc::new(JobState::default()));
        let job = Job { design, caller, kind, path, input, time_max, state: state.clone(), answer };
        let id = lock(&pool.queue).push(&database, job).map_err(|Full| Error::Busy)?;
        let ticket = Ticket { pool, database, id, state };
        pool.come.notify_one();
        // Threads are looked after by those who wait for them: one that is stuck may have lost its caller.
        loop {
            match tokio::time::timeout(LOOK, &mut answered).await {
                // A thread that is gone drops the job.
                Ok(answer) => return answer.unwrap_or(Err(Error::OutOfResources)),
                Err(_) => pool.look_after(),
            }
            match ticket.state.began.get() {
                None if asked.elapsed() > self.options.wait_max => return Err(Error::Busy),
                Some(began) if began.elapsed() > time_max + GRACE + LOOK => return Err(Error::TimedOut(time_max)),
                _ => {}
            }
        }
    }
}

impl Pool {
    fn start(self: &Arc<Self>) -> std::io::Result<Arc<Worker>> {
        let worker = Arc::new(Worker::default());
        let (pool, known) = (self.clone(), worker.clone());
        let builder = std::thread::Builder::new().name("javascript".to_owned()).stack_size(THREAD_STACK_BYTES);
        builder.spawn(move || {
            pool.work(&known);
            if lock(&known.at).is_given_up {
                pool.given_up.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(worker)
    }

    fn work(&self, worker: &Worker) {
        let mut loaded = Loaded::default();
        while let Some(job) = self.next(&mut loaded) {
            let Job { design, caller, kind, path, input, time_max, state, answer } = job;
            // What others have left is not cleared away in this one's time.
            let machine = loaded.take(caller, &design);
            let began = Instant::now();
            let deadline = began + time_max;
            let _ = state.began.set(began);
            lock(&worker.at).call = Some(Call { design: design.clone(), began, deadline });
            let database = design.database.clone();
            let machine =
                machine.map_or_else(|| Machine::new(&self.dispatch, design.text(), deadline, &state.abandoned), Ok);
            let result = machine.and_then(|machine| {
                let answer = machine.call(kind, &path, &input, deadline, &state.abandoned)?;
                // A runtime that was stopped in the middle of something is not used again.
                loaded.keep(design, machine);
                Ok(answer)
            });
            let mut at = lock(&worker.at);
            at.call = None;
            let is_given_up = at.is_given_up;
            drop(at);
            if !is_given_up {
                self.finished(&database, began);
            }
            let _ = answer.send(match result {
                Err(Error::TimedOut(_)) => Err(Error::TimedOut(time_max)),
                result => result,
            });
            if is_given_up {
                return;
            }
        }
    }

    /// Waits for a call that somebody waits for; `None`: there will be none.
    fn next(&self, loaded: &mut Loaded) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if self.is_closed.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = queue.take(Instant::now()) {
                return Some(job);
            }
            let (next, waited) = self.come.wait_timeout(queue, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            queue = next;
            if waited.timed_out() && !loaded.machines.is_empty() {
                drop(queue);
                loaded.machines.clear();
                queue = lock(&self.queue);
            }
        }
    }

    /// A call that began then is over, or its thread is given up.
    fn finished(&self, database: &Arc<str>, began: Instant) {
        lock(&self.queue).finished(database, began.elapsed(), Instant::now());
        // What waited for its database's turn may run now, on whichever thread.
        self.come.notify_all();
    }

    /// Gives threads up that do not stop, and puts others in their place.
    fn look_after(self: &Arc<Self>) {
        let now = Instant::now();
        for worker in lock(&self.workers).iter_mut() {
            let mut at = lock(&worker.at);
            let Some(Call { design, began, deadline }) = &at.call else { continue };
            if now < *deadline + GRACE || self.given_up.load(Ordering::Relaxed) >= GIVEN_UP_MAX {
                continue;
            }
            let Ok(other) = self.start() else { return };
            let mut refused = lock(&self.refused);
            refused.push_back((design.clone(), now));
            if refused.len() > REFUSED_MAX {
                refused.pop_front();
            }
            self.finished(&design.database, *began);
            at.is_given_up = true;
            self.given_up.fetch_add(1, Ordering::Relaxed);
            drop(at);
            *worker = other;
        }
    }

    fn refuses(&self, design: &Design) -> bool {
        let mut refused = lock(&self.refused);
        refused.retain(|(_, since)| since.elapsed() < REFUSED_FOR);
        refused.iter().any(|(known, _)| known == design)
    }
}

/// What a thread keeps loaded. A machine serves one caller alone: nothing that a function leaves behind is seen by another.
#[derive(Default)]
struct Loaded {
    caller: Option<Caller>,
    /// The one used last is the last.
    machines: Vec<(Design, Machine)>,
}

impl Loaded {
    fn take(&mut self, caller: Caller, design: &Design) -> Option<Machine> {
        if self.caller != Some(caller) {
            self.machines.clear();
            self.caller = Some(caller);
        }
        let place = self.machines.iter().position(|(known, _)| known == design)?;
        Some(self.machines.remove(place).1)
    }

    fn keep(&mut self, design: Design, machine: Machine) {
        if self.machines.len() >= LOADED_MAX {
            self.machines.remove(0);
        }
        self.machines.push((design, machine));
    }
}
