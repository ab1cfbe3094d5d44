//! A store for the kit's tests.

use std::sync::Arc;

use flatbed_clock::Clock;
use flatbed_testkit::Storage;
use foundationdb::FdbError;

use crate::{Corruption, RetryPolicy, TransactionContext, TransactionCounters, TransactionError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum TestError {
    #[error("storage: {0}")]
    Storage(#[from] FdbError),
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    #[error("other")]
    Other,
}

impl TransactionError for TestError {
    fn fdb(&self) -> Option<FdbError> {
        match self {
            TestError::Storage(error) => Some(*error),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct TestContext {
    counters: TransactionCounters,
    clock: Clock,
    policy: RetryPolicy,
}

impl TransactionContext for TestContext {
    type Error = TestError;

    fn counters(&self) -> &TransactionCounters {
        &self.counters
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn policy(&self) -> &RetryPolicy {
        &self.policy
    }
}

pub(crate) type Transaction = crate::Transaction<TestContext>;

pub(crate) fn store() -> (Storage, Arc<TestContext>) {
    store_with(RetryPolicy::default())
}

pub(crate) fn store_with(policy: RetryPolicy) -> (Storage, Arc<TestContext>) {
    (Storage::new(), Arc::new(TestContext { policy, ..TestContext::default() }))
}
