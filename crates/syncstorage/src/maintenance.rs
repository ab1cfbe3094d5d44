//! The background work of a process.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Backoff, Claim, Failure, Job, Next, Run, Status, try_lead};
use flatbed_kit::random_id;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::names::{CollectionName, Uid};
use crate::store::{Inner, Store};

const LEASE: &str = "sweep";

/// The collections that wait to be folded by this process. Further ones are left to the lease's owner.
const FOLDS_MAX: usize = 10_000;

/// The collections that a process folds at once.
const FOLDS_AT_ONCE: usize = 4;

/// The tries to fold a collection before it is left, and the pause between them.
const FOLD_TRIES: u32 = 3;
const FOLD_PAUSE: Duration = Duration::from_millis(500);

/// The timing of the background work.
#[derive(Debug, Clone)]
pub struct MaintenanceOptions {
    /// The approximate interval of the checks for due work.
    pub look_every: Duration,
    /// The silence after which a process has lost its lease.
    pub silence_max: Duration,
}

impl Default for MaintenanceOptions {
    fn default() -> Self {
        MaintenanceOptions { look_every: Duration::from_secs(30), silence_max: Duration::from_secs(15) }
    }
}

/// Collections in which this process has committed batches.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    waiting: Mutex<BTreeSet<(Uid, CollectionName)>>,
    wake: Notify,
}

impl Folds {
    fn waiting(&self) -> std::sync::MutexGuard<'_, BTreeSet<(Uid, CollectionName)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<(Uid, CollectionName)> {
        self.waiting().pop_first()
    }
}

impl Inner {
    /// Notes that a collection has an overlay.
    pub(crate) fn note_fold(&self, uid: Uid, name: &CollectionName) {
        let mut waiting = self.folds.waiting();
        if waiting.len() < FOLDS_MAX {
            waiting.insert((uid, name.clone()));
        }
        self.metrics.sync_folds_waiting.set(waiting.len() as i64);
        drop(waiting);
        self.folds.wake.notify_one();
    }
}

/// The background work of one process: it folds the batches that it committed. If it has the lease, it also removes
/// expired records and abandoned batches, and folds batches that other processes left. When it is dropped, or the
/// process ends, it stops at once: the unfinished work stays noted, and another process resumes it.
#[derive(Debug)]
pub struct Maintenance {
    inner: Arc<Inner>,
    sweeper: Arc<Sweeper>,
    claim: Arc<Claim>,
    options: MaintenanceOptions,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Maintenance {
    /// Creates the background work of a store.
    ///
    /// # Errors
    /// [`Error::NoRandomness`].
    pub fn new(store: &Store, options: MaintenanceOptions) -> Result<Maintenance> {
        let inner = store.inner.clone();
        let claim = Arc::new(Claim::new(random_id()?, options.silence_max, &inner.clock));
        let sweeper = Arc::new(Sweeper { inner: inner.clone(), status: Status::new(&inner.clock) });
        Ok(Maintenance { inner, sweeper, claim, options, tasks: Mutex::default() })
    }

    /// Starts its tasks.
    pub fn start(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if !tasks.is_empty() {
            return;
        }
        for _ in 0..FOLDS_AT_ONCE {
            let inner = self.inner.clone();
            tasks.push(tokio::spawn(async move { fold(&inner).await }));
        }
        let (sweeper, claim, options) = (self.sweeper.clone(), self.claim.clone(), self.options.clone());
        tasks.push(tokio::spawn(async move { sweep(&sweeper, &claim, &options).await }));
    }

    /// Stops it. Its current work may stay unfinished.
    pub async fn stop(&self) {
        let tasks: Vec<_> = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        for task in tasks {
            task.abort();
            // The task was aborted, or has ended.
            let _ = task.await;
        }
    }

    /// Folds the batches that this process committed, and does all due work, even without the lease. Returns the number
    /// of tasks that were due.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage), [`Corrupt`](crate::Error::Corrupt).
    pub async fn round(&self) -> Result<u64> {
        while let Some((uid, name)) = self.inner.folds.take() {
            self.inner.fold_all(uid, &name).await?;
        }
        self.inner.do_due().await
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(JoinHandle::abort);
    }
}

/// Folds the collections that this process committed to, in sequence. Several of these run at once.
async fn fold(inner: &Inner) {
    loop {
        inner.folds.wake.notified().await;
        while let Some((uid, name)) = inner.folds.take() {
            inner.metrics.sync_folds_waiting.set(inner.folds.waiting().len() as i64);
            for _ in 0..FOLD_TRIES {
                match inner.fold_all(uid, &name).await {
                    Ok(()) => break,
                    Err(error) => {
                        inner.metrics.sync_fold_failures.add(1);
                        tracing::debug!(uid = uid.0, %name, %error, "a batch could not be folded");
                        inner.clock.sleep(FOLD_PAUSE).await;
                    }
                }
            }
        }
    }
}

/// Checks from time to time for due work, and does it if no other process has the lease.
async fn sweep(sweeper: &Arc<Sweeper>, claim: &Claim, options: &MaintenanceOptions) {
    let clock = &sweeper.inner.clock;
    let backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };
    loop {
        let lot = RandomState::new().hash_one(0).to_le_bytes()[0];
        clock.sleep(options.look_every.mul_f64(0.75 + f64::from(lot) / 512.0)).await;
        let look = async {
            if sweeper.inner.is_due().await? {
                let lease = sweeper.inner.look_at_lease(LEASE).await?;
                claim.note(lease, clock.now());
                return Ok::<_, Error>(true);
            }
            Ok(false)
        };
        match look.await {
            Ok(true) if claim.may_be_taken(clock.now()) => {
                try_lead(sweeper, claim, &sweeper.inner, &backoff).await;
            }
            Ok(_) => {}
            Err(error) => {
                sweeper.inner.metrics.sync_sweep_failures.add(1);
                tracing::debug!(%error, "the due work of Firefox Sync could not be read");
            }
        }
    }
}

/// The job that does the due work.
#[derive(Debug)]
struct Sweeper {
    inner: Arc<Inner>,
    status: Status,
}

#[async_trait]
impl Job for Sweeper {
    fn kind(&self) -> &'static str {
        "syncstorage"
    }

    fn id(&self) -> &str {
        LEASE
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        match self.inner.do_due().await {
            Ok(_) => Ok(Next::Done),
            Err(error) => {
                self.inner.metrics.sync_sweep_failures.add(1);
                Err(Failure::Failed(error.to_string()))
            }
        }
    }
}
