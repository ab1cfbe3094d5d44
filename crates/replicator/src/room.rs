//! What jobs take of what all jobs of a server share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Filters of this server's jobs together, each counted twice: it is sent with each request for changes.
const FILTER_BYTES_MAX: usize = 64 << 20;

/// Those of one user.
const USER_FILTER_BYTES_MAX: usize = 8 << 20;

/// Filters below this are not counted.
const FILTER_BYTES_FREE: usize = 16 << 10;

/// One of so many places is kept for administrators.
const ADMINS_PART: usize = 5;

/// What there is for jobs.
pub(crate) struct Rooms {
    /// Jobs that run here or are tried again here.
    jobs: Arc<Semaphore>,
    /// Of these, those that users who are no administrators may have together.
    users_jobs: Arc<Semaphore>,
    /// Of [`FILTER_BYTES_MAX`], in kB.
    filters: Arc<Semaphore>,
    users: Arc<Users>,
}

/// Those of users who are no administrators, by name, none of them without a job.
struct Users {
    jobs_max: usize,
    taken: Mutex<HashMap<String, Taken>>,
}

#[derive(Default)]
struct Taken {
    jobs: usize,
    filter_kb: usize,
}

/// What a job has of it.
pub(crate) struct Room {
    _job: OwnedSemaphorePermit,
    _users_job: Option<OwnedSemaphorePermit>,
    _filter: OwnedSemaphorePermit,
    _user: Option<OfUser>,
}

struct OfUser {
    users: Arc<Users>,
    name: String,
    filter_kb: usize,
}

impl Rooms {
    pub(crate) fn new(jobs_max: usize, user_jobs_max: usize) -> Rooms {
        let users = Arc::new(Users { jobs_max: user_jobs_max, taken: Mutex::default() });
        let filters = Arc::new(Semaphore::new(FILTER_BYTES_MAX >> 10));
        let users_jobs = Arc::new(Semaphore::new(jobs_max - jobs_max / ADMINS_PART));
        Rooms { jobs: Arc::new(Semaphore::new(jobs_max)), users_jobs, filters, users }
    }

    /// Room for one more job with such a filter; `user`: of whom, unless of an administrator. `None`: it is all taken.
    pub(crate) fn take(&self, filter_bytes: usize, user: Option<&str>) -> Option<Room> {
        let bytes = if filter_bytes > FILTER_BYTES_FREE { 2 * filter_bytes } else { 0 };
        let filter_kb = bytes.div_ceil(1 << 10);
        let of_user = match user {
            Some(name) => Some(self.users.take(name, filter_kb)?),
            None => None,
        };
        let users_job = match user {
            Some(_) => Some(self.users_jobs.clone().try_acquire_owned().ok()?),
            None => None,
        };
        let job = self.jobs.clone().try_acquire_owned().ok()?;
        let filter = u32::try_from(filter_kb).unwrap_or(u32::MAX);
        let filter = self.filters.clone().try_acquire_many_owned(filter).ok()?;
        Some(Room { _job: job, _users_job: users_job, _filter: filter, _user: of_user })
    }
}

impl Users {
    fn take(self: &Arc<Self>, name: &str, filter_kb: usize) -> Option<OfUser> {
        let mut all = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (jobs, kb) = all.get(name).map_or((0, 0), |taken| (taken.jobs, taken.filter_kb));
        if jobs >= self.jobs_max || kb + filter_kb > USER_FILTER_BYTES_MAX >> 10 {
            return None;
        }
        all.insert(name.to_owned(), Taken { jobs: jobs + 1, filter_kb: kb + filter_kb });
        Some(OfUser { users: self.clone(), name: name.to_owned(), filter_kb })
    }
}

impl Drop for OfUser {
    fn drop(&mut self) {
        let mut all = self.users.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = all.get_mut(&self.name) {
            taken.jobs -= 1;
            taken.filter_kb -= self.filter_kb;
            if taken.jobs == 0 {
                all.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_of_it() {
        let rooms = Rooms::new(5, 2);
        let anna: Vec<Room> = (0..2).filter_map(|_| rooms.take(0, Some("anna"))).collect();
        assert!(anna.len() == 2 && rooms.take(0, Some("anna")).is_none());
        let bob = rooms.take(0, Some("bob"));
        let admin = rooms.take(0, None);
        assert!(bob.is_some() && admin.is_some() && rooms.take(0, None).is_some());
        drop(anna);
        assert!(rooms.take(0, Some("anna")).is_some());
        drop(bob);
        assert!(rooms.users.taken.lock().unwrap().is_empty());
        // Where there is no room in all, nothing of a user's own is kept.
        let all: Vec<_> = (0..4).filter_map(|_| rooms.take(0, None)).collect();
        assert!(all.len() == 4 && rooms.take(0, Some("anna")).is_none());
        assert!(rooms.users.taken.lock().unwrap().is_empty());
    }

    #[test]
    fn users_leave_room_for_administrators() {
        let rooms = Rooms::new(10, 2);
        let users: Vec<Room> = (0..10).filter_map(|n| rooms.take(0, Some(&format!("u{n}")))).collect();
        assert_eq!(users.len(), 8);
        let admins: Vec<Room> = (0..10).filter_map(|_| rooms.take(0, None)).collect();
        assert_eq!(admins.len(), 2);
        drop(users);
        assert!(rooms.take(0, Some("u9")).is_some());
    }

    #[test]
    fn filters_are_bounded() {
        let rooms = Rooms::new(100, 100);
        let megabyte = 1 << 20;
        let anna: Vec<Room> = (0..100).map_while(|_| rooms.take(megabyte, Some("anna"))).collect();
        assert_eq!(anna.len(), 4);
        assert!(rooms.take(FILTER_BYTES_FREE, Some("anna")).is_some());
        assert_eq!((0..100).map_while(|_| rooms.take(megabyte, None)).collect::<Vec<_>>().len(), 28);
    }
}
