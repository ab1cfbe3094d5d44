//! Reads pages of the feed, one ahead of the delivery. The following page is requested as soon as its position is
//! known, so that the source prepares it while this one is parsed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{ChargedChange, Queue, RunEnd, Runner};
use crate::change::{Change, ChangeContent, ChangePage};
use crate::checkpoint::{Checkpoint, Seq, SourceIdentity, SourceMismatch};
use crate::documents::Description;
use crate::memory::{Charge, Memory};
use crate::output::Target;
use crate::peer::PeerError;
use crate::source::{PageLimits, Source, SourceError};

const PAGE_ROWS: usize = 1_000;

/// The most bytes of a page. Pages of large documents have fewer rows.
pub(super) const PAGE_BYTES: usize = 8 << 20;

/// The most bytes of a page of one row that exceeds [`PAGE_BYTES`].
const PAGE_BYTES_MAX: usize = 64 << 20;

/// The most bytes of an answer that waits for changes, which is not accounted. A longer answer is read again as a page.
const WAITING_BYTES: usize = 128 << 10;

/// The bytes of undelivered documents of a job beyond which no further page is read.
pub(super) const ADMITTED_BYTES_MAX: usize = 64 << 20;

/// The memory of a change beside its texts, in bytes.
const CHANGE_BYTES: usize = 400;

/// The shortest interval between requests to a source without changes.
const IDLE_MIN: Duration = Duration::from_millis(500);

/// The interval at which the end of the feed is sampled.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// The most pages that are being read, or read and not admitted.
const READINGS_MAX: usize = 2;

/// A page and, if requested after it, the identity of the source's database with the end of the feed.
type PageAnswer = (Result<ChangePage, SourceError>, Option<(SourceIdentity, Seq)>);

/// The state of the run that concurrent page readers share.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    memory: Memory,
    /// The bytes of memory that this job's changes occupy.
    own: Arc<AtomicUsize>,
    /// An upper bound of the admitted changes.
    admitted: Arc<AtomicUsize>,
    /// The number of pages that are not admitted.
    readings: Arc<AtomicUsize>,
    clock: Clock,
}

impl Pace {
    pub(super) fn new(memory: Memory, own: Arc<AtomicUsize>, clock: Clock) -> Pace {
        Pace { memory, own, admitted: Arc::default(), readings: Arc::default(), clock }
    }

    /// Acquires memory for the page behind one requested by `ask`, if available at once.
    fn room(&self, ask: PageLimits) -> Option<Charge> {
        let is_one =
            ask.is_to_wait || ask.bytes_max > PAGE_BYTES || self.readings.load(Ordering::Relaxed) >= READINGS_MAX;
        let admitted = self.admitted.load(Ordering::Relaxed).saturating_add(2 * ask.limit);
        let is_full = admitted > super::ADMITTED_MAX || self.own.load(Ordering::Relaxed) >= ADMITTED_BYTES_MAX;
        if is_one || is_full { None } else { self.memory.try_changes(2 * ask.bytes_max) }
    }
}

/// Counts a page that is not admitted until dropped.
#[derive(Debug)]
struct CountedPage(Arc<AtomicUsize>);

impl CountedPage {
    fn new(pace: &Pace) -> CountedPage {
        pace.readings.fetch_add(1, Ordering::Relaxed);
        CountedPage(pace.readings.clone())
    }
}

impl Drop for CountedPage {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The successor of a page.
#[derive(Debug, Default)]
struct PageSuccessor {
    /// The page that was requested meanwhile.
    next: Option<Box<PendingPage>>,
    /// True if no successor is needed any more.
    is_over: bool,
}

/// A page that is being read. Dropping it cancels the request.
#[derive(Debug)]
pub(super) struct PendingPage {
    task: JoinHandle<PageAnswer>,
    answered: Option<PageAnswer>,
    behind: Arc<Mutex<PageSuccessor>>,
    since: Seq,
    ask: PageLimits,
    asked_at: Instant,
    sampled_at: Instant,
    charge: Charge,
    _counted: CountedPage,
}

impl PendingPage {
    /// Requests a page, and then the next one. `is_named`: the identity of the source is not asked if the page's
    /// sequences lack it.
    fn begin<S: Source>(
        source: Arc<S>,
        pace: Pace,
        since: Seq,
        ask: PageLimits,
        charge: Charge,
        sampled_at: Instant,
        is_named: bool,
    ) -> PendingPage {
        let asked_at = pace.clock.now();
        let is_sampled = !ask.is_to_wait && pace.clock.since(sampled_at) >= SAMPLE_EVERY;
        let sampled_at = if is_sampled { asked_at } else { sampled_at };
        let (counted, behind) = (CountedPage::new(&pace), Arc::<Mutex<PageSuccessor>>::default());
        let (from, shared) = (since.clone(), behind.clone());
        let task = tokio::spawn(async move {
            let next = |seq: Seq| {
                let mut behind = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if seq != from
                    && !behind.is_over
                    && let Some(charge) = pace.room(ask)
                {
                    let reading = PendingPage::begin(source.clone(), pace.clone(), seq, ask, charge, sampled_at, true);
                    behind.next = Some(Box::new(reading));
                }
            };
            let page = source.page_and(&from, ask, next).await;
            // A page that waited for changes may be of another database. The identity is read after the page, so that
            // an unchanged identity covers it.
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
        PendingPage { task, answered: None, behind, since, ask, asked_at, sampled_at, charge, _counted: counted }
    }

    fn behind(&self) -> MutexGuard<'_, PageSuccessor> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.answered.is_some() || self.task.is_finished()
    }

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

    /// Waits for the result and returns whether it is a page that can be admitted at once.
    pub(super) async fn may_be_admitted(&mut self) -> bool {
        !self.ask.is_to_wait && self.answer().await.0.is_ok()
    }
}

impl Drop for PendingPage {
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

pub(super) fn rows_max(job: &Description) -> usize {
    match job.input.changes_feed.limit {
        0 => PAGE_ROWS,
        limit => usize::try_from(limit).unwrap_or(PAGE_ROWS),
    }
}

fn bytes_of(change: &Change) -> usize {
    let text = match &change.what {
        ChangeContent::Changed(text) => text.len(),
        ChangeContent::ToBeRead | ChangeContent::Deleted | ChangeContent::Removed => 0,
    };
    // The plan stores the id twice.
    text + 2 * change.id.len() + change.rev.len() + 2 * change.seq.as_str().len() + CHANGE_BYTES
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Begins to read the next page unless one is under way. `is_to_wait`: the request waits for changes at the end of
    /// the feed. False: there is no memory until something is delivered.
    pub(super) async fn start_reading(&mut self, is_to_wait: bool) -> Result<bool, RunEnd> {
        if self.reading.is_some() {
            return Ok(true);
        }
        let limit = self.page_rows.min(self.plan.room());
        let is_full = limit == 0 || self.own.load(Ordering::Relaxed) >= ADMITTED_BYTES_MAX;
        if is_full && !self.plan.is_empty() {
            return Ok(false);
        }
        let bytes_max = if is_to_wait { WAITING_BYTES } else { self.page_bytes };
        // The answer, and the changes parsed from it.
        let charged = if is_to_wait { 0 } else { 2 * bytes_max };
        let charge = if charged == 0 {
            Charge::none()
        } else if self.plan.is_empty() {
            let mut stop = self.stop.clone();
            tokio::select! {
                charge = self.memory.changes(charged) => charge,
                _ = stop.wait_for(|stop| *stop) => return Err(RunEnd::Stopped),
            }
        } else {
            match self.memory.try_changes(charged) {
                Some(charge) => charge,
                None => return Ok(false),
            }
        };
        let ask = PageLimits { limit: limit.max(1), bytes_max, is_to_wait };
        let (source, since) = (self.source.clone(), self.read_to.clone());
        self.pace.admitted.store(self.plan.admitted(), Ordering::Relaxed);
        let is_told = self.identity.instance.as_deref().is_some_and(|instance| instance != "0");
        let is_named = !is_to_wait || !is_told;
        let reading = PendingPage::begin(source, self.pace.clone(), since, ask, charge, self.sampled_at, is_named);
        self.sampled_at = reading.sampled_at;
        self.reading = Some(reading);
        Ok(true)
    }

    /// Waits for the page that is under way and admits it. Returns early if entries are to be replayed or the
    /// checkpoint is due.
    pub(super) async fn take_in(&mut self) -> Result<(), RunEnd> {
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
            _ = stop.wait_for(|stop| *stop) => return Err(RunEnd::Stopped),
            () = self.woken.notified(), if is_to_wait => return Ok(()),
            () = is_due => return Ok(()),
        }
        let Some(mut reading) = self.reading.take() else { return Ok(()) };
        let Some((page, end)) = reading.answered.take() else { return Ok(()) };
        if page.as_ref().is_ok_and(|page| !self.is_of_source(page, end.as_ref())) {
            return Err(RunEnd::SourceMismatch(SourceMismatch::MadeAgain));
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
            // Reduces the rows, down to one; then the page may be larger.
            Err(SourceError::Peer(PeerError::TooLarge(_))) if reading.ask.limit > 1 => {
                self.page_rows = (reading.ask.limit / 8).max(1);
                Ok(())
            }
            Err(SourceError::Peer(PeerError::TooLarge(_))) if reading.ask.bytes_max < PAGE_BYTES_MAX => {
                self.page_bytes = PAGE_BYTES_MAX;
                Ok(())
            }
            // Changes that were read before are delivered first.
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

    /// Returns whether a page is of the checkpoint's database, by its sequences and by the identity that the source
    /// reported after it. Nothing else reveals that a database was deleted and created again between two pages.
    fn is_of_source(&self, page: &ChangePage, end: Option<&(SourceIdentity, Seq)>) -> bool {
        let is_other = match (&self.identity.incarnation, page.last_seq.incarnation()) {
            (Some(ours), Some(found)) => ours != found,
            _ => false,
        };
        let ours = Checkpoint { source: self.identity.clone(), ..Checkpoint::default() };
        !is_other
            && end.is_none_or(|(found, update_seq)| ours.check(found, update_seq) != Err(SourceMismatch::MadeAgain))
    }

    async fn admit(&mut self, page: ChangePage, mut reading: PendingPage) -> Result<(), RunEnd> {
        if self.was_source_away {
            self.look_at_source().await?;
        }
        (self.source_failures, self.is_source_away) = (0, false);
        self.tell_failing();
        if reading.ask.is_to_wait && page.rows == 0 && self.clock.since(reading.asked_at) < IDLE_MIN {
            // The source does not wait for changes as requested.
            let mut stop = self.stop.clone();
            let _ = self.clock.timeout(IDLE_MIN, stop.wait_for(|stop| *stop)).await;
        }
        self.admit_rows(page, &mut reading);
        self.go_on(reading);
        Ok(())
    }

    /// Continues with the page that was requested ahead if it follows the admitted one.
    fn go_on(&mut self, read: PendingPage) {
        self.pace.admitted.store(self.plan.admitted(), Ordering::Relaxed);
        let rows_max = self.plan.room().min(self.page_rows);
        let next = read.behind().next.take().filter(|_| !self.is_at_end);
        let next = next.filter(|next| next.since == self.read_to && next.ask.limit <= rows_max);
        if let Some(next) = next {
            self.sampled_at = next.sampled_at;
            self.reading = Some(*next);
        }
    }

    /// Admits an available page during a write, and begins to read the next one.
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
                    // The batch being written is in the plan, so this does not wait for memory.
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

    fn admit_rows(&mut self, page: ChangePage, reading: &mut PendingPage) {
        let PageLimits { limit, is_to_wait, .. } = reading.ask;
        let is_end = page.rows < limit;
        let waiting = self.plan.admitted().saturating_add(page.rows) as u64;
        self.progress.behind(if is_end { waiting } else { waiting.saturating_add(page.pending.unwrap_or(0)) });
        self.fit_page(&page, limit);
        if is_to_wait {
            // An answer that waited is small and gets its memory afterwards. If there is none, the page is delivered
            // next.
            let bytes = page.changes.iter().map(bytes_of).sum();
            reading.charge = self.memory.try_changes(bytes).unwrap_or_else(Charge::none);
        }
        for change in page.changes {
            let (seq, read) = (change.seq.clone(), change.seq.clone());
            let processing = &self.system().processing;
            let was_there = || self.first_end.is_none_or(|end| seq.number().is_none_or(|number| number > end));
            let is_ignored = match change.what {
                ChangeContent::Deleted => processing.ignore_delete || !was_there(),
                ChangeContent::Removed => processing.ignore_remove || !was_there(),
                ChangeContent::Changed(_) | ChangeContent::ToBeRead => false,
            };
            if is_ignored || change.id.starts_with("_design/") {
                self.plan.pass(seq);
                continue;
            }
            let id = change.id.clone();
            let waiting = ChargedChange { _charge: reading.charge.split(bytes_of(&change), &self.own), change };
            if self.plan.admit(&id, seq, waiting).is_err() {
                // More rows than requested: the rest is read again.
                self.is_at_end = false;
                return;
            }
            self.read_to = read;
        }
        self.plan.pass(page.last_seq.clone());
        self.read_to = page.last_seq;
        self.is_at_end = is_end;
    }

    /// Adapts the rows of the next page to the size of this page.
    fn fit_page(&mut self, page: &ChangePage, limit: usize) {
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

    /// Releases undelivered changes and reads them again from the settled position.
    pub(super) fn shed(&mut self) {
        self.reached = self.plan.checkpoint().or(self.reached.take());
        self.forget_read();
        self.read_to = self.reached.clone().unwrap_or_else(|| self.begun_at.clone());
    }

    /// Releases undelivered changes. The caller sets the position at which to read again.
    pub(super) fn forget_read(&mut self) {
        self.ahead = None;
        self.plan = crate::plan::Plan::new(super::ADMITTED_MAX);
        self.reading = None;
        self.is_at_end = false;
    }
}
