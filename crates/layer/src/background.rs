//! What a server does in the background, for whoever puts the program together to start: the layer itself begins nothing.
//!
//! What is to be done for a whole root one process does for all, under a lease of the root: sweeping, and looking which
//! databases are to be compacted. What a process holds in memory it looks after itself.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatbed_jobs::{Backoff, Claim, Failure, Job, Next, Owner, Run, Status, lead, supervise};
use tokio::time::Instant;

use crate::actor::ServerActor;
use crate::error::Result;
use crate::layer::Layer;
use crate::lease::RootLeases;
use crate::store::once::random_id;
use crate::sweeper;
use crate::write::compact;

/// Between two looks, at what is cached and at what is to be compacted.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);

/// A process that was not heard of for so long has lost its lease.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// After failures.
const BACKOFF: Backoff = Backoff { first: LOOK_EVERY, max: SWEEP_EVERY };

/// The work in the background of one process.
pub struct Background {
    cache: Arc<Cache>,
    upkeep: Arc<Upkeep>,
    owner: Owner,
}

impl Background {
    /// Of a layer; what it writes is the server's own.
    ///
    /// # Errors
    /// [`NoRandomness`](crate::Error::NoRandomness).
    pub fn new(layer: &Layer, actor: ServerActor) -> Result<Arc<Background>> {
        let cache = Arc::new(Cache { layer: layer.clone(), status: Status::new() });
        let upkeep = Upkeep { layer: layer.clone(), actor, status: Status::new(), swept: Mutex::default() };
        Ok(Arc::new(Background { cache, upkeep: Arc::new(upkeep), owner: random_id()? }))
    }

    /// Begins it, in a task of its own; [`Background::stop`] ends it.
    pub fn start(self: &Arc<Self>) {
        let background = Arc::clone(self);
        tokio::spawn(async move {
            let Background { cache, upkeep, owner } = &*background;
            let cache = async {
                supervise(&**cache, &BACKOFF, None).await;
                cache.status.end();
            };
            tokio::join!(cache, shared(upkeep, *owner));
        });
    }

    /// Ends what was begun: it may be left half done, and goes on in another process, or when this one is started again.
    pub async fn stop(&self) {
        let (cache, upkeep) = (&self.cache.status, &self.upkeep.status);
        cache.stop();
        upkeep.stop();
        tokio::join!(cache.ended(), upkeep.ended());
    }
}

/// Does the work whenever it is this process's turn, and looks from time to time whether it is.
async fn shared(upkeep: &Arc<Upkeep>, owner: Owner) {
    // Short-lived processes have nothing to do with it.
    if tokio::time::timeout(LOOK_EVERY, upkeep.status.stopped()).await.is_ok() {
        upkeep.status.end();
        return;
    }
    let leases = Arc::new(RootLeases(upkeep.layer.inner.clone()));
    let claim = Claim::new(owner, SILENCE_MAX);
    let look = async {
        loop {
            tokio::time::sleep(SILENCE_MAX / 4).await;
            if claim.is_ours() {
                continue;
            }
            match leases.look(upkeep.id()).await {
                Ok(found) => claim.note(found, Instant::now()),
                Err(error) => tracing::debug!(%error, "the lease of the work in the background could not be read"),
            }
        }
    };
    tokio::select! {
        () = lead(upkeep, &claim, &leases, &BACKOFF) => {}
        () = look => {}
    }
}

/// Takes what is gone out of the process's memory.
struct Cache {
    layer: Layer,
    status: Status,
}

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

    async fn run(&self, run: Run) -> std::result::Result<Next, Failure> {
        let work = async {
            tokio::time::sleep(LOOK_EVERY).await;
            self.layer.forget_gone_databases().await.map_err(|error| Failure::Failed(error.to_string()))?;
            Ok(Next::Again(Duration::ZERO))
        };
        unless_stopped(run, work).await
    }

    fn log_failure(&self, reason: &str) {
        tracing::debug!(error = reason, "databases that are gone could not be forgotten");
    }
}

/// What is done once for all processes.
struct Upkeep {
    layer: Layer,
    actor: ServerActor,
    status: Status,
    /// When this process last swept.
    swept: Mutex<Option<Instant>>,
}

impl Job for Upkeep {
    fn kind(&self) -> &'static str {
        "upkeep"
    }

    fn id(&self) -> &str {
        "upkeep"
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, run: Run) -> std::result::Result<Next, Failure> {
        self.status.begin();
        unless_stopped(run, self.work()).await
    }
}

impl Upkeep {
    async fn work(&self) -> std::result::Result<Next, Failure> {
        let swept = *self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
            *self.swept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            // What goes wrong is logged, and keeps no database from being compacted.
            sweeper::sweep(&self.layer, &self.actor).await;
        }
        compact::look(&self.layer.inner).await.map_err(|error| Failure::Failed(error.to_string()))?;
        self.status.succeed();
        Ok(Next::Again(LOOK_EVERY))
    }
}

/// Works until it is told to end. All of this work may be left half done, and feeds do not hear of the server's end before it.
async fn unless_stopped(
    mut run: Run,
    work: impl Future<Output = std::result::Result<Next, Failure>>,
) -> std::result::Result<Next, Failure> {
    tokio::select! {
        biased;
        _ = run.stop.wait_for(|stop| *stop) => Ok(Next::Done),
        done = work => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fenced::layer;
    use crate::store::keys::Counter;
    use crate::store::transaction::Transaction;

    #[tokio::test]
    async fn a_sweep_that_goes_wrong_keeps_nothing_from_being_compacted() {
        let (layer, authority, _directory) = layer().await;
        let inner = &layer.inner;
        let instance = crate::write::batch::resolved(inner, "db").await.unwrap();
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        // An event that cannot be read, and a database that says it is full of superseded bodies.
        let events = inner.keys.database_events();
        trx.set(&[&events.begin[..], b"x"].concat(), b"\xff");
        for counter in [Counter::SupersededBytes, Counter::StoredBytes] {
            trx.set(&instance.keys.bucket(0, 0).counter(counter), &(1_i64 << 30).to_le_bytes());
        }
        trx.commit().await.unwrap();
        let actor = authority.for_job("test");
        assert!(layer.sweep_database_updates(&actor, Duration::ZERO).await.is_err(), "the sweep goes wrong");
        let upkeep = Upkeep { layer: layer.clone(), actor, status: Status::new(), swept: Mutex::default() };
        assert_eq!(upkeep.work().await, Ok(Next::Again(LOOK_EVERY)));
        while inner.metrics.compactions.get() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn who_stops_it_does_not_wait_for_its_work() {
        let status = Status::new();
        let run = || Run { stop: status.stopping(), fence: None };
        let done = async || Ok(Next::Again(LOOK_EVERY));
        assert_eq!(unless_stopped(run(), done()).await, Ok(Next::Again(LOOK_EVERY)));
        let never = tokio::spawn(unless_stopped(run(), std::future::pending()));
        status.stop();
        assert_eq!(never.await.unwrap(), Ok(Next::Done));
    }
}
