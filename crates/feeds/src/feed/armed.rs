//! The watches of a database: one on each bucket's `last_seq`.
//!
//! A watch fires when the value differs from the one that it was set with, so a watch whose value is unchanged stays
//! set: for a database with 64 shards written by one process, each change sets one watch again and leaves 63.

use std::pin::Pin;
use std::task::Poll;

use flatbed_store::keys::BucketKeys;
use flatbed_store::transaction::Transaction;
use foundationdb::FdbResult;

/// The value of a bucket's `last_seq`: absent, or a stamp.
pub(super) type LastSeq = Option<Vec<u8>>;

struct Watch {
    set_with: LastSeq,
    fired: Pin<Box<dyn Future<Output = FdbResult<()>> + Send + Sync>>,
}

/// The watches that are set and have not fired, by bucket number.
#[derive(Default)]
pub(super) struct WatchSet {
    watches: Vec<Option<Watch>>,
}

/// Watches set in a transaction that is not committed yet.
pub(super) struct PendingWatches {
    watches: Vec<Option<Watch>>,
}

impl PendingWatches {
    pub(super) fn len(&self) -> usize {
        self.watches.iter().flatten().count()
    }
}

impl WatchSet {
    /// Sets each watch that is missing or was set with another value than the one that the transaction read.
    pub(super) fn set_missing(&self, trx: &Transaction, buckets: &[BucketKeys], found: &[LastSeq]) -> PendingWatches {
        let watch = |(number, (bucket, found)): (usize, (&BucketKeys, &LastSeq))| {
            let set = self.watches.get(number).and_then(Option::as_ref);
            if set.is_some_and(|set| set.set_with == *found) {
                return None;
            }
            Some(Watch { set_with: found.clone(), fired: Box::pin(trx.watch(&bucket.last_seq())) })
        };
        PendingWatches { watches: buckets.iter().zip(found).enumerate().map(watch).collect() }
    }

    /// Adds the watches of a committed transaction.
    pub(super) fn enter(&mut self, arming: PendingWatches) {
        self.watches.resize_with(arming.watches.len(), || None);
        for (place, watch) in self.watches.iter_mut().zip(arming.watches) {
            if watch.is_some() {
                *place = watch;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.watches.clear();
    }

    /// Waits until a watch fires or fails, for ever if none is set. The other watches stay set, also if the future is
    /// dropped.
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
