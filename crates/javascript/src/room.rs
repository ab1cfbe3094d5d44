//! Memory reservations for the arguments of calls.
//!
//! The arguments of a call exist while it waits and runs, and thousands of calls may wait. So callers with large
//! arguments reserve memory first and release it after the call. One database gets at most half of it.

use std::sync::Arc;
use std::time::Duration;

use flatbed_admission::{Budget, Grant, Shares};

use crate::Runner;
use crate::error::{Error, Result};

/// The memory for all databases, and for one, in bytes.
const BYTES_MAX: usize = 128 << 20;
const BYTES_OF_ONE_MAX: usize = BYTES_MAX / 2;

/// Smaller arguments need no reservation: the number of waiting calls is bounded.
const FREE_BYTES: usize = 16 << 10;

const UNIT_BYTES: usize = 1024;

/// A reservation; released when dropped.
#[derive(Debug)]
pub struct Room {
    _held: Option<[Grant; 2]>,
}

#[derive(Debug)]
pub(crate) struct Rooms {
    all: Arc<Budget>,
    by_database: Shares<Arc<str>, Budget>,
}

impl Rooms {
    pub(crate) fn new() -> Rooms {
        Rooms { all: Budget::new(BYTES_MAX, UNIT_BYTES), by_database: Shares::default() }
    }

    fn of(&self, database: &str) -> Arc<Budget> {
        self.by_database.of(database.into(), || Budget::new(BYTES_OF_ONE_MAX, UNIT_BYTES))
    }
}

impl Runner {
    /// Reserves memory for the arguments of a database's calls, if it is available now. A caller without a
    /// reservation must not hold such arguments.
    pub fn try_room(&self, database: &str, bytes: usize) -> Option<Room> {
        if bytes <= FREE_BYTES {
            return Some(Room { _held: None });
        }
        // At most those of one database, so that a single call always fits.
        let (rooms, bytes) = (self.rooms(), bytes.min(BYTES_OF_ONE_MAX));
        let one = rooms.of(database).try_take(bytes)?;
        let all = rooms.all.try_take(bytes)?;
        Some(Room { _held: Some([one, all]) })
    }

    /// Waits for a reservation in turn. The wait is limited to that for a thread unless `patient` is true.
    ///
    /// # Errors
    /// [`Error::Busy`] if the wait is over.
    pub async fn room(&self, database: &str, bytes: usize, patient: bool) -> Result<Room> {
        if bytes <= FREE_BYTES {
            return Ok(Room { _held: None });
        }
        let (rooms, bytes) = (self.rooms(), bytes.min(BYTES_OF_ONE_MAX));
        let wait = async {
            let one = rooms.of(database).take(bytes).await?;
            let all = rooms.all.take(bytes).await?;
            Some(Room { _held: Some([one, all]) })
        };
        let time = if patient { Duration::MAX } else { self.options.wait_max };
        tokio::time::timeout(time, wait).await.ok().flatten().ok_or(Error::Busy)
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::pass;

    use super::*;
    use crate::RunnerOptions;

    #[tokio::test]
    async fn no_database_takes_all_room() {
        let wait_max = Duration::from_millis(20);
        let runner = Runner::new(RunnerOptions { threads: 1, wait_max, ..RunnerOptions::default() }).expect("a thread");
        let held: Vec<Room> = std::iter::from_fn(|| runner.try_room("a", 10 << 20)).take(100).collect();
        assert_eq!(held.len(), BYTES_OF_ONE_MAX / (10 << 20));
        assert_eq!(runner.room("a", 10 << 20, false).await.expect_err("no room"), Error::Busy);
        // Small arguments need no reservation, and another database has its own share.
        assert!(runner.try_room("a", FREE_BYTES).is_some());
        let whole = runner.try_room("b", usize::MAX).expect("one call always fits");
        assert!(runner.try_room("c", 10 << 20).is_none());
        drop(whole);
        assert!(runner.try_room("c", 10 << 20).is_some());
        let (waited, ()) = tokio::join!(runner.room("a", 10 << 20, true), async {
            pass(3 * wait_max).await;
            drop(held);
        });
        assert!(waited.is_ok());
    }
}
