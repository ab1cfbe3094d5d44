//! Runs an operation in a FoundationDB transaction, and again on a retryable error.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use foundationdb::options::{ConflictRangeType, MutationType, TransactionOption};
use foundationdb::{Database, FdbError, FdbResult};
use tokio::time::Instant;
use tracing::Instrument;

use crate::context::{Corruption, TransactionContext, TransactionCounters, TransactionError};
use crate::keys::KeyRange;
use crate::transaction::Transaction;

/// FoundationDB's error for an unknown commit result (`commit_unknown_result`).
pub const COMMIT_UNKNOWN_RESULT: i32 = 1021;
/// FoundationDB's error for a commit refused because of a conflict (`not_committed`).
pub const NOT_COMMITTED: i32 = 1020;
const CLUSTER_VERSION_CHANGED: i32 = 1039;

/// The known outcome of the earlier attempts of an operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attempt {
    /// True if an earlier attempt may have committed.
    pub maybe_committed: bool,
    /// True if the attempt just before this one may have committed.
    pub after_unknown: bool,
}

/// An operation of one transaction. It may be attempted many times: values that must stay the same (ids, tokens) are
/// made before the first attempt, and an attempt must not count twice in `self`.
pub trait Operation<C: TransactionContext>: Send {
    /// The result of the operation.
    type Output: Send;

    /// Attempts the operation. An attempt may clone the handle of its transaction, and must drop the clones before it ends: the
    /// runner commits the transaction.
    fn attempt(
        &mut self,
        trx: &Arc<Transaction<C>>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, C::Error>> + Send;
}

/// The target of spans for traces. They are not logged, and cost nothing without a subscriber.
pub const TRACE_TARGET: &str = "flatbed::trace";

/// Runs an operation that writes: attempts it, commits, and retries on a retryable error.
///
/// # Errors
/// The operation's; FoundationDB's that is not retryable, or after
/// [`RetryPolicy::retry_max`](crate::RetryPolicy::retry_max); `commit_unknown_result` if an attempt may have committed.
pub fn write<C: TransactionContext, O: Operation<C>>(
    db: &Database,
    context: &Arc<C>,
    operation: &mut O,
) -> impl Future<Output = Result<O::Output, C::Error>> + Send {
    // Boxed, as in `read`: the future is large, and each enclosing future would hold it once or twice.
    Box::pin(write_untraced(db, context, operation)).instrument(span("write"))
}

/// Returns the span of a transaction, from its first attempt to its end.
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

async fn write_untraced<C: TransactionContext, O: Operation<C>>(
    db: &Database,
    context: &Arc<C>,
    operation: &mut O,
) -> Result<O::Output, C::Error> {
    let (counters, policy) = (context.counters(), context.policy());
    let mut started = Instant::now();
    let (mut state, mut conflicts) = (Attempt::default(), 0);
    let mut trx = Arc::new(Transaction::begin(db, context)?);
    counters.transactions.add(1);
    loop {
        let attempt = state;
        state.after_unknown = false;
        let done = policy.bounded(pin!(operation.attempt(&trx, attempt))).await;
        let owned = Arc::into_inner(trx).ok_or(Corruption::TransactionHeld)?;
        let (error, next) = match done {
            Ok(output) => {
                let commit_started = Instant::now();
                let committed = policy.bounded_commit(pin!(owned.commit())).await.inspect_err(|error| {
                    note(counters, *error);
                })?;
                match committed {
                    Ok(_) => {
                        counters.commits.add(1);
                        counters.commit_duration_seconds.observe(commit_started.elapsed());
                        return Ok(output);
                    }
                    Err(failed) => {
                        let error = FdbError::from_code(failed.code());
                        state.after_unknown = error.is_maybe_committed();
                        state.maybe_committed |= state.after_unknown;
                        note(counters, error);
                        let pause = match error.code() {
                            NOT_COMMITTED => {
                                conflicts += 1;
                                policy.conflict_pause(conflicts)
                            }
                            _ => None,
                        };
                        let next = match pause {
                            Some(pause) => {
                                tokio::time::sleep(pause).await;
                                Ok(failed.restart())
                            }
                            None => failed.on_error().await,
                        };
                        (error, next)
                    }
                }
            }
            Err(failed) => {
                let Some(error) = failed.fdb() else { return Err(failed) };
                // The operation cannot tell whether an earlier attempt committed; neither could a retry.
                if error.code() == COMMIT_UNKNOWN_RESULT {
                    return Err(failed);
                }
                note(counters, error);
                (error, owned.on_error(error).await)
            }
        };
        let next = match next {
            Ok(next) => next,
            // Whatever error this attempt returned, an earlier attempt may have committed.
            Err(_) if state.maybe_committed => return Err(FdbError::from_code(COMMIT_UNKNOWN_RESULT).into()),
            Err(error) => return Err(error.into()),
        };
        match make_lacking(&next).await {
            Ok(waited) => started += waited,
            Err(_) if state.maybe_committed => return Err(FdbError::from_code(COMMIT_UNKNOWN_RESULT).into()),
            Err(error) => return Err(error),
        }
        if started.elapsed() > policy.retry_max {
            let error = if state.maybe_committed { FdbError::from_code(COMMIT_UNKNOWN_RESULT) } else { error };
            return Err(error.into());
        }
        trx = Arc::new(next);
    }
}

/// Makes the value that the last attempt lacked, before the next attempt reads. Returns the time that this took. That
/// time does not count as retry time: it is spent waiting for others, and each such value brings the operation forward.
async fn make_lacking<C: TransactionContext>(trx: &Transaction<C>) -> Result<Duration, C::Error> {
    let Some(lacking) = trx.apart().take_lacking() else { return Ok(Duration::ZERO) };
    let began = Instant::now();
    lacking.await?;
    Ok(began.elapsed())
}

/// Maps the error of a nested transaction to the error of the attempt that ran it. An unknown result of the nested transaction is not
/// the attempt's own: the attempt committed nothing, so it is retried.
pub fn of_nested<E: TransactionError>(error: E) -> E {
    match error.fdb() {
        Some(code) if code.is_maybe_committed() => FdbError::from_code(NOT_COMMITTED).into(),
        _ => error,
    }
}

/// Runs an operation that only reads. It commits nothing.
///
/// # Errors
/// The operation's; FoundationDB's that is not retryable, or after
/// [`RetryPolicy::retry_max`](crate::RetryPolicy::retry_max).
pub fn read<C: TransactionContext, O: Operation<C>>(
    db: &Database,
    context: &Arc<C>,
    operation: &mut O,
) -> impl Future<Output = Result<O::Output, C::Error>> + Send {
    Box::pin(read_untraced(db, context, operation)).instrument(span("read"))
}

async fn read_untraced<C: TransactionContext, O: Operation<C>>(
    db: &Database,
    context: &Arc<C>,
    operation: &mut O,
) -> Result<O::Output, C::Error> {
    let (counters, policy) = (context.counters(), context.policy());
    let mut started = Instant::now();
    let mut trx = Arc::new(Transaction::begin(db, context)?);
    counters.transactions.add(1);
    loop {
        let failed = match policy.bounded(pin!(operation.attempt(&trx, Attempt::default()))).await {
            Ok(output) => return Ok(output),
            Err(failed) => failed,
        };
        let Some(error) = failed.fdb() else { return Err(failed) };
        note(counters, error);
        let owned = Arc::into_inner(trx).ok_or(Corruption::TransactionHeld)?;
        let next = owned.on_error(error).await?;
        started += make_lacking(&next).await?;
        if started.elapsed() > policy.retry_max {
            return Err(error.into());
        }
        trx = Arc::new(next);
    }
}

/// Writes without write conflict ranges, for keys whose writers conflict on another key.
pub struct Quiet<'t, C: TransactionContext>(pub &'t Transaction<C>);

impl<C: TransactionContext> Quiet<'_, C> {
    /// Sets a key.
    ///
    /// # Errors
    /// FoundationDB's, of the option.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), C::Error> {
        self.next()?;
        self.0.set(key, value);
        Ok(())
    }

    /// Clears a key.
    ///
    /// # Errors
    /// FoundationDB's, of the option.
    pub fn clear(&self, key: &[u8]) -> Result<(), C::Error> {
        self.next()?;
        self.0.clear(key);
        Ok(())
    }

    /// Clears a range.
    ///
    /// # Errors
    /// FoundationDB's, of the option.
    pub fn clear_range(&self, range: &KeyRange) -> Result<(), C::Error> {
        self.next()?;
        self.0.clear_range(&range.begin, &range.end);
        Ok(())
    }

    /// Changes a key by an atomic operation.
    ///
    /// # Errors
    /// FoundationDB's, of the option.
    pub fn atomic(&self, key: &[u8], operand: &[u8], kind: MutationType) -> Result<(), C::Error> {
        self.next()?;
        self.0.atomic_op(key, operand, kind);
        Ok(())
    }

    fn next(&self) -> FdbResult<()> {
        self.0.set_option(TransactionOption::NextWriteNoWriteConflictRange)
    }
}

/// Adds a read conflict range on `key` without reading it, so that a transaction that writes it first aborts this one.
///
/// # Errors
/// FoundationDB's, of the conflict range.
pub fn conflict_with<C: TransactionContext>(trx: &Transaction<C>, key: &[u8]) -> Result<(), C::Error> {
    let mut end = key.to_vec();
    end.push(0);
    Ok(trx.add_conflict_range(key, &end, ConflictRangeType::Read)?)
}

/// Counts an error that ends an attempt.
pub fn note(counters: &TransactionCounters, error: FdbError) {
    counters.retries.count(error.code());
    match error.code() {
        NOT_COMMITTED => counters.conflicts.add(1),
        COMMIT_UNKNOWN_RESULT | CLUSTER_VERSION_CHANGED => counters.unknown_results.add(1),
        _ => {}
    }
    // The span keeps the last error's code.
    tracing::Span::current().record("error_code", error.code());
    tracing::debug!(code = error.code(), "transaction is retried");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::RetryPolicy;
    use crate::testing::{TestContext, TestError, Transaction, store, store_with};

    const DATABASE_LOCKED: i32 = 1038;

    type Result<T> = std::result::Result<T, TestError>;

    fn storage_error(code: i32) -> TestError {
        TestError::Storage(FdbError::from_code(code))
    }

    /// An operation that cannot detect an earlier attempt's commit.
    struct Unknown(u32);

    impl Operation<TestContext> for Unknown {
        type Output = ();

        async fn attempt(&mut self, _: &Arc<Transaction>, _: Attempt) -> Result<()> {
            self.0 += 1;
            Err(storage_error(COMMIT_UNKNOWN_RESULT))
        }
    }

    #[tokio::test]
    async fn an_operation_that_cannot_tell_is_not_tried_again() {
        let ((storage, context), mut unknown) = (store(), Unknown(0));
        let failed = write(&storage.fdb, &context, &mut unknown).await;
        assert!(matches!(failed, Err(TestError::Storage(error)) if error.is_maybe_committed()));
        assert_eq!(unknown.0, 1);
    }

    /// An operation whose first attempt runs a nested transaction with an unknown result.
    struct Nesting(u32);

    impl Operation<TestContext> for Nesting {
        type Output = u32;

        async fn attempt(&mut self, _: &Arc<Transaction>, _: Attempt) -> Result<u32> {
            self.0 += 1;
            match self.0 {
                1 => Err(of_nested(storage_error(COMMIT_UNKNOWN_RESULT))),
                attempts => Ok(attempts),
            }
        }
    }

    #[tokio::test]
    async fn an_unknown_result_of_another_transaction_is_not_the_operation_s() {
        let (storage, context) = store();
        assert_eq!(write(&storage.fdb, &context, &mut Nesting(0)).await.unwrap(), 2);
        let locked = of_nested(storage_error(DATABASE_LOCKED));
        assert!(matches!(locked, TestError::Storage(error) if error.code() == DATABASE_LOCKED));
        assert!(matches!(of_nested(TestError::Other), TestError::Other));
    }

    /// An operation that meets a locked database, 8 s later at each attempt.
    struct Locked(u32);

    impl Operation<TestContext> for Locked {
        type Output = ();

        async fn attempt(&mut self, _: &Arc<Transaction>, _: Attempt) -> Result<()> {
            self.0 += 1;
            tokio::time::advance(Duration::from_secs(8)).await;
            Err(storage_error(DATABASE_LOCKED))
        }
    }

    #[tokio::test]
    async fn an_operation_is_retried_for_half_a_minute() {
        let (storage, context) = store();
        tokio::time::pause();
        let is_locked =
            |failed: Result<()>| matches!(failed, Err(TestError::Storage(error)) if error.code() == DATABASE_LOCKED);
        let (mut writes, mut reads) = (Locked(0), Locked(0));
        assert!(is_locked(write(&storage.fdb, &context, &mut writes).await));
        assert!(is_locked(read(&storage.fdb, &context, &mut reads).await));
        assert_eq!((writes.0, reads.0), (4, 4));
    }

    /// An operation that reads a key which another transaction writes during the first attempt.
    struct Conflicting<'a> {
        storage: &'a flatbed_testkit::Storage,
        context: &'a Arc<TestContext>,
        attempts: u32,
    }

    impl Operation<TestContext> for Conflicting<'_> {
        type Output = ();

        async fn attempt(&mut self, trx: &Arc<Transaction>, _: Attempt) -> Result<()> {
            self.attempts += 1;
            let key = &self.storage.root;
            trx.get(key, false).await?;
            if self.attempts == 1 {
                let other = Transaction::begin(&self.storage.fdb, self.context)?;
                other.set(key, b"other");
                other.commit().await.map_err(|failed| storage_error(failed.code()))?;
            }
            trx.set(key, b"own");
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_conflict_is_retried_after_either_pause() {
        for conflict_pause_max in [None, Some(Duration::from_millis(1))] {
            let (storage, context) = store_with(RetryPolicy { conflict_pause_max, ..RetryPolicy::default() });
            let mut conflicting = Conflicting { storage: &storage, context: &context, attempts: 0 };
            write(&storage.fdb, &context, &mut conflicting).await.unwrap();
            assert_eq!((conflicting.attempts, context.counters().conflicts.get()), (2, 1));
            let trx = Transaction::begin(&storage.fdb, &context).unwrap();
            assert_eq!(trx.get(&storage.root, true).await.unwrap().as_deref(), Some(&b"own"[..]));
        }
    }

    /// An operation that conflicts at its first attempt, and records which attempts have committed.
    struct Recording<'a> {
        conflicting: Conflicting<'a>,
        committed: Arc<std::sync::Mutex<Vec<u32>>>,
    }

    impl Operation<TestContext> for Recording<'_> {
        type Output = ();

        async fn attempt(&mut self, trx: &Arc<Transaction>, attempt: Attempt) -> Result<()> {
            self.conflicting.attempt(trx, attempt).await?;
            let (committed, number) = (Arc::clone(&self.committed), self.conflicting.attempts);
            trx.on_commit(move || committed.lock().unwrap().push(number));
            Ok(())
        }
    }

    #[tokio::test]
    async fn only_the_attempt_that_commits_runs_its_action() {
        let (storage, context) = store();
        let committed = Arc::default();
        let conflicting = Conflicting { storage: &storage, context: &context, attempts: 0 };
        let mut recording = Recording { conflicting, committed: Arc::clone(&committed) };
        write(&storage.fdb, &context, &mut recording).await.unwrap();
        assert_eq!(*committed.lock().unwrap(), [2]);
        // A transaction that only reads runs none.
        read(&storage.fdb, &context, &mut recording).await.unwrap();
        assert_eq!(*committed.lock().unwrap(), [2]);
    }

    /// An operation that keeps a handle of its transaction.
    struct Keeping(Option<Arc<Transaction>>);

    impl Operation<TestContext> for Keeping {
        type Output = ();

        async fn attempt(&mut self, trx: &Arc<Transaction>, _: Attempt) -> Result<()> {
            self.0 = Some(Arc::clone(trx));
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_transaction_that_its_operation_keeps_is_not_committed() {
        let (storage, context) = store();
        let failed = write(&storage.fdb, &context, &mut Keeping(None)).await;
        assert!(matches!(failed, Err(TestError::Corrupt(Corruption::TransactionHeld))));
        assert_eq!(context.counters().commits.get(), 0);
    }
}
