//! What is to be done.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::status::Status;

/// What a job takes of what all jobs of a process share, such as a permit; it is given back when this is dropped.
pub type Room = Box<dyn Send>;

/// Asked before anything is recorded: whether the job is still this process's, or why that is not known. It is asked in a
/// transaction, which others see.
pub type Fence = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<bool, String>> + Send>> + Send + Sync>;

/// What one run of a job is given.
#[derive(Clone)]
pub struct Run {
    /// Becomes true when the run is to end, since the job is told to end or recalled: soon, and so that another run can go on where it was.
    pub stop: watch::Receiver<bool>,
    /// For a job under a lease.
    pub fence: Option<Fence>,
}

impl Run {
    /// Whether the job is to end.
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

/// What comes after a run that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the job is done.
    Done,
    /// Another run after such a time.
    Again(Duration),
}

/// Why a run ended otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It went wrong for now, and is tried again after a pause.
    #[error("{0}")]
    Failed(String),
    /// Another process has the job now, as the fence said.
    #[error("another process does it now")]
    Superseded,
}

/// Work in the background.
///
/// A run may be dropped wherever it waits: when the lease is lost, or when it does not end in time after it was told to.
/// What it has recorded must let the next run go on.
#[async_trait]
pub trait Job: Send + Sync + 'static {
    /// What kind of work it is, for the log.
    fn kind(&self) -> &'static str;

    /// What tells it from others of its kind. Under a lease, the lease's id.
    fn id(&self) -> &str;

    /// How it stands, and the way to end it.
    fn status(&self) -> &Status;

    /// Works until it is done, something goes wrong, or it is told to end. Panics count as failures.
    async fn run(&self, run: Run) -> Result<Next, Failure>;

    /// What other processes may read of it, at most [`LEASE_STATE_BYTES_MAX`](crate::LEASE_STATE_BYTES_MAX) bytes, and what
    /// the next owner of the lease is given by [`Job::restore`].
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over what the last owner of the lease told; called whenever the lease is taken, before the first run.
    fn restore(&self, _state: &[u8]) {}

    /// Room for the job in this process. `None`: not now; another process may have some.
    fn room(&self) -> Option<Room> {
        Some(Box::new(()))
    }

    /// Resolves when the job must yield its room to another job. The run is then told to stop and has 10 s to record what it has done, the
    /// lease is released, and the job requests room again. Called each time the lease is taken.
    async fn recalled(&self) {
        std::future::pending().await
    }

    /// How long a run may take to end when it is told to; then it is dropped.
    fn grace(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Logs a failure.
    fn log_failure(&self, reason: &str) {
        tracing::warn!(kind = self.kind(), job = self.id(), error = reason, "a job failed");
    }
}
