//! A histogram in CouchDB's form: moments and percentiles in milliseconds.
//!
//! CouchDB samples the last seconds. Flatbed counts since the start of the process, with the precision of the buckets
//! of `/metrics`: the mean is exact, percentiles are upper bounds of buckets, and other moments assume that each
//! observation lies in the middle of its bucket.

use flatbed_layer::json::{Array, Object};
use flatbed_metrics::{BOUNDS_MICROSECONDS, Family, Value};

/// Names and fractions of the percentiles, in output order; 999 is 99.9.
const PERCENTILES: [(&str, f64); 6] =
    [("50", 0.5), ("75", 0.75), ("90", 0.9), ("95", 0.95), ("99", 0.99), ("999", 0.999)];

/// Observations by bucket, and their sum in milliseconds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Distribution {
    buckets: Vec<u64>,
    sum_ms: f64,
}

/// The bounds of a bucket in milliseconds. The last bucket has no upper bound and returns its lower bound twice.
fn bounds(bucket: usize) -> (f64, f64) {
    let bound = |at: usize| BOUNDS_MICROSECONDS.get(at).map(|microseconds| *microseconds as f64 / 1_000.0);
    let low = bucket.checked_sub(1).and_then(bound).unwrap_or_default();
    (low, bound(bucket).unwrap_or(low))
}

impl Distribution {
    /// Sums the histograms of all series of a family, or of those with this label value.
    pub(super) fn of(families: &[Family], name: &str, label: Option<(&str, &str)>) -> Distribution {
        let mut all = Distribution::default();
        for sample in families.iter().filter(|family| family.name == name).flat_map(|family| &family.samples) {
            let has =
                |(name, value): (&str, &str)| sample.labels.iter().any(|(label, of)| *label == name && of == value);
            let Value::Histogram { buckets, sum_seconds } = &sample.value else { continue };
            if label.is_none_or(has) {
                all.buckets.resize(all.buckets.len().max(buckets.len()), 0);
                all.buckets.iter_mut().zip(buckets).for_each(|(sum, count)| *sum += count);
                all.sum_ms += sum_seconds * 1_000.0;
            }
        }
        all
    }

    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Iterates over the buckets that are not empty: lower bound, upper bound and count.
    fn nonempty_buckets(&self) -> impl DoubleEndedIterator<Item = (f64, f64, f64)> {
        let counted = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(at, count)| (bounds(at).0, bounds(at).1, *count as f64))
    }

    /// Sums `of(value)` over all observations, each taken as the middle of its bucket.
    fn sum(&self, of: impl Fn(f64) -> f64) -> f64 {
        self.nonempty_buckets().map(|(low, high, count)| count * of((low + high) / 2.0)).sum()
    }

    /// The upper bound, in milliseconds, of the bucket that holds the percentile `part` (0 to 1).
    fn percentile(&self, part: f64) -> f64 {
        let wanted = self.count() as f64 * part;
        let mut seen = 0.0;
        let reached = self.nonempty_buckets().find(|(_, _, count)| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0.0, |(_, high, _)| high)
    }

    pub(super) fn write(&self, mut object: Object<'_>) {
        let count = self.count() as f64;
        let per = |sum: f64, of: f64| if of > 0.0 { sum / of } else { 0.0 };
        let mean = per(self.sum_ms, count);
        let middle = per(self.sum(|at| at), count);
        let moment = |power: i32| per(self.sum(|at| (at - middle).powi(power)), count);
        let (variance, deviation) = (moment(2), moment(2).sqrt());
        let kurtosis = if variance > 0.0 { moment(4) / variance.powi(2) - 3.0 } else { 0.0 };
        let geometric = if count > 0.0 { per(self.sum(f64::ln), count).exp() } else { 0.0 };
        for (name, value) in [
            ("min", self.nonempty_buckets().next().map_or(0.0, |(low, ..)| low)),
            ("max", self.nonempty_buckets().next_back().map_or(0.0, |(_, high, _)| high)),
            ("arithmetic_mean", mean),
            ("geometric_mean", geometric),
            ("harmonic_mean", per(count, self.sum(f64::recip))),
            ("median", self.percentile(0.5)),
            ("variance", variance),
            ("standard_deviation", deviation),
            ("skewness", per(moment(3), deviation.powi(3))),
            ("kurtosis", kurtosis),
        ] {
            object.raw(name, number(value).as_bytes());
        }
        let mut percentiles = object.array("percentile");
        for (name, part) in PERCENTILES {
            pair(&mut percentiles, name, &number(self.percentile(part)));
        }
        percentiles.end();
        let mut histogram = object.array("histogram");
        for (_, high, count) in self.nonempty_buckets() {
            pair(&mut histogram, &number(high), &number(count));
        }
        histogram.end();
        object.number("n", self.count());
        object.end();
    }
}

fn pair(array: &mut Array<'_>, first: &str, second: &str) {
    array.array().raw(first.as_bytes()).raw(second.as_bytes());
}

/// Formats a number as JSON, which has no infinities and no NaN: these become 0.
fn number(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { "0".to_owned() }
}

#[cfg(test)]
mod tests {
    use flatbed_layer::json::{Limits, parse};
    use flatbed_metrics::Kind;

    use super::*;

    fn told(distribution: &Distribution) -> String {
        let mut text = Vec::new();
        distribution.write(Object::new(&mut text));
        assert!(parse(&text, &Limits::default()).is_ok());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn nothing_is_nought() {
        let text = told(&Distribution::of(&[], "none", None));
        assert!(text.starts_with(r#"{"min":0,"max":0,"arithmetic_mean":0,"geometric_mean":0,"#), "{text}");
        assert!(text.contains(r#""percentile":[[50,0],[75,0],[90,0],[95,0],[99,0],[999,0]]"#), "{text}");
        assert!(text.ends_with(r#""histogram":[],"n":0}"#), "{text}");
    }

    #[test]
    fn buckets_are_told() {
        let mut family = Family::new("f", "h", Kind::Histogram);
        // Nine observations within 0.1 ms and one between 1 ms and 2.5 ms; with another label, one beyond all bounds.
        let mut buckets = vec![0; BOUNDS_MICROSECONDS.len() + 1];
        (buckets[0], buckets[4]) = (9, 1);
        family.push(&[("l", "a".into())], Value::Histogram { buckets, sum_seconds: 0.002 });
        let mut buckets = vec![0; BOUNDS_MICROSECONDS.len() + 1];
        buckets[BOUNDS_MICROSECONDS.len()] = 1;
        family.push(&[("l", "b".into())], Value::Histogram { buckets, sum_seconds: 40.0 });
        let text = told(&Distribution::of(&[family.clone()], "f", Some(("l", "a"))));
        assert!(text.starts_with(r#"{"min":0,"max":2.5,"arithmetic_mean":0.2,"#), "{text}");
        assert!(text.contains(r#""median":0.1,"#) && text.contains(r#"[90,0.1],[95,2.5]"#), "{text}");
        assert!(text.ends_with(r#""histogram":[[0.1,9],[2.5,1]],"n":10}"#), "{text}");
        let text = told(&Distribution::of(&[family], "f", None));
        assert!(text.contains(r#""max":30000,"#) && text.ends_with(r#""n":11}"#), "{text}");
    }
}
