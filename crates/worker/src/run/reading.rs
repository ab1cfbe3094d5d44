//! Pages of the feed, one ahead of what is delivered.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::{End, Queue, Runner, Waiting};
use crate::change::{Change, Page, What};
use crate::checkpoint::Seq;
use crate::documents::Description;
use crate::memory::Charge;
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

/// A page that is under way. Nothing more comes of it when this is dropped.
#[derive(Debug)]
pub(super) struct Reading {
    task: JoinHandle<(Result<Page, SourceError>, Option<Seq>)>,
    ask: Ask,
    asked_at: Instant,
    charge: Charge,
}

impl Reading {
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.task.abort();
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
        let is_sampled = !is_to_wait && self.sampled_at.elapsed() >= SAMPLE_EVERY;
        if is_sampled {
            self.sampled_at = Instant::now();
        }
        let (source, since) = (self.source.clone(), self.read_to.clone());
        let task = tokio::spawn(async move {
            let page = source.page(&since, ask).await;
            let end = if is_sampled { source.identity().await.ok() } else { None };
            (page, end.map(|(_, update_seq)| update_seq))
        });
        self.reading = Some(Reading { task, ask, asked_at: Instant::now(), charge });
        Ok(true)
    }

    /// Takes in the page that is under way, once it is there; nothing, if entries are to be replayed before.
    pub(super) async fn take_in(&mut self) -> Result<(), End> {
        let Some(reading) = &mut self.reading else { return Ok(()) };
        let mut stop = self.stop.clone();
        let read = tokio::select! {
            read = &mut reading.task => read,
            _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
            () = self.woken.notified(), if reading.ask.is_to_wait => return Ok(()),
        };
        let Some(mut reading) = self.reading.take() else { return Ok(()) };
        let (page, end) = read.unwrap_or_else(|error| (Err(PeerError::Broken(error.to_string()).into()), None));
        if let Some(end) = end {
            self.progress.sampled(&end);
        }
        match page {
            Ok(page) => self.admit(page, &mut reading).await,
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
                self.is_source_away = true;
                Ok(())
            }
            Err(error) => {
                drop(reading);
                self.pause_for_source(&error).await
            }
        }
    }

    async fn admit(&mut self, page: Page, reading: &mut Reading) -> Result<(), End> {
        if self.source_failures > 0 {
            self.look_at_source().await?;
        }
        (self.source_failures, self.is_source_away) = (0, false);
        let Ask { limit, is_to_wait, .. } = reading.ask;
        let is_end = page.rows < limit;
        let waiting = self.plan.admitted().saturating_add(page.rows) as u64;
        self.progress.behind(if is_end { waiting } else { waiting.saturating_add(page.pending.unwrap_or(0)) });
        if is_to_wait && page.rows == 0 && reading.asked_at.elapsed() < IDLE_MIN {
            // It does not wait as it was asked to.
            let mut stop = self.stop.clone();
            let _ = tokio::time::timeout(IDLE_MIN, stop.wait_for(|stop| *stop)).await;
        }
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
                return Ok(());
            }
            self.read_to = read;
        }
        self.plan.pass(page.last_seq.clone());
        self.read_to = page.last_seq;
        self.is_at_end = is_end;
        Ok(())
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
        self.plan = crate::plan::Plan::new(super::ADMITTED_MAX);
        self.reading = None;
        self.read_to = self.reached.clone().unwrap_or_else(|| self.begun_at.clone());
        self.is_at_end = false;
    }
}
