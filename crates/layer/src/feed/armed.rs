//! The watches of a database: one on each bucket's `last_seq`.
//!
//! A watch fires when the value differs from the one that it was set with. So those that were set with what is still there
//! stay: of a database with 64 shards, of which one process writes, one watch is set anew after each change and 63 are not.

use std::pin::Pin;
use std::task::Poll;

use foundationdb::FdbResult;

use crate::store::keys::BucketKeys;
use crate::store::transaction::Transaction;

/// What a bucket's `last_seq` is: nothing, or a stamp.
pub(super) type LastSeq = Option<Vec<u8>>;

struct Watch {
    set_with: LastSeq,
    fired: Pin<Box<dyn Future<Output = FdbResult<()>> + Send + Sync>>,
}

/// The watches that have been set and have not fired, by the buckets' numbers.
#[derive(Default)]
pub(super) struct Armed {
    watches: Vec<Option<Watch>>,
}

/// Watches of a transaction that has not been committed.
pub(super) struct Arming {
    watches: Vec<Option<Watch>>,
}

impl Arming {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.watches.iter().flatten().count()
    }
}

impl Armed {
    /// Sets those that are missing, or were set with something else than what a transaction has found.
    pub(super) fn set_missing(&self, trx: &Transaction, buckets: &[BucketKeys], found: &[LastSeq]) -> Arming {
        let watch = |(number, (bucket, found)): (usize, (&BucketKeys, &LastSeq))| {
            let set = self.watches.get(number).and_then(Option::as_ref);
            if set.is_some_and(|set| set.set_with == *found) {
                return None;
            }
            Some(Watch { set_with: found.clone(), fired: Box::pin(trx.watch(&bucket.last_seq())) })
        };
        Arming { watches: buckets.iter().zip(found).enumerate().map(watch).collect() }
    }

    /// The transaction that set them has been committed.
    pub(super) fn enter(&mut self, arming: Arming) {
        self.watches.resize_with(arming.watches.len(), || None);
        for (place, watch) in self.watches.iter_mut().zip(arming.watches) {
            if watch.is_some() {
                *place = watch;
            }
        }
    }

    /// Takes all of them back.
    pub(super) fn clear(&mut self) {
        self.watches.clear();
    }

    /// Waits until one fires, or fails; for ever where none is set. The others stay, also if this is dropped.
    pub(super) async fn fired(&mut self) -> FdbResult<()> {
        std::future::poll_fn(|cx| {
            for place in &mut self.watches {
                if let Some(watch) = place
                    && let Poll::Ready(fired) = watch.fired.as_mut().poll(cx)
                {
                    *place = None;
                    return Poll::Ready(fired);
                }
            }
            Poll::Pending
        })
        .await
    }
}
