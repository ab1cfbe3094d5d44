//! Counts connections by address and bounds unfinished ones, on which no request has arrived.
//!
//! A client that opens connections without sending requests would block others if only the total were bounded, and
//! would use memory if nothing were. So unfinished connections have their own limit, and new ones never wait for it:
//! the server closes the oldest unfinished connection of the address with the most, if those are more than a fair
//! number, or else the oldest of all. A client that sends a request within a round trip or two is not among the
//! oldest unless thousands of connections arrive in that time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_network::{Rate, Rates};
use tokio::time::Instant;

use crate::limits::Limits;
use crate::metrics::{Bound, Traffic};
use crate::outlet::Connection;
use crate::turns::ClientNetwork;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The number of idle connections that are closed at once when room is needed: each search visits all connections.
const AT_ONCE: usize = 64;

/// The same for idle connections of one address, and for connections with slow request bodies.
const AT_ONCE_OF_ONE: usize = 16;

const SEARCH_PAUSE: Duration = Duration::from_millis(50);

/// The time that an unfinished connection has before it makes room for others, while few are unfinished.
const PATIENCE: Duration = Duration::from_secs(2);

/// The number of unfinished connections that is fair for an address: browsers, replicators and proxies open several
/// at once.
const FAIR: usize = 16;

/// The rate of unfinished connections closed by the server above which an address is refused for a while: a refusal
/// costs less than accepting and closing.
const LEFT_MAX: Rate = Rate { per_second: 20, burst: 500 };

const LEFT_BY: usize = 16_384;

/// The limit of an IPv6 /48, as a multiple of an address's: its owner has 65,536 addresses.
const SITE: usize = 4;

#[derive(Debug)]
pub(crate) struct Doorway {
    state: Mutex<DoorwayState>,
    /// An upper bound of the configured limit, because unfinished connections are a part of all connections.
    unfinished_max: usize,
    traffic: Arc<Traffic>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    Address(ClientNetwork),
    Site(u64),
}

impl Group {
    pub(crate) fn of(who: ClientNetwork) -> impl Iterator<Item = Group> {
        [Some(Group::Address(who)), who.and_then(|who| who.site()).map(Group::Site)].into_iter().flatten()
    }

    pub(crate) fn weight(self, count: usize) -> usize {
        match self {
            Group::Address(_) => count,
            Group::Site(_) => count / SITE,
        }
    }
}

#[derive(Debug)]
struct DoorwayState {
    next: u64,
    open: HashMap<u64, OpenConnection>,
    of: HashMap<Group, GroupConnections>,
    /// The groups of `of` by their weight of unfinished connections; groups without any are left out.
    most: BTreeSet<(usize, Group)>,
    /// By turn: the connection and its deadline.
    unfinished: BTreeMap<u64, (u64, Instant)>,
    in_vain: Option<Instant>,
    left: Rates,
    began: Instant,
}

impl Default for DoorwayState {
    fn default() -> DoorwayState {
        DoorwayState {
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

#[derive(Debug)]
struct OpenConnection {
    who: ClientNetwork,
    connection: Arc<Connection>,
    unfinished: Option<u64>,
    is_cut: bool,
}

#[derive(Debug, Default)]
struct GroupConnections {
    open: BTreeSet<u64>,
    unfinished: BTreeSet<u64>,
}

impl DoorwayState {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn change(&mut self, who: ClientNetwork, change: impl Fn(&mut GroupConnections) -> bool) {
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

    fn end_unfinished(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let Some(turn) = open.unfinished.take() else { return };
        let who = open.who;
        self.unfinished.remove(&turn);
        self.change(who, |of| of.unfinished.remove(&turn));
    }

    fn cut_unfinished_one(&mut self, number: u64) {
        if let Some(open) = self.open.get(&number) {
            // An address above this rate is refused before it is counted here.
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

    fn cut_oldest_of(&mut self, group: Group) -> bool {
        let turn = self.of.get(&group).and_then(|of| of.unfinished.first());
        let oldest = turn.and_then(|turn| self.unfinished.get(turn)).map(|(number, _)| *number);
        oldest.map(|oldest| self.cut_unfinished_one(oldest)).is_some()
    }

    /// Closes the unfinished connection that should make room. Returns false if there is none.
    fn cut_unfinished(&mut self, unfinished_max: usize) -> bool {
        let fair = (unfinished_max / 64).clamp(2, FAIR);
        let most = self.most.last().filter(|(weight, _)| *weight > fair).map(|(_, group)| *group);
        if most.is_some_and(|most| self.cut_oldest_of(most)) {
            return true;
        }
        let oldest = self.unfinished.first_key_value().map(|(_, (number, _))| *number);
        oldest.map(|oldest| self.cut_unfinished_one(oldest)).is_some()
    }

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

    /// Returns the matching connections of the address that has the most of them, sorted by `find`.
    fn of_most(&self, find: impl Fn(&Connection) -> Option<u64>) -> Vec<(u64, u64)> {
        let mut of: HashMap<ClientNetwork, Vec<(u64, u64)>> = HashMap::new();
        for (number, open) in self.open.iter().filter(|(_, open)| !open.is_cut) {
            if let Some(found) = find(&open.connection) {
                of.entry(open.who).or_default().push((found, *number));
            }
        }
        let mut most = of.into_values().max_by_key(Vec::len).unwrap_or_default();
        most.sort_unstable();
        most
    }

    fn full(&self, who: ClientNetwork, limits: &Limits) -> Option<Group> {
        self.beyond(who, limits.connections_by_address, |of| of.open.len())
    }

    fn beyond(&self, who: ClientNetwork, most: usize, count: impl Fn(&GroupConnections) -> usize) -> Option<Group> {
        let is_beyond =
            |group: &Group| most > 0 && self.of.get(group).is_some_and(|of| group.weight(count(of)) >= most);
        Group::of(who).find(is_beyond)
    }
}

/// An open connection; ends when dropped.
#[derive(Debug)]
pub(crate) struct DoorwayEntry {
    of: Arc<Doorway>,
    number: u64,
    is_unfinished: AtomicBool,
}

impl Doorway {
    /// `connections_max`: the limit of all connections, which includes unfinished ones.
    pub(crate) fn new(connections_max: usize, traffic: Arc<Traffic>) -> Arc<Doorway> {
        let unfinished_max = (connections_max / 4 * 3).max(16);
        Arc::new(Doorway { state: Mutex::default(), unfinished_max, traffic })
    }

    fn state(&self) -> MutexGuard<'_, DoorwayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfinished_max(&self, limits: &Limits) -> usize {
        limits.unfinished.clamp(1, self.unfinished_max)
    }

    fn refused(&self, bound: Bound, count: u64) {
        self.traffic.refused.of(bound).add(count);
    }

    pub(crate) fn leaves_many(&self, who: ClientNetwork) -> bool {
        let state = self.state();
        state.left.is_spent(who, LEFT_MAX, state.began.elapsed())
    }

    /// Registers a new connection. Returns `None` if its address has too many. `is_bounded`: limits by address apply.
    pub(crate) fn enter(
        self: &Arc<Self>,
        who: ClientNetwork,
        is_bounded: bool,
        limits: &Limits,
        connection: &Arc<Connection>,
    ) -> Option<DoorwayEntry> {
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
        state
            .open
            .insert(number, OpenConnection { who, connection: connection.clone(), unfinished: None, is_cut: false });
        state.change(who, |of| of.open.insert(number));
        state.begin_unfinished(number, Instant::now() + limits.handshake_max + limits.head_max);
        Some(DoorwayEntry { of: self.clone(), number, is_unfinished: AtomicBool::new(true) })
    }

    fn keep_unfinished(&self, state: &mut DoorwayState, limits: &Limits) {
        let most = self.unfinished_max(limits);
        while state.unfinished.len() >= most && state.cut_unfinished(most) {
            self.refused(Bound::Unfinished, 1);
        }
    }

    /// Closes connections to make room for `count` more, in this order: unfinished ones if there are many; idle ones
    /// of the address with the most of them; older unfinished ones; connections with the slowest request bodies of
    /// the address with the most of them.
    pub(crate) fn make_room(&self, count: usize, limits: &Limits) {
        let mut state = self.state();
        let most = self.unfinished_max(limits);
        let cut_unfinished = |state: &mut DoorwayState| {
            let cut = (0..count).take_while(|_| state.cut_unfinished(most)).count();
            self.refused(Bound::Unfinished, cut as u64);
            cut > 0
        };
        if state.unfinished.len() >= (most / 4).max(1) && cut_unfinished(&mut state) {
            return;
        }
        let may_look = state.in_vain.is_none_or(|looked| looked.elapsed() >= SEARCH_PAUSE);
        if may_look {
            let idle = state.of_most(Connection::idle_since);
            let cut = state.cut_first(idle, AT_ONCE);
            self.refused(Bound::Idle, cut);
            if cut > 0 {
                return;
            }
        }
        // Few are unfinished, so a new connection is left alone.
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

    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
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

impl DoorwayEntry {
    /// Changes the address of a connection after its PROXY header. Returns false if that address may not have one
    /// more.
    #[must_use]
    pub(crate) fn comes_from(&self, who: ClientNetwork, is_bounded: bool, limits: &Limits) -> bool {
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

    pub(crate) fn may_ask_within(&self, time: Duration) {
        let mut state = self.of.state();
        let turn = state.open.get(&self.number).and_then(|open| open.unfinished);
        if let Some((_, until)) = turn.and_then(|turn| state.unfinished.get_mut(&turn)) {
            *until = Instant::now() + time;
        }
    }

    /// Marks a connection as finished: a request has arrived.
    pub(crate) fn asks(&self) {
        if self.is_unfinished.load(Ordering::Relaxed) && self.is_unfinished.swap(false, Ordering::Relaxed) {
            self.of.state().end_unfinished(self.number);
        }
    }

    /// Marks a connection as unfinished again, while the head of a further request is incomplete.
    pub(crate) fn begins_to_ask(&self, limits: &Limits) {
        if !self.is_unfinished.swap(true, Ordering::Relaxed) {
            let mut state = self.of.state();
            self.of.keep_unfinished(&mut state, limits);
            state.begin_unfinished(self.number, Instant::now() + limits.head_max);
        }
    }
}

impl Drop for DoorwayEntry {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.end_unfinished(self.number);
        let Some(OpenConnection { who, .. }) = state.open.remove(&self.number) else { return };
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

    fn who(n: u8) -> ClientNetwork {
        Some(Network::from(std::net::IpAddr::from([192, 0, 2, n])))
    }

    impl World {
        fn enter(&self, n: u8) -> Option<(DoorwayEntry, Arc<Connection>)> {
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
        // The limit of one address is three, that of all is four.
        assert!(is_cut(&flood[0].1).await && is_cut(&flood[1].1).await && !is_cut(&flood[2].1).await);
        let other = world.enter(3).unwrap();
        assert!(is_cut(&flood[2].1).await && !is_cut(&flood[3].1).await);
        assert!(!is_cut(&innocent.1).await && !is_cut(&other.1).await);
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
        // One of them is still open.
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
        // A browser with several connections at once, with the highest address.
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
        // The site has as many as four addresses.
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
        // A proxied connection counts for its client's address.
        assert!(one.0.comes_from(who(2), true, &world.limits) && third.comes_from(who(2), true, &world.limits));
        assert!(!two.0.comes_from(who(2), true, &world.limits));
        let four = world.enter(1).unwrap();
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

    /// The timeout of a further head begins with its first byte, however long the connection was idle.
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
