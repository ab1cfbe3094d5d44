//! The metrics, clock and retry limit of a layer's transactions.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;

use crate::metrics::Metrics;
use crate::store::transaction::RETRY_MAX;

/// The metrics, clock and retry limit of a layer.
#[derive(Debug)]
pub(crate) struct Instruments {
    metrics: Metrics,
    clock: Clock,
    retry_max: Duration,
}

impl Default for Instruments {
    fn default() -> Self {
        Instruments { metrics: Metrics::default(), clock: Clock::default(), retry_max: RETRY_MAX }
    }
}

impl Instruments {
    /// New metrics. `retry_max`: see [`LayerOptions::retry_max`](crate::LayerOptions::retry_max).
    pub(crate) fn new(clock: &Clock, retry_max: Duration) -> Arc<Instruments> {
        Arc::new(Instruments { metrics: Metrics::default(), clock: clock.clone(), retry_max })
    }

    /// How long a failing operation is retried.
    pub(crate) fn retry_max(&self) -> Duration {
        self.retry_max
    }

    /// The layer's clock.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Deref for Instruments {
    type Target = Metrics;

    fn deref(&self) -> &Metrics {
        &self.metrics
    }
}
