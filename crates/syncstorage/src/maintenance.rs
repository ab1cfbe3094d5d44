//! What a process does in the background.

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

/// What the lease of sweeping is called.
const LEASE: &str = "sweep";

/// Collections that wait to be folded by this process; those beyond are left to who holds the lease.
const FOLDS_MAX: usize = 10_000;

/// Collections that a process folds at once.
const FOLDS_AT_ONCE: usize = 4;

/// Before a collection that could not be folded is left, and between tries.
const FOLD_TRIES: u32 = 3;
const FOLD_PAUSE: Duration = Duration::from_millis(500);

/// How the work in the background is done.
#[derive(Debug, Clone)]
pub struct MaintenanceOptions {
    /// Between two looks at what is due, about.
    pub look_every: Duration,
    /// A process that was not heard of for so long has lost its lease.
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
    /// Notes that something lies over a collection.
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

/// The work in the background of one process: folding what it committed, and, where it has the lease, removing what has
/// expired or was abandoned, and folding what other processes left. Where it is dropped it ends where it stands, as with the
/// process: what is half done is noted, and another one goes on.
#[derive(Debug)]
pub struct Maintenance {
    inner: Arc<Inner>,
    sweeper: Arc<Sweeper>,
    claim: Arc<Claim>,
    options: MaintenanceOptions,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Maintenance {
    /// Of a store.
    ///
    /// # Errors
    /// [`Error::NoRandomness`].
    pub fn new(store: &Store, options: MaintenanceOptions) -> Result<Maintenance> {
        let inner = store.inner.clone();
        let claim = Arc::new(Claim::new(random_id()?, options.silence_max, &inner.clock));
        let sweeper = Arc::new(Sweeper { inner: inner.clone(), status: Status::new(&inner.clock) });
        Ok(Maintenance { inner, sweeper, claim, options, tasks: Mutex::default() })
    }

    /// Begins it, in tasks of its own.
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

    /// Ends it. What it was at may be left half done.
    pub async fn stop(&self) {
        let tasks: Vec<_> = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        for task in tasks {
            task.abort();
            // It was aborted, or has ended.
            let _ = task.await;
        }
    }

    /// Folds what this process committed, and does what is due by now, to its end, whoever has the lease. Returns how many
    /// pieces of work were due.
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

/// Folds what this process has committed, one collection after the other; several run, and who is busy takes the next one.
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

/// Looks from time to time at what is due, and does it if no other process is at it.
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
                tracing::debug!(%error, "what is due in Firefox Sync could not be looked at");
            }
        }
    }
}

/// Does what is due.
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
