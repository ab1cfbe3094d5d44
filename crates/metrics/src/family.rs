//! Metric values at the time of a read.

use std::borrow::Cow;

/// Names and values of labels.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// The type of a family's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Never decreases while the process runs.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts of durations by bucket, in seconds.
    Histogram,
}

/// The value of a time series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An integer.
    Count(u64),
    /// A floating point number.
    Number(f64),
    /// Counts by the buckets of [`BOUNDS_MICROSECONDS`](crate::BOUNDS_MICROSECONDS), not cumulative, and the sum of all
    /// observations.
    Histogram {
        /// One count per bucket; the last bucket has no bound.
        buckets: Vec<u64>,
        /// The sum in seconds.
        sum_seconds: f64,
    },
}

/// A time series.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Labels that identify the series in its family.
    pub labels: Labels,
    /// The current value.
    pub value: Value,
}

/// All time series with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name in snake case, with the program's prefix, without `_total`.
    pub name: &'static str,
    /// The description, one sentence.
    pub help: &'static str,
    /// The metric type.
    pub kind: Kind,
    /// The time series.
    pub samples: Vec<Sample>,
}

/// A metric that can be read into a [`Family`].
pub trait Measure {
    /// The metric's type.
    const KIND: Kind;

    /// Adds the current values to `family`, under `labels`, which are restored before return.
    fn measure(&self, labels: &mut Labels, family: &mut Family);
}

/// Merges families with the same name into the first of them. Labels must distinguish their series: see
/// [`Family::labelled`].
pub fn merged(families: Vec<Family>) -> Vec<Family> {
    let mut merged: Vec<Family> = Vec::with_capacity(families.len());
    for family in families {
        match merged.iter_mut().find(|known| known.name == family.name) {
            Some(known) => known.samples.extend(family.samples),
            None => merged.push(family),
        }
    }
    merged
}

impl Family {
    /// Adds a label to each series.
    #[must_use]
    pub fn labelled(mut self, name: &'static str, value: &'static str) -> Family {
        for sample in &mut self.samples {
            sample.labels.push((name, value.into()));
        }
        self
    }

    /// Creates a family without series.
    pub fn new(name: &'static str, help: &'static str, kind: Kind) -> Family {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// Reads a metric into a family.
    pub fn of<M: Measure>(name: &'static str, help: &'static str, measured: &M) -> Family {
        let mut family = Family::new(name, help, M::KIND);
        measured.measure(&mut Labels::new(), &mut family);
        family
    }

    /// Creates a gauge with one value.
    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Family {
        let mut family = Family::new(name, help, Kind::Gauge);
        family.push(&[], Value::Number(value));
        family
    }

    /// Creates a counter with one value.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Family {
        let mut family = Family::new(name, help, Kind::Counter);
        family.push(&[], Value::Count(value));
        family
    }

    /// Adds a series.
    pub fn push(&mut self, labels: &[(&'static str, Cow<'static, str>)], value: Value) {
        self.samples.push(Sample { labels: labels.to_vec(), value });
    }

    /// Returns the sum of all series, rounded down; a histogram counts its observations.
    pub fn total(&self) -> u64 {
        self.samples.iter().map(Sample::count).sum()
    }

    /// Returns the sum of the series with this label value.
    pub fn with(&self, label: &str, value: &str) -> u64 {
        let has = |sample: &&Sample| sample.labels.iter().any(|(name, of)| *name == label && of == value);
        self.samples.iter().filter(has).map(Sample::count).sum()
    }
}

/// Returns the sum of the series of all families with this name, for tests.
pub fn total(families: &[Family], name: &str) -> u64 {
    families.iter().filter(|family| family.name == name).map(Family::total).sum()
}

impl Sample {
    fn count(&self) -> u64 {
        match &self.value {
            Value::Count(count) => *count,
            Value::Number(number) => *number as u64,
            Value::Histogram { buckets, .. } => buckets.iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_family() {
        let family = |name, value| {
            let mut family = Family::new(name, "h", Kind::Counter);
            family.push(&[], Value::Count(value));
            family
        };
        let found = merged(vec![family("a", 1), family("b", 2), family("a", 3).labelled("surface", "x")]);
        assert_eq!(
            found.iter().map(|family| (family.name, family.samples.len())).collect::<Vec<_>>(),
            [("a", 2), ("b", 1)]
        );
        assert_eq!(found[0].samples[1].labels, [("surface", "x".into())]);
    }
}
