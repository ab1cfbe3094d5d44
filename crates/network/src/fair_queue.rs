//! A queue of what waits for its turn, fair by address: each address has a turn before any has a second one.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// There is no room: 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many wait")]
pub struct Full;

/// How many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of one address.
    pub of_one: usize,
    /// Of all addresses. Where so many wait, one of another address has a place all the same as long as some address has two:
    /// the newest of the one that has the most gives way. So no few addresses keep others out.
    pub of_all: usize,
}

/// Waiting tickets, grouped by origin. `W` is the origin, a [`crate::Network`] or the name of a database. `T` is a piece of work.
///
/// Turns go round: the address that waited longest for a turn has the next, with its oldest ticket, and then goes to the
/// end if it has further ones. So whoever comes waits for one ticket of each address that is there, however many these
/// have. Each operation takes constant time, but [`FairQueue::cancel`], [`FairQueue::take`], and [`FairQueue::push`] where there
/// is no room, which look through what waits.
#[derive(Debug)]
pub struct FairQueue<W, T> {
    bounds: Bounds,
    len: usize,
    /// None is empty.
    waiting: HashMap<W, VecDeque<T>>,
    /// Those that have tickets, each once.
    turns: VecDeque<W>,
}

impl<W: Clone + Eq + Hash, T: PartialEq> FairQueue<W, T> {
    /// Nobody waits.
    pub fn new(bounds: Bounds) -> FairQueue<W, T> {
        FairQueue { bounds, len: 0, waiting: HashMap::new(), turns: VecDeque::new() }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has a ticket wait. What it answers is a ticket that gave way to it, which waits no more.
    ///
    /// # Errors
    /// [`Full`]: as many wait as may, of this address, or of all, and none gives way.
    pub fn push(&mut self, who: W, ticket: T) -> Result<Option<(W, T)>, Full> {
        let of_one = self.waiting.get(&who).map_or(0, VecDeque::len);
        if of_one >= self.bounds.of_one {
            return Err(Full);
        }
        let mut gave_way = None;
        if self.len >= self.bounds.of_all {
            if of_one > 0 {
                return Err(Full);
            }
            gave_way = Some(self.give_way(2).ok_or(Full)?);
        }
        if of_one == 0 {
            self.turns.push_back(who.clone());
        }
        self.waiting.entry(who).or_default().push_back(ticket);
        self.len += 1;
        Ok(gave_way)
    }

    /// Takes the newest ticket of the address that has the most, if these are so many.
    pub fn give_way(&mut self, at_least: usize) -> Option<(W, T)> {
        let (who, tickets) = self.waiting.iter_mut().max_by_key(|(_, tickets)| tickets.len())?;
        if tickets.len() < at_least.max(1) {
            return None;
        }
        let (who, ticket) = (who.clone(), tickets.pop_back()?);
        self.len -= 1;
        if tickets.is_empty() {
            self.waiting.remove(&who);
            self.turns.retain(|found| *found != who);
        }
        Some((who, ticket))
    }

    /// How many of an address wait.
    pub fn len_of(&self, who: W) -> usize {
        self.waiting.get(&who).map_or(0, VecDeque::len)
    }

    /// Takes the ticket whose turn it is.
    pub fn pop(&mut self) -> Option<(W, T)> {
        let who = self.turns.pop_front()?;
        let tickets = self.waiting.get_mut(&who)?;
        let ticket = tickets.pop_front()?;
        if tickets.is_empty() {
            self.waiting.remove(&who);
        } else {
            self.turns.push_back(who.clone());
        }
        self.len -= 1;
        Some((who, ticket))
    }

    /// Takes out all tickets of an address, the oldest first.
    pub fn take(&mut self, who: W) -> VecDeque<T> {
        let Some(tickets) = self.waiting.remove(&who) else { return VecDeque::new() };
        self.len -= tickets.len();
        self.turns.retain(|found| *found != who);
        tickets
    }

    /// Takes a ticket out that nobody waits for any more; whether it was there.
    pub fn cancel(&mut self, who: W, ticket: &T) -> bool {
        let Some(tickets) = self.waiting.get_mut(&who) else { return false };
        let Some(at) = tickets.iter().position(|found| found == ticket) else { return false };
        tickets.remove(at);
        self.len -= 1;
        if tickets.is_empty() {
            self.waiting.remove(&who);
            self.turns.retain(|found| *found != who);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(of_one: usize, of_all: usize) -> FairQueue<char, u32> {
        FairQueue::new(Bounds { of_one, of_all })
    }

    fn drain(queue: &mut FairQueue<char, u32>) -> String {
        std::iter::from_fn(|| queue.pop()).map(|(who, ticket)| format!("{who}{ticket} ")).collect()
    }

    #[test]
    fn turns_go_round() {
        let mut queue = queue(10, 100);
        for (who, ticket) in [('a', 1), ('a', 2), ('a', 3), ('b', 4), ('c', 5), ('b', 6)] {
            queue.push(who, ticket).unwrap();
        }
        assert_eq!(queue.len(), 6);
        assert_eq!(drain(&mut queue), "a1 b4 c5 a2 b6 a3 ");
        assert!(queue.is_empty() && queue.waiting.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn an_address_that_comes_again_has_no_turn_before_others() {
        let mut queue = queue(10, 100);
        for (who, ticket) in [('a', 1), ('b', 2), ('c', 3)] {
            queue.push(who, ticket).unwrap();
        }
        assert_eq!(queue.pop(), Some(('a', 1)));
        queue.push('a', 4).unwrap();
        assert_eq!(drain(&mut queue), "b2 c3 a4 ");
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn who_comes_too_many_is_refused() {
        let mut queue = queue(2, 3);
        assert_eq!([1, 2, 3].map(|ticket| queue.push('a', ticket)), [Ok(None), Ok(None), Err(Full)]);
        // The newest of who has the most gives way to who has none.
        let found = [('b', 4), ('b', 5), ('c', 6), ('d', 7)].map(|(who, n)| queue.push(who, n));
        assert_eq!(found, [Ok(None), Err(Full), Ok(Some(('a', 2))), Err(Full)]);
        assert_eq!(drain(&mut queue), "a1 b4 c6 ");
        assert_eq!(queue.push('c', 7), Ok(None));
        let mut none = self::queue(0, 3);
        assert_eq!((none.push('a', 1), none.pop()), (Err(Full), None));
    }

    #[test]
    fn who_hangs_up_gives_room() {
        let mut queue = queue(2, 3);
        for (who, ticket) in [('a', 1), ('a', 2), ('b', 3)] {
            queue.push(who, ticket).unwrap();
        }
        assert_eq!(
            [('a', 3), ('c', 1), ('a', 1), ('a', 1)].map(|(who, n)| queue.cancel(who, &n)),
            [false, false, true, false]
        );
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.push('a', 4), Ok(None));
        assert!(queue.cancel('b', &3) && !queue.turns.contains(&'b'));
        assert!(queue.push('c', 5).is_ok() && queue.push('a', 6).is_err());
        assert_eq!(drain(&mut queue), "a2 c5 a4 ");
        // No turn is left behind that nobody has.
        queue.push('a', 7).unwrap();
        assert!(queue.cancel('a', &7) && queue.is_empty() && queue.turns.is_empty());
        queue.push('a', 8).unwrap();
        assert_eq!(drain(&mut queue), "a8 ");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(usize),
        Next,
        Cancel(usize),
        Take(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..4_usize).prop_map(Step::Push),
            2 => Just(Step::Next),
            1 => (0..200_usize).prop_map(Step::Cancel),
            1 => (0..4_usize).prop_map(Step::Take),
        ];
        prop::collection::vec(step, 0..200)
    }

    const WHO: [char; 4] = ['a', 'b', 'c', 'd'];

    proptest! {
        /// A ticket waits for at most one of each other address for each ticket of its own address that was before it.
        #[test]
        fn a_flood_delays_others_by_a_round(steps in steps()) {
            let mut queue = queue(6, 10);
            let mut pushed: Vec<(char, u32)> = Vec::new();
            // Of those that wait: who, ticket, turns of each address since it came, own tickets before it.
            let mut waiting: Vec<(char, u32, HashMap<char, usize>, usize)> = Vec::new();
            for (ticket, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(who) => {
                        let (who, ticket) = (WHO[who], ticket as u32);
                        let before = waiting.iter().filter(|(found, ..)| *found == who).count();
                        let count = |who| waiting.iter().filter(|(found, ..)| *found == who).count();
                        let most = WHO.into_iter().map(count).max().unwrap();
                        let is_full = waiting.len() >= 10;
                        let is_accepted = before < 6 && (!is_full || before == 0 && most > 1);
                        let pushed_now = queue.push(who, ticket);
                        prop_assert_eq!(pushed_now.is_ok(), is_accepted);
                        if let Ok(gave_way) = pushed_now {
                            prop_assert_eq!(gave_way.is_some(), is_full);
                            if let Some((of, ticket)) = gave_way {
                                prop_assert_eq!(count(of), most);
                                let at = waiting.iter().rposition(|(found, ..)| *found == of).unwrap();
                                prop_assert_eq!(waiting.remove(at).1, ticket);
                            }
                            waiting.push((who, ticket, HashMap::new(), before));
                            pushed.push((who, ticket));
                        }
                    }
                    Step::Next => {
                        let found = queue.pop();
                        prop_assert_eq!(found.is_some(), !waiting.is_empty());
                        let Some((who, ticket)) = found else { continue };
                        let at = waiting.iter().position(|(_, found, ..)| *found == ticket).unwrap();
                        // The oldest of its address.
                        prop_assert!(waiting[..at].iter().all(|(found, ..)| *found != who));
                        let (_, _, turns, before) = waiting.remove(at);
                        for (other, count) in turns {
                            if other != who {
                                prop_assert!(count <= before + 1, "{other} had {count} turns, {before} were before");
                            }
                        }
                        for (_, _, turns, _) in &mut waiting {
                            *turns.entry(who).or_default() += 1;
                        }
                    }
                    Step::Cancel(at) => {
                        let Some((who, ticket)) = pushed.get(at).copied() else { continue };
                        let place = waiting.iter().position(|(_, found, ..)| *found == ticket);
                        prop_assert_eq!(queue.cancel(who, &ticket), place.is_some());
                        if let Some(place) = place {
                            waiting.remove(place);
                        }
                    }
                    Step::Take(who) => {
                        let who = WHO[who];
                        let taken: Vec<u32> = queue.take(who).into();
                        let own = waiting.iter().filter(|(found, ..)| *found == who).map(|(_, ticket, ..)| *ticket);
                        prop_assert_eq!(taken, own.collect::<Vec<u32>>());
                        waiting.retain(|(found, ..)| *found != who);
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert_eq!(queue.turns.len(), queue.waiting.len());
            }
        }
    }
}
