//! `FDBFuture`: the answer of a call, there at once or to come.
//!
//! Reads are answered before the call returns, so their futures are made ready: one allocation, and no lock is taken
//! when they are looked at. A few are withheld all the same, and delivered by the engine's thread, so that programs meet
//! what they always meet on a cluster. A future that waits has its callbacks under a lock; it is completed by whoever
//! comes first of the engine and `fdb_future_cancel`; its callbacks come from the network thread ([`crate::delivery`]).
//!
//! A future's pointer is an `Arc` that the caller of the C API owns; the engine's callback owns another, and so does the
//! network thread while it calls back. So a future that is destroyed while its callback runs stays valid until the
//! callback is back.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use fdb_embedded::{Engine, Error, WatchId, Withheld};

use crate::outcome::Outcome;

/// Not answered yet.
pub(crate) const PENDING: u32 = 0;
/// Answered, and the memory of the answer released.
pub(crate) const RELEASED: u32 = 1;
/// Answered. Above it, how many times the answer was handed out and not released since.
pub(crate) const READY: u32 = 2;

/// Called once when a future is ready, with the future and the pointer that was given along.
pub type FDBCallback = Option<unsafe extern "C" fn(*mut FDBFuture, *mut c_void)>;
/// A callback that was set, to be called once.
#[derive(Debug)]
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(*mut FDBFuture, *mut c_void),
    pub(crate) parameter: *mut c_void,
}

/// What only a future that waits needs.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) callbacks: Vec<Callback>,
    pub(crate) source: Source,
}

/// Where the answer comes from, if that must be notified.
#[derive(Debug, Default)]
pub(crate) enum Source {
    #[default]
    Engine,
    /// Ends with the future.
    Watch(Engine, WatchId),
    /// Is delivered when the program looks for it.
    Withheld(Withheld),
}

impl Waiting {
    pub(crate) fn take_withheld(&mut self) -> Option<Withheld> {
        match std::mem::take(&mut self.source) {
            Source::Withheld(withheld) => Some(withheld),
            other => {
                self.source = other;
                None
            }
        }
    }
}

/// `FDBFuture` of the C API.
#[derive(Debug)]
pub struct FDBFuture {
    pub(crate) state: AtomicU32,
    /// The code of the error that it was answered with, 0 for none. Written before `state` leaves `PENDING`.
    pub(crate) error: AtomicI32,
    /// Written before `state` leaves `PENDING` (under `waiting`), read while `state` is above `READY`, and written again
    /// by whoever moves `state` to `RELEASED`.
    pub(crate) outcome: UnsafeCell<Outcome>,
    waiting: Mutex<Waiting>,
    pub(crate) is_done: Condvar,
}

// SAFETY: the pointers in it are to memory that it owns, or are handed through to the callback; `outcome` is written
// before `state` says so, and read only after.
unsafe impl Send for FDBFuture {}
// SAFETY: as above; `state` counts who reads `outcome`, so that it is not written while anybody does.
unsafe impl Sync for FDBFuture {}

impl FDBFuture {
    fn new(state: u32, outcome: Outcome) -> Arc<FDBFuture> {
        Arc::new(FDBFuture {
            state: AtomicU32::new(state),
            error: AtomicI32::new(outcome.code()),
            outcome: UnsafeCell::new(outcome),
            waiting: Mutex::default(),
            is_done: Condvar::new(),
        })
    }

    /// A future that is answered already, for the C API's caller to own.
    pub(crate) fn ready(outcome: Outcome) -> *mut FDBFuture {
        Self::into_raw(Self::new(READY, outcome))
    }

    pub(crate) fn failed(error: Error) -> *mut FDBFuture {
        Self::ready(Outcome::Error(error))
    }

    pub(crate) fn pending() -> Arc<FDBFuture> {
        Self::new(PENDING, Outcome::Nothing)
    }

    /// A future that waits although its answer is known already; see [`FDBFuture::release`].
    pub(crate) fn known(outcome: Outcome) -> Arc<FDBFuture> {
        Self::new(PENDING, outcome)
    }

    pub(crate) fn into_raw(this: Arc<FDBFuture>) -> *mut FDBFuture {
        Arc::into_raw(this).cast_mut()
    }

    /// Lets the future's end be the watch's end.
    pub(crate) fn attach_watch(&self, engine: &Engine, id: WatchId) {
        let mut waiting = self.lock();
        if !self.is_ready() {
            waiting.source = Source::Watch(engine.clone(), id);
        }
    }

    /// Has the answer delivered from the first look on.
    pub(crate) fn attach_withheld(&self, withheld: Withheld) {
        let mut waiting = self.lock();
        if !self.is_ready() {
            waiting.source = Source::Withheld(withheld);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// Calls the callbacks that were set before the future was ready; whether there were any.
    pub(crate) fn run_callbacks(this: &Arc<FDBFuture>) -> bool {
        let callbacks = std::mem::take(&mut this.lock().callbacks);
        let is_any = !callbacks.is_empty();
        for callback in callbacks {
            // SAFETY: whoever set the callback promised that it may be called once, from any thread, with its parameter.
            // The future outlives the call: `this` is a reference to it that is not the one a callback may give up.
            unsafe { (callback.function)(Arc::as_ptr(this).cast_mut(), callback.parameter) };
        }
        is_any
    }
}
