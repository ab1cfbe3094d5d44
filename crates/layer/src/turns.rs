//! What a server does of one kind at once, for all who ask: each has its own, as several run in one process in the tests.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

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

/// The right to compile selectors of a database's indexes, or to ask them, until it is dropped.
pub(crate) struct Turn {
    _of_database: OwnedMutexGuard<()>,
    _of_all: OwnedSemaphorePermit,
}

impl Turn {
    /// Does work on a thread of its own. The turn is the work's, not the request's.
    ///
    /// # Errors
    /// [`Error::BrokenOff`]
    pub(crate) async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let done = tokio::task::spawn_blocking(move || {
            let _turn = self;
            work()
        });
        done.await.map_err(Error::of_task)
    }
}

impl Turns {
    /// A turn for selectors. `own` is the database's: it has one ticket in the line of all databases, which is first come, first
    /// served, so that databases take turns.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`]
    pub(crate) fn turn(&self, own: &Arc<Mutex<()>>) -> impl Future<Output = Result<Turn>> + Send + use<> {
        let (own, of_all) = (own.clone(), self.selecting.clone());
        async move {
            let of_database = own.lock_owned().await;
            let of_all = of_all.acquire_owned().await.map_err(|_| Error::ShuttingDown)?;
            Ok(Turn { _of_database: of_database, _of_all: of_all })
        }
    }

    /// The same, if nobody has to be waited for.
    pub(crate) fn free_turn(&self, own: &Arc<Mutex<()>>) -> Option<Turn> {
        let of_database = own.clone().try_lock_owned().ok()?;
        let of_all = self.selecting.clone().try_acquire_owned().ok()?;
        Some(Turn { _of_database: of_database, _of_all: of_all })
    }

    /// Compiles selectors of indexes, or asks them, in a [turn](Turns::turn), outside of transactions.
    ///
    /// # Errors
    /// [`Error::BrokenOff`], [`Error::ShuttingDown`].
    pub(crate) async fn select<T: Send + 'static>(
        &self,
        own: &Arc<Mutex<()>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.turn(own).await?.run(work).await
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
