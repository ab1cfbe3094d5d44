//! One document of `_replicator` in one server: it waits for the lease, and runs the replication while it has it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Database, Error as LayerError, Lease, TakenLease};
use flatbed_replicate::{Error, Fence};
use tokio::sync::watch;

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
}

/// Why the work on a document ends.
enum End {
    /// It is done, gone, or the server stops.
    Done,
    /// Another server has it now.
    Lost,
}

impl Followed {
    /// Runs the replication, after the one that an older revision of the document asked for, whenever it is this server's turn, until it has ended or the job is stopped.
    pub(crate) async fn run(&self, replicator: &Replicator, before: Option<Arc<Followed>>) {
        // It gives its lease up when it ends: ours too, as both are this process's.
        if let Some(before) = before {
            let _ = before.job.ended().await;
        }
        let database = replicator.database();
        let id = self.description.id.as_str();
        // Another's record, and since when it has been so.
        let mut seen: Option<(Lease, Instant)> = None;
        let mut stopped = self.job.stopped();
        while !*stopped.borrow() {
            let Ok(_permit) = replicator.running.try_acquire() else {
                let stop = async { drop(stopped.wait_for(|stop| *stop).await) };
                let _ = tokio::time::timeout(replicator.options.lease / 4, stop).await;
                continue;
            };
            let begun = Instant::now();
            let stale = seen.as_ref().filter(|(_, since)| since.elapsed() >= replicator.options.lease);
            let taken = database.take_lease(id, &replicator.owner, stale.map(|(lease, _)| lease)).await;
            let pause = match taken {
                Ok(TakenLease::Ours(before)) => {
                    seen = None;
                    self.job.restore(error_count(&before.state, &self.description.rev.to_string()));
                    self.is_ours.send_replace(true);
                    let end = self.hold(replicator, &database, begun).await;
                    self.is_ours.send_replace(false);
                    if let End::Done = end {
                        break;
                    }
                    replicator.options.lease / 4
                }
                Ok(TakenLease::Others(lease)) => {
                    if seen.as_ref().is_none_or(|(before, _)| *before != lease) {
                        seen = Some((lease, Instant::now()));
                    }
                    replicator.options.lease / 4
                }
                Err(LayerError::DatabaseNotFound) => break,
                Err(error) => {
                    tracing::debug!(%error, "a replication's lease could not be asked for");
                    ERROR_PAUSE
                }
            };
            let stop = async { drop(stopped.wait_for(|stop| *stop).await) };
            let _ = tokio::time::timeout(pause, stop).await;
        }
        self.job.end();
    }

    /// Works while the lease is ours.
    async fn hold(&self, replicator: &Replicator, database: &Database, begun: Instant) -> End {
        let end = tokio::select! {
            end = self.work(replicator, database) => end,
            // The run is dropped where it stands: nothing of it is recorded any more.
            () = self.renew(replicator, database, begun) => End::Lost,
        };
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
        let mut valid_until = begun + lease * 2 / 3;
        loop {
            tokio::time::sleep((lease / 5).min(valid_until.saturating_duration_since(Instant::now()))).await;
            let begun = Instant::now();
            let state = self.state();
            let hold = database.hold_lease(&self.description.id, &replicator.owner, &state, false);
            let left = valid_until.saturating_duration_since(begun);
            match tokio::time::timeout(left, hold).await {
                Ok(Ok(true)) => valid_until = begun + lease * 2 / 3,
                Ok(Ok(false) | Err(LayerError::DatabaseNotFound)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a replication's lease could not be renewed");
                    tokio::time::sleep(lease / 20).await;
                }
            }
        }
    }

    async fn work(&self, replicator: &Replicator, database: &Database) -> End {
        loop {
            let done = self.job.run_once(replicator, Some(self.fence(replicator, database))).await;
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
