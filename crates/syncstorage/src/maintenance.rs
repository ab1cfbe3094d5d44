//! The background work of a process.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Backoff, Claim, Failure, Job, Lease, Next, Owner, Run, Status, try_lead};
use flatbed_kit::random_id;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::names::{CollectionName, Uid};
use crate::store::{Inner, Store};

/// The slices of due work that a process works in at once.
const SLICES_AT_ONCE: usize = 4;

/// The time after which a slice is released although it has more due work, so that other slices get their turn.
const TURN: Duration = Duration::from_secs(60);

/// The collections that wait to be folded by this process. Further ones are left to the due work.
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
    /// The silence after which a process has lost its leases.
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

/// The background work of one process: it folds the batches that it committed. In the slices of due work whose leases
/// it takes, it also removes expired records and abandoned batches, and folds batches that other processes left. When
/// it is dropped, or the process ends, it stops at once: the unfinished work stays noted, and another process resumes
/// it.
#[derive(Debug)]
pub struct Maintenance {
    inner: Arc<Inner>,
    sweeper: Arc<Sweeper>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Maintenance {
    /// Creates the background work of a store.
    ///
    /// # Errors
    /// [`NoRandomness`](crate::Error::NoRandomness).
    pub fn new(store: &Store, options: MaintenanceOptions) -> Result<Maintenance> {
        let inner = store.inner.clone();
        let sweeper = Sweeper { inner: inner.clone(), owner: random_id()?, options, claims: Mutex::default() };
        Ok(Maintenance { inner, sweeper: Arc::new(sweeper), tasks: Mutex::default() })
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
        let sweeper = self.sweeper.clone();
        tasks.push(tokio::spawn(async move { sweep(&sweeper).await }));
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

    /// Folds the batches that this process committed, and does all due work, even without leases. Returns the number of
    /// tasks done.
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

#[cfg(test)]
impl Maintenance {
    /// Looks for due work once, as the tasks do. Returns whether more is left.
    pub(crate) async fn look_once(&self) -> Result<bool> {
        self.sweeper.look_and_work().await
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

/// Looks from time to time for due work, and does it in the slices in which no other process works.
async fn sweep(sweeper: &Sweeper) {
    let Sweeper { inner, options, .. } = sweeper;
    let mut is_left = false;
    loop {
        if !is_left {
            let lot = RandomState::new().hash_one(0).to_le_bytes()[0];
            inner.clock.sleep(options.look_every.mul_f64(0.75 + f64::from(lot) / 512.0)).await;
        }
        is_left = sweeper.look_and_work().await.unwrap_or_else(|error| {
            inner.metrics.sync_sweep_failures.add(1);
            tracing::debug!(%error, "the due work of Firefox Sync could not be read");
            false
        });
    }
}

/// The due work that a process does.
#[derive(Debug)]
pub(crate) struct Sweeper {
    inner: Arc<Inner>,
    owner: Owner,
    options: MaintenanceOptions,
    /// Those of slices with due work or a lease.
    claims: Mutex<HashMap<u64, Arc<Claim>>>,
}

impl Sweeper {
    /// Looks for due work once, and does it in the slices whose leases this process can take. Returns whether some of
    /// these have more, for which the time was too short.
    async fn look_and_work(&self) -> Result<bool> {
        let found = self.inner.look_at_due().await?;
        let mut waiting = self.claimed(found.due, found.leases);
        // Processes begin at different slices.
        let first = (RandomState::new().hash_one(0) as usize).checked_rem(waiting.len()).unwrap_or_default();
        waiting.rotate_left(first);
        let (mut running, mut is_left) = (FuturesUnordered::new(), false);
        loop {
            while running.len() < SLICES_AT_ONCE
                && let Some((slice, claim)) = waiting.pop()
            {
                running.push(self.lead(slice, claim));
            }
            match running.next().await {
                Some(has_more) => is_left |= has_more,
                None => return Ok(is_left),
            }
        }
    }

    /// Returns the slices with due work whose leases this process can take.
    fn claimed(&self, due: Vec<u64>, leases: Vec<(u64, Lease)>) -> Vec<(u64, Arc<Claim>)> {
        let leases: HashMap<_, _> = leases.into_iter().collect();
        let now = self.inner.clock.now();
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.retain(|slice, _| due.contains(slice) || leases.contains_key(slice));
        let mut claimed = Vec::new();
        for slice in due {
            let new = || Arc::new(Claim::new(self.owner, self.options.silence_max, &self.inner.clock));
            let claim = claims.entry(slice).or_insert_with(new);
            claim.note(leases.get(&slice).cloned(), now);
            if claim.may_be_taken(now) {
                claimed.push((slice, claim.clone()));
            }
        }
        claimed
    }

    /// Works in a slice if its lease can be taken. Returns whether the slice has more due work.
    fn lead(&self, slice: u64, claim: Arc<Claim>) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let (inner, status) = (self.inner.clone(), Status::new(&self.inner.clock));
            let job = Arc::new(Slice { inner, slice, id: slice.to_string(), status, is_left: AtomicBool::new(false) });
            let backoff = Backoff { first: self.options.look_every, max: self.options.look_every };
            try_lead(&job, &claim, &self.inner, &backoff).await;
            job.is_left.load(Ordering::Relaxed)
        })
    }
}

/// The due work of one slice, under the slice's lease.
#[derive(Debug)]
struct Slice {
    inner: Arc<Inner>,
    slice: u64,
    id: String,
    status: Status,
    is_left: AtomicBool,
}

#[async_trait]
impl Job for Slice {
    fn kind(&self) -> &'static str {
        "syncstorage"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        match self.inner.do_slice(self.slice, TURN).await {
            Ok(outcome) => self.is_left.store(outcome.is_left, Ordering::Relaxed),
            // The next look tries again. Until then the slice holds up no other.
            Err(error) => {
                self.inner.metrics.sync_sweep_failures.add(1);
                tracing::debug!(slice = self.slice, %error, "a slice of Firefox Sync's due work failed");
            }
        }
        Ok(Next::Done)
    }
}
