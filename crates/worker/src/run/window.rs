//! Documents that a target takes together: it is waited for more of them, as long as the job says.

use std::sync::atomic::Ordering;

use super::keeping::Moment;
use super::reading::ADMITTED_BYTES_MAX;
use super::{ADMITTED_MAX, End, Queue, Runner};
use crate::output::{Target, Window};
use crate::source::Source;

impl Window {
    /// As much of it as the worker holds.
    pub(super) fn held(self) -> Window {
        Window { documents: self.documents.clamp(1, ADMITTED_MAX), bytes: self.bytes.min(ADMITTED_BYTES_MAX), ..self }
    }
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Reads on behind the feed's end, until the window is full or over, the job is to end, or others lack the room: then what is there
    /// is delivered. What is to be replayed meanwhile is.
    pub(super) async fn gather(&mut self, window: Window) -> Result<(), End> {
        let clock = self.clock.clone();
        let begin = clock.now();
        loop {
            let left = window.age.saturating_sub(clock.since(begin));
            let has_enough =
                self.plan.admitted() >= window.documents || self.own.load(Ordering::Relaxed) >= window.bytes;
            if has_enough || self.is_source_away || left.is_zero() || self.memory.is_short() || *self.stop.borrow() {
                return Ok(());
            }
            // What is more than is waited for is read as a page; and what had to be given back is waited for elsewhere.
            let is_to_wait = self.is_at_end;
            if self.plan.is_empty() || !self.start_reading(is_to_wait).await? {
                return Ok(());
            }
            // A page that is not taken in is still under way.
            match clock.timeout(left, self.take_in()).await {
                Err(_) | Ok(Err(End::Stopped)) => return Ok(()),
                Ok(taken) => taken?,
            }
            self.replay().await?;
            self.keep(Moment::Batch).await?;
        }
    }
}
