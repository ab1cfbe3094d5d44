//! One replication that this server runs, and what is shown of it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_jobs::{HISTORY_MAX, Run, Standing as JobStanding, Status};
use flatbed_layer::json::Object;
use flatbed_replicate::{Control, Error, Outcome, Progress, Spec, replicate, time};
use flatbed_service::Standing;

use crate::Replicator;
use crate::owner::Owner;

/// How much is written of a job.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Characters of an address.
    pub address_max: usize,
    /// Events of its history.
    pub events_max: usize,
}

impl Extent {
    /// All of it.
    pub const WHOLE: Extent = Extent { address_max: usize::MAX, events_max: HISTORY_MAX };
    /// Where there is no room for all of it.
    pub const SHORT: Extent = Extent { address_max: 500, events_max: 3 };

    fn address<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match text.char_indices().nth(self.address_max) {
            None => text.into(),
            Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
        }
    }
}

/// A document that asks for a replication.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Its database.
    pub database: Arc<str>,
    /// Its id.
    pub doc_id: String,
}

/// A replication.
pub struct Replication {
    /// As CouchDB makes it of what is replicated.
    pub id: String,
    /// Without credentials, as it is shown.
    source: String,
    target: String,
    continuous: bool,
    checkpoint_interval: Duration,
    /// On whose behalf it runs.
    pub owner: Owner,
    /// Whose bounds hold, unless it is an administrator's.
    pub(crate) user: Option<String>,
    /// The document that asks for it.
    pub origin: Option<Origin>,
    /// In seconds of Unix time.
    pub started_at: u64,
    pub(crate) status: Status,
    progress: Mutex<Arc<Progress>>,
    /// Of the last run, where somebody waits for it.
    pub(crate) outcome: Mutex<Option<Result<Outcome, Error>>>,
}

impl Replication {
    /// The specification itself is not kept: whoever runs the job has it, as it may be long.
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

    /// Whether somebody may see its result, and end it.
    pub(crate) fn is_of(&self, standing: &Standing) -> bool {
        standing.principal().is_admin || self.owner.is(standing)
    }

    /// How it stands.
    pub fn standing(&self) -> MutexGuard<'_, JobStanding> {
        self.status.standing()
    }

    /// Whether it works at this moment.
    pub fn is_running(&self) -> bool {
        self.standing().is_running
    }

    /// Whether `_active_tasks` lists it: it works at this moment, and knows the sequence at which it begins.
    pub fn is_task(&self) -> bool {
        self.is_running() && self.progress().has_begun()
    }

    /// What the present run has done.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the end: what came of it. One that was dropped in the middle counts as superseded.
    pub async fn ended(&self) -> Result<Outcome, Error> {
        self.status.ended().await;
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone();
        outcome.unwrap_or(Err(Error::Superseded))
    }

    /// One run. That it began and went well is noted, and failures are left to whoever asked for it.
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

    /// With its owner's rights, for as long as they have these.
    async fn replicate(&self, spec: &Arc<Spec>, replicator: &Replicator, control: Control) -> Result<Outcome, Error> {
        let is_admin = self.owner.is_admin(&replicator.accounts).await?;
        let ways = replicator.ways(&self.owner, is_admin);
        tokio::select! {
            done = replicate(spec, replicator.layer.uuid(), &ways, control) => done,
            error = self.owner.changed(is_admin, &replicator.accounts) => Err(error),
        }
    }

    /// Notes that it went wrong.
    pub(crate) fn note_failure(&self, reason: &str) {
        self.log_failure(&self.status.fail(reason));
    }

    pub(crate) fn log_failure(&self, reason: &str) {
        tracing::warn!(replication = self.id, error = reason, "a replication failed");
    }

    /// The job as `_scheduler/jobs` shows it.
    pub fn write(&self, node: &str, extent: Extent, out: &mut Vec<u8>) {
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

    /// The job as `_active_tasks` shows it.
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

    /// The job as `_scheduler/docs` shows it.
    pub fn write_doc(&self, node: &str, extent: Extent, out: &mut Vec<u8>) {
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
