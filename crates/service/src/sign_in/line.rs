//! Whose password is checked next: who asked least of late, then in turns by address.
//!
//! Turns by address alone do not help against a thousand addresses that ask once a second each: whoever comes waits for one of
//! each. So there are lanes. An address that asks for the first time stands in the first one, and the oftener it has asked
//! without having been right, the further behind. Every fourth turn is of the last lane in which somebody waits, so that
//! nobody there waits for ever.

use std::collections::{HashMap, VecDeque};

use flatbed_auth::Network;
use flatbed_auth::fair_queue::{Bounds, FairQueue, Full};

/// Lanes: none, one, up to three, up to seven, ... attempts.
const LANES: usize = 8;

/// Of one address in one lane.
const OF_ONE_MAX: usize = 4;

/// Of all.
pub(super) const OF_ALL_MAX: usize = 64;

/// Addresses whose attempts are remembered.
const REMEMBERED_MAX: usize = 20_000;

/// After so long, attempts count half.
const HALF_LIFE_MS: u64 = 60_000;

/// One turn of so many is the last lane's.
const LAST_LANE_EACH: u64 = 4;

/// Tickets that wait.
#[derive(Debug)]
pub(super) struct Line<T> {
    lanes: [FairQueue<Network, T>; LANES],
    /// Attempts, and as of when.
    attempts: HashMap<Network, (u32, u64)>,
    /// Those that came first are forgotten first.
    order: VecDeque<Network>,
    turns: u64,
}

impl<T: PartialEq> Line<T> {
    pub(super) fn new() -> Line<T> {
        let lanes = std::array::from_fn(|_| FairQueue::new(Bounds { of_one: OF_ONE_MAX, of_all: OF_ALL_MAX }));
        Line { lanes, attempts: HashMap::new(), order: VecDeque::new(), turns: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(FairQueue::len).sum()
    }

    /// Has a ticket wait, at `now_ms` of a clock that does not go back. What it answers is a ticket that gave way to it: one
    /// of a later lane, or of an address that has several in the same.
    pub(super) fn push(&mut self, who: Network, ticket: T, now_ms: u64) -> Result<Option<T>, Full> {
        let at = self.ask(who, now_ms);
        let is_full = self.len() >= OF_ALL_MAX;
        let lane = self.lanes.get(at).ok_or(Full)?;
        if lane.len_of(who) >= OF_ONE_MAX {
            return Err(Full);
        }
        let mut gave_way = None;
        if is_full {
            let later = self.lanes.iter_mut().skip(at + 1).rev().find_map(|lane| lane.give_way(1));
            let has_one = self.lanes.get(at).is_some_and(|lane| lane.len_of(who) > 0);
            let same = || if has_one { None } else { self.lanes.get_mut(at)?.give_way(2) };
            gave_way = Some(later.or_else(same).ok_or(Full)?.1);
        }
        let pushed = self.lanes.get_mut(at).ok_or(Full)?.push(who, ticket)?;
        Ok(gave_way.or(pushed.map(|(_, ticket)| ticket)))
    }

    /// The ticket whose turn it is.
    pub(super) fn pop(&mut self) -> Option<(Network, T)> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LAST_LANE_EACH) {
            self.lanes.iter_mut().rev().find_map(FairQueue::pop)
        } else {
            self.lanes.iter_mut().find_map(FairQueue::pop)
        }
    }

    /// Takes out a ticket that nobody waits for any more.
    pub(super) fn cancel(&mut self, who: Network, ticket: &T) -> bool {
        self.lanes.iter_mut().any(|lane| lane.cancel(who, ticket))
    }

    /// An attempt of this address was right: it does not count.
    pub(super) fn was_right(&mut self, who: Network) {
        if let Some((attempts, _)) = self.attempts.get_mut(&who) {
            *attempts = attempts.saturating_sub(1);
        }
    }

    /// Counts an attempt, and says which lane it stands in.
    fn ask(&mut self, who: Network, now_ms: u64) -> usize {
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

    #[test]
    fn who_comes_first_is_before_those_who_ask_again_and_again() {
        let mut line = Line::new();
        // A thousand addresses ask once a second each, for a minute.
        let (mut ticket, mut right) = (0_u64, 0);
        for second in 0..60_u64 {
            for at in 0..1_000 {
                ticket += 1;
                let _ = line.push(of(at), ticket, second * 1_000 + at);
                // Seven checks a second.
                if at % 143 == 0 {
                    assert!(line.pop().is_some());
                }
            }
        }
        assert_eq!(line.len(), OF_ALL_MAX);
        let gave_way = line.push(of(5_000), 0, 60_000);
        assert!(matches!(gave_way, Ok(Some(_))), "{gave_way:?}");
        let turn = (1..).find(|_| line.pop().is_some_and(|(who, _)| who == of(5_000))).unwrap();
        assert!(turn <= 2, "{turn}");
        right += 1;
        line.was_right(of(5_000));
        assert_eq!((right, line.attempts.get(&of(5_000)).unwrap().0), (1, 0));
        // Those behind are not forgotten: every fourth turn is theirs.
        for at in 0..30 {
            let _ = line.push(of(6_000 + at), 1_000_000 + at, 60_001);
        }
        let turns: Vec<bool> = (0..20).map(|_| line.pop().unwrap().0 < of(1_000)).collect();
        assert_eq!(turns.iter().filter(|is_behind| **is_behind).count(), 5, "{turns:?}");
    }

    #[test]
    fn one_address_has_little_room_and_none_at_the_cost_of_new_ones() {
        let mut line = Line::new();
        let taken = (0..1_000).filter(|at| line.push(of(1), *at, 0).is_ok()).count();
        assert!(taken <= OF_ONE_MAX * LANES, "{taken}");
        for at in 0..OF_ALL_MAX as u64 - 1 {
            assert!(line.push(of(100 + at), 10_000 + at, 0).is_ok());
        }
        assert_eq!(line.len(), OF_ALL_MAX);
        // All that is left of the first is what nobody needed.
        let left = std::iter::from_fn(|| line.pop()).filter(|(who, _)| *who == of(1)).count();
        assert!(left <= 1, "{left}");
        assert_eq!(line.len(), 0);
    }

    #[test]
    fn attempts_are_forgotten() {
        let mut line: Line<u64> = Line::new();
        let lanes: Vec<usize> = (0..9).map(|_| line.ask(of(1), 0)).collect();
        assert_eq!(lanes, [0, 1, 2, 2, 3, 3, 3, 3, 4]);
        assert_eq!(line.ask(of(1), 60_000), 3);
        assert_eq!(line.ask(of(1), 10_000_000), 0);
        for at in 0..30_000 {
            line.ask(of(at), 0);
        }
        assert_eq!((line.attempts.len(), line.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(line.push(of(7), 1, 0).is_ok() && line.cancel(of(7), &1) && !line.cancel(of(7), &1));
    }
}
