//! Transactions of the layer: the kit's, with the layer's errors and counters.

use std::sync::Arc;

use flatbed_kit::RetryPolicy;
use foundationdb::Database;

use crate::error::Result;
use crate::store::instruments::Instruments;

pub use flatbed_kit::TRACE_TARGET;
pub(crate) use flatbed_kit::{
    Attempt, BoxedPageRead, NOT_COMMITTED, Page, PageRead, Quiet, conflict_with, note, of_nested,
};

/// A transaction of FoundationDB's whose reads and writes are counted.
pub(crate) type Transaction = flatbed_kit::Transaction<Instruments>;

/// Something done in one transaction. It may be attempted many times: all that must stay the same (ids, tokens) is made
/// before, and what an attempt leaves in `self` must not count twice.
pub(crate) trait Operation: Send {
    type Output: Send;

    fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// An operation as the kit runs it.
struct OfLayer<'o, O>(&'o mut O);

impl<O: Operation> flatbed_kit::Operation<Instruments> for OfLayer<'_, O> {
    type Output = O::Output;

    fn attempt(&mut self, trx: &Arc<Transaction>, attempt: Attempt) -> impl Future<Output = Result<O::Output>> + Send {
        self.0.attempt(trx, attempt)
    }
}

/// Runs an operation that writes: attempt, commit, and again on a retryable error.
pub(crate) async fn write<O: Operation>(
    db: &Database,
    metrics: &Arc<Instruments>,
    operation: &mut O,
) -> Result<O::Output> {
    flatbed_kit::write(db, metrics, &mut OfLayer(operation)).await
}

/// Runs an operation that only reads: nothing is committed.
pub(crate) async fn read<O: Operation>(
    db: &Database,
    metrics: &Arc<Instruments>,
    operation: &mut O,
) -> Result<O::Output> {
    flatbed_kit::read(db, metrics, &mut OfLayer(operation)).await
}

/// Returns the future's result, or FoundationDB's timeout error after [`RetryPolicy::ATTEMPT_MAX`].
pub(crate) async fn bounded<T>(attempt: impl Future<Output = Result<T>> + Send) -> Result<T> {
    RetryPolicy::default().bounded(attempt).await
}
