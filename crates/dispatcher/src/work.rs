//! One job in one process: waits for the lease, and runs the job while it holds it.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_jobs::{Claim, Failure, Job, Next, ResourceShare, Run, Status, lead};
use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::connect::connect;
use flatbed_worker::documents::{CHECKPOINT, Description, JOB, Order, OrderAction, ResetTo};
use flatbed_worker::progress::{AttachmentCounts, Progress};
use flatbed_worker::run::{OwnershipCheck, RunEnd, Runner};
use flatbed_worker::script::ScriptError;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::Dispatcher;
use crate::entries::{Entries, end_order};
use crate::home::Takeover;
use crate::scripts::check;

/// The time for the current batch when a job must end.
const GRACE: Duration = Duration::from_secs(60);

const DONE_MAX: usize = 200;

/// The reason why a job is halted until an administrator acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaltReason {
    /// `made_again`, `behind`, `nonsense`, `unfit`, `too_many_failures`, `queue_full`, `broken` or `gave_up`.
    pub kind: String,
    /// The reason in words.
    pub reason: String,
    /// The fingerprint of the halted description.
    pub of: String,
}

/// The state of a job in its lease.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JobReport {
    /// The epoch, raised by each takeover.
    pub epoch: u64,
    /// The process that holds the lease.
    pub node: String,
    /// The fingerprint of the running description.
    pub of: String,
    /// `running`, `failing`, `halted` or `waiting`.
    pub state: String,
    /// The reason of a halt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted: Option<HaltReason>,
    /// The position up to which everything is delivered or in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<String>,
    /// The number of undelivered rows of the feed.
    pub lag_rows: u64,
    /// True if the lag is current.
    pub is_lag_known: bool,
    /// The age of the target's state, in seconds.
    pub lag_seconds: u64,
    /// The mean number of documents per second in the last minute.
    pub throughput: f64,
    /// The documents that the target accepted, in this process.
    pub delivered: u64,
    /// The entries that were written.
    pub queued: u64,
    /// The entries that were delivered.
    pub replayed: u64,
    /// The attempts that failed because of the state of the source or target.
    pub outages: u64,
    /// The counts of attachments.
    #[serde(default)]
    pub attachments: AttachmentCounts,
    /// The last errors with their times in seconds of Unix time, newest first.
    pub errors: Vec<(u64, String)>,
    /// The time of writing, in seconds of Unix time.
    pub at: u64,
}

#[derive(Debug, Default)]
struct JobRecord {
    epoch: u64,
    halted: Option<HaltReason>,
    /// Completed orders. An older copy of the document may list them again.
    done: VecDeque<String>,
}

/// An enabled job, and its state in this process.
pub struct FollowedJob {
    /// The id of its document and of its lease.
    pub id: String,
    pub(crate) description: Arc<Description>,
    pub(crate) fingerprint: String,
    pub(crate) orders: watch::Sender<Vec<Order>>,
    woken: Arc<Notify>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) status: Status,
    pub(crate) claim: Arc<Claim>,
    node: String,
    shown: Mutex<JobRecord>,
}

impl FollowedJob {
    pub(crate) fn new(
        dispatcher: &Dispatcher,
        description: Description,
        fingerprint: String,
        orders: Vec<Order>,
    ) -> Arc<FollowedJob> {
        let clock = dispatcher.clock();
        Arc::new(FollowedJob {
            id: format!("{JOB}{}", description.id),
            description: Arc::new(description),
            fingerprint,
            orders: watch::Sender::new(orders),
            woken: Arc::default(),
            progress: Arc::new(Progress::new(clock.clone())),
            status: Status::new(clock),
            claim: Arc::new(Claim::new(dispatcher.owner, dispatcher.lease(), clock)),
            node: dispatcher.node(),
            shown: Mutex::default(),
        })
    }

    fn shown(&self) -> MutexGuard<'_, JobRecord> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next pending start or reset.
    fn before_a_run(&self, orders: &[Order]) -> Option<Order> {
        let shown = self.shown();
        let is_next = |order: &&Order| {
            matches!(order.what, OrderAction::Start | OrderAction::Reset) && !shown.done.contains(&order.id)
        };
        orders.iter().find(is_next).cloned()
    }

    fn halted(&self) -> Option<HaltReason> {
        self.shown().halted.clone()
    }

    pub(crate) fn state(&self) -> &'static str {
        let is_halted = self.shown().halted.is_some();
        self.state_of(is_halted)
    }

    fn state_of(&self, is_halted: bool) -> &'static str {
        if !self.claim.is_ours() {
            return "waiting";
        }
        if is_halted {
            return "halted";
        }
        let standing = self.status.standing();
        // A run continues while it waits for its source or target.
        if standing.is_running && !self.progress.is_failing() {
            "running"
        } else if standing.is_running || standing.error.is_some() {
            "failing"
        } else {
            "waiting"
        }
    }

    /// Returns the state for the lease.
    pub fn report(&self) -> JobReport {
        let (halted, epoch) = {
            let shown = self.shown();
            (shown.halted.clone(), shown.epoch)
        };
        let (progress, lag) = (&self.progress, self.progress.lag());
        let errors = progress.errors().into_iter().map(|fault| (fault.at, fault.error)).collect();
        JobReport {
            epoch,
            node: self.node.clone(),
            of: self.fingerprint.clone(),
            // Read together with the reason, so that both describe the same state.
            state: self.state_of(halted.is_some()).to_owned(),
            halted,
            seq: progress.seq().map(|seq| seq.as_str().to_owned()),
            lag_rows: lag.rows,
            is_lag_known: progress.knows_lag(),
            lag_seconds: lag.seconds,
            throughput: progress.throughput(),
            delivered: progress.delivered(),
            queued: progress.queued(),
            replayed: progress.replayed(),
            outages: progress.outages(),
            attachments: progress.attachments(),
            errors,
            at: self.status.clock().unix_seconds(),
        }
    }

    pub(crate) fn order(&self, orders: &[Order]) {
        self.orders.send_if_modified(|known| {
            let is_other = known != orders;
            if is_other {
                *known = orders.to_vec();
            }
            is_other
        });
    }

    /// Runs the job whenever this process holds its lease, after its predecessor has ended, until it is stopped.
    pub(crate) async fn run(self: Arc<Self>, dispatcher: Arc<Dispatcher>, before: Option<Arc<FollowedJob>>) {
        if let Some(before) = before {
            before.status.ended().await;
        }
        let leases = dispatcher.leases.clone();
        let backoff = dispatcher.options.backoff;
        let work = Arc::new(Work { followed: self, dispatcher });
        lead(&work, &work.followed.claim, &leases, &backoff).await;
        work.dispatcher.left(&work.followed);
    }
}

struct Work {
    followed: Arc<FollowedJob>,
    dispatcher: Arc<Dispatcher>,
}

#[async_trait]
impl Job for Work {
    fn kind(&self) -> &'static str {
        "worker"
    }

    fn id(&self) -> &str {
        &self.followed.id
    }

    fn status(&self) -> &Status {
        &self.followed.status
    }

    async fn run(&self, mut run: Run) -> Result<Next, Failure> {
        // The epoch must be in the lease before any work under it, because a takeover raises it from there.
        if let Some(fence) = &run.fence {
            match fence().await {
                Ok(true) => {}
                Ok(false) => return Err(Failure::Superseded),
                Err(error) => return Err(Failure::Failed(error)),
            }
        }
        let mut orders = self.followed.orders.subscribe();
        while !run.is_stopped() {
            let order = self.followed.before_a_run(&orders.borrow_and_update());
            if let Some(order) = order {
                self.follow_order(&mut run, &order).await?;
                continue;
            }
            if self.followed.halted().is_some() {
                tokio::select! {
                    _ = orders.changed() => {}
                    _ = run.stop.wait_for(|stop| *stop) => {}
                }
                continue;
            }
            self.followed.status.begin();
            let end = self.run_once(&mut run, None).await?;
            self.note(end)?;
        }
        Ok(Next::Done)
    }

    fn state(&self) -> Vec<u8> {
        let mut told = self.followed.report();
        loop {
            match serde_json::to_vec(&told) {
                Ok(text) if text.len() <= flatbed_jobs::LEASE_STATE_BYTES_MAX => return text,
                _ if told.errors.pop().is_some() => {}
                _ => return format!("{{\"epoch\":{}}}", told.epoch).into_bytes(),
            }
        }
    }

    fn restore(&self, state: &[u8]) {
        let given: Takeover = serde_json::from_slice(state).unwrap_or_default();
        let before = given.told.and_then(|told| serde_json::from_value::<JobReport>(told).ok());
        if let Some(told) = &before {
            self.followed.progress.resume(told.at, told.lag_seconds);
        }
        let mut shown = self.followed.shown();
        shown.epoch = given.epoch;
        shown.halted = before.and_then(|told| told.halted).filter(|halted| halted.of == self.followed.fingerprint);
    }

    fn room(&self) -> Option<ResourceShare> {
        let room = self.dispatcher.rooms.clone().try_acquire_owned().ok()?;
        Some(Box::new(room))
    }

    fn grace(&self) -> Duration {
        GRACE
    }

    fn log_failure(&self, reason: &str) {
        tracing::warn!(job = self.followed.description.id, error = reason, "a job of the worker failed");
    }
}

impl Work {
    /// Maps the end of a run to the job's state.
    fn note(&self, end: RunEnd) -> Result<(), Failure> {
        let (kind, reason) = match end {
            RunEnd::Stopped | RunEnd::Done => return Ok(()),
            RunEnd::Superseded => return Err(Failure::Superseded),
            RunEnd::SourceMismatch(strange @ flatbed_worker::checkpoint::SourceMismatch::MadeAgain) => {
                ("made_again", strange.to_string())
            }
            RunEnd::SourceMismatch(strange @ flatbed_worker::checkpoint::SourceMismatch::Behind) => {
                ("behind", strange.to_string())
            }
            RunEnd::Halted(halt) => ("too_many_failures", halt.to_string()),
            RunEnd::QueueFull(entries) => {
                let reason = format!(
                    "the queue has {entries} entries, which is the limit: replay or delete some, and start the job"
                );
                ("queue_full", reason)
            }
            RunEnd::Broken(error) => ("broken", error),
            RunEnd::GaveUp(error) => ("gave_up", error),
            RunEnd::MalformedAnswer(error) => ("nonsense", error),
            RunEnd::Unfit(error) => ("unfit", error),
        };
        let followed = &self.followed;
        tracing::error!(
            job = followed.description.id,
            kind,
            reason,
            "a job of the worker halts until it is started or reset"
        );
        followed.progress.fail(&reason);
        followed.shown().halted = Some(HaltReason { kind: kind.to_owned(), reason, of: followed.fingerprint.clone() });
        Ok(())
    }

    /// Executes a start or reset and then removes the order.
    async fn follow_order(&self, run: &mut Run, order: &Order) -> Result<(), Failure> {
        let job = &self.followed.description.id;
        if order.what == OrderAction::Reset {
            let to = order.to.unwrap_or(ResetTo::Beginning);
            tracing::info!(job, ?to, "a job of the worker is reset");
            match self.run_once(run, Some(to)).await? {
                RunEnd::Stopped => return Ok(()),
                RunEnd::Superseded => return Err(Failure::Superseded),
                RunEnd::Done => {}
                end => {
                    // A failed order is not retried for ever; the reason is shown.
                    self.note(end)?;
                    return self.end_order(order).await;
                }
            }
        }
        self.followed.shown().halted = None;
        self.end_order(order).await
    }

    async fn end_order(&self, order: &Order) -> Result<(), Failure> {
        let job = &self.followed.description.id;
        let failed = |error: crate::StoreError| Failure::Failed(error.to_string());
        end_order(&self.dispatcher.store, job, &order.id).await.map_err(failed)?;
        let mut shown = self.followed.shown();
        shown.done.push_back(order.id.clone());
        if shown.done.len() > DONE_MAX {
            shown.done.pop_front();
        }
        Ok(())
    }

    async fn run_once(&self, run: &mut Run, reset: Option<ResetTo>) -> Result<RunEnd, Failure> {
        let (followed, dispatcher) = (&self.followed, &self.dispatcher);
        let description = followed.description.clone();
        let failed = |error: String| {
            followed.progress.fail(&error);
            followed.progress.mark_unknown();
            Failure::Failed(error)
        };
        let connecting = {
            let (description, reach) = (description.clone(), dispatcher.options.reach.clone());
            tokio::task::spawn_blocking(move || connect(&description, &reach)).await
        };
        let connected = connecting.map_err(|error| failed(error.to_string()))?;
        let connected = connected.map_err(|error| failed(error.to_string()))?;
        // Detects an invalid function at once instead of with the first document.
        if let Some(source) = description.mapping.function() {
            let checked = check(dispatcher.options.scripts.as_ref(), &description.id, source).await;
            match checked {
                Err(ScriptError::Broken(error)) => return Ok(RunEnd::Broken(error)),
                checked => checked.map_err(|error| failed(error.to_string()))?,
            }
        }
        let copy = dispatcher.store.get(&format!("{CHECKPOINT}{}", description.id)).await;
        let copy = copy.map_err(|error| failed(error.to_string()))?;
        let copy = copy.and_then(|copy| Checkpoint::read(copy.to_string().as_bytes()));
        let mut orders = followed.orders.subscribe();
        let (stop, stopping) = watch::channel(false);
        let queue = Entries::new(
            dispatcher.store.clone(),
            &description.id,
            description.system.dlq.clone(),
            followed.orders.subscribe(),
            dispatcher.metrics.clone(),
            dispatcher.clock(),
        );
        let epoch = followed.shown().epoch;
        let (source, target, redactor) = (connected.source, connected.target, connected.redactor);
        let mut runner = Runner::new(&description, source, target, queue, redactor, stopping, epoch)
            .with_clock(dispatcher.clock().clone())
            .with_progress(followed.progress.clone())
            .with_replay_signal(followed.woken.clone())
            .with_memory(dispatcher.options.memory.clone())
            .while_held(OwnershipCheck::new({
                let (claim, clock) = (followed.claim.clone(), dispatcher.clock().clone());
                move || claim.is_valid(clock.now())
            }));
        if let Some(scripts) = &dispatcher.options.scripts {
            runner = runner.with_scripts(scripts.clone());
        }
        if let Some(copy) = copy {
            runner = runner.with_checkpoint(copy);
        }
        if let Some(to) = reset {
            runner = runner.with_reset(to);
        }
        let mut running = pin!(runner.run());
        loop {
            tokio::select! {
                (end, ..) = &mut running => return Ok(end),
                () = async { let _ = run.stop.wait_for(|stop| *stop).await; } => {
                    stop.send_replace(true);
                    return Ok(running.await.0);
                }
                changed = orders.changed(), if reset.is_none() => {
                    if changed.is_err() || followed.before_a_run(&orders.borrow_and_update()).is_some() {
                        stop.send_replace(true);
                        return Ok(running.await.0);
                    }
                    followed.woken.notify_one();
                }
            }
        }
    }
}
