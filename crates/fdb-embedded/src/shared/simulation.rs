//! A cluster's time: how long its answers take, and how long its server works for them.
//!
//! The engine answers in microseconds what a cluster answers after a round trip. With a [`SimulatedCluster`] an answer
//! is made as ever, when it is called for, and delivered when a cluster would have delivered it: after its latency, and
//! after what one server that all transactions of the engine share has done for it and for all that came before.
//!
//! Time is the machine's, or that of a [`VirtualClock`], which stands still until somebody who has nothing else to do
//! moves it on to the next answer: with it what happens does not depend on how fast the machine is.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::base::call::{Call, shielded};
use crate::base::lock::lock;
use crate::shared::timer::Timer;

/// What the server works for a transaction, when that takes its read version.
const TRANSACTION_WORK: Duration = Duration::from_micros(170);
/// For each key written, a range cleared counting as one.
const KEY_WRITTEN_WORK: Duration = Duration::from_micros(13);
/// For a range read and for a selector, beside its bytes.
const RANGE_WORK: Duration = Duration::from_micros(44);
/// For the read of a single key, beside its bytes: FoundationDB's own figure is 55,000 a second of a core.
const POINT_WORK: Duration = Duration::from_micros(18);
/// What is read leaves the server at 200 MB/s.
const BYTES_PER_MICROSECOND: u64 = 200;

/// The longest latency that can be set.
const LATENCY_MAX: Duration = Duration::from_secs(1);

/// How long the clock waits for an answer that the engine has not made yet.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// A cluster whose answers take their time. All of it is simulated by one engine; what the engine answers does not change.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SimulatedCluster {
    /// From a read to its answer, if the server is idle.
    pub read: Duration,
    /// From the first call that needs a read version until the transaction has one.
    pub read_version: Duration,
    /// From a commit to its answer.
    pub commit: Duration,
    /// One server works for all transactions: 170 µs a transaction, 13 µs a key written, 44 µs a range read, 18 µs a
    /// point read, and what is read at 200 MB/s. Without it only latencies hold.
    pub has_server: bool,
    /// Whose time it is; `None`: the machine's.
    pub clock: Option<Arc<VirtualClock>>,
}

impl SimulatedCluster {
    /// Latencies from `READ,READ_VERSION,COMMIT` in microseconds, each at most a second; `None` where the text is not
    /// that.
    pub fn parse(text: &str) -> Option<SimulatedCluster> {
        let mut parts = text.split(',').map(|part| part.trim().parse().ok().map(Duration::from_micros));
        let mut next = || parts.next().flatten().filter(|latency| *latency <= LATENCY_MAX);
        let (read, read_version, commit) = (next()?, next()?, next()?);
        parts.next().is_none().then_some(SimulatedCluster { read, read_version, commit, ..Default::default() })
    }
}

/// What an answer is the answer of, as far as a cluster's time depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// A read version, or the key `\xff/metadataVersion`, which comes with it.
    ReadVersion,
    /// A key's value.
    Key,
    /// A range or a selector.
    Range,
    /// A range and the records that so many of its entries lead to: each as a point read more.
    Mapped(usize),
    /// An estimate, which the servers make without a read version.
    Estimate,
    /// What the client knows by itself.
    Local,
}

/// Time since the engine was opened, or since the clock was made.
pub(crate) type Moment = Duration;

/// A transaction, as far as a cluster's time depends on it.
pub(crate) struct Asker<'t> {
    /// When it has its read version; `None` before it asked for one.
    pub(crate) version_due: &'t mut Option<Moment>,
    /// The program set the version, so nobody is asked for it.
    pub(crate) is_version_set: bool,
    /// Whether it has read what is stored.
    pub(crate) has_read: bool,
}

/// An engine's simulated cluster.
pub(crate) struct Simulation {
    cluster: SimulatedCluster,
    opened: Instant,
    /// When the server will have done all that was asked of it.
    idle_from: Mutex<Moment>,
}

impl Simulation {
    pub(crate) fn new(cluster: SimulatedCluster) -> Simulation {
        Simulation { cluster, opened: Instant::now(), idle_from: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.cluster.clock.as_ref().map_or_else(|| self.opened.elapsed(), |clock| clock.now())
    }

    /// Queues work at the server; says when it is done.
    fn work(&self, now: Moment, work: Duration) -> Moment {
        if !self.cluster.has_server {
            return now;
        }
        let mut idle_from = lock(&self.idle_from);
        *idle_from = (*idle_from).max(now) + work;
        *idle_from
    }

    /// When the transaction has its read version, which it asks for now if it did not before.
    fn version_due(&self, asker: &mut Asker<'_>, now: Moment) -> Moment {
        if let Some(due) = *asker.version_due {
            return due;
        }
        let done = self.work(now, TRANSACTION_WORK);
        // A version that the program set is not asked for.
        let due = if asker.is_version_set { now } else { done.max(now + self.cluster.read_version) };
        *asker.version_due = Some(due);
        due
    }

    /// When an answer of so many bytes comes; `None`: at once, as nobody had to be asked.
    pub(crate) fn answer_due(&self, mut asker: Asker<'_>, question: Question, bytes: usize) -> Option<Moment> {
        // What a transaction's own writes answered alone, and what was refused.
        if !asker.has_read && !matches!(question, Question::Estimate) {
            return None;
        }
        let work = match question {
            Question::Local => return None,
            Question::ReadVersion => return Some(self.version_due(&mut asker, self.now())),
            Question::Key | Question::Estimate => POINT_WORK,
            Question::Range => RANGE_WORK,
            Question::Mapped(records) => {
                RANGE_WORK + POINT_WORK.saturating_mul(u32::try_from(records).unwrap_or(u32::MAX))
            }
        };
        let now = self.now();
        let asked = if question == Question::Estimate { now } else { self.version_due(&mut asker, now).max(now) };
        let done = self.work(now, work + Duration::from_micros(bytes as u64 / BYTES_PER_MICROSECOND));
        Some(done.max(asked + self.cluster.read))
    }

    /// A commit of so many mutations begins: what delivers its answer in time.
    pub(crate) fn begin_commit(&self, mut asker: Asker<'_>, mutations: usize) -> CommitAnswer {
        let now = self.now();
        let asked = self.version_due(&mut asker, now).max(now);
        let keys = u32::try_from(mutations).unwrap_or(u32::MAX);
        let done = self.work(now, KEY_WRITTEN_WORK.saturating_mul(keys));
        let expected = self.cluster.clock.clone().map(Expected::new);
        CommitAnswer { due: done.max(asked + self.cluster.commit), _expected: expected }
    }

    /// Calls at a moment of its time, from the engine's thread or from who moves the clock.
    pub(crate) fn at(&self, timer: &Timer, moment: Moment, call: impl FnOnce() + Send + 'static) {
        match &self.cluster.clock {
            Some(clock) => clock.schedule(moment, Box::new(call)),
            None => {
                timer.schedule(self.opened + moment, call);
            }
        }
    }

    /// From 0 to 1, for the spread of retries, where time is virtual: by what the clock was asked before.
    pub(crate) fn spread(&self) -> Option<f64> {
        let clock = self.cluster.clock.as_ref()?;
        let asked = lock(&clock.inner).next;
        // Multiples of the golden ratio: neighbours lie far apart.
        Some(fraction(asked.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// When a moment of its time is by the machine's; `None` where its time is another.
    pub(crate) fn instant(&self, moment: Moment) -> Option<Instant> {
        self.cluster.clock.is_none().then(|| self.opened + moment)
    }

    /// Calls after a delay, which is the clock's where there is a virtual one.
    pub(crate) fn after(&self, timer: &Timer, delay: Duration, call: impl FnOnce() + Send + 'static) {
        match &self.cluster.clock {
            Some(clock) => clock.schedule(clock.now() + delay, Box::new(call)),
            None => {
                timer.schedule(Instant::now() + delay, call);
            }
        }
    }
}

/// From 0 to 1, by the upper bits of a number.
pub(crate) fn fraction(number: u64) -> f64 {
    (number >> 11) as f64 / (1u64 << 53) as f64
}

/// The answer of a commit that is to come.
pub(crate) struct CommitAnswer {
    pub(crate) due: Moment,
    _expected: Option<Expected>,
}

/// A clock that stands still until it is moved to the next answer ([`VirtualClock::advance`]).
#[derive(Default)]
pub struct VirtualClock {
    inner: Mutex<Inner>,
    settled: Condvar,
    /// A sleeper's time has come since [`VirtualClock::take_woken`].
    has_woken: Arc<AtomicBool>,
}

#[derive(Default)]
struct Inner {
    now: Moment,
    calls: BTreeMap<(Moment, u64), Call>,
    next: u64,
    /// Answers that the engine has not made yet, and that may be due before those that it has.
    expected: usize,
}

impl std::fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// Counted as long as an answer may still be made.
struct Expected(Arc<VirtualClock>);

impl Expected {
    fn new(clock: Arc<VirtualClock>) -> Expected {
        lock(&clock.inner).expected += 1;
        Expected(clock)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        lock(&self.0.inner).expected -= 1;
        self.0.settled.notify_all();
    }
}

/// What a sleeper waits for.
#[derive(Default)]
struct Slept {
    is_over: bool,
    waker: Option<Waker>,
}

impl VirtualClock {
    /// Time since the clock was made, as far as it was moved.
    pub fn now(&self) -> Duration {
        lock(&self.inner).now
    }

    /// Moves the clock to the next answer and delivers that, from this call; false where none is under way. Answers that
    /// are due at one time come one after the other, in the order in which they were asked for. It belongs to whoever
    /// has nothing else to do, such as a runtime before it waits (`on_thread_park`).
    pub fn advance(&self) -> bool {
        let inner = lock(&self.inner);
        let unsettled = |inner: &mut Inner| inner.expected > 0;
        let waited = self.settled.wait_timeout_while(inner, SETTLE_MAX, unsettled);
        let mut inner = waited.unwrap_or_else(|broken| broken.into_inner()).0;
        let Some(((moment, _), call)) = inner.calls.pop_first() else { return false };
        inner.now = inner.now.max(moment);
        drop(inner);
        shielded(call);
        true
    }

    /// Waits until the clock was moved on by `time`, which counts from this call. The clock stops there as at an answer.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        let slept = Arc::<Mutex<Slept>>::default();
        let (sleeper, has_woken) = (Arc::downgrade(&slept), Arc::clone(&self.has_woken));
        let wake = move || {
            let Some(sleeper) = sleeper.upgrade() else { return };
            let mut slept = lock(&sleeper);
            slept.is_over = true;
            if let Some(waker) = slept.waker.take() {
                drop(slept);
                has_woken.store(true, Ordering::Relaxed);
                waker.wake();
            }
        };
        self.schedule(self.now() + time, Box::new(wake));
        poll_fn(move |context| {
            let mut slept = lock(&slept);
            if slept.is_over {
                return Poll::Ready(());
            }
            slept.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }

    /// Whether the clock has woken a sleeper since this was asked last.
    pub fn take_woken(&self) -> bool {
        self.has_woken.swap(false, Ordering::Relaxed)
    }

    fn schedule(&self, moment: Moment, call: Call) {
        let mut inner = lock(&self.inner);
        inner.next += 1;
        let id = (moment.max(inner.now), inner.next);
        inner.calls.insert(id, call);
    }
}
