//! Single numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::family::{Family, Kind, Labels, Measure, Value};

/// Counts what happened; it never goes back.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// So many more.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// How many there were.
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

/// How many there are now. Clones are the same gauge.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// So many more, or fewer.
    pub fn add(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// It is so many.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// How many there are.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, until the answer is dropped.
    pub fn hold(&self) -> Held {
        self.hold_many(1)
    }

    /// So many more, until the answer is dropped.
    pub fn hold_many(&self, count: i64) -> Held {
        self.add(count);
        Held { gauge: self.clone(), count }
    }
}

impl Measure for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        family.push(labels, Value::Number(self.get() as f64));
    }
}

/// Counted in a [`Gauge`] until it is dropped.
#[derive(Debug)]
pub struct Held {
    gauge: Gauge,
    count: i64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.add(-self.count);
    }
}
