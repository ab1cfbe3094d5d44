//! What was measured, as it was when it was read.

use std::borrow::Cow;

/// Names and values of labels.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// What a family's numbers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Never goes back while the process runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size, in seconds.
    Histogram,
}

/// The value of a time series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// Counts by [`BOUNDS_MICROSECONDS`](crate::BOUNDS_MICROSECONDS), each without those of the buckets before it, and
    /// the sum of all that was measured.
    Histogram {
        /// The last one is that without a bound.
        buckets: Vec<u64>,
        /// In seconds.
        sum_seconds: f64,
    },
}

/// A time series.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// What tells it apart within its family.
    pub labels: Labels,
    /// Its value.
    pub value: Value,
}

/// All time series of a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// In snake case, with the program's prefix, without `_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// What they are.
    pub kind: Kind,
    /// The series.
    pub samples: Vec<Sample>,
}

/// What a [`Family`] can be read from.
pub trait Measure {
    /// What it is.
    const KIND: Kind;

    /// Adds what is measured now to `family`, under `labels`, which are left as they were.
    fn measure(&self, labels: &mut Labels, family: &mut Family);
}

/// Families of which several have one name become one with the series of all, where the first of them stands. Labels must
/// tell their series apart: see [`Family::labelled`].
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
    /// The same with a label on each series.
    #[must_use]
    pub fn labelled(mut self, name: &'static str, value: &'static str) -> Family {
        for sample in &mut self.samples {
            sample.labels.push((name, value.into()));
        }
        self
    }

    /// One without series yet.
    pub fn new(name: &'static str, help: &'static str, kind: Kind) -> Family {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// What `measured` holds now.
    pub fn of<M: Measure>(name: &'static str, help: &'static str, measured: &M) -> Family {
        let mut family = Family::new(name, help, M::KIND);
        measured.measure(&mut Labels::new(), &mut family);
        family
    }

    /// A number that is read elsewhere.
    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Family {
        let mut family = Family::new(name, help, Kind::Gauge);
        family.push(&[], Value::Number(value));
        family
    }

    /// A count that is kept elsewhere.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Family {
        let mut family = Family::new(name, help, Kind::Counter);
        family.push(&[], Value::Count(value));
        family
    }

    /// Adds a series.
    pub fn push(&mut self, labels: &[(&'static str, Cow<'static, str>)], value: Value) {
        self.samples.push(Sample { labels: labels.to_vec(), value });
    }

    /// The sum of all series, a histogram's being its count; rounded down.
    pub fn total(&self) -> u64 {
        self.samples.iter().map(Sample::count).sum()
    }

    /// As [`Family::total`], of the series that have this value of a label.
    pub fn with(&self, label: &str, value: &str) -> u64 {
        let has = |sample: &&Sample| sample.labels.iter().any(|(name, of)| *name == label && of == value);
        self.samples.iter().filter(has).map(Sample::count).sum()
    }
}

/// The sum of a family's series, 0 if there is none of that name. For tests.
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
