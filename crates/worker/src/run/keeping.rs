//! Decides when a checkpoint is written outside of a batch: to the source for targets that store none, and to the
//! target after changes without effect.
//!
//! The job's `checkpoint` sets the frequency. Each write is a transaction at the source, and changes delivered since
//! the last write are delivered again after a crash.

use std::time::Duration;

use tokio::time::Instant;

use super::{LoggedTrouble, Queue, RunEnd, Runner};
use crate::checkpoint::local_id;
use crate::output::Target;
use crate::source::{Source, SourceError};

/// The default number of documents after which a checkpoint is written.
const KEEP_AFTER: u64 = 1_000;
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// The shortest time between two checkpoints, because each is a transaction at the source.
const KEEP_PAUSE: Duration = Duration::from_millis(200);

const KEEP_AT_END: Duration = Duration::from_secs(5);

/// The event after which a checkpoint may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepEvent {
    /// The end of a batch with more to come.
    Batch,
    /// The end of the available changes, or of an object of many documents.
    Rest,
    /// The end of a reset, which does nothing else.
    Reset,
    /// The end of the run: a single attempt without pauses.
    Run,
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Returns the most changes that are delivered between two checks of the checkpoint.
    pub(super) fn batch_max(&self) -> usize {
        let batch = self.system().processing.batch();
        let documents = self.system().checkpoint.documents().filter(|_| !self.keeps_checkpoint);
        documents.and_then(|documents| usize::try_from(documents).ok()).map_or(batch, |documents| batch.min(documents))
    }

    fn is_due(&self, moment: KeepEvent) -> bool {
        let (since, settings) = (self.clock.since(self.kept_at), &self.system().checkpoint);
        let period = settings.period();
        let is_enough = match settings.documents() {
            Some(documents) => self.unkept >= documents,
            None => period.is_none() && self.unkept >= KEEP_AFTER && since >= KEEP_PAUSE,
        };
        match moment {
            KeepEvent::Reset | KeepEvent::Run => true,
            KeepEvent::Rest if period.is_none() => true,
            KeepEvent::Rest | KeepEvent::Batch => is_enough || since >= period.unwrap_or(KEEP_EVERY),
        }
    }

    /// Returns the time at which the checkpoint is written even if no change follows. `None`: it is current.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let period = self.system().checkpoint.period().filter(|_| !self.system().processing.dry_run)?;
        let is_unwritten = self.reached.as_ref().is_some_and(|seq| *seq != self.written);
        is_unwritten.then(|| self.kept_at + period)
    }

    /// Writes the final checkpoint in a single attempt with a timeout, unless the run ended because the job has another
    /// owner or the source changed.
    pub(super) async fn keep_at_end(&mut self, end: &RunEnd) {
        match end {
            RunEnd::Stopped
            | RunEnd::Done
            | RunEnd::Halted(_)
            | RunEnd::QueueFull(_)
            | RunEnd::GaveUp(_)
            | RunEnd::Broken(_) => {}
            RunEnd::Superseded | RunEnd::SourceMismatch(_) | RunEnd::Unfit(_) | RunEnd::MalformedAnswer(_) => return,
        }
        let clock = self.clock.clone();
        if !matches!(clock.timeout(KEEP_AT_END, self.keep(KeepEvent::Run)).await, Ok(Ok(()))) {
            tracing::debug!(job = self.job.id, "a job's last checkpoint was not written");
        }
    }

    /// Writes the checkpoint if it is due and no batch has written it.
    pub(super) async fn keep(&mut self, moment: KeepEvent) -> Result<(), RunEnd> {
        self.reached = self.plan.checkpoint().or(self.reached.take());
        if let Some(reached) = &self.reached {
            self.progress.at(reached);
        }
        let is_due = self.is_due(moment);
        let Some(seq) = self.reached.clone().filter(|seq| is_due && *seq != self.written) else { return Ok(()) };
        let checkpoint = self.checkpoint_at(seq.clone());
        if self.system().processing.dry_run {
            return Ok(());
        }
        (self.unkept, self.kept_at) = (0, self.clock.now());
        self.check_held()?;
        if self.keeps_checkpoint {
            // An empty batch cannot be poison.
            while let Err(refused) = self.target()?.deliver(Vec::new(), Some(checkpoint.clone())).await {
                if moment == KeepEvent::Run {
                    return Ok(());
                }
                let until = self.note_refused(refused)?;
                self.pause_giving_back(until).await?;
                self.check_held()?;
            }
            self.failures = 0;
            self.tell_failing();
            self.written = seq;
            return Ok(());
        }
        // Persist what the target took before the checkpoint passes it.
        match moment {
            KeepEvent::Run if self.target()?.persist().await.is_err() => return Ok(()),
            KeepEvent::Run => {}
            KeepEvent::Batch | KeepEvent::Rest | KeepEvent::Reset if self.persist().await? => {}
            KeepEvent::Batch | KeepEvent::Rest | KeepEvent::Reset => return Ok(()),
        }
        self.check_held()?;
        let id = self.local_id();
        let mut written = self.source.write_checkpoint(&id, &checkpoint, self.rev.as_deref()).await;
        if written == Err(SourceError::Status(409)) {
            // Another owner may have written it under a higher epoch.
            match self.source.checkpoint(&id).await {
                Ok(Some((other, _))) if other.epoch > self.epoch => return Err(RunEnd::Superseded),
                Ok(found) => {
                    let rev = found.map(|(_, rev)| rev);
                    written = self.source.write_checkpoint(&id, &checkpoint, rev.as_deref()).await;
                }
                Err(error) => written = Err(error),
            }
        }
        match written {
            Ok(rev) => (self.rev, self.written) = (Some(rev), seq),
            // The next write covers it; changes in between may be delivered again.
            Err(error) => match self.queue.keep(&checkpoint).await {
                Ok(()) => self.written = seq,
                Err(other) => {
                    let other = self.redactor.text(&other, 500);
                    if let Some(left_out) = self.lines.line(LoggedTrouble::Checkpoint) {
                        tracing::warn!(
                            job = self.job.id,
                            %error,
                            other,
                            left_out,
                            "a job's checkpoint could not be written"
                        );
                    }
                }
            },
        }
        Ok(())
    }

    /// Makes everything durable that the target took. False: any part of it since the last success may be lost. The run
    /// then has waited and rewound to the checkpoint.
    pub(super) async fn persist(&mut self) -> Result<bool, RunEnd> {
        let Err(refused) = self.target()?.persist().await else {
            self.persist_failures = 0;
            self.tell_failing();
            return Ok(true);
        };
        // First, so that no checkpoint passes what may be lost, even if the run ends now.
        self.go_back();
        // Successful deliveries in between do not reset this count.
        self.persist_failures = self.persist_failures.saturating_add(1);
        let until = self.note_outage(refused, self.persist_failures, LoggedTrouble::Persistence)?;
        self.pause(until).await?;
        Ok(false)
    }

    /// Returns the id of the checkpoint's document at the source.
    pub(super) fn local_id(&self) -> String {
        let input = &self.job.input;
        let client_id = self.system().checkpoint.client_id.as_deref().unwrap_or("changes_worker");
        let place = input.url.as_deref().or(input.local.as_deref()).unwrap_or_default();
        local_id(client_id, place, &input.changes_feed.channels, &self.job.id)
    }
}
