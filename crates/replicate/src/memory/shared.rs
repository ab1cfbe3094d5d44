//! A budget of bytes that owners share.
//!
//! The owner that holds the least is served first. If its first request waits for longer than the budget's patience,
//! the owner that holds the most gives way: its oldest holder is recalled and must return all that it holds. An owner
//! gives way only if it holds more than twice as much as the waiting owner would then. So a single owner may hold
//! everything until another owner wants some of it, and owners with similar shares leave each other alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// The owner of memory: a user. `None`: all administrators together.
pub(crate) type MemoryOwner = Option<Arc<str>>;

#[derive(Debug)]
struct HolderState {
    owner: MemoryOwner,
    bytes: usize,
    /// The time since which it has held bytes without a break.
    since: Option<Instant>,
    /// Recalls skip this holder: it holds the reserve and must proceed.
    is_kept: bool,
    recall: watch::Sender<bool>,
}

impl HolderState {
    fn is_recalled(&self) -> bool {
        *self.recall.borrow()
    }
}

#[derive(Debug)]
struct Request {
    holder: u64,
    bytes: usize,
    granted: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct OwnerState {
    holders: usize,
    bytes: usize,
    /// The bytes of holders that are recalled and have not returned them yet.
    recalled_bytes: usize,
    /// The waiting requests, by ticket.
    requests: BTreeMap<u64, Request>,
}

#[derive(Debug)]
struct SharedState {
    free: usize,
    last_id: u64,
    /// The number of [`SharedWaiter`]s.
    waiters: usize,
    holders: BTreeMap<u64, HolderState>,
    /// Without owners that have no holder.
    owners: BTreeMap<MemoryOwner, OwnerState>,
}

impl SharedState {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn bytes_of(&self, owner: &MemoryOwner) -> usize {
        self.owners.get(owner).map_or(0, |state| state.bytes)
    }

    /// Returns the owner that is served next, and the ticket of its first request.
    fn first(&self) -> Option<(MemoryOwner, u64)> {
        let waiting = self.owners.iter().filter_map(|(owner, state)| {
            let ticket = *state.requests.keys().next()?;
            Some((state.bytes, ticket, owner))
        });
        waiting.min().map(|(_, ticket, owner)| (owner.clone(), ticket))
    }

    /// Adds a request and returns its ticket.
    fn enqueue(&mut self, request: Request) -> u64 {
        let ticket = self.next_id();
        if let Some(holder) = self.holders.get(&request.holder)
            && let Some(owner) = self.owners.get_mut(&holder.owner)
        {
            owner.requests.insert(ticket, request);
        }
        ticket
    }

    /// Removes a request; returns whether it was still waiting.
    fn dequeue(&mut self, id: u64, ticket: u64) -> bool {
        let Some(holder) = self.holders.get(&id) else { return false };
        self.owners.get_mut(&holder.owner).is_some_and(|owner| owner.requests.remove(&ticket).is_some())
    }

    fn add(&mut self, id: u64, bytes: usize) {
        let Some(holder) = self.holders.get_mut(&id) else { return };
        self.free = self.free.saturating_sub(bytes);
        holder.bytes += bytes;
        if bytes > 0 {
            holder.since.get_or_insert_with(Instant::now);
        }
        if let Some(owner) = self.owners.get_mut(&holder.owner) {
            owner.bytes += bytes;
            owner.recalled_bytes += if holder.is_recalled() { bytes } else { 0 };
        }
    }

    /// Returns bytes of a holder. The recall of an empty holder is over.
    fn give_back(&mut self, id: u64, bytes: usize) {
        let Some(holder) = self.holders.get_mut(&id) else { return };
        let bytes = bytes.min(holder.bytes);
        self.free += bytes;
        holder.bytes -= bytes;
        if let Some(owner) = self.owners.get_mut(&holder.owner) {
            owner.bytes -= bytes;
            owner.recalled_bytes -= if holder.is_recalled() { bytes } else { 0 };
        }
        if holder.bytes == 0 {
            holder.since = None;
            holder.recall.send_if_modified(std::mem::take);
        }
        self.serve();
    }

    /// Grants requests in order, as long as the next one fits.
    fn serve(&mut self) {
        while let Some((owner, ticket)) = self.first() {
            let Some(state) = self.owners.get_mut(&owner) else { return };
            if state.requests.get(&ticket).is_none_or(|request| request.bytes > self.free) {
                return;
            }
            let Some(request) = state.requests.remove(&ticket) else { return };
            self.add(request.holder, request.bytes);
            // A wait that is dropped has removed its request before.
            let _ = request.granted.send(());
        }
    }

    /// Takes bytes if they are free and no owner that holds less waits.
    fn try_take(&mut self, id: u64, bytes: usize) -> bool {
        // Most pieces need no further bytes. The search for the first request looks at all owners.
        if bytes == 0 {
            return true;
        }
        let Some(holder) = self.holders.get(&id) else { return false };
        let held = self.bytes_of(&holder.owner);
        let is_free = bytes <= self.free && self.first().is_none_or(|(owner, _)| self.bytes_of(&owner) > held);
        if is_free {
            self.add(id, bytes);
        }
        is_free
    }

    /// Recalls holders for a request, if it is the first, until its bytes are free or will be.
    fn recall_for(&mut self, ticket: u64) {
        let Some((owner, _)) = self.first().filter(|(_, first)| *first == ticket) else { return };
        let Some(wanted) = self.owners.get(&owner).and_then(|state| state.requests.get(&ticket)) else { return };
        let wanted = wanted.bytes;
        let share = self.bytes_of(&owner) + wanted;
        let mut coming = self.free + self.owners.values().map(|state| state.recalled_bytes).sum::<usize>();
        while coming < wanted {
            let yielding = |holder: &HolderState| holder.bytes > 0 && !holder.is_kept && !holder.is_recalled();
            let others: BTreeSet<&MemoryOwner> =
                self.holders.values().filter(|holder| yielding(holder)).map(|holder| &holder.owner).collect();
            let left = |other: &MemoryOwner| {
                self.owners.get(other).map_or(0, |state| state.bytes.saturating_sub(state.recalled_bytes))
            };
            let largest = others.into_iter().filter(|other| **other != owner).max_by_key(|other| left(other)).cloned();
            let Some(largest) = largest.filter(|largest| left(largest) > 2 * share) else { return };
            let of_largest = self.holders.values_mut().filter(|holder| holder.owner == largest && yielding(holder));
            let Some(holder) = of_largest.min_by_key(|holder| holder.since) else { return };
            holder.recall.send_replace(true);
            coming += holder.bytes;
            let bytes = holder.bytes;
            if let Some(state) = self.owners.get_mut(&largest) {
                state.recalled_bytes += bytes;
            }
        }
    }
}

/// A budget of bytes that owners share.
#[derive(Debug)]
pub(crate) struct SharedBudget {
    limit: usize,
    /// The time that the first request waits for bytes that are returned anyway.
    patience: Duration,
    state: Mutex<SharedState>,
}

impl SharedBudget {
    pub(crate) fn new(limit: usize, patience: Duration) -> Arc<SharedBudget> {
        let (holders, owners) = Default::default();
        let state = Mutex::new(SharedState { free: limit, last_id: 0, waiters: 0, holders, owners });
        Arc::new(SharedBudget { limit, patience, state })
    }

    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        self.limit.saturating_sub(self.state().free)
    }

    /// Returns whether a request is within the limit.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        bytes <= self.limit
    }

    /// Returns whether there is a [`SharedWaiter`], so that holders should return what they can.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.state().waiters > 0
    }

    /// Declares that a task waits for this budget.
    pub(crate) fn waiter(&self) -> SharedWaiter<'_> {
        self.state().waiters += 1;
        SharedWaiter(self)
    }

    /// Creates an empty holder.
    pub(crate) fn holder(self: &Arc<Self>, owner: MemoryOwner) -> SharedHolder {
        let recall = watch::Sender::new(false);
        let recalled = recall.subscribe();
        let mut state = self.state();
        let id = state.next_id();
        state.owners.entry(owner.clone()).or_default().holders += 1;
        state.holders.insert(id, HolderState { owner, bytes: 0, since: None, is_kept: false, recall });
        drop(state);
        SharedHolder { budget: self.clone(), id, recalled }
    }
}

/// Counts a task as a waiter for a budget until dropped.
#[derive(Debug)]
pub(crate) struct SharedWaiter<'b>(&'b SharedBudget);

impl Drop for SharedWaiter<'_> {
    fn drop(&mut self) {
        self.0.state().waiters -= 1;
    }
}

/// Bytes of a [`SharedBudget`] that are recalled together. Returned on drop.
#[derive(Debug)]
pub(crate) struct SharedHolder {
    budget: Arc<SharedBudget>,
    id: u64,
    recalled: watch::Receiver<bool>,
}

impl SharedHolder {
    pub(crate) fn bytes(&self) -> usize {
        self.budget.state().holders.get(&self.id).map_or(0, |holder| holder.bytes)
    }

    /// Takes bytes that are free and that no owner with less waits for. False: there are not enough.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        self.budget.state().try_take(self.id, bytes)
    }

    /// Waits for bytes, and has other owners return some. Never resolves if the request exceeds the limit.
    pub(crate) async fn take(&self, bytes: usize) {
        let (granted, mut grant) = oneshot::channel();
        let mut wait = {
            let mut state = self.budget.state();
            if state.try_take(self.id, bytes) {
                return;
            }
            let ticket = state.enqueue(Request { holder: self.id, bytes, granted });
            SharedWait { holder: self, ticket, bytes, is_done: false }
        };
        loop {
            tokio::select! {
                biased;
                _ = &mut grant => {
                    wait.is_done = true;
                    return;
                }
                () = tokio::time::sleep(self.budget.patience) => self.budget.state().recall_for(wait.ticket),
            }
        }
    }

    /// Returns bytes.
    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.budget.state().give_back(self.id, bytes);
        }
    }

    /// Sets whether the holder is spared when others are recalled.
    pub(crate) fn keep(&self, is_kept: bool) {
        if let Some(holder) = self.budget.state().holders.get_mut(&self.id) {
            holder.is_kept = is_kept;
        }
    }

    /// Returns whether all its bytes must be returned.
    pub(crate) fn is_recalled(&self) -> bool {
        *self.recalled.borrow()
    }

    /// Resolves when all its bytes must be returned.
    pub(crate) async fn recalled(&self) {
        if self.recalled.clone().wait_for(|recalled| *recalled).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for SharedHolder {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.give_back(self.id, usize::MAX);
        let Some(holder) = state.holders.remove(&self.id) else { return };
        if let Some(owner) = state.owners.get_mut(&holder.owner) {
            owner.holders -= 1;
            if owner.holders == 0 {
                state.owners.remove(&holder.owner);
            }
        }
    }
}

/// A waiting request. Dropped, it leaves the queue, and returns bytes that were granted meanwhile.
struct SharedWait<'h> {
    holder: &'h SharedHolder,
    ticket: u64,
    bytes: usize,
    is_done: bool,
}

impl Drop for SharedWait<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut state = self.holder.budget.state();
        if state.dequeue(self.holder.id, self.ticket) {
            // The next request may fit.
            state.serve();
        } else {
            state.give_back(self.holder.id, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::pass;
    use futures_util::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(500);

    fn user(name: &str) -> MemoryOwner {
        Some(name.into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_that_holds_the_most_gives_way_to_another_one() {
        let budget = SharedBudget::new(100, PATIENCE);
        let of_eve: Vec<SharedHolder> = (0..10).map(|_| budget.holder(user("eve"))).collect();
        assert!(of_eve.iter().all(|holder| holder.try_take(10)), "a single owner may hold everything");
        let nora = budget.holder(user("nora"));
        let mut taken = std::pin::pin!(nora.take(15));
        assert!(taken.as_mut().now_or_never().is_none());
        assert!(of_eve.iter().all(|holder| !holder.is_recalled()), "bytes may be returned anyway");
        pass(PATIENCE).await;
        assert!(taken.as_mut().now_or_never().is_none());
        let recalled: Vec<bool> = of_eve.iter().map(SharedHolder::is_recalled).collect();
        assert_eq!(recalled, [true, true, false, false, false, false, false, false, false, false]);
        of_eve[0].recalled().await;
        pass(PATIENCE).await;
        assert!(taken.as_mut().now_or_never().is_none());
        assert_eq!(of_eve.iter().filter(|holder| holder.is_recalled()).count(), 2, "no more than needed");
        of_eve[0].give_back(10);
        assert!(!of_eve[0].is_recalled());
        of_eve[1].give_back(10);
        taken.await;
        assert_eq!((nora.bytes(), budget.used()), (15, 95));
    }

    #[tokio::test(start_paused = true)]
    async fn owners_with_similar_shares_do_not_give_way() {
        let budget = SharedBudget::new(100, PATIENCE);
        let [anna, nora] = ["anna", "nora"].map(|name| budget.holder(user(name)));
        assert!(anna.try_take(50) && nora.try_take(45));
        let mut taken = std::pin::pin!(nora.take(10));
        assert!(taken.as_mut().now_or_never().is_none());
        pass(4 * PATIENCE).await;
        assert!(taken.as_mut().now_or_never().is_none());
        assert!(!anna.is_recalled());
        let admin = budget.holder(None);
        admin.take(5).await;
        anna.give_back(50);
        taken.await;
        assert_eq!((nora.bytes(), admin.bytes()), (55, 5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_that_holds_the_least_is_served_first() {
        let budget = SharedBudget::new(100, Duration::from_secs(3_600));
        let [eve, mallory, nora] = ["eve", "mallory", "nora"].map(|name| budget.holder(user(name)));
        assert!(eve.try_take(70) && mallory.try_take(30));
        let (mut more_of_eve, mut more_of_mallory) = (Box::pin(eve.take(20)), Box::pin(mallory.take(20)));
        let mut of_nora = Box::pin(nora.take(20));
        for wait in [&mut more_of_eve, &mut more_of_mallory, &mut of_nora] {
            assert!(wait.now_or_never().is_none());
        }
        eve.give_back(20);
        of_nora.await;
        eve.give_back(15);
        assert!((&mut more_of_mallory).now_or_never().is_none());
        nora.give_back(5);
        more_of_mallory.await;
        nora.give_back(10);
        let more = budget.holder(user("eve"));
        assert!(!more.try_take(1), "an earlier request of the same owner waits");
        drop(more_of_eve);
        assert!(more.try_take(10) && !more.try_take(1));
        drop((eve, mallory, nora, more));
        assert_eq!((budget.used(), budget.state().owners.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_holder_is_spared_and_a_dropped_wait_returns_what_it_was_granted() {
        let budget = SharedBudget::new(100, PATIENCE);
        let [one, two] = [(); 2].map(|()| budget.holder(user("eve")));
        assert!(one.try_take(90) && two.try_take(10));
        one.keep(true);
        let nora = budget.holder(user("nora"));
        let mut taken = Box::pin(nora.take(10));
        assert!((&mut taken).now_or_never().is_none());
        pass(PATIENCE).await;
        assert!((&mut taken).now_or_never().is_none());
        assert!(!one.is_recalled() && two.is_recalled());
        drop(two);
        assert_eq!(nora.bytes(), 10);
        drop(taken);
        assert_eq!((nora.bytes(), budget.used()), (0, 90));
    }
}
