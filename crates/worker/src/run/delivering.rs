//! Delivers changes to the target.

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::ahead::NextChanges;
use super::attaching::ChangeIdentity;
use super::products::ProductError;
use super::{ADMITTED_MAX, ChargedChange, Queue, QueueError, RunEnd, Runner};
use crate::change::{Change, ChangeContent};
use crate::checkpoint::Checkpoint;
use crate::documents::Output;
use crate::failure::{Class, Failure};
use crate::memory::Charge;
use crate::output::{Delivery, DeliveryError, Target};
use crate::plan::PlannedChange;
use crate::queue::{Entry, FailedChange};
use crate::rows::{ROWS_BYTES_MAX, Unmappable};
use crate::source::{Source, SourceError};

/// The most bytes of products that are delivered at once. A single larger document is delivered alone.
pub(super) const PART_BYTES: usize = 8 << 20;

/// The most rows of products that are delivered at once, except for a single document and for objects of many
/// documents.
pub(super) const PART_ROWS: usize = crate::rows::ROWS_MAX;

pub(super) enum PartOutcome {
    Taken,
    /// A document is the cause.
    Poison(Failure, String),
    /// The target's state is the cause.
    Refused(DeliveryError),
}

#[derive(Default)]
pub(super) struct Part {
    pub(super) deliveries: Vec<Delivery>,
    pub(super) ready: Vec<PlannedChange<ChargedChange>>,
    pub(super) charge: Option<Charge>,
}

/// A failure that must end before more documents are made.
enum WaitsFor {
    Source(SourceError),
    /// The runner of functions failed, with its message.
    Function(String),
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Delivers a batch to the target, in parts if it is large or refused. Makes the next delivery meanwhile.
    ///
    /// A part that is refused as poison is bisected: a half that is taken was not the cause, so the rest need not be
    /// tried as a whole. Once the guilty document is found, the documents behind it are tried with the following ones.
    /// While the target refuses parts, each next part has half as many documents; it doubles with each part that is
    /// taken whole.
    pub(super) async fn deliver(&mut self, next: NextChanges, batch_max: usize) -> Result<(), RunEnd> {
        let NextChanges { part: mut made, rest: mut left } = next;
        // The number of first changes among which one is guilty.
        let mut suspects = 0_usize;
        loop {
            let count = if suspects > 1 {
                suspects / 2
            } else if suspects == 1 {
                1
            } else {
                self.together
            };
            let before = left.len();
            let part = match made.take() {
                Some(part) => part,
                None if left.is_empty() => return Ok(()),
                None => match self.make_part(&mut left, count).await? {
                    Ok(part) => part,
                    Err(waits_for) => {
                        self.give_back(left);
                        let until = match waits_for {
                            WaitsFor::Source(error) => self.note_unread(&error)?,
                            WaitsFor::Function(reason) => {
                                self.note_refused(DeliveryError::failed(Failure::Storage, reason))?
                            }
                        };
                        return self.pause_giving_back(until).await;
                    }
                },
            };
            let Part { deliveries, mut ready, charge } = part;
            if ready.is_empty() {
                suspects = suspects.saturating_sub(before - left.len());
                continue;
            }
            let places: BTreeSet<_> = ready.iter().map(|taken| taken.place).collect();
            let reach = self.plan.reach(&places);
            let checkpoint = reach.clone().map(|seq| self.checkpoint_at(seq));
            let is_whole = left.is_empty();
            let charge = charge.map(Arc::new);
            let may_make_ahead = suspects == 0 && self.failures == 0 && self.may_make_ahead();
            let (tried, ahead) = if may_make_ahead {
                self.hold(charge.as_ref())?;
                self.try_deliver_making(deliveries, checkpoint, std::mem::take(&mut left), batch_max).await?
            } else {
                let tried = self.try_deliver(deliveries, checkpoint, charge.as_ref()).await?;
                (tried, NextChanges::unmade(std::mem::take(&mut left)))
            };
            drop(charge);
            match tried {
                PartOutcome::Taken => {
                    let count = ready.len();
                    match suspects {
                        0 if count >= self.together => self.together = (2 * self.together).min(ADMITTED_MAX),
                        _ => suspects = suspects.saturating_sub(count),
                    }
                    for taken in ready {
                        self.fetched.forget(taken.change.change.seq.as_str());
                        self.plan.settle(&taken.id, taken.place);
                        self.guard.note(false).map_err(RunEnd::Halted)?;
                    }
                    let count = count as u64;
                    self.counts.delivered += count;
                    self.progress.add_delivered(count);
                    self.unkept += count;
                    if let (Some(seq), true) = (reach, self.keeps_checkpoint) {
                        self.written = seq;
                    }
                    if is_whole && may_make_ahead {
                        // The part made ahead belongs to the next batch.
                        self.ahead = Some(ahead).filter(|ahead| ahead.part.is_some() || !ahead.rest.is_empty());
                        return Ok(());
                    }
                    NextChanges { part: made, rest: left } = ahead;
                }
                refused => {
                    if is_whole {
                        self.give_back(ahead.changes());
                    } else {
                        left = ahead.changes();
                    }
                    let (failure, error) = match refused {
                        PartOutcome::Poison(failure, error) => (failure, error),
                        PartOutcome::Refused(refused) => {
                            self.give_back(ready.into_iter().chain(left));
                            let until = self.note_refused(refused)?;
                            return self.pause_giving_back(until).await;
                        }
                        PartOutcome::Taken => continue,
                    };
                    if let (1, Some(taken)) = (ready.len(), ready.first()) {
                        self.put_aside(taken, &failure, &error).await?;
                        suspects = 0;
                        continue;
                    }
                    if suspects == 0 {
                        self.together = (ready.len() / 2).max(1);
                    }
                    suspects = ready.len();
                    while let Some(taken) = ready.pop() {
                        left.push_front(taken);
                    }
                }
            }
        }
    }

    /// Waits before the target or source is retried. Releases the changes that were read as soon as other jobs wait for
    /// memory, and reads them again later. No change may be under way.
    pub(super) async fn pause_giving_back(&mut self, until: Instant) -> Result<(), RunEnd> {
        self.fetched.clear();
        self.unmake_ahead();
        let (memory, clock) = (self.memory.clone(), self.clock.clone());
        let mut stop = self.stop.clone();
        let mut has_shed = false;
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Err(RunEnd::Stopped),
                () = clock.sleep_until(until) => return Ok(()),
                () = memory.short(), if !has_shed => {
                    self.shed();
                    has_shed = true;
                }
            }
        }
    }

    fn hold(&mut self, room: Option<&Arc<Charge>>) -> Result<(), RunEnd> {
        if let Some(room) = room {
            self.target()?.hold(room.clone());
        }
        Ok(())
    }

    /// Delivers a part once. A retry makes it again, so that there is only one copy.
    pub(super) async fn try_deliver(
        &mut self,
        deliveries: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
        room: Option<&Arc<Charge>>,
    ) -> Result<PartOutcome, RunEnd> {
        if self.system().processing.dry_run {
            return Ok(PartOutcome::Taken);
        }
        self.check_held()?;
        self.hold(room)?;
        let done = self.target()?.deliver(deliveries, checkpoint).await;
        self.tried(done)
    }

    /// As [`Runner::try_deliver`]; meanwhile makes the first part of `left`, or of the next batch.
    async fn try_deliver_making(
        &mut self,
        deliveries: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
        left: VecDeque<PlannedChange<ChargedChange>>,
        batch_max: usize,
    ) -> Result<(PartOutcome, NextChanges), RunEnd> {
        self.check_held()?;
        let mut target = self.target.take().ok_or_else(|| RunEnd::GaveUp("the target is lost".to_owned()))?;
        let (done, ahead) = {
            let is_in_vain = Notify::new();
            let mut writing = pin!(async {
                let done = target.deliver(deliveries, checkpoint).await;
                if done.is_err() {
                    // The part made ahead will not be delivered.
                    is_in_vain.notify_one();
                }
                done
            });
            let early = tokio::select! {
                biased;
                done = &mut writing => Some(done),
                () = self.more_is_there(), if left.is_empty() => None,
                () = std::future::ready(()), if !left.is_empty() => None,
            };
            match early {
                Some(done) => (done, NextChanges::unmade(left)),
                None => tokio::join!(writing, self.make_ahead(left, batch_max, &is_in_vain)),
            }
        };
        self.target = Some(target);
        match self.tried(done) {
            Ok(tried) => Ok((tried, ahead)),
            Err(end) => Err(end),
        }
    }

    fn tried(&mut self, done: Result<(), DeliveryError>) -> Result<PartOutcome, RunEnd> {
        match done {
            Ok(()) => {
                self.failures = 0;
                self.tell_failing();
                Ok(PartOutcome::Taken)
            }
            Err(DeliveryError::Failed { failure, error, .. }) if failure.class() == Class::Poison => {
                Ok(PartOutcome::Poison(failure, error))
            }
            Err(DeliveryError::Superseded) => Err(RunEnd::Superseded),
            Err(refused) => Ok(PartOutcome::Refused(refused)),
        }
    }

    /// Acquires memory for products and for the target's copy of them.
    pub(super) async fn products(&mut self, bytes: usize) -> Result<Charge, RunEnd> {
        if let Some(charge) = self.memory.try_products(2 * bytes) {
            return Ok(charge);
        }
        // Release before waiting: other jobs may wait for this memory while they hold theirs.
        self.fetched.clear();
        let mut stop = self.stop.clone();
        tokio::select! {
            // A gathered window is delivered before the end if there is memory.
            biased;
            charge = self.memory.products(2 * bytes) => Ok(charge),
            _ = stop.wait_for(|stop| *stop) => Err(RunEnd::Stopped),
        }
    }

    /// Makes as many of the first changes as memory allows, and takes them from `left`.
    async fn make_part(
        &mut self,
        left: &mut VecDeque<PlannedChange<ChargedChange>>,
        count: usize,
    ) -> Result<Result<Part, WaitsFor>, RunEnd> {
        let mut made = Part::default();
        let (mut bytes, mut room) = (0, self.window.map_or(PART_BYTES, |window| window.bytes.max(PART_BYTES)));
        let (part_bytes, mut is_alone) = (room, false);
        let mut rows = if self.window.is_some() { None } else { Some(0_usize) };
        made.charge = Some(self.products(room).await?);
        for _ in 0..count {
            let Some(mut taken) = left.pop_front() else { break };
            let mut delivery = self.make(&taken.change.change, room.saturating_sub(bytes)).await;
            if matches!(delivery, Err(ProductError::Beyond)) && made.ready.is_empty() && room < ROWS_BYTES_MAX {
                // Delivered alone, with all memory that a job may have. The run holds none while it waits.
                left.push_front(taken);
                made.charge = None;
                room = ROWS_BYTES_MAX;
                is_alone = true;
                made.charge = Some(self.products(room).await?);
                let Some(again) = left.pop_front() else { break };
                taken = again;
                delivery = self.make(&taken.change.change, room).await;
            }
            match delivery {
                Ok(delivery) => {
                    bytes += delivery.bytes();
                    rows = rows.map(|rows| rows.saturating_add(delivery.rows()));
                    made.deliveries.push(delivery);
                    made.ready.push(taken);
                    if bytes >= part_bytes || rows >= Some(PART_ROWS) {
                        break;
                    }
                }
                // Finished documents go first, so that a runner of functions that is temporarily busy does not undo
                // them each time.
                Err(ProductError::Beyond | ProductError::Later(_)) if !made.ready.is_empty() => {
                    left.push_front(taken);
                    break;
                }
                Err(ProductError::Beyond) => self.put_unmappable_aside(&taken, Unmappable::TooLarge).await?,
                Err(ProductError::Unmappable(unmappable)) => self.put_unmappable_aside(&taken, unmappable).await?,
                Err(ProductError::Source(error)) => {
                    left.push_front(taken);
                    while let Some(taken) = made.ready.pop() {
                        left.push_front(taken);
                    }
                    return Ok(Err(WaitsFor::Source(error)));
                }
                Err(ProductError::Later(reason)) => {
                    left.push_front(taken);
                    return Ok(Err(WaitsFor::Function(reason)));
                }
                Err(ProductError::Broken(reason)) => return Err(RunEnd::Broken(reason)),
            }
            if is_alone {
                break;
            }
        }
        Ok(Ok(made))
    }

    /// Makes the delivery of a change within `bytes_max`.
    pub(super) async fn make(&mut self, change: &Change, bytes_max: usize) -> Result<Delivery, ProductError> {
        let read = match &change.what {
            ChangeContent::ToBeRead => self.read_document(&change.id, bytes_max).await?,
            ChangeContent::Changed(_) | ChangeContent::Deleted | ChangeContent::Removed => None,
        };
        let text = match &change.what {
            ChangeContent::Changed(text) => Some(text.as_str()),
            ChangeContent::ToBeRead => read.as_deref(),
            ChangeContent::Deleted | ChangeContent::Removed => None,
        };
        let of = ChangeIdentity { id: &change.id, rev: &change.rev, seq: change.seq.as_str(), is_written: true };
        self.made(of, text, bytes_max).await
    }

    async fn put_unmappable_aside(
        &mut self,
        taken: &PlannedChange<ChargedChange>,
        unmappable: Unmappable,
    ) -> Result<(), RunEnd> {
        let error = unmappable.to_string();
        self.put_aside(taken, &Failure::Unmappable(Box::new(unmappable)), &error).await
    }

    /// Writes the queue entry, before the checkpoint may pass its change.
    async fn put_aside(
        &mut self,
        taken: &PlannedChange<ChargedChange>,
        failure: &Failure,
        error: &str,
    ) -> Result<(), RunEnd> {
        let change = &taken.change.change;
        let (method, document) = match &change.what {
            ChangeContent::Changed(text) => ("PUT", text.as_str()),
            ChangeContent::ToBeRead => ("PUT", ""),
            ChangeContent::Deleted | ChangeContent::Removed => ("DELETE", ""),
        };
        let failed = FailedChange {
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
            now: self.clock.unix_seconds(),
            retention_seconds: self.system().dlq.retention_seconds(),
        };
        let entry = Entry::new(&failed, &self.redactor);
        while let Err(error) = self.queue.put(&entry).await {
            match error {
                QueueError::Full(entries) => return Err(RunEnd::QueueFull(entries)),
                QueueError::Failed(error) => self.pause_for(DeliveryError::failed(Failure::Storage, error)).await?,
            }
        }
        self.failures = 0;
        self.tell_failing();
        self.counts.queued += 1;
        self.unkept += 1;
        self.progress.add_queued();
        self.plan.settle(&taken.id, taken.place);
        self.guard.note(true).map_err(RunEnd::Halted)
    }
}
