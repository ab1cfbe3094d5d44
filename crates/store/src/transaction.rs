//! Transactions of the layer: the kit's, with the layer's errors and counters.

use std::sync::Arc;

use flatbed_kit::RetryPolicy;
use foundationdb::Database;

use crate::error::Result;
use crate::instruments::Instruments;

pub use flatbed_kit::TRACE_TARGET;
pub use flatbed_kit::{
    Attempt, BoxedPageRead, NOT_COMMITTED, PageRead, Quiet, RangePage, Rows, conflict_with, note, of_nested,
};

pub type Transaction = flatbed_kit::Transaction<Instruments>;

/// An operation of one transaction. It may be attempted many times: values that must stay the same (ids, tokens) are
/// made before the first attempt, and an attempt must not count twice in `self`.
pub trait Operation: Send {
    type Output: Send;

    fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// The adapter of an operation to the kit's trait.
struct OperationAdapter<'o, O>(&'o mut O);

impl<O: Operation> flatbed_kit::Operation<Instruments> for OperationAdapter<'_, O> {
    type Output = O::Output;

    fn attempt(&mut self, trx: &Arc<Transaction>, attempt: Attempt) -> impl Future<Output = Result<O::Output>> + Send {
        self.0.attempt(trx, attempt)
    }
}

/// Runs an operation that writes: attempts it, commits, and retries on a retryable error.
pub async fn write<O: Operation>(db: &Database, metrics: &Arc<Instruments>, operation: &mut O) -> Result<O::Output> {
    flatbed_kit::write(db, metrics, &mut OperationAdapter(operation)).await
}

/// Runs an operation that only reads. It commits nothing.
pub async fn read<O: Operation>(db: &Database, metrics: &Arc<Instruments>, operation: &mut O) -> Result<O::Output> {
    flatbed_kit::read(db, metrics, &mut OperationAdapter(operation)).await
}

/// Returns the future's result, or FoundationDB's timeout error after [`RetryPolicy::ATTEMPT_MAX`].
pub async fn bounded<T>(attempt: impl Future<Output = Result<T>> + Send) -> Result<T> {
    RetryPolicy::default().bounded(attempt).await
}
