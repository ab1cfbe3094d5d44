//! One document of `_replicator` in one server: it waits for the lease, and runs the replication while it has it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Database, Error as LayerError, Lease, Sighting, TakenLease, valid_until};
use flatbed_replicate::{Error, Fence};
use tokio::sync::{Notify, watch};

use crate::handlers::replicate::NODE;
use crate::replicator::Replicator;
use crate::replicator::description::Description;
use crate::replicator::job::Job;

/// After an error of the storage.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// A document that asks for a replication, and its job.
pub(crate) struct Followed {
    pub description: Description,
    pub job: Arc<Job>,
    /// Whether this server has the lease.
    pub is_ours: watch::Sender<bool>,
    /// The lease as it was last seen with another server.
    seen: Mutex<Option<Sighting>>,
    /// Told when the lease may be taken.
    turn: Notify,
}

/// Why the work on a document ends.
enum End {
    /// It is done, gone, or the server stops.
    Done,
    /// Another server has it now.
    Lost,
}

impl Followed {
    pub(crate) fn new(description: Description, job: Arc<Job>) -> Arc<Followed> {
        let (seen, turn) = Default::default();
        Arc::new(Followed { description, job, is_ours: watch::Sender::new(false), seen, turn })
    }

    /// Notes how the lease stands, as a read that ended at `now` found it. Whoever waits for it wakes up if it may be
    /// taken: nobody has it, or nothing was heard of its owner for too long.
    pub(crate) fn note_lease(&self, replicator: &Replicator, lease: Option<Lease>, now: Instant) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match (lease.filter(|lease| lease.is_of_another(&replicator.owner)), &mut *seen) {
            (None, seen) => *seen = None,
            (Some(lease), Some(seen)) => seen.update(lease, now),
            (Some(lease), seen) => *seen = Some(Sighting::new(lease, now)),
        }
        if seen.as_ref().is_none_or(|seen| seen.stale(now, replicator.options.lease).is_some()) {
            self.turn.notify_one();
        }
    }

    /// Runs the replication, after the one that an older revision of the document asked for, whenever it is this server's
    /// turn, until it has ended or the job is stopped.
    pub(crate) async fn run(&self, replicator: &Replicator, before: Option<Arc<Followed>>) {
        // It gives its lease up when it ends: ours too, as both are this process's.
        if let Some(before) = before {
            let _ = before.job.ended().await;
        }
        let database = replicator.database();
        let mut stopped = self.job.stopped();
        while !*stopped.borrow() {
            if let Some(End::Done) = self.turn(replicator, &database).await {
                break;
            }
            tokio::select! {
                // The supervisor reads the leases of all jobs from time to time.
                () = self.turn.notified() => {}
                () = async { drop(stopped.wait_for(|stop| *stop).await) } => {}
            }
        }
        self.job.end();
    }

    /// Takes the lease, if it is to be had and this server may run one more job, and works while it is ours.
    async fn turn(&self, replicator: &Replicator, database: &Database) -> Option<End> {
        let _permit = replicator.running.try_acquire().ok()?;
        let begun = Instant::now();
        let stale = {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.as_ref().and_then(|seen| seen.stale(begun, replicator.options.lease)).cloned()
        };
        match database.take_lease(&self.description.id, &replicator.owner, stale.as_ref()).await {
            Ok(TakenLease::Ours(before)) => {
                self.job.restore(error_count(&before.state, &self.description.rev.to_string()));
                self.is_ours.send_replace(true);
                let end = self.hold(replicator, database, begun).await;
                self.is_ours.send_replace(false);
                Some(end)
            }
            Ok(TakenLease::Others(lease)) => {
                self.note_lease(replicator, Some(lease), Instant::now());
                None
            }
            Err(LayerError::DatabaseNotFound) => Some(End::Done),
            Err(error) => {
                tracing::debug!(%error, "a replication's lease could not be asked for");
                None
            }
        }
    }

    /// Works while the lease is ours.
    async fn hold(&self, replicator: &Replicator, database: &Database, begun: Instant) -> End {
        let end = tokio::select! {
            end = self.work(replicator, database) => end,
            // The run is dropped where it stands: nothing of it is recorded any more.
            () = self.renew(replicator, database, begun) => End::Lost,
        };
        self.job.dropped();
        if let End::Done = end {
            let state = self.state();
            // One that is gone already has nothing to be released.
            let _ = database.hold_lease(&self.description.id, &replicator.owner, &state, true).await;
        }
        end
    }

    /// Returns once the lease is lost, or might be.
    async fn renew(&self, replicator: &Replicator, database: &Database, begun: Instant) {
        let lease = replicator.options.lease;
        let mut valid = valid_until(begun, lease);
        loop {
            tokio::time::sleep((lease / 5).min(valid.saturating_duration_since(Instant::now()))).await;
            let begun = Instant::now();
            let state = self.state();
            let hold = database.hold_lease(&self.description.id, &replicator.owner, &state, false);
            let left = valid.saturating_duration_since(begun);
            match tokio::time::timeout(left, hold).await {
                Ok(Ok(true)) => valid = valid_until(begun, lease),
                Ok(Ok(false) | Err(LayerError::DatabaseNotFound)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a replication's lease could not be renewed");
                    tokio::time::sleep(lease / 20).await;
                }
            }
        }
    }

    async fn work(&self, replicator: &Replicator, database: &Database) -> End {
        let fence = self.fence(replicator, database);
        loop {
            let done = self.job.run_once(replicator, Some(fence.clone())).await;
            if *self.job.stopped().borrow() {
                return End::Done;
            }
            match &done {
                Err(Error::Superseded) => return End::Lost,
                Err(error) if !error.is_permanent() => {
                    if !self.job.pause(replicator).await {
                        return End::Done;
                    }
                }
                _ => {
                    if !fence().await {
                        return End::Lost;
                    }
                    let (id, started_at) = (Some(self.job.id.as_str()), self.job.started_at);
                    let noted = self.description.note(database, id, started_at, &self.job.progress(), &done).await;
                    match noted {
                        Ok(()) => return End::Done,
                        Err(LayerError::DatabaseNotFound) => return End::Done,
                        // The replication is run again, which finds nothing to do.
                        Err(error) => {
                            tracing::warn!(%error, "the end of a replication could not be noted");
                            tokio::time::sleep(ERROR_PAUSE).await;
                        }
                    }
                }
            }
        }
    }

    /// Says whether the lease is still ours, in a transaction.
    fn fence(&self, replicator: &Replicator, database: &Database) -> Fence {
        let (owner, database, id) = (replicator.owner, database.clone(), self.description.id.clone());
        let (job, rev) = (self.job.clone(), self.description.rev.to_string());
        Arc::new(move || {
            let (database, id, state) = (database.clone(), id.clone(), state_of(&job, &rev));
            Box::pin(async move { matches!(database.hold_lease(&id, &owner, &state, false).await, Ok(true)) })
        })
    }

    fn state(&self) -> Vec<u8> {
        state_of(&self.job, &self.description.rev.to_string())
    }
}

/// What the other servers are told: the revision that is worked off, the failures, and the rows of `_scheduler`.
fn state_of(job: &Job, rev: &str) -> Vec<u8> {
    let error_count = job.standing().error_count;
    let mut out = format!("{{\"rev\":\"{rev}\",\"error_count\":{error_count},\"job\":").into_bytes();
    job.write(NODE, &mut out);
    out.extend_from_slice(b",\"doc\":");
    job.write_doc(NODE, &mut out);
    out.push(b'}');
    out
}

/// The failures that the last owner counted, of the same revision.
fn error_count(state: &[u8], rev: &str) -> u32 {
    let Ok(value) = json::parse(state, &Limits::default()) else { return 0 };
    if value.get("rev").and_then(Value::as_str) != Some(rev) {
        return 0;
    }
    match value.get("error_count") {
        Some(Value::Number(count)) => count.parse().unwrap_or(0),
        _ => 0,
    }
}
