//! Password checks, which are slow by design. One runs at a time and few wait. Equal checks run once, and a check
//! whose clients have left does not run.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_auth::{Digest, Network};
use flatbed_clock::Clock;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::line::{LaneQueue, OF_ALL_MAX};

/// Options of the queue of password checks.
#[derive(Clone)]
pub struct CheckOptions {
    /// The most waiting checks.
    pub waiting_max: usize,
    /// The longest wait for a turn.
    pub wait_max: Duration,
    /// Called before each check, on its thread. For tests, which block it.
    pub before_each: Arc<dyn Fn() + Send + Sync>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { waiting_max: OF_ALL_MAX, wait_max: Duration::from_secs(10), before_each: Arc::new(|| ()) }
    }
}

impl std::fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CheckOptions { waiting_max, wait_max, .. } = self;
        let mut fields = f.debug_struct("CheckOptions");
        fields.field("waiting_max", waiting_max).field("wait_max", wait_max).finish_non_exhaustive()
    }
}

/// The most rehashes that wait for an empty queue.
const LATER_MAX: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckOutcome {
    Right,
    Wrong,
    /// Not checked: too many passwords were wrong.
    LockedOut,
    /// Not checked: the queue was full, or the turn did not come in time.
    NoRoom,
}

/// Sends the outcome of a check to its waiters.
type OutcomeSender = Arc<watch::Sender<Option<CheckOutcome>>>;

type CheckWork = Box<dyn FnOnce() -> CheckOutcome + Send>;

/// The queue of password checks. Cheap to clone.
#[derive(Clone)]
pub(super) struct Checks {
    state: Arc<Mutex<CheckQueue>>,
    options: CheckOptions,
    clock: Clock,
    began: Instant,
}

struct CheckQueue {
    line: LaneQueue<u64>,
    waiting: HashMap<u64, WaitingCheck>,
    /// The waiting and running checks, by the digest of the input.
    same: HashMap<Digest, (u64, OutcomeSender)>,
    later: VecDeque<Box<dyn FnOnce() + Send>>,
    next: u64,
    is_working: bool,
}

struct WaitingCheck {
    who: Network,
    key: Digest,
    work: CheckWork,
    told: OutcomeSender,
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checks").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl Checks {
    pub(super) fn new(options: CheckOptions, clock: &Clock) -> Checks {
        let state = CheckQueue {
            line: LaneQueue::new(options.waiting_max),
            waiting: HashMap::new(),
            same: HashMap::new(),
            later: VecDeque::new(),
            next: 0,
            is_working: false,
        };
        let (state, began) = (Arc::new(Mutex::new(state)), clock.now());
        Checks { state, options, clock: clock.clone(), began }
    }

    fn state(&self) -> MutexGuard<'_, CheckQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.state().line.len()
    }

    /// Milliseconds of a monotonic clock.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Runs `work` in its turn and returns its outcome. If work with the same `key` waits or runs, its outcome is
    /// returned.
    pub(super) async fn ask(
        &self,
        who: Network,
        key: Digest,
        work: impl FnOnce() -> CheckOutcome + Send + 'static,
    ) -> CheckOutcome {
        let Some(mut asking) = self.enter(who, key, Box::new(work)) else { return CheckOutcome::NoRoom };
        let outcome = self.clock.timeout(self.options.wait_max, asking.outcome()).await;
        match outcome {
            Ok(outcome) => outcome,
            // The turn has come. Under load the clients would otherwise time out just before their check ends.
            Err(_) if !asking.is_waiting() => asking.outcome().await,
            Err(_) => CheckOutcome::NoRoom,
        }
    }

    fn enter(&self, who: Network, key: Digest, work: CheckWork) -> Option<CheckWaiter> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        if let Some((id, told)) = state.same.get(&key) {
            return Some(CheckWaiter { checks: self.clone(), id: *id, told: told.subscribe() });
        }
        let id = state.next;
        let gave_way = state.line.push(who, id, now_ms).ok()?;
        if let Some(other) = gave_way.and_then(|other| state.waiting.remove(&other)) {
            state.same.remove(&other.key);
            other.told.send_replace(Some(CheckOutcome::NoRoom));
        }
        state.next += 1;
        let (told, receiver) = watch::channel(None);
        let told = Arc::new(told);
        state.same.insert(key, (id, Arc::clone(&told)));
        state.waiting.insert(id, WaitingCheck { who, key, work, told });
        self.begin(&mut state);
        Some(CheckWaiter { checks: self.clone(), id, told: receiver })
    }

    /// Runs `work` when no check waits; returns false without room for it.
    pub(super) fn run_later(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state();
        if state.later.len() >= LATER_MAX {
            return false;
        }
        state.later.push_back(Box::new(work));
        self.begin(&mut state);
        true
    }

    fn begin(&self, state: &mut CheckQueue) {
        if !std::mem::replace(&mut state.is_working, true) {
            tokio::spawn(self.clone().work());
        }
    }

    async fn work(self) {
        loop {
            let (work, who, of): (Box<dyn FnOnce() -> CheckOutcome + Send>, _, _) = {
                let mut state = self.state();
                match state.line.pop() {
                    Some((who, id)) => match state.waiting.remove(&id) {
                        Some(WaitingCheck { key, work, told, .. }) => (work, Some(who), Some((key, told))),
                        None => continue,
                    },
                    None => match state.later.pop_front() {
                        Some(later) => {
                            let work = move || {
                                later();
                                CheckOutcome::Right
                            };
                            (Box::new(work), None, None)
                        }
                        None => {
                            state.is_working = false;
                            return;
                        }
                    },
                }
            };
            // A panic must not count as a right password.
            let ended =
                |error: JoinError| if error.is_cancelled() { CheckOutcome::NoRoom } else { CheckOutcome::Wrong };
            let before_each = Arc::clone(&self.options.before_each);
            let work = move || {
                before_each();
                work()
            };
            let outcome = tokio::task::spawn_blocking(work).await.unwrap_or_else(ended);
            let mut state = self.state();
            if let (Some(who), CheckOutcome::Right) = (who, outcome) {
                state.line.forgive(who);
            }
            if let Some((key, told)) = of {
                state.same.remove(&key);
                told.send_replace(Some(outcome));
            }
        }
    }
}

/// A waiter for a check. Dropping the last one removes the check from the queue.
struct CheckWaiter {
    checks: Checks,
    id: u64,
    told: watch::Receiver<Option<CheckOutcome>>,
}

impl CheckWaiter {
    async fn outcome(&mut self) -> CheckOutcome {
        match self.told.wait_for(Option::is_some).await {
            Ok(outcome) => (*outcome).unwrap_or(CheckOutcome::Wrong),
            // The server stops.
            Err(_) => CheckOutcome::NoRoom,
        }
    }

    /// True if the turn has not come.
    fn is_waiting(&self) -> bool {
        self.checks.state().waiting.contains_key(&self.id)
    }
}

impl Drop for CheckWaiter {
    fn drop(&mut self) {
        let mut state = self.checks.state();
        // Other waiters for the check joined under this lock.
        let is_alone = state.waiting.get(&self.id).is_some_and(|waiting| waiting.told.receiver_count() <= 1);
        if is_alone && let Some(waiting) = state.waiting.remove(&self.id) {
            state.same.remove(&waiting.key);
            state.line.cancel(waiting.who, &self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flatbed_clock::ManualClock;
    use flatbed_testkit::{pass_blocking, soon, until};

    use super::*;

    fn key(at: usize) -> Digest {
        let mut key = [0; 32];
        for (byte, of) in key.iter_mut().zip(at.to_be_bytes()) {
            *byte = of;
        }
        key
    }

    /// Checks with a stopped clock, so that no wait times out.
    fn checks(options: CheckOptions) -> Checks {
        Checks::new(options, &ManualClock::new().clock())
    }

    /// The number of checks that ran, that run, and that ran in parallel.
    #[derive(Debug, Default)]
    struct CheckCounts {
        all: AtomicUsize,
        now: AtomicUsize,
        at_once: AtomicUsize,
    }

    fn slow(ran: &Arc<CheckCounts>, outcome: CheckOutcome) -> impl FnOnce() -> CheckOutcome + Send + 'static {
        let ran = Arc::clone(ran);
        move || {
            ran.all.fetch_add(1, Ordering::Relaxed);
            ran.at_once.fetch_max(ran.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            pass_blocking(Duration::from_millis(20));
            ran.now.fetch_sub(1, Ordering::Relaxed);
            outcome
        }
    }

    #[tokio::test]
    async fn equal_ones_share_a_check_and_one_runs_at_once() {
        let (checks, ran) = (checks(CheckOptions::default()), Arc::<CheckCounts>::default());
        let asked = (0..40).map(|at| {
            let outcome = if at % 4 == 0 { CheckOutcome::Right } else { CheckOutcome::Wrong };
            checks.ask(Network::V6(at as u64), key(at % 4), slow(&ran, outcome))
        });
        let found = futures_util::future::join_all(asked).await;
        assert!((0..40).all(|at| (found[at] == CheckOutcome::Right) == (at % 4 == 0)), "{found:?}");
        assert_eq!((ran.all.load(Ordering::Relaxed), ran.at_once.load(Ordering::Relaxed)), (4, 1));
        assert!(checks.state().same.is_empty() && checks.state().waiting.is_empty());
    }

    #[tokio::test]
    async fn who_hangs_up_is_not_checked_and_beyond_the_room_nobody_waits() {
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let before_each = {
            let turn = Arc::clone(&turn);
            Arc::new(move || drop(turn.blocking_lock()))
        };
        let (few, ran) =
            (checks(CheckOptions { before_each, ..CheckOptions::default() }), Arc::<CheckCounts>::default());
        let held = turn.lock().await;
        for at in 0..200 {
            let asked = few.ask(Network::V6(1), key(at), slow(&ran, CheckOutcome::Wrong));
            assert!(tokio::time::timeout(Duration::from_millis(1), asked).await.is_err());
        }
        // The first check runs, without a waiter.
        assert_eq!(few.waiting(), 0);
        drop(held);
        until("all is done", async || !few.state().is_working).await;
        assert_eq!(ran.all.load(Ordering::Relaxed), 1);
        let (checks, ran) =
            (checks(CheckOptions { waiting_max: 10, ..CheckOptions::default() }), Arc::<CheckCounts>::default());
        let asked =
            (0..30).map(|at| checks.ask(Network::V6(1_000 + at as u64), key(at), slow(&ran, CheckOutcome::Wrong)));
        let found = futures_util::future::join_all(asked).await;
        let refused = found.iter().filter(|outcome| **outcome == CheckOutcome::NoRoom).count();
        assert!((30 - 12..=30 - 10).contains(&refused), "{refused}");
    }

    #[tokio::test]
    async fn a_panic_is_no_right_password_and_the_rest_goes_on() {
        let checks = checks(CheckOptions::default());
        let broken = checks.ask(Network::V6(1), key(1), || panic!("broken"));
        assert_eq!(broken.await, CheckOutcome::Wrong);
        let (told, done) = tokio::sync::oneshot::channel();
        assert!(checks.run_later(move || told.send(()).unwrap()));
        assert_eq!(checks.ask(Network::V6(1), key(2), || CheckOutcome::Right).await, CheckOutcome::Right);
        soon(done).await.unwrap();
        let taken = (0..100).filter(|_| checks.run_later(|| ())).count();
        assert_eq!((taken, checks.state().later.len()), (LATER_MAX, LATER_MAX));
    }
}
