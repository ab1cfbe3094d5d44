//! The network thread: it runs the callbacks of futures that were not ready when the callback was set, and delivers
//! the answers of reads that are pending without a fault.
//!
//! The engine answers on its own threads, which must not wait for a program's callbacks, and some bindings only know
//! the thread on which they run the network. So callbacks run on that thread, one after the other. Work that is due
//! before the thread starts waits for it. Callbacks due after its end are dropped, because the program may have
//! ended: a binding stops the network before its runtime ends.
//!
//! Without a network ([`crate::open_embedded`] needs none) the thread with the answer runs the callback.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fdb_embedded::{AnswerTime, VirtualClock, WithheldAnswer};

use crate::future::FDBFuture;

/// The period of [`busyness`].
const BUSYNESS_EVERY: Duration = Duration::from_secs(1);

enum Work {
    /// The callbacks of a future, which stays alive until they return.
    Callbacks(Arc<FDBFuture>),
    /// An answer that the program polled for.
    Answer(WithheldAnswer),
}

impl Work {
    fn run(self) {
        match self {
            Work::Callbacks(future) => call_back(&future),
            Work::Answer(withheld) => withheld.deliver(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    NoNetwork,
    SetUp,
    Running,
    Ended,
}

struct DeliveryState {
    phase: Phase,
    waiting: Vec<Work>,
    /// Answers by due time, then by the order of their calls.
    later: BTreeMap<(Instant, u64), WithheldAnswer>,
    later_ids: u64,
    /// True if the network thread sleeps and must be woken.
    is_asleep: bool,
    is_stop_wanted: bool,
    busyness: Busyness,
}

/// The busy time of the network thread in the last whole second.
struct Busyness {
    since: Option<Instant>,
    busy: Duration,
    share: f64,
}

static STATE: Mutex<DeliveryState> = Mutex::new(DeliveryState {
    phase: Phase::NoNetwork,
    waiting: Vec::new(),
    later: BTreeMap::new(),
    later_ids: 0,
    is_asleep: false,
    is_stop_wanted: false,
    busyness: Busyness { since: None, busy: Duration::ZERO, share: 0.0 },
});
static ARRIVED: Condvar = Condvar::new();

thread_local! {
    /// True on a thread that runs callbacks.
    static CALLS_BACK: Cell<bool> = const { Cell::new(false) };
    /// True if it has run one since [`advance`] began.
    static HAS_CALLED_BACK: Cell<bool> = const { Cell::new(false) };
}

fn state() -> MutexGuard<'static, DeliveryState> {
    STATE.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl DeliveryState {
    /// Moves the due answers to the waiting work. Returns the time until the next one is due.
    fn take_due(&mut self) -> Option<Duration> {
        while let Some(first) = self.later.first_entry() {
            let left = first.key().0.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Some(left);
            }
            let withheld = first.remove();
            self.waiting.push(Work::Answer(withheld));
        }
        None
    }
}

impl Busyness {
    /// Ends the current second if it is over.
    fn roll(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let passed = now.duration_since(since);
        if passed >= BUSYNESS_EVERY {
            self.share = self.busy.as_secs_f64() / passed.as_secs_f64();
            (self.since, self.busy) = (Some(now), Duration::ZERO);
        }
    }
}

/// Returns the busy share of the network thread in the last second, 0 to 1.
pub(crate) fn busyness() -> f64 {
    let mut state = state();
    state.busyness.roll(Instant::now());
    state.busyness.share
}

/// Returns whether this thread is the network's or runs callbacks in its place; it must not wait for a future.
pub(crate) fn is_network_thread() -> bool {
    CALLS_BACK.get()
}

/// Delivers the callbacks that were set before the future was ready.
pub(crate) fn deliver(future: &Arc<FDBFuture>) {
    if is_network_thread() {
        return call_back(future);
    }
    let state = state();
    match state.phase {
        Phase::NoNetwork => {
            drop(state);
            CALLS_BACK.set(true);
            call_back(future);
            CALLS_BACK.set(false);
        }
        Phase::SetUp | Phase::Running => hand_over(state, Work::Callbacks(Arc::clone(future))),
        Phase::Ended => {}
    }
}

/// Schedules a withheld answer, which is never delivered by this call: on the network thread, or on the engine's
/// without one.
pub(crate) fn answer_soon(withheld: WithheldAnswer) {
    let state = state();
    if state.phase == Phase::Running {
        return hand_over(state, Work::Answer(withheld));
    }
    drop(state);
    withheld.deliver_after(Duration::ZERO);
}

/// Schedules the answer of a simulated cluster for its due time: on the network thread, which waits for it itself, or
/// on the engine's without one.
pub(crate) fn answer_at(withheld: WithheldAnswer, due: AnswerTime) {
    let Some(instant) = withheld.instant(due) else { return withheld.deliver_at(due) };
    let mut state = state();
    if state.phase != Phase::Running {
        drop(state);
        return withheld.deliver_at(due);
    }
    state.later_ids += 1;
    let id = (instant, state.later_ids);
    let is_first = state.later.first_key_value().is_none_or(|(first, _)| id < *first);
    state.later.insert(id, withheld);
    // Otherwise the thread wakes earlier anyway.
    let wakes = is_first && std::mem::take(&mut state.is_asleep);
    drop(state);
    if wakes {
        ARRIVED.notify_one();
    }
}

/// Advances the clock of a simulated cluster to its next answer with a callback, and runs the callback on this thread;
/// it also delivers the answers before it. It stops at a sleeper that the clock wakes, too. Returns false if no answer
/// has a callback. For idle runtimes; see [`VirtualClock::advance`].
pub fn advance(clock: &VirtualClock) -> bool {
    let before = CALLS_BACK.replace(true);
    HAS_CALLED_BACK.set(false);
    let mut has_woken = clock.take_woken();
    while !has_woken && clock.advance() && !HAS_CALLED_BACK.get() {
        has_woken = clock.take_woken();
    }
    CALLS_BACK.set(before);
    has_woken || HAS_CALLED_BACK.get()
}

/// Runs a future's callbacks, and notes it for [`advance`].
fn call_back(future: &Arc<FDBFuture>) {
    if FDBFuture::run_callbacks(future) {
        HAS_CALLED_BACK.set(true);
    }
}

fn hand_over(mut state: MutexGuard<'static, DeliveryState>, work: Work) {
    state.waiting.push(work);
    let wakes = std::mem::take(&mut state.is_asleep);
    drop(state);
    if wakes {
        ARRIVED.notify_one();
    }
}

/// Makes callbacks wait for [`run`] from now on.
pub(crate) fn set_up() {
    state().phase = Phase::SetUp;
}

/// Works until [`stop`], even if that was called before; work that waits then is done too.
pub(crate) fn run() {
    CALLS_BACK.set(true);
    let (mut batch, mut wakes_exactly) = (Vec::new(), false);
    let mut state = state();
    state.phase = Phase::Running;
    loop {
        let is_last = state.is_stop_wanted;
        let next = state.take_due();
        if state.waiting.is_empty() && !is_last {
            state.is_asleep = true;
            state = match next {
                None => ARRIVED.wait(state).unwrap_or_else(|broken| broken.into_inner()),
                Some(next) => {
                    if !wakes_exactly {
                        fdb_embedded::wake_exactly();
                        wakes_exactly = true;
                    }
                    ARRIVED.wait_timeout(state, next).unwrap_or_else(|broken| broken.into_inner()).0
                }
            };
            state.is_asleep = false;
            continue;
        }
        std::mem::swap(&mut batch, &mut state.waiting);
        let begun = Instant::now();
        state.busyness.roll(begun);
        drop(state);
        batch.drain(..).for_each(Work::run);
        state = self::state();
        state.busyness.busy += begun.elapsed();
        if is_last {
            break;
        }
    }
    state.phase = Phase::Ended;
    let too_late = std::mem::take(&mut state.waiting);
    let later = std::mem::take(&mut state.later);
    drop(state);
    later.into_values().for_each(WithheldAnswer::deliver);
    for work in too_late {
        // Callbacks would run after the end; the answer may still be waited for.
        if let Work::Answer(withheld) = work {
            withheld.deliver();
        }
    }
    CALLS_BACK.set(false);
}

/// Ends [`run`].
pub(crate) fn stop() {
    state().is_stop_wanted = true;
    ARRIVED.notify_one();
}
