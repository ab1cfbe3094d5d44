//! What every process does from time to time for as long as its layer lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use flatbed_jobs::{Backoff, Failure, Job, Next, Run, Status, supervise};

use crate::layer::Inner;

/// Work that is done again and again. It logs what goes wrong itself.
struct Periodic<W> {
    kind: &'static str,
    every: Duration,
    inner: Weak<Inner>,
    status: Status,
    work: W,
}

/// Begins to do `work` each time after `every`, the first time too; a panic does not end that. `kind` is for the log.
pub(crate) fn start<W, D>(inner: &Arc<Inner>, kind: &'static str, every: Duration, work: W)
where
    W: Fn(Arc<Inner>) -> D + Send + Sync + 'static,
    D: Future<Output = ()> + Send,
{
    let job = Periodic { kind, every, inner: Arc::downgrade(inner), status: Status::new(), work };
    tokio::spawn(async move {
        tokio::time::sleep(every).await;
        supervise(&job, &Backoff { first: every, max: every }, None).await;
    });
}

impl<W, D> Job for Periodic<W>
where
    W: Fn(Arc<Inner>) -> D + Send + Sync + 'static,
    D: Future<Output = ()> + Send,
{
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn id(&self) -> &str {
        self.kind
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        match self.inner.upgrade().filter(|inner| !inner.is_closing()) {
            Some(inner) => (self.work)(inner).await,
            None => return Ok(Next::Done),
        }
        Ok(Next::Again(self.every))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::fenced::database;

    #[tokio::test]
    async fn it_goes_on_until_the_layer_closes() {
        let (db, _directory) = database().await;
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let wait = |until: u32| {
            let runs = runs.clone();
            async move {
                while runs.load(Ordering::Relaxed) < until {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        start(&db.inner, "test", Duration::from_millis(20), move |_| {
            let run = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(run != 1, "the second run panics") }
        });
        tokio::time::timeout(Duration::from_secs(20), wait(4)).await.expect("it goes on behind a panic");
        db.inner.closing.send_replace(true);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let last = runs.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(runs.load(Ordering::Relaxed), last);
    }
}
