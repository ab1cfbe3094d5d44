//! A gate before work that a server does in turns. The test decides when each turn begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatbed_testkit::until;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::{Running, soon};

/// Opens when dropped, so that a failing test ends.
pub struct Gate {
    passes: Arc<Semaphore>,
    came: Arc<AtomicUsize>,
}

impl Gate {
    pub fn new() -> Gate {
        Gate { passes: Arc::new(Semaphore::new(0)), came: Arc::default() }
    }

    /// Returns the hook that a server calls before each turn.
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

    /// Lets `count` turns begin, in order of arrival.
    pub fn pass(&self, count: usize) {
        self.passes.add_permits(count);
    }

    pub fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    pub async fn until_came(&self, count: usize) {
        until("turns come", async || self.came() >= count).await;
    }

    /// Others are answered while a request's selector is matched. The server has one thread, and no other request with a selector.
    pub async fn others_are_answered(&self, server: &Running, asked: JoinHandle<u16>) {
        let mut passed = 0;
        loop {
            self.until_came(passed + 1).await;
            if server.figure("flatbed_selector_turns_total{work=\"match\"}").await > 0 {
                break;
            }
            // It is compiled first.
            self.pass(1);
            passed += 1;
        }
        server.ok("GET", "/db/_all_docs?limit=1", Value::Null).await;
        assert!(!asked.is_finished());
        self.open();
        assert_eq!(soon(asked).await.unwrap(), 200);
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
