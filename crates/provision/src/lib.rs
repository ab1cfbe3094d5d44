//! The databases that a server creates by itself: `_users` and `_replicator` once there is an administrator, and one
//! per user as `[couch_peruser]` says.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod metrics;
mod per_user;
mod security;
mod system;
mod user_database;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use flatbed_jobs::{Owner, Status};
use flatbed_layer::{Database, Layer, ServerActor};
use flatbed_service::Configuration;
use tokio::task::JoinHandle;

/// The pause after a failure of the storage.
const PAUSE: Duration = Duration::from_secs(1);

/// Options of the provision.
#[derive(Debug, Clone)]
pub struct ProvisionOptions {
    /// The time without renewal after which a process loses the lease on the databases of users.
    pub lease: Duration,
    /// True if the system's databases are created once there is an administrator.
    pub has_system_databases: bool,
}

impl Default for ProvisionOptions {
    fn default() -> Self {
        ProvisionOptions { lease: Duration::from_secs(15), has_system_databases: true }
    }
}

/// Creates databases in the background of one process.
pub struct Provision {
    layer: Layer,
    actor: ServerActor,
    configuration: Configuration,
    options: ProvisionOptions,
    /// The owner of this process's lease.
    owner: Owner,
    /// True once the system's databases existed, so that one that is deleted later stays deleted.
    had_system_databases: AtomicBool,
    /// The state of all tasks.
    status: Status,
    metrics: metrics::Metrics,
    lag: metrics::Lag,
}

impl Provision {
    /// Prepares the work. Its writes are the server's own.
    pub fn new(
        layer: Layer,
        actor: ServerActor,
        configuration: Configuration,
        options: ProvisionOptions,
    ) -> Arc<Provision> {
        let mut owner = [0; 16];
        if getrandom::fill(&mut owner).is_err() {
            // Without randomness the rest of the server does not work either, but leases must differ all the same.
            owner = u128::from(std::process::id()).to_le_bytes();
        }
        let (had_system_databases, status) = (AtomicBool::new(false), Status::new(layer.clock()));
        let (metrics, lag) = Default::default();
        Arc::new(Provision { layer, actor, configuration, options, owner, had_system_databases, status, metrics, lag })
    }

    /// Creates the system's databases if there is an administrator, so that the first request finds them. A failure is
    /// logged: the task of [`Provision::start`] tries again.
    pub async fn before_serving(&self) {
        if self.options.has_system_databases && system::are_wanted(&self.configuration.now()) {
            let created = self.layer.clock().timeout(PAUSE * 5, system::create(self)).await;
            if created.is_err() {
                tracing::warn!("the system's databases are not created yet");
            }
        }
    }

    /// Starts the work. Pass the task to [`Provision::stop`].
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        let provision = self.clone();
        tokio::spawn(async move {
            tokio::join!(system::run(&provision), per_user::run(&provision));
        })
    }

    /// Stops the work. Another process, or the next start of this one, resumes it.
    pub async fn stop(&self, task: JoinHandle<()>) {
        self.status.stop();
        // It fails only if the task panicked, which is logged.
        let _ = task.await;
    }

    fn database(&self, name: &str) -> Database {
        self.layer.database(name, self.actor.clone())
    }
}
