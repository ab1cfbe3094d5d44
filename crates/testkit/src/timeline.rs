//! What something was when, as far as a client can know. Models of tortures are made of it.

#![allow(clippy::expect_used, reason = "a model that contradicts itself has failed")]

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::PATIENCE;

/// Longer than anything lasts that is judged.
pub const KEPT: Duration = Duration::from_secs(PATIENCE.as_secs() + 20);

/// A moment, or what lies between two: `from` is not after `to`.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// The begin.
    pub from: Instant,
    /// The end.
    pub to: Instant,
}

impl Span {
    /// One that begins so much earlier.
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

/// All that something was, the newest last. A change is made between its beginning and its acknowledgement, or never.
#[derive(Debug)]
pub struct Timeline<T> {
    versions: VecDeque<Version<T>>,
    next: u64,
    hidden: Option<u64>,
}

impl<T> Timeline<T> {
    /// It is so from now on.
    pub fn new(value: T) -> Timeline<T> {
        let now = Instant::now();
        let first = Version { number: 0, value, began: now, acknowledged: Some(now) };
        Timeline { versions: VecDeque::from([first]), next: 1, hidden: None }
    }

    /// A change begins: from now on it may be made at any time. Gives its number.
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

    /// It was made.
    pub fn acknowledge(&mut self, number: u64) {
        let version = self.versions.iter_mut().find(|version| version.number == number).expect("it began");
        version.acknowledged = Some(Instant::now());
    }

    /// It was not made, and never will be.
    pub fn withdraw(&mut self, number: u64) {
        self.versions.retain(|version| version.number != number);
    }

    /// Whether a change is left out of what is possible: what it makes possible says nothing of whether it might be made.
    pub fn hide(&mut self, number: Option<u64>) {
        self.hidden = number;
    }

    /// All that it was, the oldest first, and when each began.
    pub fn history_of(&self) -> impl Iterator<Item = (&T, Instant)> {
        self.versions.iter().map(|version| (&version.value, version.began))
    }

    /// The same, each with all the time in which it may have been so.
    pub fn spans_of(&self) -> impl Iterator<Item = (&T, Span)> {
        self.versions.iter().enumerate().map(|(at, version)| {
            let over = self.versions.iter().skip(at + 1).filter_map(|later| later.acknowledged).min();
            (&version.value, Span { from: version.began, to: over.unwrap_or_else(Instant::now) })
        })
    }

    /// As it was set last, made or not.
    pub fn newest(&self) -> &T {
        &self.versions.back().expect("the first").value
    }

    /// The newest changes, for whoever has to find out what went wrong.
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

    /// All that it may have been at some moment of a span, the newest first.
    pub fn possible(&self, span: Span) -> Vec<&T> {
        let mut found = Vec::new();
        // When what is looked at was surely over.
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
        // What came of it is not known: it may have been made just before the next one.
        assert_eq!(timeline.possible(last), [&'d']);
        assert_eq!(timeline.possible(Span { from: during.from, to: last.to }), [&'d', &'c', &'b', &'a']);
        timeline.withdraw(unknown);
        assert_eq!(timeline.possible(not_known), [&'b']);
    }
}
