//! Follows `_worker`: every process knows the same jobs, and leases decide which process runs each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use flatbed_client::encode_segment;
use flatbed_jobs::{Backoff, Failure, Job, LeaseError, Next, Run, Status, supervise};
use flatbed_layer::{ChangesQuery, Layer, Since, WORKER, WaitOutcome};
use hyper::Method;
use serde_json::Value;

use crate::Dispatcher;
use crate::board::Board;
use crate::home::Home;
use crate::leases;
use crate::store::text_of;
use crate::work::FollowedJob;

/// The first pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause after errors of a remote server.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The time that a remote server waits for a change, in milliseconds.
const WAIT_MS: u64 = 25_000;

const ROWS_MAX: u32 = 1_000;

pub(crate) async fn run(dispatcher: Arc<Dispatcher>) {
    let max = if matches!(dispatcher.home, Home::There { .. }) { PAUSE_MAX } else { PAUSE };
    supervise(&Follower(dispatcher.clone()), &Backoff { first: PAUSE, max }, None).await;
    let followed = dispatcher.followed();
    for job in &followed {
        job.status.stop();
    }
    let leaving: Vec<Arc<FollowedJob>> = dispatcher.leaving().values().cloned().collect();
    for job in followed.into_iter().chain(leaving) {
        job.status.ended().await;
    }
}

struct Follower(Arc<Dispatcher>);

#[async_trait]
impl Job for Follower {
    fn kind(&self) -> &'static str {
        "dispatcher"
    }

    fn id(&self) -> &str {
        WORKER
    }

    fn status(&self) -> &Status {
        &self.0.follower
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        tokio::select! {
            followed = follow(&self.0) => match followed {
                Ok(()) => Ok(Next::Again(PAUSE)),
                Err(error) => Err(Failure::Failed(error)),
            },
            () = watch_leases(&self.0) => Ok(Next::Again(PAUSE)),
            () = self.0.follower.stopped() => Ok(Next::Done),
        }
    }
}

/// Returns whether the document with this id defines jobs.
fn is_of_jobs(id: &str) -> bool {
    !(id.starts_with("dlq:") || id.starts_with("checkpoint:") || id.starts_with('_'))
}

/// Follows the database until it is deleted or cannot be read.
async fn follow(dispatcher: &Arc<Dispatcher>) -> Result<(), String> {
    dispatcher.store.ensure().await.map_err(|error| error.to_string())?;
    match &dispatcher.home {
        Home::Here { layer, .. } => follow_here(dispatcher, layer).await,
        Home::There { .. } => follow_there(dispatcher).await.map_err(|error| error.to_string()),
    }
}

/// Follows a remote server's database: reads all changes once, then waits for new ones.
async fn follow_there(dispatcher: &Arc<Dispatcher>) -> Result<(), crate::StoreError> {
    let store = &dispatcher.store;
    let lease = leases::silence_max(store).await?;
    if lease != dispatcher.lease() {
        // All processes must agree on the lease time: running jobs end and are claimed again.
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        dispatcher.lease_ms.store(lease_ms, Ordering::Relaxed);
        for job in dispatcher.followed() {
            job.status.stop();
        }
    }
    dispatcher.follower.succeed();
    let changes = async |what: &str| store.call(Method::GET, &format!("/_changes?{what}"), None).await;
    let mut page = changes("since=now&limit=1").await?;
    let mut is_first = true;
    loop {
        let rows = page.get("results").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if is_first || rows.iter().any(|row| is_of_jobs(text_of(row, "id"))) {
            is_first = false;
            take(dispatcher, Board::read(store).await?).await;
        }
        let since = encode_segment(text_of(&page, "last_seq"));
        page = changes(&format!("feed=longpoll&since={since}&limit={ROWS_MAX}&timeout={WAIT_MS}")).await?;
    }
}

async fn follow_here(dispatcher: &Arc<Dispatcher>, layer: &Layer) -> Result<(), String> {
    // Follows from now on, then reads all definitions once. This skips the entries of the queue.
    let query = ChangesQuery { since: Since::Now, ..ChangesQuery::default() };
    let mut changes = layer.reader(WORKER).changes(query);
    let mut is_first = true;
    loop {
        let page = changes.next_page().await.map_err(|error| error.to_string())?;
        if is_first || page.rows.iter().any(|row| is_of_jobs(&row.id)) {
            is_first = false;
            let board = Board::read(&dispatcher.store).await.map_err(|error| error.to_string())?;
            take(dispatcher, board).await;
        }
        if !page.at_end {
            continue;
        }
        match changes.wait().await {
            WaitOutcome::MayHaveChanged => {}
            WaitOutcome::Shutdown => return Ok(()),
        }
    }
}

/// Starts and stops jobs to match the board.
async fn take(dispatcher: &Arc<Dispatcher>, board: Board) {
    let known: HashMap<String, Arc<FollowedJob>> =
        dispatcher.followed().into_iter().map(|job| (job.description.id.clone(), job)).collect();
    for (id, job) in &known {
        let is_the_same = board.jobs.get(id).is_some_and(|listed| {
            listed.is_enabled && listed.fingerprint == job.fingerprint && listed.description.is_ok()
        });
        if !is_the_same {
            dispatcher.unfollow(id);
        }
        if !board.jobs.contains_key(id) {
            let (job, home) = (job.clone(), dispatcher.home.clone());
            tokio::spawn(async move {
                job.status.ended().await;
                if let Err(error) = home.forget(&job.id).await {
                    tracing::debug!(job = job.id, %error, "a job's lease could not be removed");
                }
            });
        }
    }
    for (id, listed) in board.jobs {
        let description = match listed.description {
            Ok(description) if listed.is_enabled => description,
            Ok(_) => continue,
            Err(reason) => {
                if listed.is_enabled {
                    tracing::warn!(job = id, reason, "a job of the worker cannot run");
                }
                continue;
            }
        };
        let before = known.get(&id);
        match before.filter(|before| before.fingerprint == listed.fingerprint) {
            Some(before) if !before.status.is_stopped() && !before.status.has_ended() => before.order(&listed.orders),
            _ => {
                if before.is_some() {
                    dispatcher.unfollow(&id);
                }
                let followed = FollowedJob::new(dispatcher, description, listed.fingerprint, listed.orders);
                dispatcher.follow(id, followed);
            }
        }
    }
}

/// Reads the leases of all jobs that other processes run, in few transactions.
async fn watch_leases(dispatcher: &Arc<Dispatcher>) {
    loop {
        dispatcher.clock().sleep(dispatcher.lease() / 4).await;
        if let Err(error) = look_at_leases(dispatcher).await {
            tracing::debug!(%error, "the leases of jobs could not be read");
        }
    }
}

async fn look_at_leases(dispatcher: &Dispatcher) -> Result<(), LeaseError> {
    let waiting = dispatcher.followed().into_iter();
    let waiting = waiting.filter(|job| !job.claim.is_ours() && !job.status.has_ended());
    let mut waiting: HashMap<String, Arc<FollowedJob>> = waiting.map(|job| (job.id.clone(), job)).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let mut after: Option<String> = None;
    loop {
        let page = dispatcher.home.page(after.as_deref()).await?;
        let now = dispatcher.clock().now();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        for (id, found) in page {
            if let Some(job) = waiting.remove(&id) {
                job.claim.note(Some(found), now);
            }
        }
    }
    for job in waiting.into_values() {
        job.claim.note(None, dispatcher.clock().now());
    }
    Ok(())
}
