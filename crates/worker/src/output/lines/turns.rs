//! Who writes to a file now, of all runs of a process.
//!
//! A run may be dropped wherever it waits, and the thread that writes for it is not: it ends what it has begun. Who comes next must not
//! write meanwhile, or older lines would stand behind newer ones. So the thread has the turn, and keeps it as long as it writes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use crate::failure::Failure;
use crate::output::Refused;

/// For who writes. A disk that takes longer is waited for as for any target.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The turns at all files of a process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<HashMap<PathBuf, Weak<Lock<()>>>>>);

/// One writes at a time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Turn {
    lock: Arc<Lock<()>>,
    wait_max: Duration,
    clock: Clock,
}

impl Turns {
    /// At what lies at a path.
    pub fn at(&self, path: &Path) -> Turn {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody writes to any longer, nor is going to.
        all.retain(|_, lock| lock.strong_count() > 0);
        let known = all.get(path).and_then(Weak::upgrade);
        let lock = known.unwrap_or_else(|| {
            let lock = Arc::<Lock<()>>::default();
            all.insert(path.to_owned(), Arc::downgrade(&lock));
            lock
        });
        Turn { lock, ..Turn::default() }
    }
}

impl Default for Turn {
    /// At something that nobody else writes to.
    fn default() -> Turn {
        Turn { lock: Arc::default(), wait_max: WAIT_MAX, clock: Clock::default() }
    }
}

impl Turn {
    /// Waits for others no longer than this, instead of 10 s.
    #[must_use]
    pub fn within(self, wait_max: Duration) -> Turn {
        Turn { wait_max, ..self }
    }

    /// Takes the time from `clock` instead of the machine's.
    #[must_use]
    pub fn timed_by(self, clock: Clock) -> Turn {
        Turn { clock, ..self }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`Refused`], for the target's state: another still writes.
    pub(super) async fn take(&self) -> Result<OwnedMutexGuard<()>, Refused> {
        let taken = self.clock.timeout(self.wait_max, self.lock.clone().lock_owned()).await;
        taken.map_err(|_| {
            Refused::failed(Failure::Storage, "what an earlier run, or another job, writes there takes long")
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
        // It stays while anybody has it, and is not kept for ever.
        drop((one, same, other));
        assert!(turns.at(Path::new("a")).take().await.is_err());
        drop(taken);
        turns.at(Path::new("c"));
        drop(turns.at(Path::new("d")));
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
