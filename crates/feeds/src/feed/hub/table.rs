//! An index from channels to the followers that hold them: finds the followers that a page of the hub may concern.
//!
//! Each page is looked up once. The table takes the keys of its rows (the channels that a document is in and those that
//! it left, and users and roles that have changed), adds the row's sequence to the list of each follower that holds one
//! of them, and wakes it. A follower without a list has no changes up to the hub's position: it advances to there
//! without reading the rows between, which the tail may have dropped.
//!
//! Channels are stored as numbers, hashes of their names under a key of this table: 16 bytes for each channel of a
//! follower. A collision only wakes a follower needlessly, since each follower judges rows by its own rights.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use flatbed_channels::{ALL, HeldChannels, PrincipalKind};
use flatbed_databases::held::HeldRights;
use flatbed_store::seq::Seq;
use tokio::sync::Notify;

use crate::feed::row::RowChannels;

/// Channels and roles of one follower in the table. A follower with more is woken by each change.
const KEYS_MAX: usize = 1_000;

/// Channels and roles of all followers of a database together.
const ENTRIES_MAX: usize = 4_000_000;

/// Sequences on a follower's list. When it is full the follower reads everything behind the first.
const LISTED_MAX: usize = 32;

/// The channels of a follower.
#[derive(Clone, Copy)]
pub struct Interest<'a> {
    /// The rights as read: an equal pointer means unchanged rights.
    pub(crate) found: &'a Arc<HeldRights>,
    /// The part of the rights that concerns the feed.
    pub(crate) held: &'a HeldChannels,
}

/// The table of a hub; see the module.
#[derive(Default)]
pub(super) struct FollowerTable {
    keyed: RandomState,
    /// Pairs of a key's number and the number of a follower that holds it.
    holders: BTreeSet<(u64, u64)>,
    members: HashMap<u64, Member>,
}

/// A follower that is woken only for its keys.
struct Member {
    keys: Box<[u64]>,
    wake: Arc<Notify>,
    /// `None` if there are no changes for it.
    list: Option<ChangeList>,
    /// True if it was woken and has not looked since.
    is_woken: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ChangeList {
    /// There are no changes up to this sequence.
    after: Seq,
    /// Sequences; `None` if they are over the limit.
    at: Option<Vec<Seq>>,
    last: Seq,
}

/// The rows that a follower must read behind its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FollowerRows {
    /// None, up to the hub's position.
    Nothing,
    /// The rows of these sequences, ascending, behind the first member.
    These(Seq, Vec<Seq>),
    /// All rows behind this sequence.
    All(Seq),
}

pub(super) struct PageKeys<'a> {
    table: &'a FollowerTable,
    /// The page covers the sequences behind this up to `drained`.
    after: Seq,
    drained: Seq,
    /// The sequence of the last added row: no row lies between it and the next.
    passed: Seq,
    /// The sequences at which each number occurs.
    by_key: BTreeMap<u64, ChangeList>,
    is_for_all: bool,
}

/// The followers that a page concerns: made of [`PageKeys`], so that the table can be borrowed mutably.
pub(super) struct Recipients {
    by_key: BTreeMap<u64, ChangeList>,
    for_all: Option<ChangeList>,
}

impl fmt::Debug for FollowerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowerTable")
            .field("members", &self.members.len())
            .field("entries", &self.holders.len())
            .finish()
    }
}

impl FollowerTable {
    pub(super) fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns the number of keys, counted once for each follower.
    pub(super) fn entries(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.members.contains_key(&number)
    }

    /// Adds a follower, or replaces what it holds; it has read everything up to a place. `drained`: the hub's position.
    /// Returns false if it holds too much and is not in the table any more.
    pub(super) fn join(
        &mut self,
        number: u64,
        interest: Interest<'_>,
        wake: &Arc<Notify>,
        at: Seq,
        drained: Seq,
    ) -> bool {
        self.leave(number);
        let Interest { found, held } = interest;
        // An unrestricted follower is woken for each change.
        let count = held.channels().take(KEYS_MAX + 1).count() + found.versions.len();
        if held.has_all() || count > KEYS_MAX || self.holders.len() + count > ENTRIES_MAX {
            return false;
        }
        let channels = held.channels().map(|(name, _)| self.channel(name));
        let principals = found.versions.iter().map(|(kind, name, _)| self.principal(*kind, name));
        let keys: Box<[u64]> = channels.chain(principals).collect();
        self.holders.extend(keys.iter().map(|key| (*key, number)));
        // Earlier changes were looked up with what it held before.
        let list = (at < drained).then_some(ChangeList { after: at, at: None, last: drained });
        self.members.insert(number, Member { keys, wake: Arc::clone(wake), list, is_woken: false });
        true
    }

    pub(super) fn leave(&mut self, number: u64) {
        let Some(member) = self.members.remove(&number) else { return };
        for key in &member.keys {
            self.holders.remove(&(*key, number));
        }
        if self.members.is_empty() {
            self.members.shrink_to_fit();
        }
    }

    /// Returns the rows that a follower must read behind its place; `None` if it is not in the table.
    pub(super) fn look(&mut self, number: u64, at: Seq) -> Option<FollowerRows> {
        let member = self.members.get_mut(&number)?;
        member.is_woken = false;
        let Some(list) = member.list.as_mut().filter(|list| list.last > at) else {
            member.list = None;
            return Some(FollowerRows::Nothing);
        };
        list.after = list.after.max(at);
        Some(match &mut list.at {
            None => FollowerRows::All(list.after),
            Some(listed) => {
                listed.retain(|seq| *seq > at);
                listed.sort_unstable();
                FollowerRows::These(list.after, listed.clone())
            }
        })
    }

    /// Returns the place that a follower counts as having reached, given its real place; `None` if there are no changes
    /// for it.
    pub(super) fn stands(&self, number: u64, at: u64) -> Option<u64> {
        match self.members.get(&number) {
            None => Some(at),
            Some(member) => {
                member.list.as_ref().filter(|list| list.last.version() > at).map(|list| list.after.version().max(at))
            }
        }
    }

    /// Adds a page to the lists of the followers that it concerns, and returns those to wake.
    pub(super) fn tell(&mut self, told: Recipients) -> Vec<Arc<Notify>> {
        let Recipients { by_key, for_all } = told;
        let mut woken = Vec::new();
        for (key, list) in by_key {
            for (_, number) in self.holders.range((key, 0)..=(key, u64::MAX)) {
                if let Some(member) = self.members.get_mut(number) {
                    member.add_changes(&list, &mut woken);
                }
            }
        }
        if let Some(list) = for_all {
            self.members.values_mut().for_each(|member| member.add_changes(&list, &mut woken));
        }
        woken
    }

    pub(super) fn end(&mut self) -> Vec<Arc<Notify>> {
        self.holders = BTreeSet::new();
        std::mem::take(&mut self.members).into_values().map(|member| member.wake).collect()
    }

    fn channel(&self, name: &str) -> u64 {
        self.keyed.hash_one((0_u8, name))
    }

    fn principal(&self, kind: PrincipalKind, name: &str) -> u64 {
        self.keyed.hash_one((1_u8, kind == PrincipalKind::Role, name))
    }
}

impl Member {
    fn add_changes(&mut self, news: &ChangeList, woken: &mut Vec<Arc<Notify>>) {
        match &mut self.list {
            None => self.list = Some(news.clone()),
            Some(list) => list.add(news),
        }
        if !self.is_woken {
            self.is_woken = true;
            woken.push(Arc::clone(&self.wake));
        }
    }
}

impl ChangeList {
    fn add(&mut self, news: &ChangeList) {
        (self.after, self.last) = (self.after.min(news.after), self.last.max(news.last));
        match (&mut self.at, &news.at) {
            (Some(listed), Some(more)) => {
                let more = more.iter().filter(|seq| !listed.contains(seq)).copied();
                listed.extend(more.collect::<Vec<_>>());
            }
            _ => self.at = None,
        }
        self.at.take_if(|listed| listed.len() > LISTED_MAX);
    }
}

impl<'a> PageKeys<'a> {
    /// Creates the news of a page behind a place, up to another.
    pub(super) fn new(table: &'a FollowerTable, after: Seq, drained: Seq) -> PageKeys<'a> {
        PageKeys { table, after, drained, passed: after, by_key: BTreeMap::new(), is_for_all: false }
    }

    pub(super) fn is_for_all(&mut self) {
        self.is_for_all = true;
    }

    pub(super) fn row(&mut self, at: Seq, channels: &RowChannels) {
        match (&channels.entered, &channels.left) {
            (Some(entered), Some(left)) => {
                for name in entered.iter().chain(left) {
                    self.channel(name, self.passed, at);
                }
            }
            _ => self.is_for_all = true,
        }
        self.passed = at;
    }

    /// Adds a departure from a channel that no row shows; `None` for any channel.
    pub(super) fn departure(&mut self, at: Seq, channel: Option<&str>) {
        match channel {
            Some(name) => self.channel(name, self.after, at),
            None => self.is_for_all = true,
        }
    }

    pub(super) fn principal(&mut self, at: Seq, kind: PrincipalKind, name: &str) {
        self.key(self.table.principal(kind, name), self.after, at);
    }

    fn channel(&mut self, name: &str, after: Seq, at: Seq) {
        // Unrestricted followers are not in the table.
        if name != ALL {
            self.key(self.table.channel(name), after, at);
        }
    }

    fn key(&mut self, key: u64, after: Seq, at: Seq) {
        let news = ChangeList { after, at: Some(vec![at]), last: at };
        self.by_key.entry(key).and_modify(|list| list.add(&news)).or_insert(news);
    }

    /// Returns the followers that it concerns.
    pub(super) fn told(self) -> Recipients {
        let Recipients { by_key, for_all } = match self.is_for_all {
            false => Recipients { by_key: self.by_key, for_all: None },
            // Users and roles may have changed behind the last row.
            true => {
                let last = self.by_key.values().map(|list| list.last).chain([self.drained]).max();
                let for_all = last.map(|last| ChangeList { after: self.after, at: None, last });
                Recipients { by_key: BTreeMap::new(), for_all }
            }
        };
        Recipients { by_key, for_all }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seq(at: u64) -> Seq {
        let mut stamp = [0; 16];
        stamp[4..12].copy_from_slice(&at.to_be_bytes());
        Seq::new(7, stamp)
    }

    fn found(names: &BTreeSet<String>) -> Arc<HeldRights> {
        let held = HeldChannels::since_ever(names.iter().map(String::as_str));
        let versions = vec![(PrincipalKind::User, Arc::from("A"), None)];
        Arc::new(HeldRights { held, versions, ..HeldRights::default() })
    }

    fn interest(found: &Arc<HeldRights>) -> Interest<'_> {
        Interest { found, held: &found.held }
    }

    #[derive(Debug, Clone)]
    enum Event {
        /// Rows, each with the channels that its document is in and left; a departure that no row shows; a user.
        Page {
            rows: Vec<[Option<Vec<String>>; 2]>,
            departure: Option<(u64, Option<String>)>,
            user: bool,
        },
        /// A follower comes, or holds something else, with some changes not taken.
        Join {
            number: u64,
            names: BTreeSet<String>,
            behind: u64,
        },
        Leave {
            number: u64,
        },
        Look {
            number: u64,
            takes: u64,
        },
    }

    fn event() -> impl Strategy<Value = Event> {
        let names = || prop::collection::vec("[A-F]", 0..3);
        let row = [prop::option::weighted(0.97, names()), prop::option::weighted(0.97, names())];
        let departure = prop::option::weighted(0.1, (0..4_u64, prop::option::weighted(0.8, "[A-F]")));
        let page = (prop::collection::vec(row, 0..20), departure, prop::bool::weighted(0.1));
        prop_oneof![
            4 => page.prop_map(|(rows, departure, user)| Event::Page { rows, departure, user }),
            1 => (0..6_u64, prop::collection::btree_set("[A-F]", 0..4), 0..9_u64)
                .prop_map(|(number, names, behind)| Event::Join { number, names, behind }),
            1 => (0..6_u64).prop_map(|number| Event::Leave { number }),
            4 => (0..6_u64, 0..40_u64).prop_map(|(number, takes)| Event::Look { number, takes }),
        ]
    }

    /// The changes at a place: names of channels, and whether they concern all followers.
    type NewsAt = (u64, BTreeSet<String>, bool);

    proptest! {
        /// A follower hears of all changes of its keys, and of no others while its list has room.
        #[test]
        fn who_holds_a_channel_hears_of_it(events in prop::collection::vec(event(), 0..60)) {
            let (mut table, mut at, mut told) = (FollowerTable::default(), 10, Vec::<NewsAt>::new());
            // The place of each follower, and its keys.
            let mut members: BTreeMap<u64, (u64, BTreeSet<String>)> = BTreeMap::new();
            for event in events {
                match event {
                    Event::Page { rows, departure, user } => {
                        let (before, drained) = (at, at + rows.len() as u64 + 1);
                        let is_open = rows.iter().flatten().any(Option::is_none);
                        let is_open = is_open || departure.as_ref().is_some_and(|(_, name)| name.is_none());
                        let mut news = PageKeys::new(&table, seq(before), seq(drained));
                        if let Some((back, name)) = &departure {
                            let of = drained.saturating_sub(*back).max(before + 1);
                            news.departure(seq(of), name.as_deref());
                            told.push((of, name.iter().cloned().collect(), false));
                        }
                        if user {
                            news.principal(seq(drained), PrincipalKind::User, "A");
                            news.principal(seq(drained), PrincipalKind::Role, "B");
                            told.push((drained, BTreeSet::new(), true));
                        }
                        for [entered, left] in rows {
                            at += 1;
                            let names = entered.iter().chain(&left).flatten().cloned().collect();
                            told.push((at, names, false));
                            news.row(seq(at), &RowChannels { entered, left, ..RowChannels::default() });
                        }
                        at = drained;
                        if is_open {
                            told.push((drained, BTreeSet::new(), true));
                        }
                        let woken = table.tell(news.told()).len();
                        prop_assert!(woken <= members.len());
                    }
                    Event::Join { number, names, behind } => {
                        let (stands, wake) = (at.saturating_sub(behind), Arc::new(Notify::new()));
                        prop_assert!(table.join(number, interest(&found(&names)), &wake, seq(stands), seq(at)));
                        members.insert(number, (stands, names));
                    }
                    Event::Leave { number } => {
                        table.leave(number);
                        members.remove(&number);
                    }
                    Event::Look { number, takes } => {
                        let look = table.look(number, seq(members.get(&number).map_or(0, |member| member.0)));
                        let Some((stands, names)) = members.get_mut(&number) else {
                            prop_assert_eq!(look, None);
                            continue;
                        };
                        let is_its = |of: &&NewsAt| of.0 > *stands && (of.2 || of.1.iter().any(|name| names.contains(name)));
                        let its: BTreeSet<Seq> = told.iter().filter(is_its).map(|of| seq(of.0)).collect();
                        let first = its.first().copied();
                        let after = match look {
                            Some(FollowerRows::Nothing) => {
                                prop_assert!(its.is_empty(), "{its:?}");
                                seq(at)
                            }
                            Some(FollowerRows::These(after, these)) => {
                                prop_assert_eq!(&these.iter().copied().collect::<BTreeSet<_>>(), &its);
                                prop_assert!(these.is_sorted() && these.len() <= LISTED_MAX);
                                after
                            }
                            Some(FollowerRows::All(after)) => after,
                            None => return Err(TestCaseError::fail("it does not stand there")),
                        };
                        prop_assert!(after >= seq(*stands) && first.is_none_or(|first| after < first));
                        prop_assert_eq!(table.stands(number, *stands).is_some(), after < seq(at) && look_is_open(&table, number));
                        // The rows that it takes next.
                        *stands = (*stands + takes).min(at);
                    }
                }
                // One entry for each key of a member, including its user.
                prop_assert_eq!(table.entries(), members.values().map(|member| member.1.len() + 1).sum::<usize>());
                prop_assert_eq!(table.members(), members.len());
            }
            members.keys().for_each(|number| table.leave(*number));
            prop_assert_eq!((table.members(), table.entries()), (0, 0));
        }
    }

    fn look_is_open(table: &FollowerTable, number: u64) -> bool {
        table.members.get(&number).is_some_and(|member| member.list.is_some())
    }

    #[test]
    fn who_has_not_looked_since_is_not_woken_again() {
        let mut table = FollowerTable::default();
        let wake = Arc::new(Notify::new());
        let holds = found(&["A".to_owned()].into());
        assert!(table.join(1, interest(&holds), &wake, seq(5), seq(5)));
        let page = |table: &mut FollowerTable, at: u64, name: &str| {
            let mut news = PageKeys::new(table, seq(at - 1), seq(at));
            news.row(seq(at), &RowChannels { entered: Some(vec![name.to_owned()]), ..RowChannels::default() });
            let told = news.told();
            table.tell(told).len()
        };
        assert_eq!([page(&mut table, 6, "B"), page(&mut table, 7, "A"), page(&mut table, 8, "A")], [0, 1, 0]);
        assert_eq!(table.stands(1, 5), Some(6));
        assert_eq!(table.look(1, seq(5)), Some(FollowerRows::These(seq(6), vec![seq(7), seq(8)])));
        assert_eq!(page(&mut table, 9, "A"), 1);
        assert_eq!(table.look(1, seq(9)), Some(FollowerRows::Nothing));
        assert_eq!((table.stands(1, 9), table.stands(2, 4)), (None, Some(4)));
        assert_eq!(table.end().len(), 1);
        assert_eq!((table.look(1, seq(9)), table.entries()), (None, 0));
    }

    #[test]
    fn who_sees_all_or_holds_much_is_woken_for_all() {
        let mut table = FollowerTable::default();
        let wake = Arc::new(Notify::new());
        let mut join = |names: BTreeSet<String>| table.join(1, interest(&found(&names)), &wake, seq(5), seq(5));
        assert!(join((1..KEYS_MAX).map(|name| name.to_string()).collect()));
        assert!(!join((0..KEYS_MAX).map(|name| name.to_string()).collect()));
        assert!(!join([ALL.to_owned()].into()));
        assert_eq!((table.members(), table.entries()), (0, 0));
    }
}
