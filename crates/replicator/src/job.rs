//! One replication that this server runs: again after failures, with its history.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flatbed_replicate::{Control, Error, Fence, Outcome, Progress, Spec, replicate, time};
use tokio::sync::watch;

use crate::Replicator;
use crate::words::{member, string_or_null};

/// Events that a job remembers, as in CouchDB.
const HISTORY_MAX: usize = 20;

/// Errors are told up to this length: they stand in a lease's state.
const REASON_CHARACTERS_MAX: usize = 500;

/// No pause is longer, as in CouchDB.
const PAUSE_MAX: Duration = Duration::from_secs(8 * 3_600);

/// A job that runs this long is well again.
const HEALTHY: Duration = Duration::from_secs(120);

/// Something that happened to a job.
#[derive(Debug, Clone)]
pub struct Event {
    at: u64,
    kind: &'static str,
    reason: Option<String>,
}

/// How a job stands.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Newest first.
    pub history: VecDeque<Event>,
    /// Failures since it last went well.
    pub error_count: u32,
    /// The last error, since when nothing went well.
    pub error: Option<String>,
    /// Whether it works at this moment.
    pub is_running: bool,
    /// When an event was last noted, in seconds of Unix time.
    pub updated_at: u64,
}

impl Standing {
    /// CouchDB's word for it.
    pub fn state(&self) -> &'static str {
        match (&self.error, self.is_running) {
            (_, true) => "running",
            (Some(_), false) => "crashing",
            (None, false) => "pending",
        }
    }

    pub(crate) fn note(&mut self, kind: &'static str, reason: Option<String>) {
        self.updated_at = time::now();
        self.history.push_front(Event { at: self.updated_at, kind, reason });
        self.history.truncate(HISTORY_MAX);
    }
}

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

type Ended = Option<Result<Outcome, Error>>;

/// A replication.
pub struct Job {
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
    standing: Mutex<Standing>,
    progress: Mutex<Arc<Progress>>,
    stop: watch::Sender<bool>,
    ended: watch::Sender<Ended>,
}

impl Job {
    /// The specification itself is not kept: whoever runs the job has it, as it may be long.
    pub(crate) fn new(id: String, spec: &Spec, user: Option<String>, origin: Option<Origin>) -> Arc<Job> {
        let mut standing = Standing::default();
        standing.note("added", None);
        Arc::new(Job {
            id,
            source: spec.source.to_string(),
            target: spec.target.to_string(),
            continuous: spec.continuous,
            checkpoint_interval: spec.checkpoint_interval,
            user,
            origin,
            started_at: time::now(),
            standing: Mutex::new(standing),
            progress: Mutex::default(),
            stop: watch::Sender::new(false),
            ended: watch::Sender::new(None),
        })
    }

    /// How it stands.
    pub fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it works at this moment.
    pub fn is_running(&self) -> bool {
        self.standing().is_running
    }

    /// What the present run has done.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Failures that were counted elsewhere.
    pub(crate) fn restore(&self, error_count: u32) {
        let mut standing = self.standing();
        standing.error_count = standing.error_count.max(error_count);
    }

    /// Its run was dropped where it stood, since another server runs it now.
    pub(crate) fn dropped(&self) {
        self.standing().is_running = false;
    }

    /// Nothing more comes of this job here.
    pub(crate) fn end(&self) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            if is_first {
                *ended = Some(Err(Error::Superseded));
            }
            is_first
        });
    }

    /// Tells the job to end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Waits for the end: what came of it. A job that was dropped in the middle counts as superseded.
    pub async fn ended(&self) -> Result<Outcome, Error> {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Err(Error::Superseded)),
            Err(_) => Err(Error::Superseded),
        }
    }

    /// Runs it: once, or for a continuous one until it is stopped.
    pub(crate) async fn run(&self, spec: &Arc<Spec>, replicator: &Replicator) {
        loop {
            let done = self.run_once(spec, replicator, None).await;
            let failed = done.is_err();
            if !failed || !self.continuous {
                self.ended.send_replace(Some(done));
                return;
            }
            if !self.pause(replicator).await {
                self.ended.send_replace(Some(done));
                return;
            }
        }
    }

    /// One run, with its events.
    pub(crate) async fn run_once(
        &self,
        spec: &Arc<Spec>,
        replicator: &Replicator,
        fence: Option<Fence>,
    ) -> Result<Outcome, Error> {
        let progress = Arc::new(Progress::default());
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress.clone();
        {
            let mut standing = self.standing();
            standing.is_running = true;
            standing.note("started", None);
        }
        let started = Instant::now();
        let control = Control { progress, stop: self.stop.subscribe(), fence };
        let done = replicate(spec, replicator.layer.uuid(), &replicator.ways, control).await;
        let mut standing = self.standing();
        standing.is_running = false;
        if started.elapsed() >= HEALTHY {
            standing.error_count = 0;
        }
        match &done {
            Ok(_) => {
                standing.error_count = 0;
                standing.error = None;
                standing.note("stopped", None);
            }
            Err(error) => {
                drop(standing);
                self.note_failure(&error.to_string());
            }
        }
        done
    }

    /// Notes that it went wrong: the next pause is longer.
    pub(crate) fn note_failure(&self, reason: &str) {
        let reason: String = reason.chars().take(REASON_CHARACTERS_MAX).collect();
        tracing::warn!(replication = self.id, error = reason, "a replication failed");
        let mut standing = self.standing();
        standing.error_count = standing.error_count.saturating_add(1);
        standing.error = Some(reason.clone());
        standing.note("crashed", Some(reason));
    }

    /// Waits before the next try; false: the job is stopped.
    pub(crate) async fn pause(&self, replicator: &Replicator) -> bool {
        let doublings = self.standing().error_count.saturating_sub(1).min(10);
        let pause = (replicator.options.first_pause * 2_u32.pow(doublings)).min(PAUSE_MAX);
        let mut stop = self.stop.subscribe();
        let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
        tokio::time::timeout(pause, stopped).await.is_err()
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
