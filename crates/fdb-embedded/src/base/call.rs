//! What completes a call: its callback, and who may call it.

use std::sync::{Arc, Mutex};

use crate::base::error::{Error, Result};
use crate::base::lock::lock;

/// Called exactly once, from any thread, or on the caller's before the call returns.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send + 'static>;

/// A call to be made once the state is unlocked.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// A callback of an operation in flight; whoever comes first answers it.
pub(crate) struct Answer(Mutex<Option<Done<()>>>);

impl Answer {
    pub(crate) fn new(done: Done<()>) -> Arc<Answer> {
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
    /// Nobody may wait for ever: an operation that got lost has an unknown result.
    fn drop(&mut self) {
        self.give(Err(Error::COMMIT_UNKNOWN_RESULT));
    }
}

/// Runs a callback on one of the engine's threads: its panic is its own, and must not end the thread.
pub(crate) fn shielded(call: impl FnOnce()) {
    // The callback's state is lost with it; the engine's is not touched while a callback runs.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
}
