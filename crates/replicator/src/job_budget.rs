//! What the jobs of a server share: seats, and memory for filters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::seats::{SeatLimits, SeatOwner, Seats};

/// The most filter bytes of all jobs. Each filter counts twice, since it is also sent with each request for changes.
const FILTER_BYTES_MAX: usize = 64 << 20;

/// The most filter bytes of one user's jobs.
const USER_FILTER_BYTES_MAX: usize = 8 << 20;

/// Filters below this are not counted.
const FILTER_BYTES_FREE: usize = 16 << 10;

/// How a job requests a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatRequest {
    /// Once. The job keeps its seat until it ends.
    Once,
    /// Repeatedly until the request is granted. The job can yield its seat and request one again.
    Repeated,
}

/// The seats and filter memory of all jobs of a server.
pub(crate) struct JobBudget {
    /// The memory of filters, [`FILTER_BYTES_MAX`], in kB.
    filters: Arc<Semaphore>,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    seats: Seats,
    /// The kB of filters by user, without administrators and without users whose filters are free.
    filters_kb: HashMap<Arc<str>, usize>,
}

/// A job's seat and filter memory, returned on drop.
pub(crate) struct JobPermit {
    seat: SeatHandle,
    owner: SeatOwner,
    filter_kb: usize,
    _filter: OwnedSemaphorePermit,
}

/// A reference to the seat of a [`JobPermit`]. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SeatHandle {
    shared: Arc<Mutex<Shared>>,
    id: u64,
    recalled: watch::Receiver<bool>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobBudget {
    pub(crate) fn new(limits: SeatLimits) -> JobBudget {
        let shared = Shared { seats: Seats::new(limits), filters_kb: HashMap::new() };
        JobBudget { filters: Arc::new(Semaphore::new(FILTER_BYTES_MAX >> 10)), shared: Arc::new(Mutex::new(shared)) }
    }

    /// Takes a seat and the memory of a filter. `user`: the job's owner, `None` for an administrator. Returns `None` if a limit is
    /// reached, or if it is another owner's turn.
    pub(crate) fn take(
        &self,
        filter_bytes: usize,
        user: Option<&str>,
        request: SeatRequest,
        now: Instant,
    ) -> Option<JobPermit> {
        let bytes = if filter_bytes > FILTER_BYTES_FREE { 2 * filter_bytes } else { 0 };
        let filter_kb = bytes.div_ceil(1 << 10);
        let permits = u32::try_from(filter_kb).unwrap_or(u32::MAX);
        let filter = self.filters.clone().try_acquire_many_owned(permits).ok()?;
        let owner: SeatOwner = user.map(Arc::from);
        let mut shared = lock(&self.shared);
        if let Some(user) = &owner
            && shared.filters_kb.get(user).copied().unwrap_or_default() + filter_kb > USER_FILTER_BYTES_MAX >> 10
        {
            return None;
        }
        let grant = match request {
            SeatRequest::Once => shared.seats.take(&owner, now)?,
            SeatRequest::Repeated => shared.seats.ask(&owner, now)?,
        };
        if let Some(user) = owner.as_ref().filter(|_| filter_kb > 0) {
            *shared.filters_kb.entry(user.clone()).or_default() += filter_kb;
        }
        drop(shared);
        let seat = SeatHandle { shared: self.shared.clone(), id: grant.id, recalled: grant.recalled };
        Some(JobPermit { seat, owner, filter_kb, _filter: filter })
    }
}

impl JobPermit {
    pub(crate) fn seat(&self) -> &SeatHandle {
        &self.seat
    }
}

impl SeatHandle {
    /// Notes whether the job waits to be retried. Such a job is the first to lose its seat.
    pub(crate) fn rest(&self, is_resting: bool) {
        lock(&self.shared).seats.rest(self.id, is_resting);
    }

    /// Resolves when the job must yield its seat. Never resolves once the seat is returned.
    pub(crate) async fn recalled(mut self) {
        if self.recalled.wait_for(|recalled| *recalled).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for JobPermit {
    fn drop(&mut self) {
        let mut shared = lock(&self.seat.shared);
        shared.seats.leave(self.seat.id);
        let Some(user) = &self.owner else { return };
        if let Some(kb) = shared.filters_kb.get_mut(user) {
            *kb -= self.filter_kb;
            if *kb == 0 {
                shared.filters_kb.remove(user);
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn budget_of(jobs_max: usize, user_jobs_max: usize) -> JobBudget {
    let (turn, wait_max) = (std::time::Duration::from_secs(60), std::time::Duration::from_secs(15));
    let users_jobs_max = crate::users_jobs_max(jobs_max);
    JobBudget::new(SeatLimits { jobs_max, users_jobs_max, user_jobs_max, turn, wait_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(budget: &JobBudget, filter_bytes: usize, user: Option<&str>) -> Option<JobPermit> {
        budget.take(filter_bytes, user, SeatRequest::Once, Instant::now())
    }

    #[test]
    fn no_user_takes_all_seats() {
        let budget = budget_of(5, 2);
        let anna: Vec<JobPermit> = (0..2).filter_map(|_| take(&budget, 0, Some("anna"))).collect();
        assert!(anna.len() == 2 && take(&budget, 0, Some("anna")).is_none());
        let bob = take(&budget, 0, Some("bob"));
        let admin = take(&budget, 0, None);
        assert!(bob.is_some() && admin.is_some() && take(&budget, 0, None).is_some());
        drop(anna);
        assert!(take(&budget, 0, Some("anna")).is_some());
    }

    #[test]
    fn users_leave_seats_to_administrators() {
        let budget = budget_of(10, 2);
        let users: Vec<JobPermit> = (0..10).filter_map(|n| take(&budget, 0, Some(&format!("u{n}")))).collect();
        assert_eq!(users.len(), 8);
        let admins: Vec<JobPermit> = (0..10).filter_map(|_| take(&budget, 0, None)).collect();
        assert_eq!(admins.len(), 2);
        drop(users);
        assert!(take(&budget, 0, Some("u9")).is_some());
    }

    #[test]
    fn filters_are_bounded() {
        let budget = budget_of(100, 100);
        let megabyte = 1 << 20;
        let anna: Vec<JobPermit> = (0..100).map_while(|_| take(&budget, megabyte, Some("anna"))).collect();
        assert_eq!(anna.len(), 4);
        assert!(take(&budget, FILTER_BYTES_FREE, Some("anna")).is_some());
        assert_eq!((0..100).map_while(|_| take(&budget, megabyte, None)).collect::<Vec<_>>().len(), 28);
        drop(anna);
        assert!(lock(&budget.shared).filters_kb.is_empty());
    }
}
