//! What the transactions of a layer count in, and where they take the time from.

use std::ops::Deref;
use std::sync::Arc;

use flatbed_clock::Clock;

use crate::metrics::Metrics;

/// The metrics of a layer, with its clock.
#[derive(Debug, Default)]
pub(crate) struct Instruments {
    metrics: Metrics,
    clock: Clock,
}

impl Instruments {
    /// Nothing is counted yet.
    pub(crate) fn new(clock: &Clock) -> Arc<Instruments> {
        Arc::new(Instruments { metrics: Metrics::default(), clock: clock.clone() })
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
