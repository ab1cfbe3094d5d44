//! A gate in front of work that a server does in turns, so that a test decides when each turn begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatbed_testkit::until;
use tokio::sync::Semaphore;

/// Dropped, it opens, so that a failing test ends.
pub struct Gate {
    passes: Arc<Semaphore>,
    came: Arc<AtomicUsize>,
}

impl Gate {
    pub fn new() -> Gate {
        Gate { passes: Arc::new(Semaphore::new(0)), came: Arc::default() }
    }

    /// The hook that a server calls before each turn.
    pub fn before_each(&self) -> Arc<dyn Fn() + Send + Sync> {
        let (passes, came) = (Arc::clone(&self.passes), Arc::clone(&self.came));
        let runtime = tokio::runtime::Handle::current();
        Arc::new(move || {
            came.fetch_add(1, Ordering::SeqCst);
            if let Ok(pass) = runtime.block_on(passes.acquire()) {
                pass.forget();
            }
        })
    }

    /// Lets `count` turns begin, the first to come first.
    pub fn pass(&self, count: usize) {
        self.passes.add_permits(count);
    }

    /// The number of turns that came to the gate.
    pub fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    pub async fn until_came(&self, count: usize) {
        until("turns come", async || self.came() >= count).await;
    }

    pub fn open(&self) {
        self.passes.close();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}
