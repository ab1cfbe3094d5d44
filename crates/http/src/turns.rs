//! Limits concurrent processor-intensive work, fairly by address.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_admission::{Bounds, FairQueue};
use flatbed_network::Network;
use tokio::sync::oneshot;

/// The unit by which connections are counted. All connections without an address are one unit.
pub(crate) type Who = Option<Network>;

#[derive(Debug)]
pub(crate) struct Turns(Mutex<TurnsState>);

#[derive(Debug)]
struct TurnsState {
    free: usize,
    next: u64,
    waiting: FairQueue<Who, Ticket>,
}

#[derive(Debug)]
struct Ticket {
    number: u64,
    turn: oneshot::Sender<Turn>,
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        self.number == other.number
    }
}

impl Eq for Ticket {}

impl PartialOrd for Ticket {
    fn partial_cmp(&self, other: &Ticket) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ticket {
    fn cmp(&self, other: &Ticket) -> Ordering {
        self.number.cmp(&other.number)
    }
}

#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Turns {
    pub(crate) fn new(at_once: usize, waiting_max: usize) -> Arc<Turns> {
        let bounds = Bounds { of_one: waiting_max, of_all: waiting_max };
        Arc::new(Turns(Mutex::new(TurnsState { free: at_once, next: 0, waiting: FairQueue::new(bounds) })))
    }

    fn state(&self) -> MutexGuard<'_, TurnsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. Returns `None` if the queue is full.
    pub(crate) async fn wait(self: &Arc<Self>, who: Who) -> Option<Turn> {
        let turn = {
            let mut state = self.state();
            if let Some(free) = state.free.checked_sub(1) {
                state.free = free;
                return Some(Turn(Some(self.clone())));
            }
            let (sender, turn) = oneshot::channel();
            state.next += 1;
            let ticket = Ticket { number: state.next, turn: sender };
            state.waiting.push(who, ticket).ok()?;
            turn
        };
        // Cancelled waits are skipped when a turn is passed on.
        turn.await.ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        let mut state = turns.state();
        while let Some((_, ticket)) = state.waiting.pop() {
            match ticket.turn.send(Turn(Some(turns.clone()))) {
                Ok(()) => return,
                // The receiver was cancelled: the loop passes the turn to the next one.
                Err(mut turn) => turn.0 = None,
            }
        }
        state.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_take_turns() {
        let turns = Turns::new(1, 100);
        let who = |n: u8| Some(Network::from(std::net::IpAddr::from([10, 0, 0, n])));
        let first = turns.wait(who(1)).await.unwrap();
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (n, number) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5)] {
            let (turns, done) = (turns.clone(), done.clone());
            tokio::spawn(async move {
                let _turn = turns.wait(who(n)).await;
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
        let (one, two) = (turns.wait(None).await.unwrap(), turns.wait(None).await.unwrap());
        let mut gone = Box::pin(turns.wait(None));
        assert!(poll_once(&mut gone).await.is_none());
        let mut there = Box::pin(turns.wait(None));
        assert!(poll_once(&mut there).await.is_none());
        drop(gone);
        drop(one);
        let three = there.await.unwrap();
        let mut taken = Box::pin(turns.wait(None));
        assert!(poll_once(&mut taken).await.is_none());
        drop(two);
        drop(taken);
        drop(three);
        assert_eq!(turns.state().free, 2);
        let _held = (turns.wait(None).await, turns.wait(None).await);
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(turns.wait(None))).collect();
        for waiting in &mut waiting {
            assert!(poll_once(waiting).await.is_none());
        }
        assert!(turns.wait(None).await.is_none());
    }

    async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
                std::task::Poll::Ready(found) => Some(found),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
