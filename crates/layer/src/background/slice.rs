//! What is due in one slice, as a job under the slice's lease.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatbed_jobs::{Failure, Job, Next, Run, Status};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::background::kinds::{self, Outcome};
use crate::background::list::{self, Entry};
use crate::background::{BackgroundOptions, Worker};
use crate::error::Error;
use crate::layer::Layer;
use crate::store::due;
use crate::store::keys::DueKey;
use crate::store::once::now_ms;
use crate::store::waits;

/// Pieces of work that are under way at once in a slice: one that takes long does not hold up the others.
const AT_ONCE: usize = 4;

/// A slice is left to other processes, and to other slices of this one, after so many turns.
const TURNS: u32 = 5;

/// See the module.
pub(super) struct Slice {
    layer: Layer,
    options: BackgroundOptions,
    /// Of the process's work in the background.
    stop: tokio::sync::watch::Receiver<bool>,
    id: String,
    status: Status,
    entries: Mutex<VecDeque<Entry>>,
    done: AtomicU64,
}

impl Slice {
    pub(super) fn new(worker: &Worker, slice: u8, mut entries: Vec<Entry>) -> Slice {
        // What is due at several times is done once now.
        let mut seen = HashSet::new();
        entries.retain(|entry| seen.insert((entry.key.kind, entry.key.name.clone())));
        Slice {
            layer: worker.layer.clone(),
            options: worker.options.clone(),
            stop: worker.status.stopping(),
            id: slice.to_string(),
            status: Status::new(),
            entries: Mutex::new(entries.into()),
            done: AtomicU64::new(0),
        }
    }

    /// Pieces of work that were done, or have come further.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl Job for Slice {
    fn kind(&self) -> &'static str {
        "slice"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> std::result::Result<Next, Failure> {
        self.status.begin();
        let mut entries = std::mem::take(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner));
        let (begun, operation) = (Instant::now(), waits::Operation::current());
        let mut stop = self.stop.clone();
        // Each in a task: one that panics is one that failed. They end with this.
        let mut tasks = JoinSet::new();
        let mut under_way = HashMap::new();
        loop {
            while tasks.len() < AT_ONCE
                && let Some(entry) = entries.pop_front()
            {
                let (layer, turn) = (self.layer.clone(), self.options.turn);
                let work = waits::carry(operation.clone(), {
                    let entry = entry.clone();
                    async move { work(&layer, entry, turn).await }
                });
                under_way.insert(tasks.spawn(work).id(), entry);
            }
            let ended = tokio::select! {
                ended = tasks.join_next_with_id() => ended,
                _ = stop.wait_for(|stop| *stop) => return Ok(Next::Done),
            };
            match ended {
                None => break,
                Some(Ok((id, worked))) => {
                    under_way.remove(&id);
                    self.done.fetch_add(u64::from(worked.got_on), Ordering::Relaxed);
                    let is_over = self.layer.inner.is_closing() || begun.elapsed() >= self.options.turn * TURNS;
                    entries.extend(worked.left.filter(|_| !is_over));
                }
                Some(Err(error)) => {
                    if let Some(entry) = under_way.remove(&error.id()) {
                        fail(&self.layer, &entry, &error.to_string()).await;
                    }
                }
            }
        }
        self.status.succeed();
        Ok(Next::Done)
    }
}

/// What became of a piece of work.
struct Worked {
    /// It is done, or has come further.
    got_on: bool,
    /// It is not through: the others have their turn first.
    left: Option<Entry>,
}

/// Does a piece of work for some time.
async fn work(layer: &Layer, entry: Entry, turn: Duration) -> Worked {
    let (nothing, inner) = (Worked { got_on: false, left: None }, &layer.inner);
    // Who had the lease before this process may have done it since it was seen.
    if !list::is_due(inner, &entry).await.unwrap_or(false) {
        return nothing;
    }
    let next = match kinds::work(layer, &entry, turn).await {
        Ok(Outcome::Done) => None,
        Ok(Outcome::Due(next)) => Some((next, 0)),
        Ok(Outcome::Unfinished) => return Worked { got_on: true, left: Some(entry) },
        // The database is gone, and what was due for it.
        Err(Error::DatabaseNotFound) => None,
        // Or it is for a newer program to do.
        Err(Error::Renewing | Error::FeatureUnknown { .. } | Error::FormatTooNew { .. }) => return nothing,
        Err(error) => {
            fail(layer, &entry, &error.to_string()).await;
            return nothing;
        }
    };
    match list::settle(inner, &entry, next).await {
        Ok(()) => {
            inner.metrics.background_work.add(1);
            Worked { got_on: true, left: None }
        }
        Err(error) => {
            tracing::debug!(%error, "work that is done could not be taken from the list of what is due");
            nothing
        }
    }
}

/// Lets a piece of work that failed rest for a while: it does not hold up those behind it.
async fn fail(layer: &Layer, entry: &Entry, reason: &str) {
    let inner = &layer.inner;
    inner.metrics.background_failures.add(1);
    let kind = due::Kind::of(entry.key.kind);
    tracing::warn!(database = entry.key.name, ?kind, error = reason, "work in the background failed");
    let failures = entry.due.failures.saturating_add(1);
    let pause = u64::try_from(kinds::rest(entry.key.kind).pause(failures).as_millis()).unwrap_or(u64::MAX);
    let next = DueKey { at_ms: now_ms().saturating_add(pause), ..entry.key.clone() };
    if let Err(error) = list::settle(inner, entry, Some((next, failures))).await {
        tracing::debug!(%error, "work that failed could not be put off");
    }
}
