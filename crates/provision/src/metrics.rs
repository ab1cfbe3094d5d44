//! Metrics of the databases of users.

use std::sync::{Mutex, PoisonError};

use flatbed_metrics::{Counter, Family};
use tokio::time::Instant;

use crate::Provision;

flatbed_metrics::metrics! {
    pub(crate) struct Metrics {
        user_databases_created: Counter = "Databases of users that this process has created, as [couch_peruser] says.",
        user_databases_deleted: Counter = "Databases of users that this process has deleted with their accounts.",
        user_database_failures: Counter = "Attempts that failed to give an account its database or to withdraw it; refused accounts count once.",
    }
}

/// The time since which accounts wait for their databases, as seen by this process.
#[derive(Debug, Default)]
pub(crate) struct Lag(Mutex<Option<Instant>>);

impl Lag {
    /// Notes that accounts wait, unless it is noted.
    pub(crate) fn begin(&self, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now);
    }

    /// Notes that no account waits.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Provision {
    /// Returns the metrics of the databases of users.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.metrics.families();
        let lag = self.lag.since().map(|since| self.layer.clock().since(since)).unwrap_or_default();
        let help = "For how long changes of accounts wait for databases of users to follow, of any process.";
        families.push(Family::gauge("flatbed_user_databases_lag_seconds", help, lag.as_secs_f64()));
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/metrics.md lists all metrics for operators.
    #[test]
    fn all_families_are_listed() {
        let listed = include_str!("../../../docs/metrics.md");
        let names = Metrics::default().families().into_iter().map(|family| family.name);
        for name in names.chain(["flatbed_user_databases_lag_seconds"]) {
            assert!(listed.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn the_lag_begins_once() {
        let (lag, now) = (Lag::default(), Instant::now());
        lag.begin(now);
        lag.begin(now + std::time::Duration::from_secs(1));
        assert_eq!(lag.since(), Some(now));
        lag.end();
        assert_eq!(lag.since(), None);
    }
}
