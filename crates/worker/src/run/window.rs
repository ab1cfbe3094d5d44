//! Gathers documents that a target takes together, as long as the job allows.

use std::sync::atomic::Ordering;

use super::keeping::KeepEvent;
use super::reading::ADMITTED_BYTES_MAX;
use super::{ADMITTED_MAX, Queue, RunEnd, Runner};
use crate::output::{BatchLimits, Target};
use crate::source::Source;

impl BatchLimits {
    /// Limits the window to what the worker can hold.
    pub(super) fn held(self) -> BatchLimits {
        BatchLimits {
            documents: self.documents.clamp(1, ADMITTED_MAX),
            bytes: self.bytes.min(ADMITTED_BYTES_MAX),
            ..self
        }
    }
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Reads beyond the end of the feed until the window is full or expires, the job stops, or other jobs lack memory.
    /// Replays requested entries meanwhile.
    pub(super) async fn gather(&mut self, window: BatchLimits) -> Result<(), RunEnd> {
        let clock = self.clock.clone();
        let begin = clock.now();
        loop {
            let left = window.age.saturating_sub(clock.since(begin));
            let has_enough =
                self.plan.admitted() >= window.documents || self.own.load(Ordering::Relaxed) >= window.bytes;
            if has_enough || self.is_source_away || left.is_zero() || self.memory.is_short() || *self.stop.borrow() {
                return Ok(());
            }
            // A long answer is read as a page, and after a release of memory the run waits elsewhere.
            let is_to_wait = self.is_at_end;
            if self.plan.is_empty() || !self.start_reading(is_to_wait).await? {
                return Ok(());
            }
            // A page that is not admitted stays under way.
            match clock.timeout(left, self.take_in()).await {
                Err(_) | Ok(Err(RunEnd::Stopped)) => return Ok(()),
                Ok(taken) => taken?,
            }
            self.replay().await?;
            self.keep(KeepEvent::Batch).await?;
        }
    }
}
