//! Connections by address, and those on which nobody has asked for anything yet.
//!
//! Whoever opens connections and does not go on keeps others out where there is a bound on all connections, and costs memory
//! where nothing bounds them. So the unfinished are bounded on their own, and nobody waits for them: for a new one the oldest is
//! closed of the address that has the most, where that is more than a fair few, else the oldest of all. Who goes on within a
//! round trip or two is not among the oldest unless thousands come in that time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_network::{Rate, Rates};
use tokio::time::Instant;

use crate::limits::Limits;
use crate::metrics::{Bound, Traffic};
use crate::outlet::Connection;
use crate::turns::Who;

/// Between two looks for who has taken too long.
const LOOK: Duration = Duration::from_secs(1);

/// Of those that are idle where there is no room for further connections, how many are closed at once: to find them costs a
/// look at all.
const AT_ONCE: usize = 64;

/// The same of one address, where only that one has no room, and of those whose requests' bodies come too slowly.
const AT_ONCE_OF_ONE: usize = 16;

/// After a look at all that has found nothing.
const IN_VAIN: Duration = Duration::from_millis(50);

/// Where few are unfinished, they have so long to ask for something before they make room for others.
const PATIENCE: Duration = Duration::from_secs(2);

/// Unfinished connections that an address may have without being the one whose are closed: browsers, replicators and proxies
/// open several at once.
const FAIR: usize = 16;

/// An address of which more unfinished connections than that were closed, in a second and at once, gets no further ones
/// for a while: to take one and throw it out costs more than to refuse it.
const LEFT_MAX: Rate = Rate { per_second: 20, burst: 500 };

/// So many addresses are known for it at once.
const LEFT_BY: usize = 16_384;

/// What a /48 of IPv6 may have, as a multiple of what an address may: whoever has one has 65,536 addresses.
const SITE: usize = 4;

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct Doorway {
    state: Mutex<State>,
    /// Whatever limits say, since all connections have a bound too.
    unfinished_max: usize,
    traffic: Arc<Traffic>,
}

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    Address(Who),
    /// A /48 of IPv6.
    Site(u64),
}

impl Group {
    pub(crate) fn of(who: Who) -> impl Iterator<Item = Group> {
        [Some(Group::Address(who)), who.and_then(|who| who.site()).map(Group::Site)].into_iter().flatten()
    }

    /// As many as an address would have to have.
    pub(crate) fn weight(self, count: usize) -> usize {
        match self {
            Group::Address(_) => count,
            Group::Site(_) => count / SITE,
        }
    }
}

#[derive(Debug)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
    of: HashMap<Group, Of>,
    /// The same as in `of`, by weight of the unfinished; whoever has none is not here.
    most: BTreeSet<(usize, Group)>,
    /// By when they became so: which, and until when they may be.
    unfinished: BTreeMap<u64, (u64, Instant)>,
    /// When there was nothing to be closed.
    in_vain: Option<Instant>,
    /// Of each address, the unfinished ones that were closed.
    left: Rates,
    began: Instant,
}

impl Default for State {
    fn default() -> State {
        State {
            next: 0,
            open: HashMap::new(),
            of: HashMap::new(),
            most: BTreeSet::new(),
            unfinished: BTreeMap::new(),
            in_vain: None,
            left: Rates::new(LEFT_BY),
            began: Instant::now(),
        }
    }
}

/// A connection.
#[derive(Debug)]
struct Open {
    who: Who,
    connection: Arc<Connection>,
    /// Where it is among the unfinished.
    unfinished: Option<u64>,
    /// It is closed, and about to be gone.
    is_cut: bool,
}

/// Those of one address, or of many that are one's.
#[derive(Debug, Default)]
struct Of {
    open: BTreeSet<u64>,
    unfinished: BTreeSet<u64>,
}

impl State {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn change(&mut self, who: Who, change: impl Fn(&mut Of) -> bool) {
        for group in Group::of(who) {
            let of = self.of.entry(group).or_default();
            let before = group.weight(of.unfinished.len());
            change(of);
            let now = group.weight(of.unfinished.len());
            if of.open.is_empty() && of.unfinished.is_empty() {
                self.of.remove(&group);
            }
            if now != before {
                self.most.remove(&(before, group));
                if now > 0 {
                    self.most.insert((now, group));
                }
            }
        }
    }

    /// Puts one among the unfinished, as the youngest.
    fn begin_unfinished(&mut self, number: u64, until: Instant) {
        let turn = self.next();
        let Some(open) = self.open.get_mut(&number).filter(|open| open.unfinished.is_none() && !open.is_cut) else {
            return;
        };
        open.unfinished = Some(turn);
        let who = open.who;
        self.unfinished.insert(turn, (number, until));
        self.change(who, |of| of.unfinished.insert(turn));
    }

    /// Takes one from among the unfinished.
    fn end_unfinished(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let Some(turn) = open.unfinished.take() else { return };
        let who = open.who;
        self.unfinished.remove(&turn);
        self.change(who, |of| of.unfinished.remove(&turn));
    }

    /// Closes one on which nothing was asked for.
    fn cut_unfinished_one(&mut self, number: u64) {
        if let Some(open) = self.open.get(&number) {
            // Who has no more of these is refused beforehand.
            let _ = self.left.take(open.who, 1, LEFT_MAX, self.began.elapsed());
        }
        self.cut(number);
    }

    fn cut(&mut self, number: u64) {
        self.end_unfinished(number);
        let Some(open) = self.open.get_mut(&number) else { return };
        open.connection.end();
        open.is_cut = true;
        let who = open.who;
        self.change(who, |of| of.open.remove(&number));
    }

    /// Closes the oldest unfinished one of a group; whether there was one.
    fn cut_oldest_of(&mut self, group: Group) -> bool {
        let turn = self.of.get(&group).and_then(|of| of.unfinished.first());
        let oldest = turn.and_then(|turn| self.unfinished.get(turn)).map(|(number, _)| *number);
        oldest.map(|oldest| self.cut_unfinished_one(oldest)).is_some()
    }

    /// Closes the unfinished one whose place another one needs most; whether there was one.
    fn cut_unfinished(&mut self, unfinished_max: usize) -> bool {
        let fair = (unfinished_max / 64).clamp(2, FAIR);
        let most = self.most.last().filter(|(weight, _)| *weight > fair).map(|(_, group)| *group);
        if most.is_some_and(|most| self.cut_oldest_of(most)) {
            return true;
        }
        let oldest = self.unfinished.first_key_value().map(|(_, (number, _))| *number);
        oldest.map(|oldest| self.cut_unfinished_one(oldest)).is_some()
    }

    /// Closes those that have been idle longest of a group; how many.
    fn cut_idle_of(&mut self, group: Group) -> u64 {
        let Some(of) = self.of.get(&group) else { return 0 };
        let idle = |number: &u64| Some((self.open.get(number)?.connection.idle_since()?, *number));
        let mut idle: Vec<_> = of.open.iter().filter_map(idle).collect();
        idle.sort_unstable();
        self.cut_first(idle, AT_ONCE_OF_ONE)
    }

    fn cut_first(&mut self, mut found: Vec<(u64, u64)>, count: usize) -> u64 {
        found.truncate(count);
        for (_, number) in &found {
            self.cut(*number);
        }
        found.len() as u64
    }

    /// Those of the address that has most of them, by what is found of each, the least first.
    fn of_most(&self, find: impl Fn(&Connection) -> Option<u64>) -> Vec<(u64, u64)> {
        let mut of: HashMap<Who, Vec<(u64, u64)>> = HashMap::new();
        for (number, open) in self.open.iter().filter(|(_, open)| !open.is_cut) {
            if let Some(found) = find(&open.connection) {
                of.entry(open.who).or_default().push((found, *number));
            }
        }
        let mut most = of.into_values().max_by_key(Vec::len).unwrap_or_default();
        most.sort_unstable();
        most
    }

    /// Which bound keeps an address from having one more.
    fn full(&self, who: Who, limits: &Limits) -> Option<Group> {
        self.beyond(who, limits.connections_by_address, |of| of.open.len())
    }

    fn beyond(&self, who: Who, most: usize, count: impl Fn(&Of) -> usize) -> Option<Group> {
        let is_beyond =
            |group: &Group| most > 0 && self.of.get(group).is_some_and(|of| group.weight(count(of)) >= most);
        Group::of(who).find(is_beyond)
    }
}

/// A connection that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    of: Arc<Doorway>,
    number: u64,
    is_unfinished: AtomicBool,
}

impl Doorway {
    /// `connections_max`: of all connections, of which those that are unfinished are a part.
    pub(crate) fn new(connections_max: usize, traffic: Arc<Traffic>) -> Arc<Doorway> {
        let unfinished_max = (connections_max / 4 * 3).max(16);
        Arc::new(Doorway { state: Mutex::default(), unfinished_max, traffic })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfinished_max(&self, limits: &Limits) -> usize {
        limits.unfinished.clamp(1, self.unfinished_max)
    }

    fn refused(&self, bound: Bound, count: u64) {
        self.traffic.refused.of(bound).add(count);
    }

    /// Whether so many unfinished connections of an address were closed of late that no further one is to be taken.
    pub(crate) fn leaves_many(&self, who: Who) -> bool {
        let state = self.state();
        state.left.is_spent(who, LEFT_MAX, state.began.elapsed())
    }

    /// A connection comes; `None`: its address has too many. `is_bounded`: bounds by address hold for it.
    pub(crate) fn enter(
        self: &Arc<Self>,
        who: Who,
        is_bounded: bool,
        limits: &Limits,
        connection: &Arc<Connection>,
    ) -> Option<Entered> {
        let mut state = self.state();
        if is_bounded && let Some(full) = state.full(who, limits) {
            self.refused(Bound::ConnectionsByAddress, 1);
            if !state.cut_oldest_of(full) {
                let idle = state.cut_idle_of(full);
                self.refused(Bound::Idle, idle);
                if idle == 0 {
                    return None;
                }
            }
        }
        if is_bounded
            && let Some(full) = state.beyond(who, limits.unfinished_by_address.max(1), |of| of.unfinished.len())
            && state.cut_oldest_of(full)
        {
            self.refused(Bound::Unfinished, 1);
        }
        self.keep_unfinished(&mut state, limits);
        let number = state.next();
        state.open.insert(number, Open { who, connection: connection.clone(), unfinished: None, is_cut: false });
        state.change(who, |of| of.open.insert(number));
        state.begin_unfinished(number, Instant::now() + limits.handshake_max + limits.head_max);
        Some(Entered { of: self.clone(), number, is_unfinished: AtomicBool::new(true) })
    }

    /// Closes some so that one more may be unfinished.
    fn keep_unfinished(&self, state: &mut State, limits: &Limits) {
        let most = self.unfinished_max(limits);
        while state.unfinished.len() >= most && state.cut_unfinished(most) {
            self.refused(Bound::Unfinished, 1);
        }
    }

    /// Closes connections so that there is room for `count` more, or for many at once: those on which nothing is asked for
    /// any more, of the address that has most of these; unfinished ones, these first where there are many; and where there
    /// are none, those whose requests' bodies come slowest, likewise.
    pub(crate) fn make_room(&self, count: usize, limits: &Limits) {
        let mut state = self.state();
        let most = self.unfinished_max(limits);
        let cut_unfinished = |state: &mut State| {
            let cut = (0..count).take_while(|_| state.cut_unfinished(most)).count();
            self.refused(Bound::Unfinished, cut as u64);
            cut > 0
        };
        if state.unfinished.len() >= (most / 4).max(1) && cut_unfinished(&mut state) {
            return;
        }
        let may_look = state.in_vain.is_none_or(|looked| looked.elapsed() >= IN_VAIN);
        if may_look {
            let idle = state.of_most(Connection::idle_since);
            let cut = state.cut_first(idle, AT_ONCE);
            self.refused(Bound::Idle, cut);
            if cut > 0 {
                return;
            }
        }
        // Few are unfinished: who has just come is let go on.
        let patience = Instant::now() + limits.head_max.saturating_sub(PATIENCE);
        let is_old = state.unfinished.first_key_value().is_some_and(|(_, (_, until))| *until <= patience);
        if (is_old && cut_unfinished(&mut state)) || !may_look {
            return;
        }
        let slow = state.of_most(Connection::slow_body);
        let cut = state.cut_first(slow, AT_ONCE_OF_ONE);
        self.refused(Bound::SlowBody, cut);
        state.in_vain = (cut == 0).then(Instant::now);
    }

    /// Closes what takes too long to ask for something, until it is dropped.
    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = Instant::now();
            let mut state = self.state();
            let late = state.unfinished.values().filter(|(_, until)| *until <= now);
            let late: Vec<u64> = late.map(|(number, _)| *number).collect();
            for number in late {
                state.cut_unfinished_one(number);
                self.refused(Bound::Head, 1);
            }
        }
    }
}

impl Entered {
    /// It turns out to come from elsewhere; whether that address may have one more.
    #[must_use]
    pub(crate) fn comes_from(&self, who: Who, is_bounded: bool, limits: &Limits) -> bool {
        let mut state = self.of.state();
        if is_bounded && state.left.is_spent(who, LEFT_MAX, state.began.elapsed()) {
            self.of.refused(Bound::LeftUnfinished, 1);
            return false;
        }
        if is_bounded && let Some(full) = state.full(who, limits) {
            self.of.refused(Bound::ConnectionsByAddress, 1);
            let idle = state.cut_idle_of(full);
            self.of.refused(Bound::Idle, idle);
            if idle == 0 {
                return false;
            }
        }
        let Some(open) = state.open.get_mut(&self.number).filter(|open| !open.is_cut) else { return false };
        let (before, turn, number) = (std::mem::replace(&mut open.who, who), open.unfinished, self.number);
        state.change(before, |of| of.open.remove(&number) | turn.is_some_and(|turn| of.unfinished.remove(&turn)));
        state.change(who, |of| of.open.insert(number) | turn.is_some_and(|turn| of.unfinished.insert(turn)));
        true
    }

    /// What comes before HTTP is done: it may take so long until it asks for something.
    pub(crate) fn may_ask_within(&self, time: Duration) {
        let mut state = self.of.state();
        let turn = state.open.get(&self.number).and_then(|open| open.unfinished);
        if let Some((_, until)) = turn.and_then(|turn| state.unfinished.get_mut(&turn)) {
            *until = Instant::now() + time;
        }
    }

    /// It asks for something.
    pub(crate) fn asks(&self) {
        if self.is_unfinished.load(Ordering::Relaxed) && self.is_unfinished.swap(false, Ordering::Relaxed) {
            self.of.state().end_unfinished(self.number);
        }
    }

    /// Some of a further request's head has come, and not all of it: it is unfinished again, until it asks.
    pub(crate) fn begins_to_ask(&self, limits: &Limits) {
        if !self.is_unfinished.swap(true, Ordering::Relaxed) {
            let mut state = self.of.state();
            self.of.keep_unfinished(&mut state, limits);
            state.begin_unfinished(self.number, Instant::now() + limits.head_max);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.end_unfinished(self.number);
        let Some(Open { who, .. }) = state.open.remove(&self.number) else { return };
        state.change(who, |of| of.open.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use flatbed_network::Network;

    use super::*;
    use crate::outlet::Outlets;
    use crate::reply::ROOM_MAX;

    struct World {
        doorway: Arc<Doorway>,
        outlets: Arc<Outlets>,
        limits: Limits,
    }

    fn world(limits: Limits) -> World {
        World {
            doorway: Doorway::new(20_000, Arc::default()),
            outlets: Outlets::new(1 << 20, 1 << 10, ROOM_MAX, Arc::default()),
            limits,
        }
    }

    fn who(n: u8) -> Who {
        Some(Network::from(std::net::IpAddr::from([192, 0, 2, n])))
    }

    impl World {
        fn enter(&self, n: u8) -> Option<(Entered, Arc<Connection>)> {
            let connection = self.outlets.connect(false);
            Some((self.doorway.enter(who(n), true, &self.limits, &connection)?, connection))
        }

        fn is_empty(&self) -> bool {
            let state = self.doorway.state();
            state.open.is_empty() && state.of.is_empty() && state.most.is_empty() && state.unfinished.is_empty()
        }
    }

    async fn is_cut(connection: &Connection) -> bool {
        tokio::time::timeout(Duration::ZERO, connection.cut()).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_of_who_has_the_most_goes() {
        let world = world(Limits { unfinished: 4, unfinished_by_address: 3, ..Limits::default() });
        let innocent = world.enter(1).unwrap();
        let flood: Vec<_> = (0..5).map(|_| world.enter(2).unwrap()).collect();
        // Three of one address are too many for a fourth, and four of all.
        assert!(is_cut(&flood[0].1).await && is_cut(&flood[1].1).await && !is_cut(&flood[2].1).await);
        let other = world.enter(3).unwrap();
        assert!(is_cut(&flood[2].1).await && !is_cut(&flood[3].1).await);
        assert!(!is_cut(&innocent.1).await && !is_cut(&other.1).await);
        // Who has asked is no longer among them.
        flood[3].0.asks();
        flood[3].0.asks();
        let last = world.enter(4).unwrap();
        assert!(!is_cut(&flood[3].1).await && !is_cut(&flood[4].1).await && !is_cut(&last.1).await);
        drop((innocent, flood, other, last));
        assert!(world.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_many_unfinished_gets_no_further_ones_for_the_moment() {
        let world = world(Limits { unfinished_by_address: 1, ..Limits::default() });
        let burst = LEFT_MAX.burst as usize;
        let proxied = world.enter(3).unwrap();
        let mut flood: Vec<_> = (0..burst).map(|_| world.enter(1).unwrap()).collect();
        // One of them has not been closed yet.
        assert!(!world.doorway.leaves_many(who(1)));
        flood.push(world.enter(1).unwrap());
        assert!(world.doorway.leaves_many(who(1)) && !world.doorway.leaves_many(who(2)));
        assert!(!proxied.0.comes_from(who(1), true, &world.limits));
        assert!(proxied.0.comes_from(who(1), false, &world.limits));
        tokio::time::advance(Duration::from_secs(1) / LEFT_MAX.per_second * 2).await;
        assert!(!world.doorway.leaves_many(who(1)));
        drop((proxied, flood));
        assert!(world.is_empty());
    }

    #[tokio::test]
    async fn many_addresses_with_one_each_are_no_innocents() {
        let world = world(Limits { unfinished: 256, ..Limits::default() });
        let old: Vec<_> = (0..3).map(|_| world.enter(250).unwrap()).collect();
        let flood: Vec<_> = (0..250).map(|n| world.enter(n).unwrap()).collect();
        // A browser, with several at once, from the highest address.
        let browser: Vec<_> = (0..4).map(|_| world.enter(255).unwrap()).collect();
        assert!(is_cut(&old[0].1).await && !is_cut(&old[1].1).await, "one too many: the oldest of all");
        for n in 0..200 {
            drop(world.enter(n).unwrap());
        }
        for (_, connection) in &browser {
            assert!(!is_cut(connection).await);
        }
        let more: Vec<_> = (0..100).map(|n| world.enter(n).unwrap()).collect();
        for (_, connection) in &browser {
            assert!(!is_cut(connection).await);
        }
        assert!(is_cut(&flood[90].1).await && !is_cut(&flood[200].1).await);
        drop((old, flood, browser, more));
        assert!(world.is_empty());
    }

    #[tokio::test]
    async fn a_site_of_ipv6_is_one_client() {
        let world = world(Limits { unfinished: 256, connections_by_address: 100, ..Limits::default() });
        let of = |site: u128, n: u128| {
            let address = std::net::Ipv6Addr::from_bits((0x2001_0db8 << 96) | (site << 80) | (n << 64));
            let connection = world.outlets.connect(false);
            let who = Some(Network::from(std::net::IpAddr::from(address)));
            Some((world.doorway.enter(who, true, &world.limits, &connection)?, connection))
        };
        let innocent = of(1, 1).unwrap();
        let flood: Vec<_> = (0..300).map(|n| of(2, n).unwrap()).collect();
        assert!(!is_cut(&innocent.1).await && is_cut(&flood[0].1).await && !is_cut(&flood[299].1).await);
        // All together have as many as four addresses.
        flood.iter().for_each(|(entered, _)| entered.asks());
        let mut more: Vec<_> = (0..200).map_while(|n| of(2, n)).inspect(|(entered, _)| entered.asks()).collect();
        assert_eq!(more.len(), 145);
        assert!(of(3, 1).is_some());
        more.clear();
        drop((innocent, flood));
        assert!(world.is_empty());
    }

    #[tokio::test]
    async fn an_address_lets_go_of_idle_ones() {
        let world = world(Limits { connections_by_address: 3, ..Limits::default() });
        let all: Vec<_> = (0..3).map(|_| world.enter(1).unwrap()).collect();
        all.iter().for_each(|(entered, _)| entered.asks());
        let busy = all[0].1.begin().unwrap();
        assert!(world.enter(1).is_none(), "none of them is idle");
        drop(all[1].1.begin());
        let next = world.enter(1).unwrap();
        assert!(!is_cut(&all[0].1).await && is_cut(&all[1].1).await && !is_cut(&all[2].1).await);
        drop((all, busy, next));
        assert!(world.is_empty());
    }

    #[tokio::test]
    async fn a_further_head_that_does_not_end_is_unfinished() {
        let world = world(Limits { unfinished: 2, ..Limits::default() });
        let (one, two) = (world.enter(1).unwrap(), world.enter(2).unwrap());
        one.0.asks();
        let three = world.enter(3).unwrap();
        assert!(!is_cut(&two.1).await);
        two.0.asks();
        one.0.begins_to_ask(&world.limits);
        // The older head goes, not the older connection.
        let four = world.enter(4).unwrap();
        assert!(is_cut(&three.1).await && !is_cut(&one.1).await);
        one.0.asks();
        let five = world.enter(5).unwrap();
        assert!(!is_cut(&one.1).await && !is_cut(&four.1).await);
        drop((one, two, three, four, five));
        assert!(world.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_ones_go_before_those_that_are_greeted() {
        let world = world(Limits::default());
        let idle = world.enter(1).unwrap();
        idle.0.asks();
        drop(idle.1.begin());
        let greeted = world.enter(2).unwrap();
        world.doorway.make_room(1, &world.limits);
        assert!(is_cut(&idle.1).await && !is_cut(&greeted.1).await);
        world.doorway.make_room(1, &world.limits);
        assert!(!is_cut(&greeted.1).await, "it has just come");
        greeted.0.may_ask_within(world.limits.head_max);
        tokio::time::advance(Duration::from_secs(3)).await;
        world.doorway.make_room(1, &world.limits);
        assert!(is_cut(&greeted.1).await);
    }

    #[tokio::test]
    async fn slow_bodies_make_room_where_nothing_else_does() {
        let world = world(Limits::default());
        let all: Vec<_> = (0..3).map(|n| world.enter(1 + n).unwrap()).collect();
        all.iter().for_each(|(entered, _)| entered.asks());
        let under_way: Vec<_> = all.iter().map(|(_, connection)| connection.begin().unwrap()).collect();
        let _slow = all[1].1.awaits_body(Duration::from_secs(20), 20);
        let _quick = all[2].1.awaits_body(Duration::from_secs(20), 20 << 20);
        world.doorway.make_room(1, &world.limits);
        assert!(!is_cut(&all[0].1).await && is_cut(&all[1].1).await && !is_cut(&all[2].1).await);
        drop(under_way);
    }

    #[tokio::test]
    async fn an_address_has_so_many() {
        let world = world(Limits { connections_by_address: 2, ..Limits::default() });
        let (one, two) = (world.enter(1).unwrap(), world.enter(1).unwrap());
        one.0.asks();
        two.0.asks();
        assert!(world.enter(1).is_none());
        let unbounded = world.outlets.connect(false);
        let third = world.doorway.enter(who(1), false, &world.limits, &unbounded).unwrap();
        // One that turns out to come from elsewhere counts there.
        assert!(one.0.comes_from(who(2), true, &world.limits) && third.comes_from(who(2), true, &world.limits));
        assert!(!two.0.comes_from(who(2), true, &world.limits));
        let four = world.enter(1).unwrap();
        // The one that has asked for nothing makes room.
        let five = world.enter(1).unwrap();
        assert!(is_cut(&four.1).await && !is_cut(&two.1).await);
        drop((one, two, third, four, five));
        assert!(world.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_too_long_goes() {
        let second = Duration::from_secs(1);
        let world = world(Limits { handshake_max: 2 * second, head_max: 3 * second, ..Limits::default() });
        let (one, two, three) = (world.enter(1).unwrap(), world.enter(1).unwrap(), world.enter(1).unwrap());
        two.0.may_ask_within(second);
        three.0.asks();
        three.0.may_ask_within(second);
        let _ = tokio::time::timeout(Duration::from_millis(2_500), world.doorway.watch()).await;
        assert!(!is_cut(&one.1).await && is_cut(&two.1).await);
        let _ = tokio::time::timeout(Duration::from_secs(60), world.doorway.watch()).await;
        assert!(is_cut(&one.1).await && !is_cut(&three.1).await);
    }

    /// The timeout of a further head begins with its first byte, although the connection may be idle for longer before it.
    #[tokio::test(start_paused = true)]
    async fn a_further_head_has_as_long_as_the_first() {
        let world = world(Limits { head_max: Duration::from_secs(3), ..Limits::default() });
        let (entered, connection) = world.enter(1).unwrap();
        entered.asks();
        let _ = tokio::time::timeout(Duration::from_secs(60), world.doorway.watch()).await;
        assert!(!is_cut(&connection).await);
        entered.begins_to_ask(&world.limits);
        let _ = tokio::time::timeout(Duration::from_secs(5), world.doorway.watch()).await;
        assert!(is_cut(&connection).await);
    }

    #[tokio::test]
    async fn idle_ones_make_room() {
        let world = world(Limits::default());
        let asked: Vec<_> = (0..3).map(|n| world.enter(1 + n / 2).unwrap()).collect();
        let busy = asked[0].1.begin().unwrap();
        for (entered, _) in &asked {
            entered.asks();
        }
        drop(asked[1].1.begin());
        drop(asked[2].1.begin());
        asked[2].1.speak_on();
        world.doorway.make_room(1, &world.limits);
        assert!(!is_cut(&asked[0].1).await && is_cut(&asked[1].1).await && !is_cut(&asked[2].1).await);
        drop(busy);
    }
}
