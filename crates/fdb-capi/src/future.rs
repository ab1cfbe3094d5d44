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
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use fdb_embedded::{Done, Engine, Error, WatchId, Withheld};

use crate::delivery::{answer_soon, deliver, is_network_thread, note_call_back};
use crate::error::{BLOCKED_FROM_NETWORK_THREAD, FUTURE_NOT_SET, FUTURE_RELEASED};
use crate::outcome::Outcome;
use crate::types::{FDBCallback, FDBKey, FDBKeyValue, FDBMappedKeyValue, c_len, fdb_bool_t, fdb_error_t};

/// Not answered yet.
const PENDING: u32 = 0;
/// Answered, and the memory of the answer released.
const RELEASED: u32 = 1;
/// Answered. Above it, how many times the answer was handed out and not released since.
const READY: u32 = 2;

/// A callback that was set, to be called once.
#[derive(Debug)]
struct Callback {
    function: unsafe extern "C" fn(*mut FDBFuture, *mut c_void),
    parameter: *mut c_void,
}

/// What only a future that waits needs.
#[derive(Debug, Default)]
struct Waiting {
    callbacks: Vec<Callback>,
    source: Source,
}

/// Where the answer comes from, if that must be told something.
#[derive(Debug, Default)]
enum Source {
    #[default]
    Engine,
    /// Ends with the future.
    Watch(Engine, WatchId),
    /// Is delivered when the program looks for it.
    Withheld(Withheld),
}

impl Waiting {
    fn take_withheld(&mut self) -> Option<Withheld> {
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
    state: AtomicU32,
    /// The code of the error that it was answered with, 0 for none. Written before `state` leaves `PENDING`.
    error: AtomicI32,
    /// Written before `state` leaves `PENDING` (under `waiting`), read while `state` is above `READY`, and written again
    /// by whoever moves `state` to `RELEASED`.
    outcome: UnsafeCell<Outcome>,
    waiting: Mutex<Waiting>,
    is_done: Condvar,
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

    /// The callback for the engine that gives a withheld answer free, or replaces it by an error.
    pub(crate) fn release(this: &Arc<FDBFuture>) -> Done<()> {
        let this = Arc::clone(this);
        Box::new(move |result| drop(FDBFuture::complete(&this, result.err().map(Outcome::Error))))
    }

    pub(crate) fn into_raw(this: Arc<FDBFuture>) -> *mut FDBFuture {
        Arc::into_raw(this).cast_mut()
    }

    /// The callback for the engine that answers this future.
    pub(crate) fn done<T: 'static>(this: &Arc<FDBFuture>, ok: fn(T) -> Outcome) -> Done<T> {
        let this = Arc::clone(this);
        Box::new(move |result| drop(FDBFuture::complete(&this, Some(Outcome::of(result, ok)))))
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

    /// What the program sees: an answer that waits for its first look is on its way after it.
    fn look(&self) -> bool {
        let is_ready = self.is_ready();
        if !is_ready {
            self.ask();
        }
        is_ready
    }

    /// Asks for an answer that was withheld.
    fn ask(&self) {
        let withheld = self.lock().take_withheld();
        withheld.into_iter().for_each(answer_soon);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// Answers the future if nobody did before, with what was withheld if no outcome is given; has its callbacks called,
    /// and gives back where the answer would have come from.
    fn complete(this: &Arc<FDBFuture>, outcome: Option<Outcome>) -> Source {
        let (source, is_called_back) = {
            let mut waiting = this.lock();
            if this.is_ready() {
                return Source::Engine;
            }
            if let Some(outcome) = outcome {
                this.error.store(outcome.code(), Ordering::Relaxed);
                // SAFETY: nobody reads before `state` is READY, and nobody else writes: that takes the lock and PENDING.
                unsafe { *this.outcome.get() = outcome };
            }
            this.state.store(READY, Ordering::Release);
            (std::mem::take(&mut waiting.source), !waiting.callbacks.is_empty())
        };
        this.is_done.notify_all();
        if is_called_back {
            deliver(this);
        }
        source
    }

    /// Calls the callbacks that were set before the future was ready.
    pub(crate) fn run_callbacks(this: &Arc<FDBFuture>) {
        let callbacks = std::mem::take(&mut this.lock().callbacks);
        for callback in callbacks {
            // SAFETY: whoever set the callback promised that it may be called once, from any thread, with its parameter.
            // The future outlives the call: `this` is a reference to it that is not the one a callback may give up.
            unsafe { (callback.function)(Arc::as_ptr(this).cast_mut(), callback.parameter) };
            note_call_back();
        }
    }

    fn cancel(this: &Arc<FDBFuture>) {
        let cancelled = Outcome::Error(Error::OPERATION_CANCELLED);
        if !this.is_ready()
            && let Source::Watch(engine, id) = FDBFuture::complete(this, Some(cancelled))
        {
            engine.cancel_watch(id);
        }
    }

    /// Takes one handing out back. The memory is freed with the last one; what was never handed out is kept.
    fn release_memory(&self) {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            PENDING | RELEASED | READY | u32::MAX => None,
            state if state == READY + 1 => Some(RELEASED),
            state => Some(state - 1),
        });
        if before == Ok(READY + 1) {
            // SAFETY: only one caller gets here, and nobody has been handed the outcome since: that would have counted.
            unsafe { *self.outcome.get() = Outcome::Nothing };
        }
    }

    /// The code of the error that the future answers with: 0 for success, 2002 before it is ready.
    fn code(&self) -> fdb_error_t {
        match self.state.load(Ordering::Acquire) {
            PENDING => {
                self.ask();
                FUTURE_NOT_SET.0
            }
            RELEASED => FUTURE_RELEASED.0,
            _ => self.error.load(Ordering::Relaxed),
        }
    }

    /// What the future was answered with, handed out until [`FDBFuture::release_memory`]; or the code of its error.
    fn hand_out(&self) -> Result<&Outcome, fdb_error_t> {
        let code = self.code();
        if code != 0 {
            return Err(code);
        }
        // A count that is full stays so: the memory then lives as long as the future.
        let count = |state| (state >= READY).then(|| u32::saturating_add(state, 1));
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
            // SAFETY: counted, so nobody writes until it is released.
            Ok(_) => Ok(unsafe { &*self.outcome.get() }),
            Err(_) => Err(FUTURE_RELEASED.0),
        }
    }

    /// As if the last handing out had not been.
    fn take_back(&self) {
        let count = |state| (state > READY && state < u32::MAX).then(|| state - 1);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
    }

    fn block_until_ready(&self) -> Result<(), Error> {
        if self.is_ready() {
            return Ok(());
        }
        if is_network_thread() {
            return Err(BLOCKED_FROM_NETWORK_THREAD);
        }
        self.ask();
        let mut waiting = self.lock();
        while !self.is_ready() {
            waiting = self.is_done.wait(waiting).unwrap_or_else(|broken| broken.into_inner());
        }
        Ok(())
    }
}

/// Cancels a future that is not ready: it is answered with 1101, and its watch ends. No effect on one that is ready.
///
/// # Safety
/// `f` is a future of this library that was not destroyed; so for every function of this module.
pub unsafe extern "C" fn fdb_future_cancel(f: *mut FDBFuture) {
    // A callback may destroy the future.
    // SAFETY: by contract `f` is an `Arc` that the caller owns, so counting one more and giving it back is sound.
    let future = unsafe {
        Arc::increment_strong_count(f);
        Arc::from_raw(f.cast_const())
    };
    FDBFuture::cancel(&future);
}

/// Gives back what a getter handed out. Called as often as getters were, it frees the memory of the answer, and the future
/// answers 1102 from then on.
///
/// # Safety
/// As [`fdb_future_cancel`]; what one call of a getter handed out is not used any more.
pub unsafe extern "C" fn fdb_future_release_memory(f: *mut FDBFuture) {
    // SAFETY: by contract `f` is alive.
    unsafe { &*f }.release_memory();
}

/// Cancels a future and gives it up, with all that it handed out.
///
/// # Safety
/// As [`fdb_future_cancel`]; `f` is not used afterwards. Null is let through.
pub unsafe extern "C" fn fdb_future_destroy(f: *mut FDBFuture) {
    if f.is_null() {
        return;
    }
    // SAFETY: by contract `f` is the `Arc` that was handed out, given back here once.
    let future = unsafe { Arc::from_raw(f.cast_const()) };
    FDBFuture::cancel(&future);
}

/// Waits until a future is ready. 2026 on the network thread for one that is not: waiting could never end.
///
/// # Safety
/// As [`fdb_future_cancel`].
pub unsafe extern "C" fn fdb_future_block_until_ready(f: *mut FDBFuture) -> fdb_error_t {
    // SAFETY: by contract `f` is alive.
    unsafe { &*f }.block_until_ready().map_or_else(|error| error.0, |()| 0)
}

/// Whether a future is ready.
///
/// # Safety
/// As [`fdb_future_cancel`].
pub unsafe extern "C" fn fdb_future_is_ready(f: *mut FDBFuture) -> fdb_bool_t {
    // SAFETY: by contract `f` is alive.
    fdb_bool_t::from(unsafe { &*f }.look())
}

/// Has `callback` called once when the future is ready, at once if it is. Several may be set. 2000 for a null callback.
///
/// # Safety
/// As [`fdb_future_cancel`]; the callback may be called from any thread with its parameter.
pub unsafe extern "C" fn fdb_future_set_callback(
    f: *mut FDBFuture,
    callback: FDBCallback,
    callback_parameter: *mut c_void,
) -> fdb_error_t {
    let Some(function) = callback else { return Error::CLIENT_INVALID_OPERATION.0 };
    // SAFETY: by contract `f` is alive.
    let future = unsafe { &*f };
    if !future.is_ready() {
        let mut waiting = future.lock();
        // Between the look and the lock it may have been completed.
        if !future.is_ready() {
            waiting.callbacks.push(Callback { function, parameter: callback_parameter });
            let withheld = waiting.take_withheld();
            drop(waiting);
            // From here on the callback may have destroyed the future.
            withheld.into_iter().for_each(answer_soon);
            return 0;
        }
    }
    // SAFETY: by contract the callback takes this future and its parameter. It may destroy the future, which is not
    // looked at afterwards.
    unsafe { function(f, callback_parameter) };
    0
}

/// The error that a future was answered with; 0 for none, 2002 before it is ready.
///
/// # Safety
/// As [`fdb_future_cancel`].
pub unsafe extern "C" fn fdb_future_get_error(f: *mut FDBFuture) -> fdb_error_t {
    // SAFETY: by contract `f` is alive.
    unsafe { &*f }.code()
}

macro_rules! getters {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($out:ident: $type:ty),*) { $($pattern:pat => { $($target:ident = $answer:expr),* })* }
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// Answers the future's own error, 2002 before it is ready, 2000 where its answer is of another kind.
            ///
            /// # Safety
            /// As [`fdb_future_cancel`]; the other pointers may be written to.
            pub unsafe extern "C" fn $name(f: *mut FDBFuture $(, $out: *mut $type)*) -> fdb_error_t {
                // SAFETY: by contract `f` is alive.
                let future = unsafe { &*f };
                match future.hand_out() {
                    $(
                        Ok($pattern) => {
                            // SAFETY: by contract the out-parameters may be written to.
                            unsafe { $(*$target = $answer;)* }
                            0
                        }
                    )*
                    Ok(_) => {
                        future.take_back();
                        Error::CLIENT_INVALID_OPERATION.0
                    }
                    Err(code) => code,
                }
            }
        )*
    };
}

getters! {
    /// A number.
    fn fdb_future_get_int64(out: i64) { Outcome::Int64(number) => { out = *number } }

    /// A number without a sign.
    fn fdb_future_get_uint64(out: u64) { Outcome::UInt64(number) => { out = *number } }

    /// A floating-point number.
    fn fdb_future_get_double(out: f64) { Outcome::Double(number) => { out = *number } }

    /// A key, valid until the future is destroyed.
    fn fdb_future_get_key(out_key: *const u8, out_key_length: c_int) {
        Outcome::Key(key) => { out_key = key.as_ptr(), out_key_length = c_len(key.len()) }
    }

    /// Whether there is a value, and the value, valid until the future is destroyed.
    fn fdb_future_get_value(out_present: fdb_bool_t, out_value: *const u8, out_value_length: c_int) {
        Outcome::Value(value) => {
            out_present = fdb_bool_t::from(value.is_some()),
            out_value = value.as_deref().unwrap_or_default().as_ptr(),
            out_value_length = c_len(value.as_deref().unwrap_or_default().len())
        }
    }

    /// The pairs of a range read, valid until the future is destroyed, and whether there may be more.
    fn fdb_future_get_keyvalue_array(out_kv: *const FDBKeyValue, out_count: c_int, out_more: fdb_bool_t) {
        Outcome::KeyValues { array, is_more, .. } => {
            out_kv = array.as_ptr(),
            out_count = c_len(array.len()),
            out_more = fdb_bool_t::from(*is_more)
        }
    }

    /// The pairs of a mapped range with their records, valid until the future is destroyed, and whether there may be more.
    fn fdb_future_get_mappedkeyvalue_array(out_kv: *const FDBMappedKeyValue, out_count: c_int, out_more: fdb_bool_t) {
        Outcome::MappedKeyValues(mapped) => {
            out_kv = mapped.array.as_ptr(),
            out_count = c_len(mapped.array.len()),
            out_more = fdb_bool_t::from(mapped.is_more)
        }
    }

    /// Keys, valid until the future is destroyed.
    fn fdb_future_get_key_array(out_key_array: *const FDBKey, out_count: c_int) {
        Outcome::Keys { array, .. } => { out_key_array = array.as_ptr(), out_count = c_len(array.len()) }
    }

    /// Strings, valid until the future is destroyed.
    fn fdb_future_get_string_array(out_strings: *mut *const c_char, out_count: c_int) {
        Outcome::Strings { array, .. } => { out_strings = array.as_ptr().cast_mut(), out_count = c_len(array.len()) }
    }
}

/// The error of a future whose kind of answer this library never gives: the future's own, or 2000.
pub(crate) fn error_of_foreign_kind(future: &FDBFuture) -> fdb_error_t {
    match future.code() {
        0 => Error::CLIENT_INVALID_OPERATION.0,
        code => code,
    }
}
