//! The order of password checks: by the recent attempts of an address, then in turns by address.
//!
//! Turns by address alone do not help against a thousand addresses with one attempt per second each: a new client
//! would wait for one check of each. So there are lanes. The first attempt of an address goes to the first lane. The
//! more attempts of an address were not right, the further back its lane, and all its tickets move with it. Otherwise
//! the first tickets of the thousand would fill the first lane until they are checked, without room for a new client.
//! Every fourth turn goes to the last lane with tickets, so that none waits forever.

use std::collections::{HashMap, VecDeque};

use flatbed_admission::{Bounds, FairQueue, Full};
use flatbed_auth::Network;

/// The number of lanes: for none, one, up to three, up to seven, ... attempts.
const LANES: usize = 8;

/// The most tickets of one address.
pub(super) const OF_ONE_MAX: usize = 16;

/// The default bound on all tickets: more than the addresses of a flood that must be withstood, all of which are new
/// when it begins.
pub(super) const OF_ALL_MAX: usize = 1_024;

/// The most addresses whose attempts are counted; the oldest are dropped.
const REMEMBERED_MAX: usize = 20_000;

/// The time after which attempts count half.
const HALF_LIFE_MS: u64 = 60_000;

/// The last lane gets one of this many turns.
const LAST_LANE_EACH: u64 = 4;

#[derive(Debug)]
pub(super) struct LaneQueue<T> {
    of_all_max: usize,
    /// All tickets of an address are in the lane of its last attempt.
    lanes: [FairQueue<Network, T>; LANES],
    /// The attempts of each address, and the time as of which they count.
    attempts: HashMap<Network, (u32, u64)>,
    /// Oldest first.
    order: VecDeque<Network>,
    turns: u64,
}

impl<T: Ord> LaneQueue<T> {
    /// An empty queue for at most `of_all_max` tickets.
    pub(super) fn new(of_all_max: usize) -> LaneQueue<T> {
        let lanes = std::array::from_fn(|_| FairQueue::new(Bounds { of_one: OF_ONE_MAX, of_all: of_all_max }));
        LaneQueue { of_all_max, lanes, attempts: HashMap::new(), order: VecDeque::new(), turns: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(FairQueue::len).sum()
    }

    /// Adds a ticket at `now_ms` of a monotonic clock. Returns the ticket that it displaced: one of a later lane, or
    /// of an address with several in the same lane. The address's other tickets move to its new lane.
    pub(super) fn push(&mut self, who: Network, ticket: T, now_ms: u64) -> Result<Option<T>, Full> {
        let at = self.count_attempt(who, now_ms);
        self.move_to_lane(at, who)?;
        let is_full = self.len() >= self.of_all_max;
        let lane = self.lanes.get(at).ok_or(Full)?;
        let of_one = lane.len_of(who);
        if of_one >= OF_ONE_MAX {
            return Err(Full);
        }
        let mut gave_way = None;
        if is_full {
            let later = self.lanes.iter_mut().skip(at + 1).rev().find_map(|lane| lane.give_way(1));
            let same = || if of_one > 0 { None } else { self.lanes.get_mut(at)?.give_way(2) };
            gave_way = Some(later.or_else(same).ok_or(Full)?.1);
        }
        let pushed = self.lanes.get_mut(at).ok_or(Full)?.push(who, ticket)?;
        Ok(gave_way.or(pushed.map(|(_, ticket)| ticket)))
    }

    fn move_to_lane(&mut self, at: usize, who: Network) -> Result<(), Full> {
        let before = self.lanes.iter().position(|lane| lane.len_of(who) > 0);
        let Some(before) = before.filter(|before| *before != at) else { return Ok(()) };
        let tickets = self.lanes.get_mut(before).ok_or(Full)?.take(who);
        let lane = self.lanes.get_mut(at).ok_or(Full)?;
        // The tickets leave as much room as they need, so none is displaced.
        tickets.into_iter().try_for_each(|ticket| lane.push(who, ticket).map(drop))
    }

    pub(super) fn pop(&mut self) -> Option<(Network, T)> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LAST_LANE_EACH) {
            self.lanes.iter_mut().rev().find_map(FairQueue::pop)
        } else {
            self.lanes.iter_mut().find_map(FairQueue::pop)
        }
    }

    /// Removes a ticket without waiters.
    pub(super) fn cancel(&mut self, who: Network, ticket: &T) -> bool {
        self.lanes.iter_mut().any(|lane| lane.cancel(who, ticket))
    }

    /// Forgives an attempt of this address, which was right.
    pub(super) fn forgive(&mut self, who: Network) {
        if let Some((attempts, _)) = self.attempts.get_mut(&who) {
            *attempts = attempts.saturating_sub(1);
        }
    }

    /// Counts an attempt and returns its lane.
    fn count_attempt(&mut self, who: Network, now_ms: u64) -> usize {
        if !self.attempts.contains_key(&who) {
            if self.attempts.len() >= REMEMBERED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.attempts.remove(&oldest);
            }
            self.order.push_back(who);
        }
        let (attempts, as_of) = self.attempts.entry(who).or_insert((0, now_ms));
        let halves = now_ms.saturating_sub(*as_of) / HALF_LIFE_MS;
        *attempts = attempts.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
        *as_of += halves * HALF_LIFE_MS;
        let lane = (u32::BITS - attempts.leading_zeros()) as usize;
        *attempts = attempts.saturating_add(1);
        lane.min(LANES - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(at: u64) -> Network {
        Network::V6(at)
    }

    /// A thousand addresses with one attempt per second each; seven checks run per second.
    fn flooded(seconds: u64) -> LaneQueue<u64> {
        let mut line = LaneQueue::new(OF_ALL_MAX);
        for second in 0..seconds {
            for at in 0..1_000 {
                let _ = line.push(of(at), 1_000 * second + at, 1_000 * second + at);
                if at % 143 == 0 {
                    assert!(line.pop().is_some());
                }
            }
        }
        line
    }

    #[test]
    fn who_comes_first_is_before_those_who_ask_again_and_again() {
        let mut line = flooded(60);
        assert_eq!(line.len(), OF_ALL_MAX);
        let gave_way = line.push(of(5_000), 0, 60_000);
        assert!(matches!(gave_way, Ok(Some(_))), "{gave_way:?}");
        let turn = (1..).find(|_| line.pop().is_some_and(|(who, _)| who == of(5_000))).unwrap();
        assert!(turn <= 2, "{turn}");
        line.forgive(of(5_000));
        assert_eq!(line.attempts.get(&of(5_000)).unwrap().0, 0);
        // The last lane gets every fourth turn.
        for at in 0..30 {
            let _ = line.push(of(6_000 + at), 1_000_000 + at, 60_001);
        }
        let turns: Vec<bool> = (0..20).map(|_| line.pop().unwrap().0 < of(1_000)).collect();
        assert_eq!(turns.iter().filter(|is_behind| **is_behind).count(), 5, "{turns:?}");
    }

    /// When a flood begins, all of its addresses are new. There is room for them and for others, and their second
    /// attempts move all their tickets back.
    #[test]
    fn who_comes_soon_after_a_flood_has_begun_is_before_it() {
        for ms in [0, 1, 500, 999, 1_000, 2_000, 8_000] {
            let (mut line, mut turn) = (LaneQueue::new(OF_ALL_MAX), None);
            for now_ms in 0..ms + 5_000 {
                if now_ms == ms {
                    assert!(line.push(of(5_000), u64::MAX, now_ms).is_ok(), "{ms}");
                }
                let _ = line.push(of(now_ms % 1_000), now_ms, now_ms);
                if now_ms % 143 == 0 && line.pop().unwrap().0 == of(5_000) {
                    turn = turn.or(Some(now_ms - ms));
                }
            }
            assert!(turn.is_some_and(|after| after <= 1_500), "{ms}: {turn:?}");
        }
    }

    #[test]
    fn one_address_has_little_room_and_none_at_the_cost_of_new_ones() {
        let mut line = LaneQueue::new(OF_ALL_MAX);
        let taken = (0..1_000).filter(|at| line.push(of(1), *at, 0).is_ok()).count();
        assert_eq!(taken, OF_ONE_MAX);
        for at in 0..OF_ALL_MAX as u64 - 1 {
            assert!(line.push(of(100 + at), 10_000 + at, 0).is_ok());
        }
        assert_eq!(line.len(), OF_ALL_MAX);
        // The first address keeps at most the room that the others left.
        let left = std::iter::from_fn(|| line.pop()).filter(|(who, _)| *who == of(1)).count();
        assert!(left <= 1, "{left}");
        assert_eq!(line.len(), 0);
    }

    #[test]
    fn what_an_address_waits_for_stands_in_one_lane() {
        let mut line = LaneQueue::new(OF_ALL_MAX);
        for (at, ticket) in [(1, 1), (2, 2), (1, 3), (1, 4), (3, 5)] {
            line.push(of(at), ticket, 0).unwrap();
        }
        let turns: Vec<u64> = std::iter::from_fn(|| line.pop()).map(|(_, ticket)| ticket).collect();
        assert_eq!(turns, [2, 5, 1, 3, 4]);
        // Tickets also move forward once the attempts are forgotten.
        for ticket in 0..8 {
            line.push(of(1), ticket, 0).unwrap();
        }
        line.push(of(1), 8, 10_000_000).unwrap();
        assert_eq!(line.lanes[0].len(), 9);
        assert!((0..9).all(|ticket| line.cancel(of(1), &ticket)) && line.len() == 0);
    }

    #[test]
    fn attempts_are_forgotten() {
        let mut line: LaneQueue<u64> = LaneQueue::new(OF_ALL_MAX);
        let lanes: Vec<usize> = (0..9).map(|_| line.count_attempt(of(1), 0)).collect();
        assert_eq!(lanes, [0, 1, 2, 2, 3, 3, 3, 3, 4]);
        assert_eq!(line.count_attempt(of(1), 60_000), 3);
        assert_eq!(line.count_attempt(of(1), 10_000_000), 0);
        for at in 0..30_000 {
            line.count_attempt(of(at), 0);
        }
        assert_eq!((line.attempts.len(), line.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(line.push(of(7), 1, 0).is_ok() && line.cancel(of(7), &1) && !line.cancel(of(7), &1));
    }
}
