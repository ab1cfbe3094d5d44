//! Read answers delivered later and from another thread, as a network delivers all answers.
//!
//! A read runs when it is called, with its usual result and conflicts. Only its answer waits. An event that ends the
//! transaction meanwhile fails the answer: 1025 after a cancel, a reset or the end of the transaction, 1031 after its
//! timeout. A commit is answered after the reads that were called before it.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::base::call::Completion;
use crate::base::lock::lock;
use crate::shared::core::Core;
use crate::shared::simulation::{CallKind, Moment};
use crate::transaction::calls::Transaction;
use crate::transaction::late_answer::LateAnswer;
use crate::transaction::state::TransactionState;
use crate::transaction::timeout::arm_timeout;

/// The delivery time of a read's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Before the call returns.
    AtOnce,
    /// From another thread, after the program polls for it: its first poll finds it pending.
    WhenPolled,
    /// From another thread, after this delay.
    After(Duration),
    /// When a simulated cluster answers.
    Simulated(AnswerTime),
}

/// The time at which a simulated cluster answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTime(Moment);

/// A computed answer that is not delivered yet, owned by its receiver. Dropping it discards the answer.
pub struct WithheldAnswer {
    /// `None` once its delivery has begun.
    shared: Option<Arc<Mutex<TransactionState>>>,
    core: Weak<Core>,
    id: u64,
}

impl std::fmt::Debug for WithheldAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithheldAnswer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for WithheldAnswer {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            // Dropped after unlocking, because its callback may own anything.
            let late = take(&mut lock(shared), self.id);
            drop(late);
        }
    }
}

impl WithheldAnswer {
    /// Delivers the answer on this thread, unless the transaction has ended.
    pub fn deliver(mut self) {
        let Some(shared) = self.shared.take() else { return };
        deliver(&shared, self.id);
    }

    /// Delivers the answer on the engine's thread after `delay`, with an error if the transaction ends before.
    pub fn deliver_after(mut self, delay: Duration) {
        let (Some(shared), Some(core)) = (self.shared.take(), self.core.upgrade()) else { return };
        let (id, due) = (self.id, Instant::now() + delay);
        let mut state = lock(&shared);
        let Some(late) = state.late.iter_mut().find(|late| late.id == id) else { return };
        late.due = Some(due);
        arm_timeout(&shared, &state, &core);
        drop(state);
        core.timer.schedule(due, move || deliver(&shared, id));
    }

    /// Returns when the caller must deliver the answer of a simulated cluster ([`WithheldAnswer::deliver`]); an error
    /// if the transaction ends before. `None`: the engine delivers it ([`WithheldAnswer::deliver_at`]), because its
    /// clock is virtual.
    pub fn instant(&self, due: AnswerTime) -> Option<Instant> {
        let (Some(shared), Some(core)) = (&self.shared, self.core.upgrade()) else { return None };
        let instant = core.instant(due.0)?;
        let mut state = lock(shared);
        if let Some(late) = state.late.iter_mut().find(|late| late.id == self.id) {
            late.due = Some(instant);
            arm_timeout(shared, &state, &core);
        }
        Some(instant)
    }

    /// Delivers the answer when the simulated cluster answers, on the engine's thread or on the thread that moves its
    /// clock.
    pub fn deliver_at(mut self, due: AnswerTime) {
        let (Some(shared), Some(core)) = (self.shared.take(), self.core.upgrade()) else { return };
        let id = self.id;
        core.at(due.0, move || deliver(&shared, id));
    }
}

impl Transaction {
    /// Returns how the API above the engine must deliver the answer of the next read, because the engine's own calls
    /// answer at once: late with faults or a [`SimulatedCluster`](crate::SimulatedCluster), and on polling for one of
    /// every [`pending_read_every`](crate::OpenOptions::pending_read_every) reads. `bytes` were read.
    #[inline]
    pub fn next_delivery(&self, kind: CallKind, bytes: impl FnOnce() -> usize) -> Delivery {
        let core = self.core();
        let fault = core.faults.on_read_answer();
        if let Some(simulation) = &core.simulation {
            let due = self.with(|state, _| simulation.answer_due(state.timing(), kind, bytes()));
            // A fault also delays answers without a server, such as a refused read.
            if let Some(due) = due.or_else(|| fault.map(|_| simulation.now())) {
                return Delivery::Simulated(AnswerTime(due + fault.unwrap_or_default()));
            }
        }
        match fault {
            Some(delay) => Delivery::After(delay),
            None if core.pending_reads.is_next() => Delivery::WhenPolled,
            None => Delivery::AtOnce,
        }
    }

    /// Withholds an answer. `deliver` is called once, on any thread: with `Ok` when the answer is delivered or the
    /// transaction's commit is answered, with an error if the transaction ends before.
    pub fn withhold(&self, deliver: Completion<()>) -> WithheldAnswer {
        self.with(|state, core| {
            let id = state.late_ids;
            state.late_ids += 1;
            state.late.push(LateAnswer { id, due: None, deliver });
            WithheldAnswer { shared: Some(Arc::clone(self.shared())), core: Arc::downgrade(core), id }
        })
    }
}

fn deliver(shared: &Mutex<TransactionState>, id: u64) {
    let late = take(&mut lock(shared), id);
    if let Some(late) = late {
        (late.deliver)(Ok(()));
    }
}

fn take(state: &mut TransactionState, id: u64) -> Option<LateAnswer> {
    let at = state.late.iter().position(|late| late.id == id)?;
    Some(state.late.swap_remove(at))
}
