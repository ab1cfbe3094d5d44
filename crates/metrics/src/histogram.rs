//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::family::{Family, Kind, Labels, Measure, Value};

/// Upper bounds of a histogram's buckets, in microseconds; one more bucket has no bound. They range from a read of the
/// embedded engine to the timeout of transactions.
pub const BOUNDS_MICROSECONDS: [u64; 17] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000,
];

/// Durations in buckets with [`BOUNDS_MICROSECONDS`]. The count is the sum of the buckets, so a concurrent read is
/// always consistent.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_MICROSECONDS.len()],
    beyond: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let at = BOUNDS_MICROSECONDS.partition_point(|bound| bound * 1_000 < nanoseconds);
        self.buckets.get(at).unwrap_or(&self.beyond).fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().chain([&self.beyond]).map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }
}

impl Measure for Histogram {
    const KIND: Kind = Kind::Histogram;

    /// A labelled histogram appears after its first observation, because most routes never see most methods.
    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        let buckets: Vec<u64> =
            self.buckets.iter().chain([&self.beyond]).map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        if labels.is_empty() || buckets.iter().any(|count| *count > 0) {
            let sum_seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
            family.push(labels, Value::Histogram { buckets, sum_seconds });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for nanoseconds in [0, 100_000, 100_001, 30_000_000_000, 30_000_000_001] {
            histogram.observe(Duration::from_nanos(nanoseconds));
        }
        let family = Family::of("flatbed_x_seconds", "X.", &histogram);
        let Value::Histogram { buckets, sum_seconds } = &family.samples[0].value else { panic!("a histogram") };
        assert_eq!((buckets[0], buckets[1], buckets[16], buckets[17]), (2, 1, 1, 1));
        assert_eq!((buckets.len(), histogram.count()), (18, 5));
        assert!((sum_seconds - 60.000_200_002).abs() < 1e-9, "{sum_seconds}");
    }
}
