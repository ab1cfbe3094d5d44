//! The times of writes' acknowledgements and of their rows, shared by the threads of the writers and of the followers.

use std::{
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

use serde_json::{Value, json};

use crate::stats::{percentiles, rounded};

#[derive(Default)]
struct Write {
    /// The acknowledgement in nanoseconds after the start of the case; 0: none yet.
    acknowledged: AtomicU64,
    /// The arrival of the last row, likewise.
    last_row: AtomicU64,
    /// The number of followers that have its row.
    rows: AtomicU32,
}

/// All writes of a case, by number.
pub(crate) struct Tally {
    start: Instant,
    writes: Vec<Write>,
    rows: AtomicU64,
}

impl Tally {
    /// Creates a tally of the writes 0 to `count`.
    pub(crate) fn new(count: usize) -> Tally {
        let writes = std::iter::repeat_with(Write::default).take(count).collect();
        Tally { start: Instant::now(), writes, rows: AtomicU64::new(0) }
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        // Never 0, which means not yet.
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Notes the acknowledgement of write `number`.
    pub(crate) fn acknowledge(&self, number: usize) {
        if let Some(write) = self.writes.get(number) {
            write.acknowledged.store(self.nanoseconds(Instant::now()), Ordering::Release);
        }
    }

    /// Notes that a follower has the row of write `number`. Returns the microseconds since the acknowledgement, 0 if
    /// the row came before it; `None`: there is no such write.
    pub(crate) fn row(&self, number: usize, at: Instant) -> Option<u64> {
        let write = self.writes.get(number)?;
        let at = self.nanoseconds(at);
        write.last_row.fetch_max(at, Ordering::Relaxed);
        write.rows.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(1, Ordering::Relaxed);
        Some(match write.acknowledged.load(Ordering::Acquire) {
            0 => 0,
            acknowledged => at.saturating_sub(acknowledged) / 1000,
        })
    }

    /// Returns the number of rows of all writes and followers.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Returns percentiles of the time from acknowledgement to the last follower's row, in milliseconds, and how many
    /// rows of the `followers` of each write are missing.
    pub(crate) fn last_rows(&self, followers: u32) -> (Value, u64) {
        self.last_rows_of(0..self.writes.len(), followers)
    }

    /// Returns these for the writes of these numbers.
    pub(crate) fn last_rows_of(&self, numbers: Range<usize>, followers: u32) -> (Value, u64) {
        let mut latencies_ms = Vec::new();
        let mut missing = 0;
        for write in self.writes.get(numbers).unwrap_or_default() {
            let acknowledged = write.acknowledged.load(Ordering::Relaxed);
            let rows = write.rows.load(Ordering::Relaxed);
            if acknowledged > 0 {
                missing += u64::from(followers.saturating_sub(rows));
                latencies_ms.push((write.last_row.load(Ordering::Relaxed) as f64 - acknowledged as f64) / 1e6);
            }
        }
        (percentiles(&mut latencies_ms), missing)
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.writes.iter().filter(|write| write.acknowledged.load(Ordering::Relaxed) > 0).count()
    }
}

/// Counts of microseconds with a relative error of at most 1/64: many millions of latencies in little memory.
pub(crate) struct Histogram(Vec<u64>);

const MANTISSA_BITS: u32 = 6;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(vec![0; (64 << MANTISSA_BITS) as usize])
    }
}

impl Histogram {
    fn bucket(value: u64) -> usize {
        let exponent = (u64::BITS - value.leading_zeros()).saturating_sub(MANTISSA_BITS + 1);
        ((u64::from(exponent) << MANTISSA_BITS) + (value >> exponent)) as usize
    }

    fn value(bucket: usize) -> u64 {
        let exponent = (bucket >> MANTISSA_BITS).saturating_sub(1);
        ((bucket - (exponent << MANTISSA_BITS)) as u64) << exponent
    }

    /// Adds a latency.
    pub(crate) fn add(&mut self, microseconds: u64) {
        if let Some(count) = self.0.get_mut(Self::bucket(microseconds)) {
            *count += 1;
        }
    }

    /// Returns percentiles in milliseconds; null if it is empty.
    pub(crate) fn percentiles(&self) -> Value {
        let all: u64 = self.0.iter().sum();
        let Some(last) = self.0.iter().rposition(|count| *count > 0) else { return Value::Null };
        let at = |share: f64| {
            let wanted = (all as f64 * share) as u64;
            let mut before = 0;
            let found = self.0.iter().position(|count| {
                before += count;
                before > wanted
            });
            rounded(Self::value(found.unwrap_or(last)) as f64 / 1e3, 1000.0)
        };
        json!({ "p50": at(0.5), "p99": at(0.99), "max": at(1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_values_within_a_64th() {
        for value in (0..1000).chain((10..63).map(|bits| (1 << bits) + (1 << (bits - 2)) + 7)) {
            let least = Histogram::value(Histogram::bucket(value));
            assert!(least <= value && value - least <= value / 64, "{value} {least}");
        }
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), Value::Null);
        (0..100).for_each(|value| histogram.add(value));
        assert_eq!(histogram.percentiles(), json!({"p50": 0.05, "p99": 0.099, "max": 0.099}));
    }

    #[test]
    fn a_write_is_as_late_as_its_last_row() {
        let tally = Tally::new(2);
        let start = tally.start;
        let after = |ms| start + std::time::Duration::from_millis(ms);
        assert_eq!(tally.row(0, after(1)), Some(0));
        tally.acknowledge(0);
        assert!(tally.row(0, after(60_000)).is_some_and(|microseconds| microseconds > 50_000_000));
        assert_eq!((tally.row(2, after(1)), tally.rows(), tally.acknowledged()), (None, 2, 1));
        let (last, missing) = tally.last_rows(3);
        assert!(last["max"].as_f64().is_some_and(|ms| ms > 50_000.0) && missing == 1, "{last} {missing}");
    }
}
