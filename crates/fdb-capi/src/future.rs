//! `FDBFuture`: the result of a call, immediate or pending.
//!
//! The engine answers reads before the call returns, so their futures are created ready: one allocation, and polling
//! takes no lock. A few answers are withheld all the same and delivered by the engine's thread, so that programs meet
//! pending reads as they do on a cluster. A pending future keeps its callbacks under a lock. Either the engine or
//! `fdb_future_cancel` completes it first. Its callbacks run on the network thread ([`crate::delivery`]).
//!
//! A future's pointer is an `Arc` that the caller of the C API owns. The engine's callback owns another, and so does
//! the network thread while it runs the callbacks. A future that is destroyed while its callback runs therefore stays
//! valid until the callback returns.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use fdb_embedded::{Engine, Error, WatchId, WithheldAnswer};

use crate::outcome::Outcome;

/// Not complete.
pub(crate) const PENDING: u32 = 0;
/// Complete, with the result's memory released.
pub(crate) const RELEASED: u32 = 1;
/// Complete. Higher values count the unreleased references from getters.
pub(crate) const READY: u32 = 2;

/// A callback that runs once when a future is ready, with the future and the given parameter.
pub type FDBCallback = Option<unsafe extern "C" fn(*mut FDBFuture, *mut c_void)>;
/// A registered callback, to be run once.
#[derive(Debug)]
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(*mut FDBFuture, *mut c_void),
    pub(crate) parameter: *mut c_void,
}

/// The state that only a pending future needs.
#[derive(Debug, Default)]
pub(crate) struct PendingState {
    pub(crate) callbacks: Vec<Callback>,
    pub(crate) source: Source,
}

/// The source of the answer, if it must be notified of a cancellation.
#[derive(Debug, Default)]
pub(crate) enum Source {
    #[default]
    Engine,
    /// A watch, which ends with the future.
    Watch(Engine, WatchId),
    /// A withheld answer, delivered when the program polls for it.
    Withheld(WithheldAnswer),
}

impl PendingState {
    pub(crate) fn take_withheld(&mut self) -> Option<WithheldAnswer> {
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
    /// The error code of the result, 0 for success. Written before `state` leaves `PENDING`.
    pub(crate) error: AtomicI32,
    /// Written before `state` leaves `PENDING` (under `waiting`), read while `state` is above `READY`, and written
    /// again by the thread that moves `state` to `RELEASED`.
    pub(crate) outcome: UnsafeCell<Outcome>,
    waiting: Mutex<PendingState>,
    pub(crate) is_done: Condvar,
}

// SAFETY: its pointers are to memory that it owns, or are passed to the callback; `outcome` is written before `state`
// says so, and read only after.
unsafe impl Send for FDBFuture {}
// SAFETY: as above; `state` counts the readers of `outcome`, so it is never written while a thread reads it.
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

    /// Creates a complete future, owned by the C API's caller.
    pub(crate) fn ready(outcome: Outcome) -> *mut FDBFuture {
        Self::into_raw(Self::new(READY, outcome))
    }

    pub(crate) fn failed(error: Error) -> *mut FDBFuture {
        Self::ready(Outcome::Error(error))
    }

    pub(crate) fn pending() -> Arc<FDBFuture> {
        Self::new(PENDING, Outcome::Nothing)
    }

    /// Creates a pending future with a known answer; see [`FDBFuture::release`].
    pub(crate) fn with_answer(outcome: Outcome) -> Arc<FDBFuture> {
        Self::new(PENDING, outcome)
    }

    pub(crate) fn into_raw(this: Arc<FDBFuture>) -> *mut FDBFuture {
        Arc::into_raw(this).cast_mut()
    }

    pub(crate) fn attach_watch(&self, engine: &Engine, id: WatchId) {
        let mut waiting = self.lock();
        if !self.is_ready() {
            waiting.source = Source::Watch(engine.clone(), id);
        }
    }

    /// Delivers the withheld answer from the first poll on.
    pub(crate) fn attach_withheld(&self, withheld: WithheldAnswer) {
        let mut waiting = self.lock();
        if !self.is_ready() {
            waiting.source = Source::Withheld(withheld);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.waiting.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// Runs the callbacks that were set before the future was ready. Returns whether there were any.
    pub(crate) fn run_callbacks(this: &Arc<FDBFuture>) -> bool {
        let callbacks = std::mem::take(&mut this.lock().callbacks);
        let is_any = !callbacks.is_empty();
        for callback in callbacks {
            // SAFETY: by the contract of `fdb_future_set_callback` the callback may run once, on any thread, with its
            // parameter. The future outlives the call: `this` is a reference that no callback can release.
            unsafe { (callback.function)(Arc::as_ptr(this).cast_mut(), callback.parameter) };
        }
        is_any
    }
}
