//! Memory for answers: a client's share of it, and the wait after which slow clients are cut.

use std::sync::Arc;
use std::time::Duration;

use flatbed_admission::{Budget, Grant};

use crate::metrics::Usage;
use crate::turns::{ClientNetwork, PageKey, PageTurns};

/// The wait after which slow clients are cut to make room.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Takes bytes, at most all of the budget, if they are free.
pub(crate) fn try_take(budget: &Arc<Budget>, bytes: usize) -> Option<Grant> {
    budget.try_take(bytes.min(budget.limit()))
}

/// Waits for bytes, at most all of the budget. After [`PATIENCE`] the task counts as a waiter.
pub(crate) async fn take(budget: &Arc<Budget>, bytes: usize) -> Option<Grant> {
    match try_take(budget, bytes) {
        Some(taken) => Some(taken),
        // Boxed: it is rare, and its state would be part of every feed's.
        None => Box::pin(wait(budget, bytes.min(budget.limit()))).await,
    }
}

async fn wait(budget: &Arc<Budget>, bytes: usize) -> Option<Grant> {
    patiently(budget, budget.take(bytes)).await
}

/// Waits for bytes as [`take`] does, but in turns. The task counts as a waiter also while it waits for its turn:
/// otherwise quick turns would hide that the last of a long queue waits.
pub(crate) async fn take_in_turn(
    turns: Arc<PageTurns>,
    keys: [PageKey; 2],
    budget: Arc<Budget>,
    bytes: usize,
) -> Option<Grant> {
    let taken = async {
        let _turn = turns.wait(keys).await;
        budget.take(bytes.min(budget.limit())).await
    };
    patiently(&budget, taken).await
}

/// Awaits bytes of a budget. After [`PATIENCE`] the task counts as a waiter.
async fn patiently(budget: &Budget, taken: impl Future<Output = Option<Grant>>) -> Option<Grant> {
    let mut taken = std::pin::pin!(taken);
    tokio::select! {
        biased;
        taken = &mut taken => return taken,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    let _waiter = budget.waiter();
    taken.await
}

impl Usage {
    pub(crate) fn of(budgets: &[&Budget]) -> Usage {
        Usage {
            used: budgets.iter().map(|budget| budget.used()).sum(),
            limit: budgets.iter().map(|budget| budget.limit()).sum(),
        }
    }
}

/// The share of an address.
#[derive(Debug)]
pub(crate) struct Share {
    pub who: ClientNetwork,
    pub pieces: Arc<Budget>,
    pub documents: Arc<Budget>,
    pub rows: Arc<Budget>,
}

impl Share {
    pub(crate) fn is_waited_for(&self) -> bool {
        [&self.pieces, &self.documents, &self.rows].iter().any(|budget| budget.is_waited_for())
    }
}
