//! `on_error`: the retryable errors, and the delay before a retry.

use std::time::Duration;

use crate::base::error::Error;
use crate::transaction::state::TransactionState;

/// The meaning of an error for a retry loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Backs off: the delay grows with each retry.
    BackOff,
    /// Backs off too, but the delay may exceed the option's maximum.
    BackOffFar,
    /// Waits a short fixed time, because the read version was at fault.
    Soon,
    No,
}

/// The longest delay if the cluster's memory was at fault.
const FAR_DELAY_MAX: Duration = Duration::from_secs(30);
/// The delay if the read version was at fault.
const SOON: Duration = Duration::from_millis(10);

fn class(code: i32) -> Class {
    match code {
        1020 | 1021 | 1037 | 1038 | 1051 | 1079 | 1213 | 1223 => Class::BackOff,
        1042 | 1078 => Class::BackOffFar,
        1007 | 1009 => Class::Soon,
        _ => Class::No,
    }
}

/// Returns the delay before the next retry, or the error that ends the loop. `random` is from 0 to 1.
pub(crate) fn delay(state: &mut TransactionState, code: i32, random: f64) -> Result<Duration, Error> {
    if state.options.retry_limit.is_some_and(|limit| state.retries >= limit) {
        return Err(Error(code));
    }
    state.retries = state.retries.saturating_add(1);
    let max = state.options.max_retry_delay;
    match class(code) {
        Class::Soon => Ok(SOON.min(max)),
        class @ (Class::BackOff | Class::BackOffFar) => {
            let delay = state.backoff.mul_f64(random);
            let max = if class == Class::BackOffFar { FAR_DELAY_MAX } else { max };
            state.backoff = state.backoff.saturating_mul(2).min(max);
            Ok(delay)
        }
        // Code 0 is no error: a retry after it is a misuse.
        Class::No if code == 0 => Err(Error::CLIENT_INVALID_OPERATION),
        Class::No => Err(Error(code)),
    }
}
