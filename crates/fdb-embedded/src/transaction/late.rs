//! Answers that are delivered later than they are made, and from another thread, as a network delivers all.
//!
//! A read is made when it is called, so it sees and conflicts with what it would anyway. Only its answer waits, and what
//! ends the transaction meanwhile ends it too: 1025 after a cancel, a reset or the end of the transaction, 1031 after
//! its timeout. A commit is answered after the reads that were called before it.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::base::call::Done;
use crate::base::lock::lock;
use crate::shared::core::Core;
use crate::shared::simulation::{Moment, Question};
use crate::transaction::calls::Transaction;
use crate::transaction::late_answer::LateAnswer;
use crate::transaction::state::State;
use crate::transaction::timeout::arm_timeout;

/// When the answer of a read is to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Before the call returns.
    AtOnce,
    /// From another thread, once the program looks for it: its first look finds it pending.
    WhenAskedFor,
    /// From another thread, so much later.
    After(Duration),
    /// When a simulated cluster answers.
    Simulated(Due),
}

/// When an answer of a simulated cluster comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due(Moment);

/// An answer that was made and not delivered, as who is to receive it keeps it. Dropped, it is never delivered.
pub struct Withheld {
    /// `None` once its delivery has begun.
    shared: Option<Arc<Mutex<State>>>,
    core: Weak<Core>,
    id: u64,
}

impl std::fmt::Debug for Withheld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Withheld").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            // Unlocked before it is dropped: its callback may hold anything.
            let late = take(&mut lock(shared), self.id);
            drop(late);
        }
    }
}

impl Withheld {
    /// Delivers the answer from this call, if the transaction did not end before.
    pub fn deliver(mut self) {
        let Some(shared) = self.shared.take() else { return };
        deliver(&shared, self.id);
    }

    /// Has the answer delivered from the engine's thread after `delay`, with an error where the transaction ends before.
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

    /// When the answer of a simulated cluster is to be delivered ([`Withheld::deliver`]) by whoever asks this; with an
    /// error where the transaction ends before. `None`: by the engine ([`Withheld::deliver_at`]), as its clock is virtual.
    pub fn instant(&self, due: Due) -> Option<Instant> {
        let (Some(shared), Some(core)) = (&self.shared, self.core.upgrade()) else { return None };
        let instant = core.instant(due.0)?;
        let mut state = lock(shared);
        if let Some(late) = state.late.iter_mut().find(|late| late.id == self.id) {
            late.due = Some(instant);
            arm_timeout(shared, &state, &core);
        }
        Some(instant)
    }

    /// Has the answer delivered when the simulated cluster answers, from the engine's thread or from who moves its clock.
    pub fn deliver_at(mut self, due: Due) {
        let (Some(shared), Some(core)) = (self.shared.take(), self.core.upgrade()) else { return };
        let id = self.id;
        core.at(due.0, move || deliver(&shared, id));
    }
}

impl Transaction {
    /// How the answer of the next read is to be delivered by the API above the engine, whose own calls answer at once:
    /// late where faults or a [`SimulatedCluster`](crate::SimulatedCluster) say so, when asked for where it is one of
    /// every [`pending_read_every`](crate::OpenOptions::pending_read_every). `bytes` were read.
    #[inline]
    pub fn next_delivery(&self, question: Question, bytes: impl FnOnce() -> usize) -> Delivery {
        let core = self.core();
        let fault = core.faults.on_read_answer();
        if let Some(simulation) = &core.simulation {
            let due = self.with(|state, _| simulation.answer_due(state.asker(), question, bytes()));
            // A fault delays also what no server was asked for, such as a read that was refused.
            if let Some(due) = due.or_else(|| fault.map(|_| simulation.now())) {
                return Delivery::Simulated(Due(due + fault.unwrap_or_default()));
            }
        }
        match fault {
            Some(delay) => Delivery::After(delay),
            None if core.pending_reads.is_next() => Delivery::WhenAskedFor,
            None => Delivery::AtOnce,
        }
    }

    /// Keeps an answer back. `deliver` is called once: with `Ok` when it is delivered or the transaction's commit is
    /// answered, with an error when the transaction ends before. It may be called from any thread.
    pub fn withhold(&self, deliver: Done<()>) -> Withheld {
        self.with(|state, core| {
            let id = state.late_ids;
            state.late_ids += 1;
            state.late.push(LateAnswer { id, due: None, deliver });
            Withheld { shared: Some(Arc::clone(self.shared())), core: Arc::downgrade(core), id }
        })
    }
}

fn deliver(shared: &Mutex<State>, id: u64) {
    let late = take(&mut lock(shared), id);
    if let Some(late) = late {
        (late.deliver)(Ok(()));
    }
}

fn take(state: &mut State, id: u64) -> Option<LateAnswer> {
    let at = state.late.iter().position(|late| late.id == id)?;
    Some(state.late.swap_remove(at))
}
