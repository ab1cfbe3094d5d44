//! What a server does of one kind at once, for all who ask: each has its own, as several run in one process in the tests.

use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use crate::error::{Error, Result};

/// How many databases run slow selectors in parallel.
const SELECTING_AT_ONCE: usize = 2;

/// Permits of one server.
pub(crate) struct Turns {
    /// The turn of writes that take much.
    pub heavy_writes: Semaphore,
    /// Pages that all walks over documents have read ahead and not taken yet: beside what is held for those who are sent an
    /// answer. A walk that finds no room reads its pages when they are asked for.
    pub walks_ahead: Arc<Semaphore>,
    /// The same of queries.
    pub queries_ahead: Arc<Semaphore>,
    /// Old revisions that are read for who judges, in all: their size is known when they are there.
    pub judged_reads: Semaphore,
    /// Permits to compile or match slow selectors of indexes.
    pub selecting: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            heavy_writes: Semaphore::new(1),
            walks_ahead: Arc::new(Semaphore::new(16)),
            queries_ahead: Arc::new(Semaphore::new(16)),
            judged_reads: Semaphore::new(12),
            selecting: Arc::new(Semaphore::new(SELECTING_AT_ONCE)),
        }
    }
}

impl Turns {
    /// Compiles or matches selectors of indexes on a blocking thread. `own` is the lock of the database: only its holder queues for the
    /// shared permits, which are first come, first served, so databases take turns. The work holds the permit until it ends, even if
    /// the request is dropped.
    ///
    /// # Errors
    /// [`Error::BrokenOff`], [`Error::ShuttingDown`].
    pub(crate) async fn select<T: Send + 'static>(
        &self,
        own: &Arc<Mutex<()>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let own = own.clone().lock_owned().await;
        let turn = self.selecting.clone().acquire_owned().await.map_err(|_| Error::ShuttingDown)?;
        let done = tokio::task::spawn_blocking(move || {
            let _turns = (own, turn);
            work()
        });
        done.await.map_err(Error::of_task)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flatbed_testkit::{soon, until};

    use super::*;

    #[tokio::test]
    async fn a_database_leaves_turns_to_others() {
        let (turns, gate) = (Arc::new(Turns::default()), Arc::new(Mutex::new(())));
        let begun = Arc::new(AtomicUsize::new(0));
        let held = gate.lock().await;
        let (noisy, quiet) = (Arc::<Mutex<()>>::default(), Arc::<Mutex<()>>::default());
        let works: Vec<_> = (0..5)
            .map(|_| {
                let (turns, noisy, begun, gate) = (turns.clone(), noisy.clone(), begun.clone(), gate.clone());
                let work = move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    drop(gate.blocking_lock());
                };
                tokio::spawn(async move { turns.select(&noisy, work).await })
            })
            .collect();
        until("one is at work", async || begun.load(Ordering::SeqCst) > 0).await;
        assert_eq!(soon(turns.select(&quiet, || 7)).await.unwrap(), 7);
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        drop(held);
        for work in works {
            soon(work).await.unwrap().unwrap();
        }
        assert_eq!(begun.load(Ordering::SeqCst), 5);
    }
}
