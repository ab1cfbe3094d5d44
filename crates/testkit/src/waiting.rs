//! Waits for events, with one generous limit.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The limit of every wait. A test that waits this long hangs: no event takes a tenth of it on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The pauses between two checks of a condition: short at first, so that a fast event costs little time.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The steps of [`within`].
const STEP: Duration = Duration::from_millis(20);

/// Waits for a future.
///
/// # Panics
/// The future is not ready within [`PATIENCE`].
#[track_caller]
pub fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    // Boxed: a test's future contains those of all its calls, and debug builds lay out each of them on the stack.
    let future = Box::pin(future);
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("not within {PATIENCE:?}, at {caller}"),
        }
    }
}

/// Waits for a future for at most `limit`, and returns `None` if it was not ready. Use it for a meaningful limit, such
/// as the time after which a server checks again without having been woken.
///
/// The time is counted in steps of 20 ms. Each step counts as 20 ms however late the machine ends it, so a slow machine
/// extends the limit: the test proves less there and does not fail.
pub fn within<T>(limit: Duration, future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    let mut future = Box::pin(future);
    async move {
        let mut counted = Duration::ZERO;
        while counted < limit {
            if let Ok(output) = tokio::time::timeout(STEP, &mut future).await {
                return Some(output);
            }
            counted += STEP;
        }
        None
    }
}

/// The running time of this process, counted as by [`within`].
#[derive(Debug, Clone)]
pub struct RunningTime(Arc<AtomicU32>);

impl RunningTime {
    /// Starts to count, in a task of the runtime, until all clones are dropped.
    pub fn start() -> RunningTime {
        let steps = Arc::new(AtomicU32::new(0));
        let counted = Arc::downgrade(&steps);
        tokio::spawn(async move {
            while let Some(steps) = counted.upgrade() {
                steps.fetch_add(1, Ordering::Relaxed);
                drop(steps);
                tokio::time::sleep(STEP).await;
            }
        });
        RunningTime(steps)
    }

    /// Begins to measure a request.
    pub fn begin(&self) -> RequestStart {
        RequestStart { running: self.clone(), at: Instant::now(), steps: self.0.load(Ordering::Relaxed) }
    }
}

/// The begin of a request, by [`RunningTime`].
#[derive(Debug)]
pub struct RequestStart {
    running: RunningTime,
    at: Instant,
    steps: u32,
}

impl RequestStart {
    /// Returns whether the machine delayed the request: `limit` has passed since its begin, and this process has run
    /// for less than half of that. If a server then refuses the request after its own limit, the machine is the reason.
    pub fn is_held_up(&self, limit: Duration) -> bool {
        let time = self.at.elapsed();
        time >= limit && STEP * (self.running.0.load(Ordering::Relaxed) - self.steps) < time / 2
    }
}

/// Waits until a condition holds. `what` describes it in the failure message.
///
/// # Panics
/// The condition does not hold within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    until_some(what, async move || is_so().await.then_some(()))
}

/// Waits until `look` finds a value, and returns it. `what` describes it in the failure message.
///
/// # Panics
/// No value is found within [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let mut waiting = WaitLoop::begin();
    async move {
        // Other tasks and branches get their turn, even if the condition holds at once.
        tokio::task::yield_now().await;
        loop {
            if let Some(found) = Box::pin(look()).await {
                return found;
            }
            waiting.pause(what).await;
        }
    }
}

/// The limit and the pauses of a loop that waits for an event. Use it in spawned tasks, where the future of [`until`]
/// is not `Send` if its closure borrows, and in loops whose failure message shows the last state.
///
/// ```text
/// let mut waiting = Waiting::begin();
/// while let Err(error) = write().await {
///     waiting.pause(&error.to_string()).await;
/// }
/// ```
#[derive(Debug)]
pub struct WaitLoop {
    begin: Instant,
    pause: Duration,
    caller: &'static Location<'static>,
}

impl WaitLoop {
    /// Starts to wait.
    #[must_use]
    #[track_caller]
    pub fn begin() -> WaitLoop {
        WaitLoop { begin: Instant::now(), pause: PAUSE_MIN, caller: Location::caller() }
    }

    /// Pauses before the next check. `what` describes the event in the failure message.
    ///
    /// # Panics
    /// The loop has waited for [`PATIENCE`].
    pub fn pause(&mut self, what: &str) -> impl Future<Output = ()> + use<> {
        let WaitLoop { begin, pause, caller } = *self;
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}, at {caller}");
        self.pause = (pause * 2).min(PAUSE_MAX);
        tokio::time::sleep(pause)
    }
}

/// Waits until `look` finds what is `wanted`, and returns it. `what` describes it. The failure message shows the last
/// value found.
///
/// It is not found within [`PATIENCE`].
/// It is not found within [`PATIENCE`].
#[track_caller]
pub fn until_wanted<T: Debug>(
    what: &str,
    mut look: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let (begin, mut pause) = (Instant::now(), PAUSE_MIN);
        loop {
            let found = Box::pin(look()).await;
            if wanted(&found) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}, at {caller}: {found:?}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Waits, blocking the thread, until a condition holds. `what` describes it in the failure message.
///
/// # Panics
/// The condition does not hold within [`PATIENCE`].
#[track_caller]
pub fn until_blocking(what: &str, mut is_so: impl FnMut() -> bool) {
    let (begin, mut pause) = (Instant::now(), PAUSE_MIN);
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Lets time pass: the rhythm of a torture, a slow client, or the time in which an event must not happen. A test that
/// needs the pause to succeed depends on the machine's speed, and is wrong.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Lets time pass as [`pass`] does, blocking the thread.
pub fn pass_blocking(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        let found = until_some("three looks", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found.await, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 180s, at ")]
    async fn what_does_not_end_fails() {
        soon(std::future::pending::<()>()).await;
    }
    #[tokio::test]
    async fn a_machine_that_does_other_things_holds_up() {
        let begun = RunningTime::start().begin();
        // The runtime's only thread runs no task meanwhile.
        std::thread::sleep(3 * STEP);
        assert!(begun.is_held_up(3 * STEP) && !begun.is_held_up(PATIENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_ends_what_is_not_ready() {
        let late = async |time| within(5 * STEP, pass(time)).await;
        assert_eq!((late(3 * STEP).await, late(7 * STEP).await), (Some(()), None));
    }
}
