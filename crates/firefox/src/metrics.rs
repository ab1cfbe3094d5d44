//! The surface's counters, and the limit of its log lines.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use flatbed_metrics::Counter;

flatbed_metrics::metrics! {
    pub(crate) struct Metrics {
        sync_unsigned: Counter = "Requests of Firefox Sync's that were not signed as they must be (401).",
        sync_tokens: Counter = "Tokens that the token server has given out.",
        sync_tokens_refused: Counter = "Requests for a token that were refused.",
        sync_accounts_refused: Counter = "Requests for a token of accounts that may have no user here.",
        sync_jwks_reads: Counter = "Times that the issuer's keys were read.",
        sync_jwks_failures: Counter = "Times that the issuer's keys could not be read.",
    }
}

/// The most lines of a log within this time.
const LINES_MAX: u32 = 30;
const LINES_WITHIN: Duration = Duration::from_secs(10);

/// The rate limit of a log: strangers must not fill a disk.
#[derive(Debug)]
pub(crate) struct LogRateLimit(Mutex<(Instant, u32)>);

impl Default for LogRateLimit {
    fn default() -> LogRateLimit {
        LogRateLimit(Mutex::new((Instant::now(), 0)))
    }
}

impl LogRateLimit {
    /// Returns the number of lines dropped before this one if it may be written; `None` if it is dropped.
    pub(crate) fn may_write(&self) -> Option<u32> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, lines) = &mut *state;
        let mut passed_over = 0;
        if begun.elapsed() >= LINES_WITHIN {
            passed_over = lines.saturating_sub(LINES_MAX);
            (*begun, *lines) = (Instant::now(), 0);
        }
        *lines = lines.saturating_add(1);
        (*lines <= LINES_MAX).then_some(passed_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_not_written() {
        let sparing = LogRateLimit::default();
        assert_eq!((0..1_000).filter(|_| sparing.may_write().is_some()).count(), LINES_MAX as usize);
    }
}
