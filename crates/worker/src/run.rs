//! One run of a job: from its checkpoint on until it is asked to end, or cannot go on.
//!
//! Pages are read until there is a batch or the feed's end; the next one is read, and what is delivered next is made, while a batch is
//! written, as far as there is [memory](crate::memory). A batch goes to the target in parts of some megabytes, each with the checkpoint
//! that is reached by it; a target that keeps none has it at the source, as often as the job says. A part that is refused as poison is
//! halved until the guilty document is alone; that goes to the queue, and the checkpoint passes it with the next part. One that is
//! refused for the target's state is made anew and tried again, and nothing else is delivered meanwhile.

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

use flatbed_clock::Clock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::change::Change;
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity, Strange};
use crate::documents::{Description, ResetTo, SourceType, System};
use crate::failure::{Failure, Guard, Halt};
use crate::memory::{Charge, Memory};
use crate::output::{Refused, Target, Window};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::queue::Entry;
use crate::script::Scripts;
use crate::secret::Redactor;
use crate::source::{Source, SourceError};
use ahead::Ahead;
use fetched::Fetched;
pub use held::Held;
use keeping::Moment;
use reading::{Pace, Reading};
pub use replays::{Replayed, Wanted};

/// Changes that are read ahead.
const ADMITTED_MAX: usize = 10_000;

/// Entries are looked for so often, while there are changes without end.
const REPLAY_EVERY: Duration = Duration::from_secs(5);

/// Answers of a source that are none, in a row, until the job halts.
const NONSENSE_MAX: u32 = 10;

/// Why an entry is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// There are as many as there may be, so many: the job halts.
    #[error("the queue has {0} entries, as many as there may be")]
    Full(u64),
    /// The job waits as for its target.
    #[error("{0}")]
    Failed(String),
}

/// Keeps entries of documents that a target did not take.
pub trait Queue: Send {
    /// Writes an entry, in the place of one with the same id, and returns once it is kept for good.
    ///
    /// # Errors
    /// [`NotKept`].
    fn put(&mut self, entry: &Entry) -> impl Future<Output = Result<(), NotKept>> + Send;

    /// Entries that are to be replayed now, at most `max`; each is asked for once. None: there are no more.
    ///
    /// # Errors
    /// Why they cannot be read; they are asked for again later.
    fn wanted(&mut self, _max: usize) -> impl Future<Output = Result<Vec<Wanted>, String>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Keeps a copy of a checkpoint that its source did not take.
    ///
    /// # Errors
    /// Why it is not kept; it is tried with the next.
    fn keep(&mut self, _checkpoint: &Checkpoint) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Keeps what became of one of them.
    ///
    /// # Errors
    /// As of [`Queue::put`].
    fn settle(&mut self, _entry: &Entry, _what: Replayed) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Stopped,
    /// Another process has the job.
    Superseded,
    /// The source is another one than the checkpoint's: somebody must say what is meant.
    Strange(Strange),
    /// Too many documents failed.
    Halted(Halt),
    /// Its queue has no room for another entry: somebody must mend what fails, replay entries or delete them.
    QueueFull(u64),
    /// The target's state did not mend within as many tries as the job allows.
    GaveUp(String),
    /// The target is not made for what the job brings.
    Unfit(String),
    /// The mapping's function is not a function.
    Broken(String),
    /// The source answers what is no feed.
    Nonsense(String),
    /// The source can be read no further: what is given is its end, and nobody wants to wait.
    Done,
}

/// What a run counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Documents that the target took.
    pub delivered: u64,
    /// Entries that were written.
    pub queued: u64,
    /// Batches that the target refused for its own state, or could not be reached with.
    pub outages: u64,
    /// Entries of the queue that it took.
    pub replayed: u64,
}

/// A change that was read, and the room that it takes.
#[derive(Debug)]
struct Waiting {
    change: Change,
    _charge: Charge,
}

/// A run of a job.
pub struct Runner<'j, S, T, Q> {
    job: &'j Description,
    source: Arc<S>,
    /// `None` while it is written to.
    target: Option<T>,
    /// Whether that keeps the checkpoint, and until when documents are waited for that it takes together.
    keeps_checkpoint: bool,
    window: Option<Window>,
    queue: Q,
    redactor: Redactor,
    stop: watch::Receiver<bool>,
    clock: Clock,
    epoch: u64,
    held: Option<Held>,
    /// Whether the end of the feed ends the run: for tests, and for jobs that are run once.
    is_once: bool,
    starting_at: Option<Checkpoint>,
    reset: Option<ResetTo>,
    scripts: Option<Scripts>,
    progress: Arc<Progress>,
    /// Notified when entries are to be replayed.
    woken: Arc<Notify>,
    memory: Memory,
    /// What this job has of it for what it has read, in bytes.
    own: Arc<AtomicUsize>,
    plan: Plan<Waiting>,
    fetched: Fetched,
    /// What is delivered next, as far as it is made.
    ahead: Option<Ahead>,
    /// Documents that are delivered together at most, by how many the target took last.
    together: usize,
    /// A page that is under way.
    reading: Option<Reading>,
    pace: Pace,
    /// Where the next page begins.
    read_to: Seq,
    /// Whether the last page was the feed's end.
    is_at_end: bool,
    /// Rows of the next page, and bytes of it.
    page_rows: usize,
    page_bytes: usize,
    /// Up to here deletions are of documents that the target never had, for a job that wants none of them.
    first_end: Option<u64>,
    /// When it was last asked where the feed ends.
    sampled_at: Instant,
    replayed_at: Instant,
    identity: SourceIdentity,
    guard: Guard,
    counts: Counts,
    /// Failures in a row: of the target, of the target to keep what it took, and of the source.
    failures: u32,
    persist_failures: u32,
    source_failures: u32,
    /// The last page could not be read, and is asked for again once all is delivered.
    is_source_away: bool,
    /// It has not answered since it was last looked whether it still is the source that it was.
    was_source_away: bool,
    chance: u32,
    is_initial_sync_done: bool,
    /// Where the checkpoint may be, and where it is.
    reached: Option<Seq>,
    begun_at: Seq,
    written: Seq,
    /// The revision of the one at the source.
    rev: Option<String>,
    /// Documents that were delivered or put aside since it was written, and when that was.
    unkept: u64,
    kept_at: Instant,
}

impl<'j, S: Source, T: Target, Q: Queue> Runner<'j, S, T, Q> {
    /// Of a process that has taken the job over with this epoch. What the redactor hides is in no entry and in no line of the log.
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
            window: target.window().map(Window::held),
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
            fetched: Fetched::default(),
            ahead: None,
            together: ADMITTED_MAX,
            reading: None,
            pace: Pace::new(Memory::default(), Arc::default(), clock),
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

    /// The copy of the job's checkpoint: what was imported, or what the source did not take. A target's own is the truth; of the source's and
    /// this one the newer counts, by epoch and then by time.
    #[must_use]
    pub fn starting_at(mut self, checkpoint: Checkpoint) -> Self {
        self.starting_at = Some(checkpoint);
        self
    }

    /// Takes the time from `clock` instead of the machine's.
    #[must_use]
    pub fn timed_by(mut self, clock: Clock) -> Self {
        let now = clock.now();
        (self.sampled_at, self.replayed_at, self.kept_at) = (now, now, now);
        self.clock = clock;
        self
    }

    /// Tells others how far it is.
    #[must_use]
    pub fn telling(mut self, progress: Arc<Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// Sends nothing to the target any more, and writes no checkpoint, once this says that the job may be another process's.
    #[must_use]
    pub fn while_held(mut self, held: Held) -> Self {
        self.held = Some(held);
        self
    }

    /// Has its room in common with other jobs.
    #[must_use]
    pub fn sharing(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// Looks for entries to be replayed whenever it is notified, and not only with the next change.
    #[must_use]
    pub fn woken_by(mut self, woken: Arc<Notify>) -> Self {
        self.woken = woken;
        self
    }

    /// Runs the mapping's function; without it a job that has one cannot run.
    #[must_use]
    pub fn running(mut self, scripts: Scripts) -> Self {
        self.scripts = Some(scripts);
        self
    }

    /// Only says where the job goes on from now on: writes such a checkpoint, and ends with [`End::Done`].
    #[must_use]
    pub fn resetting(mut self, to: ResetTo) -> Self {
        self.reset = Some(to);
        self
    }

    /// Ends at the end of the feed.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Runs, and says what came of it; gives back the parts.
    ///
    /// The target is `None` where it was lost.
    pub async fn run(mut self) -> (End, Counts, Arc<S>, Option<T>, Q) {
        let Err(end) = self.run_to_end().await;
        self.keep_at_end(&end).await;
        (end, self.counts, self.source, self.target, self.queue)
    }

    fn target(&mut self) -> Result<&mut T, End> {
        self.target.as_mut().ok_or_else(|| End::GaveUp("the target is lost".to_owned()))
    }

    fn system(&self) -> &'j System {
        &self.job.system
    }

    async fn run_to_end(&mut self) -> Result<std::convert::Infallible, End> {
        self.pace = Pace::new(self.memory.clone(), self.own.clone(), self.clock.clone());
        let checkpoint = self.begin().await?;
        if self.reset.is_some() {
            return Err(End::Done);
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
            // What a window has gathered is delivered before the end, so that it is not read once more.
            if *self.stop.borrow() && (window.is_none() || self.plan.is_empty()) {
                return Err(End::Stopped);
            }
            let has_enough = |this: &Self| {
                let is_full = this.plan.admitted() >= batch_max || this.own.load(Ordering::Relaxed) >= bytes_max;
                let is_away = this.is_source_away && !this.plan.is_empty();
                this.is_at_end || is_full || is_away || this.ahead.is_some() || *this.stop.borrow()
            };
            while !has_enough(self) && self.start_reading(false).await? {
                match self.take_in().await {
                    Err(End::Stopped) if window.is_some() => break,
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
                    self.ahead = self.take_batch(batch_max).map(Ahead::unmade);
                }
                // What is lost between the two must end the run, not spin.
                let Some(next) = self.ahead.take() else {
                    return Err(End::GaveUp("changes are left that nothing is to be done with".to_owned()));
                };
                self.deliver(next, batch_max).await?;
                self.fetched.clear();
                self.keep(if window.is_some() { Moment::Rest } else { Moment::Batch }).await?;
                // What was gathered is delivered whole; else a page that is there comes first.
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
            self.keep(Moment::Rest).await?;
            if !self.is_at_end {
                continue;
            }
            if self.is_once && !is_more {
                return Err(End::Done);
            }
            self.start_reading(true).await?;
            if !is_more || self.reading.as_ref().is_some_and(Reading::is_finished) {
                self.take_in().await?;
            }
        }
    }

    /// Where a job without a checkpoint begins.
    fn first_seq(&self) -> Seq {
        match &self.job.input.changes_feed.since {
            Some(serde_json::Value::String(text)) => Seq::parse(text).unwrap_or_default(),
            Some(other) => Seq::parse(&other.to_string()).unwrap_or_default(),
            None => Seq::default(),
        }
    }

    /// The checkpoint to go on from: the target's, else the one that lies at the source.
    async fn begin(&mut self) -> Result<Option<Checkpoint>, End> {
        let found = loop {
            let epoch = self.epoch;
            match self.target()?.begin(epoch).await {
                Ok(found) => break found,
                Err(refused) => {
                    // The source is not read meanwhile.
                    self.progress.lose_sight();
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
        // What a target keeps is the truth, also where it has nothing: its tables may be new.
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
            // Unlike any that is written.
            self.written = Seq::unlike_any();
            while self.written == Seq::unlike_any() {
                self.reached = Some(seq.clone());
                self.keep(Moment::Reset).await?;
                if self.written == Seq::unlike_any() {
                    self.pause_for(Refused::failed(Failure::Connection, "the checkpoint could not be written")).await?;
                }
            }
            return Ok(None);
        }
        if let Some(checkpoint) = &checkpoint {
            checkpoint.check(&self.identity, &update_seq).map_err(End::Strange)?;
            self.is_initial_sync_done = checkpoint.is_initial_sync_done;
        } else if self.job.input.changes_feed.active_only {
            // Where a feed is one order. CouchDB's is one of each shard: a document that was delivered may have gone before it.
            let is_one_order = self.job.input.source_type != SourceType::Couchdb || update_seq.incarnation().is_some();
            self.first_end = update_seq.number().filter(|_| is_one_order);
        }
        Ok(checkpoint)
    }

    /// After a time without answers: whether it still is the source that it was.
    async fn look_at_source(&mut self) -> Result<(), End> {
        let (identity, update_seq) = loop {
            match self.source.identity().await {
                Ok(identity) => break identity,
                Err(error) => self.pause_for_source(&error).await?,
            }
        };
        self.checkpoint_at(self.read_to.clone()).check(&identity, &update_seq).map_err(End::Strange)?;
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

    /// Waits before the target is tried again, as long as the schedule and the target ask.
    async fn pause_for(&mut self, refused: Refused) -> Result<(), End> {
        let until = self.note_refused(refused)?;
        self.pause(until).await
    }

    /// Counts that the target refused something for its state; gives when it is to be tried again.
    fn note_refused(&mut self, refused: Refused) -> Result<Instant, End> {
        self.failures = self.failures.saturating_add(1);
        self.note_outage(refused, self.failures)
    }

    async fn pause_for_source(&mut self, error: &SourceError) -> Result<(), End> {
        let until = self.note_unread(error)?;
        self.pause(until).await
    }

    /// Counts that the source did not answer as it should; gives when it is to be asked again.
    fn note_unread(&mut self, error: &SourceError) -> Result<Instant, End> {
        if let SourceError::Nonsense(nonsense) = error
            && self.source_failures >= NONSENSE_MAX
        {
            return Err(End::Nonsense(nonsense.to_string()));
        }
        self.source_failures = self.source_failures.saturating_add(1);
        self.was_source_away = true;
        self.progress.lose_sight();
        self.note_outage(Refused::failed(Failure::Connection, error), self.source_failures)
    }

    /// Reports whether the last try of the source or the target failed.
    fn tell_failing(&self) {
        self.progress.set_failing(self.failures > 0 || self.persist_failures > 0 || self.source_failures > 0);
    }

    fn note_outage(&mut self, refused: Refused, failures: u32) -> Result<Instant, End> {
        let (error, retry_after) = match refused {
            Refused::Failed { error, retry_after, .. } => (error, retry_after),
            Refused::Superseded => return Err(End::Superseded),
            Refused::Unfit(reason) => return Err(End::Unfit(self.redactor.text(&reason, 500))),
        };
        self.counts.outages += 1;
        let error = self.redactor.text(&error, 500);
        self.progress.add_outage(&error);
        self.tell_failing();
        tracing::warn!(job = self.job.id, failures, error, "a job waits for its source or target");
        // Spread well enough: pauses need not be unforeseeable.
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let schedule = self.system().schedule();
        let pause = schedule.pause(failures, retry_after, self.chance).ok_or(End::GaveUp(error))?;
        Ok(self.clock.now() + pause.max(Duration::from_millis(1)))
    }

    async fn pause(&mut self, until: Instant) -> Result<(), End> {
        let mut stop = self.stop.clone();
        let is_told = self.clock.timeout_at(until, stop.wait_for(|stop| *stop)).await.is_ok();
        if is_told { Err(End::Stopped) } else { Ok(()) }
    }
}
