//! A simulated cluster's time: the latency of its answers and the work of its server.
//!
//! The engine answers in microseconds; a cluster answers after a round trip. With a [`SimulatedCluster`] an answer is
//! computed as usual, at the call, and delivered when a cluster would have delivered it: after its latency, and after
//! the server, which all transactions of the engine share, has done its work for it and for all earlier calls.
//!
//! Time is the machine's, or that of a [`VirtualClock`]. That clock stands still until an idle caller advances it to
//! the next answer, so the results do not depend on the machine's speed.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::base::call::{Call, run_shielded};
use crate::base::lock::lock;
use crate::shared::timer::Timer;

/// The server's work for a transaction, due when it takes its read version.
const TRANSACTION_WORK: Duration = Duration::from_micros(170);
/// For each key written; a cleared range counts as one.
const KEY_WRITTEN_WORK: Duration = Duration::from_micros(13);
/// For a range read or a selector, beside its bytes.
const RANGE_WORK: Duration = Duration::from_micros(44);
/// For the read of a single key, beside its bytes: FoundationDB's own figure is 55,000 a second on a core.
const POINT_WORK: Duration = Duration::from_micros(18);
/// The server's output rate: 200 MB/s.
const BYTES_PER_MICROSECOND: u64 = 200;

/// The longest latency that can be set.
const LATENCY_MAX: Duration = Duration::from_secs(1);

/// The longest time that the clock waits for an answer that the engine has not computed yet.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// A cluster with latencies, simulated by one engine. The engine's answers do not change.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SimulatedCluster {
    /// From a read to its answer, with an idle server.
    pub read: Duration,
    /// From the first call that needs a read version until the transaction has one.
    pub read_version: Duration,
    /// From a commit to its answer.
    pub commit: Duration,
    /// Simulates one server for all transactions: 170 µs a transaction, 13 µs a key written, 44 µs a range read, 18 µs
    /// a point read, and output at 200 MB/s. Without it only the latencies apply.
    pub has_server: bool,
    /// The virtual clock; `None`: the machine's time.
    pub clock: Option<Arc<VirtualClock>>,
}

impl SimulatedCluster {
    /// Parses latencies from `READ,READ_VERSION,COMMIT` in microseconds, each at most a second; `None` for any other
    /// text.
    pub fn parse(text: &str) -> Option<SimulatedCluster> {
        let mut parts = text.split(',').map(|part| part.trim().parse().ok().map(Duration::from_micros));
        let mut next = || parts.next().flatten().filter(|latency| *latency <= LATENCY_MAX);
        let (read, read_version, commit) = (next()?, next()?, next()?);
        parts.next().is_none().then_some(SimulatedCluster { read, read_version, commit, ..Default::default() })
    }
}

/// The kind of a call, as far as a simulated cluster's time depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A read version, or the key `\xff/metadataVersion`, which comes with it.
    ReadVersion,
    /// A key's value.
    Key,
    /// A range or a selector.
    Range,
    /// A range and the records of this many of its entries; each counts as a further point read.
    Mapped(usize),
    /// An estimate, which the servers compute without a read version.
    Estimate,
    /// Anything that the client knows without a server.
    Local,
}

/// The time since the engine was opened, or since the clock was created.
pub(crate) type Moment = Duration;

/// A transaction, as far as a simulated cluster's time depends on it.
pub(crate) struct TransactionTiming<'t> {
    /// The time at which it has its read version; `None` before it requests one.
    pub(crate) version_due: &'t mut Option<Moment>,
    /// True if the program set the version, so that it is not requested.
    pub(crate) is_version_set: bool,
    /// True if it has read stored pairs.
    pub(crate) has_read: bool,
}

pub(crate) struct Simulation {
    cluster: SimulatedCluster,
    opened: Instant,
    /// The time at which the server will have done all its work.
    idle_from: Mutex<Moment>,
}

impl Simulation {
    pub(crate) fn new(cluster: SimulatedCluster) -> Simulation {
        Simulation { cluster, opened: Instant::now(), idle_from: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.cluster.clock.as_ref().map_or_else(|| self.opened.elapsed(), |clock| clock.now())
    }

    /// Queues work at the server. Returns when it is done.
    fn work(&self, now: Moment, work: Duration) -> Moment {
        if !self.cluster.has_server {
            return now;
        }
        let mut idle_from = lock(&self.idle_from);
        *idle_from = (*idle_from).max(now) + work;
        *idle_from
    }

    /// Returns when the transaction has its read version; requests it if that has not happened.
    fn version_due(&self, timing: &mut TransactionTiming<'_>, now: Moment) -> Moment {
        if let Some(due) = *timing.version_due {
            return due;
        }
        let done = self.work(now, TRANSACTION_WORK);
        // A version that the program set is not requested.
        let due = if timing.is_version_set { now } else { done.max(now + self.cluster.read_version) };
        *timing.version_due = Some(due);
        due
    }

    /// Returns when an answer of this size comes; `None`: at once, because no server was asked.
    pub(crate) fn answer_due(&self, mut timing: TransactionTiming<'_>, kind: CallKind, bytes: usize) -> Option<Moment> {
        // The call was refused, or the transaction's own writes answered it.
        if !timing.has_read && !matches!(kind, CallKind::Estimate) {
            return None;
        }
        let work = match kind {
            CallKind::Local => return None,
            CallKind::ReadVersion => return Some(self.version_due(&mut timing, self.now())),
            CallKind::Key | CallKind::Estimate => POINT_WORK,
            CallKind::Range => RANGE_WORK,
            CallKind::Mapped(records) => {
                RANGE_WORK + POINT_WORK.saturating_mul(u32::try_from(records).unwrap_or(u32::MAX))
            }
        };
        let now = self.now();
        let asked = if kind == CallKind::Estimate { now } else { self.version_due(&mut timing, now).max(now) };
        let done = self.work(now, work + Duration::from_micros(bytes as u64 / BYTES_PER_MICROSECOND));
        Some(done.max(asked + self.cluster.read))
    }

    /// Begins a commit with this many mutations. The result delivers its answer in time.
    pub(crate) fn begin_commit(&self, mut timing: TransactionTiming<'_>, mutations: usize) -> CommitAnswer {
        let now = self.now();
        let asked = self.version_due(&mut timing, now).max(now);
        let keys = u32::try_from(mutations).unwrap_or(u32::MAX);
        let done = self.work(now, KEY_WRITTEN_WORK.saturating_mul(keys));
        let expected = self.cluster.clock.clone().map(ExpectedAnswer::new);
        CommitAnswer { due: done.max(asked + self.cluster.commit), _expected: expected }
    }

    /// Runs `call` at a moment of the simulation, on the engine's thread or on the thread that moves the clock.
    pub(crate) fn at(&self, timer: &Timer, moment: Moment, call: impl FnOnce() + Send + 'static) {
        match &self.cluster.clock {
            Some(clock) => clock.schedule(moment, Box::new(call)),
            None => {
                timer.schedule(self.opened + moment, call);
            }
        }
    }

    /// Returns a number from 0 to 1 that spreads retries with a virtual clock; it depends on the earlier calls alone.
    pub(crate) fn spread(&self) -> Option<f64> {
        let clock = self.cluster.clock.as_ref()?;
        let asked = lock(&clock.inner).next;
        // Multiples of the golden ratio: successive values are far apart.
        Some(fraction(asked.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Converts a moment of the simulation to the machine's time; `None` with a virtual clock.
    pub(crate) fn instant(&self, moment: Moment) -> Option<Instant> {
        self.cluster.clock.is_none().then(|| self.opened + moment)
    }

    /// Runs `call` after a delay, measured by the virtual clock if there is one.
    pub(crate) fn after(&self, timer: &Timer, delay: Duration, call: impl FnOnce() + Send + 'static) {
        match &self.cluster.clock {
            Some(clock) => clock.schedule(clock.now() + delay, Box::new(call)),
            None => {
                timer.schedule(Instant::now() + delay, call);
            }
        }
    }
}

/// Maps a number to 0 to 1 by its upper bits.
pub(crate) fn fraction(number: u64) -> f64 {
    (number >> 11) as f64 / (1u64 << 53) as f64
}

pub(crate) struct CommitAnswer {
    pub(crate) due: Moment,
    _expected: Option<ExpectedAnswer>,
}

/// A clock that stands still until [`VirtualClock::advance`] moves it to the next answer.
#[derive(Default)]
pub struct VirtualClock {
    inner: Mutex<Inner>,
    settled: Condvar,
    /// True if a sleeper woke since [`VirtualClock::take_woken`].
    has_woken: Arc<AtomicBool>,
}

#[derive(Default)]
struct Inner {
    now: Moment,
    calls: BTreeMap<(Moment, u64), Call>,
    next: u64,
    /// Answers that the engine has not computed yet, and that may be due before the computed ones.
    expected: usize,
}

impl std::fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// Counts an answer that may still be computed, until it is dropped.
struct ExpectedAnswer(Arc<VirtualClock>);

impl ExpectedAnswer {
    fn new(clock: Arc<VirtualClock>) -> ExpectedAnswer {
        lock(&clock.inner).expected += 1;
        ExpectedAnswer(clock)
    }
}

impl Drop for ExpectedAnswer {
    fn drop(&mut self) {
        lock(&self.0.inner).expected -= 1;
        self.0.settled.notify_all();
    }
}

#[derive(Default)]
struct SleepState {
    is_over: bool,
    waker: Option<Waker>,
}

impl VirtualClock {
    /// The time since the clock was created, as far as it was advanced.
    pub fn now(&self) -> Duration {
        lock(&self.inner).now
    }

    /// Moves the clock to the next answer and delivers that on this thread; false if none is pending. Answers due at
    /// the same time are delivered one by one, in the order of their calls. An idle caller should call this, such as a
    /// runtime before it parks (`on_thread_park`).
    pub fn advance(&self) -> bool {
        let inner = lock(&self.inner);
        let unsettled = |inner: &mut Inner| inner.expected > 0;
        let waited = self.settled.wait_timeout_while(inner, SETTLE_MAX, unsettled);
        let mut inner = waited.unwrap_or_else(|broken| broken.into_inner()).0;
        let Some(((moment, _), call)) = inner.calls.pop_first() else { return false };
        inner.now = inner.now.max(moment);
        drop(inner);
        run_shielded(call);
        true
    }

    /// Waits until the clock has advanced by `time` from this call. The clock stops there as at an answer.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        let state = Arc::<Mutex<SleepState>>::default();
        let (sleeper, has_woken) = (Arc::downgrade(&state), Arc::clone(&self.has_woken));
        let wake = move || {
            let Some(sleeper) = sleeper.upgrade() else { return };
            let mut state = lock(&sleeper);
            state.is_over = true;
            if let Some(waker) = state.waker.take() {
                drop(state);
                has_woken.store(true, Ordering::Relaxed);
                waker.wake();
            }
        };
        self.schedule(self.now() + time, Box::new(wake));
        poll_fn(move |context| {
            let mut state = lock(&state);
            if state.is_over {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }

    /// Returns whether the clock has woken a sleeper since the last call.
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
