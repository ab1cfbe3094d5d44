//! The background work of a server. The program starts it: the layer itself starts no tasks.
//!
//! Work for a database or the root is noted when it becomes due ([`flatbed_store::due`]). Each process regularly reads
//! the due work, a few ranges that are usually empty. Work is divided into 256 slices by the database's name. One process
//! does all work of a slice, under a lease that it holds while it works. The cost therefore does not grow with the
//! number of databases, and little with that of processes.
//!
//! Work that is unfinished when its time is over or its process dies stays due, and resumes.

mod kinds;
mod list;
mod seats;
mod slice;
mod turns;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use async_trait::async_trait;
use flatbed_databases::actor::ServerActor;
use flatbed_jobs::{Backoff, Claim, Failure, Job, Next, Owner, Run, Status, supervise};
use flatbed_store::due::DueKind;
use flatbed_store::error::{Error, Result};
use flatbed_store::once::random_id;
use flatbed_views::group::attend::{forget_gone, take_up};
use tokio::task::JoinHandle;
use turns::Turns;

use crate::handle::Layer;

/// The first interval between reads of the due work after this process has noted some, while other processes hold its
/// slices. It doubles up to `look_every`.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The time ahead of which a starting process takes up due groups of views: writes note them that far ahead.
const TAKEN_UP_AHEAD: Duration = Duration::from_secs(2 * 60);

/// The time limit per database before the next one's groups are taken up.
const TAKEN_UP_FOR: Duration = Duration::from_secs(1);

/// The interval at which the cache is swept.
const CACHE_EVERY: Duration = Duration::from_secs(60);

/// Options of the background work.
#[derive(Debug, Clone)]
pub struct BackgroundOptions {
    /// The approximate interval between reads of the due work: each process draws its own, so that they spread. Work
    /// that becomes due in the same process is seen at once.
    pub look_every: Duration,
    /// The time without renewal after which a process loses its leases.
    pub silence_max: Duration,
    /// The number of slices that a process works in concurrently.
    pub slices_max: usize,
    /// The time slice of a task before others of its slice get their turn.
    pub turn: Duration,
    /// The time ahead of which due work is done. Work of views stays listed until its time, since commits rely on it.
    pub ahead: Duration,
}

impl Default for BackgroundOptions {
    fn default() -> Self {
        BackgroundOptions {
            look_every: Duration::from_secs(30),
            silence_max: Duration::from_secs(15),
            slices_max: 4,
            turn: Duration::from_secs(60),
            ahead: Duration::ZERO,
        }
    }
}

/// The background work of one process. Dropping it aborts the work, which resumes later as after a crash.
pub struct Background {
    cache: Arc<Cache>,
    worker: Arc<Worker>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Prepares the background work of a layer. Its writes are the server's own.
    ///
    /// # Errors
    /// [`NoRandomness`](crate::Error::NoRandomness).
    pub fn new(layer: &Layer, actor: ServerActor, options: BackgroundOptions) -> Result<Background> {
        let cache = Arc::new(Cache { layer: layer.clone(), status: Status::new(layer.clock()) });
        let (owner, status) = (random_id()?, Status::new(layer.clock()));
        let layer = layer.clone();
        let (claims, are_some_waiting) = Default::default();
        let worker = Arc::new(Worker { layer, actor, owner, options, status, claims, are_some_waiting });
        Ok(Background { cache, worker, tasks: Mutex::default() })
    }

    /// Starts the work in tasks of its own; [`Background::stop`] ends it.
    pub fn start(&self) {
        let (cache, worker) = (self.cache.clone(), self.worker.clone());
        let pause = worker.options.look_every;
        let backoff = Backoff { first: pause, max: pause.saturating_mul(10) };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push(tokio::spawn(async move {
            supervise(&*cache, &backoff, None).await;
            cache.status.end();
        }));
        let (layer, look_every) = (worker.layer.clone(), worker.options.look_every);
        tasks.push(tokio::spawn(async move {
            if layer.clock().timeout(look_every, take_up_groups(&layer)).await.is_ok_and(|done| done.is_err()) {
                tracing::debug!("due groups of views are left to the next read of the due work");
            }
        }));
        tasks.push(tokio::spawn(async move {
            supervise(&*worker, &backoff, None).await;
            worker.status.end();
        }));
    }

    /// Stops the work. Unfinished work resumes in another process, or when this one starts it again.
    #[boxed]
    pub async fn stop(&self) {
        if self.tasks.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return;
        }
        let (cache, worker) = (&self.cache.status, &self.worker.status);
        cache.stop();
        worker.stop();
        tokio::join!(cache.ended(), worker.ended());
    }

    /// Does all work that is due and not leased to other processes, to its end. Returns the number of tasks done.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage).
    #[boxed]
    pub async fn round(&self) -> Result<u64> {
        let mut all = 0;
        loop {
            match self.worker.round().await? {
                0 => return Ok(all),
                done => all += done,
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(JoinHandle::abort);
    }
}

struct Cache {
    layer: Layer,
    status: Status,
}

#[async_trait]
impl Job for Cache {
    fn kind(&self) -> &'static str {
        "cache"
    }

    fn id(&self) -> &str {
        "databases"
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> std::result::Result<Next, Failure> {
        if self.layer.clock().timeout(CACHE_EVERY, self.status.stopped()).await.is_ok() {
            return Ok(Next::Done);
        }
        let failed = |error: Error| Failure::Failed(error.to_string());
        self.layer.forget_gone_databases().await.map_err(failed)?;
        forget_gone(&self.layer.inner).await.map_err(failed)?;
        Ok(Next::Again(Duration::ZERO))
    }

    fn log_failure(&self, reason: &str) {
        tracing::debug!(error = reason, "deleted databases could not be removed from the cache");
    }
}

struct Worker {
    layer: Layer,
    actor: ServerActor,
    owner: Owner,
    options: BackgroundOptions,
    status: Status,
    claims: Mutex<HashMap<u8, Arc<Claim>>>,
    /// True if slices with due work wait for this process.
    are_some_waiting: Arc<AtomicBool>,
}

#[async_trait]
impl Job for Worker {
    fn kind(&self) -> &'static str {
        "background"
    }

    fn id(&self) -> &str {
        self.actor.job()
    }

    fn status(&self) -> &Status {
        &self.status
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn run(&self, _: Run) -> std::result::Result<Next, Failure> {
        // Work of a dead process is taken over as soon as its lease has expired.
        let (mut turns, mut pause) = (Turns::new(self), LOOK_AGAIN.min(self.options.look_every));
        loop {
            // Work noted during the read is seen by the next read.
            let mut woken = pin!(self.layer.inner.due.wake.notified());
            if self.is_ending() {
                while turns.ended().await.is_some() {}
                return Ok(Next::Done);
            }
            match turns.read_due().await {
                Ok(()) => {}
                Err(error) if turns.is_idle() => return Err(Failure::Failed(error.to_string())),
                Err(error) => tracing::debug!(%error, "the list of due work could not be read"),
            }
            if !turns.is_left {
                pause = self.options.look_every;
            }
            let mut next = pin!(self.layer.clock().sleep(pause.mul_f64(0.75 + f64::from(drawn()) / 512.0)));
            let mut has_got_on = false;
            loop {
                turns.begin();
                if has_got_on && !turns.has_waiting() {
                    break;
                }
                tokio::select! {
                    Some(done) = turns.ended() => has_got_on |= done > 0 || turns.came_late,
                    () = &mut woken => {
                        pause = LOOK_AGAIN.min(self.options.look_every);
                        break;
                    }
                    () = &mut next => {
                        pause = (pause * 2).min(self.options.look_every);
                        break;
                    }
                    () = self.status.stopped() => break,
                }
            }
        }
    }
}

impl Worker {
    /// Reads the due work once, and does it. Returns the number of tasks that were done or have made progress.
    async fn round(&self) -> Result<u64> {
        let mut turns = Turns::new(self);
        turns.read_due().await?;
        let mut all = 0;
        loop {
            turns.begin();
            match turns.ended().await {
                Some(done) => all += done,
                None => return Ok(all),
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.status.is_stopped() || self.layer.inner.is_closing()
    }
}

/// Takes up the groups of views of a dead process at once. Its lease of their slices lasts for a while, but does not
/// prevent that, since the group's own progress names its process.
async fn take_up_groups(layer: &Layer) -> Result<()> {
    let found = list::read_due(&layer.inner, TAKEN_UP_AHEAD, drawn()).await?;
    let due: BTreeSet<&str> = found
        .slices
        .values()
        .flatten()
        .filter(|entry| DueKind::of(entry.key.kind) == Some(DueKind::Views))
        .map(|entry| &*entry.key.name)
        .collect();
    for name in due {
        match take_up(&layer.reader(name).handle, TAKEN_UP_FOR).await {
            Ok(()) | Err(Error::DatabaseNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn drawn() -> u8 {
    RandomState::new().hash_one(0).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use flatbed_jobs::Leases;
    use flatbed_store::due::slice_of;
    use flatbed_store::waits::{self, Waits};

    use super::*;
    use crate::lease::RootLeases;
    use crate::tests::fenced::database;
    use flatbed_databases::actor::Actor;

    #[tokio::test]
    async fn what_another_process_is_at_costs_a_look() {
        let (db, _storage) = database().await;
        let (layer, Actor::Server(actor)) = (Layer { inner: db.inner.clone() }, db.actor()) else {
            panic!("the tests' own")
        };
        let background = Background::new(&layer, actor.clone(), BackgroundOptions::default()).unwrap();
        background.round().await.unwrap();
        db.compact().await.unwrap();
        RootLeases(db.inner.clone()).take(&slice_of("db").to_string(), &[9; 16], None).await.unwrap();
        let (done, waited) = waits::count(background.round()).await;
        let Waits { path, bytes_read, .. } = waited;
        let look = Waits { transactions: 1, range_reads: 18, keys_read: 2, bytes_read, path, ..Waits::default() };
        assert_eq!((done.unwrap(), waited, path.depth()), (0, look, 3));
    }
}
