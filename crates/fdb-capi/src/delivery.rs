//! The network thread's work: the callbacks of futures that were not ready when their callback was set.
//!
//! The engine answers from threads of its own, which shall not wait for a program's callbacks, and some bindings know no
//! other thread than the one that they run the network on. So callbacks come from there, one after the other; from the
//! thread that has the answer only where no network runs.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

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

struct State {
    waiting: Vec<Delivery>,
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
    let mut state = state();
    if !state.is_running || is_network_thread() {
        drop(state);
        return delivery.make();
    }
    state.waiting.push(delivery);
    let wakes = std::mem::take(&mut state.is_asleep);
    drop(state);
    if wakes {
        ARRIVED.notify_one();
    }
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
            deliveries.into_iter().for_each(Delivery::make);
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
