//! Changes that were read, brought to the target.

use std::collections::{BTreeSet, VecDeque};

use super::attaching::Of;
use super::products::Unmade;
use super::{End, NotKept, Queue, Runner, Waiting, now};
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
struct Part {
    deliveries: Vec<Delivery>,
    /// The changes that they are of.
    ready: Vec<Taken<Waiting>>,
    /// Those that are not made yet.
    rest: Vec<Taken<Waiting>>,
    charge: Option<Charge>,
    /// Why nothing is made: a document is not to be had, or the mapping's function cannot be run.
    waits_for: Option<WaitsFor>,
}

/// What must mend before anything more is made.
enum WaitsFor {
    Source(SourceError),
    /// What runs functions, and why it did not.
    Function(String),
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Brings a batch to the target, part by part where it is large or refused.
    pub(super) async fn deliver(&mut self, batch: Vec<Taken<Waiting>>) -> Result<(), End> {
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let Part { deliveries, mut ready, rest, charge, waits_for } = self.make_part(part).await?;
            if !rest.is_empty() {
                parts.push(rest);
            }
            if let Some(waits_for) = waits_for {
                for taken in parts.into_iter().rev().flatten() {
                    self.plan.give_back(taken);
                }
                let until = match waits_for {
                    WaitsFor::Source(error) => self.note_unread(&error)?,
                    WaitsFor::Function(reason) => self.note_refused(Refused::failed(Failure::Storage, reason))?,
                };
                return self.pause_giving_back(until).await;
            }
            if ready.is_empty() {
                continue;
            }
            let places: BTreeSet<_> = ready.iter().map(|taken| taken.place).collect();
            let reach = self.plan.reach(&places);
            let checkpoint = reach.clone().map(|seq| self.checkpoint_at(seq));
            let tried = self.try_deliver(deliveries, checkpoint).await?;
            drop(charge);
            match tried {
                Tried::Taken => {
                    let count = ready.len() as u64;
                    for taken in ready {
                        self.plan.settle(&taken.id, taken.place);
                        self.guard.note(false).map_err(End::Halted)?;
                    }
                    self.counts.delivered += count;
                    self.progress.add_delivered(count);
                    self.unkept += count;
                    if let (Some(seq), true) = (reach, self.target.keeps_checkpoint()) {
                        self.written = seq;
                    }
                }
                Tried::Poison(failure, error) => match (ready.len(), ready.pop()) {
                    (1, Some(taken)) => self.put_aside(&taken, &failure, &error).await?,
                    (_, last) => {
                        ready.extend(last);
                        let second = ready.split_off(ready.len() / 2);
                        parts.push(second);
                        parts.push(ready);
                    }
                },
                Tried::Refused(refused) => {
                    for taken in ready.into_iter().chain(parts.into_iter().rev().flatten()) {
                        self.plan.give_back(taken);
                    }
                    let until = self.note_refused(refused)?;
                    return self.pause_giving_back(until).await;
                }
            }
        }
        Ok(())
    }

    /// Waits before the target or the source is tried again. What was read is given back as soon as other jobs wait for the room, and read again later;
    /// nothing of it may be under way.
    pub(super) async fn pause_giving_back(&mut self, until: tokio::time::Instant) -> Result<(), End> {
        let memory = self.memory.clone();
        let mut stop = self.stop.clone();
        let mut has_shed = false;
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Err(End::Stopped),
                () = tokio::time::sleep_until(until) => return Ok(()),
                () = memory.short(), if !has_shed => {
                    self.shed();
                    has_shed = true;
                }
            }
        }
    }

    /// Gives it to the target once. It is made anew for another try, so that there is one copy of it.
    pub(super) async fn try_deliver(
        &mut self,
        deliveries: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Tried, End> {
        if self.system().processing.dry_run {
            return Ok(Tried::Taken);
        }
        self.check_held()?;
        match self.target.deliver(deliveries, checkpoint).await {
            Ok(()) => {
                self.failures = 0;
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
        let mut stop = self.stop.clone();
        tokio::select! {
            // What was gathered is delivered before the end, where there is room.
            biased;
            charge = self.memory.products(2 * bytes) => Ok(charge),
            _ = stop.wait_for(|stop| *stop) => Err(End::Stopped),
        }
    }

    /// Makes as much of a part as there is room for.
    async fn make_part(&mut self, part: Vec<Taken<Waiting>>) -> Result<Part, End> {
        let (mut made, mut left) = (Part::default(), VecDeque::from(part));
        // Where it is taken together, as much as that may be.
        let (mut bytes, mut room) =
            (0, self.target.window().map_or(PART_BYTES, |window| window.held().bytes.max(PART_BYTES)));
        let (part_bytes, mut is_alone) = (room, false);
        made.charge = Some(self.products(room).await?);
        while let Some(taken) = left.pop_front() {
            match self.make(&taken.change.change, room.saturating_sub(bytes)).await {
                Ok(delivery) => {
                    bytes += delivery.bytes();
                    made.deliveries.push(delivery);
                    made.ready.push(taken);
                    if bytes >= part_bytes {
                        break;
                    }
                }
                Err(Unmade::Beyond) if !made.ready.is_empty() => {
                    left.push_front(taken);
                    break;
                }
                Err(Unmade::Beyond) if room < ROWS_BYTES_MAX => {
                    // Alone, with all the room that one may have; nothing is held while it is waited for.
                    left.push_front(taken);
                    made.charge = None;
                    room = ROWS_BYTES_MAX;
                    is_alone = true;
                    made.charge = Some(self.products(room).await?);
                    continue;
                }
                Err(Unmade::Beyond) => self.put_unmappable_aside(&taken, Unmappable::TooLarge).await?,
                Err(Unmade::Unmappable(unmappable)) => self.put_unmappable_aside(&taken, unmappable).await?,
                Err(Unmade::Source(error)) => {
                    left.push_front(taken);
                    let rest = made.ready.into_iter().chain(left).collect();
                    return Ok(Part { rest, waits_for: Some(WaitsFor::Source(error)), ..Part::default() });
                }
                // What is made already goes first: engines that are busy now and then must not undo it each time.
                Err(Unmade::Later(_)) if !made.ready.is_empty() => {
                    left.push_front(taken);
                    break;
                }
                Err(Unmade::Later(reason)) => {
                    left.push_front(taken);
                    let waits_for = Some(WaitsFor::Function(reason));
                    return Ok(Part { rest: left.into(), waits_for, ..Part::default() });
                }
                Err(Unmade::Broken(reason)) => return Err(End::Broken(reason)),
            }
            if is_alone {
                break;
            }
        }
        made.rest = left.into();
        Ok(made)
    }

    /// What a change is for the target, in at most so many bytes.
    async fn make(&mut self, change: &Change, bytes_max: usize) -> Result<Delivery, Unmade> {
        let read = match &change.what {
            What::ToBeRead => self.read_document(&change.id, bytes_max).await?,
            What::Changed(_) | What::Deleted | What::Removed => None,
        };
        let text = match &change.what {
            What::Changed(text) => Some(text.as_str()),
            What::ToBeRead => read.as_deref(),
            What::Deleted | What::Removed => None,
        };
        self.made(Of { id: &change.id, rev: &change.rev, seq: change.seq.as_str() }, text, bytes_max).await
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
}
