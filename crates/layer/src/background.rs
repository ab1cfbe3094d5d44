//! What a server does in the background, for whoever puts the program together to start: the layer itself begins nothing.
//!
//! What is to be done for a database, or for the root, is noted where it becomes due ([`crate::store::due`]). Each process looks
//! from time to time at what is due by now, one range that is empty where nothing is. The work lies in 256 slices, by the
//! database's name; of each slice that has something due one process does all, under a lease that is there as long as it works.
//! So what it costs does not grow with databases, and little with processes.
//!
//! What is half done when its time is over, or its process dies, stays due, and goes on where it was.

mod kinds;
mod list;
mod slice;
mod turns;

use async_recursion::async_recursion as boxed;
use async_trait::async_trait;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatbed_jobs::{Backoff, Claim, Failure, Job, Next, Owner, Run, Status, supervise};
use tokio::task::JoinHandle;

use crate::actor::ServerActor;
use crate::error::{Error, Result};
use crate::group::attend::{forget_gone, take_up};
use crate::layer::Layer;
use crate::store::due::Kind;
use crate::store::once::random_id;
use turns::Turns;

/// What this process has noted and another one's slice has is looked at again after this time, then after twice that.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Groups of views that are due in this time are looked at when a process begins: writes are noted so far ahead.
const TAKEN_UP_AHEAD: Duration = Duration::from_secs(2 * 60);

/// Of each database for so long at most, before the next one's are.
const TAKEN_UP_FOR: Duration = Duration::from_secs(1);

/// Between two looks at what is cached.
const CACHE_EVERY: Duration = Duration::from_secs(60);

/// How the work in the background is done.
#[derive(Debug, Clone)]
pub struct BackgroundOptions {
    /// Between two looks at what is due, about: each process draws its own, so that they do not look at the same time. What
    /// becomes due in the same process is seen at once.
    pub look_every: Duration,
    /// A process that was not heard of for so long has lost its leases.
    pub silence_max: Duration,
    /// Slices that a process works in at once.
    pub slices_max: usize,
    /// For how long a piece of work goes on before others of its slice get their turn.
    pub turn: Duration,
    /// What is due only after this time is done now.
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

/// The work in the background of one process. Where it is dropped the work ends where it stands, as with the process.
pub struct Background {
    cache: Arc<Cache>,
    worker: Arc<Worker>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Of a layer; what it writes is the server's own.
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

    /// Begins it, in tasks of its own; [`Background::stop`] ends it.
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
                tracing::debug!("groups of views that are due are left to who looks next");
            }
        }));
        tasks.push(tokio::spawn(async move {
            supervise(&*worker, &backoff, None).await;
            worker.status.end();
        }));
    }

    /// Ends what was begun: it may be left half done, and goes on in another process, or when this one is started again.
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

    /// Does what is due by now and no other process is at, to its end. Returns how many pieces of work that were.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage), [`Renewing`](crate::Error::Renewing).
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

/// Takes what is gone out of the process's memory.
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
        forget_gone(&self.layer).await.map_err(failed)?;
        Ok(Next::Again(Duration::ZERO))
    }

    fn log_failure(&self, reason: &str) {
        tracing::debug!(error = reason, "databases that are gone could not be forgotten");
    }
}

/// Looks at what is due, and does it.
struct Worker {
    layer: Layer,
    actor: ServerActor,
    owner: Owner,
    options: BackgroundOptions,
    status: Status,
    /// Of slices that have something due, or a lease.
    claims: Mutex<HashMap<u8, Arc<Claim>>>,
    /// Slices have something due for which this process has no time yet.
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
        // Work that a process left which is gone is taken over as soon as its lease may be.
        let (mut turns, mut pause) = (Turns::new(self), LOOK_AGAIN.min(self.options.look_every));
        loop {
            // What comes while it looks is seen by the next look.
            let mut woken = pin!(self.layer.inner.due.wake.notified());
            if self.is_ending() {
                while turns.ended().await.is_some() {}
                return Ok(Next::Done);
            }
            match turns.look().await {
                Ok(()) => {}
                Err(error) if turns.is_idle() => return Err(Failure::Failed(error.to_string())),
                Err(error) => tracing::debug!(%error, "what is due could not be looked at"),
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
    /// Looks once, and does what it finds. Returns how many pieces of work were done, or have come further.
    async fn round(&self) -> Result<u64> {
        let mut turns = Turns::new(self);
        turns.look().await?;
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

/// Goes on at once with groups of views at which a process was that is gone: its lease of their slices, which lasts for a
/// while yet, keeps nobody from that, since who works at a group says so in it.
async fn take_up_groups(layer: &Layer) -> Result<()> {
    let found = list::look(&layer.inner, TAKEN_UP_AHEAD, drawn()).await?;
    let due: BTreeSet<&str> = found
        .slices
        .values()
        .flatten()
        .filter(|entry| Kind::of(entry.key.kind) == Some(Kind::Views))
        .map(|entry| &*entry.key.name)
        .collect();
    for name in due {
        match take_up(&layer.reader(name), TAKEN_UP_FOR).await {
            Ok(()) | Err(Error::DatabaseNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A number drawn by lot: where to begin, and how long to wait.
fn drawn() -> u8 {
    RandomState::new().hash_one(0).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::Actor;
    use crate::fenced::database;
    use crate::lease::RootLeases;
    use crate::store::due::slice_of;
    use crate::store::waits::{self, Waits};
    use flatbed_jobs::Leases;

    #[tokio::test]
    async fn what_another_process_is_at_costs_a_look() {
        let (db, _storage) = database().await;
        let (layer, Actor::Server(actor)) = (Layer { inner: db.inner.clone() }, &db.actor) else {
            panic!("the tests' own")
        };
        let background = Background::new(&layer, actor.clone(), BackgroundOptions::default()).unwrap();
        background.round().await.unwrap();
        db.compact().await.unwrap();
        RootLeases(db.inner.clone()).take(&slice_of("db").to_string(), &[9; 16], None).await.unwrap();
        let (done, waited) = waits::count(background.round()).await;
        // The entry and the lease.
        let Waits { path, bytes_read, .. } = waited;
        let look = Waits { transactions: 1, range_reads: 2, keys_read: 2, bytes_read, path, ..Waits::default() };
        assert_eq!((done.unwrap(), waited, path.depth()), (0, look, 3));
    }
}
