//! One run of a job: from its checkpoint until it is stopped or cannot continue.
//!
//! The run reads pages until it has a batch or reaches the end of the feed. While a batch is written, it reads the next
//! page and makes the next product, as far as [memory](crate::memory) allows. A batch goes to the target in parts of
//! some megabytes, each with its checkpoint; if the target does not store checkpoints, they are written to the source
//! as often as the job demands. A part that is refused as poison is bisected until the guilty document is alone. That
//! document goes to the queue, and the checkpoint passes it with the next part. A part that is refused because of the
//! target's state is made again and retried, and nothing else is delivered meanwhile.

mod ahead;
mod attaching;
mod delivering;
mod fetched;
mod held;
mod keeping;
mod products;
mod reading;
mod replays;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flatbed_clock::{Clock, LinePacer};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::change::Change;
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity, SourceMismatch};
use crate::documents::{Description, ResetTo, SourceType, System};
use crate::failure::{Failure, Guard, Halt};
use crate::memory::{Charge, Memory};
use crate::output::{BatchLimits, DeliveryError, Target};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::queue::Entry;
use crate::script::Scripts;
use crate::secret::Redactor;
use crate::source::{Source, SourceError};
use ahead::NextChanges;
use fetched::AttachmentCache;
pub use held::OwnershipCheck;
use keeping::KeepEvent;
use reading::{Pace, PendingPage};
pub use replays::{ReplayRequest, ReplayResult};

const ADMITTED_MAX: usize = 10_000;

/// The interval at which queue entries are replayed under a continuous stream of changes.
const REPLAY_EVERY: Duration = Duration::from_secs(5);

/// The number of consecutive malformed answers of a source that halts the job.
const NONSENSE_MAX: u32 = 10;

/// The reason why an entry is not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The queue has reached its limit of entries: the job halts.
    #[error("the queue has {0} entries, which is the limit")]
    Full(u64),
    /// A transient failure: the job waits as for its target.
    #[error("{0}")]
    Failed(String),
}

/// Stores the entries of documents that a target refused.
pub trait Queue: Send {
    /// Writes an entry, replacing one with the same id, and returns once it is durable.
    fn put(&mut self, entry: &Entry) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Returns at most `max` entries to be replayed now. Each is returned once. Empty: there are no more.
    ///
    /// # Errors
    /// The reason why they cannot be read; the run retries later.
    fn wanted(&mut self, _max: usize) -> impl Future<Output = Result<Vec<ReplayRequest>, String>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Stores a copy of a checkpoint that the source did not accept.
    ///
    /// # Errors
    /// The reason why it is not stored; the next checkpoint is tried again.
    fn keep(&mut self, _checkpoint: &Checkpoint) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Stores the outcome of a replay.
    ///
    /// # Errors
    /// As for [`Queue::put`].
    fn settle(&mut self, _entry: &Entry, _what: ReplayResult) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }
}

/// The reason why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// It was told to stop.
    Stopped,
    /// Another process runs the job.
    Superseded,
    /// The source is not the one of the checkpoint. An administrator must reset the job.
    SourceMismatch(SourceMismatch),
    /// Too many documents failed.
    Halted(Halt),
    /// The queue has reached its limit. An administrator must fix the failures, replay entries or delete them.
    QueueFull(u64),
    /// The target's state did not recover within the retries that the job allows.
    GaveUp(String),
    /// The target does not fit the job's mapping or settings.
    Unfit(String),
    /// The mapping's function is not a function.
    Broken(String),
    /// The source's answers are not a feed.
    MalformedAnswer(String),
    /// The run has reached the end of the feed and was told not to wait.
    Done,
}

/// The counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Documents that the target accepted.
    pub delivered: u64,
    /// Entries that were written.
    pub queued: u64,
    /// Batches that failed because of the target's state or connection.
    pub outages: u64,
    /// Queue entries that the target accepted.
    pub replayed: u64,
}

/// A change that was read, with the memory that it occupies.
#[derive(Debug)]
struct ChargedChange {
    change: Change,
    _charge: Charge,
}

/// The causes of log lines that a run repeats. Each has one line a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LoggedTrouble {
    Target,
    /// The target cannot persist the documents that it has accepted.
    Persistence,
    Source,
    Checkpoint,
    Queue,
}

/// A run of a job.
pub struct Runner<'j, S, T, Q> {
    job: &'j Description,
    source: Arc<S>,
    /// `None` while a delivery owns it.
    target: Option<T>,
    /// True if the target stores the checkpoint; below, the limits for grouping documents.
    keeps_checkpoint: bool,
    window: Option<BatchLimits>,
    queue: Q,
    redactor: Redactor,
    stop: watch::Receiver<bool>,
    clock: Clock,
    epoch: u64,
    held: Option<OwnershipCheck>,
    /// True if the run ends at the end of the feed: for tests, and for jobs that run once.
    is_once: bool,
    starting_at: Option<Checkpoint>,
    reset: Option<ResetTo>,
    scripts: Option<Scripts>,
    progress: Arc<Progress>,
    woken: Arc<Notify>,
    memory: Memory,
    /// The bytes of memory that this job's changes occupy.
    own: Arc<AtomicUsize>,
    plan: Plan<ChargedChange>,
    fetched: AttachmentCache,
    /// The next delivery, as far as it is made.
    ahead: Option<NextChanges>,
    /// The most documents per delivery, adapted to the number that the target accepted last.
    together: usize,
    reading: Option<PendingPage>,
    pace: Pace,
    read_to: Seq,
    /// True if the last page reached the end of the feed.
    is_at_end: bool,
    /// The rows of the next page, and its bytes.
    page_rows: usize,
    page_bytes: usize,
    /// Deletions up to here concern documents that the target never had, for a job with `active_only`.
    first_end: Option<u128>,
    sampled_at: Instant,
    replayed_at: Instant,
    identity: SourceIdentity,
    guard: Guard,
    counts: Counts,
    /// Consecutive failures: of the target, of the target's persistence, and of the source.
    failures: u32,
    persist_failures: u32,
    source_failures: u32,
    lines: LinePacer<LoggedTrouble>,
    /// True if the last page could not be read. It is read again once everything is delivered.
    is_source_away: bool,
    /// True if the source must be checked for its identity, because requests failed since the last check.
    was_source_away: bool,
    chance: u32,
    is_initial_sync_done: bool,
    /// The position that the checkpoint may reach, and the written one.
    reached: Option<Seq>,
    begun_at: Seq,
    written: Seq,
    rev: Option<String>,
    /// The number of documents delivered or queued since the checkpoint was written, and the time of writing.
    unkept: u64,
    kept_at: Instant,
}

impl<'j, S: Source, T: Target, Q: Queue> Runner<'j, S, T, Q> {
    /// Creates a run for a process that took the job over with this epoch. The redactor applies to entries and log
    /// lines.
    pub fn new(
        job: &'j Description,
        source: S,
        target: T,
        queue: Q,
        redactor: Redactor,
        stop: watch::Receiver<bool>,
        epoch: u64,
    ) -> Self {
        let clock = Clock::default();
        let now = clock.now();
        Runner {
            job,
            source: Arc::new(source),
            keeps_checkpoint: target.keeps_checkpoint(),
            window: target.window().map(BatchLimits::held),
            target: Some(target),
            queue,
            redactor,
            stop,
            clock: clock.clone(),
            epoch,
            held: None,
            is_once: false,
            starting_at: None,
            reset: None,
            scripts: None,
            progress: Arc::default(),
            woken: Arc::default(),
            memory: Memory::default(),
            own: Arc::default(),
            plan: Plan::new(ADMITTED_MAX),
            fetched: AttachmentCache::default(),
            ahead: None,
            together: ADMITTED_MAX,
            reading: None,
            pace: Pace::new(Memory::default(), Arc::default(), clock.clone()),
            read_to: Seq::default(),
            is_at_end: false,
            page_rows: reading::rows_max(job),
            page_bytes: reading::PAGE_BYTES,
            first_end: None,
            sampled_at: now,
            replayed_at: now,
            identity: SourceIdentity::default(),
            guard: Guard::default(),
            counts: Counts::default(),
            failures: 0,
            persist_failures: 0,
            source_failures: 0,
            lines: LinePacer::new(&clock),
            is_source_away: false,
            was_source_away: false,
            chance: 0x9e37_79b9,
            is_initial_sync_done: false,
            reached: None,
            begun_at: Seq::default(),
            written: Seq::default(),
            rev: None,
            unkept: 0,
            kept_at: now,
        }
    }

    /// Sets the copy of the job's checkpoint, which was imported or which the source did not accept. A checkpoint in
    /// the target is authoritative. Without one the newer of the source's and this one counts, by epoch and then by time.
    #[must_use]
    pub fn with_checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.starting_at = Some(checkpoint);
        self
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        let now = clock.now();
        (self.sampled_at, self.replayed_at, self.kept_at) = (now, now, now);
        self.lines = LinePacer::new(&clock);
        self.clock = clock;
        self
    }

    /// Reports the progress to others.
    #[must_use]
    pub fn with_progress(mut self, progress: Arc<Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// Stops sending to the target and writing checkpoints once `held` says that another process may run the job.
    #[must_use]
    pub fn while_held(mut self, held: OwnershipCheck) -> Self {
        self.held = Some(held);
        self
    }

    /// Shares a memory budget with other jobs.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// Looks for entries to be replayed when notified, not only with the next change.
    #[must_use]
    pub fn with_replay_signal(mut self, woken: Arc<Notify>) -> Self {
        self.woken = woken;
        self
    }

    /// Sets the runner of functions. Without it a job whose mapping has a function cannot run.
    #[must_use]
    pub fn with_scripts(mut self, scripts: Scripts) -> Self {
        self.scripts = Some(scripts);
        self
    }

    /// Only resets the job's position: writes such a checkpoint and ends with [`RunEnd::Done`].
    #[must_use]
    pub fn with_reset(mut self, to: ResetTo) -> Self {
        self.reset = Some(to);
        self
    }

    /// Ends the run at the end of the feed.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Runs until a [`RunEnd`] and returns the parts.
    ///
    /// The target is `None` if it was lost.
    pub async fn run(mut self) -> (RunEnd, Counts, Arc<S>, Option<T>, Q) {
        let Err(end) = self.run_to_end().await;
        self.keep_at_end(&end).await;
        (end, self.counts, self.source, self.target, self.queue)
    }

    fn target(&mut self) -> Result<&mut T, RunEnd> {
        self.target.as_mut().ok_or_else(|| RunEnd::GaveUp("the target is lost".to_owned()))
    }

    fn system(&self) -> &'j System {
        &self.job.system
    }

    async fn run_to_end(&mut self) -> Result<std::convert::Infallible, RunEnd> {
        self.pace = Pace::new(self.memory.clone(), self.own.clone(), self.clock.clone());
        let checkpoint = self.begin().await?;
        if self.reset.is_some() {
            return Err(RunEnd::Done);
        }
        self.read_to = match &checkpoint {
            Some(checkpoint) => checkpoint.seq.clone(),
            None => self.first_seq(),
        };
        (self.begun_at, self.written) = (self.read_to.clone(), self.read_to.clone());
        self.progress.at(&self.read_to);
        let window = self.window;
        let batch_max = window.map_or(self.batch_max(), |window| window.documents);
        let bytes_max = window.map_or(reading::ADMITTED_BYTES_MAX, |window| window.bytes);
        loop {
            // A gathered window is delivered before the end, so that it is not read again.
            if *self.stop.borrow() && (window.is_none() || self.plan.is_empty()) {
                return Err(RunEnd::Stopped);
            }
            let has_enough = |this: &Self| {
                let is_full = this.plan.admitted() >= batch_max || this.own.load(Ordering::Relaxed) >= bytes_max;
                let is_away = this.is_source_away && !this.plan.is_empty();
                this.is_at_end || is_full || is_away || this.ahead.is_some() || *this.stop.borrow()
            };
            while !has_enough(self) && self.start_reading(false).await? {
                match self.take_in().await {
                    Err(RunEnd::Stopped) if window.is_some() => break,
                    taken => taken?,
                }
            }
            if let Some(window) = window.filter(|_| self.is_at_end && !self.is_once && !self.plan.is_empty()) {
                self.gather(window).await?;
            }
            while !self.plan.is_empty() {
                if !self.is_at_end && !self.is_source_away {
                    self.start_reading(false).await?;
                }
                if self.ahead.is_none() {
                    self.ahead = self.take_batch(batch_max).map(NextChanges::unmade);
                }
                // A lost batch must end the run rather than loop.
                let Some(next) = self.ahead.take() else {
                    return Err(RunEnd::GaveUp("changes are left that nothing is to be done with".to_owned()));
                };
                self.deliver(next, batch_max).await?;
                self.fetched.clear();
                self.keep(if window.is_some() { KeepEvent::Rest } else { KeepEvent::Batch }).await?;
                // A gathered window is delivered whole; otherwise an available page comes first.
                if window.is_none() {
                    break;
                }
            }
            if !self.plan.is_empty() && self.clock.since(self.replayed_at) < REPLAY_EVERY {
                continue;
            }
            let is_more = self.replay().await?;
            self.replayed_at = self.clock.now();
            if !self.is_at_end || !self.plan.is_empty() {
                continue;
            }
            (self.is_initial_sync_done, self.first_end) = (true, None);
            self.progress.behind(0);
            self.keep(KeepEvent::Rest).await?;
            if !self.is_at_end {
                continue;
            }
            if self.is_once && !is_more {
                return Err(RunEnd::Done);
            }
            self.start_reading(true).await?;
            if !is_more || self.reading.as_ref().is_some_and(PendingPage::is_finished) {
                self.take_in().await?;
            }
        }
    }

    fn first_seq(&self) -> Seq {
        match &self.job.input.changes_feed.since {
            Some(serde_json::Value::String(text)) => Seq::parse(text).unwrap_or_default(),
            Some(other) => Seq::parse(&other.to_string()).unwrap_or_default(),
            None => Seq::default(),
        }
    }

    /// Returns the checkpoint to resume from: the target's, else the source's.
    async fn begin(&mut self) -> Result<Option<Checkpoint>, RunEnd> {
        let found = loop {
            let epoch = self.epoch;
            match self.target()?.begin(epoch).await {
                Ok(found) => break found,
                Err(refused) => {
                    self.progress.mark_unknown();
                    self.pause_for(refused).await?;
                }
            }
        };
        let (identity, update_seq) = loop {
            match self.source.identity().await {
                Ok(identity) => break identity,
                Err(error) => self.pause_for_source(&error).await?,
            }
        };
        self.identity = identity;
        let mut checkpoint = found;
        // The target's checkpoint is authoritative even if it has none: its tables may be new.
        let id = self.local_id();
        while checkpoint.is_none() && !self.keeps_checkpoint {
            match self.source.checkpoint(&id).await {
                Ok(Some((found, rev))) => (checkpoint, self.rev) = (Some(found), Some(rev)),
                Ok(None) => break,
                Err(error) => self.pause_for_source(&error).await?,
            }
        }
        let copy = self.starting_at.take();
        let checkpoint = match (checkpoint, copy) {
            (Some(one), Some(copy)) if !self.keeps_checkpoint => {
                let is_newer = (copy.epoch, copy.time) > (one.epoch, one.time);
                Some(if is_newer { copy } else { one })
            }
            (one, copy) => one.or(copy),
        };
        (self.failures, self.source_failures, self.was_source_away) = (0, 0, false);
        self.tell_failing();
        self.progress.sampled(&update_seq);
        if let Some(to) = self.reset {
            let (seq, is_initial_sync_done) = match (to, checkpoint) {
                (ResetTo::AsIs, Some(checkpoint)) => (checkpoint.seq, checkpoint.is_initial_sync_done),
                (ResetTo::Now, _) => (update_seq, true),
                (ResetTo::Beginning | ResetTo::AsIs, _) => (self.first_seq(), false),
            };
            if self.system().processing.dry_run {
                return Ok(None);
            }
            self.is_initial_sync_done = is_initial_sync_done;
            // Differs from every written position.
            self.written = Seq::unlike_any();
            while self.written == Seq::unlike_any() {
                self.reached = Some(seq.clone());
                self.keep(KeepEvent::Reset).await?;
                if self.written == Seq::unlike_any() {
                    self.pause_for(DeliveryError::failed(Failure::Connection, "the checkpoint could not be written"))
                        .await?;
                }
            }
            return Ok(None);
        }
        if let Some(checkpoint) = &checkpoint {
            checkpoint.check(&self.identity, &update_seq).map_err(RunEnd::SourceMismatch)?;
            self.is_initial_sync_done = checkpoint.is_initial_sync_done;
        } else if self.job.input.changes_feed.active_only {
            // Sequences must form one order. CouchDB's are ordered per shard: a delivered document may come before it.
            let is_one_order = self.job.input.source_type != SourceType::Couchdb || update_seq.incarnation().is_some();
            self.first_end = update_seq.number().filter(|_| is_one_order);
        }
        Ok(checkpoint)
    }

    /// Checks the source's identity after a time without answers.
    async fn look_at_source(&mut self) -> Result<(), RunEnd> {
        let (identity, update_seq) = loop {
            match self.source.identity().await {
                Ok(identity) => break identity,
                Err(error) => self.pause_for_source(&error).await?,
            }
        };
        self.checkpoint_at(self.read_to.clone()).check(&identity, &update_seq).map_err(RunEnd::SourceMismatch)?;
        self.was_source_away = false;
        Ok(())
    }

    fn checkpoint_at(&self, seq: Seq) -> Checkpoint {
        let client_id = self.system().checkpoint.client_id.clone().unwrap_or_else(|| "changes_worker".to_owned());
        let source = self.identity.clone();
        Checkpoint {
            seq,
            client_id,
            time: self.clock.unix_seconds(),
            is_initial_sync_done: self.is_initial_sync_done,
            epoch: self.epoch,
            source,
        }
    }

    /// Waits before the target is retried, as the schedule and the target demand.
    async fn pause_for(&mut self, refused: DeliveryError) -> Result<(), RunEnd> {
        let until = self.note_refused(refused)?;
        self.pause(until).await
    }

    /// Counts a refusal because of the target's state and returns the time of the retry.
    fn note_refused(&mut self, refused: DeliveryError) -> Result<Instant, RunEnd> {
        self.failures = self.failures.saturating_add(1);
        self.note_outage(refused, self.failures, LoggedTrouble::Target)
    }

    async fn pause_for_source(&mut self, error: &SourceError) -> Result<(), RunEnd> {
        let until = self.note_unread(error)?;
        self.pause(until).await
    }

    /// Counts a failed request to the source and returns the time of the retry.
    fn note_unread(&mut self, error: &SourceError) -> Result<Instant, RunEnd> {
        if let SourceError::MalformedAnswer(nonsense) = error
            && self.source_failures >= NONSENSE_MAX
        {
            return Err(RunEnd::MalformedAnswer(nonsense.to_string()));
        }
        self.source_failures = self.source_failures.saturating_add(1);
        self.was_source_away = true;
        self.progress.mark_unknown();
        self.note_outage(DeliveryError::failed(Failure::Connection, error), self.source_failures, LoggedTrouble::Source)
    }

    /// Reports whether the last request to the source or target failed.
    fn tell_failing(&self) {
        self.progress.set_failing(self.failures > 0 || self.persist_failures > 0 || self.source_failures > 0);
    }

    fn note_outage(&mut self, refused: DeliveryError, failures: u32, cause: LoggedTrouble) -> Result<Instant, RunEnd> {
        let (error, retry_after) = match refused {
            DeliveryError::Failed { error, retry_after, .. } => (error, retry_after),
            DeliveryError::Superseded => return Err(RunEnd::Superseded),
            DeliveryError::Unfit(reason) => return Err(RunEnd::Unfit(self.redactor.text(&reason, 500))),
        };
        self.counts.outages += 1;
        let error = self.redactor.text(&error, 500);
        self.progress.add_outage(&error);
        self.tell_failing();
        if let Some(left_out) = self.lines.line(cause) {
            tracing::warn!(job = self.job.id, failures, error, left_out, "a job waits for its source or target");
        }
        // Jitter need not be unpredictable.
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let schedule = self.system().schedule();
        let pause = schedule.pause(failures, retry_after, self.chance).ok_or(RunEnd::GaveUp(error))?;
        Ok(self.clock.now() + pause.max(Duration::from_millis(1)))
    }

    async fn pause(&mut self, until: Instant) -> Result<(), RunEnd> {
        let mut stop = self.stop.clone();
        let is_told = self.clock.timeout_at(until, stop.wait_for(|stop| *stop)).await.is_ok();
        if is_told { Err(RunEnd::Stopped) } else { Ok(()) }
    }
}
