//! Callbacks that complete asynchronous calls.

use std::sync::{Arc, Mutex};

use crate::base::error::{Error, Result};
use crate::base::lock::lock;

/// A completion callback. It runs exactly once, on any thread, possibly on the caller's before the call returns.
pub type Completion<T> = Box<dyn FnOnce(Result<T>) + Send + 'static>;

/// A callback to run after the state is unlocked.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// The callback of an operation in flight; the first completion consumes it.
pub(crate) struct Answer(Mutex<Option<Completion<()>>>);

impl Answer {
    pub(crate) fn new(done: Completion<()>) -> Arc<Answer> {
        Arc::new(Answer(Mutex::new(Some(done))))
    }

    pub(crate) fn give(&self, result: Result<()>) {
        let done = lock(&self.0).take();
        if let Some(done) = done {
            done(result);
        }
    }
}

impl Drop for Answer {
    /// Completes a lost operation with an unknown result, so that no caller waits for ever.
    fn drop(&mut self) {
        self.give(Err(Error::COMMIT_UNKNOWN_RESULT));
    }
}

/// Runs a callback on one of the engine's threads. A panic in it must not end the thread.
pub(crate) fn run_shielded(call: impl FnOnce()) {
    // A panic loses only the callback's state: no engine lock is held while a callback runs.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
}
