//! Serializes the runs of a process that write to the same file.
//!
//! Dropping a run does not stop its writing thread, which completes the current write. The next run must wait, or older
//! lines would follow newer ones. The thread therefore holds the turn until it ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flatbed_admission::Shares;
use flatbed_clock::Clock;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use crate::failure::Failure;
use crate::output::DeliveryError;

/// The longest wait for another writer. Beyond it the target counts as failed and is retried.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The turns of all files of a process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Shares<PathBuf, Lock<()>>>);

/// A lock that one writer holds at a time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Turn {
    lock: Arc<Lock<()>>,
    wait_max: Duration,
    clock: Clock,
}

impl Turns {
    /// Returns the turn of the file at a path.
    pub fn at(&self, path: &Path) -> Turn {
        Turn { lock: self.0.of(path.to_owned(), Arc::default), ..Turn::default() }
    }
}

impl Default for Turn {
    /// Returns a turn that is not shared.
    fn default() -> Turn {
        Turn { lock: Arc::default(), wait_max: WAIT_MAX, clock: Clock::default() }
    }
}

impl Turn {
    /// Sets the longest wait, instead of 10 s.
    #[must_use]
    pub fn within(self, wait_max: Duration) -> Turn {
        Turn { wait_max, ..self }
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Turn {
        Turn { clock, ..self }
    }

    /// Waits for the turn.
    ///
    /// # Errors
    /// [`DeliveryError`] as an outage: another run still writes.
    pub(super) async fn take(&self) -> Result<OwnedMutexGuard<()>, DeliveryError> {
        let taken = self.clock.timeout(self.wait_max, self.lock.clone().lock_owned()).await;
        taken.map_err(|_| {
            DeliveryError::failed(Failure::Storage, "an earlier run or another job is still writing to the file")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_writes_at_a_time() {
        let turns = Turns::default();
        let [one, same, other] = ["a", "a", "b"].map(|name| turns.at(Path::new(name)));
        let taken = one.take().await.unwrap();
        assert!(same.take().await.is_err() && other.take().await.is_ok());
        drop(taken);
        let taken = same.take().await.unwrap();
        // A turn exists while it is shared, and no longer.
        drop((one, same, other));
        assert!(turns.at(Path::new("a")).take().await.is_err());
        drop(taken);
        turns.at(Path::new("c"));
        drop(turns.at(Path::new("d")));
        assert!(turns.0.all().is_empty());
    }
}
