//! Renewals of a process's leases, batched into one transaction. Each job continues by the result for its own lease:
//! losing one lease does not affect the others.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::lease::{LEASE_STATE_BYTES_MAX, Lease, LeaseError, Leases, Owner, TakenLease};

/// The most leases renewed in one transaction.
pub const HOLDS_MAX: usize = 100;

/// The bytes of their ids and states together: half of the recommended size of a transaction. A batch holds at least
/// one lease.
pub const HOLDS_BYTES_MAX: usize = 500_000;

/// The time for which a batch collects renewals due at the same moment.
const GATHERED_FOR: Duration = Duration::from_millis(20);

/// A renewal of a lease, as by [`Leases::hold`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRenewal {
    /// The lease's id.
    pub id: String,
    /// The owner's state, at most [`LEASE_STATE_BYTES_MAX`] bytes.
    pub state: Vec<u8>,
}

impl LeaseRenewal {
    /// Returns the bytes that count towards [`HOLDS_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.id.len() + self.state.len()
    }
}

/// A storage of leases that renews several at once.
pub trait HoldMany: Leases {
    /// Renews distinct leases of one owner, as [`Leases::hold`] without `release` does, in one transaction: at most
    /// [`HOLDS_MAX`] of at most [`HOLDS_BYTES_MAX`]. Returns for each, in order, whether it is still the owner's.
    ///
    /// # Errors
    /// [`LeaseError`]: the result of every renewal is unknown.
    fn hold_many(
        &self,
        owner: &Owner,
        holds: &[LeaseRenewal],
    ) -> impl Future<Output = Result<Vec<bool>, LeaseError>> + Send;
}

/// A renewal that waits for its result.
struct PendingHold {
    owner: Owner,
    hold: LeaseRenewal,
    tell: oneshot::Sender<Result<bool, LeaseError>>,
}

#[derive(Default)]
struct HoldQueue {
    asked: VecDeque<PendingHold>,
    /// True if a task will take the renewals.
    is_due: bool,
}

struct Inner<L> {
    leases: L,
    clock: Clock,
    gathered: Mutex<HoldQueue>,
    /// The moment from which the renewal times are counted.
    since: Instant,
}

/// Leases whose renewals are batched. Taking and releasing are not delayed.
pub struct LeaseBatch<L>(Arc<Inner<L>>);

impl<L: HoldMany> LeaseBatch<L> {
    /// Creates the batch of all jobs of a process. They share the clock.
    pub fn new(leases: L, clock: &Clock) -> LeaseBatch<L> {
        let (gathered, since, clock) = (Mutex::default(), clock.now(), clock.clone());
        LeaseBatch(Arc::new(Inner { leases, clock, gathered, since }))
    }
}

impl<L: HoldMany> Inner<L> {
    fn gathered(&self) -> MutexGuard<'_, HoldQueue> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes as many waiting renewals as fit one transaction. `None`: none waits.
    fn next(&self) -> Option<Vec<PendingHold>> {
        let mut gathered = self.gathered();
        let (mut batch, mut later) = (Vec::<PendingHold>::new(), VecDeque::new());
        let (mut ids, mut bytes) = (HashSet::new(), 0_usize);
        while let Some(asked) = gathered.asked.pop_front() {
            let is_of_owner = batch.first().is_none_or(|first| first.owner == asked.owner);
            let has_room = batch.is_empty() || batch.len() < HOLDS_MAX && bytes + asked.hold.bytes() <= HOLDS_BYTES_MAX;
            if is_of_owner && has_room && ids.insert(asked.hold.id.clone()) {
                bytes += asked.hold.bytes();
                batch.push(asked);
            } else {
                later.push_back(asked);
            }
        }
        gathered.asked = later;
        gathered.is_due = !batch.is_empty();
        (!batch.is_empty()).then_some(batch)
    }

    async fn ask(&self, batch: Vec<PendingHold>) {
        let Some(owner) = batch.first().map(|asked| asked.owner) else { return };
        let (holds, tells): (Vec<LeaseRenewal>, Vec<_>) =
            batch.into_iter().map(|asked| (asked.hold, asked.tell)).unzip();
        let answers: Result<Vec<_>, String> = match self.leases.hold_many(&owner, &holds).await {
            Ok(held) if held.len() == holds.len() => Ok(held.into_iter().map(Ok).collect()),
            Ok(_) => Err("the storage answered for other leases than requested".to_owned()),
            Err(LeaseError::Gone) => Ok(holds.iter().map(|_| Err(LeaseError::Gone)).collect()),
            Err(LeaseError::Storage(error)) => Err(error.to_string()),
        };
        let answers = answers
            .unwrap_or_else(|error| holds.iter().map(|_| Err(LeaseError::Storage(error.clone().into()))).collect());
        for (tell, answer) in tells.into_iter().zip(answers) {
            // The send fails if the waiting job has stopped.
            let _ = tell.send(answer);
        }
    }
}

impl<L: HoldMany> Leases for LeaseBatch<L> {
    async fn take(&self, id: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease, LeaseError> {
        self.0.leases.take(id, owner, stale).await
    }

    async fn hold(&self, id: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool, LeaseError> {
        // A state that is too long must fail alone, without its batch.
        if release || state.len() > LEASE_STATE_BYTES_MAX {
            return self.0.leases.hold(id, owner, state, release).await;
        }
        let (tell, told) = oneshot::channel();
        let hold = LeaseRenewal { id: id.to_owned(), state: state.to_vec() };
        let is_first = {
            let mut gathered = self.0.gathered();
            gathered.asked.push_back(PendingHold { owner: *owner, hold, tell });
            !std::mem::replace(&mut gathered.is_due, true)
        };
        if is_first {
            let inner = self.0.clone();
            // A task of its own: the job that began the batch may stop waiting.
            tokio::spawn(async move {
                inner.clock.sleep(GATHERED_FOR).await;
                while let Some(batch) = inner.next() {
                    let inner = inner.clone();
                    // Another task, so that a batch without an answer does not delay later ones.
                    tokio::spawn(async move { inner.ask(batch).await });
                }
            });
        }
        told.await.unwrap_or_else(|_| Err(LeaseError::Storage("no task renewed the lease".into())))
    }

    /// The times are the same for all leases, so that their renewals meet in one batch.
    fn due_at(&self, now: Instant, every: Duration) -> Instant {
        let gone = now.saturating_duration_since(self.0.since).as_nanos();
        let next = gone.checked_div(every.as_nanos()).map_or(0, |times| (times + 1) * every.as_nanos());
        let next = u64::try_from(next).ok().and_then(|next| self.0.since.checked_add(Duration::from_nanos(next)));
        next.unwrap_or(now + every)
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use flatbed_testkit::pass;

    use super::*;
    use crate::backoff::Backoff;
    use crate::job::{Failure, Job, Next, Run};
    use crate::lead::{Claim, lead};
    use crate::status::Status;

    const SILENCE_MAX: Duration = Duration::from_secs(15);

    /// Leases in memory, with a count of transactions.
    #[derive(Default)]
    struct Memory {
        leases: Mutex<HashMap<String, Lease>>,
        transactions: AtomicU32,
        alone: AtomicU32,
        fails: AtomicBool,
        hangs: AtomicBool,
        largest: AtomicU32,
    }

    impl Memory {
        fn hold_now(&self, owner: &Owner, hold: &LeaseRenewal) -> bool {
            let mut leases = self.leases.lock().unwrap();
            let lease = leases.entry(hold.id.clone()).or_default();
            let is_ours = lease.owner == owner;
            if is_ours {
                *lease = Lease { beats: lease.beats + 1, state: hold.state.clone(), ..lease.clone() };
            }
            is_ours
        }
    }

    impl Leases for Arc<Memory> {
        async fn take(&self, id: &str, owner: &Owner, _: Option<&Lease>) -> Result<TakenLease, LeaseError> {
            let mut leases = self.leases.lock().unwrap();
            let lease = leases.entry(id.to_owned()).or_default();
            if lease.is_of_another(owner) {
                return Ok(TakenLease::Others(lease.clone()));
            }
            lease.owner = owner.to_vec();
            Ok(TakenLease::Ours(lease.clone()))
        }

        async fn hold(&self, id: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool, LeaseError> {
            self.alone.fetch_add(1, Ordering::Relaxed);
            let is_ours = self.hold_now(owner, &LeaseRenewal { id: id.to_owned(), state: state.to_vec() });
            if is_ours && release {
                self.leases.lock().unwrap().entry(id.to_owned()).or_default().owner.clear();
            }
            Ok(is_ours)
        }
    }

    impl HoldMany for Arc<Memory> {
        async fn hold_many(&self, owner: &Owner, holds: &[LeaseRenewal]) -> Result<Vec<bool>, LeaseError> {
            self.transactions.fetch_add(1, Ordering::Relaxed);
            self.largest.fetch_max(holds.len() as u32, Ordering::Relaxed);
            let ids: HashSet<&str> = holds.iter().map(|hold| hold.id.as_str()).collect();
            assert!(ids.len() == holds.len() && holds.len() <= HOLDS_MAX);
            assert!(holds.len() == 1 || holds.iter().map(LeaseRenewal::bytes).sum::<usize>() <= HOLDS_BYTES_MAX);
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.fails.load(Ordering::Relaxed) {
                return Err(LeaseError::Storage("the storage is away".into()));
            }
            Ok(holds.iter().map(|hold| self.hold_now(owner, hold)).collect())
        }
    }

    /// Works until its lease is lost.
    struct Idle {
        id: String,
        status: Status,
        claim: Claim,
    }

    #[async_trait]
    impl Job for Idle {
        fn kind(&self) -> &'static str {
            "test"
        }

        fn id(&self) -> &str {
            &self.id
        }

        fn status(&self) -> &Status {
            &self.status
        }

        async fn run(&self, mut run: Run) -> Result<Next, Failure> {
            self.status.begin();
            let _ = run.stop.wait_for(|stop| *stop).await;
            Ok(Next::Done)
        }

        fn state(&self) -> Vec<u8> {
            self.id.clone().into_bytes()
        }
    }

    /// Starts this many jobs of a process, each led from a moment of its own.
    async fn begin(leases: &Arc<LeaseBatch<Arc<Memory>>>, count: usize) -> Vec<Arc<Idle>> {
        let mut jobs = Vec::new();
        for at in 0..count {
            let claim = Claim::new([1; 16], SILENCE_MAX, &Clock::system());
            let job = Arc::new(Idle { id: format!("j{at}"), status: Status::new(&Clock::system()), claim });
            jobs.push(job.clone());
            let leases = leases.clone();
            let backoff = Backoff { first: SILENCE_MAX, max: SILENCE_MAX };
            tokio::spawn(async move { lead(&job, &job.claim, &leases, &backoff).await });
            pass(Duration::from_millis(17)).await;
        }
        jobs
    }

    fn led(jobs: &[Arc<Idle>]) -> usize {
        jobs.iter().filter(|job| job.claim.is_ours()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_began_one_by_one_are_renewed_together() {
        let memory = Arc::<Memory>::default();
        let leases = Arc::new(LeaseBatch::new(memory.clone(), &Clock::system()));
        let jobs = begin(&leases, 250).await;
        pass(SILENCE_MAX).await;
        let before = memory.transactions.load(Ordering::Relaxed);
        pass(Duration::from_secs(30)).await;
        // Ten times 250 leases, of which 100 fit one transaction.
        assert_eq!((memory.transactions.load(Ordering::Relaxed) - before, led(&jobs)), (30, 250));
        assert_eq!(memory.largest.load(Ordering::Relaxed) as usize, HOLDS_MAX);
        let states = memory.leases.lock().unwrap().iter().all(|(id, lease)| lease.state == id.as_bytes());
        assert!(states && memory.alone.load(Ordering::Relaxed) == 0);
        // Each is released alone and at once.
        for job in &jobs {
            job.status.stop();
            job.status.ended().await;
        }
        assert!(memory.leases.lock().unwrap().values().all(|lease| lease.owner.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_lost_is_lost_for_its_job_alone() {
        let memory = Arc::<Memory>::default();
        let leases = Arc::new(LeaseBatch::new(memory.clone(), &Clock::system()));
        let jobs = begin(&leases, 20).await;
        pass(SILENCE_MAX).await;
        memory.leases.lock().unwrap().get_mut("j7").unwrap().owner = vec![2; 16];
        memory.leases.lock().unwrap().remove("j8");
        pass(Duration::from_secs(4)).await;
        assert!(!jobs[7].claim.is_ours() && !jobs[8].claim.is_ours() && led(&jobs) == 18);
        assert!(!jobs[7].status.standing().is_running && jobs[9].status.standing().is_running);
        pass(10 * SILENCE_MAX).await;
        assert_eq!(led(&jobs), 18);
        assert_eq!(memory.leases.lock().unwrap()["j7"].owner, [2; 16]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_renewed_ends_in_time() {
        for hangs in [false, true] {
            let memory = Arc::<Memory>::default();
            let leases = Arc::new(LeaseBatch::new(memory.clone(), &Clock::system()));
            let jobs = begin(&leases, 20).await;
            pass(SILENCE_MAX).await;
            // An occasional failure is retried.
            memory.fails.store(true, Ordering::Relaxed);
            pass(Duration::from_secs(4)).await;
            memory.fails.store(false, Ordering::Relaxed);
            pass(SILENCE_MAX).await;
            assert_eq!(led(&jobs), 20);
            if hangs { &memory.hangs } else { &memory.fails }.store(true, Ordering::Relaxed);
            pass(SILENCE_MAX * 2 / 3 + Duration::from_millis(1)).await;
            assert_eq!(led(&jobs), 0, "others may take them over before long");
            let now = Instant::now();
            assert!(jobs.iter().all(|job| !job.claim.is_valid(now) && !job.status.standing().is_running));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_states_share_no_transaction_that_is_too_large() {
        let memory = Arc::<Memory>::default();
        let leases = Arc::new(LeaseBatch::new(memory.clone(), &Clock::system()));
        let state = vec![b'x'; LEASE_STATE_BYTES_MAX];
        // Some are renewed twice at once, and the first caller does not wait for the result.
        let mut asked = Vec::new();
        for at in 0..40 {
            let (leases, id, state) = (leases.clone(), format!("j{}", at % 30), state.clone());
            leases.take(&id, &[1; 16], None).await.unwrap();
            asked.push(tokio::spawn(async move { leases.hold(&id, &[1; 16], &state, false).await.unwrap() }));
            tokio::task::yield_now().await;
        }
        asked.remove(0).abort();
        let too_long = vec![b'x'; LEASE_STATE_BYTES_MAX + 1];
        assert!(leases.hold("j0", &[1; 16], &too_long, false).await.unwrap());
        assert_eq!(memory.alone.load(Ordering::Relaxed), 1);
        for asked in asked {
            assert!(asked.await.unwrap());
        }
        assert!(memory.largest.load(Ordering::Relaxed) == 9);
        assert!(!leases.hold("j0", &[2; 16], &state, false).await.unwrap());
    }
}
