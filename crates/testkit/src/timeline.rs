//! The possible values of something at each moment, as far as a client can know. The models of tortures use it.

#![allow(clippy::expect_used, reason = "a model that contradicts itself has failed")]

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::PATIENCE;

/// Longer than any judged event lasts.
pub const KEPT: Duration = Duration::from_secs(PATIENCE.as_secs() + 20);

/// A moment, or the time between two: `from` is not after `to`.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// The begin.
    pub from: Instant,
    /// The end.
    pub to: Instant,
}

impl Span {
    /// Returns a span that begins earlier by `earlier`.
    pub fn since(self, earlier: Duration) -> Span {
        Span { from: self.from.checked_sub(earlier).unwrap_or(self.from), ..self }
    }
}

#[derive(Debug)]
struct Version<T> {
    number: u64,
    value: T,
    began: Instant,
    acknowledged: Option<Instant>,
}

/// All values, the newest last. A change takes effect between its begin and its acknowledgement, or never.
#[derive(Debug)]
pub struct Timeline<T> {
    versions: VecDeque<Version<T>>,
    next: u64,
    hidden: Option<u64>,
}

impl<T> Timeline<T> {
    /// Creates a timeline whose value is certain from now on.
    pub fn new(value: T) -> Timeline<T> {
        let now = Instant::now();
        let first = Version { number: 0, value, began: now, acknowledged: Some(now) };
        Timeline { versions: VecDeque::from([first]), next: 1, hidden: None }
    }

    /// Begins a change, which may take effect at any time from now on. Returns its number.
    pub fn begin(&mut self, value: T) -> u64 {
        let (now, number) = (Instant::now(), self.next);
        self.next += 1;
        self.versions.push_back(Version { number, value, began: now, acknowledged: None });
        let is_old = |version: &Version<T>| version.acknowledged.is_some_and(|at| at + KEPT < now);
        while self.versions.len() > 1 && is_old(&self.versions[1]) {
            self.versions.pop_front();
        }
        number
    }

    /// Notes that a change took effect.
    pub fn acknowledge(&mut self, number: u64) {
        let version = self.versions.iter_mut().find(|version| version.number == number).expect("it began");
        version.acknowledged = Some(Instant::now());
    }

    /// Notes that a change never takes effect.
    pub fn withdraw(&mut self, number: u64) {
        self.versions.retain(|version| version.number != number);
    }

    /// Excludes a change from the possible values: the effect of a request must not justify its own acceptance.
    pub fn hide(&mut self, number: Option<u64>) {
        self.hidden = number;
    }

    /// Iterates over all values, the oldest first, with the begin of each.
    pub fn history_of(&self) -> impl Iterator<Item = (&T, Instant)> {
        self.versions.iter().map(|version| (&version.value, version.began))
    }

    /// Iterates over all values, each with the whole time in which it may have held.
    pub fn spans_of(&self) -> impl Iterator<Item = (&T, Span)> {
        self.versions.iter().enumerate().map(|(at, version)| {
            let over = self.versions.iter().skip(at + 1).filter_map(|later| later.acknowledged).min();
            (&version.value, Span { from: version.began, to: over.unwrap_or_else(Instant::now) })
        })
    }

    /// Returns the value set last, whether or not it took effect.
    pub fn newest(&self) -> &T {
        &self.versions.back().expect("the first").value
    }

    /// Describes the newest changes, for the analysis of a failure.
    pub fn history(&self) -> String
    where
        T: std::fmt::Debug,
    {
        let now = Instant::now();
        let shown = self.versions.iter().rev().take(5).map(|version| {
            let acknowledged = version.acknowledged.map(|at| now - at);
            format!("{:?} began {:?} ago, acknowledged {acknowledged:?} ago", version.value, now - version.began)
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    /// Returns all values possible at some moment of a span, the newest first.
    pub fn possible(&self, span: Span) -> Vec<&T> {
        let mut found = Vec::new();
        // The moment by which the value certainly was replaced.
        let mut over: Option<Instant> = None;
        for version in self.versions.iter().rev() {
            if over.is_some_and(|over| over < span.from) {
                break;
            }
            if self.hidden == Some(version.number) {
                continue;
            }
            if version.began <= span.to {
                found.push(&version.value);
            }
            over = [over, version.acknowledged].into_iter().flatten().min();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::until_blocking;

    #[test]
    fn a_change_is_made_between_its_beginning_and_its_acknowledgement() {
        let mut timeline = Timeline::new('a');
        let tick = || {
            let before = Instant::now();
            until_blocking("the clock goes on", || Instant::now() > before);
        };
        let moment = || {
            tick();
            let now = Instant::now();
            tick();
            Span { from: now, to: now }
        };
        let before = moment();
        let number = timeline.begin('b');
        let during = moment();
        timeline.acknowledge(number);
        let after = moment();
        let unknown = timeline.begin('c');
        let not_known = moment();
        let redone = timeline.begin('d');
        timeline.acknowledge(redone);
        let last = moment();
        assert_eq!(timeline.possible(before), [&'a']);
        assert_eq!(timeline.possible(during), [&'b', &'a']);
        assert_eq!(timeline.possible(after), [&'b']);
        assert_eq!(timeline.possible(not_known), [&'c', &'b']);
        // The result is unknown: it may have taken effect just before the next change.
        assert_eq!(timeline.possible(last), [&'d']);
        assert_eq!(timeline.possible(Span { from: during.from, to: last.to }), [&'d', &'c', &'b', &'a']);
        timeline.withdraw(unknown);
        assert_eq!(timeline.possible(not_known), [&'b']);
    }
}
