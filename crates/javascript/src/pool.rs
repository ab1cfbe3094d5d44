//! The threads that functions run on.
//!
//! What runs is asked to stop at its deadline, and answers soon after. A call that takes longer than a slice of time while others
//! wait is put aside: it goes on, with less of the processor, on its thread, which ends with it, and another takes that one's
//! place. The number of those is bounded; beyond it the one that waits longest for its caller or has run longest is stopped. Its database is slow for a
//! while ([`crate::queue`]).
//!
//! Some built-in functions do not listen while they are at it (a search in long strings, say): then the thread is given up in
//! the same way, and nothing more runs of that design document for a while, nor of a database of which two such calls have not ended. They have what
//! nobody else wants of the processor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::ask::{Answer, Ask};
use crate::error::{Error, Result};
use crate::machine::{Clock, Code, Machine, Part};
use crate::memory::SHARE_BYTES;
use crate::queue::{Full, LONG, Lane, Queue};
use crate::thread::Thread;
use crate::{Caller, Design};

/// An engine that has more memory after its call is dropped.
pub(crate) const KEPT_BYTES_MAX: usize = 2 * SHARE_BYTES;

/// After so long without a call all are dropped.
const IDLE_MAX: Duration = Duration::from_secs(if cfg!(test) { 3_600 } else { 1 });

/// Stack of a thread. Functions may use 512 kB of it, and QuickJS heeds that where it looks; the rest is for a way down on
/// which it does not look, should there be one left. It is address space: what nobody has used takes no memory.
const THREAD_STACK_BYTES: usize = 64 * 1024 * 1024;

/// How long after its deadline a call may take to stop, before its thread is given up.
const GRACE: Duration = Duration::from_millis(300);

/// And how long without having had the processor.
const STUCK: Duration = Duration::from_secs(5);

/// How often a waiting caller looks after the threads.
const LOOK: Duration = Duration::from_millis(50);

/// A call that waits longer for its caller may be stopped where others have no place.
const IDLE_CALL: Duration = Duration::from_secs(1);

/// For how long a design document is refused whose function a thread was given up for.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// A database has so many threads that were given up, at most: of those that a pool may give up it is not to take all.
const DEAF_OF_ONE_MAX: usize = 2;

/// How many of these design documents are remembered.
const REFUSED_MAX: usize = 64;

/// How much less of the processor slow calls get than the others of their pool, as `nice` counts it.
const SLOW_NICENESS: i32 = 8;

#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    pub(crate) name: &'static str,
    pub(crate) threads: usize,
    /// How many calls of one database run at once.
    pub(crate) of_one_max: usize,
    /// How many calls go on that were put aside.
    pub(crate) aside_max: usize,
    /// Of its usual threads.
    pub(crate) niceness: i32,
    /// For how long a call keeps others from its thread.
    pub(crate) slice: Duration,
    /// How long a call may wait.
    pub(crate) wait_max: Duration,
    /// Calls that were put aside are not stopped for others before.
    pub(crate) spared_for: Duration,
    /// How many engines a thread keeps, of the caller that it served last.
    pub(crate) loaded_max: usize,
    /// Whether slow databases have usual threads too, all but one, as long as nobody else wants them.
    pub(crate) lends: bool,
}

/// What a pool is asked to run.
pub(crate) struct Task {
    pub(crate) design: Design,
    pub(crate) caller: Caller,
    pub(crate) ask: Ask,
    /// How long it may take.
    pub(crate) time_max: Duration,
    /// How long until it ends or asks for more.
    pub(crate) step_max: Duration,
}

struct Job {
    task: Task,
    state: Arc<JobState>,
    answer: oneshot::Sender<Result<Answer>>,
}

/// What a call's caller and its thread know of each other.
#[derive(Default)]
struct JobState {
    /// When it began to run: before, it waits, and its time does not pass.
    began: OnceLock<Instant>,
    /// It is not to go on.
    stop: Arc<AtomicBool>,
    /// It is not to go on because there is no room for it.
    is_crowded_out: AtomicBool,
}

/// What the threads share.
pub(crate) struct Pool {
    options: PoolOptions,
    code: Arc<Code>,
    queue: Mutex<Queue<Job>>,
    /// Something may be taken from the queue; of each lane.
    come: [Condvar; 2],
    is_closed: AtomicBool,
    workers: Mutex<Workers>,
    refused: Mutex<Refused>,
}

/// Whose calls do not run.
#[derive(Default)]
struct Refused {
    /// Of which a thread was given up, and when.
    designs: VecDeque<(Design, Instant)>,
    /// Of calls that have not ended since: each has a thread of those that all share.
    deaf: Vec<Arc<str>>,
}

#[derive(Default)]
struct Workers {
    /// One in each place.
    present: Vec<Arc<Worker>>,
    /// Those that end with the call that they are at.
    aside: Vec<Arc<Worker>>,
    looked: Option<Instant>,
}

/// A thread.
struct Worker {
    lane: Lane,
    thread: OnceLock<Thread>,
    at: Mutex<At>,
}

/// What a thread is at.
#[derive(Default)]
struct At {
    call: Option<Call>,
    is_aside: bool,
}

struct Call {
    design: Design,
    state: Arc<JobState>,
    began: Instant,
    /// What its thread had had of the processor then.
    ran_before: Duration,
    clock: Clock,
    /// What it had had of the processor when its time was first seen to be over.
    ran_in_time: Option<Duration>,
    /// It does not stop.
    is_deaf: bool,
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
        self.state.stop.store(true, Ordering::Relaxed);
        if self.state.began.get().is_none() {
            lock(&self.pool.queue).remove(&self.database, self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn start(options: PoolOptions, code: Arc<Code>) -> std::io::Result<Arc<Pool>> {
        let queue = Mutex::new(Queue::new(options.of_one_max, if options.lends { options.threads - 1 } else { 0 }));
        let lanes = std::iter::repeat_n(Lane::Usual, options.threads).chain([Lane::Slow]);
        let (come, workers, refused) = Default::default();
        let is_closed = AtomicBool::new(false);
        let pool = Arc::new(Pool { options: options.clone(), code, queue, come, is_closed, workers, refused });
        for lane in lanes {
            let worker = pool.begin(lane)?;
            lock(&pool.workers).present.push(worker);
        }
        Ok(pool)
    }

    /// Ends the threads.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let _queue = lock(&self.queue);
        self.wake_all();
    }

    /// The answer comes within `wait_max`, `time_max` and a second.
    pub(crate) async fn run(self: &Arc<Self>, task: Task) -> Result<Answer> {
        if self.refuses(&task.design) {
            return Err(Error::Refused);
        }
        let (answer, mut answered) = oneshot::channel();
        let (asked, database, state) = (Instant::now(), task.design.database.clone(), Arc::new(JobState::default()));
        let time_max = task.time_max;
        let job = Job { task, state: state.clone(), answer };
        let id = self.push(&database, job, asked)?;
        let ticket = Ticket { pool: self, database, id, state };
        // Threads are looked after by those who wait for them: one that is stuck may have lost its caller.
        loop {
            match tokio::time::timeout(LOOK, &mut answered).await {
                // A thread that is gone drops the job.
                Ok(answer) => return answer.unwrap_or(Err(Error::OutOfResources)),
                Err(_) => self.look_after(),
            }
            match ticket.state.began.get() {
                None if asked.elapsed() > self.options.wait_max => return Err(Error::Busy),
                Some(began) if began.elapsed() > time_max + GRACE + 2 * LOOK => return Err(Error::TimedOut(time_max)),
                _ => {}
            }
        }
    }

    fn push(&self, database: &Arc<str>, job: Job, now: Instant) -> Result<u64> {
        let mut queue = lock(&self.queue);
        let id = queue.push(database, job).map_err(|Full| Error::Busy)?;
        self.wake(&queue, now);
        Ok(id)
    }

    /// Wakes a thread of each kind that there is something for. It does the same when it has taken that, and whoever is at work looks
    /// for itself: so a call that has to wait for its turn costs no thread a look.
    fn wake(&self, queue: &Queue<Job>, now: Instant) {
        for lane in [Lane::Usual, Lane::Slow] {
            if queue.has(lane, now) {
                self.come(lane).notify_one();
            }
        }
    }

    fn come(&self, lane: Lane) -> &Condvar {
        let [usual, slow] = &self.come;
        match lane {
            Lane::Usual => usual,
            Lane::Slow => slow,
        }
    }

    fn wake_all(&self) {
        for come in &self.come {
            come.notify_all();
        }
    }

    fn begin(self: &Arc<Self>, lane: Lane) -> std::io::Result<Arc<Worker>> {
        let worker = Arc::new(Worker { lane, thread: OnceLock::new(), at: Mutex::default() });
        let (pool, known) = (self.clone(), worker.clone());
        let builder = std::thread::Builder::new().name(self.options.name.to_owned()).stack_size(THREAD_STACK_BYTES);
        builder.spawn(move || {
            let thread = known.thread.get_or_init(Thread::current);
            let steps = pool.options.niceness + if lane == Lane::Slow { SLOW_NICENESS } else { 0 };
            if steps > 0 {
                thread.lower(steps);
            }
            pool.work(&known, thread);
            if lock(&known.at).is_aside {
                lock(&pool.workers).aside.retain(|worker| !Arc::ptr_eq(worker, &known));
            }
        })?;
        Ok(worker)
    }

    fn work(&self, worker: &Worker, thread: &Thread) {
        let mut loaded = Loaded::default();
        // The database of the call before, which did not take long.
        let mut finished = None;
        while let Some(Job { task, state, answer }) = self.next(worker.lane, &mut loaded, finished.take()) {
            let Task { design, caller, ask, step_max, .. } = task;
            let (part, database) = (ask.part(), design.database.clone());
            // It waited while another of its calls turned out not to stop.
            if self.refuses(&design) {
                finished = Some(database);
                let _ = answer.send(Err(Error::Refused));
                continue;
            }
            // What others have left is not cleared away in this one's time.
            let machine = loaded.take(caller, &design, part).filter(|_| !ask.wants_fresh());
            let began = Instant::now();
            let clock = Clock::new(began, step_max, state.stop.clone());
            let _ = state.began.set(began);
            let ran_before = thread.ran();
            let (known, its) = (design.clone(), state.clone());
            let call = Call {
                design: known,
                state: its,
                began,
                ran_before,
                clock: clock.clone(),
                ran_in_time: None,
                is_deaf: false,
            };
            lock(&worker.at).call = Some(call);
            let was_used = machine.is_some();
            let machine = machine.map_or_else(|| Machine::new(&self.code, part, design.text(), &clock), Ok);
            let mut result = machine.and_then(|machine| {
                let (answer, is_whole) = ask.put(&machine, was_used, &clock);
                if is_whole && !machine.usage().is_stopped() && machine.usage().used() <= KEPT_BYTES_MAX {
                    loaded.keep(design, part, machine, self.options.loaded_max);
                }
                answer
            });
            let because =
                if state.is_crowded_out.load(Ordering::Relaxed) { Error::Busy } else { Error::TimedOut(step_max) };
            match &mut result {
                Err(error @ Error::TimedOut(_)) => *error = because,
                Ok(Answer::Mapped(part)) if matches!(part.stopped, Some(Error::TimedOut(_))) => {
                    part.stopped = Some(because);
                }
                Ok(Answer::Routed(part)) => {
                    if let Some(last @ Err(Error::TimedOut(_))) = part.routed.last_mut() {
                        *last = Err(because);
                    }
                }
                _ => {}
            }
            let mut at = lock(&worker.at);
            let was_deaf = at.call.take().is_some_and(|call| call.is_deaf);
            let is_aside = at.is_aside;
            drop(at);
            if was_deaf {
                let mut refused = lock(&self.refused);
                if let Some(place) = refused.deaf.iter().position(|known| *known == database) {
                    refused.deaf.swap_remove(place);
                }
            }
            if is_aside {
                let _ = answer.send(result);
                return;
            }
            if began.elapsed() < LONG {
                // It has not had the processor for longer. That it is over is said with the question for the next.
                finished = Some(database);
            } else {
                // Whoever has the answer finds its database slow, if it is.
                let ran = thread.ran().saturating_sub(ran_before);
                lock(&self.queue).finished(&database, worker.lane, ran, Instant::now());
            }
            let _ = answer.send(result);
        }
    }

    /// Waits for a call that somebody waits for; `None`: there will be none. `finished`: whose call is over that did not take long.
    fn next(&self, lane: Lane, loaded: &mut Loaded, finished: Option<Arc<str>>) -> Option<Job> {
        let mut queue = lock(&self.queue);
        if let Some(database) = finished {
            queue.finished(&database, lane, Duration::ZERO, Instant::now());
        }
        loop {
            if self.is_closed.load(Ordering::Relaxed) {
                return None;
            }
            let now = Instant::now();
            let job = queue.take(lane, now);
            // What waited for its database's turn, or has become a slow one's, may run now on another thread.
            self.wake(&queue, now);
            if let Some(job) = job {
                return Some(job);
            }
            let waited = self.come(lane).wait_timeout(queue, IDLE_MAX);
            let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = next;
            if waited.timed_out() && !loaded.is_empty() {
                drop(queue);
                loaded.clear();
                queue = lock(&self.queue);
            }
        }
    }

    /// Puts calls aside that keep others waiting, and gives threads up that do not stop.
    fn look_after(self: &Arc<Self>) {
        let now = Instant::now();
        let mut workers = lock(&self.workers);
        // Thousands may wait.
        if workers.looked.is_some_and(|looked| now < looked + LOOK / 2) {
            return;
        }
        workers.looked = Some(now);
        {
            // Which threads may run what waits has changed since, perhaps: a database has become slow in the last look, or is no more.
            let queue = lock(&self.queue);
            self.wake(&queue, now);
        }
        let Workers { present, aside, .. } = &mut *workers;
        for worker in aside.iter() {
            let mut at = lock(&worker.at);
            self.heed(worker, &mut at, now);
            let Some(call) = &at.call else { continue };
            if worker.ran(call) >= LONG {
                lock(&self.queue).slow_down(&call.design.database, now);
            }
        }
        for place in present.iter_mut() {
            let worker = place.clone();
            let mut at = lock(&worker.at);
            let is_deaf = self.heed(&worker, &mut at, now);
            let Some(call) = &at.call else { continue };
            let is_long = worker.lane == Lane::Usual && now >= call.began + self.options.slice;
            let keeps_others = is_long && lock(&self.queue).waits(Lane::Usual, now);
            if !is_deaf && !keeps_others {
                continue;
            }
            if aside.len() >= self.options.aside_max {
                if let Some(database) = crowd_out(aside, self.options.spared_for) {
                    lock(&self.queue).slow_down(&database, now);
                }
                continue;
            }
            let Ok(other) = self.begin(worker.lane) else { return };
            let ran = worker.ran(call);
            lock(&self.queue).finished(&call.design.database, worker.lane, ran, now);
            self.wake_all();
            at.is_aside = true;
            if let Some(thread) = worker.thread.get() {
                thread.lower(SLOW_NICENESS);
            }
            drop(at);
            *place = other;
            aside.push(worker);
        }
    }

    /// Whether a call does not stop though its time is over, and it has had the processor since. Then nothing more runs of
    /// its design document.
    fn heed(&self, worker: &Worker, at: &mut At, now: Instant) -> bool {
        let Some(call) = &mut at.call else { return false };
        let deadline = call.clock.until();
        if now < deadline {
            call.ran_in_time = None;
            return false;
        }
        let ran = worker.ran(call);
        let since = ran.saturating_sub(*call.ran_in_time.get_or_insert(ran));
        if now < deadline + GRACE || (since < GRACE / 2 && now < deadline + STUCK) {
            return false;
        }
        if !std::mem::replace(&mut call.is_deaf, true) {
            let mut refused = lock(&self.refused);
            refused.deaf.push(call.design.database.clone());
            refused.designs.push_back((call.design.clone(), now));
            if refused.designs.len() > REFUSED_MAX {
                refused.designs.pop_front();
            }
            if let Some(thread) = worker.thread.get() {
                thread.starve();
            }
        }
        true
    }

    fn refuses(&self, design: &Design) -> bool {
        let Refused { designs, deaf } = &mut *lock(&self.refused);
        designs.retain(|(_, since)| since.elapsed() < REFUSED_FOR);
        let of_one = deaf.iter().filter(|known| **known == design.database).count();
        of_one >= DEAF_OF_ONE_MAX || designs.iter().any(|(known, _)| known == design)
    }
}

impl Worker {
    /// How long a call has had the processor. Others may have had it meanwhile.
    fn ran(&self, call: &Call) -> Duration {
        self.thread.get().map_or(Duration::ZERO, Thread::ran).saturating_sub(call.ran_before)
    }
}

/// Stops the call that has kept its thread longest waiting for its caller, else the one that has run longest: then it gives
/// its database.
fn crowd_out(aside: &[Arc<Worker>], spared_for: Duration) -> Option<Arc<str>> {
    let calls = aside.iter().filter_map(|worker| {
        let at = lock(&worker.at);
        let call = at.call.as_ref().filter(|call| !call.clock.is_stopped())?;
        let waited = call.clock.waited();
        let is_idle = waited >= IDLE_CALL;
        let may = is_idle || call.began.elapsed() >= spared_for;
        may.then(|| {
            (
                (is_idle, if is_idle { waited } else { call.began.elapsed() }),
                call.state.clone(),
                call.design.database.clone(),
            )
        })
    });
    let ((is_idle, _), state, database) = calls.max_by_key(|(by, ..)| *by)?;
    state.is_crowded_out.store(true, Ordering::Relaxed);
    state.stop.store(true, Ordering::Relaxed);
    (!is_idle).then_some(database)
}

/// Engines that sync functions have on a thread, whoever calls: of so many databases.
const SHARED_MAX: usize = 4;

/// What a thread keeps loaded. A machine serves one caller alone: nothing that a function leaves behind is seen by another. What
/// runs sync functions leaves nothing behind, and serves all.
#[derive(Default)]
struct Loaded {
    caller: Option<Caller>,
    /// The one used last is the last.
    machines: Vec<(Design, Part, Machine)>,
    shared: Vec<(Design, Part, Machine)>,
}

impl Loaded {
    fn take(&mut self, caller: Caller, design: &Design, part: Part) -> Option<Machine> {
        let is_asked = |(known, known_part, _): &(Design, Part, Machine)| *known_part == part && known == design;
        let machines = if part == Part::Sync {
            &mut self.shared
        } else {
            if self.caller != Some(caller) {
                self.machines.clear();
                self.caller = Some(caller);
            }
            &mut self.machines
        };
        let place = machines.iter().position(is_asked)?;
        Some(machines.remove(place).2)
    }

    fn keep(&mut self, design: Design, part: Part, machine: Machine, max: usize) {
        let (machines, max) =
            if part == Part::Sync { (&mut self.shared, SHARED_MAX) } else { (&mut self.machines, max) };
        if machines.len() >= max {
            machines.remove(0);
        }
        machines.push((design, part, machine));
    }

    fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.shared.is_empty()
    }

    fn clear(&mut self) {
        self.machines.clear();
        self.shared.clear();
    }
}

#[cfg(test)]
mod tests;
