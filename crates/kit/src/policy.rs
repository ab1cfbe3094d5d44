//! The bounds of a store's transactions.
//!
//! They are measured by the runtime's time and not by the store's clock: a test that moves the clock must not end
//! attempts under way.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use foundationdb::FdbError;

use crate::runner::COMMIT_UNKNOWN_RESULT;

/// The error of a transaction that took too long (`transaction_timed_out`).
const TIMED_OUT: i32 = 1031;

/// The time limits of a transaction's attempts, commits and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The time for which a failing operation is retried before the client gets its last error. If a commit may have
    /// succeeded, the error says so.
    pub retry_max: Duration,
    /// The limit of an attempt's reads. FoundationDB's client waits for ever for a cluster that does not answer.
    pub attempt_max: Duration,
    /// The limit of a commit. The commit may still land afterwards, so its result is unknown. The operation is not
    /// retried, since it could take place twice.
    pub commit_max: Duration,
    /// The longest pause after a conflict. `None`: the pauses of FoundationDB's client, which grow to a second and
    /// spare the cluster.
    pub conflict_pause_max: Option<Duration>,
}

impl RetryPolicy {
    /// The default of [`RetryPolicy::retry_max`].
    pub const RETRY_MAX: Duration = Duration::from_secs(30);
    /// The default of [`RetryPolicy::attempt_max`].
    pub const ATTEMPT_MAX: Duration = Duration::from_secs(10);
    /// The default of [`RetryPolicy::commit_max`].
    pub const COMMIT_MAX: Duration = Duration::from_secs(30);

    /// Returns the attempt's result, or `transaction_timed_out` after [`RetryPolicy::attempt_max`].
    ///
    /// # Errors
    /// The attempt's, or FoundationDB's error 1031.
    pub async fn bounded<T, E: From<FdbError>>(
        &self,
        attempt: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        match tokio::time::timeout(self.attempt_max, attempt).await {
            Ok(done) => done,
            Err(_) => Err(FdbError::from_code(TIMED_OUT).into()),
        }
    }

    /// Returns the commit's answer, or `commit_unknown_result` after [`RetryPolicy::commit_max`].
    pub(crate) async fn bounded_commit<T>(&self, commit: impl Future<Output = T> + Send) -> Result<T, FdbError> {
        let unknown = |_| FdbError::from_code(COMMIT_UNKNOWN_RESULT);
        tokio::time::timeout(self.commit_max, commit).await.map_err(unknown)
    }

    /// Returns the pause after this many conflicts: a random part of a time that doubles with each conflict. Returns
    /// `None` if the pause is FoundationDB's.
    pub(crate) fn conflict_pause(&self, conflicts: u32) -> Option<Duration> {
        let most = Duration::from_millis(1 << conflicts.min(16)).min(self.conflict_pause_max?);
        let [lot, ..] = RandomState::new().hash_one(0).to_le_bytes();
        Some(most.mul_f64(f64::from(lot) / 255.0))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            retry_max: RetryPolicy::RETRY_MAX,
            attempt_max: RetryPolicy::ATTEMPT_MAX,
            commit_max: RetryPolicy::COMMIT_MAX,
            conflict_pause_max: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestError;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_answer_is_given_up() {
        let never = RetryPolicy::default().bounded(std::future::pending::<Result<(), TestError>>()).await;
        assert!(matches!(never, Err(TestError::Storage(error)) if error.code() == TIMED_OUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_that_is_not_answered_has_an_unknown_result() {
        let policy = RetryPolicy::default();
        let never = policy.bounded_commit(std::future::pending::<()>()).await;
        assert!(never.is_err_and(|error| error.is_maybe_committed()));
        assert!(policy.bounded_commit(std::future::ready(7)).await.is_ok_and(|answer| answer == 7));
    }

    #[test]
    fn a_pause_after_a_conflict_is_bounded() {
        assert_eq!(RetryPolicy::default().conflict_pause(1), None);
        let most = Duration::from_millis(64);
        let policy = RetryPolicy { conflict_pause_max: Some(most), ..RetryPolicy::default() };
        for conflicts in [1, 6, 7, u32::MAX] {
            let doubled = Duration::from_millis(1 << conflicts.min(16));
            assert!(policy.conflict_pause(conflicts).unwrap() <= most.min(doubled));
        }
    }
}
