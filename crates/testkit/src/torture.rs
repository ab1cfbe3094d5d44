//! The course of a torture.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::PATIENCE;

/// The pause between two checks of the counts.
const LOOK: Duration = Duration::from_millis(20);

/// The course of a torture, which its tasks share. It counts their actions, and tells them when the torture is over.
///
/// A torture runs for its duration, and on a slow machine until it has shown each of its counts. An assertion on the
/// work done in a fixed time would fail by chance; without any assertion the torture would prove nothing.
///
/// ```ignore
/// let torture = Torture::new(["writes", "conflicts"]);
/// tasks.spawn(torture.part(write(torture.clone())));
/// torture.until_shown(length(5.0)).await;
/// torture.end();
/// tasks.join_all().await;
/// torture.must_have_shown();
///
/// async fn write(torture: Torture) {
///     while torture.pass(PAUSE).await {
///         // ...
///         torture.count("writes");
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Torture(Arc<Course>);

#[derive(Debug)]
struct Course {
    shown: Vec<&'static str>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    is_over: watch::Sender<bool>,
}

impl Torture {
    /// Begins a torture that has to show each of these counts.
    pub fn new(shown: impl IntoIterator<Item = &'static str>) -> Torture {
        let shown = shown.into_iter().collect();
        Torture(Arc::new(Course { shown, counts: Mutex::default(), is_over: watch::Sender::new(false) }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Increments a count.
    pub fn count(&self, what: &'static str) {
        *self.lock().entry(what).or_default() += 1;
    }

    /// Returns a count.
    pub fn counted(&self, what: &str) -> u64 {
        self.lock().get(what).copied().unwrap_or_default()
    }

    /// Returns all counts.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().clone()
    }

    /// Runs a part of the torture. If the part panics, the torture is over, so that the failure is reported at once.
    pub fn part<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let ends = EndsOnPanic(self.clone());
        async move {
            let _ends = ends;
            work.await
        }
    }

    /// Ends the torture: tasks finish their current step.
    pub fn end(&self) {
        self.0.is_over.send_replace(true);
    }

    /// Returns whether the torture is over.
    pub fn is_over(&self) -> bool {
        *self.0.is_over.borrow()
    }

    /// Waits, as the rhythm of a task, but not beyond the end of the torture. Returns whether the torture continues.
    pub async fn pass(&self, time: Duration) -> bool {
        let mut is_over = self.0.is_over.subscribe();
        tokio::time::timeout(time, is_over.wait_for(|is_over| *is_over)).await.is_err()
    }

    /// Waits for the duration of the torture, and on a slow machine until it has shown everything, for [`PATIENCE`] at
    /// most. Returns earlier if a task has ended it.
    pub async fn until_shown(&self, length: Duration) {
        let mut goes_on = self.pass(length).await;
        let shown = async {
            while goes_on && !self.lacks().is_empty() {
                goes_on = self.pass(LOOK).await;
            }
        };
        // A failed task reports more about a missing count: `must_have_shown` is called after the tasks.
        let _ = tokio::time::timeout(PATIENCE, shown).await;
    }

    /// Checks after the end that the torture has shown everything.
    ///
    /// # Panics
    /// A count is missing.
    pub fn must_have_shown(&self) {
        let lacks = self.lacks();
        assert!(lacks.is_empty(), "{lacks:?} missing: {:?}", self.counts());
    }

    fn lacks(&self) -> Vec<&'static str> {
        let counts = self.lock();
        self.0.shown.iter().copied().filter(|what| !counts.contains_key(what)).collect()
    }
}

/// Ends a torture if a panic drops it.
struct EndsOnPanic(Torture);

impl Drop for EndsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_torture_runs_until_it_has_shown_everything() {
        let torture = Torture::new(["late"]);
        let work = async {
            assert!(torture.pass(5 * SECOND).await);
            torture.count("late");
        };
        let begin = tokio::time::Instant::now();
        tokio::join!(work, torture.until_shown(SECOND));
        torture.must_have_shown();
        assert!((5 * SECOND..6 * SECOND).contains(&begin.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "[\"never\"] missing")]
    async fn what_is_never_shown_fails() {
        let torture = Torture::new(["never"]);
        torture.until_shown(SECOND).await;
        torture.must_have_shown();
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_fails_ends_the_torture() {
        let torture = Torture::new(["never"]);
        let part = tokio::spawn(torture.part(async { panic!("as intended") }));
        torture.until_shown(10_000 * SECOND).await;
        assert!(torture.is_over() && part.await.is_err());
        assert!(!torture.pass(SECOND).await);
    }
}
