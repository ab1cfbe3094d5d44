//! The threads that run calls, each with its own process ([`crate::engine`]).
//!
//! A call is asked to stop at its deadline. If it does not, its process is killed. A call that takes longer than a
//! slice while others wait is put aside: it continues on its thread with lower priority, the thread ends with the
//! call, and a new thread takes its place. The number of such calls is bounded. Beyond the bound the pool stops the
//! one that has waited longest for its caller, or else a map, or else the one that has run longest. The database of a
//! long call is slow for a while, and that of a short one has a thread that others leave to it ([`crate::queue`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::engine::{CallEnvironment, CallOutcome, CallTerms, Engine, STUCK};
use crate::engine_request::{Answer, EngineRequest};
use crate::error::{Error, Result};
use crate::figures::{CallClass, KillCause};
use crate::late::LateCalls;
use crate::nursery::Nursery;
use crate::owners::DatabaseOwners;
use crate::process::POLL_INTERVAL;
use crate::queue::{CallOwners, LONG, Lane, Queue, QueueFull, QueueOptions};
use crate::records::{CallEnd, SHORT};
use crate::report::KillReport;
use crate::thread::Thread;
use crate::{Caller, Design};

/// The time without a call after which a thread drops its engines.
const IDLE_MAX: Duration = Duration::from_secs(if cfg!(test) { 3_600 } else { 1 });

/// The same for its process, in multiples of [`IDLE_MAX`].
const IDLE_TIMES_MAX: u32 = 60;

/// The time after its deadline within which a call has its answer.
const ANSWERED_WITHIN: Duration = STUCK.saturating_add(Duration::from_secs(1));

/// A call that waits longer for its caller may be stopped when no further call can be put aside.
const IDLE_CALL: Duration = Duration::from_secs(1);

/// A map that keeps others waiting is put aside after this time if it has not finished a document.
const TRIAL: Duration = Duration::from_millis(60);

/// The niceness of slow calls relative to the others of their pool.
const SLOW_NICENESS: i32 = 8;

#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    pub(crate) name: &'static str,
    pub(crate) threads: usize,
    pub(crate) of_one_max: usize,
    pub(crate) aside_max: usize,
    pub(crate) niceness: i32,
    /// The time after which a call that keeps others waiting is put aside.
    pub(crate) slice: Duration,
    pub(crate) wait_max: Duration,
    /// The time within which a call that was put aside is not stopped for others.
    pub(crate) spared_for: Duration,
    pub(crate) loaded_max: usize,
    /// True if slow databases may use all usual threads but one while no other database needs them.
    pub(crate) lends: bool,
    pub(crate) owners: Arc<DatabaseOwners>,
}

pub(crate) struct Task {
    pub(crate) design: Design,
    pub(crate) caller: Caller,
    pub(crate) ask: EngineRequest,
    pub(crate) time_max: Duration,
    pub(crate) step_max: Duration,
}

struct Job {
    task: Task,
    state: Arc<JobState>,
    asked: Instant,
    answer: oneshot::Sender<Result<Answer>>,
}

/// A call that has ended, of which the queue does not know yet.
struct EndedCall {
    turn: Arc<str>,
    class: CallClass,
    ran: Duration,
    end: CallEnd,
}

impl EndedCall {
    fn report(&self, queue: &mut Queue<Job>, lane: Lane, now: Instant) {
        queue.finished(&self.turn, lane, self.class, self.ran, now);
        queue.record(&self.turn, self.ran, self.end, now);
    }
}

#[derive(Default)]
struct JobState {
    /// The start of the call. Unset while the call waits, which does not count as its time.
    began: OnceLock<Instant>,
    stop: Mutex<Stop>,
    /// True if the call was stopped to make room for others.
    is_crowded_out: AtomicBool,
    ran: OnceLock<Duration>,
}

/// The order to a call to stop.
#[derive(Default)]
struct Stop {
    is_stopped: bool,
    clock: Option<Clock>,
}

impl JobState {
    fn stop(&self) {
        let mut stop = lock(&self.stop);
        stop.is_stopped = true;
        stop.clock.iter().for_each(Clock::stop);
    }

    fn begin(&self, began: Instant, clock: &Clock) {
        let mut stop = lock(&self.stop);
        let _ = self.began.set(began);
        if stop.is_stopped {
            clock.stop();
        }
        stop.clock = Some(clock.clone());
    }

    fn is_stopped(&self) -> bool {
        lock(&self.stop).is_stopped
    }

    /// Returns true if the process says that it finished an item. A hostile process only lengthens its own call.
    fn has_finished_some(&self) -> bool {
        lock(&self.stop).clock.as_ref().is_some_and(|clock| clock.finished() > 0)
    }
}

pub(crate) struct Pool {
    options: PoolOptions,
    nursery: Arc<Nursery>,
    report: Arc<KillReport>,
    queue: Mutex<Queue<Job>>,
    late: Mutex<LateCalls>,
    /// Signalled when the queue has a call for a lane.
    come: [Condvar; 2],
    is_closed: AtomicBool,
    workers: Mutex<Workers>,
}

#[derive(Default)]
struct Workers {
    present: Vec<Arc<Worker>>,
    /// Threads that end with their current call.
    aside: Vec<Arc<Worker>>,
    looked: Option<Instant>,
}

struct Worker {
    lane: Lane,
    at: Mutex<WorkerState>,
}

#[derive(Default)]
struct WorkerState {
    call: Option<RunningCall>,
    is_aside: bool,
}

struct RunningCall {
    design: Design,
    class: CallClass,
    /// True if no client waits for the call, and its caller repeats it.
    is_map: bool,
    state: Arc<JobState>,
    began: Instant,
    processor: Option<Thread>,
    ran_before: Duration,
    /// The time since when the call waits for its caller.
    waits: Option<Instant>,
}

impl RunningCall {
    /// Returns the processor time of the call, which can be less than its duration.
    fn ran(&self) -> Duration {
        self.processor.as_ref().map_or(Duration::ZERO, Thread::ran).saturating_sub(self.ran_before)
    }

    /// Returns the time after which the call is put aside if it keeps others waiting.
    fn slice(&self, options: &PoolOptions) -> Duration {
        let is_on_trial = self.is_map && !self.state.has_finished_some();
        if is_on_trial { options.slice.min(TRIAL) } else { options.slice }
    }
}

/// A queued or running call. Dropped with its caller, it leaves the queue or stops.
struct Ticket<'p> {
    pool: &'p Pool,
    turn: Arc<str>,
    id: u64,
    state: Arc<JobState>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.state.stop();
        if self.state.began.get().is_none() {
            lock(&self.pool.queue).remove(&self.turn, self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn start(
        options: PoolOptions,
        nursery: Arc<Nursery>,
        report: Arc<KillReport>,
    ) -> std::io::Result<Arc<Pool>> {
        let others = options.threads - 1;
        let queue = Mutex::new(Queue::new(QueueOptions {
            of_one_max: options.of_one_max,
            lent_max: if options.lends { others } else { 0 },
            shared_max: others.max(1),
            takes_newest: options.lends,
        }));
        let lanes = std::iter::repeat_n(Lane::Usual, options.threads).chain([Lane::Slow]);
        let (late, come, workers, is_closed) = Default::default();
        let pool = Arc::new(Pool { options: options.clone(), nursery, report, queue, late, come, is_closed, workers });
        for lane in lanes {
            let worker = pool.begin(lane)?;
            lock(&pool.workers).present.push(worker);
        }
        Ok(pool)
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let _queue = lock(&self.queue);
        self.wake_all();
    }

    /// Runs a call. The answer comes within `wait_max` + `time_max` + 0.5 s, or 6 s more if other processes use the
    /// processor.
    pub(crate) async fn run(self: &Arc<Self>, task: Task) -> Result<Answer> {
        let mut spent = Duration::ZERO;
        self.run_counted(task, &mut spent).await
    }

    pub(crate) async fn run_counted(self: &Arc<Self>, task: Task, spent: &mut Duration) -> Result<Answer> {
        let (answer, mut answered) = oneshot::channel();
        let (asked, turn, state) = (Instant::now(), task.design.turn.clone(), Arc::new(JobState::default()));
        let of_database = self.options.owners.find(&task.design.database);
        let (time_max, owners) = (task.time_max, CallOwners { client: task.caller.client, of_database });
        let job = Job { task, state: state.clone(), asked, answer };
        let id = self.push(&turn, owners, job, asked)?;
        let ticket = Ticket { pool: self, turn, id, state };
        // The waiting callers also check on the threads.
        loop {
            match tokio::time::timeout(POLL_INTERVAL, &mut answered).await {
                // A thread that ends drops the job.
                Ok(answer) => {
                    *spent += ticket.state.ran.get().copied().unwrap_or_default();
                    return answer.unwrap_or(Err(Error::OutOfResources));
                }
                Err(_) => self.look_after(),
            }
            match ticket.state.began.get() {
                None if asked.elapsed() > self.options.wait_max => return Err(Error::Busy),
                // The thread is late because the machine is busy: the call is not to blame.
                Some(began) if began.elapsed() > time_max + ANSWERED_WITHIN => return Err(Error::Busy),
                _ => {}
            }
        }
    }

    fn push(&self, turn: &Arc<str>, owners: CallOwners, job: Job, now: Instant) -> Result<u64> {
        let mut queue = lock(&self.queue);
        let id = queue.push(turn, owners, job).map_err(|QueueFull| Error::Busy)?;
        self.wake(&queue, now);
        Ok(id)
    }

    /// Wakes a thread of each lane that has a call to run. Busy threads check the queue themselves after each call,
    /// so a call that must wait for its turn wakes no thread.
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
        let worker = Arc::new(Worker { lane, at: Mutex::default() });
        let (pool, known) = (self.clone(), worker.clone());
        let builder = std::thread::Builder::new().name(self.options.name.to_owned());
        builder.spawn(move || {
            let steps = pool.options.niceness + if lane == Lane::Slow { SLOW_NICENESS } else { 0 };
            if steps > 0 {
                // The thread parses answers, so it gets the niceness too.
                Thread::current().lower(steps);
            }
            pool.work(&known, Engine::new(pool.nursery.clone(), steps));
            if lock(&known.at).is_aside {
                lock(&pool.workers).aside.retain(|worker| !Arc::ptr_eq(worker, &known));
            }
        })?;
        Ok(worker)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn work(&self, worker: &Worker, mut engine: Engine) {
        // The previous call, if it was short.
        let mut ended = None;
        while let Some((Job { task, state, asked, answer }, class)) = self.next(worker.lane, &mut engine, ended.take())
        {
            let Task { design, caller, ask, step_max, time_max } = task;
            let (turn, runs_nothing) = (design.turn.clone(), ask.runs_nothing());
            let is_map = matches!(ask, EngineRequest::Map { .. });
            self.nursery.figures.function_wait_seconds.of(class).observe(asked.elapsed());
            let Some(running) = engine.begin() else {
                ended = Some(EndedCall { turn, class, ran: Duration::ZERO, end: CallEnd::NothingRan });
                let _ = answer.send(Err(Error::Busy));
                continue;
            };
            let (began, processor) = (Instant::now(), running.processor());
            let ran_before = processor.as_ref().map_or(Duration::ZERO, Thread::ran);
            state.begin(began, &running.clock);
            let (known, its) = (design.clone(), state.clone());
            lock(&worker.at).call = Some(RunningCall {
                design: known,
                class,
                is_map,
                state: its,
                began,
                processor,
                ran_before,
                waits: None,
            });
            let waits = |waits: bool| {
                if let Some(call) = &mut lock(&worker.at).call {
                    call.waits = waits.then(Instant::now);
                }
            };
            let loaded_max = self.options.loaded_max;
            let terms = CallTerms { design: &design, caller, loaded_max, step_max, time_max };
            let outside =
                CallEnvironment { is_closed: &|| self.is_closed(), is_stopped: &|| state.is_stopped(), waits: &waits };
            let CallOutcome { mut result, killed, ran } = running.run(ask, &terms, &outside);
            let is_late = self.give_reason(&mut result, &design, &state, ran, step_max);
            let mut at = lock(&worker.at);
            let ran = at.call.take().map_or(Duration::ZERO, |call| call.ran());
            let is_aside = at.is_aside;
            drop(at);
            let _ = state.ran.set(ran);
            let is_whole = !is_late && !state.is_stopped();
            let end = match (is_whole, runs_nothing) {
                (false, _) => CallEnd::Stopped,
                (true, true) => CallEnd::NothingRan,
                (true, false) => CallEnd::Whole,
            };
            if state.is_crowded_out.load(Ordering::Relaxed) {
                self.nursery.figures.function_calls_crowded_out.add(1);
            }
            if killed.is_some() || engine.is_spent() {
                engine.end();
            }
            if let Some(cause) = killed.filter(|_| !self.is_closed()) {
                let is_crowded_out = state.is_crowded_out.load(Ordering::Relaxed);
                let cause = if cause == KillCause::Stopped && is_crowded_out { KillCause::Deadline } else { cause };
                self.report.report(&self.nursery.figures, &design, cause);
            }
            if is_aside {
                lock(&self.queue).record(&turn, ran, end, Instant::now());
                let _ = answer.send(result);
                return;
            }
            let call = EndedCall { turn, class, ran, end };
            if began.elapsed() >= SHORT {
                // The queue must know a slow database before its caller sees the answer.
                call.report(&mut lock(&self.queue), worker.lane, Instant::now());
            } else {
                // The end of a short call is reported together with the search for the next call.
                ended = Some(call);
            }
            let _ = answer.send(result);
        }
    }

    /// Replaces the errors of a call that reached its deadline, and returns true if it has some. A function whose calls
    /// never have the processor for half of their time is to blame once they have used it for the time of one call.
    fn give_reason(
        &self,
        result: &mut Result<Answer>,
        design: &Design,
        state: &JobState,
        ran: Duration,
        step_max: Duration,
    ) -> bool {
        let late = late_errors(result);
        if late.is_empty() {
            return false;
        }
        let is_crowded_out = state.is_crowded_out.load(Ordering::Relaxed);
        let mut because = late_error(is_crowded_out, ran, step_max);
        if because == Error::Busy && !state.is_stopped() && lock(&self.late).add(design, ran, step_max, Instant::now())
        {
            because = Error::TimedOut(step_max);
        }
        late.into_iter().for_each(|error| error.clone_from(&because));
        true
    }

    /// Waits for the next call and returns it with the class of its database, or `None` if the pool is closed.
    /// `ended`: the previous call if the queue does not know of its end.
    fn next(&self, lane: Lane, engine: &mut Engine, ended: Option<EndedCall>) -> Option<(Job, CallClass)> {
        let mut queue = lock(&self.queue);
        if let Some(ended) = ended {
            ended.report(&mut queue, lane, Instant::now());
        }
        let mut idle = 0;
        loop {
            if self.is_closed() {
                return None;
            }
            let now = Instant::now();
            let job = queue.take(lane, now);
            // The finished call or the new slow state may let another thread run a waiting call.
            self.wake(&queue, now);
            if let Some(job) = job {
                let class = queue.class(&job.task.design.turn, now);
                return Some((job, class));
            }
            let waited = self.come(lane).wait_timeout(queue, IDLE_MAX);
            let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = next;
            if waited.timed_out() {
                drop(queue);
                idle += 1;
                if idle < IDLE_TIMES_MAX {
                    engine.clear();
                } else {
                    engine.end();
                }
                queue = lock(&self.queue);
            }
        }
    }

    /// Puts aside calls that keep others waiting.
    fn look_after(self: &Arc<Self>) {
        let now = Instant::now();
        let mut workers = lock(&self.workers);
        // Thousands of callers may wait; one check per interval is enough.
        if workers.looked.is_some_and(|looked| now < looked + POLL_INTERVAL / 2) {
            return;
        }
        workers.looked = Some(now);
        {
            // Databases may have become slow, or stopped being slow, since the last check.
            let queue = lock(&self.queue);
            self.wake(&queue, now);
        }
        let Workers { present, aside, .. } = &mut *workers;
        for worker in aside.iter() {
            let at = lock(&worker.at);
            let Some(call) = &at.call else { continue };
            if call.ran() >= LONG {
                lock(&self.queue).slow_down(&call.design.turn, now);
            }
        }
        for place in present.iter_mut() {
            let worker = place.clone();
            let mut at = lock(&worker.at);
            let Some(call) = &at.call else { continue };
            let is_long = worker.lane == Lane::Usual && now >= call.began + call.slice(&self.options);
            if !is_long || !lock(&self.queue).wants_place(&call.design.turn, call.class, now) {
                continue;
            }
            if aside.len() >= self.options.aside_max {
                if let Some(turn) = crowd_out(aside, self.options.spared_for) {
                    lock(&self.queue).slow_down(&turn, now);
                }
                continue;
            }
            let Ok(other) = self.begin(worker.lane) else { return };
            lock(&self.queue).finished(&call.design.turn, worker.lane, call.class, call.ran(), now);
            self.wake_all();
            if let Some(processor) = &call.processor {
                processor.lower(SLOW_NICENESS);
            }
            at.is_aside = true;
            drop(at);
            *place = other;
            aside.push(worker);
        }
    }
}

/// Returns the error of a call that reached its deadline. The call is to blame if it used the processor for half of
/// its time. Otherwise other processes kept it from the processor, and the error says nothing about its input.
fn late_error(is_crowded_out: bool, ran: Duration, step_max: Duration) -> Error {
    if is_crowded_out || ran < step_max / 2 { Error::Busy } else { Error::TimedOut(step_max) }
}

/// Returns the errors of items that reached their deadline.
fn late_errors(result: &mut Result<Answer>) -> Vec<&mut Error> {
    let mut errors = Vec::new();
    match result {
        Err(error) => errors.push(error),
        Ok(Answer::Mapped(part)) => errors.extend(&mut part.stopped),
        Ok(Answer::Routed(part)) => errors.extend(part.last_errors()),
        Ok(Answer::Validated(part)) => errors.extend(part.last_errors()),
        _ => {}
    }
    errors.retain(|error| matches!(error, Error::TimedOut(_)));
    errors
}

/// Stops the call that has waited longest for its caller, or else the map that has run longest, or else the call that
/// has. If it did not wait, returns whose turn it was if the call used the processor for long.
fn crowd_out(aside: &[Arc<Worker>], spared_for: Duration) -> Option<Arc<str>> {
    let calls = aside.iter().filter_map(|worker| {
        let at = lock(&worker.at);
        let call = at.call.as_ref().filter(|call| !call.state.is_stopped())?;
        let waited = call.waits.map_or(Duration::ZERO, |since| since.elapsed());
        let is_idle = waited >= IDLE_CALL;
        let may = is_idle || call.began.elapsed() >= spared_for;
        may.then(|| {
            (
                (is_idle, call.is_map, if is_idle { waited } else { call.began.elapsed() }),
                call.state.clone(),
                (call.ran() >= LONG).then(|| call.design.turn.clone()),
            )
        })
    });
    let ((is_idle, ..), state, slow) = calls.max_by_key(|(by, ..)| *by)?;
    state.is_crowded_out.store(true, Ordering::Relaxed);
    state.stop();
    slow.filter(|_| !is_idle)
}

#[cfg(test)]
mod tests;
