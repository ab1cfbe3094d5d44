//! A fair queue of waiting work: each address gets a turn before any gets a second one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// The error of a full queue. Surfaces answer 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct Full;

/// The limits of waiting tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most tickets of one address.
    pub of_one: usize,
    /// The most tickets of all addresses. At this limit, a ticket of another address still enters as long as some
    /// address has two: the newest ticket of the address with the most tickets is evicted. A few addresses therefore
    /// cannot keep others out.
    pub of_all: usize,
}

/// Waiting tickets by sender: `W` is a client's network or the name of a database, `T` identifies a piece of work.
/// The tickets of an address are served in the order of their values, so senders number them.
///
/// Addresses take turns round-robin: the address at the front is served its oldest ticket and moves to the end if it
/// has more. A new ticket therefore waits for one ticket of each other address, however many these have. Each operation
/// takes logarithmic time.
#[derive(Debug)]
pub struct FairQueue<W, T> {
    bounds: Bounds,
    len: usize,
    /// Without empty entries.
    waiting: HashMap<W, WaitingTickets<T>>,
    /// The addresses with tickets, each once.
    turns: BTreeMap<u64, W>,
    /// The number of tickets of each address, with its turn.
    counts: BTreeSet<(usize, u64)>,
    last_turn: u64,
}

#[derive(Debug)]
struct WaitingTickets<T> {
    tickets: BTreeSet<T>,
    /// Its position among the turns; 0: none.
    turn: u64,
}

impl<W: Clone + Eq + Hash, T: Ord> FairQueue<W, T> {
    /// Creates an empty queue.
    pub fn new(bounds: Bounds) -> FairQueue<W, T> {
        let (waiting, turns, counts) = (HashMap::new(), BTreeMap::new(), BTreeSet::new());
        FairQueue { bounds, len: 0, waiting, turns, counts, last_turn: 0 }
    }

    /// Returns the number of waiting tickets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no ticket waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a ticket, which must be greater than the others of its address. Returns the ticket that was evicted for it,
    /// if any.
    ///
    /// # Errors
    /// [`Full`]: the limit of this address, or of all, is reached and no ticket can be evicted.
    pub fn push(&mut self, who: W, ticket: T) -> Result<Option<(W, T)>, Full> {
        let of_one = self.len_of(who.clone());
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
        self.change(&who, false, |tickets| tickets.insert(ticket));
        Ok(gave_way)
    }

    /// Evicts the newest ticket of the address with the most tickets if it has at least `at_least`.
    pub fn give_way(&mut self, at_least: usize) -> Option<(W, T)> {
        let (count, turn) = self.counts.last().copied()?;
        if count < at_least {
            return None;
        }
        let who = self.turns.get(&turn)?.clone();
        let ticket = self.change(&who, false, BTreeSet::pop_last)?;
        Some((who, ticket))
    }

    /// Returns the number of waiting tickets of an address.
    pub fn len_of(&self, who: W) -> usize {
        self.waiting.get(&who).map_or(0, |waiting| waiting.tickets.len())
    }

    /// Takes the next ticket.
    pub fn pop(&mut self) -> Option<(W, T)> {
        let (_, who) = self.turns.first_key_value()?;
        let who = who.clone();
        let ticket = self.change(&who, true, BTreeSet::pop_first)?;
        Some((who, ticket))
    }

    /// Takes all tickets of an address.
    pub fn take(&mut self, who: W) -> BTreeSet<T> {
        self.change(&who, false, std::mem::take)
    }

    /// Removes a ticket whose sender no longer waits; returns whether it was present.
    pub fn cancel(&mut self, who: W, ticket: &T) -> bool {
        self.change(&who, false, |tickets| tickets.remove(ticket))
    }

    /// Changes the tickets of an address and updates the turns; `goes_back`: the address had its turn.
    fn change<R>(&mut self, who: &W, goes_back: bool, change: impl FnOnce(&mut BTreeSet<T>) -> R) -> R {
        let none = || WaitingTickets { tickets: BTreeSet::new(), turn: 0 };
        let waiting = self.waiting.entry(who.clone()).or_insert_with(none);
        let before = waiting.tickets.len();
        let changed = change(&mut waiting.tickets);
        let after = waiting.tickets.len();
        self.len = self.len + after - before;
        self.counts.remove(&(before, waiting.turn));
        if after == 0 || before == 0 || goes_back {
            self.turns.remove(&waiting.turn);
        }
        if after == 0 {
            self.waiting.remove(who);
            return changed;
        }
        if before == 0 || goes_back {
            self.last_turn += 1;
            waiting.turn = self.last_turn;
            self.turns.insert(waiting.turn, who.clone());
        }
        self.counts.insert((after, waiting.turn));
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

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
        // The address with the most tickets loses its newest to addresses without any.
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
        assert!(queue.cancel('b', &3) && queue.turns.values().all(|who| *who != 'b'));
        assert!(queue.push('c', 5).is_ok() && queue.push('a', 6).is_err());
        assert_eq!(drain(&mut queue), "a2 c5 a4 ");
        // No turn remains without tickets.
        queue.push('a', 7).unwrap();
        assert!(queue.cancel('a', &7) && queue.is_empty() && queue.turns.is_empty());
        queue.push('a', 8).unwrap();
        assert_eq!(drain(&mut queue), "a8 ");
    }

    thread_local! {
        /// The number of ticket comparisons on this thread.
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Debug)]
    struct CountedGrant(u32);

    impl Ord for CountedGrant {
        fn cmp(&self, other: &CountedGrant) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for CountedGrant {
        fn partial_cmp(&self, other: &CountedGrant) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for CountedGrant {
        fn eq(&self, other: &CountedGrant) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for CountedGrant {}

    /// Returns the comparisons needed to queue `count` tickets of one address and to cancel them, newest first.
    fn compared(count: u32) -> usize {
        let mut queue = FairQueue::new(Bounds { of_one: usize::MAX, of_all: usize::MAX });
        COMPARED.set(0);
        for ticket in 0..count {
            queue.push('a', CountedGrant(ticket)).unwrap();
        }
        assert!((0..count).rev().all(|ticket| queue.cancel('a', &CountedGrant(ticket))) && queue.is_empty());
        COMPARED.get()
    }

    #[test]
    fn a_ticket_costs_little_more_among_many() {
        let (few, many) = (compared(64), compared(1_024));
        assert!(many < 16 * few * 4, "{few} comparisons of 64 tickets, {many} of 1,024");
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
        /// A ticket waits for at most one ticket of each other address per ticket of its own address before it.
        #[test]
        fn a_flood_delays_others_by_a_round(steps in steps()) {
            let mut queue = queue(6, 10);
            let mut pushed: Vec<(char, u32)> = Vec::new();
            // Waiting tickets: sender, ticket, turns of each address since it arrived, own tickets before it.
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
                        let taken: Vec<u32> = queue.take(who).into_iter().collect();
                        let own = waiting.iter().filter(|(found, ..)| *found == who).map(|(_, ticket, ..)| *ticket);
                        prop_assert_eq!(taken, own.collect::<Vec<u32>>());
                        waiting.retain(|(found, ..)| *found != who);
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert_eq!((queue.turns.len(), queue.counts.len()), (queue.waiting.len(), queue.waiting.len()));
            }
        }
    }
}
