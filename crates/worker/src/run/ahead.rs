//! What is delivered next, made while the last batch is written.
//!
//! One part is made ahead, of changes whose turn it is, and only where there is room for it at once: nothing is waited for while
//! something is held. It is delivered only behind what was written meanwhile, and given back to the plan unless that was taken. What
//! takes more than making (a document that is to be read, an entry to be written) waits for its turn.

use std::collections::VecDeque;
use std::pin::pin;

use tokio::sync::Notify;

use super::delivering::{PART_BYTES, PART_ROWS, Part};
use super::{End, Queue, Runner, Waiting};
use crate::change::What;
use crate::output::Target;
use crate::plan::Taken;
use crate::source::Source;

/// Documents that are made before what is written is looked after again.
const MADE_AT_ONCE: usize = 64;

/// Changes that are delivered next, in their order.
#[derive(Default)]
pub(super) struct Ahead {
    /// The first of them, as far as they are made.
    pub(super) part: Option<Part>,
    pub(super) rest: VecDeque<Taken<Waiting>>,
}

impl Ahead {
    /// Nothing is made of them yet.
    pub(super) fn unmade(rest: VecDeque<Taken<Waiting>>) -> Ahead {
        Ahead { part: None, rest }
    }

    /// All of them, and what was made is no more.
    pub(super) fn changes(self) -> VecDeque<Taken<Waiting>> {
        let mut rest = self.rest;
        for taken in self.part.into_iter().flat_map(|part| part.ready).rev() {
            rest.push_front(taken);
        }
        rest
    }
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// The changes whose turn it is. `None`: there are none.
    pub(super) fn take_batch(&mut self, batch_max: usize) -> Option<VecDeque<Taken<Waiting>>> {
        let mut batch = VecDeque::new();
        // Those of the batch before may be under way.
        let at_once = self.plan.under_way().saturating_add(batch_max);
        while let Some(taken) = self.plan.take(at_once) {
            batch.push_back(taken);
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Whether the next batch may be made while one is written: attachments are asked of the target, and a window is gathered.
    pub(super) fn may_make_ahead(&self) -> bool {
        self.window.is_none() && self.job.attachments.is_none() && !self.system().processing.dry_run
    }

    /// Waits until there is a batch behind the one that is written; for ever where there is none to be had.
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

    /// Makes the first part of what is next: of what is left of the batch, else of the next one. Nothing more once the job is to end, or
    /// `is_in_vain`.
    pub(super) async fn make_ahead(
        &mut self,
        left: VecDeque<Taken<Waiting>>,
        batch_max: usize,
        is_in_vain: &Notify,
    ) -> Ahead {
        let mut rest = left;
        if rest.is_empty() {
            self.admit_ahead().await;
            rest = self.take_batch(batch_max).unwrap_or_default();
        }
        let mut part = Part { charge: self.memory.try_products(2 * PART_BYTES), ..Part::default() };
        if part.charge.is_none() {
            return Ahead::unmade(rest);
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
                What::ToBeRead => None,
                What::Changed(_) | What::Deleted | What::Removed => tokio::select! {
                    biased;
                    () = &mut ends => None,
                    made = self.make(&taken.change.change, PART_BYTES - bytes) => made.ok(),
                },
            };
            // Why nothing came of it, whoever delivers it says.
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
        Ahead { part: (!part.ready.is_empty()).then_some(part), rest }
    }

    /// What was made ahead is not delivered now: its changes wait again.
    pub(super) fn unmake_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.give_back(ahead.changes());
        }
    }

    pub(super) fn give_back(&mut self, changes: impl IntoIterator<Item = Taken<Waiting>>) {
        for taken in changes {
            self.plan.give_back(taken);
        }
    }

    /// Of what was delivered since the last checkpoint any part may be lost: all of it is read again.
    pub(super) fn go_back(&mut self) {
        self.forget_read();
        // Also where what is read again is given back before any of it is delivered.
        self.reached = Some(self.written.clone());
        self.read_to = self.written.clone();
    }

    /// Writes nothing, as [`End::Superseded`] says, once the job may be another process's.
    pub(super) fn check_held(&self) -> Result<(), End> {
        if self.held.as_ref().is_none_or(super::Held::is_held) { Ok(()) } else { Err(End::Superseded) }
    }
}
