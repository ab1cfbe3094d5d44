//! Turns for CPU-bound work: a few run in parallel, the others wait in a queue that is fair by address and by
//! database.
//!
//! A turn is one slice of work. A request with more work queues again for each slice.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flatbed_admission::{Bounds, FairQueue, Full};
use flatbed_network::Network;
use tokio::sync::oneshot;

/// The length of a turn. It ends at the first boundary between two documents after this time, or inside a document
/// after [`flatbed_mango::slice_steps`].
pub(crate) const SLICE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(20) };

/// The client and the database that cause the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) address: Network,
    pub(crate) database: Arc<str>,
}

/// Hashes a client's network to the number that decides the client's turn in calls of functions.
pub(crate) fn client_number(address: Network) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

/// The queue of tickets. Each ticket is in two fair queues: one by address, one by database.
///
/// Turns alternate between the two queues. Let N be the number of waiting addresses or of waiting databases,
/// whichever is smaller. The oldest ticket of an address and of a database waits for at most 2 N others. So neither a
/// client with many databases nor a database with many clients delays others.
#[derive(Debug)]
struct TurnQueue<T> {
    waiting_max: usize,
    by_address: FairQueue<Network, u64>,
    by_database: FairQueue<Arc<str>, u64>,
    waiting: HashMap<u64, (Origin, T)>,
    next_id: u64,
    is_by_database: bool,
}

impl<T> TurnQueue<T> {
    fn new(waiting_max: usize) -> TurnQueue<T> {
        let bounds = Bounds { of_one: waiting_max, of_all: waiting_max };
        TurnQueue {
            waiting_max,
            by_address: FairQueue::new(bounds),
            by_database: FairQueue::new(bounds),
            waiting: HashMap::new(),
            next_id: 0,
            is_by_database: false,
        }
    }

    /// Adds a ticket and returns its number. A full queue first drops the newest ticket of the database with the most
    /// tickets, or else of the address with the most, if that has at least two more than the database or address of
    /// this ticket.
    ///
    /// # Errors
    /// [`Full`]: no ticket can be dropped.
    fn push(&mut self, origin: &Origin, ticket: T) -> Result<u64, Full> {
        if self.waiting.len() >= self.waiting_max {
            self.displace(origin).ok_or(Full)?;
        }
        self.next_id += 1;
        let id = self.next_id;
        self.by_address.push(origin.address, id)?;
        self.by_database.push(origin.database.clone(), id)?;
        self.waiting.insert(id, (origin.clone(), ticket));
        Ok(id)
    }

    fn displace(&mut self, origin: &Origin) -> Option<T> {
        let of_database = self.by_database.len_of(origin.database.clone());
        let of_address = self.by_address.len_of(origin.address);
        let by_database = self.by_database.give_way(of_database + 2).map(|(_, id)| id);
        let id = by_database.or_else(|| self.by_address.give_way(of_address + 2).map(|(_, id)| id))?;
        self.remove(id)
    }

    fn pop(&mut self) -> Option<T> {
        self.is_by_database = !self.is_by_database;
        let id = match self.is_by_database {
            true => self.by_database.pop().map(|(_, id)| id),
            false => self.by_address.pop().map(|(_, id)| id),
        };
        self.remove(id?)
    }

    fn remove(&mut self, id: u64) -> Option<T> {
        let (Origin { address, database }, ticket) = self.waiting.remove(&id)?;
        self.by_address.cancel(address, &id);
        self.by_database.cancel(database, &id);
        Some(ticket)
    }
}

#[derive(Debug)]
pub(crate) struct Turns(Mutex<TurnsState>);

#[derive(Debug)]
struct TurnsState {
    free: usize,
    queue: TurnQueue<oneshot::Sender<Turn>>,
    begun: u64,
}

/// The permit to run one slice. Dropped, it passes to the next ticket.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Turns {
    /// `at_once` turns run in parallel; `waiting_max` tickets wait.
    pub(crate) fn new(at_once: usize, waiting_max: usize) -> Arc<Turns> {
        Arc::new(Turns(Mutex::new(TurnsState { free: at_once, queue: TurnQueue::new(waiting_max), begun: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, TurnsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// [`Full`]: the queue is full, or this ticket was dropped for one of a database or an address with fewer tickets.
    pub(crate) async fn wait(self: &Arc<Self>, origin: &Origin) -> Result<Turn, Full> {
        let (id, turn) = {
            let mut state = self.state();
            if let Some(free) = state.free.checked_sub(1) {
                state.free = free;
                state.begun += 1;
                return Ok(Turn(Some(self.clone())));
            }
            let (sender, turn) = oneshot::channel();
            (state.queue.push(origin, sender)?, turn)
        };
        let _ticket = Ticket { turns: self, id };
        turn.await.map_err(|_| Full)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state().queue.waiting.len()
    }

    pub(crate) fn begun(&self) -> u64 {
        self.state().begun
    }
}

/// A waiting request. Dropped, it removes its ticket from the queue.
struct Ticket<'t> {
    turns: &'t Turns,
    id: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let sender = self.turns.state().queue.remove(self.id);
        drop(sender);
    }
}

impl Drop for Turn {
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

/// The timer of one turn.
#[derive(Debug)]
pub(crate) struct Slice(Instant);

impl Slice {
    pub(crate) fn begin() -> Slice {
        Slice(Instant::now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.elapsed() >= SLICE
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::{soon, until};
    use futures_util::FutureExt;

    use super::*;

    fn origin(address: u8, database: &str) -> Origin {
        Origin { address: std::net::IpAddr::from([10, 0, 0, address]).into(), database: database.into() }
    }

    fn drain(queue: &mut TurnQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    /// Returns how many tickets get a turn before the one that is added last.
    fn turns_before_the_last(others: impl Iterator<Item = Origin>, last: &Origin) -> usize {
        let mut queue = TurnQueue::new(1_000);
        for other in others {
            queue.push(&other, 0).unwrap();
        }
        queue.push(last, 1).unwrap();
        let at = drain(&mut queue).iter().position(|ticket| *ticket == 1);
        assert!(queue.waiting.is_empty() && queue.by_address.is_empty() && queue.by_database.is_empty());
        at.unwrap()
    }

    #[test]
    fn neither_many_addresses_nor_many_databases_have_more_turns() {
        let quiet = origin(2, "quiet");
        let one = turns_before_the_last((0..40).map(|_| origin(1, "noisy")), &quiet);
        let of_many_addresses = turns_before_the_last((10..210).map(|at| origin(at, "noisy")), &quiet);
        let of_many_databases = turns_before_the_last((0..200).map(|at| origin(1, &format!("noisy{at}"))), &quiet);
        let of_its_database = turns_before_the_last((0..200).map(|_| origin(1, "quiet")), &quiet);
        let of_its_address = turns_before_the_last((0..200).map(|_| origin(2, "noisy")), &quiet);
        let all = [one, of_many_addresses, of_many_databases, of_its_database, of_its_address];
        assert!(all.iter().all(|before| *before <= 4), "{all:?}");
    }

    #[test]
    fn the_newest_ticket_of_the_largest_queue_gives_way() {
        let mut queue = TurnQueue::new(4);
        for ticket in 0..4 {
            queue.push(&origin(1, "noisy"), ticket).unwrap();
        }
        assert_eq!(queue.push(&origin(1, "noisy"), 4), Err(Full));
        // It is first the database with the most tickets, then the address with the most.
        queue.push(&origin(2, "quiet"), 5).unwrap();
        queue.push(&origin(3, "noisy"), 6).unwrap();
        queue.push(&origin(2, "quiet"), 7).unwrap();
        assert_eq!(queue.push(&origin(2, "quiet"), 8), Err(Full));
        assert_eq!(queue.waiting.len(), 4);
        let mut left = drain(&mut queue);
        left.sort_unstable();
        assert_eq!(left, [0, 1, 5, 7]);
        let id = queue.push(&origin(1, "a"), 9).unwrap();
        assert_eq!((queue.remove(id), queue.remove(id)), (Some(9), None));
        assert!(queue.waiting.is_empty() && queue.by_address.is_empty() && queue.by_database.is_empty());
    }

    #[tokio::test]
    async fn turns_are_not_lost() {
        let (turns, of) = (Turns::new(2, 3), origin(1, "db"));
        let (one, two) = (turns.wait(&of).await.unwrap(), turns.wait(&of).await.unwrap());
        // A waiting request is dropped.
        let mut gone = Box::pin(turns.wait(&of));
        assert!((&mut gone).now_or_never().is_none());
        assert_eq!(turns.waiting(), 1);
        drop(gone);
        assert_eq!(turns.waiting(), 0);
        let mut there = Box::pin(turns.wait(&of));
        assert!((&mut there).now_or_never().is_none());
        drop(one);
        let three = soon(there).await.unwrap();
        // A request is dropped after its turn was sent.
        let mut given = Box::pin(turns.wait(&of));
        assert!((&mut given).now_or_never().is_none());
        drop(two);
        drop(given);
        drop(three);
        let free = turns.state().free;
        assert_eq!((free, turns.begun()), (2, 4));
    }

    #[tokio::test]
    async fn a_request_of_another_database_is_queued() {
        let (turns, of) = (Turns::new(1, 3), origin(1, "db"));
        let held = turns.wait(&of).await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(turns.wait(&of))).collect();
        for waiting in &mut waiting {
            assert!(waiting.now_or_never().is_none());
        }
        assert!(turns.wait(&of).await.is_err(), "the queue is full");
        let other = tokio::spawn({
            let turns = turns.clone();
            async move { turns.wait(&origin(2, "other")).await.map(drop) }
        });
        until("the other one waits", async || turns.state().queue.by_database.len_of("other".into()) == 1).await;
        assert_eq!(soon(waiting.remove(2)).await.err(), Some(Full), "it gave way");
        drop(waiting);
        drop(held);
        soon(other).await.unwrap().unwrap();
    }
}
