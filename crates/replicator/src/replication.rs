//! One replication that this server runs, and what is shown of it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_jobs::{HISTORY_MAX, Run, Standing, Status};
use flatbed_replicate::{Control, Error, Outcome, Progress, Spec, replicate, time};

use crate::Replicator;
use crate::words::{member, string_or_null};

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
    pub database: &'static str,
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
    /// Who asked for it.
    pub user: Option<String>,
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
    pub(crate) fn new(id: String, spec: &Spec, user: Option<String>, origin: Option<Origin>) -> Arc<Replication> {
        Arc::new(Replication {
            id,
            source: spec.source.to_string(),
            target: spec.target.to_string(),
            continuous: spec.continuous,
            checkpoint_interval: spec.checkpoint_interval,
            user,
            origin,
            started_at: time::now(),
            status: Status::new(),
            progress: Mutex::default(),
            outcome: Mutex::default(),
        })
    }

    /// How it stands.
    pub fn standing(&self) -> MutexGuard<'_, Standing> {
        self.status.standing()
    }

    /// Whether it works at this moment.
    pub fn is_running(&self) -> bool {
        self.standing().is_running
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
        let done = replicate(spec, replicator.layer.uuid(), &replicator.ways, control).await;
        if done.is_ok() {
            self.status.succeed();
        }
        done
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
        out.extend_from_slice(b"{\"database\":");
        string_or_null(self.origin.as_ref().map(|origin| origin.database), out);
        out.push(b',');
        member("id", &self.id, out);
        out.extend_from_slice(b",\"pid\":null,");
        member("source", &extent.address(&self.source), out);
        out.push(b',');
        member("target", &extent.address(&self.target), out);
        out.extend_from_slice(b",\"user\":");
        string_or_null(self.user.as_deref(), out);
        out.extend_from_slice(b",\"doc_id\":");
        string_or_null(self.origin.as_ref().map(|origin| origin.doc_id.as_str()), out);
        out.extend_from_slice(b",\"info\":{");
        out.extend_from_slice(self.progress().info().as_bytes());
        out.extend_from_slice(b"},\"history\":[");
        for (at, event) in self.standing().history.iter().take(extent.events_max).enumerate() {
            out.extend_from_slice(if at > 0 { b",{" } else { b"{" });
            member("timestamp", &time::iso(event.at), out);
            out.push(b',');
            member("type", event.kind, out);
            if let Some(reason) = &event.reason {
                out.push(b',');
                member("reason", reason, out);
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"],");
        member("node", node, out);
        out.push(b',');
        member("start_time", &time::iso(self.started_at), out);
        out.push(b'}');
    }

    /// The job as `_active_tasks` shows it.
    pub fn write_task(&self, node: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"replication\",");
        member("node", node, out);
        out.extend_from_slice(b",\"pid\":null,");
        member("replication_id", &self.id, out);
        out.push(b',');
        member("source", &self.source, out);
        out.push(b',');
        member("target", &self.target, out);
        out.extend_from_slice(b",\"database\":");
        string_or_null(self.origin.as_ref().map(|origin| origin.database), out);
        out.extend_from_slice(b",\"doc_id\":");
        string_or_null(self.origin.as_ref().map(|origin| origin.doc_id.as_str()), out);
        out.extend_from_slice(b",\"user\":");
        string_or_null(self.user.as_deref(), out);
        let rest = format!(
            ",\"continuous\":{},\"checkpoint_interval\":{},{},\"started_on\":{},\"updated_on\":{}}}",
            self.continuous,
            self.checkpoint_interval.as_millis(),
            self.progress().info(),
            self.started_at,
            time::now()
        );
        out.extend_from_slice(rest.as_bytes());
    }

    /// The job as `_scheduler/docs` shows it.
    pub fn write_doc(&self, node: &str, extent: Extent, out: &mut Vec<u8>) {
        let standing = self.standing().clone();
        let state = standing.state();
        out.extend_from_slice(b"{\"database\":");
        string_or_null(self.origin.as_ref().map(|origin| origin.database), out);
        out.extend_from_slice(b",\"doc_id\":");
        string_or_null(self.origin.as_ref().map(|origin| origin.doc_id.as_str()), out);
        out.push(b',');
        member("id", &self.id, out);
        out.push(b',');
        member("node", node, out);
        out.push(b',');
        member("source", &extent.address(&self.source), out);
        out.push(b',');
        member("target", &extent.address(&self.target), out);
        out.push(b',');
        member("state", state, out);
        out.extend_from_slice(b",\"info\":{");
        match standing.error.filter(|_| !standing.is_running) {
            Some(error) => member("error", &error, out),
            None => out.extend_from_slice(self.progress().info().as_bytes()),
        }
        out.extend_from_slice(format!("}},\"error_count\":{},", standing.error_count).as_bytes());
        member("last_updated", &time::iso(standing.updated_at), out);
        out.push(b',');
        member("start_time", &time::iso(self.started_at), out);
        out.extend_from_slice(b",\"source_proxy\":null,\"target_proxy\":null}");
    }
}
