//! One document of `_replicator` in one server: it waits for the lease, and runs the replication while it has it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{
    Database, Error as LayerError, GetOptions, LEASE_STATE_BYTES_MAX, Lease, RevId, Sighting, TakenLease, valid_until,
};
use flatbed_replicate::{Error, Fence, Outcome, Spec};
use tokio::sync::{Notify, watch};

use crate::description::Description;
use crate::job::{Extent, Job};
use crate::{NODE, Replicator};

/// A document that asks for a replication, and its job.
pub struct Followed {
    /// The document's id and revision. The document itself is read again when it is its turn: it may be long.
    pub id: String,
    /// Of the document as the job was made of it.
    pub rev: RevId,
    filter_bytes: usize,
    /// What was made of it.
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
    pub(crate) fn new(id: String, rev: RevId, filter_bytes: usize, job: Arc<Job>) -> Arc<Followed> {
        let (seen, turn) = Default::default();
        Arc::new(Followed { id, rev, filter_bytes, job, is_ours: watch::Sender::new(false), seen, turn })
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
            // In a box: what waits for its turn is small.
            if let Some(End::Done) = Box::pin(self.turn(replicator, &database)).await {
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
        let _room = replicator.room(self.filter_bytes)?;
        let begun = Instant::now();
        let stale = {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.as_ref().and_then(|seen| seen.stale(begun, replicator.options.lease)).cloned()
        };
        match database.take_lease(&self.id, &replicator.owner, stale.as_ref()).await {
            Ok(TakenLease::Ours(before)) => {
                self.job.restore(error_count(&before.state, &self.rev.to_string()));
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
            let _ = database.hold_lease(&self.id, &replicator.owner, &state, true).await;
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
            let hold = database.hold_lease(&self.id, &replicator.owner, &state, false);
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
        let spec = loop {
            match self.spec(replicator, database).await {
                Ok(Some(spec)) => break spec,
                Ok(None) => return End::Done,
                Err(error) => {
                    self.job.note_failure(&format!("the document could not be read: {error}"));
                    if !self.job.pause(replicator).await {
                        return End::Done;
                    }
                }
            }
        };
        loop {
            let done = self.job.run_once(&spec, replicator, Some(fence.clone())).await;
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
                _ => return self.end(replicator, database, &fence, &done).await,
            }
        }
    }

    /// Notes the end in the document, again and again where that fails, each time after a longer pause: the replication is
    /// not run again for it.
    async fn end(
        &self,
        replicator: &Replicator,
        database: &Database,
        fence: &Fence,
        done: &Result<Outcome, Error>,
    ) -> End {
        loop {
            let noted = match fence().await {
                Ok(false) => return End::Lost,
                Ok(true) => self.note(replicator, database, done).await.map_err(|error| error.to_string()),
                Err(error) => Err(error),
            };
            let Err(error) = noted else { return End::Done };
            self.job.note_failure(&format!("the end of the replication could not be noted: {error}"));
            if !self.job.pause(replicator).await {
                return End::Done;
            }
        }
    }

    /// The document as it is now. `None`: it is gone or another one, which the supervisor acts on.
    async fn read(&self, database: &Database) -> Result<Option<Description>, LayerError> {
        match database.get(&self.id, &GetOptions::default()).await {
            Ok(document) => Ok(Description::read(&document).filter(|description| description.rev == self.rev)),
            Err(LayerError::DatabaseNotFound | LayerError::DocumentNotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn spec(&self, replicator: &Replicator, database: &Database) -> Result<Option<Arc<Spec>>, LayerError> {
        let _tree = replicator.trees.acquire().await;
        let description = self.read(database).await?;
        Ok(description.and_then(|mut description| description.spec().ok()).map(Arc::new))
    }

    async fn note(
        &self,
        replicator: &Replicator,
        database: &Database,
        done: &Result<Outcome, Error>,
    ) -> Result<(), LayerError> {
        let _tree = replicator.trees.acquire().await;
        let Some(description) = self.read(database).await? else { return Ok(()) };
        let (id, started_at) = (Some(self.job.id.as_str()), self.job.started_at);
        match description.note(database, id, started_at, &self.job.progress(), done).await {
            Err(LayerError::DatabaseNotFound) => Ok(()),
            noted => noted,
        }
    }

    /// Says whether the lease is still ours, in a transaction.
    fn fence(&self, replicator: &Replicator, database: &Database) -> Fence {
        let (owner, database, id) = (replicator.owner, database.clone(), self.id.clone());
        let (job, rev) = (self.job.clone(), self.rev.to_string());
        Arc::new(move || {
            let (database, id, state) = (database.clone(), id.clone(), state_of(&job, &rev));
            Box::pin(async move {
                match database.hold_lease(&id, &owner, &state, false).await {
                    Ok(is_ours) => Ok(is_ours),
                    Err(LayerError::DatabaseNotFound) => Ok(false),
                    Err(error) => Err(error.to_string()),
                }
            })
        })
    }

    fn state(&self) -> Vec<u8> {
        state_of(&self.job, &self.rev.to_string())
    }
}

/// What the other servers read of it: the revision that is worked off, the failures, and the rows of `_scheduler`, shorter
/// or not at all where there is no room for them.
fn state_of(job: &Job, rev: &str) -> Vec<u8> {
    let error_count = job.standing().error_count;
    let head = format!("{{\"rev\":\"{rev}\",\"error_count\":{error_count}").into_bytes();
    for extent in [Extent::WHOLE, Extent::SHORT] {
        let mut out = head.clone();
        out.extend_from_slice(b",\"job\":");
        job.write(NODE, extent, &mut out);
        out.extend_from_slice(b",\"doc\":");
        job.write_doc(NODE, extent, &mut out);
        out.push(b'}');
        if out.len() <= LEASE_STATE_BYTES_MAX {
            return out;
        }
    }
    [head.as_slice(), b"}"].concat()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Origin;

    #[test]
    fn a_state_fits_into_its_record() {
        let state_of_length = |address: &str, id: &str, reason: &str| {
            let text = format!(r#"{{"source":"http://h/{address}","target":"http://h/{address}"}}"#);
            let spec = Spec::parse(&json::parse(text.as_bytes(), &Limits::default()).unwrap()).unwrap();
            let job =
                Job::new("i".repeat(60), &spec, None, Some(Origin { database: "_replicator", doc_id: id.to_owned() }));
            for _ in 0..30 {
                job.note_failure(reason);
            }
            let state = state_of(&job, "1-abc");
            assert!(state.len() <= LEASE_STATE_BYTES_MAX, "{}", state.len());
            assert_eq!(error_count(&state, "1-abc"), 30);
            let value = json::parse(&state, &Limits::default()).unwrap().into_owned();
            (value.get("doc").is_some(), state.len())
        };
        let short = state_of_length("a", "id", "no");
        assert!(short.0 && short.1 < 5_000);
        // The addresses are cut, and most of the history.
        let long = state_of_length(&"a".repeat(8_000), &"i".repeat(2_000), &"\u{1}".repeat(600));
        assert!(long.0 && long.1 > 10_000, "{long:?}");
        let longest = state_of_length(&"\\\"".repeat(3_000), &"\u{1}".repeat(2_000), &"\u{1}".repeat(600));
        assert!(longest.0 && longest.1 > 30_000, "{longest:?}");
    }
}
