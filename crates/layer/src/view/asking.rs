//! Several who read at the same time, so that all have asked before one has its answer.

use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Those who read of one tree.
///
/// An engine in the process may answer at once, and then who reads would ask one after the other, each with what was made of the
/// last answer between. So who asks comes back once more before looking at the answer: the first of them by itself, which is
/// behind all others that can ask by then, and the others when that one does. Were each to come back by itself, what joins
/// hundreds of them would be put back into the runtime's queue for each two.
#[derive(Debug, Default)]
pub(crate) struct Asking(Mutex<Option<Vec<Waker>>>);

impl Asking {
    /// What was asked for already, once all others have asked, too.
    pub(crate) async fn asked<T>(&self, answer: impl Future<Output = T>) -> T {
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
                    leads = Some(Leads(self));
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

/// The first one: when it comes back, or is dropped, the others do.
struct Leads<'a>(&'a Asking);

impl Drop for Leads<'_> {
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
            let (asking, asked, polls) = (Asking::default(), &Cell::new(0), &Cell::new(0));
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
        let asking = Asking::default();
        let mut first = Box::pin(asking.asked(pending::<()>()));
        assert!(first.as_mut().now_or_never().is_none());
        // It comes back when it is woken itself, and not with others.
        let mut second = FuturesUnordered::from_iter([asking.asked(async {})]);
        let dropped = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        tokio::join!(second.next(), dropped);
        asking.asked(async {}).await;
    }
}
