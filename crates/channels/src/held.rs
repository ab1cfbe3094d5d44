//! The channels of a user.

use std::collections::{BTreeMap, BTreeSet};

use crate::feed::LostChannel;
use crate::name::{ALL, EVERYONE};
use crate::position::Stamp;
use crate::routing::GrantedItem;

/// The most channels of a user; a tenth of it bounds the roles. Beyond the limit the earliest grants count.
pub const HELD_MAX: usize = 10_000;

/// The most periods of one grant that are kept. Older ones are forgotten, as if they had not existed.
pub const PERIODS_MAX: usize = 8;

/// The most ended periods, over all grants, that are kept of a lost channel: the newest.
const ENDED_MAX: usize = 4 * PERIODS_MAX;

/// A period in which a grant was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// The change that granted it.
    pub from: Stamp,
    /// The change that revoked it; `None`: it is held.
    pub until: Option<Stamp>,
}

/// A direct grant to a user or role, by an administrator or a document, with its periods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectGrant {
    /// The granted channel or role.
    pub what: GrantedItem,
    /// Its periods.
    pub periods: Periods,
}

/// The periods of a grant, the oldest first. Each begins after the end of the one before.
///
/// Overlapping grants of one thing make one period, from the first grant to the last revocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Periods(Vec<Period>);

/// The grants of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoleRows {
    /// The periods in which the role existed.
    pub exists: Periods,
    /// The channels of the role.
    pub channels: Vec<(String, Periods)>,
}

impl Periods {
    /// One open period since this change.
    pub fn since(from: Stamp) -> Periods {
        Periods(vec![Period { from, until: None }])
    }

    /// Creates periods from any order: drops empty ones and merges those that overlap or meet.
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

    /// The periods, the oldest first.
    pub fn all(&self) -> &[Period] {
        &self.0
    }

    /// The beginning of the open period, if any.
    pub fn open(&self) -> Option<Stamp> {
        self.0.last().filter(|period| period.until.is_none()).map(|period| period.from)
    }

    /// The last revocation, even if there is an open period now.
    pub fn lost(&self) -> Option<Stamp> {
        self.0.iter().rev().find_map(|period| period.until)
    }

    /// Opens a period at `at`, unless one is open.
    #[must_use]
    pub fn given(mut self, at: Stamp) -> Periods {
        if self.open().is_none() {
            self.0.push(Period { from: at, until: None });
            self.forget();
        }
        self
    }

    /// Adds an ended period after all others.
    #[must_use]
    pub fn and_from(mut self, from: Stamp, until: Stamp) -> Periods {
        self.0.push(Period { from, until: Some(until) });
        self.forget();
        self
    }

    /// The ended periods, at most [`ENDED_MAX`] of them.
    fn ended(&self) -> Periods {
        let ended = self.0.iter().filter(|period| period.until.is_some());
        let many = ended.clone().count().saturating_sub(ENDED_MAX);
        Periods(ended.skip(many).copied().collect())
    }

    /// Returns whether any period overlaps the range from one change up to another (`None`: up to now). A period
    /// includes the change that grants and excludes the change that revokes.
    pub fn has_overlap(&self, from: Stamp, until: Option<Stamp>) -> bool {
        let is_before = |from: Stamp, until: Option<Stamp>| until.is_none_or(|until| from < until);
        self.0.iter().any(|period| is_before(period.from, until) && is_before(from, period.until))
    }

    /// Ends the open period, if any, at `at`.
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

    fn or(self, other: Periods) -> Periods {
        Periods::new(self.0.into_iter().chain(other.0).collect())
    }
}

/// The channels of a user, each with the sequence since which it is held, and the roles.
///
/// A channel may be held in several ways: granted by an administrator, by documents, or through roles. It is held
/// through a role while the role exists, has the channel, and contains the user. The relevant sequence is the one
/// since which the channel is held without a break in any way. So that sequence changes only by a loss, and a client
/// that has read the feed up to a sequence has seen the content of its channels at that time. (Sync Gateway takes the
/// earliest remaining grant and replays the channel when the first of two is revoked. It never reports documents that
/// were deleted between the two grants.)
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldChannels {
    channels: BTreeMap<String, Stamp>,
    own: BTreeMap<String, Stamp>,
    roles: BTreeMap<String, Stamp>,
    /// Sorted by name, without duplicates.
    lost: Vec<LostChannel>,
    cut: usize,
}

impl HeldChannels {
    /// No channels, not even the public one: for a disabled user.
    pub fn nothing() -> HeldChannels {
        HeldChannels::default()
    }

    /// The public channel only.
    pub fn everybody() -> HeldChannels {
        HeldChannels::since_ever([EVERYONE])
    }

    /// These channels since the beginning: for an administrator's feed of channels.
    pub fn since_ever<'a>(channels: impl IntoIterator<Item = &'a str>) -> HeldChannels {
        let channels: BTreeMap<_, _> = channels.into_iter().map(|name| (name.to_owned(), Stamp::ZERO)).collect();
        HeldChannels { own: channels.clone(), channels, ..HeldChannels::default() }
    }

    /// Computes the channels of a user from direct grants, without duplicates, and from roles. `role` returns the
    /// grants of a role; `None`: the role does not exist and never did.
    pub fn of(rows: impl IntoIterator<Item = DirectGrant>, role: impl Fn(&str) -> Option<RoleRows>) -> HeldChannels {
        let mut own = BTreeMap::from([(EVERYONE.to_owned(), Periods::since(Stamp::ZERO))]);
        let mut roles = BTreeMap::new();
        for DirectGrant { what, periods } in rows {
            match what {
                GrantedItem::Channel(name) => also(&mut own, name, periods),
                GrantedItem::Role(name) => also(&mut roles, name, periods),
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
            Some(LostChannel { channel: name.clone(), had: periods.ended(), at: periods.lost()? })
        });
        let lost = lost.collect();
        HeldChannels { channels: open(channels), own: open(own), roles: open(roles), lost, cut }
    }

    /// All channels by name, with those of roles.
    pub fn channels(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.channels.iter().map(|(name, since)| (&**name, *since))
    }

    /// The directly granted channels, which a session shows.
    pub fn own(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.own.iter().map(|(name, since)| (&**name, *since))
    }

    /// The roles by name, existing or not.
    pub fn roles(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.roles.iter().map(|(name, since)| (&**name, *since))
    }

    /// The remembered lost channels by name, without duplicates. Some of them may be held again.
    pub fn lost(&self) -> &[LostChannel] {
        &self.lost
    }

    pub(crate) fn lost_channel(&self, channel: &str) -> Option<&LostChannel> {
        // They are sorted by name.
        self.lost.binary_search_by(|lost| (*lost.channel).cmp(channel)).ok().and_then(|at| self.lost.get(at))
    }

    /// The sequence since which a channel of this name is held. Ignores `*`.
    pub fn since(&self, channel: &str) -> Option<Stamp> {
        self.channels.get(channel).copied()
    }

    /// True if all documents are visible.
    pub fn has_all(&self) -> bool {
        self.channels.contains_key(ALL)
    }

    /// The number of channels and roles beyond the limits.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// Restricts the channels to these names, for a feed of channels; `*` means all that are held.
    #[must_use]
    pub fn only<'a>(&self, channels: impl IntoIterator<Item = &'a str>) -> HeldChannels {
        let (mut found, mut lost) = (BTreeMap::new(), Vec::new());
        let asked: BTreeSet<&str> = channels.into_iter().collect();
        if asked.contains(ALL) {
            return self.clone();
        }
        let of_all = self.periods(ALL);
        for name in asked {
            // `*` includes each channel, so a channel is held without a break while either period continues.
            let periods = self.periods(name).or(of_all.clone());
            found.extend(periods.open().map(|since| (name.to_owned(), since)));
            let was_lost = |at| LostChannel { channel: name.to_owned(), had: periods.ended(), at };
            lost.extend(periods.lost().map(was_lost));
        }
        HeldChannels { channels: found.clone(), own: found, lost, ..self.clone() }
    }

    fn periods(&self, channel: &str) -> Periods {
        let ended = self.lost_channel(channel).map(|lost| lost.had.clone()).unwrap_or_default();
        ended.or(self.since(channel).map(Periods::since).unwrap_or_default())
    }
}

fn also(among: &mut BTreeMap<String, Periods>, name: String, periods: Periods) {
    let known = among.entry(name).or_default();
    *known = std::mem::take(known).or(periods);
}

/// Removes entries beyond the limit, the latest grants first, and returns their number.
fn keep_first(among: &mut BTreeMap<String, Periods>, max: usize) -> usize {
    let cut = among.len().saturating_sub(max);
    if cut > 0 {
        let mut all: Vec<_> = std::mem::take(among).into_iter().collect();
        // Ended grants are removed before open ones.
        let first = |periods: &Periods| periods.open().map_or((1, Stamp::ZERO), |from| (0, from));
        all.sort_by(|(a, a_periods), (b, b_periods)| (first(a_periods), a).cmp(&(first(b_periods), b)));
        all.truncate(max);
        among.extend(all);
    }
    cut
}

#[cfg(test)]
mod tests;
