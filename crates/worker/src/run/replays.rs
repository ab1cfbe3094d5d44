//! Replays queue entries.
//!
//! Replays run while no other change of the job is under way, so that nothing overtakes them. The source is
//! authoritative: if it has another revision than the entry, the feed delivers or has delivered that, and the entry is
//! marked and not sent.

use std::sync::Arc;

use flatbed_flatten::json::{Limits, Value, parse};

use super::attaching::ChangeIdentity;
use super::delivering::{PART_BYTES, PartOutcome};
use super::products::ProductError;
use super::{LoggedTrouble, Queue, RunEnd, Runner};
use crate::failure::Failure;
use crate::memory::Charge;
use crate::output::{DeliveryError, Target};
use crate::queue::{Entry, Replay, SourceState};
use crate::rows::{ROWS_BYTES_MAX, Unmappable};
use crate::source::{Source, SourceError};

/// The most entries per request to the queue. The feed proceeds in between.
const SLICE: usize = 100;

/// An entry to be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayRequest {
    /// The entry.
    pub entry: Entry,
    /// True if it was requested by its id.
    pub by_hand: bool,
}

/// The outcome of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayResult {
    /// Delivered; the entry is removed.
    Delivered,
    /// The entry has changed: another failure, or overtaken.
    Changed,
    /// The entry is unchanged: it is exhausted.
    Left,
}

/// The outcome of a replay within limited memory.
enum ReplayOutcome {
    Done(ReplayResult),
    /// The entry needs more memory.
    Beyond,
    Source(SourceError),
    Refused(DeliveryError),
}

pub(super) fn rev_of(text: &str) -> String {
    let value = parse(text.as_bytes(), &Limits::default());
    let rev = value.as_ref().ok().and_then(|value| value.get("_rev")).and_then(Value::as_str);
    rev.unwrap_or_default().to_owned()
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Replays the requested entries and returns whether there may be more.
    pub(super) async fn replay(&mut self) -> Result<bool, RunEnd> {
        if self.system().processing.dry_run {
            return Ok(false);
        }
        let wanted = match self.queue.wanted(SLICE).await {
            Ok(wanted) => wanted,
            Err(error) => {
                let error = self.redactor.text(&error, 500);
                if let Some(left_out) = self.lines.line(LoggedTrouble::Queue) {
                    tracing::warn!(job = self.job.id, error, left_out, "entries of the queue cannot be read");
                }
                return Ok(false);
            }
        };
        let is_more = !wanted.is_empty();
        if is_more {
            self.unmake_ahead();
        }
        for ReplayRequest { mut entry, by_hand } in wanted {
            if *self.stop.borrow() {
                return Err(RunEnd::Stopped);
            }
            let what = loop {
                let what = self.replay_one(&mut entry, by_hand).await?;
                self.fetched.clear();
                if what != ReplayResult::Delivered {
                    break what;
                }
                // The entry is the only record of the change.
                if self.persist().await? {
                    self.counts.replayed += 1;
                    self.progress.add_replayed();
                    break what;
                }
            };
            while let Err(error) = self.queue.settle(&entry, what).await {
                self.pause_for(DeliveryError::failed(Failure::Storage, error)).await?;
            }
            self.failures = 0;
            self.tell_failing();
        }
        Ok(is_more)
    }

    async fn replay_one(&mut self, entry: &mut Entry, by_hand: bool) -> Result<ReplayResult, RunEnd> {
        let mut room = PART_BYTES;
        loop {
            let charge = Arc::new(self.products(room).await?);
            let within = self.replay_within(entry, by_hand, room, &charge).await?;
            // The run holds no memory while it waits.
            drop(charge);
            match within {
                ReplayOutcome::Done(what) => return Ok(what),
                ReplayOutcome::Beyond if room < ROWS_BYTES_MAX => room = ROWS_BYTES_MAX,
                ReplayOutcome::Beyond => return Ok(self.fail_again(entry, Unmappable::TooLarge)),
                ReplayOutcome::Source(error) => {
                    let until = self.note_unread(&error)?;
                    self.pause_giving_back(until).await?;
                }
                ReplayOutcome::Refused(refused) => {
                    let until = self.note_refused(refused)?;
                    self.pause_giving_back(until).await?;
                }
            }
        }
    }

    async fn replay_within(
        &mut self,
        entry: &mut Entry,
        by_hand: bool,
        bytes_max: usize,
        charge: &Arc<Charge>,
    ) -> Result<ReplayOutcome, RunEnd> {
        let found = match self.read_document(&entry.doc_id_original, bytes_max).await {
            Ok(found) => found,
            Err(ProductError::Source(error)) => return Ok(ReplayOutcome::Source(error)),
            Err(_) => return Ok(ReplayOutcome::Beyond),
        };
        let rev = found.as_deref().map(rev_of);
        match entry.replay(rev.as_deref().map_or(SourceState::Gone, SourceState::Newest), by_hand) {
            Replay::Overtaken => {
                entry.mark_overtaken(self.clock.unix_seconds(), self.system().dlq.retention_seconds());
                Ok(ReplayOutcome::Done(ReplayResult::Changed))
            }
            Replay::Left => Ok(ReplayOutcome::Done(ReplayResult::Left)),
            Replay::Send => {
                let is_deletion = entry.method == "DELETE" && !entry.edited;
                let text = match (is_deletion, entry.doc_data.is_empty()) {
                    (true, _) => None,
                    (false, false) => Some(entry.doc_data.clone()),
                    (false, true) => found,
                };
                self.send_again(entry, text.as_deref(), bytes_max, charge).await
            }
        }
    }

    async fn send_again(
        &mut self,
        entry: &mut Entry,
        text: Option<&str>,
        bytes_max: usize,
        charge: &Arc<Charge>,
    ) -> Result<ReplayOutcome, RunEnd> {
        let (rev, mut seq) = (entry.rev.clone(), entry.seq.clone());
        if self.window.is_some() {
            // An object of many documents is named by the last of them. This object must not replace it.
            seq = format!("{seq}-again-{}", self.clock.unix_seconds());
        }
        let of = ChangeIdentity { id: &entry.doc_id_original, rev: &rev, seq: &seq, is_written: false };
        let delivery = match self.made(of, text, bytes_max).await {
            Ok(delivery) => delivery,
            Err(ProductError::Unmappable(unmappable)) => {
                return Ok(ReplayOutcome::Done(self.fail_again(entry, unmappable)));
            }
            Err(ProductError::Beyond) => return Ok(ReplayOutcome::Beyond),
            Err(ProductError::Source(error)) => return Ok(ReplayOutcome::Source(error)),
            Err(ProductError::Later(reason)) => {
                return Ok(ReplayOutcome::Refused(DeliveryError::failed(Failure::Storage, reason)));
            }
            Err(ProductError::Broken(reason)) => return Err(RunEnd::Broken(reason)),
        };
        match self.try_deliver(vec![delivery], None, Some(charge)).await? {
            PartOutcome::Taken => Ok(ReplayOutcome::Done(ReplayResult::Delivered)),
            PartOutcome::Refused(refused) => Ok(ReplayOutcome::Refused(refused)),
            PartOutcome::Poison(failure, error) => {
                let replays_max = self.system().dlq.replays_max();
                entry.fail_again(&failure, &error, self.clock.unix_seconds(), replays_max, &self.redactor);
                Ok(ReplayOutcome::Done(ReplayResult::Changed))
            }
        }
    }

    fn fail_again(&self, entry: &mut Entry, unmappable: Unmappable) -> ReplayResult {
        let (error, replays_max) = (unmappable.to_string(), self.system().dlq.replays_max());
        let failure = Failure::Unmappable(Box::new(unmappable));
        entry.fail_again(&failure, &error, self.clock.unix_seconds(), replays_max, &self.redactor);
        ReplayResult::Changed
    }
}
