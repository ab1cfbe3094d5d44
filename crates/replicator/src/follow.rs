//! One document that asks for a replication, in one server: it waits for the lease, and runs the replication while it has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Claim, Failure, Job, LEASE_STATE_BYTES_MAX, Next, Room, Run, Status, lead};
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{Database, Error as LayerError, GetOptions, Refusal, RevId};
use flatbed_replicate::{Error, Outcome, Spec};

use crate::description::Description;
use crate::job_budget::{SeatHandle, SeatRequest};
use crate::replication::{Extent, Replication};
use crate::{GRACE, NODE, Replicator};

/// A replicator database that this server follows.
#[derive(Debug, Clone)]
pub(crate) struct Origins {
    pub(crate) name: Arc<str>,
    /// The incarnation that was found to be a replicator database. `None`: any, since every database of the name is one.
    pub(crate) incarnation: Option<u64>,
}

/// A document that asks for a replication, and its job.
pub struct Followed {
    pub(crate) origins: Origins,
    /// The document's id and revision. The document itself is read again when it is its turn: it may be long.
    pub id: String,
    /// Of the document as the job was made of it.
    pub rev: RevId,
    filter_bytes: usize,
    /// What was made of it.
    pub job: Arc<Replication>,
    pub(crate) claim: Claim,
}

impl Followed {
    pub(crate) fn new(
        replicator: &Replicator,
        origins: Origins,
        id: String,
        rev: RevId,
        filter_bytes: usize,
        job: Arc<Replication>,
    ) -> Arc<Followed> {
        let claim = Claim::new(replicator.owner, replicator.options.lease, replicator.clock());
        Arc::new(Followed { origins, id, rev, filter_bytes, job, claim })
    }

    /// The document's database.
    pub fn database(&self) -> &str {
        &self.origins.name
    }

    /// Whether this server has the lease.
    pub fn is_ours(&self) -> bool {
        self.claim.is_ours()
    }

    /// Runs the replication, after the one that an older revision of the document asked for, whenever it is this server's
    /// turn, until it has ended or the job is stopped.
    pub(crate) async fn run(self: Arc<Self>, replicator: Arc<Replicator>, before: Option<Arc<Followed>>) {
        // It gives its lease up when it ends: ours too, as both are this process's.
        if let Some(before) = before {
            before.job.status.ended().await;
        }
        let (database, backoff) = (replicator.database(&self.origins.name), replicator.backoff());
        let held = Arc::default();
        let work = Arc::new(Work { followed: self, replicator, database: database.clone(), held });
        lead(&work, &work.followed.claim, &Arc::new(database), &backoff).await;
    }

    fn state(&self) -> Vec<u8> {
        state_of(&self.job, &self.rev.to_string())
    }
}

/// What is known while the lease is held, and forgotten then: it may be long.
#[derive(Default)]
struct Held {
    seat: Option<SeatHandle>,
    spec: Option<Arc<Spec>>,
    /// What the replication ended with: it is not run again, and only to be noted in the document.
    done: Option<Result<Outcome, Error>>,
}

/// The replication that a document asks for, as a job under a lease.
struct Work {
    followed: Arc<Followed>,
    replicator: Arc<Replicator>,
    database: Database,
    held: Arc<Mutex<Held>>,
}

/// The permit of a replication while the lease is held. Dropped, it also clears [`Held`].
struct Holding {
    _permit: crate::JobPermit,
    held: Arc<Mutex<Held>>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Held::default();
    }
}

#[async_trait]
impl Job for Work {
    fn kind(&self) -> &'static str {
        "replication"
    }

    fn id(&self) -> &str {
        &self.followed.id
    }

    fn status(&self) -> &Status {
        &self.followed.job.status
    }

    async fn run(&self, run: Run) -> Result<Next, Failure> {
        self.rest(false);
        let ended = self.run_once(run).await;
        // A job that only failed to note its end does not yield: it would lose its outcome with the seat, and run again.
        let is_resting = ended.is_err() && self.held().done.is_none();
        self.rest(is_resting);
        ended
    }

    fn state(&self) -> Vec<u8> {
        self.followed.state()
    }

    fn restore(&self, state: &[u8]) {
        self.followed.job.status.restore(error_count(state, &self.followed.rev.to_string()));
    }

    fn room(&self) -> Option<Room> {
        if self.is_pausing() {
            return None;
        }
        let Followed { filter_bytes, job, .. } = &*self.followed;
        let permit = self.replicator.take_permit(*filter_bytes, job.user.as_deref(), SeatRequest::Repeated)?;
        self.held().seat = Some(permit.seat().clone());
        Some(Box::new(Holding { _permit: permit, held: self.held.clone() }))
    }

    async fn recalled(&self) {
        let seat = self.held().seat.clone();
        match seat {
            Some(seat) => seat.recalled().await,
            None => std::future::pending().await,
        }
    }

    fn grace(&self) -> Duration {
        GRACE
    }

    fn log_failure(&self, reason: &str) {
        self.followed.job.log_failure(reason);
    }
}

impl Work {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rest(&self, is_resting: bool) {
        let seat = self.held().seat.clone();
        if let Some(seat) = seat {
            seat.rest(is_resting);
        }
    }

    /// Whether the job yielded its seat after a failure and its pause is not over. Yielding a seat does not shorten the pause.
    fn is_pausing(&self) -> bool {
        let standing = self.followed.job.standing();
        let failed = standing.history.front().filter(|event| event.kind == "crashed");
        failed.is_some_and(|event| {
            let pause = self.replicator.backoff().pause(standing.error_count);
            self.replicator.clock().unix() < Duration::from_secs(event.at).saturating_add(pause)
        })
    }

    async fn run_once(&self, run: Run) -> Result<Next, Failure> {
        let known = self.held().spec.clone();
        let spec = match known {
            Some(spec) => spec,
            None => match self.spec().await {
                Ok(Some(spec)) => self.held().spec.insert(spec).clone(),
                Ok(None) => return Ok(Next::Done),
                Err(error) => return Err(Failure::Failed(format!("the document could not be read: {error}"))),
            },
        };
        let ended = self.held().done.clone();
        let done = match ended {
            Some(done) => done,
            None => {
                let done = self.followed.job.run_once(&spec, &self.replicator, run.clone()).await;
                match &done {
                    Err(error) if run.is_stopped() || !error.is_permanent() && !matches!(error, Error::Superseded) => {
                        return Err(Failure::Failed(error.to_string()));
                    }
                    Err(error) => self.followed.job.note_failure(&error.to_string()),
                    Ok(_) => {}
                }
                if let Err(Error::Superseded) = done {
                    return Err(Failure::Superseded);
                }
                if run.is_stopped() {
                    return Ok(Next::Done);
                }
                self.held().done.insert(done).clone()
            }
        };
        self.note_end(&run, &done).await
    }

    /// Notes the end in the document. Where that fails it is tried again, each time after a longer pause, and the
    /// replication is not run again for it.
    async fn note_end(&self, run: &Run, done: &Result<Outcome, Error>) -> Result<Next, Failure> {
        let is_ours = match &run.fence {
            Some(fence) => fence().await,
            None => Ok(true),
        };
        let noted = match is_ours {
            Ok(false) => return Err(Failure::Superseded),
            Ok(true) => self.note(done).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        noted.map_err(|error| Failure::Failed(format!("the end of the replication could not be noted: {error}")))?;
        Ok(Next::Done)
    }

    /// The document as it is now. `None`: it is gone or another one, which the supervisor acts on.
    async fn read(&self) -> Result<Option<Description>, LayerError> {
        let found = match self.database.get(&self.followed.id, &GetOptions::default()).await {
            Ok(document) => Description::read(&document).filter(|description| description.rev == self.followed.rev),
            Err(LayerError::DatabaseNotFound | LayerError::Refused(Refusal::DocumentNotFound(_))) => None,
            Err(error) => return Err(error),
        };
        // After the read: an incarnation never returns, so the document was in this one. In another database of the name any member may
        // have written the revision.
        let is_there = self.replicator.is_still(&self.followed.origins).await?;
        Ok(found.filter(|_| is_there))
    }

    async fn spec(&self) -> Result<Option<Arc<Spec>>, LayerError> {
        let _tree = self.replicator.trees.acquire().await;
        let description = self.read().await?;
        let spec = description.and_then(|mut description| description.spec().ok());
        Ok(spec.map(|spec| Arc::new(Spec { owner: self.followed.job.user.clone(), ..spec })))
    }

    async fn note(&self, done: &Result<Outcome, Error>) -> Result<(), LayerError> {
        let _tree = self.replicator.trees.acquire().await;
        let Some(description) = self.read().await? else { return Ok(()) };
        let job = &self.followed.job;
        match description.note(&self.database, Some(&job.id), job.started_at, &job.progress(), done).await {
            Err(LayerError::DatabaseNotFound) => Ok(()),
            noted => noted,
        }
    }
}

/// What the other servers read of it: the revision that is worked off, the failures, and the rows of `_scheduler`, shorter
/// or not at all where there is no room for them.
fn state_of(job: &Replication, rev: &str) -> Vec<u8> {
    let error_count = job.standing().error_count;
    let text = |extent: Option<Extent>| {
        Object::text(|state| {
            state.string("rev", rev).number("error_count", error_count.into());
            if let Some(extent) = extent {
                job.write(NODE, extent, state.place("job"));
                job.write_doc(NODE, extent, state.place("doc"));
            }
        })
    };
    for extent in [Extent::WHOLE, Extent::SHORT] {
        let out = text(Some(extent));
        if out.len() <= LEASE_STATE_BYTES_MAX {
            return out;
        }
    }
    text(None)
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
    use crate::replication::Origin;
    use flatbed_layer::REPLICATOR;

    #[test]
    fn what_is_known_is_forgotten_with_the_permit() {
        let held = Arc::new(Mutex::new(Held { done: Some(Err(Error::Superseded)), ..Held::default() }));
        let now = flatbed_clock::Clock::system().now();
        let permit = crate::job_budget::budget_of(1, 1).take(0, None, SeatRequest::Repeated, now).unwrap();
        drop(Holding { _permit: permit, held: held.clone() });
        assert!(held.lock().unwrap().done.is_none());
    }

    #[test]
    fn a_state_fits_into_its_record() {
        let state_of_length = |address: &str, id: &str, reason: &str| {
            let text = format!(r#"{{"source":"http://h/{address}","target":"http://h/{address}"}}"#);
            let spec = Spec::parse(&json::parse(text.as_bytes(), &Limits::default()).unwrap()).unwrap();
            let job = Replication::new(
                "i".repeat(60),
                &spec,
                crate::Owner::Server,
                Some(Origin { database: REPLICATOR.into(), doc_id: id.to_owned() }),
                &flatbed_clock::Clock::system(),
            );
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
