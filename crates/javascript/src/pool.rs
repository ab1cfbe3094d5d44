//! The threads that functions run on.
//!
//! What runs is asked to stop at its deadline, and answers soon after. Some built-in functions do not listen while they are
//! at it (a search in long strings, say): then the thread is given up. Another one takes its place, nothing more runs of
//! that design document for a while, and the thread ends with what it is at. The number of those is bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::{Design, RunnerOptions};

/// Calls that wait for a thread; further ones wait to be let in.
const WAITING_MAX: usize = 64;

/// Design documents that a thread keeps loaded.
const LOADED_MAX: usize = 4;

/// Stack of a thread: what the functions may use, and what parsing and calling need around them.
const THREAD_STACK_BYTES: usize = 4 * 1024 * 1024;

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
    kind: &'static str,
    path: String,
    input: String,
    deadline: Instant,
    time_max: Duration,
    answer: oneshot::Sender<Result<String>>,
}

/// Runs functions of design documents on threads of its own, which end with it. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    jobs: mpsc::Sender<Job>,
    pool: Arc<Pool>,
    pub(crate) options: RunnerOptions,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What the threads share.
struct Pool {
    waiting: Mutex<mpsc::Receiver<Job>>,
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
    call: Option<(Design, Instant)>,
    is_given_up: bool,
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
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let pool = Arc::new(Pool {
            waiting: Mutex::new(waiting),
            workers: Mutex::default(),
            given_up: AtomicUsize::new(0),
            refused: Mutex::default(),
        });
        for _ in 0..options.threads.max(1) {
            let worker = pool.start()?;
            lock(&pool.workers).push(worker);
        }
        Ok(Runner { jobs, pool, options })
    }

    /// The answer comes within `time_max` and a second.
    pub(crate) async fn run(
        &self,
        design: Design,
        kind: &'static str,
        path: String,
        input: String,
        time_max: Duration,
    ) -> Result<String> {
        let deadline = Instant::now() + time_max;
        if self.pool.refuses(&design) {
            return Err(Error::TimedOut(time_max));
        }
        let (answer, mut answered) = oneshot::channel();
        let job = Job { design, kind, path, input, deadline, time_max, answer };
        // Threads are looked after by those who wait for them: one that is stuck may have no caller any more.
        let mut sending = std::pin::pin!(self.jobs.send(job));
        loop {
            self.pool.look_after();
            match tokio::time::timeout(LOOK, &mut sending).await {
                Ok(sent) => break sent.map_err(|_| Error::OutOfResources)?,
                Err(_) if Instant::now() > deadline => return Err(Error::Busy),
                Err(_) => {}
            }
        }
        loop {
            match tokio::time::timeout(LOOK, &mut answered).await {
                // A thread that is gone drops the job.
                Ok(answer) => return answer.unwrap_or(Err(Error::OutOfResources)),
                Err(_) => self.pool.look_after(),
            }
            if Instant::now() > deadline + GRACE + LOOK {
                return Err(Error::TimedOut(time_max));
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
        // The one used last is the last.
        let mut loaded: Vec<(Design, Machine)> = Vec::new();
        loop {
            // One thread waits, the others wait for it to have got a job.
            let job = lock(&self.waiting).blocking_recv();
            let Some(Job { design, kind, path, input, deadline, time_max, answer }) = job else { return };
            // Who has gone away in the meantime wants nothing run.
            if answer.is_closed() {
                continue;
            }
            if Instant::now() >= deadline {
                let _ = answer.send(Err(Error::Busy));
                continue;
            }
            lock(&worker.at).call = Some((design.clone(), deadline));
            let result = call(&mut loaded, design, kind, &path, &input, deadline);
            let mut at = lock(&worker.at);
            at.call = None;
            let _ = answer.send(match result {
                Err(Error::TimedOut(_)) => Err(Error::TimedOut(time_max)),
                result => result,
            });
            if at.is_given_up {
                return;
            }
        }
    }

    /// Gives threads up that do not stop, and puts others in their place.
    fn look_after(self: &Arc<Self>) {
        let now = Instant::now();
        for worker in lock(&self.workers).iter_mut() {
            let mut at = lock(&worker.at);
            let Some((design, deadline)) = &at.call else { continue };
            if now < *deadline + GRACE || self.given_up.load(Ordering::Relaxed) >= GIVEN_UP_MAX {
                continue;
            }
            let Ok(other) = self.start() else { return };
            let mut refused = lock(&self.refused);
            refused.push_back((design.clone(), now));
            if refused.len() > REFUSED_MAX {
                refused.pop_front();
            }
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

fn call(
    loaded: &mut Vec<(Design, Machine)>,
    design: Design,
    kind: &str,
    path: &str,
    input: &str,
    deadline: Instant,
) -> Result<String> {
    let place = loaded.iter().position(|(known, _)| *known == design);
    let machine = match place {
        Some(place) => loaded.remove(place).1,
        None => Machine::new(design.text(), deadline)?,
    };
    let answer = machine.call(kind, path, input, deadline);
    // A runtime that was stopped in the middle of something is not used again.
    if answer.is_ok() {
        loaded.push((design, machine));
        if loaded.len() > LOADED_MAX {
            loaded.remove(0);
        }
    }
    answer
}
