//! Turns for work that runs a few at a time, fair by each of several keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::fair_queue::{Bounds, FairQueue, Full};

/// The waiting tickets. Each is in `N` fair queues, one for each of its keys.
#[derive(Debug)]
struct TurnQueue<K, T, const N: usize> {
    waiting_max: usize,
    by_key: [FairQueue<K, u64>; N],
    waiting: HashMap<u64, ([K; N], T)>,
    next_id: u64,
    /// The number of turns so far. The fair queues serve them in rotation.
    turns: usize,
}

impl<K: Clone + Eq + Hash, T, const N: usize> TurnQueue<K, T, N> {
    fn new(waiting_max: usize) -> Self {
        let bounds = Bounds { of_one: waiting_max, of_all: waiting_max };
        let by_key = std::array::from_fn(|_| FairQueue::new(bounds));
        TurnQueue { waiting_max, by_key, waiting: HashMap::new(), next_id: 0, turns: 0 }
    }

    /// Adds a ticket and returns its number. A full queue first displaces a ticket, as [`Turns`] says.
    ///
    /// # Errors
    /// [`Full`]: no ticket can be displaced.
    fn push(&mut self, keys: [K; N], ticket: T) -> Result<u64, Full> {
        if self.waiting.len() >= self.waiting_max {
            self.displace(&keys).ok_or(Full)?;
        }
        self.next_id += 1;
        for (queue, key) in self.by_key.iter_mut().zip(&keys) {
            queue.push(key.clone(), self.next_id)?;
        }
        self.waiting.insert(self.next_id, (keys, ticket));
        Ok(self.next_id)
    }

    fn displace(&mut self, keys: &[K; N]) -> Option<T> {
        let mut queues = self.by_key.iter_mut().zip(keys);
        let (_, id) = queues.find_map(|(queue, key)| {
            let own = queue.len_of(key.clone());
            queue.give_way(own + 2)
        })?;
        self.remove(id)
    }

    fn pop(&mut self) -> Option<T> {
        let at = self.turns.checked_rem(N)?;
        self.turns = self.turns.wrapping_add(1);
        let (_, id) = self.by_key.get_mut(at)?.pop()?;
        self.remove(id)
    }

    fn remove(&mut self, id: u64) -> Option<T> {
        let (keys, ticket) = self.waiting.remove(&id)?;
        for (queue, key) in self.by_key.iter_mut().zip(keys) {
            queue.cancel(key, &id);
        }
        Some(ticket)
    }
}

/// Turns for work that runs a few at a time.
///
/// A ticket has a key of each of `N` kinds, such as the database and the address that cause the work. Turns alternate
/// between the kinds, and keys of one kind take turns round-robin. Let M be the number of waiting keys of the kind that
/// has the fewest. A ticket that is the oldest of all its keys waits for at most N M others. So with two kinds neither a
/// client with many databases nor a database with many clients delays others.
///
/// In a full queue a new ticket displaces the newest ticket of the largest key of a kind, if that key has at least two
/// more tickets than the new ticket's key of this kind. The first kind of which this holds decides.
#[derive(Debug)]
pub struct Turns<K: Clone + Eq + Hash, const N: usize = 1>(Mutex<TurnsState<K, N>>);

#[derive(Debug)]
struct TurnsState<K: Clone + Eq + Hash, const N: usize> {
    free: usize,
    queue: TurnQueue<K, oneshot::Sender<Turn<K, N>>, N>,
    begun: u64,
}

/// The permit of one turn. Dropped, it passes to the next ticket.
#[derive(Debug)]
pub struct Turn<K: Clone + Eq + Hash, const N: usize = 1>(Option<Arc<Turns<K, N>>>);

impl<K: Clone + Eq + Hash, const N: usize> Turns<K, N> {
    /// `at_once` turns run in parallel; `waiting_max` tickets wait.
    pub fn new(at_once: usize, waiting_max: usize) -> Arc<Self> {
        Arc::new(Turns(Mutex::new(TurnsState { free: at_once, queue: TurnQueue::new(waiting_max), begun: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, TurnsState<K, N>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. A wait that is dropped leaves the queue.
    ///
    /// # Errors
    /// [`Full`]: the queue is full, or a ticket with a smaller key displaced this one.
    pub async fn wait(self: &Arc<Self>, keys: [K; N]) -> Result<Turn<K, N>, Full> {
        let (id, turn) = {
            let mut state = self.state();
            if let Some(free) = state.free.checked_sub(1) {
                state.free = free;
                state.begun += 1;
                return Ok(Turn(Some(self.clone())));
            }
            let (sender, turn) = oneshot::channel();
            (state.queue.push(keys, sender)?, turn)
        };
        let _ticket = Ticket { turns: self, id };
        turn.await.map_err(|_| Full)
    }

    /// Returns the number of waiting tickets.
    pub fn waiting(&self) -> usize {
        self.state().queue.waiting.len()
    }

    /// Returns the number of turns that have begun.
    pub fn begun(&self) -> u64 {
        self.state().begun
    }
}

/// A waiting request. Dropped, it removes its ticket from the queue.
struct Ticket<'t, K: Clone + Eq + Hash, const N: usize> {
    turns: &'t Turns<K, N>,
    id: u64,
}

impl<K: Clone + Eq + Hash, const N: usize> Drop for Ticket<'_, K, N> {
    fn drop(&mut self) {
        let sender = self.turns.state().queue.remove(self.id);
        drop(sender);
    }
}

impl<K: Clone + Eq + Hash, const N: usize> Drop for Turn<K, N> {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        let mut state = turns.state();
        while let Some(sender) = state.queue.pop() {
            match sender.send(Turn(Some(turns.clone()))) {
                Ok(()) => {
                    state.begun += 1;
                    return;
                }
                // The request was dropped. Emptying the turn keeps its own drop from taking the lock again.
                Err(mut turn) => turn.0 = None,
            }
        }
        state.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// The keys of a ticket: a database and an address.
    fn keys(address: u8, database: &str) -> [String; 2] {
        [database.to_owned(), address.to_string()]
    }

    fn drain(queue: &mut TurnQueue<String, u32, 2>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    fn is_empty(queue: &TurnQueue<String, u32, 2>) -> bool {
        queue.waiting.is_empty() && queue.by_key.iter().all(FairQueue::is_empty)
    }

    /// Returns how many tickets get a turn before the one that is added last.
    fn turns_before_the_last(others: impl Iterator<Item = [String; 2]>, last: [String; 2]) -> usize {
        let mut queue = TurnQueue::new(1_000);
        for other in others {
            queue.push(other, 0).unwrap();
        }
        queue.push(last, 1).unwrap();
        let at = drain(&mut queue).iter().position(|ticket| *ticket == 1);
        assert!(is_empty(&queue));
        at.unwrap()
    }

    #[test]
    fn neither_many_addresses_nor_many_databases_have_more_turns() {
        let quiet = || keys(2, "quiet");
        let one = turns_before_the_last((0..40).map(|_| keys(1, "noisy")), quiet());
        let of_many_addresses = turns_before_the_last((10..210).map(|at| keys(at, "noisy")), quiet());
        let of_many_databases = turns_before_the_last((0..200).map(|at| keys(1, &format!("noisy{at}"))), quiet());
        let of_its_database = turns_before_the_last((0..200).map(|_| keys(1, "quiet")), quiet());
        let of_its_address = turns_before_the_last((0..200).map(|_| keys(2, "noisy")), quiet());
        let all = [one, of_many_addresses, of_many_databases, of_its_database, of_its_address];
        assert!(all.iter().all(|before| *before <= 4), "{all:?}");
    }

    #[test]
    fn the_newest_ticket_of_the_largest_queue_gives_way() {
        let mut queue = TurnQueue::new(4);
        for ticket in 0..4 {
            queue.push(keys(1, "noisy"), ticket).unwrap();
        }
        assert_eq!(queue.push(keys(1, "noisy"), 4), Err(Full));
        // First of the database with the most tickets, then of the address with the most.
        queue.push(keys(2, "quiet"), 5).unwrap();
        queue.push(keys(3, "noisy"), 6).unwrap();
        queue.push(keys(2, "quiet"), 7).unwrap();
        assert_eq!(queue.push(keys(2, "quiet"), 8), Err(Full));
        assert_eq!(queue.waiting.len(), 4);
        let mut left = drain(&mut queue);
        left.sort_unstable();
        assert_eq!(left, [0, 1, 5, 7]);
        let id = queue.push(keys(1, "a"), 9).unwrap();
        assert_eq!((queue.remove(id), queue.remove(id)), (Some(9), None));
        assert!(is_empty(&queue));
    }

    #[tokio::test]
    async fn addresses_take_turns() {
        let turns = Turns::new(1, 100);
        let first = turns.wait([1]).await.unwrap();
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (address, number) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5)] {
            let (turns, done) = (turns.clone(), done.clone());
            tokio::spawn(async move {
                let _turn = turns.wait([address]).await;
                done.send(number).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop((first, done));
        let mut found = Vec::new();
        while let Some(number) = order.recv().await {
            found.push(number);
        }
        assert_eq!(found, [1, 4, 5, 2, 3]);
    }

    #[tokio::test]
    async fn turns_are_not_lost() {
        let turns = Turns::new(2, 3);
        let (one, two) = (turns.wait([1]).await.unwrap(), turns.wait([1]).await.unwrap());
        // A request that is dropped while it waits.
        let mut gone = Box::pin(turns.wait([1]));
        assert!((&mut gone).now_or_never().is_none());
        assert_eq!(turns.waiting(), 1);
        drop(gone);
        assert_eq!(turns.waiting(), 0);
        let mut there = Box::pin(turns.wait([1]));
        assert!((&mut there).now_or_never().is_none());
        drop(one);
        let three = there.await.unwrap();
        // A request that is dropped after it was sent its turn.
        let mut given = Box::pin(turns.wait([1]));
        assert!((&mut given).now_or_never().is_none());
        drop(two);
        drop(given);
        drop(three);
        let free = turns.state().free;
        assert_eq!((free, turns.begun()), (2, 4));
    }

    #[tokio::test]
    async fn a_request_of_another_database_is_queued() {
        let turns = Turns::new(1, 3);
        let held = turns.wait(keys(1, "db")).await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(turns.wait(keys(1, "db")))).collect();
        for waiting in &mut waiting {
            assert!(waiting.now_or_never().is_none());
        }
        assert!(turns.wait(keys(1, "db")).await.is_err(), "the queue is full");
        let mut other = Box::pin(turns.wait(keys(2, "other")));
        assert!((&mut other).now_or_never().is_none());
        assert_eq!(waiting.remove(2).await.err(), Some(Full), "it gave way");
        drop(waiting);
        drop(held);
        drop(other.await.unwrap());
    }
}
