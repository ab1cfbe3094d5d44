//! One run of a job: from its checkpoint on until it is asked to end, or cannot go on.
//!
//! Pages are read until there is a batch or the feed's end. A batch goes to the target with the checkpoint that is reached by it; a
//! target that keeps none has it at the source, every 1,000 documents or 5 s. A batch that is refused as poison is split in halves until the guilty document is alone; that goes to the queue, and
//! the checkpoint passes it with the next batch. A batch that is refused for the target's state is tried again as it is, and nothing
//! else is done meanwhile.

mod held;
mod products;
mod replays;
mod window;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, watch};

use crate::change::{Change, What};
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity, Strange, local_id};
use crate::documents::{Description, Output, ResetTo, System};
use crate::failure::{Class, Failure, Guard, Halt};
use crate::output::{Delivery, Refused, State, Target, Window};
use crate::plan::{Plan, Taken};
use crate::progress::Progress;
use crate::queue::{Entry, Failed};
use crate::rows::Unmappable;
use crate::script::Scripts;
use crate::secret::Redactor;
use crate::source::{Source, SourceError};
pub use held::Held;
pub use replays::{Replayed, Wanted};

/// Changes that are read ahead.
const ADMITTED_MAX: usize = 10_000;

/// Their documents together, in bytes, beyond which no further page is read.
const ADMITTED_BYTES_MAX: usize = 64 << 20;

/// Rows of a page.
const PAGE_ROWS: usize = 1_000;

/// A checkpoint is written to a source after so many documents, or such a time.
const KEEP_AFTER: u64 = 1_000;
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// No source is asked for changes more often, where it has none.
const IDLE_MIN: Duration = Duration::from_millis(500);

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
    /// The mapping's function is none.
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

/// A run of a job.
pub struct Runner<'j, S, T, Q> {
    job: &'j Description,
    source: S,
    target: T,
    queue: Q,
    redactor: Redactor,
    stop: watch::Receiver<bool>,
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
    plan: Plan<Change>,
    identity: SourceIdentity,
    guard: Guard,
    counts: Counts,
    /// Of what waits in the plan, about.
    bytes: usize,
    failures: u32,
    chance: u32,
    is_initial_sync_done: bool,
    /// Where the checkpoint may be, and where it is.
    reached: Option<Seq>,
    written: Seq,
    /// The revision of the one at the source.
    rev: Option<String>,
    /// Documents since it was written, and when that was.
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
        Runner {
            job,
            source,
            target,
            queue,
            redactor,
            stop,
            epoch,
            held: None,
            is_once: false,
            starting_at: None,
            reset: None,
            scripts: None,
            progress: Arc::default(),
            woken: Arc::default(),
            plan: Plan::new(ADMITTED_MAX),
            identity: SourceIdentity::default(),
            guard: Guard::default(),
            counts: Counts::default(),
            bytes: 0,
            failures: 0,
            chance: 0x9e37_79b9,
            is_initial_sync_done: false,
            reached: None,
            written: Seq::default(),
            rev: None,
            unkept: 0,
            kept_at: Instant::now(),
        }
    }

    /// The copy of the job's checkpoint: what was imported, or what the source did not take. A target's own is the truth; of the source's and
    /// this one the newer counts, by epoch and then by time.
    #[must_use]
    pub fn starting_at(mut self, checkpoint: Checkpoint) -> Self {
        self.starting_at = Some(checkpoint);
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
    pub async fn run(mut self) -> (End, Counts, S, T, Q) {
        let Err(end) = self.run_to_end().await;
        (end, self.counts, self.source, self.target, self.queue)
    }

    fn system(&self) -> &'j System {
        &self.job.system
    }

    async fn run_to_end(&mut self) -> Result<std::convert::Infallible, End> {
        let checkpoint = self.begin().await?;
        if self.reset.is_some() {
            return Err(End::Done);
        }
        let mut read_to = match &checkpoint {
            Some(checkpoint) => checkpoint.seq.clone(),
            None => self.first_seq(),
        };
        self.written = read_to.clone();
        self.progress.at(&read_to);
        let window = self.target.window().map(Window::held);
        let batch_max = window.map_or(self.system().processing.batch(), |window| window.documents);
        let bytes_max = window.map_or(ADMITTED_BYTES_MAX, |window| window.bytes);
        let mut is_at_end = false;
        loop {
            while !is_at_end && self.plan.admitted() < batch_max && self.bytes < bytes_max {
                is_at_end = match self.read(&mut read_to, false).await {
                    Err(End::Stopped) if window.is_some() => break,
                    read => read?,
                };
            }
            if let Some(window) = window.filter(|_| is_at_end && !self.is_once && !self.plan.is_empty()) {
                is_at_end = self.gather(window, &mut read_to).await?;
            }
            while !self.plan.is_empty() {
                // What a window has gathered is delivered before the end, so that it is not read once more.
                if *self.stop.borrow() && window.is_none() {
                    return Err(End::Stopped);
                }
                let mut batch = Vec::new();
                while let Some(taken) = self.plan.take(batch_max) {
                    batch.push(taken);
                }
                // What is lost between the two must end the run, not spin.
                if batch.is_empty() {
                    return Err(End::GaveUp("changes are left that nothing is to be done with".to_owned()));
                }
                self.deliver(batch).await?;
                self.keep(window.is_some()).await?;
            }
            self.bytes = 0;
            let is_more = self.replay().await?;
            if is_at_end {
                self.is_initial_sync_done = true;
                self.progress.behind(0);
                self.keep(true).await?;
                if self.is_once && !is_more {
                    return Err(End::Done);
                }
                is_at_end = self.read(&mut read_to, !is_more).await?;
            }
            if *self.stop.borrow() {
                return Err(End::Stopped);
            }
        }
    }

    /// Writes the checkpoint where no batch has written it. `is_idle`: now, and not only once it is worth it.
    async fn keep(&mut self, is_idle: bool) -> Result<(), End> {
        self.reached = self.plan.checkpoint().or(self.reached.take());
        if let Some(reached) = &self.reached {
            self.progress.at(reached);
        }
        let is_due = is_idle || self.unkept >= KEEP_AFTER || self.kept_at.elapsed() >= KEEP_EVERY;
        let Some(seq) = self.reached.clone().filter(|seq| is_due && *seq != self.written) else { return Ok(()) };
        let checkpoint = self.checkpoint_at(seq.clone());
        if self.system().processing.dry_run {
            return Ok(());
        }
        (self.unkept, self.kept_at) = (0, Instant::now());
        if self.target.keeps_checkpoint() {
            // Nothing of it can be poison.
            let _ = self.deliver_until_taken(Vec::new(), Some(checkpoint)).await?;
            self.written = seq;
            return Ok(());
        }
        self.check_held()?;
        let id = self.local_id();
        let mut written = self.source.write_checkpoint(&id, &checkpoint, self.rev.as_deref()).await;
        if written == Err(SourceError::Status(409)) {
            // Who has the job now writes it under a higher epoch.
            match self.source.checkpoint(&id).await {
                Ok(Some((other, _))) if other.epoch > self.epoch => return Err(End::Superseded),
                Ok(found) => {
                    let rev = found.map(|(_, rev)| rev);
                    written = self.source.write_checkpoint(&id, &checkpoint, rev.as_deref()).await;
                }
                Err(error) => written = Err(error),
            }
        }
        match written {
            Ok(rev) => (self.rev, self.written) = (Some(rev), seq),
            // It is written the next time; what is lost by it is delivered again.
            Err(error) => match self.queue.keep(&checkpoint).await {
                Ok(()) => self.written = seq,
                Err(other) => {
                    let other = self.redactor.text(&other, 500);
                    tracing::warn!(job = self.job.id, %error, other, "a job's checkpoint could not be written");
                }
            },
        }
        Ok(())
    }

    /// Where its checkpoint lies at the source.
    fn local_id(&self) -> String {
        let input = &self.job.input;
        let client_id = self.system().checkpoint.client_id.as_deref().unwrap_or("changes_worker");
        let place = input.url.as_deref().or(input.local.as_deref()).unwrap_or_default();
        local_id(client_id, place, &input.changes_feed.channels, &self.job.id)
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
            match self.target.begin(self.epoch).await {
                Ok(found) => break found,
                Err(refused) => self.pause_for(refused).await?,
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
        while checkpoint.is_none() && !self.target.keeps_checkpoint() {
            match self.source.checkpoint(&id).await {
                Ok(Some((found, rev))) => (checkpoint, self.rev) = (Some(found), Some(rev)),
                Ok(None) => break,
                Err(error) => self.pause_for_source(&error).await?,
            }
        }
        let copy = self.starting_at.take();
        let checkpoint = match (checkpoint, copy) {
            (Some(one), Some(copy)) if !self.target.keeps_checkpoint() => {
                let is_newer = (copy.epoch, copy.time) > (one.epoch, one.time);
                Some(if is_newer { copy } else { one })
            }
            (one, copy) => one.or(copy),
        };
        self.failures = 0;
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
            self.reached = Some(seq);
            // Unlike any that is written.
            self.written = Seq::unlike_any();
            while self.written == Seq::unlike_any() {
                self.keep(true).await?;
                if self.written == Seq::unlike_any() {
                    self.pause_for(Refused::failed(Failure::Connection, "the checkpoint could not be written")).await?;
                }
            }
            return Ok(None);
        }
        if let Some(checkpoint) = &checkpoint {
            checkpoint.check(&self.identity, &update_seq).map_err(End::Strange)?;
            self.is_initial_sync_done = checkpoint.is_initial_sync_done;
        }
        Ok(checkpoint)
    }

    /// After a time without answers: whether it still is the source that it was.
    async fn look_at_source(&mut self, read_to: &Seq) -> Result<(), End> {
        let (identity, update_seq) = loop {
            match self.source.identity().await {
                Ok(identity) => break identity,
                Err(error) => self.pause_for_source(&error).await?,
            }
        };
        self.checkpoint_at(read_to.clone()).check(&identity, &update_seq).map_err(End::Strange)
    }

    fn checkpoint_at(&self, seq: Seq) -> Checkpoint {
        let client_id = self.system().checkpoint.client_id.clone().unwrap_or_else(|| "changes_worker".to_owned());
        let source = self.identity.clone();
        Checkpoint {
            seq,
            client_id,
            time: now(),
            is_initial_sync_done: self.is_initial_sync_done,
            epoch: self.epoch,
            source,
        }
    }

    /// Reads a page. Whether it was the feed's end.
    async fn read(&mut self, read_to: &mut Seq, is_to_wait: bool) -> Result<bool, End> {
        let limit = match self.job.input.changes_feed.limit {
            0 => PAGE_ROWS,
            limit => usize::try_from(limit).unwrap_or(PAGE_ROWS),
        };
        let limit = limit.min(self.plan.room()).max(1);
        let asked_at = Instant::now();
        let page = loop {
            let mut stop = self.stop.clone();
            let asked = tokio::select! {
                asked = self.source.page(read_to, limit, is_to_wait) => asked,
                _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
                () = self.woken.notified() => return Ok(true),
            };
            match asked {
                Ok(page) => break page,
                Err(error) => self.pause_for_source(&error).await?,
            }
        };
        if self.failures > 0 {
            self.look_at_source(read_to).await?;
        }
        self.failures = 0;
        let is_end = page.rows < limit;
        let waiting = self.plan.admitted().saturating_add(page.rows) as u64;
        self.progress.behind(if is_end { waiting } else { waiting.saturating_add(page.pending.unwrap_or(0)) });
        if is_to_wait && page.rows == 0 && asked_at.elapsed() < IDLE_MIN {
            // It does not wait as it was asked to.
            let mut stop = self.stop.clone();
            let _ = tokio::time::timeout(IDLE_MIN, stop.wait_for(|stop| *stop)).await;
        }
        for change in page.changes {
            let (seq, read) = (change.seq.clone(), change.seq.clone());
            if let What::Changed(text) = &change.what {
                self.bytes = self.bytes.saturating_add(text.len());
            }
            let processing = &self.system().processing;
            let is_ignored = match change.what {
                What::Deleted => processing.ignore_delete,
                What::Removed => processing.ignore_remove,
                What::Changed(_) | What::ToBeRead => false,
            };
            if is_ignored || change.id.starts_with("_design/") {
                self.plan.pass(seq);
                continue;
            }
            let id = change.id.clone();
            if self.plan.admit(&id, seq, change).is_err() {
                // More rows than were asked for: the others are read again.
                return Ok(false);
            }
            *read_to = read;
        }
        self.plan.pass(page.last_seq.clone());
        *read_to = page.last_seq;
        Ok(is_end)
    }

    /// Brings a batch to the target, part by part where it is refused.
    async fn deliver(&mut self, batch: Vec<Taken<Change>>) -> Result<(), End> {
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let (mut deliveries, mut ready) = (Vec::with_capacity(part.len()), Vec::with_capacity(part.len()));
            for taken in part {
                match self.delivery(&taken.change).await? {
                    Ok(delivery) => {
                        deliveries.push(delivery);
                        ready.push(taken);
                    }
                    Err(unmappable) => {
                        let error = unmappable.to_string();
                        self.put_aside(&taken, &Failure::Unmappable(Box::new(unmappable)), &error).await?;
                    }
                }
            }
            let places: BTreeSet<_> = ready.iter().map(|taken| taken.place).collect();
            let reach = self.plan.reach(&places);
            let checkpoint = reach.clone().map(|seq| self.checkpoint_at(seq));
            if ready.is_empty() {
                continue;
            }
            match self.deliver_until_taken(deliveries, checkpoint).await? {
                Ok(()) => {
                    for taken in &ready {
                        self.plan.settle(&taken.id, taken.place);
                        self.guard.note(false).map_err(End::Halted)?;
                    }
                    self.counts.delivered += ready.len() as u64;
                    self.progress.add_delivered(ready.len() as u64);
                    self.unkept += ready.len() as u64;
                    if let (Some(seq), true) = (reach, self.target.keeps_checkpoint()) {
                        self.written = seq;
                    }
                }
                Err((failure, error)) => match (ready.len(), ready.pop()) {
                    (1, Some(taken)) => self.put_aside(&taken, &failure, &error).await?,
                    (_, last) => {
                        ready.extend(last);
                        let second = ready.split_off(ready.len() / 2);
                        parts.push(second);
                        parts.push(ready);
                    }
                },
            }
        }
        Ok(())
    }

    /// What a change is for the target.
    async fn delivery(&mut self, change: &Change) -> Result<Result<Delivery, Unmappable>, End> {
        let text = match &change.what {
            What::Changed(text) => Some(text.clone()),
            What::Deleted | What::Removed => None,
            What::ToBeRead => loop {
                match self.source.document(&change.id).await {
                    Ok(found) => break found,
                    Err(error) => self.pause_for_source(&error).await?,
                }
            },
        };
        let state = match text {
            None => State::Gone,
            Some(text) => match self.product(&text).await? {
                Ok(product) => State::Is(product),
                Err(unmappable) => return Ok(Err(unmappable)),
            },
        };
        let (id, rev, seq) = (change.id.clone(), change.rev.clone(), change.seq.as_str().to_owned());
        Ok(Ok(Delivery { id, rev, seq, state }))
    }

    fn check_held(&self) -> Result<(), End> {
        if self.held.as_ref().is_none_or(Held::is_held) { Ok(()) } else { Err(End::Superseded) }
    }

    /// Until the target takes it, or says that it is poison.
    async fn deliver_until_taken(
        &mut self,
        deliveries: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Result<(), (Failure, String)>, End> {
        if self.system().processing.dry_run {
            return Ok(Ok(()));
        }
        loop {
            self.check_held()?;
            match self.target.deliver(deliveries.clone(), checkpoint.clone()).await {
                Ok(()) => {
                    self.failures = 0;
                    return Ok(Ok(()));
                }
                Err(Refused::Failed { failure, error, .. })
                    if failure.class() == Class::Poison && !deliveries.is_empty() =>
                {
                    return Ok(Err((failure, error)));
                }
                Err(refused) => self.pause_for(refused).await?,
            }
        }
    }

    /// The entry first; then the checkpoint may pass its change.
    async fn put_aside(&mut self, taken: &Taken<Change>, failure: &Failure, error: &str) -> Result<(), End> {
        let change = &taken.change;
        let (method, document) = match &change.what {
            What::Changed(text) => ("PUT", text.as_str()),
            What::ToBeRead => ("PUT", ""),
            What::Deleted | What::Removed => ("DELETE", ""),
        };
        let failed = Failed {
            job: &self.job.id,
            id: &change.id,
            rev: &change.rev,
            seq: change.seq.as_str(),
            method,
            document,
            target_url: match &self.job.output {
                Output::Http(output) => &output.url,
                Output::Rdbms(_) | Output::Cloud(_) => "",
            },
            failure,
            error,
            now: now(),
            retention_seconds: self.system().dlq.retention_seconds(),
        };
        let entry = Entry::new(&failed, &self.redactor);
        while let Err(error) = self.queue.put(&entry).await {
            match error {
                NotKept::Full(entries) => return Err(End::QueueFull(entries)),
                NotKept::Failed(error) => self.pause_for(Refused::failed(Failure::Storage, error)).await?,
            }
        }
        self.failures = 0;
        self.counts.queued += 1;
        self.progress.add_queued();
        self.plan.settle(&taken.id, taken.place);
        self.guard.note(true).map_err(End::Halted)
    }

    /// Waits before something is tried again, as long as the schedule and the target ask.
    async fn pause_for(&mut self, refused: Refused) -> Result<(), End> {
        let (error, retry_after) = match refused {
            Refused::Failed { error, retry_after, .. } => (error, retry_after),
            Refused::Superseded => return Err(End::Superseded),
            Refused::Unfit(reason) => return Err(End::Unfit(self.redactor.text(&reason, 500))),
        };
        self.counts.outages += 1;
        self.failures = self.failures.saturating_add(1);
        let error = self.redactor.text(&error, 500);
        self.progress.add_outage(&error);
        tracing::warn!(job = self.job.id, failures = self.failures, error, "a job waits for its source or target");
        // Spread well enough: pauses need not be unforeseeable.
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let schedule = self.system().schedule();
        let pause = schedule.pause(self.failures, retry_after, self.chance).ok_or(End::GaveUp(error))?;
        let mut stop = self.stop.clone();
        let is_told =
            tokio::time::timeout(pause.max(Duration::from_millis(1)), stop.wait_for(|stop| *stop)).await.is_ok();
        if is_told { Err(End::Stopped) } else { Ok(()) }
    }

    async fn pause_for_source(&mut self, error: &SourceError) -> Result<(), End> {
        if let SourceError::Nonsense(nonsense) = error
            && self.failures >= NONSENSE_MAX
        {
            return Err(End::Nonsense(nonsense.to_string()));
        }
        self.pause_for(Refused::failed(Failure::Connection, error)).await
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
