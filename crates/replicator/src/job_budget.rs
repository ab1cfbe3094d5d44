//! The resources that the jobs of a server share: seats, and memory for filters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::seats::{SeatGrant, SeatLimits, SeatOwner, Seats, Ticket};

/// The most filter bytes of all jobs. Each filter counts twice, since it is also sent with each request for changes.
const FILTER_BYTES_MAX: usize = 64 << 20;

/// The most filter bytes of one user's jobs.
const USER_FILTER_BYTES_MAX: usize = 8 << 20;

/// Filters below this are not counted.
const FILTER_BYTES_FREE: usize = 16 << 10;

/// The seats and filter memory of all jobs of a server.
pub(crate) struct JobBudget {
    seats: Arc<Mutex<Seats>>,
}

/// A job's seat and filter memory, returned on drop.
pub(crate) struct JobPermit {
    seat: SeatHandle,
}

/// A reference to the seat of a [`JobPermit`]. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SeatHandle {
    seats: Arc<Mutex<Seats>>,
    id: u64,
    recalled: watch::Receiver<bool>,
}

/// The requests of a job that repeats them until it gets a seat. Withdrawn on drop.
pub(crate) struct SeatRequest {
    seats: Arc<Mutex<Seats>>,
    owner: SeatOwner,
    filter_kb: usize,
    /// Locked before `seats`.
    ticket: Mutex<Option<Ticket>>,
}

pub(crate) const FILTERS_KB_MAX: usize = FILTER_BYTES_MAX >> 10;
pub(crate) const USER_FILTERS_KB_MAX: usize = USER_FILTER_BYTES_MAX >> 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that a filter counts with, in kB. A job is never larger than what one user may have.
fn filter_kb(filter_bytes: usize) -> usize {
    let bytes = if filter_bytes > FILTER_BYTES_FREE { 2 * filter_bytes } else { 0 };
    bytes.div_ceil(1 << 10).min(USER_FILTERS_KB_MAX)
}

impl JobBudget {
    pub(crate) fn new(limits: SeatLimits) -> JobBudget {
        JobBudget { seats: Arc::new(Mutex::new(Seats::new(limits))) }
    }

    /// Takes a seat and the memory of a filter for a job that keeps them until it ends. `user`: the job's owner, `None`
    /// for an administrator. Returns `None` if a limit is reached, or if it is the turn of a waiting job.
    pub(crate) fn take(&self, filter_bytes: usize, user: Option<&str>, now: Instant) -> Option<JobPermit> {
        let owner: SeatOwner = user.map(Arc::from);
        let grant = lock(&self.seats).take(&owner, filter_kb(filter_bytes), now)?;
        Some(JobPermit::new(&self.seats, grant))
    }

    /// Returns the requests of a job that can yield its seat. The arguments are those of [`JobBudget::take`].
    pub(crate) fn request(&self, filter_bytes: usize, user: Option<&str>) -> SeatRequest {
        let owner: SeatOwner = user.map(Arc::from);
        SeatRequest { seats: self.seats.clone(), owner, filter_kb: filter_kb(filter_bytes), ticket: Mutex::default() }
    }
}

impl SeatRequest {
    /// Requests a seat and the memory of the job's filter. `None`: the job waits and must repeat or withdraw the
    /// request.
    pub(crate) fn ask(&self, now: Instant) -> Option<JobPermit> {
        let mut ticket = lock(&self.ticket);
        let grant = lock(&self.seats).ask(&self.owner, self.filter_kb, &mut ticket, now)?;
        Some(JobPermit::new(&self.seats, grant))
    }

    /// Withdraws the request. The next one waits behind all other jobs of the owner.
    pub(crate) fn withdraw(&self) {
        let ticket = lock(&self.ticket).take();
        if let Some(ticket) = ticket {
            lock(&self.seats).withdraw(&self.owner, ticket);
        }
    }
}

impl Drop for SeatRequest {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl JobPermit {
    fn new(seats: &Arc<Mutex<Seats>>, grant: SeatGrant) -> JobPermit {
        JobPermit { seat: SeatHandle { seats: seats.clone(), id: grant.id, recalled: grant.recalled } }
    }

    pub(crate) fn seat(&self) -> &SeatHandle {
        &self.seat
    }
}

impl SeatHandle {
    /// Notes whether the job waits to be retried. Such a job is the first to lose its seat.
    pub(crate) fn rest(&self, is_resting: bool) {
        lock(&self.seats).rest(self.id, is_resting);
    }

    /// Notes that the job, stopped now, resumes beyond its start. Until then it keeps its seat longer.
    pub(crate) fn advance(&self) {
        lock(&self.seats).advance(self.id);
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
        lock(&self.seat.seats).leave(self.seat.id);
    }
}

#[cfg(test)]
pub(crate) fn budget_of(jobs_max: usize, user_jobs_max: usize) -> JobBudget {
    JobBudget::new(crate::seat_limits(jobs_max, user_jobs_max, std::time::Duration::from_secs(60)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(budget: &JobBudget, filter_bytes: usize, user: Option<&str>) -> Option<JobPermit> {
        budget.take(filter_bytes, user, Instant::now())
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
        assert!(take(&budget, megabyte, Some("anna")).is_some());
    }

    #[test]
    fn a_dropped_request_is_withdrawn() {
        let (budget, now) = (budget_of(1, 1), Instant::now());
        let permit = take(&budget, 0, None);
        let [anna, bob] = ["anna", "bob"].map(|name| budget.request(0, Some(name)));
        assert!(anna.ask(now).is_none() && bob.ask(now).is_none());
        drop(permit);
        assert!(bob.ask(now).is_none());
        drop(anna);
        assert!(bob.ask(now).is_some());
    }

    #[test]
    fn a_job_whose_filter_finds_no_memory_waits_for_it() {
        let (budget, now) = (budget_of(100, 100), Instant::now());
        let megabyte = 1 << 20;
        let mut admins: Vec<JobPermit> = (0..100).map_while(|_| take(&budget, megabyte, None)).collect();
        assert_eq!(admins.len(), 32);
        let anna = budget.request(megabyte, Some("anna"));
        assert!(anna.ask(now).is_none());
        admins.pop();
        // The memory is kept for anna.
        assert!(take(&budget, megabyte, None).is_none());
        assert!(anna.ask(now).is_some());
    }
}
