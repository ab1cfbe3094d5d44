//! What jobs take of what all jobs of a server share: seats, and memory for filters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::seats::{Party, SeatLimits, Seats};

/// Filters of this server's jobs together, each counted twice: it is sent with each request for changes.
const FILTER_BYTES_MAX: usize = 64 << 20;

/// Those of one user.
const USER_FILTER_BYTES_MAX: usize = 8 << 20;

/// Filters below this are not counted.
const FILTER_BYTES_FREE: usize = 16 << 10;

/// How a job asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// Once; it keeps the room until it ends.
    Once,
    /// Until it has room, which it can give up and ask for again.
    Again,
}

/// What there is for jobs.
pub(crate) struct Rooms {
    /// Of [`FILTER_BYTES_MAX`], in kB.
    filters: Arc<Semaphore>,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    seats: Seats,
    /// Filters of users who are no administrators, by name, in kB; none of nothing.
    filters_kb: HashMap<Arc<str>, usize>,
}

/// What a job has of it.
pub(crate) struct Room {
    seat: SeatHandle,
    party: Party,
    filter_kb: usize,
    _filter: OwnedSemaphorePermit,
}

/// A job's seat, as long as the job has its room. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SeatHandle {
    shared: Arc<Mutex<Shared>>,
    id: u64,
    recalled: watch::Receiver<bool>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rooms {
    pub(crate) fn new(limits: SeatLimits) -> Rooms {
        let shared = Shared { seats: Seats::new(limits), filters_kb: HashMap::new() };
        Rooms { filters: Arc::new(Semaphore::new(FILTER_BYTES_MAX >> 10)), shared: Arc::new(Mutex::new(shared)) }
    }

    /// Room for one more job with such a filter; `user`: of whom, unless of an administrator. `None`: it is all taken, or it is
    /// another owner's turn.
    pub(crate) fn take(&self, filter_bytes: usize, user: Option<&str>, asking: Asking, now: Instant) -> Option<Room> {
        let bytes = if filter_bytes > FILTER_BYTES_FREE { 2 * filter_bytes } else { 0 };
        let filter_kb = bytes.div_ceil(1 << 10);
        let permits = u32::try_from(filter_kb).unwrap_or(u32::MAX);
        let filter = self.filters.clone().try_acquire_many_owned(permits).ok()?;
        let party: Party = user.map(Arc::from);
        let mut shared = lock(&self.shared);
        if let Some(user) = &party
            && shared.filters_kb.get(user).copied().unwrap_or_default() + filter_kb > USER_FILTER_BYTES_MAX >> 10
        {
            return None;
        }
        let grant = match asking {
            Asking::Once => shared.seats.take(&party, now)?,
            Asking::Again => shared.seats.ask(&party, now)?,
        };
        if let Some(user) = party.as_ref().filter(|_| filter_kb > 0) {
            *shared.filters_kb.entry(user.clone()).or_default() += filter_kb;
        }
        drop(shared);
        let seat = SeatHandle { shared: self.shared.clone(), id: grant.id, recalled: grant.recalled };
        Some(Room { seat, party, filter_kb, _filter: filter })
    }
}

impl Room {
    pub(crate) fn seat(&self) -> &SeatHandle {
        &self.seat
    }
}

impl SeatHandle {
    /// Notes whether the job waits to be retried: then it is the first to give its seat up.
    pub(crate) fn rest(&self, is_resting: bool) {
        lock(&self.shared).seats.rest(self.id, is_resting);
    }

    /// Resolves when the job must give its seat up; never once the seat is given back.
    pub(crate) async fn recalled(mut self) {
        if self.recalled.wait_for(|recalled| *recalled).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut shared = lock(&self.seat.shared);
        shared.seats.leave(self.seat.id);
        let Some(user) = &self.party else { return };
        if let Some(kb) = shared.filters_kb.get_mut(user) {
            *kb -= self.filter_kb;
            if *kb == 0 {
                shared.filters_kb.remove(user);
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn rooms_of(jobs_max: usize, user_jobs_max: usize) -> Rooms {
    let (turn, wait_max) = (std::time::Duration::from_secs(60), std::time::Duration::from_secs(15));
    let users_jobs_max = crate::users_jobs_max(jobs_max);
    Rooms::new(SeatLimits { jobs_max, users_jobs_max, user_jobs_max, turn, wait_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(rooms: &Rooms, filter_bytes: usize, user: Option<&str>) -> Option<Room> {
        rooms.take(filter_bytes, user, Asking::Once, Instant::now())
    }

    #[test]
    fn nobody_takes_all_of_it() {
        let rooms = rooms_of(5, 2);
        let anna: Vec<Room> = (0..2).filter_map(|_| take(&rooms, 0, Some("anna"))).collect();
        assert!(anna.len() == 2 && take(&rooms, 0, Some("anna")).is_none());
        let bob = take(&rooms, 0, Some("bob"));
        let admin = take(&rooms, 0, None);
        assert!(bob.is_some() && admin.is_some() && take(&rooms, 0, None).is_some());
        drop(anna);
        assert!(take(&rooms, 0, Some("anna")).is_some());
    }

    #[test]
    fn users_leave_room_for_administrators() {
        let rooms = rooms_of(10, 2);
        let users: Vec<Room> = (0..10).filter_map(|n| take(&rooms, 0, Some(&format!("u{n}")))).collect();
        assert_eq!(users.len(), 8);
        let admins: Vec<Room> = (0..10).filter_map(|_| take(&rooms, 0, None)).collect();
        assert_eq!(admins.len(), 2);
        drop(users);
        assert!(take(&rooms, 0, Some("u9")).is_some());
    }

    #[test]
    fn filters_are_bounded() {
        let rooms = rooms_of(100, 100);
        let megabyte = 1 << 20;
        let anna: Vec<Room> = (0..100).map_while(|_| take(&rooms, megabyte, Some("anna"))).collect();
        assert_eq!(anna.len(), 4);
        assert!(take(&rooms, FILTER_BYTES_FREE, Some("anna")).is_some());
        assert_eq!((0..100).map_while(|_| take(&rooms, megabyte, None)).collect::<Vec<_>>().len(), 28);
        drop(anna);
        assert!(lock(&rooms.shared).filters_kb.is_empty());
    }
}
