//! A replication that this server runs, and its presentation.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_jobs::{HISTORY_MAX, JobState, Run, Status};
use flatbed_layer::json::Object;
use flatbed_replicate::{Control, Error, Outcome, Progress, Spec, replicate, time};
use flatbed_service::Standing;

use crate::Replicator;
use crate::owner::Owner;

/// The limits of a job's presentation.
#[derive(Debug, Clone, Copy)]
pub struct RowExtent {
    /// The most characters of a URL.
    pub address_max: usize,
    /// The most events of its history.
    pub events_max: usize,
}

impl RowExtent {
    /// Everything.
    pub const WHOLE: RowExtent = RowExtent { address_max: usize::MAX, events_max: HISTORY_MAX };
    /// Shortened, if not everything fits.
    pub const SHORT: RowExtent = RowExtent { address_max: 500, events_max: 3 };

    fn address<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match text.char_indices().nth(self.address_max) {
            None => text.into(),
            Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
        }
    }
}

/// A document that requests a replication.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Its database.
    pub database: Arc<str>,
    /// Its id.
    pub doc_id: String,
}

/// A replication that this server runs.
pub struct Replication {
    /// The id that CouchDB derives from the specification.
    pub id: String,
    /// The source's URL without credentials.
    source: String,
    target: String,
    continuous: bool,
    checkpoint_interval: Duration,
    /// The owner.
    pub owner: Owner,
    /// The user whose limits apply; `None` for an administrator.
    pub(crate) user: Option<String>,
    /// The document that requests it.
    pub origin: Option<Origin>,
    /// The start, in seconds of Unix time.
    pub started_at: u64,
    pub(crate) status: Status,
    progress: Mutex<Arc<Progress>>,
    /// The outcome of the last run, if a request waits for it.
    pub(crate) outcome: Mutex<Option<Result<Outcome, Error>>>,
}

impl Replication {
    /// Creates a replication. The specification may be long and stays with the task that runs the job.
    pub(crate) fn new(
        id: String,
        spec: &Spec,
        owner: Owner,
        origin: Option<Origin>,
        clock: &Clock,
    ) -> Arc<Replication> {
        Arc::new(Replication {
            id,
            source: spec.source.to_string(),
            target: spec.target.to_string(),
            continuous: spec.continuous,
            checkpoint_interval: spec.checkpoint_interval,
            owner,
            user: spec.owner.clone(),
            origin,
            started_at: clock.unix_seconds(),
            status: Status::new(clock),
            progress: Mutex::default(),
            outcome: Mutex::default(),
        })
    }

    /// Returns whether a user may see its result and end it.
    pub(crate) fn is_of(&self, standing: &Standing) -> bool {
        standing.principal().is_admin || self.owner.is(standing)
    }

    /// Returns the job's standing.
    pub fn standing(&self) -> MutexGuard<'_, JobState> {
        self.status.standing()
    }

    /// Returns whether it runs at this moment.
    pub fn is_running(&self) -> bool {
        self.standing().is_running
    }

    /// Returns whether `_active_tasks` lists it: it runs, and knows the sequence at which it begins.
    pub fn is_task(&self) -> bool {
        self.is_running() && self.progress().has_begun()
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the end and returns the outcome. A dropped run counts as superseded.
    pub async fn ended(&self) -> Result<Outcome, Error> {
        self.status.ended().await;
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone();
        outcome.unwrap_or(Err(Error::Superseded))
    }

    /// Runs once. Records the start and success; the caller handles failures.
    pub(crate) async fn run_once(&self, spec: &Arc<Spec>, replicator: &Replicator, run: Run) -> Result<Outcome, Error> {
        let progress = Arc::new(Progress::default());
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress.clone();
        self.status.begin();
        let control = Control { progress, stop: run.stop, fence: run.fence };
        let done = self.replicate(spec, replicator, control).await;
        if done.is_ok() {
            self.status.succeed();
        }
        done
    }

    /// Replicates with the owner's rights, as long as they do not change.
    async fn replicate(&self, spec: &Arc<Spec>, replicator: &Replicator, control: Control) -> Result<Outcome, Error> {
        let is_admin = self.owner.is_admin(&replicator.accounts).await?;
        let ways = replicator.ways(&self.owner, is_admin);
        tokio::select! {
            done = replicate(spec, replicator.layer.uuid(), &ways, control) => done,
            error = self.owner.changed(is_admin, &replicator.accounts) => Err(error),
        }
    }

    pub(crate) fn note_failure(&self, reason: &str) {
        self.log_failure(&self.status.fail(reason));
    }

    pub(crate) fn log_failure(&self, reason: &str) {
        tracing::warn!(replication = self.id, error = reason, "a replication failed");
    }

    /// Writes the job as `_scheduler/jobs` shows it.
    pub fn write(&self, node: &str, extent: RowExtent, out: &mut Vec<u8>) {
        let mut job = Object::new(out);
        job.string_or_null("database", self.origin.as_ref().map(|origin| &*origin.database));
        job.string("id", &self.id).null("pid");
        job.string("source", &extent.address(&self.source)).string("target", &extent.address(&self.target));
        job.string_or_null("user", self.owner.name());
        job.string_or_null("doc_id", self.origin.as_ref().map(|origin| origin.doc_id.as_str()));
        self.progress().write_info(&mut job.object("info"));
        let mut history = job.array("history");
        for event in self.standing().history.iter().take(extent.events_max) {
            let mut object = history.object();
            object.string("timestamp", &time::iso(event.at)).string("type", event.kind);
            if let Some(reason) = &event.reason {
                object.string("reason", reason);
            }
        }
        history.end();
        job.string("node", node).string("start_time", &time::iso(self.started_at));
    }

    /// Writes the job as `_active_tasks` shows it.
    pub fn write_task(&self, node: &str, out: &mut Vec<u8>) {
        let mut task = Object::new(out);
        task.string("type", "replication").string("node", node).null("pid");
        task.string("replication_id", &self.id).string("source", &self.source).string("target", &self.target);
        task.string_or_null("database", self.origin.as_ref().map(|origin| &*origin.database));
        task.string_or_null("doc_id", self.origin.as_ref().map(|origin| origin.doc_id.as_str()));
        task.string_or_null("user", self.owner.name()).bool("continuous", self.continuous);
        task.number("checkpoint_interval", u64::try_from(self.checkpoint_interval.as_millis()).unwrap_or(u64::MAX));
        self.progress().write_info(&mut task);
        let now = self.status.clock().unix_seconds();
        task.number("started_on", self.started_at).number("updated_on", now);
    }

    /// Writes the job as `_scheduler/docs` shows it.
    pub fn write_doc(&self, node: &str, extent: RowExtent, out: &mut Vec<u8>) {
        let standing = self.standing().clone();
        let mut doc = Object::new(out);
        doc.string_or_null("database", self.origin.as_ref().map(|origin| &*origin.database));
        doc.string_or_null("doc_id", self.origin.as_ref().map(|origin| origin.doc_id.as_str()));
        doc.string("id", &self.id).string("node", node);
        doc.string("source", &extent.address(&self.source)).string("target", &extent.address(&self.target));
        doc.string("state", standing.state());
        let mut info = doc.object("info");
        match standing.error.as_ref().filter(|_| !standing.is_running) {
            Some(error) => {
                info.string("error", error);
            }
            None => self.progress().write_info(&mut info),
        }
        info.end();
        doc.number("error_count", standing.error_count.into());
        doc.string("last_updated", &time::iso(standing.updated_at)).string("start_time", &time::iso(self.started_at));
        doc.null("source_proxy").null("target_proxy");
    }
}
