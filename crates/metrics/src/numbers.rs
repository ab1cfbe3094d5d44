//! Counters and gauges.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::family::{Family, Kind, Labels, Measure, Value};

/// A counter, which never decreases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Measure for Counter {
    const KIND: Kind = Kind::Counter;

    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        family.push(labels, Value::Count(self.get()));
    }
}

/// A gauge. Clones share the value.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Adds to the gauge; negative values subtract.
    pub fn add(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds one until the returned guard is dropped.
    pub fn hold(&self) -> GaugeGuard {
        self.hold_many(1)
    }

    /// Adds `count` until the returned guard is dropped.
    pub fn hold_many(&self, count: i64) -> GaugeGuard {
        self.add(count);
        GaugeGuard { gauge: self.clone(), count }
    }
}

impl Measure for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        family.push(labels, Value::Number(self.get() as f64));
    }
}

/// A guard that subtracts its count from a [`Gauge`] when dropped.
#[derive(Debug)]
pub struct GaugeGuard {
    gauge: Gauge,
    count: i64,
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.gauge.add(-self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::total;

    #[test]
    fn a_gauge_is_what_it_was_set_to_and_what_came_since() {
        let gauge = Gauge::default();
        gauge.add(3);
        gauge.set(7);
        let held = gauge.hold_many(2);
        gauge.add(-1);
        assert_eq!(gauge.get(), 8);
        drop(held);
        assert_eq!(gauge.get(), 6);
    }

    #[test]
    fn totals_are_those_of_a_name() {
        let families = [Family::counter("a", "A.", 3), Family::counter("b", "B.", 5), Family::gauge("a", "A.", 4.5)];
        assert_eq!([total(&families, "a"), total(&families, "b"), total(&families, "c")], [7, 5, 0]);
    }
}
