//! Changes that were read, brought to the target.

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::ahead::Ahead;
use super::attaching::Of;
use super::products::Unmade;
use super::{ADMITTED_MAX, End, NotKept, Queue, Runner, Waiting};
use crate::change::{Change, What};
use crate::checkpoint::Checkpoint;
use crate::documents::Output;
use crate::failure::{Class, Failure};
use crate::memory::Charge;
use crate::output::{Delivery, Refused, Target};
use crate::plan::Taken;
use crate::queue::{Entry, Failed};
use crate::rows::{ROWS_BYTES_MAX, Unmappable};
use crate::source::{Source, SourceError};

/// Bytes of what documents produce that are delivered at once, but for what a single one does.
pub(super) const PART_BYTES: usize = 8 << 20;

/// Rows of them, but for what a single one has, where they are not taken together as an object.
pub(super) const PART_ROWS: usize = crate::rows::ROWS_MAX;

/// What becomes of a part.
pub(super) enum Tried {
    Taken,
    /// One of its documents is to blame.
    Poison(Failure, String),
    /// The target's state is.
    Refused(Refused),
}

/// What is delivered at once.
#[derive(Default)]
pub(super) struct Part {
    pub(super) deliveries: Vec<Delivery>,
    /// The changes that they are of.
    pub(super) ready: Vec<Taken<Waiting>>,
    pub(super) charge: Option<Charge>,
}

/// What must mend before anything more is made.
enum WaitsFor {
    Source(SourceError),
    /// What runs functions, and why it did not.
    Function(String),
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Brings a batch to the target, part by part where it is large or refused. What is next is made meanwhile.
    ///
    /// Of a part that is refused as poison the first half is tried, and so on: what is taken was not to blame, so that the rest need not be
    /// tried as a whole. Where one is found, what stands behind it is tried with what comes next. As long as the target refuses parts
    /// they have half as many documents each time, and twice as many for each that it takes whole.
    pub(super) async fn deliver(&mut self, next: Ahead, batch_max: usize) -> Result<(), End> {
        let Ahead { part: mut made, rest: mut left } = next;
        // The first of those that are left, among which there is one that is to blame.
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
                                self.note_refused(Refused::failed(Failure::Storage, reason))?
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
                (tried, Ahead::unmade(std::mem::take(&mut left)))
            };
            drop(charge);
            match tried {
                Tried::Taken => {
                    let count = ready.len();
                    match suspects {
                        0 if count >= self.together => self.together = (2 * self.together).min(ADMITTED_MAX),
                        _ => suspects = suspects.saturating_sub(count),
                    }
                    for taken in ready {
                        self.fetched.forget(taken.change.change.seq.as_str());
                        self.plan.settle(&taken.id, taken.place);
                        self.guard.note(false).map_err(End::Halted)?;
                    }
                    let count = count as u64;
                    self.counts.delivered += count;
                    self.progress.add_delivered(count);
                    self.unkept += count;
                    if let (Some(seq), true) = (reach, self.keeps_checkpoint) {
                        self.written = seq;
                    }
                    if is_whole && may_make_ahead {
                        // What is ahead is of the next batch.
                        self.ahead = Some(ahead).filter(|ahead| ahead.part.is_some() || !ahead.rest.is_empty());
                        return Ok(());
                    }
                    Ahead { part: made, rest: left } = ahead;
                }
                refused => {
                    if is_whole {
                        self.give_back(ahead.changes());
                    } else {
                        left = ahead.changes();
                    }
                    let (failure, error) = match refused {
                        Tried::Poison(failure, error) => (failure, error),
                        Tried::Refused(refused) => {
                            self.give_back(ready.into_iter().chain(left));
                            let until = self.note_refused(refused)?;
                            return self.pause_giving_back(until).await;
                        }
                        Tried::Taken => continue,
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

    /// Waits before the target or the source is tried again. What was read is given back as soon as other jobs wait for the room, and read again later;
    /// nothing of it may be under way.
    pub(super) async fn pause_giving_back(&mut self, until: Instant) -> Result<(), End> {
        self.fetched.clear();
        self.unmake_ahead();
        let (memory, clock) = (self.memory.clone(), self.clock.clone());
        let mut stop = self.stop.clone();
        let mut has_shed = false;
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
                () = clock.sleep_until(until) => return Ok(()),
                () = memory.short(), if !has_shed => {
                    self.shed();
                    has_shed = true;
                }
            }
        }
    }

    /// Shows the target the room of what is delivered next.
    fn hold(&mut self, room: Option<&Arc<Charge>>) -> Result<(), End> {
        if let Some(room) = room {
            self.target()?.hold(room.clone());
        }
        Ok(())
    }

    /// Gives it to the target once. It is made anew for another try, so that there is one copy of it.
    pub(super) async fn try_deliver(
        &mut self,
        deliveries: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
        room: Option<&Arc<Charge>>,
    ) -> Result<Tried, End> {
        if self.system().processing.dry_run {
            return Ok(Tried::Taken);
        }
        self.check_held()?;
        self.hold(room)?;
        let done = self.target()?.deliver(deliveries, checkpoint).await;
        self.tried(done)
    }

    /// As [`Runner::try_deliver`]; meanwhile the first part of `left` is made, or of the next batch.
    async fn try_deliver_making(
        &mut self,
        deliveries: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
        left: VecDeque<Taken<Waiting>>,
        batch_max: usize,
    ) -> Result<(Tried, Ahead), End> {
        self.check_held()?;
        let mut target = self.target.take().ok_or_else(|| End::GaveUp("the target is lost".to_owned()))?;
        let (done, ahead) = {
            let is_in_vain = Notify::new();
            let mut writing = pin!(async {
                let done = target.deliver(deliveries, checkpoint).await;
                if done.is_err() {
                    // What is made behind it is not delivered.
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
                Some(done) => (done, Ahead::unmade(left)),
                None => tokio::join!(writing, self.make_ahead(left, batch_max, &is_in_vain)),
            }
        };
        self.target = Some(target);
        match self.tried(done) {
            Ok(tried) => Ok((tried, ahead)),
            Err(end) => Err(end),
        }
    }

    fn tried(&mut self, done: Result<(), Refused>) -> Result<Tried, End> {
        match done {
            Ok(()) => {
                self.failures = 0;
                self.tell_failing();
                Ok(Tried::Taken)
            }
            Err(Refused::Failed { failure, error, .. }) if failure.class() == Class::Poison => {
                Ok(Tried::Poison(failure, error))
            }
            Err(Refused::Superseded) => Err(End::Superseded),
            Err(refused) => Ok(Tried::Refused(refused)),
        }
    }

    /// Room for what is made, and for the target's copy of it.
    pub(super) async fn products(&mut self, bytes: usize) -> Result<Charge, End> {
        if let Some(charge) = self.memory.try_products(2 * bytes) {
            return Ok(charge);
        }
        // Nobody waits for what others hold who wait for what he holds.
        self.fetched.clear();
        let mut stop = self.stop.clone();
        tokio::select! {
            // What was gathered is delivered before the end, where there is room.
            biased;
            charge = self.memory.products(2 * bytes) => Ok(charge),
            _ = stop.wait_for(|stop| *stop) => Err(End::Stopped),
        }
    }

    /// Makes as much of the first so many changes as there is room for, and takes them from what is left.
    async fn make_part(
        &mut self,
        left: &mut VecDeque<Taken<Waiting>>,
        count: usize,
    ) -> Result<Result<Part, WaitsFor>, End> {
        let mut made = Part::default();
        // Where it is taken together, as much as that may be.
        let (mut bytes, mut room) = (0, self.window.map_or(PART_BYTES, |window| window.bytes.max(PART_BYTES)));
        let (part_bytes, mut is_alone) = (room, false);
        let mut rows = if self.window.is_some() { None } else { Some(0_usize) };
        made.charge = Some(self.products(room).await?);
        for _ in 0..count {
            let Some(mut taken) = left.pop_front() else { break };
            let mut delivery = self.make(&taken.change.change, room.saturating_sub(bytes)).await;
            if matches!(delivery, Err(Unmade::Beyond)) && made.ready.is_empty() && room < ROWS_BYTES_MAX {
                // Alone, with all the room that one may have; nothing is held while it is waited for.
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
                // What is made already goes first: engines that are busy now and then must not undo it each time.
                Err(Unmade::Beyond | Unmade::Later(_)) if !made.ready.is_empty() => {
                    left.push_front(taken);
                    break;
                }
                Err(Unmade::Beyond) => self.put_unmappable_aside(&taken, Unmappable::TooLarge).await?,
                Err(Unmade::Unmappable(unmappable)) => self.put_unmappable_aside(&taken, unmappable).await?,
                Err(Unmade::Source(error)) => {
                    left.push_front(taken);
                    while let Some(taken) = made.ready.pop() {
                        left.push_front(taken);
                    }
                    return Ok(Err(WaitsFor::Source(error)));
                }
                Err(Unmade::Later(reason)) => {
                    left.push_front(taken);
                    return Ok(Err(WaitsFor::Function(reason)));
                }
                Err(Unmade::Broken(reason)) => return Err(End::Broken(reason)),
            }
            if is_alone {
                break;
            }
        }
        Ok(Ok(made))
    }

    /// What a change is for the target, in at most so many bytes.
    pub(super) async fn make(&mut self, change: &Change, bytes_max: usize) -> Result<Delivery, Unmade> {
        let read = match &change.what {
            What::ToBeRead => self.read_document(&change.id, bytes_max).await?,
            What::Changed(_) | What::Deleted | What::Removed => None,
        };
        let text = match &change.what {
            What::Changed(text) => Some(text.as_str()),
            What::ToBeRead => read.as_deref(),
            What::Deleted | What::Removed => None,
        };
        let of = Of { id: &change.id, rev: &change.rev, seq: change.seq.as_str(), is_written: true };
        self.made(of, text, bytes_max).await
    }

    async fn put_unmappable_aside(&mut self, taken: &Taken<Waiting>, unmappable: Unmappable) -> Result<(), End> {
        let error = unmappable.to_string();
        self.put_aside(taken, &Failure::Unmappable(Box::new(unmappable)), &error).await
    }

    /// The entry first; then the checkpoint may pass its change.
    async fn put_aside(&mut self, taken: &Taken<Waiting>, failure: &Failure, error: &str) -> Result<(), End> {
        let change = &taken.change.change;
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
            now: self.clock.unix_seconds(),
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
        self.tell_failing();
        self.counts.queued += 1;
        self.unkept += 1;
        self.progress.add_queued();
        self.plan.settle(&taken.id, taken.place);
        self.guard.note(true).map_err(End::Halted)
    }
}
