//! The answer of an HTTP/1 connection that is under way, as the stream beneath hyper knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;

/// True from the moment at which hyper has read a head until it has dropped the body of the answer.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    is_under_way: AtomicBool,
    reader: AtomicWaker,
}

impl InFlight {
    /// Begins an answer. It is under way until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlightGuard {
        self.is_under_way.store(true, Ordering::Release);
        InFlightGuard(self.clone())
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Acquire)
    }

    /// Wakes the task of the connection at the end of the answer. It is the task that ends it.
    pub(crate) fn wake_at_end(&self, reader: &Waker) {
        self.reader.register(reader);
    }
}

/// An answer that is under way.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<InFlight>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.is_under_way.store(false, Ordering::Release);
        self.0.reader.wake();
    }
}
