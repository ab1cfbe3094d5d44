//! Running an operation in a FoundationDB transaction, again where FoundationDB says so.
//!
//! How long the storage may take for an answer is measured by the runtime's time and not by the layer's clock: a test that moves
//! the clock must not end attempts that are under way at that moment.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use foundationdb::options::{ConflictRangeType, MutationType, TransactionOption};
use foundationdb::{Database, FdbError};
use tokio::time::Instant;
use tracing::Instrument;

use crate::error::{Error, Result};
use crate::metrics::Metrics;
pub(crate) use crate::store::counted::{BoxedPageRead, Page, PageRead, Transaction};
use crate::store::instruments::Instruments;

/// The default time for which a failing operation is retried before the client gets its last error. If a commit may have succeeded, the
/// error says so.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(30);

/// An attempt's reads take no longer than this: FoundationDB's client waits for ever for a cluster that does not answer.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// A commit is waited for no longer than this. It may still land afterwards, so it counts as one whose result is unknown,
/// and it is not tried again: what it does would take place twice.
const COMMIT_MAX: Duration = Duration::from_secs(30);

/// What a transaction that took too long gets (`transaction_timed_out`).
const TIMED_OUT: i32 = 1031;

/// Commit may have happened (`commit_unknown_result`): see FoundationDB's error codes.
pub(crate) const COMMIT_UNKNOWN_RESULT: i32 = 1021;
pub(crate) const NOT_COMMITTED: i32 = 1020;
const CLUSTER_VERSION_CHANGED: i32 = 1039;

/// What an operation knows of its earlier attempts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attempt {
    /// An earlier attempt's commit may have happened.
    pub maybe_committed: bool,
    /// The commit of the attempt just before this one may have happened.
    pub after_unknown: bool,
}

/// Something done in one transaction. It may be attempted many times: all that must stay the same (ids, tokens) is made
/// before, and what an attempt leaves in `self` must not count twice.
pub(crate) trait Operation: Send {
    type Output: Send;

    fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// The target of spans that are for traces and not for the log. Nobody need take them: they cost nothing then.
pub const TRACE_TARGET: &str = "flatbed::trace";

/// Runs an operation that writes: attempt, commit, and again on a retryable error.
pub(crate) async fn write<O: Operation>(
    db: &Database,
    metrics: &Arc<Instruments>,
    operation: &mut O,
) -> Result<O::Output> {
    // Boxed, as is a read: it is large, and each future around it would have room for it once or twice.
    Box::pin(write_untraced(db, metrics, operation)).instrument(span("write")).await
}

/// A transaction's span, from its first attempt to its end.
fn span(kind: &'static str) -> tracing::Span {
    tracing::info_span!(
        target: TRACE_TARGET,
        "transaction",
        otel.kind = "client",
        db.system.name = "foundationdb",
        db.operation.name = kind,
        error_code = tracing::field::Empty,
    )
}

async fn write_untraced<O: Operation>(
    db: &Database,
    metrics: &Arc<Instruments>,
    operation: &mut O,
) -> Result<O::Output> {
    let mut started = Instant::now();
    let mut state = Attempt::default();
    let mut trx = Transaction::begin(db, metrics)?;
    metrics.transactions.add(1);
    loop {
        let attempt = state;
        state.after_unknown = false;
        let done = bounded(pin!(operation.attempt(&trx, attempt))).await;
        let (error, next) = match done {
            Ok(output) => {
                let commit_started = Instant::now();
                let committed = bounded_commit(pin!(trx.commit())).await.inspect_err(|_| {
                    note(metrics, FdbError::from_code(COMMIT_UNKNOWN_RESULT));
                })?;
                match committed {
                    Ok(_) => {
                        metrics.commits.add(1);
                        metrics.commit_duration_seconds.observe(commit_started.elapsed());
                        return Ok(output);
                    }
                    Err(failed) => {
                        let error = FdbError::from_code(failed.code());
                        state.after_unknown = error.is_maybe_committed();
                        state.maybe_committed |= state.after_unknown;
                        note(metrics, error);
                        (error, failed.on_error().await)
                    }
                }
            }
            // The operation cannot tell whether an earlier attempt committed; neither could a retry.
            Err(Error::Storage(error)) if error.code() == COMMIT_UNKNOWN_RESULT => return Err(Error::Storage(error)),
            Err(Error::Storage(error)) => {
                note(metrics, error);
                (error, trx.on_error(error).await)
            }
            Err(other) => return Err(other),
        };
        trx = match next {
            Ok(trx) => trx,
            // Whatever this attempt said, an earlier one may have been committed.
            Err(_) if state.maybe_committed => return Err(Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT))),
            Err(error) => return Err(Error::Storage(error)),
        };
        match make_lacking(&trx).await {
            Ok(waited) => started += waited,
            Err(_) if state.maybe_committed => return Err(Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT))),
            Err(error) => return Err(error),
        }
        if started.elapsed() > metrics.retry_max() {
            let error = if state.maybe_committed { FdbError::from_code(COMMIT_UNKNOWN_RESULT) } else { error };
            return Err(Error::Storage(error));
        }
    }
}

/// Makes what the last attempt ended for, before the next one reads anything. Returns how long that took: it waits for others, and each
/// brings the operation on, so it is no part of the time in which that is tried again.
async fn make_lacking(trx: &Transaction) -> Result<Duration> {
    let Some(lacking) = trx.apart().take_lacking() else { return Ok(Duration::ZERO) };
    let began = Instant::now();
    lacking.await?;
    Ok(began.elapsed())
}

/// Maps the error of a nested transaction to the error of the attempt that ran it. An unknown result of the nested transaction is not
/// the attempt's own: the attempt committed nothing, so it is retried.
pub(crate) fn of_nested(error: Error) -> Error {
    match error {
        Error::Storage(code) if code.is_maybe_committed() => Error::Storage(FdbError::from_code(NOT_COMMITTED)),
        other => other,
    }
}

/// The future's result, or after [`ATTEMPT_MAX`] FoundationDB's error for that.
pub(crate) async fn bounded<T>(attempt: impl Future<Output = Result<T>> + Send) -> Result<T> {
    match tokio::time::timeout(ATTEMPT_MAX, attempt).await {
        Ok(done) => done,
        Err(_) => Err(Error::Storage(FdbError::from_code(TIMED_OUT))),
    }
}

/// A commit's answer; after [`COMMIT_MAX`] the error that says that its result is unknown.
async fn bounded_commit<T>(commit: impl Future<Output = T> + Send) -> Result<T> {
    let unknown = |_| Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT));
    tokio::time::timeout(COMMIT_MAX, commit).await.map_err(unknown)
}

/// Runs an operation that only reads: nothing is committed.
pub(crate) async fn read<O: Operation>(
    db: &Database,
    metrics: &Arc<Instruments>,
    operation: &mut O,
) -> Result<O::Output> {
    Box::pin(read_untraced(db, metrics, operation)).instrument(span("read")).await
}

async fn read_untraced<O: Operation>(
    db: &Database,
    metrics: &Arc<Instruments>,
    operation: &mut O,
) -> Result<O::Output> {
    let mut started = Instant::now();
    let mut trx = Transaction::begin(db, metrics)?;
    metrics.transactions.add(1);
    loop {
        let done = bounded(pin!(operation.attempt(&trx, Attempt::default()))).await;
        match done {
            Err(Error::Storage(error)) => {
                note(metrics, error);
                trx = trx.on_error(error).await.map_err(Error::Storage)?;
                started += make_lacking(&trx).await?;
                if started.elapsed() > metrics.retry_max() {
                    return Err(Error::Storage(error));
                }
            }
            done => return done,
        }
    }
}

/// A write that makes no write conflict range: the conflict of a document's edit is on its info key alone.
pub(crate) struct Quiet<'t>(pub &'t Transaction);

impl Quiet<'_> {
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.next()?;
        self.0.set(key, value);
        Ok(())
    }

    pub(crate) fn clear(&self, key: &[u8]) -> Result<()> {
        self.next()?;
        self.0.clear(key);
        Ok(())
    }

    pub(crate) fn clear_range(&self, range: &crate::store::keys::KeyRange) -> Result<()> {
        self.next()?;
        self.0.clear_range(&range.begin, &range.end);
        Ok(())
    }

    pub(crate) fn atomic(&self, key: &[u8], operand: &[u8], kind: MutationType) -> Result<()> {
        self.next()?;
        self.0.atomic_op(key, operand, kind);
        Ok(())
    }

    fn next(&self) -> Result<()> {
        Ok(self.0.set_option(TransactionOption::NextWriteNoWriteConflictRange)?)
    }
}

/// Makes the transaction fail if `key` is written by another one that commits first, without reading it.
pub(crate) fn conflict_with(trx: &Transaction, key: &[u8]) -> Result<()> {
    let mut end = key.to_vec();
    end.push(0);
    Ok(trx.add_conflict_range(key, &end, ConflictRangeType::Read)?)
}

/// Counts an error that ends an attempt.
pub(crate) fn note(metrics: &Metrics, error: FdbError) {
    metrics.retries.count(error.code());
    match error.code() {
        NOT_COMMITTED => metrics.conflicts.add(1),
        COMMIT_UNKNOWN_RESULT | CLUSTER_VERSION_CHANGED => metrics.unknown_results.add(1),
        _ => {}
    }
    // The last one's stays.
    tracing::Span::current().record("error_code", error.code());
    tracing::debug!(code = error.code(), "transaction is tried again");
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE_LOCKED: i32 = 1038;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_answer_is_given_up() {
        let never = bounded(std::future::pending::<Result<()>>()).await;
        assert!(matches!(never, Err(Error::Storage(error)) if error.code() == TIMED_OUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_that_is_not_answered_has_an_unknown_result() {
        let never = bounded_commit(std::future::pending::<()>()).await;
        assert!(matches!(never, Err(Error::Storage(error)) if error.is_maybe_committed()));
        assert!(bounded_commit(std::future::ready(7)).await.is_ok_and(|answer| answer == 7));
    }

    /// An operation that cannot tell the result of an earlier attempt.
    struct Unknown(u32);

    impl Operation for Unknown {
        type Output = ();

        async fn attempt(&mut self, _: &Transaction, _: Attempt) -> Result<()> {
            self.0 += 1;
            Err(Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT)))
        }
    }

    #[tokio::test]
    async fn an_operation_that_cannot_tell_is_not_tried_again() {
        let (database, _storage) = crate::fenced::database().await;
        let (inner, mut unknown) = (&database.inner, Unknown(0));
        let failed = write(&inner.db, &inner.metrics, &mut unknown).await;
        assert!(matches!(failed, Err(Error::Storage(error)) if error.is_maybe_committed()));
        assert_eq!(unknown.0, 1);
    }

    /// An operation whose first attempt runs another transaction, with an unknown result.
    struct Nesting(u32);

    impl Operation for Nesting {
        type Output = u32;

        async fn attempt(&mut self, _: &Transaction, _: Attempt) -> Result<u32> {
            self.0 += 1;
            match self.0 {
                1 => Err(of_nested(Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT)))),
                attempts => Ok(attempts),
            }
        }
    }

    #[tokio::test]
    async fn an_unknown_result_of_another_transaction_is_not_the_operation_s() {
        let (database, _storage) = crate::fenced::database().await;
        let inner = &database.inner;
        assert_eq!(write(&inner.db, &inner.metrics, &mut Nesting(0)).await.unwrap(), 2);
        let locked = of_nested(Error::Storage(FdbError::from_code(DATABASE_LOCKED)));
        assert!(matches!(locked, Error::Storage(error) if error.code() == DATABASE_LOCKED));
        assert!(matches!(of_nested(Error::Renewing), Error::Renewing));
    }

    /// Finds a locked database, 8 s later each time.
    struct Locked(u32);

    impl Operation for Locked {
        type Output = ();

        async fn attempt(&mut self, _: &Transaction, _: Attempt) -> Result<()> {
            self.0 += 1;
            tokio::time::advance(Duration::from_secs(8)).await;
            Err(Error::Storage(FdbError::from_code(DATABASE_LOCKED)))
        }
    }

    #[tokio::test]
    async fn an_operation_is_retried_for_half_a_minute() {
        let (database, _storage) = crate::fenced::database().await;
        let inner = &database.inner;
        tokio::time::pause();
        let is_locked =
            |failed: Result<()>| matches!(failed, Err(Error::Storage(error)) if error.code() == DATABASE_LOCKED);
        let (mut writes, mut reads) = (Locked(0), Locked(0));
        assert!(is_locked(write(&inner.db, &inner.metrics, &mut writes).await));
        assert!(is_locked(read(&inner.db, &inner.metrics, &mut reads).await));
        assert_eq!((writes.0, reads.0), (4, 4));
    }
}
