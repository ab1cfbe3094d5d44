//! Connections by address, and those on which nobody has asked for anything yet.
//!
//! Whoever opens connections and does not go on keeps others out where there is a bound on all connections, and costs memory
//! where there is none. So the unfinished are bounded on their own, and nobody waits for them: for a new one the oldest of the
//! address that has the most is closed. Who comes from elsewhere and goes on at once is never the one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct Doorway {
    state: Mutex<State>,
    traffic: Arc<Traffic>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
    of: HashMap<Who, Of>,
    /// The same as in `of`, by number; addresses that have none are not here.
    most: BTreeSet<(usize, Who)>,
    unfinished: usize,
}

/// A connection.
#[derive(Debug)]
struct Open {
    who: Who,
    connection: Arc<Connection>,
}

/// Those of one address.
#[derive(Debug, Default)]
struct Of {
    open: usize,
    /// Those that are unfinished, the oldest first, and until when they may be so.
    unfinished: BTreeMap<u64, Instant>,
}

impl State {
    /// Takes one from among the unfinished, or puts it there.
    fn set_unfinished(&mut self, number: u64, who: Who, until: Option<Instant>) {
        let of = self.of.entry(who).or_default();
        let before = of.unfinished.len();
        match until {
            Some(until) => drop(of.unfinished.insert(number, until)),
            None => drop(of.unfinished.remove(&number)),
        }
        let now = of.unfinished.len();
        if now != before {
            self.most.remove(&(before, who));
            if now > 0 {
                self.most.insert((now, who));
            }
            self.unfinished = (self.unfinished + now).saturating_sub(before);
        }
    }

    /// Closes the oldest unfinished one of an address; whether there was one.
    fn cut_oldest(&mut self, who: Who) -> bool {
        let oldest = self.of.get(&who).and_then(|of| of.unfinished.keys().next().copied());
        let Some(oldest) = oldest else { return false };
        self.cut(oldest);
        true
    }

    fn cut(&mut self, number: u64) {
        let Some(open) = self.open.get(&number) else { return };
        open.connection.end();
        self.set_unfinished(number, open.who, None);
    }

    /// Whether an address may have one more.
    fn has_room(&self, who: Who, limits: &Limits) -> bool {
        let open = self.of.get(&who).map_or(0, |of| of.open);
        limits.connections_by_address == 0 || open < limits.connections_by_address
    }

    fn forget(&mut self, who: Who) {
        if self.of.get(&who).is_some_and(|of| of.open == 0) {
            self.of.remove(&who);
        }
    }
}

/// A connection that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    of: Arc<Doorway>,
    number: u64,
    has_asked: AtomicBool,
}

impl Doorway {
    pub(crate) fn new(traffic: Arc<Traffic>) -> Arc<Doorway> {
        Arc::new(Doorway { state: Mutex::default(), traffic })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        if is_bounded && !state.has_room(who, limits) {
            self.traffic.refused.of(Bound::ConnectionsByAddress).add(1);
            if !state.cut_oldest(who) {
                return None;
            }
        }
        if is_bounded
            && state.of.get(&who).is_some_and(|of| of.unfinished.len() >= limits.unfinished_by_address.max(1))
            && state.cut_oldest(who)
        {
            self.traffic.refused.of(Bound::Unfinished).add(1);
        }
        while state.unfinished >= limits.unfinished.max(1) {
            let most = state.most.last().map(|(_, who)| *who);
            if !most.is_some_and(|most| state.cut_oldest(most)) {
                break;
            }
            self.traffic.refused.of(Bound::Unfinished).add(1);
        }
        state.next += 1;
        let number = state.next;
        state.open.insert(number, Open { who, connection: connection.clone() });
        state.of.entry(who).or_default().open += 1;
        state.set_unfinished(number, who, Some(Instant::now() + limits.handshake_max + limits.head_max));
        Some(Entered { of: self.clone(), number, has_asked: AtomicBool::new(false) })
    }

    /// Closes connections so that there is room for another one: an unfinished one, or some on which nothing is asked for, of
    /// the address that has most of these.
    pub(crate) fn make_room(&self) {
        let mut state = self.state();
        let most = state.most.last().map(|(_, who)| *who);
        if most.is_some_and(|most| state.cut_oldest(most)) {
            self.traffic.refused.of(Bound::Unfinished).add(1);
            return;
        }
        let mut idle: HashMap<Who, Vec<(u64, u64)>> = HashMap::new();
        for (number, open) in &state.open {
            if let Some(since) = open.connection.idle_since() {
                idle.entry(open.who).or_default().push((since, *number));
            }
        }
        let Some(mut idle) = idle.into_values().max_by_key(Vec::len) else { return };
        idle.sort_unstable();
        for (_, number) in idle.into_iter().take(AT_ONCE) {
            state.cut(number);
            self.traffic.refused.of(Bound::Idle).add(1);
        }
    }

    /// Closes what takes too long to ask for something, until it is dropped.
    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = Instant::now();
            let mut state = self.state();
            let late = state.of.values().flat_map(|of| &of.unfinished).filter(|(_, until)| **until <= now);
            let late: Vec<u64> = late.map(|(number, _)| *number).collect();
            for number in late {
                state.cut(number);
                self.traffic.refused.of(Bound::Head).add(1);
            }
        }
    }
}

impl Entered {
    /// It turns out to come from elsewhere; whether that address may have one more.
    #[must_use]
    pub(crate) fn comes_from(&self, who: Who, is_bounded: bool, limits: &Limits) -> bool {
        let mut state = self.of.state();
        if is_bounded && !state.has_room(who, limits) {
            self.of.traffic.refused.of(Bound::ConnectionsByAddress).add(1);
            return false;
        }
        let Some(open) = state.open.get_mut(&self.number) else { return false };
        let before = std::mem::replace(&mut open.who, who);
        let until = state.of.get(&before).and_then(|of| of.unfinished.get(&self.number).copied());
        state.set_unfinished(self.number, before, None);
        if let Some(of) = state.of.get_mut(&before) {
            of.open -= 1;
        }
        state.forget(before);
        state.of.entry(who).or_default().open += 1;
        if until.is_some() {
            state.set_unfinished(self.number, who, until);
        }
        true
    }

    /// What comes before HTTP is done: it may take so long until it asks for something.
    pub(crate) fn may_ask_within(&self, time: Duration) {
        let mut state = self.of.state();
        let Some(who) = state.open.get(&self.number).map(|open| open.who) else { return };
        if state.of.get(&who).is_some_and(|of| of.unfinished.contains_key(&self.number)) {
            state.set_unfinished(self.number, who, Some(Instant::now() + time));
        }
    }

    /// It asks for something.
    pub(crate) fn asks(&self) {
        if !self.has_asked.load(Ordering::Relaxed) && !self.has_asked.swap(true, Ordering::Relaxed) {
            let mut state = self.of.state();
            if let Some(who) = state.open.get(&self.number).map(|open| open.who) {
                state.set_unfinished(self.number, who, None);
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let Some(Open { who, .. }) = state.open.remove(&self.number) else { return };
        state.set_unfinished(self.number, who, None);
        if let Some(of) = state.of.get_mut(&who) {
            of.open -= 1;
        }
        state.forget(who);
    }
}

#[cfg(test)]
mod tests {
    use flatbed_network::Network;

    use super::*;
    use crate::outlet::Outlets;

    struct World {
        doorway: Arc<Doorway>,
        outlets: Arc<Outlets>,
        limits: Limits,
    }

    fn world(limits: Limits) -> World {
        World { doorway: Doorway::new(Arc::default()), outlets: Outlets::new(1 << 20, 1 << 10), limits }
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
            state.open.is_empty() && state.of.is_empty() && state.most.is_empty() && state.unfinished == 0
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
        world.doorway.make_room();
        assert!(!is_cut(&asked[0].1).await && is_cut(&asked[1].1).await && !is_cut(&asked[2].1).await);
        drop(busy);
    }
}
