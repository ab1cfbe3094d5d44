//! The timeout of a transaction.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::base::error::Error;
use crate::base::lock::lock;
use crate::shared::core::Core;
use crate::shared::timer::TimerId;
use crate::transaction::state::TransactionState;

/// Ends the transaction at its deadline, unless it was reset since.
pub(crate) fn time_out(
    shared: &Arc<Mutex<TransactionState>>,
    generation: u64,
    core: &Core,
    deadline: Instant,
) -> TimerId {
    let shared = Arc::clone(shared);
    core.timer.schedule(deadline, move || {
        let mut state = lock(&shared);
        if state.generation == generation {
            state.end(Error::TRANSACTION_TIMED_OUT);
        }
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        calls.into_iter().for_each(|call| call());
    })
}

/// Schedules the timeout, so that it ends answers that are due after it.
pub(crate) fn arm_timeout(shared: &Arc<Mutex<TransactionState>>, state: &TransactionState, core: &Core) {
    if let Some(deadline) = state.deadline()
        && state.late.iter().any(|late| late.due.is_some_and(|due| due > deadline))
    {
        time_out(shared, state.generation, core, deadline);
    }
}
