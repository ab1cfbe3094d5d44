//! The metrics, clock and retry policy of a layer's transactions.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_kit::{RetryPolicy, TransactionContext, TransactionCounters};
use flatbed_metrics::Family;

use crate::error::Error;
use crate::metrics::Metrics;

/// The metrics, clock and retry policy of a layer.
#[derive(Debug, Default)]
pub struct Instruments {
    metrics: Metrics,
    storage: TransactionCounters,
    clock: Clock,
    policy: RetryPolicy,
}

impl Instruments {
    /// Creates them. `retry_max`: see the layer's options.
    pub fn new(clock: &Clock, retry_max: Duration) -> Arc<Instruments> {
        let policy = RetryPolicy { retry_max, ..RetryPolicy::default() };
        Arc::new(Instruments { clock: clock.clone(), policy, ..Instruments::default() })
    }

    pub fn storage(&self) -> &TransactionCounters {
        &self.storage
    }

    /// Returns all metrics.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.storage.families();
        families.extend(self.metrics.families());
        families
    }
}

impl TransactionContext for Instruments {
    type Error = Error;

    fn counters(&self) -> &TransactionCounters {
        &self.storage
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn policy(&self) -> &RetryPolicy {
        &self.policy
    }
}

impl Deref for Instruments {
    type Target = Metrics;

    fn deref(&self) -> &Metrics {
        &self.metrics
    }
}
