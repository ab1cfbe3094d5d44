//! The trait of a background job, and the outcome of its runs.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::status::Status;

/// A job's share of a resource of the process, such as a permit. Dropping it returns the share.
pub type ResourceShare = Box<dyn Send>;

/// Returns whether the job still belongs to this process, or why that is unknown. It must be checked before anything is
/// recorded. The check is a transaction.
pub type Fence = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<bool, String>> + Send>> + Send + Sync>;

/// The inputs of one run of a job.
#[derive(Clone)]
pub struct Run {
    /// Becomes true when the run must end soon, because the job is stopped or recalled. The run must record its
    /// position, so that another run resumes there.
    pub stop: watch::Receiver<bool>,
    /// The fence of a job under a lease.
    pub fence: Option<Fence>,
}

impl Run {
    /// Returns whether the run must end.
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

/// The outcome of a run without failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The job is done.
    Done,
    /// The job runs again after this time.
    Again(Duration),
}

/// The outcome of a run that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A failure that is retried after a pause.
    #[error("{0}")]
    Failed(String),
    /// Another process has the job, according to the fence.
    #[error("another process has taken the job over")]
    Superseded,
}

/// Background work.
///
/// A run may be dropped at any await: when the lease is lost, or when the run does not end in time after it was
/// stopped. The next run must be able to resume from what the dropped one recorded.
#[async_trait]
pub trait Job: Send + Sync + 'static {
    /// Returns the kind of work, for the log.
    fn kind(&self) -> &'static str;

    /// Returns the id among jobs of this kind. Under a lease it is the lease's id.
    fn id(&self) -> &str;

    /// Returns the job's status, through which it can also be stopped.
    fn status(&self) -> &Status;

    /// Works until the job is done, fails, or is stopped. A panic counts as a failure.
    async fn run(&self, run: Run) -> Result<Next, Failure>;

    /// Returns the state that other processes may read and that [`Job::restore`] gives to the next owner of the lease:
    /// at most [`LEASE_STATE_BYTES_MAX`](crate::LEASE_STATE_BYTES_MAX) bytes.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores the state that the last owner of the lease wrote. Called whenever the lease is taken, before the first
    /// run.
    fn restore(&self, _state: &[u8]) {}

    /// Returns the job's share of this process's resources. `None`: there is none now; another process may have some.
    fn room(&self) -> Option<ResourceShare> {
        Some(Box::new(()))
    }

    /// Resolves when the job must yield its room to another job. The run is then stopped and has 10 s to record its
    /// position, the lease is released, and the job requests room again. Called each time the lease is taken.
    async fn recalled(&self) {
        std::future::pending().await
    }

    /// Returns the time that a stopped run has to end. After it the run is dropped.
    fn grace(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Logs a failure.
    fn log_failure(&self, reason: &str) {
        tracing::warn!(kind = self.kind(), job = self.id(), error = reason, "a job failed");
    }
}
