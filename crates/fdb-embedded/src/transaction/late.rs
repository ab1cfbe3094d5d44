//! Answers that are delivered later than they are made, and from another thread, as a network delivers all.
//!
//! A read is made when it is called, so it sees and conflicts with what it would anyway. Only its answer waits, and what
//! ends the transaction meanwhile ends it too: 1025 after a cancel, a reset or the end of the transaction, 1031 after
//! its timeout. A commit is answered after the reads that were called before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::base::error::{Error, Result};
use crate::commit::committer::{Committed, Complete, Failure};
use crate::engine::Core;
use crate::read::snapshot::lock;
use crate::shared::simulation::{Moment, Question};
use crate::transaction::calls::{Done, Transaction};
use crate::transaction::commit::time_out;
use crate::transaction::state::{Call, State, shielded};

/// Not a power of two, so that a program whose reads repeat in a round number meets it at each of them in turn.
const PENDING_READ_EVERY_DEFAULT: u32 = 257;

/// Which reads are answered from another thread although no fault delays them.
pub(crate) struct PendingReads {
    /// 0: none.
    every: u64,
    count: AtomicU64,
}

impl PendingReads {
    pub(crate) fn new(every: Option<u32>) -> PendingReads {
        let every = every.unwrap_or(PENDING_READ_EVERY_DEFAULT).into();
        PendingReads { every, count: AtomicU64::new(0) }
    }

    #[inline]
    fn is_next(&self) -> bool {
        self.every > 0 && (self.count.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every)
    }

    pub(crate) fn chosen(&self) -> u64 {
        self.count.load(Ordering::Relaxed).checked_div(self.every).unwrap_or(0)
    }
}

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

/// An answer that was made and not delivered, as the transaction keeps it.
pub(crate) struct LateAnswer {
    id: u64,
    due: Option<Instant>,
    deliver: Done<()>,
}

impl LateAnswer {
    /// A call that delivers an error instead.
    pub(crate) fn failing(self, error: Error) -> Call {
        Box::new(move || (self.deliver)(Err(error)))
    }
}

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
        if core.simulation.is_some()
            && let Some(due) = self.with(|state, core| core.answer_due(state, question, bytes()))
        {
            let fault = core.faults.on_read_answer().unwrap_or_default();
            return Delivery::Simulated(Due(due + fault));
        }
        match core.faults.on_read_answer() {
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

impl Core {
    /// Gives a commit its answer, which faults may delay; by now others see what it wrote.
    pub(crate) fn complete(&self, complete: Complete, answer: std::result::Result<Committed, Failure>) {
        match self.faults.on_commit_answer() {
            Some(delay) => {
                self.timer.schedule(Instant::now() + delay, move || complete(answer));
            }
            None => shielded(|| complete(answer)),
        }
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

/// Sees to it that the transaction's timeout ends the answers that are due after it.
pub(crate) fn arm_timeout(shared: &Arc<Mutex<State>>, state: &State, core: &Core) {
    if let Some(deadline) = state.deadline()
        && state.late.iter().any(|late| late.due.is_some_and(|due| due > deadline))
    {
        time_out(shared, state.generation, core, deadline);
    }
}

/// The callback of a commit, made to wait until the reads that were called before it are answered.
pub(crate) fn after_reads(shared: &Arc<Mutex<State>>, state: &State, done: Done<()>) -> Done<()> {
    if state.late.is_empty() {
        return done;
    }
    let shared = Arc::clone(shared);
    Box::new(move |result: Result<()>| {
        let late = std::mem::take(&mut lock(&shared).late);
        late.into_iter().for_each(|late| (late.deliver)(Ok(())));
        done(result);
    })
}
