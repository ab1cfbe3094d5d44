//! Completion, polling and release of futures.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fdb_embedded::{Completion, Error};

use crate::delivery::{answer_soon, deliver, is_network_thread};
use crate::error::{BLOCKED_FROM_NETWORK_THREAD, FUTURE_NOT_SET, FUTURE_RELEASED};
use crate::future::{FDBFuture, PENDING, READY, RELEASED, Source};
use crate::outcome::Outcome;
use crate::types::fdb_error_t;

impl FDBFuture {
    /// Returns the callback by which the engine delivers a withheld answer or fails it.
    pub(crate) fn release(this: &Arc<FDBFuture>) -> Completion<()> {
        let this = Arc::clone(this);
        Box::new(move |result| drop(FDBFuture::complete(&this, result.err().map(Outcome::Error))))
    }

    /// Returns the callback by which the engine completes this future.
    pub(crate) fn done<T: 'static>(this: &Arc<FDBFuture>, ok: fn(T) -> Outcome) -> Completion<T> {
        let this = Arc::clone(this);
        Box::new(move |result| drop(FDBFuture::complete(&this, Some(Outcome::of(result, ok)))))
    }

    /// Returns whether the future is ready; the first poll of a withheld answer starts its delivery.
    pub(crate) fn poll(&self) -> bool {
        let is_ready = self.is_ready();
        if !is_ready {
            self.ask();
        }
        is_ready
    }

    /// Requests the delivery of a withheld answer.
    fn ask(&self) {
        let withheld = self.lock().take_withheld();
        withheld.into_iter().for_each(answer_soon);
    }

    /// Completes the future unless it is complete: with the outcome, or with the withheld answer if none is given.
    /// Delivers its callbacks, and returns the source that is no longer needed.
    fn complete(this: &Arc<FDBFuture>, outcome: Option<Outcome>) -> Source {
        let (source, is_called_back) = {
            let mut waiting = this.lock();
            if this.is_ready() {
                return Source::Engine;
            }
            if let Some(outcome) = outcome {
                this.error.store(outcome.code(), Ordering::Relaxed);
                // SAFETY: no thread reads before `state` is READY, and no other thread writes: a write needs the lock
                // and PENDING.
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

    pub(crate) fn cancel(this: &Arc<FDBFuture>) {
        let cancelled = Outcome::Error(Error::OPERATION_CANCELLED);
        if !this.is_ready()
            && let Source::Watch(engine, id) = FDBFuture::complete(this, Some(cancelled))
        {
            engine.cancel_watch(id);
        }
    }

    /// Releases one reference from a getter. The last one frees the memory; without a reference nothing is freed.
    pub(crate) fn release_memory(&self) {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            PENDING | RELEASED | READY | u32::MAX => None,
            state if state == READY + 1 => Some(RELEASED),
            state => Some(state - 1),
        });
        if before == Ok(READY + 1) {
            // SAFETY: only one caller gets here, and no getter has returned the outcome since: its count would have
            // changed.
            unsafe { *self.outcome.get() = Outcome::Nothing };
        }
    }

    /// The error code of the future: 0 for success, 2002 before it is ready.
    pub(crate) fn code(&self) -> fdb_error_t {
        match self.state.load(Ordering::Acquire) {
            PENDING => {
                self.ask();
                FUTURE_NOT_SET.0
            }
            RELEASED => FUTURE_RELEASED.0,
            _ => self.error.load(Ordering::Relaxed),
        }
    }

    /// Returns the outcome, valid until [`FDBFuture::release_memory`]; or the error code of the future.
    pub(crate) fn hand_out(&self) -> Result<&Outcome, fdb_error_t> {
        let code = self.code();
        if code != 0 {
            return Err(code);
        }
        // A saturated count stays: the memory then lives as long as the future.
        let count = |state| (state >= READY).then(|| u32::saturating_add(state, 1));
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
            // SAFETY: the reference is counted, so no thread writes until it is released.
            Ok(_) => Ok(unsafe { &*self.outcome.get() }),
            Err(_) => Err(FUTURE_RELEASED.0),
        }
    }

    /// Undoes the last [`FDBFuture::hand_out`].
    pub(crate) fn take_back(&self) {
        let count = |state| (state > READY && state < u32::MAX).then(|| state - 1);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
    }

    pub(crate) fn block_until_ready(&self) -> Result<(), Error> {
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

/// The error of a future read as a type that this library never produces: the future's own, or 2000.
pub(crate) fn error_of_foreign_kind(future: &FDBFuture) -> fdb_error_t {
    match future.code() {
        0 => Error::CLIENT_INVALID_OPERATION.0,
        code => code,
    }
}
