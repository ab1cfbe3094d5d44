//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).

use std::fmt::Write;

use crate::family::{Family, Kind, Labels, Value};
use crate::histogram::BOUNDS_MICROSECONDS;

/// Formats families as `text/plain; version=0.0.4`. Families with the same name are merged under the first one's help
/// and type. Families without series are omitted.
pub fn text(families: &[Family]) -> String {
    let mut out = String::with_capacity(64 * 1024);
    for (at, family) in families.iter().enumerate() {
        let before = families.get(..at).unwrap_or_default();
        if before.iter().any(|other| other.name == family.name) {
            continue;
        }
        let same = families.iter().filter(|other| other.name == family.name && other.kind == family.kind);
        let samples: Vec<_> = same.flat_map(|family| &family.samples).collect();
        if samples.is_empty() {
            continue;
        }
        let (suffix, kind) = match family.kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
            Kind::Histogram => ("", "histogram"),
        };
        let name = format!("{}{suffix}", family.name);
        out.push_str(&format!("# HELP {name} "));
        escape(family.help, false, &mut out);
        out.push_str(&format!("\n# TYPE {name} {kind}\n"));
        for sample in samples {
            match &sample.value {
                Value::Histogram { buckets, sum_seconds } => {
                    histogram(&name, &sample.labels, buckets, *sum_seconds, &mut out);
                }
                Value::Count(count) => line(&name, &sample.labels, None, &count.to_string(), &mut out),
                Value::Number(number) => line(&name, &sample.labels, None, &decimal(*number), &mut out),
            }
        }
    }
    out
}

fn histogram(name: &str, labels: &Labels, buckets: &[u64], sum_seconds: f64, out: &mut String) {
    let bounds = BOUNDS_MICROSECONDS.iter().map(|bound| (*bound as f64 / 1e6).to_string());
    let mut sum = 0;
    for (count, bound) in buckets.iter().zip(bounds.chain(["+Inf".to_owned()])) {
        sum += count;
        line(&format!("{name}_bucket"), labels, Some(&bound), &sum.to_string(), out);
    }
    line(&format!("{name}_sum"), labels, None, &decimal(sum_seconds), out);
    line(&format!("{name}_count"), labels, None, &sum.to_string(), out);
}

fn line(name: &str, labels: &Labels, bound: Option<&str>, value: &str, out: &mut String) {
    out.push_str(name);
    let all = labels.iter().map(|(name, value)| (*name, &**value)).chain(bound.map(|bound| ("le", bound)));
    let mut separator = '{';
    for (name, value) in all {
        let _ = write!(out, "{separator}{name}=\"");
        escape(value, true, out);
        out.push('"');
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

/// Formats a number as Go parses it, with Prometheus' names for infinities. Rust and Go both write NaN.
fn decimal(number: f64) -> String {
    match number {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        number => number.to_string(),
    }
}

fn escape(text: &str, quoted: bool, out: &mut String) {
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quoted => out.push_str("\\\""),
            char => out.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Counter, Gauge, Histogram, Label, LabelledMetrics};

    crate::labels! {
        enum Colour: "colour" {
            Red = "red",
            Odd = "a\\b\"c\nd",
        }
    }

    crate::metrics! {
        struct Metrics {
            things: Counter = "Things\nand \\ \"more\".",
            painted: LabelledMetrics<Colour, Counter> = "Things by colour.",
            waiting: Gauge = "Things that wait.",
            wait_seconds: LabelledMetrics<Colour, Histogram> = "How long.",
        }
    }

    #[test]
    fn as_prometheus_reads_it() {
        let metrics = Metrics::default();
        metrics.things.add(3);
        metrics.painted.of(Colour::Odd).add(1);
        let held = metrics.waiting.hold_many(2);
        metrics.wait_seconds.of(Colour::Red).observe(Duration::from_micros(200));
        let mut families = metrics.families();
        families.push(Family::counter("flatbed_things", "Again.", 4));
        let written = text(&families);
        let expected = "\
# HELP flatbed_things_total Things\\nand \\\\ \"more\".
# TYPE flatbed_things_total counter
flatbed_things_total 3
flatbed_things_total 4
# HELP flatbed_painted_total Things by colour.
# TYPE flatbed_painted_total counter
flatbed_painted_total{colour=\"red\"} 0
flatbed_painted_total{colour=\"a\\\\b\\\"c\\nd\"} 1
# HELP flatbed_waiting Things that wait.
# TYPE flatbed_waiting gauge
flatbed_waiting 2
# HELP flatbed_wait_seconds How long.
# TYPE flatbed_wait_seconds histogram
flatbed_wait_seconds_bucket{colour=\"red\",le=\"0.0001\"} 0
flatbed_wait_seconds_bucket{colour=\"red\",le=\"0.00025\"} 1
";
        assert_eq!(&written[..expected.len()], expected);
        let end = "\
flatbed_wait_seconds_bucket{colour=\"red\",le=\"30\"} 1
flatbed_wait_seconds_bucket{colour=\"red\",le=\"+Inf\"} 1
flatbed_wait_seconds_sum{colour=\"red\"} 0.0002
flatbed_wait_seconds_count{colour=\"red\"} 1
";
        assert_eq!(&written[written.len() - end.len()..], end);
        drop(held);
        assert_eq!(metrics.waiting.get(), 0);
        assert!(Colour::ALL.iter().enumerate().all(|(at, colour)| colour.index() == at));
    }

    #[test]
    fn numbers() {
        let all = [0.0, 1.5, 1e-7, 1e21, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(decimal);
        assert_eq!(all, ["0", "1.5", "0.0000001", "1000000000000000000000", "NaN", "+Inf", "-Inf"]);
    }
}
