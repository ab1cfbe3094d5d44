//! The ownership of an open engine: its threads end with the last owner.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::base::lock::lock;
use crate::shared::connection::Connection;
use crate::shared::core::Core;

/// Ends the threads when the last engine and the last transaction are dropped.
pub(crate) struct Owner {
    pub(crate) core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Owner {
    /// Creates the owner of an engine whose threads are not started yet.
    pub(crate) fn new(core: Arc<Core>) -> Arc<Owner> {
        Arc::new(Owner { core, threads: Mutex::default() })
    }

    /// Adds a thread: the committer's first, then the timer's, then the checker's.
    pub(crate) fn add_thread(&self, thread: JoinHandle<()>) {
        lock(&self.threads).push(thread);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.queue.close();
        let current = std::thread::current().id();
        // The committer first: it may still schedule tasks. A callback may drop the last handle on either thread,
        // which then cannot join itself and ends soon after.
        for (at, thread) in std::mem::take(&mut *lock(&self.threads)).into_iter().enumerate() {
            if at == 1 {
                self.core.watches.cancel_all();
                self.core.timer.close();
            }
            if thread.thread().id() != current {
                let _ = thread.join();
            }
        }
    }
}

/// A share in an open engine with its connection; engines and transactions contain one.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) owner: Arc<Owner>,
    pub(crate) connection: Arc<Connection>,
}

impl Handle {
    pub(crate) fn new(owner: Arc<Owner>) -> Handle {
        Handle { owner, connection: Arc::default() }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }
}
