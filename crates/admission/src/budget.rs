//! A budget of bytes that tasks take and return.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, Semaphore};

/// A budget of bytes, counted in units.
///
/// Requests are rounded up to whole units and served in order, so that small requests do not overtake a large one. A
/// request beyond the limit is refused, because it would wait forever. A caller whose request must succeed whatever its
/// size takes at most [`Budget::limit`].
#[derive(Debug)]
pub struct Budget {
    free: Semaphore,
    /// All units, at most `u32::MAX`.
    units: usize,
    unit_bytes: usize,
    /// The number of [`Waiter`]s. `became_short` is notified when it rises.
    waiters: AtomicUsize,
    became_short: Notify,
}

impl Budget {
    /// Creates a budget of `bytes`, rounded down to whole units.
    pub fn new(bytes: usize, unit_bytes: usize) -> Arc<Budget> {
        let unit_bytes = unit_bytes.max(1);
        let units = (bytes / unit_bytes).min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        let (waiters, became_short) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Budget { free: Semaphore::new(units), units, unit_bytes, waiters, became_short })
    }

    /// Returns all bytes, taken or not.
    pub fn limit(&self) -> usize {
        self.units * self.unit_bytes
    }

    /// Returns the unreserved bytes.
    pub fn free(&self) -> usize {
        self.free.available_permits() * self.unit_bytes
    }

    /// Returns the bytes that are taken.
    pub fn used(&self) -> usize {
        self.limit().saturating_sub(self.free())
    }

    /// Returns whether a request is within the limit.
    pub fn fits(&self, bytes: usize) -> bool {
        self.units_of(bytes).is_some()
    }

    fn units_of(&self, bytes: usize) -> Option<u32> {
        let units = bytes.div_ceil(self.unit_bytes);
        u32::try_from(units).ok().filter(|_| units <= self.units)
    }

    /// Takes bytes that are free and that no earlier request waits for. `None`: there are not enough.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Grant> {
        let units = self.units_of(bytes)?;
        self.free.try_acquire_many(units).ok()?.forget();
        Some(Grant { budget: self.clone(), units })
    }

    /// Waits for bytes in turn. `None`: the request exceeds the limit.
    pub async fn take(self: &Arc<Self>, bytes: usize) -> Option<Grant> {
        let units = self.units_of(bytes)?;
        // The semaphore is never closed.
        self.free.acquire_many(units).await.ok()?.forget();
        Some(Grant { budget: self.clone(), units })
    }

    /// Declares that a task waits for this budget. The task decides from when on: [`Budget::take`] declares nothing.
    pub fn waiter(&self) -> Waiter<'_> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        self.became_short.notify_waiters();
        Waiter(self)
    }

    /// Returns whether there is a [`Waiter`], so that holders should return what they can.
    pub fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Waits until [`Budget::is_waited_for`].
    pub async fn waited_for(&self) {
        let mut became_short = std::pin::pin!(self.became_short.notified());
        became_short.as_mut().enable();
        if !self.is_waited_for() {
            became_short.await;
        }
    }
}

/// Counts a task as a waiter for a budget until dropped.
#[derive(Debug)]
pub struct Waiter<'b>(&'b Budget);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes taken from a budget, returned on drop. It keeps its budget alive, so that the share of a key lasts as long as
/// anything of it is taken.
#[must_use]
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    units: u32,
}

impl Grant {
    /// Returns its size, in whole units.
    pub fn bytes(&self) -> usize {
        self.units as usize * self.budget.unit_bytes
    }

    /// Adds another grant of the same budget.
    ///
    /// # Errors
    /// The grant, if it is of another budget: its units must not be returned to this one.
    pub fn merge(&mut self, mut more: Grant) -> Result<(), Grant> {
        if !Arc::ptr_eq(&self.budget, &more.budget) {
            return Err(more);
        }
        self.units += std::mem::take(&mut more.units);
        Ok(())
    }

    /// Splits off `bytes`, rounded up to whole units, or all of it if it has fewer.
    pub fn split(&mut self, bytes: usize) -> Grant {
        let units = u32::try_from(bytes.div_ceil(self.budget.unit_bytes)).unwrap_or(u32::MAX).min(self.units);
        self.units -= units;
        Grant { budget: self.budget.clone(), units }
    }

    /// Returns everything beyond `bytes`, rounded up to whole units, to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        *self = self.split(bytes);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.free.add_permits(self.units as usize);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_grant_has_whole_units_and_returns_them() {
        let budget = Budget::new(10_500, 1_000);
        assert_eq!((budget.limit(), budget.free(), budget.used()), (10_000, 10_000, 0));
        let mut grant = budget.try_take(4_001).unwrap();
        assert_eq!((grant.bytes(), budget.used()), (5_000, 5_000));
        let part = grant.split(1_500);
        assert_eq!((part.bytes(), grant.bytes(), budget.used()), (2_000, 3_000, 5_000));
        grant.merge(budget.try_take(5_000).unwrap()).unwrap();
        assert!(budget.try_take(1).is_none() && budget.try_take(0).is_some());
        grant.shrink(20_000);
        assert_eq!((grant.bytes(), budget.free()), (8_000, 0));
        grant.shrink(5_500);
        assert_eq!((grant.bytes(), budget.free()), (6_000, 2_000));
        let all = grant.split(usize::MAX);
        assert_eq!((all.bytes(), grant.bytes()), (6_000, 0));
        drop((part, grant, all));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_grant_of_another_budget_is_not_merged() {
        let budgets = [Budget::new(10, 1), Budget::new(10, 1)];
        let [mut one, other] = budgets.each_ref().map(|budget| budget.try_take(4).unwrap());
        let other = one.merge(other).unwrap_err();
        assert_eq!((one.bytes(), other.bytes()), (4, 4));
        drop((one, other));
        assert_eq!(budgets.map(|budget| budget.free()), [10, 10]);
    }

    #[tokio::test]
    async fn a_request_beyond_the_limit_is_refused() {
        let budget = Budget::new(10, 1);
        assert!(budget.fits(10) && !budget.fits(11) && !budget.fits(usize::MAX));
        assert!(budget.try_take(11).is_none() && budget.take(11).await.is_none());
        assert_eq!(budget.take(10).await.map(|grant| grant.bytes()), Some(10));
        let none = Budget::new(999, 1_000);
        assert!(none.limit() == 0 && none.take(1).await.is_none());
    }

    #[tokio::test]
    async fn a_large_request_is_not_overtaken() {
        let budget = Budget::new(10, 1);
        let held = budget.take(6).await.unwrap();
        let mut large = std::pin::pin!(budget.take(10));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(budget.try_take(1).is_none(), "the free bytes are kept for the large request");
        let mut small = std::pin::pin!(budget.take(1));
        assert!(small.as_mut().now_or_never().is_none());
        drop(held);
        let large = large.await.unwrap();
        assert!(small.as_mut().now_or_never().is_none());
        drop(large);
        assert_eq!(small.await.unwrap().bytes(), 1);
    }

    #[tokio::test]
    async fn holders_learn_of_waiters() {
        let budget = Budget::new(10, 1);
        let mut waited_for = std::pin::pin!(budget.waited_for());
        assert!(!budget.is_waited_for() && waited_for.as_mut().now_or_never().is_none());
        let (one, two) = (budget.waiter(), budget.waiter());
        waited_for.await;
        drop(one);
        assert!(budget.is_waited_for());
        budget.waited_for().await;
        drop(two);
        assert!(!budget.is_waited_for());
    }
}
