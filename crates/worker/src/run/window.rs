//! Documents that a target takes together: it is waited for more of them, as long as the job says.

use std::time::Instant;

use super::{ADMITTED_BYTES_MAX, ADMITTED_MAX, End, Queue, Runner};
use crate::checkpoint::Seq;
use crate::output::{Target, Window};
use crate::source::Source;

impl Window {
    /// As much of it as the worker holds.
    pub(super) fn held(self) -> Window {
        Window { documents: self.documents.clamp(1, ADMITTED_MAX), bytes: self.bytes.min(ADMITTED_BYTES_MAX), ..self }
    }
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Reads on behind the feed's end, until the window is full or over, or the job is to end: then what is there is delivered. What is
    /// to be replayed meanwhile is. Whether the feed's end is reached.
    pub(super) async fn gather(&mut self, window: Window, read_to: &mut Seq) -> Result<bool, End> {
        let begin = Instant::now();
        let mut is_at_end = true;
        loop {
            let left = window.age.saturating_sub(begin.elapsed());
            let is_full = self.plan.admitted() >= window.documents || self.bytes >= window.bytes;
            if is_full || left.is_zero() || *self.stop.borrow() {
                return Ok(is_at_end);
            }
            // A read that is dropped has taken nothing in.
            match tokio::time::timeout(left, self.read(read_to, true)).await {
                Err(_) | Ok(Err(End::Stopped)) => return Ok(is_at_end),
                Ok(read) => is_at_end = read?,
            }
            self.replay().await?;
        }
    }
}
