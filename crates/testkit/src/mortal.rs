//! Processes that tests kill.

#![allow(clippy::expect_used, reason = "a test without its process has failed")]

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::PATIENCE;

/// A process that can be killed, as far as its storage and its clients can tell: all its work runs on a runtime of its
/// own. Dropping it kills it. Afterwards none of its work continues, is released or is answered.
///
/// `T` is the test's handle of the process, such as a server with its address.
#[derive(Debug)]
pub struct Mortal<T> {
    // Before the process, and so dropped first: no task of the process observes the drop of the rest.
    life: Life,
    process: T,
}

impl<T> Mortal<T> {
    /// Starts a process with a number of threads. `start` and the tasks that it spawns run on them.
    ///
    /// # Panics
    /// `start` panics.
    pub async fn start(threads: usize, start: impl Future<Output = T> + Send + 'static) -> Mortal<T>
    where
        T: Send + 'static,
    {
        let life = Life::begin(threads);
        let process = life.runtime().spawn(start).await.expect("it starts");
        Mortal { life, process }
    }

    /// Starts a process as [`Mortal::start`] does, from a thread without a runtime, on which `start` runs.
    pub fn start_blocking(threads: usize, start: impl Future<Output = T>) -> Mortal<T> {
        let life = Life::begin(threads);
        let process = life.runtime().block_on(start);
        Mortal { life, process }
    }

    /// Returns the process.
    pub fn process(&self) -> &T {
        &self.process
    }

    /// Runs a task in the process, until it dies.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.life.runtime().spawn(work)
    }

    /// Kills the process without waiting for its threads: each ends its current step of a task. Returns the handle.
    pub fn kill(self) -> T {
        let Mortal { life, process } = self;
        drop(life);
        process
    }

    /// Kills the process, and waits until its threads are gone. Returns the handle.
    pub async fn kill_and_wait(self) -> T {
        let Mortal { mut life, process } = self;
        let runtime = life.0.take().expect("it lives");
        let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE)).await;
        ended.expect("it ends");
        process
    }
}

/// The runtime of a process; `None` after it is killed.
#[derive(Debug)]
struct Life(Option<Runtime>);

impl Life {
    fn begin(threads: usize) -> Life {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        Life(Some(runtime.expect("threads")))
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it lives")
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::soon;

    /// Starts a task that never ends, and returns the event of its drop.
    async fn begin() -> oneshot::Receiver<()> {
        let (held, gone) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        gone
    }

    #[tokio::test]
    async fn nothing_of_a_process_goes_on_once_it_is_killed() {
        assert!(soon(Mortal::start(1, begin()).await.kill()).await.is_err());
        // The task does not wait here.
        let mut gone = Mortal::start(2, begin()).await.kill_and_wait().await;
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }

    #[tokio::test]
    async fn a_process_dies_where_it_is_dropped() {
        let mortal = Mortal::start(1, async { 7 }).await;
        let gone = mortal.spawn(begin()).await.unwrap();
        assert_eq!(*mortal.process(), 7);
        drop(mortal);
        assert!(soon(gone).await.is_err());
    }

    #[test]
    fn a_process_may_be_started_by_a_thread() {
        let mut gone = Mortal::start_blocking(1, begin()).kill();
        crate::until_blocking("its task is gone", || gone.try_recv() == Err(oneshot::error::TryRecvError::Closed));
    }
}
