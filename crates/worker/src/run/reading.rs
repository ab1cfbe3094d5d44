//! Pages of the feed, one ahead of what is delivered; and one behind it that is asked for as soon as it is known where that begins, so
//! that the source makes it while this one is read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{End, Queue, Runner, Waiting};
use crate::change::{Change, Page, What};
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity, Strange};
use crate::documents::Description;
use crate::memory::{Charge, Memory};
use crate::output::Target;
use crate::peer::PeerError;
use crate::source::{Ask, Source, SourceError};

/// Rows of a page, where the job says nothing.
const PAGE_ROWS: usize = 1_000;

/// Bytes of a page: with documents that are larger than most, it has fewer rows.
pub(super) const PAGE_BYTES: usize = 8 << 20;

/// Bytes of a page of one row, that has no room in [`PAGE_BYTES`].
const PAGE_BYTES_MAX: usize = 64 << 20;

/// Bytes of an answer that is waited for, which is in nobody's account: with more it is read as a page.
const WAITING_BYTES: usize = 128 << 10;

/// Documents of a job that were read and are not delivered, in bytes, beyond which no further page is read.
pub(super) const ADMITTED_BYTES_MAX: usize = 64 << 20;

/// What a change takes beside its texts.
const CHANGE_BYTES: usize = 400;

/// No source is asked for changes more often, where it has none.
const IDLE_MIN: Duration = Duration::from_millis(500);

/// How often it is asked where its feed ends, by whoever is not there.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// Pages that are under way at once, or here and not taken in.
const READINGS_MAX: usize = 2;

/// A page; and, if the source was asked after it, the identity of its database and the end of the feed.
type PageAnswer = (Result<Page, SourceError>, Option<(SourceIdentity, Seq)>);

/// What whoever reads pages must know of the run, which goes on meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    memory: Memory,
    /// What the job has of it for what it has read.
    own: Arc<AtomicUsize>,
    /// Changes that are admitted: as many or fewer.
    admitted: Arc<AtomicUsize>,
    /// Pages that are not taken in.
    readings: Arc<AtomicUsize>,
    clock: Clock,
}

impl Pace {
    pub(super) fn new(memory: Memory, own: Arc<AtomicUsize>, clock: Clock) -> Pace {
        Pace { memory, own, admitted: Arc::default(), readings: Arc::default(), clock }
    }

    /// The room for a page behind one that is asked for by `ask`, if there is any at once.
    fn room(&self, ask: Ask) -> Option<Charge> {
        let is_one =
            ask.is_to_wait || ask.bytes_max > PAGE_BYTES || self.readings.load(Ordering::Relaxed) >= READINGS_MAX;
        let admitted = self.admitted.load(Ordering::Relaxed).saturating_add(2 * ask.limit);
        let is_full = admitted > super::ADMITTED_MAX || self.own.load(Ordering::Relaxed) >= ADMITTED_BYTES_MAX;
        if is_one || is_full { None } else { self.memory.try_changes(2 * ask.bytes_max) }
    }
}

/// One of the pages that are not taken in.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(pace: &Pace) -> Counted {
        pace.readings.fetch_add(1, Ordering::Relaxed);
        Counted(pace.readings.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a page has behind it.
#[derive(Debug, Default)]
struct Behind {
    /// The page that was asked for meanwhile.
    next: Option<Box<Reading>>,
    /// Nobody wants it any more.
    is_over: bool,
}

/// A page that is under way. Nothing more comes of it when this is dropped.
#[derive(Debug)]
pub(super) struct Reading {
    task: JoinHandle<PageAnswer>,
    /// What came of it, once it is here.
    answered: Option<PageAnswer>,
    behind: Arc<Mutex<Behind>>,
    since: Seq,
    ask: Ask,
    asked_at: Instant,
    /// When it was last asked where the feed ends.
    sampled_at: Instant,
    charge: Charge,
    _counted: Counted,
}

impl Reading {
    /// Requests a page, and then the next one. `is_named`: the identity of the source is not asked if the page's sequences lack it.
    fn begin<S: Source>(
        source: Arc<S>,
        pace: Pace,
        since: Seq,
        ask: Ask,
        charge: Charge,
        sampled_at: Instant,
        is_named: bool,
    ) -> Reading {
        let asked_at = pace.clock.now();
        let is_sampled = !ask.is_to_wait && pace.clock.since(sampled_at) >= SAMPLE_EVERY;
        let sampled_at = if is_sampled { asked_at } else { sampled_at };
        let (counted, behind) = (Counted::new(&pace), Arc::<Mutex<Behind>>::default());
        let (from, shared) = (since.clone(), behind.clone());
        let task = tokio::spawn(async move {
            let next = |seq: Seq| {
                let mut behind = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if seq != from
                    && !behind.is_over
                    && let Some(charge) = pace.room(ask)
                {
                    let reading = Reading::begin(source.clone(), pace.clone(), seq, ask, charge, sampled_at, true);
                    behind.next = Some(Box::new(reading));
                }
            };
            let page = source.page_and(&from, ask, next).await;
            // A page that was waited for may be of another database. Asked after the page: an unchanged identity then covers it.
            let is_unnamed = !is_named && page.as_ref().is_ok_and(|page| page.last_seq.incarnation().is_none());
            match (is_unnamed, is_sampled) {
                (true, _) => match source.identity().await {
                    Ok(found) => (page, Some(found)),
                    Err(error) => (Err(error), None),
                },
                (false, true) => (page, source.identity().await.ok()),
                (false, false) => (page, None),
            }
        });
        Reading { task, answered: None, behind, since, ask, asked_at, sampled_at, charge, _counted: counted }
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.answered.is_some() || self.task.is_finished()
    }

    /// Waits for its answer.
    async fn answer(&mut self) -> &PageAnswer {
        let answered = match self.answered.take() {
            Some(answered) => answered,
            None => {
                let read = (&mut self.task).await;
                read.unwrap_or_else(|error| (Err(PeerError::Broken(error.to_string()).into()), None))
            }
        };
        self.answered.insert(answered)
    }

    /// Waits for its answer, and says whether that is a page which only has to be taken in.
    pub(super) async fn may_be_admitted(&mut self) -> bool {
        !self.ask.is_to_wait && self.answer().await.0.is_ok()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.task.abort();
        let next = {
            let mut behind = self.behind();
            behind.is_over = true;
            behind.next.take()
        };
        drop(next);
    }
}

/// Rows of a page at most.
pub(super) fn rows_max(job: &Description) -> usize {
    match job.input.changes_feed.limit {
        0 => PAGE_ROWS,
        limit => usize::try_from(limit).unwrap_or(PAGE_ROWS),
    }
}

fn bytes_of(change: &Change) -> usize {
    let text = match &change.what {
        What::Changed(text) => text.len(),
        What::ToBeRead | What::Deleted | What::Removed => 0,
    };
    // The id stands twice.
    text + 2 * change.id.len() + change.rev.len() + 2 * change.seq.as_str().len() + CHANGE_BYTES
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Begins to read the next page, if none is under way; `is_to_wait`: where the feed ends, some time is waited for a row. False: there
    /// is no room for it until something is delivered.
    pub(super) async fn start_reading(&mut self, is_to_wait: bool) -> Result<bool, End> {
        if self.reading.is_some() {
            return Ok(true);
        }
        let limit = self.page_rows.min(self.plan.room());
        let is_full = limit == 0 || self.own.load(Ordering::Relaxed) >= ADMITTED_BYTES_MAX;
        if is_full && !self.plan.is_empty() {
            return Ok(false);
        }
        let bytes_max = if is_to_wait { WAITING_BYTES } else { self.page_bytes };
        // The answer, and the changes that are made of it.
        let charged = if is_to_wait { 0 } else { 2 * bytes_max };
        let charge = if charged == 0 {
            Charge::none()
        } else if self.plan.is_empty() {
            let mut stop = self.stop.clone();
            tokio::select! {
                charge = self.memory.changes(charged) => charge,
                _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
            }
        } else {
            match self.memory.try_changes(charged) {
                Some(charge) => charge,
                None => return Ok(false),
            }
        };
        let ask = Ask { limit: limit.max(1), bytes_max, is_to_wait };
        let (source, since) = (self.source.clone(), self.read_to.clone());
        self.pace.admitted.store(self.plan.admitted(), Ordering::Relaxed);
        let is_told = self.identity.instance.as_deref().is_some_and(|instance| instance != "0");
        let is_named = !is_to_wait || !is_told;
        let reading = Reading::begin(source, self.pace.clone(), since, ask, charge, self.sampled_at, is_named);
        self.sampled_at = reading.sampled_at;
        self.reading = Some(reading);
        Ok(true)
    }

    /// Takes in the page that is under way, once it is there; nothing, if entries are to be replayed or the checkpoint is to be written
    /// before.
    pub(super) async fn take_in(&mut self) -> Result<(), End> {
        let due_at = self.due_at();
        let Some(reading) = &mut self.reading else { return Ok(()) };
        let (mut stop, clock) = (self.stop.clone(), self.clock.clone());
        let is_to_wait = reading.ask.is_to_wait;
        let due_at = due_at.filter(|_| is_to_wait);
        let is_due = async {
            match due_at {
                Some(due_at) => clock.sleep_until(due_at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = reading.answer() => {}
            _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
            () = self.woken.notified(), if is_to_wait => return Ok(()),
            () = is_due => return Ok(()),
        }
        let Some(mut reading) = self.reading.take() else { return Ok(()) };
        let Some((page, end)) = reading.answered.take() else { return Ok(()) };
        if page.as_ref().is_ok_and(|page| !self.is_of_source(page, end.as_ref())) {
            return Err(End::Strange(Strange::MadeAgain));
        }
        if let Some((_, end)) = end {
            self.progress.sampled(&end);
        }
        match page {
            Ok(page) => self.admit(page, reading).await,
            Err(SourceError::Peer(PeerError::TooLarge(_))) if reading.ask.is_to_wait => {
                self.is_at_end = false;
                Ok(())
            }
            // Fewer rows, down to a single one, and then a larger page.
            Err(SourceError::Peer(PeerError::TooLarge(_))) if reading.ask.limit > 1 => {
                self.page_rows = (reading.ask.limit / 8).max(1);
                Ok(())
            }
            Err(SourceError::Peer(PeerError::TooLarge(_))) if reading.ask.bytes_max < PAGE_BYTES_MAX => {
                self.page_bytes = PAGE_BYTES_MAX;
                Ok(())
            }
            // What was read before is delivered first.
            Err(_) if !self.plan.is_empty() => {
                (self.is_source_away, self.was_source_away) = (true, true);
                Ok(())
            }
            Err(error) => {
                drop(reading);
                self.pause_for_source(&error).await
            }
        }
    }

    /// Whether a page is of the checkpoint's database, by its sequences and by the identity that the source reported after it. There is
    /// no other sign of a database that was deleted and created again between two pages.
    fn is_of_source(&self, page: &Page, end: Option<&(SourceIdentity, Seq)>) -> bool {
        let is_other = match (&self.identity.incarnation, page.last_seq.incarnation()) {
            (Some(ours), Some(found)) => ours != found,
            _ => false,
        };
        let ours = Checkpoint { source: self.identity.clone(), ..Checkpoint::default() };
        !is_other && end.is_none_or(|(found, update_seq)| ours.check(found, update_seq) != Err(Strange::MadeAgain))
    }

    async fn admit(&mut self, page: Page, mut reading: Reading) -> Result<(), End> {
        if self.was_source_away {
            self.look_at_source().await?;
        }
        (self.source_failures, self.is_source_away) = (0, false);
        self.tell_failing();
        if reading.ask.is_to_wait && page.rows == 0 && self.clock.since(reading.asked_at) < IDLE_MIN {
            // It does not wait as it was asked to.
            let mut stop = self.stop.clone();
            let _ = self.clock.timeout(IDLE_MIN, stop.wait_for(|stop| *stop)).await;
        }
        self.admit_rows(page, &mut reading);
        self.go_on(reading);
        Ok(())
    }

    /// Goes on with the page that was asked for behind one that is taken in, if it is the one that comes now.
    fn go_on(&mut self, read: Reading) {
        self.pace.admitted.store(self.plan.admitted(), Ordering::Relaxed);
        let rows_max = self.plan.room().min(self.page_rows);
        let next = read.behind().next.take().filter(|_| !self.is_at_end);
        let next = next.filter(|next| next.since == self.read_to && next.ask.limit <= rows_max);
        if let Some(next) = next {
            self.sampled_at = next.sampled_at;
            self.reading = Some(*next);
        }
    }

    /// Takes in a page that is there, while something is written, and begins to read the next.
    pub(super) async fn admit_ahead(&mut self) {
        if self.was_source_away || self.reading.as_ref().is_none_or(|reading| reading.ask.is_to_wait) {
            return;
        }
        let Some(mut reading) = self.reading.take() else { return };
        match reading.answered.take() {
            Some((Ok(page), end)) if self.is_of_source(&page, end.as_ref()) => {
                if let Some((_, end)) = end {
                    self.progress.sampled(&end);
                }
                self.admit_rows(page, &mut reading);
                self.go_on(reading);
                if !self.is_at_end {
                    // What is written is in the plan, so that no room is waited for.
                    let _ = self.start_reading(false).await;
                }
            }
            answered => {
                // A page of another database ends the run once it is processed.
                self.was_source_away |= matches!(answered, Some((Ok(_), _)));
                reading.answered = answered;
                self.reading = Some(reading);
            }
        }
    }

    fn admit_rows(&mut self, page: Page, reading: &mut Reading) {
        let Ask { limit, is_to_wait, .. } = reading.ask;
        let is_end = page.rows < limit;
        let waiting = self.plan.admitted().saturating_add(page.rows) as u64;
        self.progress.behind(if is_end { waiting } else { waiting.saturating_add(page.pending.unwrap_or(0)) });
        self.fit_page(&page, limit);
        if is_to_wait {
            // What is waited for is small, and has its room when it is there; without any, it is delivered next.
            let bytes = page.changes.iter().map(bytes_of).sum();
            reading.charge = self.memory.try_changes(bytes).unwrap_or_else(Charge::none);
        }
        for change in page.changes {
            let (seq, read) = (change.seq.clone(), change.seq.clone());
            let processing = &self.system().processing;
            let was_there = || self.first_end.is_none_or(|end| seq.number().is_none_or(|number| number > end));
            let is_ignored = match change.what {
                What::Deleted => processing.ignore_delete || !was_there(),
                What::Removed => processing.ignore_remove || !was_there(),
                What::Changed(_) | What::ToBeRead => false,
            };
            if is_ignored || change.id.starts_with("_design/") {
                self.plan.pass(seq);
                continue;
            }
            let id = change.id.clone();
            let waiting = Waiting { _charge: reading.charge.split(bytes_of(&change), &self.own), change };
            if self.plan.admit(&id, seq, waiting).is_err() {
                // More rows than were asked for: the others are read again.
                self.is_at_end = false;
                return;
            }
            self.read_to = read;
        }
        self.plan.pass(page.last_seq.clone());
        self.read_to = page.last_seq;
        self.is_at_end = is_end;
    }

    /// How many rows the next page has, by what this one's took.
    fn fit_page(&mut self, page: &Page, limit: usize) {
        let bytes: usize = page.changes.iter().map(bytes_of).sum();
        if self.page_bytes > PAGE_BYTES && bytes <= PAGE_BYTES {
            self.page_bytes = PAGE_BYTES;
        }
        let of_half = (page.rows.saturating_mul(PAGE_BYTES / 2)).checked_div(bytes).unwrap_or(usize::MAX);
        let max = rows_max(self.job);
        if self.page_rows < max && self.page_bytes == PAGE_BYTES {
            self.page_rows = of_half.min(limit.saturating_mul(2)).clamp(1, max);
        }
    }

    /// Gives back what was read and is not delivered, and reads it again from where all is settled.
    pub(super) fn shed(&mut self) {
        self.reached = self.plan.checkpoint().or(self.reached.take());
        self.forget_read();
        self.read_to = self.reached.clone().unwrap_or_else(|| self.begun_at.clone());
    }

    /// Gives back what was read; somebody has to say where it is read again.
    pub(super) fn forget_read(&mut self) {
        self.ahead = None;
        self.plan = crate::plan::Plan::new(super::ADMITTED_MAX);
        self.reading = None;
        self.is_at_end = false;
    }
}
