//! The channels that a user has.

use std::collections::{BTreeMap, BTreeSet};

use crate::feed::Lost;
use crate::name::{ALL, EVERYONE};
use crate::position::Stamp;
use crate::routing::Given;

/// Channels that a user has at most, and roles a tenth of them: those that were given first count, and no others.
pub const HELD_MAX: usize = 10_000;

/// Periods of one thing that are kept: older ones are forgotten, and what was had then as if it had not been.
pub const PERIODS_MAX: usize = 8;

/// Periods in which a channel was had, in whatever ways, that are kept of one that was lost: the newest.
const ENDED_MAX: usize = 4 * PERIODS_MAX;

/// For how long somebody had something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// With which change it was given.
    pub from: Stamp,
    /// With which it was taken; `None`: they have it.
    pub until: Option<Stamp>,
}

/// Something that a user or role was given itself, by an administrator or a document, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnRow {
    /// What.
    pub what: Given,
    /// When.
    pub periods: Periods,
}

/// When somebody had something, the oldest period first: each begins behind the end of the one before it.
///
/// Of several grants of one thing the period is that of all of them: from the first to the end of the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Periods(Vec<Period>);

/// What a role gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoleRows {
    /// When there was the role.
    pub exists: Periods,
    /// The channels that it was given.
    pub channels: Vec<(String, Periods)>,
}

impl Periods {
    /// Since this change, and still.
    pub fn since(from: Stamp) -> Periods {
        Periods(vec![Period { from, until: None }])
    }

    /// From what is stored: the newest [`PERIODS_MAX`] of what may be in any order, periods that meet as one.
    pub fn new(mut periods: Vec<Period>) -> Periods {
        periods.retain(|period| period.until.is_none_or(|until| until > period.from));
        periods.sort_by_key(|period| period.from);
        let mut merged: Vec<Period> = Vec::with_capacity(periods.len());
        for period in periods {
            match merged.last_mut() {
                Some(last) if last.until.is_none_or(|until| period.from <= until) => {
                    last.until = last.until.zip(period.until).map(|(a, b)| a.max(b));
                }
                _ => merged.push(period),
            }
        }
        Periods(merged)
    }

    /// One by one.
    pub fn all(&self) -> &[Period] {
        &self.0
    }

    /// Since when they have it, if they do.
    pub fn open(&self) -> Option<Stamp> {
        self.0.last().filter(|period| period.until.is_none()).map(|period| period.from)
    }

    /// When they lost it the last time, whether they have it again or not.
    pub fn lost(&self) -> Option<Stamp> {
        self.0.iter().rev().find_map(|period| period.until)
    }

    /// They are given it, if they have it not.
    #[must_use]
    pub fn given(mut self, at: Stamp) -> Periods {
        if self.open().is_none() {
            self.0.push(Period { from: at, until: None });
            self.forget();
        }
        self
    }

    /// With a period behind all others, which has ended.
    #[must_use]
    pub fn and_from(mut self, from: Stamp, until: Stamp) -> Periods {
        self.0.push(Period { from, until: Some(until) });
        self.forget();
        self
    }

    /// Those that have ended, [`ENDED_MAX`] of them at most.
    fn ended(&self) -> Periods {
        let ended = self.0.iter().filter(|period| period.until.is_some());
        let many = ended.clone().count().saturating_sub(ENDED_MAX);
        Periods(ended.skip(many).copied().collect())
    }

    /// Whether it was had at any time from one change until another; `None`: until now. What is given with a change is had with it,
    /// and what is taken with a change is not.
    pub fn overlap(&self, from: Stamp, until: Option<Stamp>) -> bool {
        let is_before = |from: Stamp, until: Option<Stamp>| until.is_none_or(|until| from < until);
        self.0.iter().any(|period| is_before(period.from, until) && is_before(from, period.until))
    }

    /// It is taken from them, if they have it.
    #[must_use]
    pub fn taken(mut self, at: Stamp) -> Periods {
        if let Some(last @ Period { until: None, .. }) = self.0.last_mut() {
            last.until = Some(at);
        }
        self
    }

    fn forget(&mut self) {
        let many = self.0.len().saturating_sub(PERIODS_MAX);
        self.0.drain(..many);
    }

    /// When both were had.
    fn and(&self, other: &Periods) -> Periods {
        let mut both = Vec::new();
        for one in &self.0 {
            for two in &other.0 {
                let until = one.until.into_iter().chain(two.until).min();
                both.push(Period { from: one.from.max(two.from), until });
            }
        }
        Periods::new(both)
    }

    /// When either was had.
    fn or(self, other: Periods) -> Periods {
        Periods::new(self.0.into_iter().chain(other.0).collect())
    }
}

/// The channels that somebody has, each with the sequence since which they do, and their roles.
///
/// A channel may be had in several ways, given by an administrator, by documents, through roles; through a role it is had while there
/// is the role, the user is in it and it has the channel. What counts is since when it is had without a break, in whatever ways: so
/// no sequence ever becomes another one but by a loss, and whoever has read the feed up to a sequence has seen what their channels
/// had then. (Sync Gateway takes the earliest grant that is left, and replays the channel when the first of two goes. What was
/// deleted between the two is then never told.)
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    channels: BTreeMap<String, Stamp>,
    own: BTreeMap<String, Stamp>,
    roles: BTreeMap<String, Stamp>,
    /// By name, each once.
    lost: Vec<Lost>,
    cut: usize,
}

impl Held {
    /// Nothing, not even what is everybody's: of a user who is disabled.
    pub fn nothing() -> Held {
        Held::default()
    }

    /// What everybody has.
    pub fn everybody() -> Held {
        Held::since_ever([EVERYONE])
    }

    /// These channels, since ever: of a feed that an administrator asks for by channels.
    pub fn since_ever<'a>(channels: impl IntoIterator<Item = &'a str>) -> Held {
        let channels: BTreeMap<_, _> = channels.into_iter().map(|name| (name.to_owned(), Stamp::ZERO)).collect();
        Held { own: channels.clone(), channels, ..Held::default() }
    }

    /// What a user has by these rows, each thing once, and by those of roles. `role`: what a role gives; `None`: there is none of the
    /// name, nor was there.
    pub fn of(rows: impl IntoIterator<Item = OwnRow>, role: impl Fn(&str) -> Option<RoleRows>) -> Held {
        let mut own = BTreeMap::from([(EVERYONE.to_owned(), Periods::since(Stamp::ZERO))]);
        let mut roles = BTreeMap::new();
        for OwnRow { what, periods } in rows {
            match what {
                Given::Channel(name) => also(&mut own, name, periods),
                Given::Role(name) => also(&mut roles, name, periods),
            }
        }
        let mut cut = keep_first(&mut own, HELD_MAX) + keep_first(&mut roles, HELD_MAX / 10);
        let mut channels = own.clone();
        for (name, member) in &roles {
            let Some(RoleRows { exists, channels: of_role }) = role(name) else { continue };
            let member = member.and(&exists);
            for (channel, periods) in of_role {
                also(&mut channels, channel, member.and(&periods));
            }
        }
        cut += keep_first(&mut channels, HELD_MAX);
        let open = |all: BTreeMap<String, Periods>| {
            all.into_iter().filter_map(|(name, periods)| Some((name, periods.open()?))).collect()
        };
        let lost = channels.iter().filter_map(|(name, periods)| {
            Some(Lost { channel: name.clone(), had: periods.ended(), at: periods.lost()? })
        });
        let lost = lost.collect();
        Held { channels: open(channels), own: open(own), roles: open(roles), lost, cut }
    }

    /// All channels by name, those of roles among them.
    pub fn channels(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.channels.iter().map(|(name, since)| (&**name, *since))
    }

    /// Those that are the user's own: what a session shows.
    pub fn own(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.own.iter().map(|(name, since)| (&**name, *since))
    }

    /// Roles by name, whether they exist or not.
    pub fn roles(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.roles.iter().map(|(name, since)| (&**name, *since))
    }

    /// Channels that were lost, as far as that is remembered, by name and each once; some of them may be had again.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// The same of one channel.
    pub(crate) fn lost_channel(&self, channel: &str) -> Option<&Lost> {
        // They are in the order of their names.
        self.lost.binary_search_by(|lost| (*lost.channel).cmp(channel)).ok().and_then(|at| self.lost.get(at))
    }

    /// Since when a channel of this name is held; not that all documents are seen.
    pub fn since(&self, channel: &str) -> Option<Stamp> {
        self.channels.get(channel).copied()
    }

    /// Whether all documents are seen.
    pub fn has_all(&self) -> bool {
        self.channels.contains_key(ALL)
    }

    /// How many channels and roles are more than count.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// What is left of these for who asks for some channels by name: `*` means all that they have.
    #[must_use]
    pub fn only<'a>(&self, channels: impl IntoIterator<Item = &'a str>) -> Held {
        let (mut found, mut lost) = (BTreeMap::new(), Vec::new());
        let asked: BTreeSet<&str> = channels.into_iter().collect();
        if asked.contains(ALL) {
            return self.clone();
        }
        let of_all = self.periods(ALL);
        for name in asked {
            // Who has all has each: so it is had without a break where either begins before the other has ended.
            let periods = self.periods(name).or(of_all.clone());
            found.extend(periods.open().map(|since| (name.to_owned(), since)));
            let was_lost = |at| Lost { channel: name.to_owned(), had: periods.ended(), at };
            lost.extend(periods.lost().map(was_lost));
        }
        Held { channels: found.clone(), own: found, lost, ..self.clone() }
    }

    /// When a channel of this name was had, and since when it is, as far as that is remembered.
    fn periods(&self, channel: &str) -> Periods {
        let ended = self.lost_channel(channel).map(|lost| lost.had.clone()).unwrap_or_default();
        ended.or(self.since(channel).map(Periods::since).unwrap_or_default())
    }
}

fn also(among: &mut BTreeMap<String, Periods>, name: String, periods: Periods) {
    let known = among.entry(name).or_default();
    *known = std::mem::take(known).or(periods);
}

/// Takes away what is more than counts, what was given last first, and says how much that was.
fn keep_first(among: &mut BTreeMap<String, Periods>, max: usize) -> usize {
    let cut = among.len().saturating_sub(max);
    if cut > 0 {
        let mut all: Vec<_> = std::mem::take(among).into_iter().collect();
        // What is no more counts less than all that is.
        let first = |periods: &Periods| periods.open().map_or((1, Stamp::ZERO), |from| (0, from));
        all.sort_by(|(a, a_periods), (b, b_periods)| (first(a_periods), a).cmp(&(first(b_periods), b)));
        all.truncate(max);
        among.extend(all);
    }
    cut
}

#[cfg(test)]
mod tests;
