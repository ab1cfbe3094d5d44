//! The network thread's work: the callbacks of futures that were not ready when their callback was set, and the answers
//! of reads that are pending without a fault.
//!
//! The engine answers from threads of its own, which shall not wait for a program's callbacks, and some bindings know no
//! other thread than the one that they run the network on. So callbacks come from there, one after the other; from the
//! thread that has the answer only where no network runs.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use fdb_embedded::Withheld;

use crate::future::{Callback, FDBFuture};

struct Delivery {
    /// Keeps the future alive until its callbacks are back.
    future: Arc<FDBFuture>,
    callbacks: Vec<Callback>,
}

impl Delivery {
    fn make(self) {
        for callback in self.callbacks {
            callback.call(&self.future);
        }
    }
}

enum Work {
    Callbacks(Delivery),
    /// An answer that the program asked for.
    Answer(Withheld),
}

impl Work {
    fn run(self) {
        match self {
            Work::Callbacks(delivery) => delivery.make(),
            Work::Answer(withheld) => withheld.deliver(),
        }
    }
}

struct State {
    waiting: Vec<Work>,
    is_running: bool,
    /// Whether the network thread sleeps, and must be woken.
    is_asleep: bool,
    is_stop_wanted: bool,
}

static STATE: Mutex<State> =
    Mutex::new(State { waiting: Vec::new(), is_running: false, is_asleep: false, is_stop_wanted: false });
static ARRIVED: Condvar = Condvar::new();

thread_local! {
    static IS_NETWORK_THREAD: Cell<bool> = const { Cell::new(false) };
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// Whether this is the thread that runs the network, which must not wait for a future.
pub(crate) fn is_network_thread() -> bool {
    IS_NETWORK_THREAD.get()
}

/// Has callbacks called: on the network thread, or at once where there is none or this is it.
pub(crate) fn deliver(future: &Arc<FDBFuture>, callbacks: Vec<Callback>) {
    if callbacks.is_empty() {
        return;
    }
    let delivery = Delivery { future: Arc::clone(future), callbacks };
    if is_network_thread() {
        return delivery.make();
    }
    if let Some(work) = hand_over(Work::Callbacks(delivery)) {
        work.run();
    }
}

/// Has a withheld answer delivered soon and not by this call: on the network thread, or on the engine's where none runs.
pub(crate) fn answer_soon(withheld: Withheld) {
    if let Some(Work::Answer(withheld)) = hand_over(Work::Answer(withheld)) {
        withheld.deliver_after(Duration::ZERO);
    }
}

/// Gives the work to the network thread; back where none runs.
fn hand_over(work: Work) -> Option<Work> {
    let mut state = state();
    if !state.is_running {
        return Some(work);
    }
    state.waiting.push(work);
    let wakes = std::mem::take(&mut state.is_asleep);
    drop(state);
    if wakes {
        ARRIVED.notify_one();
    }
    None
}

/// Delivers until [`stop`] is called, also if it was called before; what waits then is delivered too.
pub(crate) fn run() {
    IS_NETWORK_THREAD.set(true);
    let mut state = state();
    state.is_running = true;
    loop {
        let deliveries = std::mem::take(&mut state.waiting);
        if !deliveries.is_empty() {
            drop(state);
            deliveries.into_iter().for_each(Work::run);
            state = self::state();
        } else if state.is_stop_wanted {
            state.is_running = false;
            break;
        } else {
            state.is_asleep = true;
            state = ARRIVED.wait(state).unwrap_or_else(|broken| broken.into_inner());
            state.is_asleep = false;
        }
    }
    drop(state);
    IS_NETWORK_THREAD.set(false);
}

/// Lets [`run`] come to its end.
pub(crate) fn stop() {
    state().is_stop_wanted = true;
    ARRIVED.notify_one();
}
