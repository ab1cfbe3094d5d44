//! Makes the next delivery while the last batch is written.
//!
//! One part is made ahead, from changes that are ready, and only if memory is available at once: the run never waits
//! for memory while it holds some. The part is delivered after the current batch, and returned to the plan if that
//! batch fails. Work beyond conversion (a document to be read, an entry to be written) waits for its turn.

use std::collections::VecDeque;
use std::pin::pin;

use tokio::sync::Notify;

use super::delivering::{PART_BYTES, PART_ROWS, Part};
use super::{ChargedChange, Queue, RunEnd, Runner};
use crate::change::ChangeContent;
use crate::output::Target;
use crate::plan::PlannedChange;
use crate::source::Source;

/// The number of documents that are made between two checks of the write in progress.
const MADE_AT_ONCE: usize = 64;

#[derive(Default)]
pub(super) struct NextChanges {
    /// The first of them, already made.
    pub(super) part: Option<Part>,
    pub(super) rest: VecDeque<PlannedChange<ChargedChange>>,
}

impl NextChanges {
    /// Creates a list of changes of which none is made.
    pub(super) fn unmade(rest: VecDeque<PlannedChange<ChargedChange>>) -> NextChanges {
        NextChanges { part: None, rest }
    }

    /// Returns all changes and drops the products.
    pub(super) fn changes(self) -> VecDeque<PlannedChange<ChargedChange>> {
        let mut rest = self.rest;
        for taken in self.part.into_iter().flat_map(|part| part.ready).rev() {
            rest.push_front(taken);
        }
        rest
    }
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Takes the ready changes. `None`: there are none.
    pub(super) fn take_batch(&mut self, batch_max: usize) -> Option<VecDeque<PlannedChange<ChargedChange>>> {
        let mut batch = VecDeque::new();
        // Changes of the previous batch may be under way.
        let at_once = self.plan.under_way().saturating_add(batch_max);
        while let Some(taken) = self.plan.take(at_once) {
            batch.push_back(taken);
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Returns whether the next batch may be made during a write: not if attachments must be checked at the target, nor
    /// for a window that gathers documents.
    pub(super) fn may_make_ahead(&self) -> bool {
        self.window.is_none() && self.job.attachments.is_none() && !self.system().processing.dry_run
    }

    /// Waits until a batch is ready behind the one that is written; possibly for ever.
    pub(super) async fn more_is_there(&mut self) {
        if self.plan.has_ready() {
            return;
        }
        let reading = self.reading.as_mut().filter(|_| !self.was_source_away);
        let is_there = match reading {
            Some(reading) => reading.may_be_admitted().await,
            None => false,
        };
        if !is_there {
            std::future::pending().await
        }
    }

    /// Makes the first part of the rest of the batch, or of the next batch. Stops when the job stops or `is_in_vain` is
    /// notified.
    pub(super) async fn make_ahead(
        &mut self,
        left: VecDeque<PlannedChange<ChargedChange>>,
        batch_max: usize,
        is_in_vain: &Notify,
    ) -> NextChanges {
        let mut rest = left;
        if rest.is_empty() {
            self.admit_ahead().await;
            rest = self.take_batch(batch_max).unwrap_or_default();
        }
        let mut part = Part { charge: self.memory.try_products(2 * PART_BYTES), ..Part::default() };
        if part.charge.is_none() {
            return NextChanges::unmade(rest);
        }
        let mut stop = self.stop.clone();
        let mut ends = pin!(async {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => {}
                () = is_in_vain.notified() => {}
            }
        });
        let (mut bytes, mut rows) = (0, 0_usize);
        while part.ready.len() < self.together && bytes < PART_BYTES && rows < PART_ROWS {
            let Some(taken) = rest.pop_front() else { break };
            let made = match taken.change.change.what {
                ChangeContent::ToBeRead => None,
                ChangeContent::Changed(_) | ChangeContent::Deleted | ChangeContent::Removed => tokio::select! {
                    biased;
                    () = &mut ends => None,
                    made = self.make(&taken.change.change, PART_BYTES - bytes) => made.ok(),
                },
            };
            // The delivery at its turn finds the cause again.
            let Some(delivery) = made else {
                rest.push_front(taken);
                break;
            };
            bytes += delivery.bytes();
            rows = rows.saturating_add(delivery.rows());
            part.deliveries.push(delivery);
            part.ready.push(taken);
            if part.ready.len().is_multiple_of(MADE_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
        NextChanges { part: (!part.ready.is_empty()).then_some(part), rest }
    }

    /// Returns the changes that were made ahead to the plan.
    pub(super) fn unmake_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.give_back(ahead.changes());
        }
    }

    pub(super) fn give_back(&mut self, changes: impl IntoIterator<Item = PlannedChange<ChargedChange>>) {
        for taken in changes {
            self.plan.give_back(taken);
        }
    }

    /// Rewinds to the written checkpoint, because everything delivered since may be lost.
    pub(super) fn go_back(&mut self) {
        self.forget_read();
        // Also if the changes read again are released before any is delivered.
        self.reached = Some(self.written.clone());
        self.read_to = self.written.clone();
    }

    /// Returns [`RunEnd::Superseded`] once another process may run the job.
    pub(super) fn check_held(&self) -> Result<(), RunEnd> {
        if self.held.as_ref().is_none_or(super::OwnershipCheck::is_held) { Ok(()) } else { Err(RunEnd::Superseded) }
    }
}
