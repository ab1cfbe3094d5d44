//! Batches concurrent readers, so that all of them have sent their requests before one handles its answer.

use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The concurrent readers of one tree.
///
/// An in-process engine may answer at once. Readers would then run one after the other, each handling its answer before
/// the next one sends its request. A reader therefore yields once before it handles the answer: the first reader
/// through the runtime's queue, behind all others that can send by then, and the others when the first resumes. If each
/// yielded through the queue, a join of hundreds of readers would be queued again for every two of them.
#[derive(Debug, Default)]
pub struct ConcurrentReaders(Mutex<Option<Vec<Waker>>>);

impl ConcurrentReaders {
    /// Returns the answer after all other readers have sent their requests.
    pub async fn asked<T>(&self, answer: impl Future<Output = T>) -> T {
        let (mut is_first, mut leads) = (true, None);
        poll_fn(|context| {
            if !std::mem::take(&mut is_first) {
                return Poll::Ready(());
            }
            let mut waiting = self.lock();
            match &mut *waiting {
                Some(waiting) => waiting.push(context.waker().clone()),
                None => {
                    *waiting = Some(Vec::new());
                    leads = Some(LeadReader(self));
                    context.waker().wake_by_ref();
                }
            }
            Poll::Pending
        })
        .await;
        drop(leads);
        answer.await
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first reader. The others wake when it resumes or is dropped.
struct LeadReader<'a>(&'a ConcurrentReaders);

impl Drop for LeadReader<'_> {
    fn drop(&mut self) {
        let waiting = self.0.lock().take();
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::{join_all, pending};
    use futures_util::stream::FuturesUnordered;
    use futures_util::{FutureExt, StreamExt};
    use std::cell::Cell;

    #[tokio::test]
    async fn all_have_asked_before_one_goes_on() {
        for count in [1, 3, 400] {
            let (asking, asked, polls) = (ConcurrentReaders::default(), &Cell::new(0), &Cell::new(0));
            let reads = (0..count).map(|_| async {
                asked.set(asked.get() + 1);
                asking.asked(async { assert_eq!(asked.get(), count) }).await;
            });
            let mut all = join_all(reads.collect::<Vec<_>>());
            poll_fn(|context| {
                polls.set(polls.get() + 1);
                all.poll_unpin(context)
            })
            .await;
            assert!(polls.get() <= 4, "{count}: {}", polls.get());
        }
    }

    #[tokio::test]
    async fn none_waits_for_a_first_one_that_is_gone() {
        let asking = ConcurrentReaders::default();
        let mut first = Box::pin(asking.asked(pending::<()>()));
        assert!(first.as_mut().now_or_never().is_none());
        // It resumes on its own wake-up, not with the others.
        let mut second = FuturesUnordered::from_iter([asking.asked(async {})]);
        let dropped = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        tokio::join!(second.next(), dropped);
        asking.asked(async {}).await;
    }
}
