//! Jobs that several processes share: a lease decides which process works.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::job::{Fence, Job};
use crate::lease::{Lease, LeaseError, Leases, Owner, Sighting, TakenLease, valid_until};
use crate::supervise::{JobEnd, supervise};

/// One process's claim to one job's lease.
#[derive(Debug)]
pub struct Claim {
    clock: Clock,
    owner: Owner,
    silence_max: Duration,
    is_ours: watch::Sender<bool>,
    /// The time until which the lease is certainly ours.
    valid_until: Mutex<Option<Instant>>,
    /// The lease as last seen in another process's hands.
    seen: Mutex<Option<Sighting>>,
    /// Notified when the lease can be taken.
    turn: Notify,
}

impl Claim {
    /// Creates the claim of process `owner`. Another process takes a lease over after its owner was silent for
    /// `silence_max`. All times given to the claim are `clock`'s.
    pub fn new(owner: Owner, silence_max: Duration, clock: &Clock) -> Claim {
        let (seen, turn, valid_until, clock) = (Mutex::default(), Notify::default(), Mutex::default(), clock.clone());
        Claim { clock, owner, silence_max, is_ours: watch::Sender::new(false), valid_until, seen, turn }
    }

    /// Returns whether this process has the lease.
    pub fn is_ours(&self) -> bool {
        *self.is_ours.borrow()
    }

    /// Returns whether no other process can have taken the lease by `now`. A process that was suspended learns of the
    /// loss here first.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.is_ours() && self.valid().is_some_and(|until| now < until)
    }

    fn valid(&self) -> MutexGuard<'_, Option<Instant>> {
        self.valid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the lease was ours at `begun`. Returns the time until which it is valid.
    fn extend(&self, begun: Instant) -> Instant {
        let until = valid_until(begun, self.silence_max);
        *self.valid() = Some(until);
        until
    }

    /// Returns whether the lease can be taken, as last seen: it is free, or its owner was silent for too long.
    pub fn may_be_taken(&self, now: Instant) -> bool {
        self.seen().as_ref().is_none_or(|seen| seen.stale(now, self.silence_max).is_some())
    }

    fn seen(&self) -> MutexGuard<'_, Option<Sighting>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the lease as a read that ended at `now` found it. Wakes the waiting job if the lease can be taken: it is
    /// free, or its owner was silent for too long.
    pub fn note(&self, lease: Option<Lease>, now: Instant) {
        let mut seen = self.seen();
        match (lease.filter(|lease| lease.is_of_another(&self.owner)), &mut *seen) {
            (None, seen) => *seen = None,
            (Some(lease), Some(seen)) => seen.update(lease, now),
            (Some(lease), seen) => *seen = Some(Sighting::new(lease, now)),
        }
        drop(seen);
        if self.may_be_taken(now) {
            self.turn.notify_one();
        }
    }
}

/// Runs a job whenever this process has its lease, until the job is done or stopped; then its status has ended.
///
/// It tries to take the lease once at the start, and then whenever [`Claim::note`] finds that it can be taken. A reader
/// of all jobs' leases calls that from time to time, so a waiting job does not poll its own lease. A lease is renewed
/// while it is held. When it is lost, or may be, the run is dropped at its current await.
pub async fn lead<J: Job, L: Leases>(job: &Arc<J>, claim: &Claim, leases: &Arc<L>, backoff: &Backoff) {
    let status = job.status();
    while !status.is_stopped() {
        // Boxed, so that the future of a waiting job is small.
        if let Some(JobEnd::Done) = Box::pin(try_lead(job, claim, leases, backoff)).await {
            break;
        }
        tokio::select! {
            () = claim.turn.notified() => {}
            () = status.stopped() => {}
        }
    }
    status.end();
}

/// Takes the lease if it is free and this process has room for the job, and works until the lease is lost or the job is
/// done or stopped. `None`: another process has the lease, or it could not be taken. The status does not end with it.
pub async fn try_lead<J: Job, L: Leases>(
    job: &Arc<J>,
    claim: &Claim,
    leases: &Arc<L>,
    backoff: &Backoff,
) -> Option<JobEnd> {
    let _room = job.room()?;
    let begun = claim.clock.now();
    let stale = claim.seen().as_ref().and_then(|seen| seen.stale(begun, claim.silence_max)).cloned();
    match leases.take(job.id(), &claim.owner, stale.as_ref()).await {
        Ok(TakenLease::Ours(before)) => {
            if claim.clock.now() >= claim.extend(begun) {
                tracing::debug!(kind = job.kind(), job = job.id(), "a job's lease was granted too late");
                return None;
            }
            job.restore(&before.state);
            claim.is_ours.send_replace(true);
            let end = hold(job, claim, leases, backoff, begun).await;
            claim.is_ours.send_replace(false);
            Some(end)
        }
        Ok(TakenLease::Others(lease)) => {
            claim.note(Some(lease), claim.clock.now());
            None
        }
        Err(LeaseError::Gone) => Some(JobEnd::Done),
        Err(error) => {
            tracing::debug!(kind = job.kind(), job = job.id(), %error, "a job's lease could not be requested");
            None
        }
    }
}

/// Works while the lease is ours.
async fn hold<J: Job, L: Leases>(
    job: &Arc<J>,
    claim: &Claim,
    leases: &Arc<L>,
    backoff: &Backoff,
    begun: Instant,
) -> JobEnd {
    let fence = fence(job, claim.owner, leases);
    let end = tokio::select! {
        // The renewal is polled first: a process that was suspended learns of a lost lease before its run continues.
        biased;
        // The run is dropped at its current await and records nothing further.
        () = renew(&**job, claim, &**leases, begun) => JobEnd::Superseded,
        end = while_valid(claim, supervise(&**job, backoff, Some(fence))) => end,
    };
    job.status().rest();
    if let JobEnd::Done | JobEnd::Recalled = end {
        let state = job.state();
        // Set before the release: another process may have the lease before the answer arrives.
        claim.is_ours.send_replace(false);
        // The release may fail: a lease that is gone need not be released.
        let _ = leases.hold(job.id(), &claim.owner, &state, true).await;
    }
    end
}

/// Polls the run only while the lease is certainly ours: the timer that ends it may fire late.
async fn while_valid(claim: &Claim, run: impl Future<Output = JobEnd>) -> JobEnd {
    let mut run = pin!(run);
    poll_fn(|context| {
        if claim.is_valid(claim.clock.now()) { run.as_mut().poll(context) } else { Poll::Ready(JobEnd::Superseded) }
    })
    .await
}

/// Returns once the lease is lost, or may be.
async fn renew<J: Job, L: Leases>(job: &J, claim: &Claim, leases: &L, begun: Instant) {
    let (clock, silence_max) = (&claim.clock, claim.silence_max);
    let mut valid = claim.extend(begun);
    loop {
        clock.sleep_until(leases.due_at(clock.now(), silence_max / 5).min(valid)).await;
        let begun = clock.now();
        if begun >= valid {
            return;
        }
        let state = job.state();
        let hold = leases.hold(job.id(), &claim.owner, &state, false);
        let left = valid.saturating_duration_since(begun);
        match clock.timeout(left, hold).await {
            Ok(Ok(true)) => valid = claim.extend(begun),
            Ok(Ok(false) | Err(LeaseError::Gone)) | Err(_) => return,
            Ok(Err(error)) => {
                tracing::debug!(kind = job.kind(), job = job.id(), %error, "a job's lease could not be renewed");
                clock.sleep((silence_max / 20).min(valid.saturating_duration_since(clock.now()))).await;
            }
        }
    }
}

/// Returns the fence that checks in a transaction whether the lease is still ours.
fn fence<J: Job, L: Leases>(job: &Arc<J>, owner: Owner, leases: &Arc<L>) -> Fence {
    let (job, leases) = (job.clone(), leases.clone());
    Arc::new(move || {
        let (job, leases) = (job.clone(), leases.clone());
        Box::pin(async move {
            match leases.hold(job.id(), &owner, &job.state(), false).await {
                Ok(is_ours) => Ok(is_ours),
                Err(LeaseError::Gone) => Ok(false),
                Err(error) => Err(error.to_string()),
            }
        })
    })
}

#[cfg(test)]
mod contest;

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use flatbed_testkit::pass;

    use super::*;
    use crate::job::{Failure, Next, Run};
    use crate::status::Status;

    const SILENCE_MAX: Duration = Duration::from_secs(15);
    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

    #[derive(Default)]
    struct Memory {
        lease: Mutex<Lease>,
        /// True if the storage answers only errors.
        fails: AtomicBool,
        /// True if the lease's object is gone.
        gone: AtomicBool,
    }

    impl Memory {
        fn check(&self) -> Result<(), LeaseError> {
            if self.gone.load(Ordering::Relaxed) {
                return Err(LeaseError::Gone);
            }
            if self.fails.load(Ordering::Relaxed) {
                return Err(LeaseError::Storage("the storage is away".into()));
            }
            Ok(())
        }
    }

    impl Leases for Memory {
        async fn take(&self, _: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease, LeaseError> {
            self.check()?;
            let mut lease = self.lease.lock().unwrap();
            if lease.is_of_another(owner) && !stale.is_some_and(|stale| stale.is_still(&lease)) {
                return Ok(TakenLease::Others(lease.clone()));
            }
            let before = lease.clone();
            (lease.owner, lease.beats) = (owner.to_vec(), lease.beats + 1);
            Ok(TakenLease::Ours(before))
        }

        async fn hold(&self, _: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool, LeaseError> {
            self.check()?;
            let mut lease = self.lease.lock().unwrap();
            if lease.owner != owner {
                return Ok(false);
            }
            let owner = if release { Vec::new() } else { owner.to_vec() };
            *lease = Lease { owner, beats: lease.beats + 1, state: state.to_vec() };
            Ok(true)
        }
    }

    /// A job that counts its seconds of work in its state. It is done at a given number.
    struct Counts {
        status: Status,
        seconds: AtomicU32,
        done_at: u32,
        has_room: AtomicBool,
        recall: Notify,
        claim: Claim,
    }

    impl Counts {
        fn new(owner: u8, done_at: u32) -> Arc<Counts> {
            let claim = Claim::new([owner; 16], SILENCE_MAX, &Clock::system());
            let (status, seconds, has_room) = (Status::new(&Clock::system()), AtomicU32::new(0), AtomicBool::new(true));
            Arc::new(Counts { status, seconds, done_at, has_room, recall: Notify::new(), claim })
        }

        fn seconds(&self) -> u32 {
            self.seconds.load(Ordering::Relaxed)
        }
    }

    #[async_trait]
    impl Job for Counts {
        fn kind(&self) -> &'static str {
            "test"
        }

        fn id(&self) -> &str {
            "counts"
        }

        fn status(&self) -> &Status {
            &self.status
        }

        async fn run(&self, run: Run) -> Result<Next, Failure> {
            self.status.begin();
            while self.seconds() < self.done_at {
                pass(Duration::from_secs(1)).await;
                let fence = run.fence.as_ref().unwrap();
                if !fence().await.map_err(Failure::Failed)? {
                    return Err(Failure::Superseded);
                }
                if run.is_stopped() {
                    return Ok(Next::Done);
                }
                self.seconds.fetch_add(1, Ordering::Relaxed);
            }
            self.status.succeed();
            Ok(Next::Done)
        }

        fn state(&self) -> Vec<u8> {
            self.seconds().to_le_bytes().to_vec()
        }

        fn restore(&self, state: &[u8]) {
            let seconds = state.try_into().map(u32::from_le_bytes).unwrap_or(0);
            self.seconds.store(seconds, Ordering::Relaxed);
        }

        fn room(&self) -> Option<crate::ResourceShare> {
            self.has_room.load(Ordering::Relaxed).then(|| Box::new(()) as crate::ResourceShare)
        }

        async fn recalled(&self) {
            self.recall.notified().await;
        }
    }

    /// Leads the job, and reads its lease every 4 seconds.
    fn spawn(job: &Arc<Counts>, leases: &Arc<Memory>) -> tokio::task::JoinHandle<()> {
        let (job, leases) = (job.clone(), leases.clone());
        tokio::spawn(async move {
            let looks = async {
                loop {
                    pass(Duration::from_secs(4)).await;
                    let found = leases.lease.lock().unwrap().clone();
                    job.claim.note(Some(found), Instant::now());
                }
            };
            tokio::select! {
                () = lead(&job, &job.claim, &leases, &BACKOFF) => {}
                () = looks => {}
            }
        })
    }

    async fn seconds(count: u64) {
        // Ends between whole seconds, at which jobs work.
        pass(Duration::from_secs(count) + Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_works_and_gives_the_lease_up_at_the_end() {
        let leases = Arc::<Memory>::default();
        let (one, two) = (Counts::new(1, 100), Counts::new(2, 100));
        let first = spawn(&one, &leases);
        seconds(0).await;
        let second = spawn(&two, &leases);
        seconds(50).await;
        assert!(one.claim.is_ours() && !two.claim.is_ours());
        assert_eq!((one.seconds(), two.seconds()), (50, 0));
        first.await.unwrap();
        assert!(one.status.has_ended() && !one.claim.is_ours());
        // The second process finds the job done, by its state.
        second.await.unwrap();
        assert_eq!((one.seconds(), two.seconds()), (100, 100));
        assert_eq!(leases.lease.lock().unwrap().owner, b"");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_room_is_recalled_gives_it_up_and_resumes_later() {
        let leases = Arc::<Memory>::default();
        let one = Counts::new(1, 100);
        let first = spawn(&one, &leases);
        seconds(10).await;
        one.has_room.store(false, Ordering::Relaxed);
        one.recall.notify_one();
        seconds(20).await;
        assert!(!one.claim.is_ours() && !one.status.has_ended());
        assert_eq!((one.seconds(), leases.lease.lock().unwrap().owner.len()), (10, 0));
        one.has_room.store(true, Ordering::Relaxed);
        first.await.unwrap();
        assert_eq!(one.seconds(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn another_takes_over_what_a_silent_process_left() {
        let leases = Arc::<Memory>::default();
        let (one, two) = (Counts::new(1, 100), Counts::new(2, 100));
        let first = spawn(&one, &leases);
        seconds(0).await;
        let second = spawn(&two, &leases);
        seconds(10).await;
        // The first process ends without releasing.
        first.abort();
        seconds(12).await;
        assert!(!two.claim.is_ours());
        seconds(8).await;
        assert!(two.claim.is_ours() && two.seconds() > 10);
        second.await.unwrap();
        assert_eq!(two.seconds(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_dropped_once_the_lease_is_lost_or_might_be() {
        let leases = Arc::<Memory>::default();
        // A job that never checks its fence.
        struct Deaf(Status);
        #[async_trait]
        impl Job for Deaf {
            fn kind(&self) -> &'static str {
                "test"
            }
            fn id(&self) -> &str {
                "deaf"
            }
            fn status(&self) -> &Status {
                &self.0
            }
            async fn run(&self, _: Run) -> Result<Next, Failure> {
                self.0.begin();
                std::future::pending().await
            }
        }
        let (job, claim) = (
            Arc::new(Deaf(Status::new(&Clock::system()))),
            Arc::new(Claim::new([1; 16], SILENCE_MAX, &Clock::system())),
        );
        let led = tokio::spawn({
            let (job, claim, leases) = (job.clone(), claim.clone(), leases.clone());
            async move { lead(&job, &claim, &leases, &BACKOFF).await }
        });
        seconds(100).await;
        assert!(claim.is_ours() && job.0.standing().is_running);
        // Another process takes it.
        leases.lease.lock().unwrap().owner = vec![2; 16];
        seconds(3).await;
        assert!(!claim.is_ours() && !job.0.standing().is_running);
        // It is free and is taken again.
        leases.lease.lock().unwrap().owner = Vec::new();
        claim.note(None, Instant::now());
        seconds(0).await;
        assert!(claim.is_ours());
        // It cannot be renewed: the job stops before other processes may take it.
        leases.fails.store(true, Ordering::Relaxed);
        seconds(6).await;
        let now = Instant::now();
        assert!(claim.is_ours() && claim.is_valid(now));
        // A process that was suspended meanwhile learns of it by the clock alone.
        assert!(!claim.is_valid(now + SILENCE_MAX * 2 / 3));
        seconds(4).await;
        let now = Instant::now();
        assert!(!claim.is_ours() && !claim.is_valid(now));
        // The lease's object is gone.
        leases.fails.store(false, Ordering::Relaxed);
        leases.gone.store(true, Ordering::Relaxed);
        claim.note(None, Instant::now());
        seconds(0).await;
        assert!(led.is_finished() && job.0.has_ended());
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_room_and_ends_when_told_to() {
        let leases = Arc::<Memory>::default();
        let job = Counts::new(1, 100);
        job.has_room.store(false, Ordering::Relaxed);
        let led = spawn(&job, &leases);
        seconds(20).await;
        assert!(!job.claim.is_ours() && leases.lease.lock().unwrap().beats == 0);
        job.has_room.store(true, Ordering::Relaxed);
        seconds(4).await;
        assert!(job.claim.is_ours());
        job.status.stop();
        led.await.unwrap();
        assert_eq!(leases.lease.lock().unwrap().owner, b"");
        assert!(job.status.has_ended() && job.seconds() < 5);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_for_its_turn_ends_when_told_to() {
        let leases = Arc::<Memory>::default();
        leases.lease.lock().unwrap().owner = vec![9; 16];
        let job = Counts::new(1, 100);
        let led = spawn(&job, &leases);
        seconds(2).await;
        job.status.stop();
        led.await.unwrap();
        assert!(job.status.has_ended() && job.seconds() == 0);
    }
}
