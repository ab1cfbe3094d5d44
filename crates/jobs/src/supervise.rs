//! Restarts of a job after failures and panics, and its stop.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::job::{Failure, Fence, Job, Next, Run};

/// The length of a run after which earlier failures are forgotten.
const HEALTHY: Duration = Duration::from_secs(120);

/// The time that a recalled run has to record its position. After it the run is dropped.
const RECALL_GRACE: Duration = Duration::from_secs(10);

/// The reason why a job no longer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// The job is done, or was stopped.
    Done,
    /// Another process has the job.
    Superseded,
    /// The job yielded its room to another job of this process; see [`Job::recalled`].
    Recalled,
}

/// Runs a job, repeatedly if it asks for that or fails, until it is done, stopped, or recalled.
pub async fn supervise<J: Job>(job: &J, backoff: &Backoff, fence: Option<Fence>) -> JobEnd {
    let status = job.status();
    let clock = status.clock();
    let stop = watch::Sender::new(false);
    let mut interruption = pin!(interruption(job, &stop));
    loop {
        if status.is_stopped() {
            return JobEnd::Done;
        }
        let begun = clock.now();
        let run = Run { stop: stop.subscribe(), fence: fence.clone() };
        let mut running = pin!(caught(job.run(run)));
        let (done, interrupted) = tokio::select! {
            biased;
            done = &mut running => (done, None),
            (end, grace) = &mut interruption => {
                let done = clock.timeout(grace, running).await.unwrap_or_else(|_| {
                    tracing::warn!(kind = job.kind(), job = job.id(), "a job did not end in time; its run is dropped");
                    Ok(Next::Done)
                });
                (done, Some(end))
            }
        };
        status.rest();
        if clock.since(begun) >= HEALTHY {
            status.forgive();
        }
        let pause = match done {
            Ok(Next::Done) => return interrupted.unwrap_or(JobEnd::Done),
            Ok(Next::Again(after)) => after,
            Err(Failure::Superseded) => return JobEnd::Superseded,
            Err(Failure::Failed(reason)) => {
                job.log_failure(&status.fail(&reason));
                let failures = status.standing().error_count;
                backoff.pause(failures)
            }
        };
        if let Some(end) = interrupted {
            return end;
        }
        if let Ok((end, _)) = clock.timeout(pause, &mut interruption).await {
            return end;
        }
    }
}

/// Waits until the job is stopped or recalled, and stops its run. Returns the reason, and the time that the run has to
/// end.
async fn interruption<J: Job>(job: &J, stop: &watch::Sender<bool>) -> (JobEnd, Duration) {
    let interruption = tokio::select! {
        biased;
        () = job.status().stopped() => (JobEnd::Done, job.grace()),
        () = job.recalled() => (JobEnd::Recalled, RECALL_GRACE),
    };
    stop.send_replace(true);
    interruption
}

/// Returns a run's outcome; a panic is a failure.
async fn caught(run: impl Future<Output = Result<Next, Failure>>) -> Result<Next, Failure> {
    let mut run = pin!(run);
    std::future::poll_fn(|context| {
        // A run that panicked is not polled again, and its shared state is behind locks, which record the panic.
        match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context))) {
            Ok(polled) => polled,
            Err(panic) => Poll::Ready(Err(Failure::Failed(format!("it panicked: {}", message(&*panic))))),
        }
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no message",
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use std::sync::{Arc, Mutex};

    use flatbed_clock::Clock;
    use flatbed_testkit::pass;
    use tokio::time::Instant;

    use super::*;
    use crate::status::Status;

    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(5) };

    /// A job whose runs call a function with their number. It records when they began.
    struct ScriptedJob<F> {
        status: Status,
        begun: Mutex<Vec<u64>>,
        born: Instant,
        run: F,
    }

    impl<F> ScriptedJob<F> {
        fn new(run: F) -> Arc<ScriptedJob<F>> {
            Arc::new(ScriptedJob {
                status: Status::new(&Clock::system()),
                begun: Mutex::default(),
                born: Instant::now(),
                run,
            })
        }

        /// Returns the seconds of the virtual clock since the job was created.
        fn age_s(&self) -> u64 {
            (Instant::now() - self.born).as_secs()
        }
    }

    #[async_trait]
    impl<F, R> Job for ScriptedJob<F>
    where
        F: Fn(usize, Run) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Next, Failure>> + Send,
    {
        fn kind(&self) -> &'static str {
            "test"
        }

        fn id(&self) -> &str {
            "it"
        }

        fn status(&self) -> &Status {
            &self.status
        }

        async fn run(&self, run: Run) -> Result<Next, Failure> {
            let number = {
                let mut begun = self.begun.lock().unwrap();
                begun.push(self.age_s());
                begun.len()
            };
            (self.run)(number, run).await
        }
    }

    fn failed(reason: &str) -> Result<Next, Failure> {
        Err(Failure::Failed(reason.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_after_longer_and_longer_pauses() {
        let job = ScriptedJob::new(|number, _| async move { if number < 6 { failed("no") } else { Ok(Next::Done) } });
        assert_eq!(supervise(&*job, &BACKOFF, None).await, JobEnd::Done);
        assert_eq!(*job.begun.lock().unwrap(), [0, 1, 3, 7, 12, 17]);
        let standing = job.status.standing();
        assert_eq!((standing.error_count, standing.error.as_deref()), (5, Some("no")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_run_makes_up_for_failures_before_it() {
        let job = ScriptedJob::new(|number, _| async move {
            if number == 3 {
                pass(HEALTHY).await;
            }
            if number < 5 { failed("no") } else { Ok(Next::Done) }
        });
        supervise(&*job, &BACKOFF, None).await;
        assert_eq!(*job.begun.lock().unwrap(), [0, 1, 3, 124, 126]);
    }

    #[tokio::test(start_paused = true)]
    async fn panics_are_failures() {
        let job = ScriptedJob::new(|number, _| async move {
            match number {
                1 => panic!("at {number}"),
                2 => {
                    tokio::task::yield_now().await;
                    panic!("later")
                }
                _ => Ok(Next::Done),
            }
        });
        job.status.begin();
        assert_eq!(supervise(&*job, &BACKOFF, None).await, JobEnd::Done);
        let standing = job.status.standing();
        assert!(!standing.is_running);
        let reasons: Vec<_> = standing.history.iter().filter_map(|event| event.reason.as_deref()).collect();
        assert_eq!(reasons, ["it panicked: later", "it panicked: at 1"]);
        assert_eq!(*job.begun.lock().unwrap(), [0, 1, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_wanted_again_is_run_again() {
        let again = Next::Again(Duration::from_secs(60));
        let job = ScriptedJob::new(move |number, _| async move { Ok(if number < 4 { again } else { Next::Done }) });
        supervise(&*job, &BACKOFF, None).await;
        assert_eq!(*job.begun.lock().unwrap(), [0, 60, 120, 180]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_told_to_end_does_not_wait_and_is_not_run_again() {
        for pause in [Ok(Next::Again(Duration::from_secs(3_600))), failed("no")] {
            let job = ScriptedJob::new(move |_, _| {
                let pause = pause.clone();
                async move { pause }
            });
            let supervised = tokio::spawn({
                let job = job.clone();
                async move { supervise(&*job, &Backoff { first: Duration::from_secs(3_600), ..BACKOFF }, None).await }
            });
            pass(Duration::from_secs(2)).await;
            job.status.stop();
            assert_eq!(supervised.await.unwrap(), JobEnd::Done);
            assert_eq!(job.age_s(), 2);
            assert_eq!(supervise(&*job, &BACKOFF, None).await, JobEnd::Done);
            assert_eq!(job.begun.lock().unwrap().len(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_has_its_grace_to_end_and_no_longer() {
        // This run listens, and takes a while to end.
        let polite = ScriptedJob::new(|_, mut run: Run| async move {
            let _ = run.stop.wait_for(|stop| *stop).await;
            pass(Duration::from_secs(20)).await;
            assert!(run.is_stopped());
            failed("last words")
        });
        // This run never ends.
        let deaf = ScriptedJob::new(|_, _| std::future::pending());
        let both = async { tokio::join!(supervise(&*polite, &BACKOFF, None), supervise(&*deaf, &BACKOFF, None)) };
        let stop = async {
            pass(Duration::from_secs(1_000)).await;
            polite.status.stop();
            deaf.status.stop();
        };
        let ended = tokio::time::timeout(Duration::from_secs(10_000), async { tokio::join!(both, stop) }).await;
        assert_eq!(ended, Ok(((JobEnd::Done, JobEnd::Done), ())), "one is waited for without end");
        assert_eq!(polite.status.standing().error.as_deref(), Some("last words"));
        assert_eq!(deaf.age_s(), 1_030);
    }

    /// A job that counts its work, and records it when it is stopped, if it listens.
    struct RecallableJob {
        status: Status,
        recall: tokio::sync::Notify,
        listens: bool,
        recorded: std::sync::atomic::AtomicBool,
        born: Instant,
    }

    #[async_trait]
    impl Job for RecallableJob {
        fn kind(&self) -> &'static str {
            "test"
        }

        fn id(&self) -> &str {
            "recalled"
        }

        fn status(&self) -> &Status {
            &self.status
        }

        async fn run(&self, mut run: Run) -> Result<Next, Failure> {
            if !self.listens {
                std::future::pending::<()>().await;
            }
            let _ = run.stop.wait_for(|stop| *stop).await;
            pass(Duration::from_secs(5)).await;
            self.recorded.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(Next::Done)
        }

        async fn recalled(&self) {
            self.recall.notified().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_recalled_run_records_what_it_has_done() {
        for (listens, seconds) in [(true, 5), (false, 10)] {
            let job = RecallableJob {
                status: Status::new(&Clock::system()),
                recall: tokio::sync::Notify::new(),
                listens,
                recorded: std::sync::atomic::AtomicBool::new(false),
                born: Instant::now(),
            };
            job.recall.notify_one();
            assert_eq!(supervise(&job, &BACKOFF, None).await, JobEnd::Recalled);
            assert_eq!(job.recorded.load(std::sync::atomic::Ordering::Relaxed), listens);
            assert_eq!((Instant::now() - job.born).as_secs(), seconds);
            assert!(!job.status.is_stopped());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_process_has_is_left_to_it() {
        let job = ScriptedJob::new(|_, _| async { Err(Failure::Superseded) });
        assert_eq!(supervise(&*job, &BACKOFF, None).await, JobEnd::Superseded);
        assert_eq!(job.status.standing().error_count, 0);
    }
}
