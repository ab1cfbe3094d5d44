//! The table of results.

use std::fmt::Write as _;

/// One measurement. A cell that does not apply is empty.
#[derive(Default)]
pub struct Row {
    pub what: String,
    pub engine: String,
    pub raw: String,
    pub share: String,
    pub aim: String,
    /// True if the aim was reached; `None` without an aim or a figure.
    pub is_reached: Option<bool>,
}

impl Row {
    pub fn new(what: impl Into<String>) -> Row {
        Row { what: what.into(), ..Row::default() }
    }

    pub fn engine(mut self, figure: impl Into<String>) -> Row {
        self.engine = figure.into();
        self
    }

    pub fn raw(mut self, figure: impl Into<String>) -> Row {
        self.raw = figure.into();
        self
    }

    /// The share of the other side's rate.
    pub fn share(mut self, share: f64) -> Row {
        if share.is_finite() {
            self.share = format!("{:.0} %", share * 100.0);
        }
        self
    }

    pub fn aim(mut self, aim: &str, is_reached: Option<bool>) -> Row {
        self.aim = aim.into();
        self.is_reached = is_reached;
        self
    }
}

/// Formats a number with separators; empty for NaN.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return String::new();
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
    let mut text = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn per_second(rate: f64) -> String {
    if rate.is_finite() { format!("{}/s", number(rate)) } else { String::new() }
}

pub fn microseconds(seconds: f64) -> String {
    if seconds.is_finite() { format!("{:.1} µs", seconds * 1e6) } else { String::new() }
}

pub fn milliseconds(seconds: f64) -> String {
    if seconds.is_finite() { format!("{:.1} ms", seconds * 1e3) } else { String::new() }
}

pub fn megabytes(bytes: f64) -> String {
    if bytes.is_finite() { format!("{:.1} MB", bytes / 1e6) } else { String::new() }
}

/// Returns whether `figure` is at least `least`; `None` without a figure.
pub fn at_least(figure: f64, least: f64) -> Option<bool> {
    figure.is_finite().then_some(figure >= least)
}

/// Returns whether `figure` is at most `most`; `None` without a figure.
pub fn at_most(figure: f64, most: f64) -> Option<bool> {
    figure.is_finite().then_some(figure <= most)
}

pub fn markdown(title: &str, head: &[String], rows: &[Row]) -> String {
    let mut text = format!("## {title}\n\n");
    for line in head {
        let _ = writeln!(text, "- {line}");
    }
    text.push_str("\n| | engine | raw LMDB | share | aim | reached |\n|---|---:|---:|---:|---:|---|\n");
    for row in rows {
        let reached = match row.is_reached {
            None => "",
            Some(true) => "yes",
            Some(false) => "**no**",
        };
        let Row { what, engine, raw, share, aim, .. } = row;
        let _ = writeln!(text, "| {what} | {engine} | {raw} | {share} | {aim} | {reached} |");
    }
    text
}
