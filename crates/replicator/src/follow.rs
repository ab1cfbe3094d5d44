//! One document that requests a replication, in one server: waits for the lease, and runs the replication while it
//! holds it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{
    Backoff, Claim, Failure, Job, JobState, LEASE_STATE_BYTES_MAX, Next, ResourceShare, Run, Status, lead,
};
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{Database, Error as LayerError, GetOptions, Refusal, RevId};
use flatbed_replicate::{Error, Outcome, Spec};

use crate::description::Description;
use crate::job_budget::{JobPermit, SeatHandle, SeatRequest};
use crate::replication::{Replication, RowExtent};
use crate::{GRACE, NODE, Replicator};

#[derive(Debug, Clone)]
pub(crate) struct Origins {
    pub(crate) name: Arc<str>,
    /// The incarnation in which the database is a replicator database. `None`: any, since every database of the name is
    /// one.
    pub(crate) incarnation: Option<u64>,
}

/// A document that requests a replication, and its job.
pub struct FollowedDocument {
    pub(crate) origins: Origins,
    /// The document's id. The document is read again at its turn, because it may be long.
    pub id: String,
    /// The revision from which the job was made.
    pub rev: RevId,
    /// The job.
    pub job: Arc<Replication>,
    pub(crate) claim: Claim,
    request: SeatRequest,
    held: Arc<Mutex<LeaseData>>,
    /// The end of a pause that began in another server, in milliseconds of Unix time.
    restored_retry_at: AtomicU64,
}

impl FollowedDocument {
    pub(crate) fn new(
        replicator: &Replicator,
        origins: Origins,
        id: String,
        rev: RevId,
        filter_bytes: usize,
        job: Arc<Replication>,
    ) -> Arc<FollowedDocument> {
        let claim = Claim::new(replicator.owner, replicator.options.lease, replicator.clock());
        let request = replicator.budget.request(filter_bytes, job.user.as_deref());
        let (held, restored_retry_at) = Default::default();
        Arc::new(FollowedDocument { origins, id, rev, job, claim, request, held, restored_retry_at })
    }

    /// Returns the document's database.
    pub fn database(&self) -> &str {
        &self.origins.name
    }

    /// Returns whether this server holds the lease.
    pub fn is_ours(&self) -> bool {
        self.claim.is_ours()
    }

    /// Runs the replication whenever this server holds the lease, after the one of an older revision of the document,
    /// until it has ended or the job is stopped.
    pub(crate) async fn run(self: Arc<Self>, replicator: Arc<Replicator>, before: Option<Arc<FollowedDocument>>) {
        // The older job gives up the lease of this process when it ends.
        if let Some(before) = before {
            before.job.status.ended().await;
        }
        let (database, backoff) = (replicator.database(&self.origins.name), replicator.backoff());
        let work = Arc::new(Work { followed: self, replicator, database: database.clone() });
        lead(&work, &work.followed.claim, &Arc::new(database), &backoff).await;
        work.followed.withdraw();
    }

    /// Withdraws the request for a seat, if there is one, so that other jobs can take the seats.
    pub(crate) fn withdraw(&self) {
        self.request.withdraw();
    }

    /// Records whether the job, stopped now, would resume beyond the start of its run.
    pub(crate) fn note_progress(&self) {
        // While the job does not run, the progress may be that of a run before it got the seat.
        let has_advanced = self.job.is_running() && self.job.progress().has_advanced();
        let seat = self.held().seat.clone();
        if let Some(seat) = seat.filter(|_| has_advanced) {
            seat.advance();
        }
    }

    fn held(&self) -> MutexGuard<'_, LeaseData> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that is kept only while the lease is held, because it may be long.
#[derive(Default)]
struct LeaseData {
    seat: Option<SeatHandle>,
    spec: Option<Arc<Spec>>,
    /// The result, to be recorded in the document. The replication does not run again.
    done: Option<Result<Outcome, Error>>,
}

/// The requested replication, as a job under a lease.
struct Work {
    followed: Arc<FollowedDocument>,
    replicator: Arc<Replicator>,
    database: Database,
}

/// The permit of a replication while the lease is held. Dropping it also clears [`LeaseData`].
struct LeasePermit {
    _permit: JobPermit,
    held: Arc<Mutex<LeaseData>>,
}

impl Drop for LeasePermit {
    fn drop(&mut self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = LeaseData::default();
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
        let restored = self.followed.restored_retry_at.load(Ordering::Relaxed);
        let left_ms = restored.saturating_sub(self.replicator.clock().unix_ms());
        if left_ms > 0 {
            self.rest(true);
            return Ok(Next::Again(Duration::from_millis(left_ms)));
        }
        self.rest(false);
        let ended = self.run_once(run).await;
        // A job that only failed to note its end does not yield: it would lose its outcome with the seat, and run
        // again.
        let is_resting = ended.is_err() && self.held().done.is_none();
        self.rest(is_resting);
        ended
    }

    fn state(&self) -> Vec<u8> {
        state_of(&self.followed.job, &self.followed.rev.to_string(), self.retry_at())
    }

    fn restore(&self, state: &[u8]) {
        let restored = RestoredState::of(state, &self.followed.rev.to_string());
        let retry_at = restored.retry_at(&self.replicator.backoff(), self.replicator.clock().unix_ms());
        self.followed.restored_retry_at.store(retry_at, Ordering::Relaxed);
        self.followed.job.status.restore(restored.error_count);
    }

    fn room(&self) -> Option<ResourceShare> {
        // A job that yielded its seat after a failure does not get a shorter pause by that.
        if self.replicator.clock().unix_ms() < self.retry_at() {
            self.followed.withdraw();
            return None;
        }
        let permit = self.followed.request.ask(self.replicator.clock().now())?;
        self.held().seat = Some(permit.seat().clone());
        Some(Box::new(LeasePermit { _permit: permit, held: self.followed.held.clone() }))
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
    fn held(&self) -> MutexGuard<'_, LeaseData> {
        self.followed.held()
    }

    fn rest(&self, is_resting: bool) {
        let seat = self.held().seat.clone();
        if let Some(seat) = seat {
            seat.rest(is_resting);
        }
    }

    /// Returns the end of the pause after the last failure, in milliseconds of Unix time. In the past or 0: there is no
    /// pause.
    fn retry_at(&self) -> u64 {
        let own = retry_at(&self.followed.job.standing(), &self.replicator.backoff());
        own.max(self.followed.restored_retry_at.load(Ordering::Relaxed))
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

    /// Records the end in the document. A failure is retried after a growing pause, without running the replication
    /// again.
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

    /// Reads the current document. `None`: it is gone or another one, which the supervisor handles.
    async fn read(&self) -> Result<Option<Description>, LayerError> {
        let found = match self.database.get(&self.followed.id, &GetOptions::default()).await {
            Ok(document) => Description::read(&document).filter(|description| description.rev == self.followed.rev),
            Err(LayerError::DatabaseNotFound | LayerError::Refused(Refusal::DocumentNotFound(_))) => None,
            Err(error) => return Err(error),
        };
        // After the read: an incarnation never returns, so the document was in this one. In another database of this
        // name any member may have written the revision.
        let is_there = self.replicator.is_still(&self.followed.origins).await?;
        Ok(found.filter(|_| is_there))
    }

    async fn spec(&self) -> Result<Option<Arc<Spec>>, LayerError> {
        let _tree = self.replicator.trees.acquire().await;
        let description = self.read().await?;
        let defaults = self.replicator.spec_defaults();
        let spec = description.and_then(|mut description| description.spec(defaults).ok());
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

/// Returns the end of the pause after a job's last event, if that is a failure; otherwise 0. In milliseconds of Unix
/// time.
fn retry_at(standing: &JobState, backoff: &Backoff) -> u64 {
    let failed = standing.history.front().filter(|event| event.kind == "crashed");
    failed.map_or(0, |event| event.at.saturating_mul(1_000).saturating_add(milliseconds(backoff, standing.error_count)))
}

fn milliseconds(backoff: &Backoff, error_count: u32) -> u64 {
    u64::try_from(backoff.pause(error_count).as_millis()).unwrap_or(u64::MAX)
}

/// Returns the state for other servers: the revision in work, the failures, the end of the pause after the last one,
/// and the rows of `_scheduler`, shortened or left out if they do not fit.
fn state_of(job: &Replication, rev: &str, retry_at: u64) -> Vec<u8> {
    let error_count = job.standing().error_count;
    let text = |extent: Option<RowExtent>| {
        Object::text(|state| {
            state.string("rev", rev).number("error_count", error_count.into()).number("retry_at", retry_at);
            if let Some(extent) = extent {
                job.write(NODE, extent, state.place("job"));
                job.write_doc(NODE, extent, state.place("doc"));
            }
        })
    };
    for extent in [RowExtent::WHOLE, RowExtent::SHORT] {
        let out = text(Some(extent));
        if out.len() <= LEASE_STATE_BYTES_MAX {
            return out;
        }
    }
    text(None)
}

/// The state that the last owner of the lease left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RestoredState {
    error_count: u32,
    /// In milliseconds of Unix time, by the clock of the last owner.
    retry_at: u64,
}

impl RestoredState {
    /// Parses a lease's state. All is 0 if it belongs to another revision.
    fn of(state: &[u8], rev: &str) -> RestoredState {
        let Ok(value) = json::parse(state, &Limits::default()) else { return RestoredState::default() };
        if value.get("rev").and_then(Value::as_str) != Some(rev) {
            return RestoredState::default();
        }
        let number = |name: &str| match value.get(name) {
            Some(Value::Number(number)) => number.parse().unwrap_or(0),
            _ => 0,
        };
        let error_count = u32::try_from(number("error_count")).unwrap_or(u32::MAX);
        RestoredState { error_count, retry_at: number("retry_at") }
    }

    /// Returns the end of the pause. The clocks of two servers may differ: it is at most one pause from now.
    fn retry_at(&self, backoff: &Backoff, now_ms: u64) -> u64 {
        self.retry_at.min(now_ms.saturating_add(milliseconds(backoff, self.error_count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::Origin;
    use flatbed_layer::REPLICATOR;

    #[test]
    fn what_is_known_is_forgotten_with_the_permit() {
        let held = Arc::new(Mutex::new(LeaseData { done: Some(Err(Error::Superseded)), ..LeaseData::default() }));
        let now = flatbed_clock::Clock::system().now();
        let permit = crate::job_budget::budget_of(1, 1).take(0, None, now).unwrap();
        drop(LeasePermit { _permit: permit, held: held.clone() });
        assert!(held.lock().unwrap().done.is_none());
    }

    #[test]
    fn another_server_goes_on_with_the_pause_after_a_failure() {
        let manual = flatbed_clock::ManualClock::new();
        let backoff = Backoff { first: Duration::from_secs(30), max: Duration::from_secs(3_600) };
        let text = r#"{"source":"http://h/a","target":"http://h/b"}"#;
        let spec = Spec::parse(&json::parse(text.as_bytes(), &Limits::default()).unwrap()).unwrap();
        let job = Replication::new("id".to_owned(), &spec, crate::Owner::Server, None, &manual.clock());
        assert_eq!(retry_at(&job.standing(), &backoff), 0);
        job.note_failure("no");
        let failed_at = manual.clock().unix_seconds() * 1_000;
        let end = retry_at(&job.standing(), &backoff);
        assert_eq!(end, failed_at + 30_000);
        let state = state_of(&job, "1-abc", end);
        manual.advance(Duration::from_secs(10));
        let restored = RestoredState::of(&state, "1-abc");
        assert_eq!(restored.retry_at(&backoff, manual.clock().unix_ms()), end);
        // A server whose clock is a day behind waits for one whole pause.
        assert_eq!(restored.retry_at(&backoff, 1_000), 31_000);
        job.status.begin();
        assert_eq!(retry_at(&job.standing(), &backoff), 0);
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
            let state = state_of(&job, "1-abc", 5_000);
            assert!(state.len() <= LEASE_STATE_BYTES_MAX, "{}", state.len());
            assert_eq!(RestoredState::of(&state, "1-abc"), RestoredState { error_count: 30, retry_at: 5_000 });
            assert_eq!(RestoredState::of(&state, "2-abc"), RestoredState::default());
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
