//! Limits on concurrent work of a server. Each layer has its own, since tests run several in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatbed_store::error::{Error, Result};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// The key of a turn of compression: a database, or a client by its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CodingKey {
    Database(String),
    Client(Option<u64>),
}

/// Turns of slices of compression.
pub type CodingTurns = flatbed_admission::Turns<CodingKey, 2>;

/// Creates turns for half of the processors. The number of requests bounds the line.
fn coding_turns() -> Arc<CodingTurns> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    CodingTurns::new(processors.div_ceil(2), usize::MAX)
}

/// The number of databases that run slow selectors in parallel.
const SELECTING_AT_ONCE: usize = 2;

pub struct Turns {
    pub heavy_writes: Semaphore,
    /// Permits for pages that walks over documents read ahead, beside the memory of pages that are being sent. A walk
    /// without a permit reads its pages when they are needed.
    pub walks_ahead: Arc<Semaphore>,
    /// The same for queries.
    pub queries_ahead: Arc<Semaphore>,
    /// Permits for reading old revisions for judges: their size is known only afterwards.
    pub judged_reads: Semaphore,
    /// Permits to compile or match slow selectors of indexes.
    pub selecting: Arc<Semaphore>,
    selecting_waiters: Arc<AtomicUsize>,
    /// Turns of databases and clients that compress or inflate attachments.
    pub coding: Arc<CodingTurns>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            heavy_writes: Semaphore::new(1),
            walks_ahead: Arc::new(Semaphore::new(16)),
            queries_ahead: Arc::new(Semaphore::new(16)),
            judged_reads: Semaphore::new(12),
            selecting: Arc::new(Semaphore::new(SELECTING_AT_ONCE)),
            selecting_waiters: Arc::default(),
            coding: coding_turns(),
        }
    }
}

/// The right to compile or match selectors of a database's indexes, until it is dropped.
pub struct Turn {
    _of_database: OwnedMutexGuard<()>,
    _of_all: OwnedSemaphorePermit,
    waiters: Arc<AtomicUsize>,
}

/// A database that waits for a permit, as long as this lives.
struct Waiter(Arc<AtomicUsize>);

impl Waiter {
    fn new(waiters: &Arc<AtomicUsize>) -> Waiter {
        waiters.fetch_add(1, Ordering::Relaxed);
        Waiter(waiters.clone())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turn {
    /// Runs work on a blocking thread. The turn ends with the work, even if the request ends first.
    ///
    /// # Errors
    /// [`Error::BrokenOff`]
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let done = tokio::task::spawn_blocking(move || {
            let _turn = self;
            work()
        });
        done.await.map_err(Error::of_task)
    }

    /// Runs one slice of work on a blocking thread, and returns the work with its result. The work gets a function that
    /// returns whether other databases wait for a turn; it returns `None` if it paused for them.
    ///
    /// # Errors
    /// [`Error::BrokenOff`]
    pub async fn run_slice<T, W>(self, mut work: W) -> Result<(Option<T>, W)>
    where
        T: Send + 'static,
        W: FnMut(&dyn Fn() -> bool) -> Option<T> + Send + 'static,
    {
        let waiters = self.waiters.clone();
        let slice = move || {
            let made = work(&|| waiters.load(Ordering::Relaxed) > 0);
            (made, work)
        };
        self.run(slice).await
    }
}

/// Waits for a turn for selectors. `own` is the database's: it has one ticket in the line of all databases, which is
/// first come, first served, so that databases take turns.
///
/// # Errors
/// [`Error::ShuttingDown`]
async fn turn(own: Arc<Mutex<()>>, of_all: Arc<Semaphore>, waiters: Arc<AtomicUsize>) -> Result<Turn> {
    let of_database = own.lock_owned().await;
    let waiter = Waiter::new(&waiters);
    let of_all = of_all.acquire_owned().await.map_err(|_| Error::ShuttingDown)?;
    drop(waiter);
    Ok(Turn { _of_database: of_database, _of_all: of_all, waiters })
}

impl Turns {
    pub fn selecting_waiters(&self) -> usize {
        self.selecting_waiters.load(Ordering::Relaxed)
    }

    /// Returns a turn for selectors if one is free.
    pub fn free_turn(&self, own: &Arc<Mutex<()>>) -> Option<Turn> {
        let of_database = own.clone().try_lock_owned().ok()?;
        let of_all = self.selecting.clone().try_acquire_owned().ok()?;
        Some(Turn { _of_database: of_database, _of_all: of_all, waiters: self.selecting_waiters.clone() })
    }

    /// Compiles or matches selectors of indexes in a [`turn`], outside of transactions.
    ///
    /// # Errors
    /// [`Error::BrokenOff`], [`Error::ShuttingDown`].
    pub async fn select<T: Send + 'static>(
        &self,
        own: &Arc<Mutex<()>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let turn = turn(own.clone(), self.selecting.clone(), self.selecting_waiters.clone());
        turn.await?.run(work).await
    }

    /// Runs work in slices, outside of transactions: it has a [`turn`] for each. See [`Turn::run_slice`].
    ///
    /// # Errors
    /// [`Error::BrokenOff`], [`Error::ShuttingDown`].
    pub fn select_in_slices<T, W>(
        &self,
        own: &Arc<Mutex<()>>,
        mut work: W,
    ) -> impl Future<Output = Result<T>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnMut(&dyn Fn() -> bool) -> Option<T> + Send + 'static,
    {
        let (own, of_all, waiters) = (own.clone(), self.selecting.clone(), self.selecting_waiters.clone());
        async move {
            loop {
                let turn = turn(own.clone(), of_all.clone(), waiters.clone()).await?;
                let (made, rest) = turn.run_slice(work).await?;
                match made {
                    Some(made) => return Ok(made),
                    None => work = rest,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::{soon, until};
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn work_in_slices_has_a_turn_for_each() {
        let (turns, own) = (Turns::default(), Arc::<Mutex<()>>::default());
        let mut left = 3;
        let work = move |has_waiters: &dyn Fn() -> bool| {
            left -= 1;
            (left == 0).then(has_waiters)
        };
        let all = turns.selecting.clone().acquire_many_owned(2).await.unwrap();
        let mut made = Box::pin(turns.select_in_slices(&own, work));
        assert!((&mut made).now_or_never().is_none());
        assert_eq!(turns.selecting_waiters(), 1);
        drop(all);
        assert!(!soon(made).await.unwrap());
        assert_eq!((turns.selecting_waiters(), turns.selecting.available_permits()), (0, 2));
    }

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
