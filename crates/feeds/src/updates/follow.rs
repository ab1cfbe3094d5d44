//! One set of watches and one reader for all followers of `_db_updates` in this process.
//!
//! A follower subscribes, then reads once by itself. A later batch of the shared reader continues from its position,
//! lies behind it, or leaves a gap; after a gap the follower reads by itself again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::error::Result;
use flatbed_store::keys::RootKeys;
use flatbed_store::seq::{Seq, Stamp};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction, bounded};
use foundationdb::FdbResult;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::broadcast;

use crate::feed::hub::{ERROR_PAUSE, SAFETY_REREAD};
use crate::feed::watches::set_watches;
use crate::updates::{
    Collect, DatabaseUpdate, DatabaseUpdatesPage, PAGE_UPDATES_MAX, ReadNewest, UpdateEntry, UpdatePositions,
    update_seq,
};

/// Batches buffered for a slow follower; beyond this limit it reads by itself.
const BATCHES_WAITING_MAX: usize = 64;

/// The reader rests after each read for this many times the read's duration. So it takes at most a fifth of a core,
/// however many databases there are, and sends changes of that time together.
const REST_PER_LOOK: u32 = 4;
const REST_MIN: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_secs(1);

/// All updates behind one stamp up to another, as the shared reader found them.
#[derive(Debug)]
pub struct Batch {
    after: Stamp,
    until: Stamp,
    rows: Vec<DatabaseUpdate>,
}

impl Batch {
    /// Returns whether no update lies between the cursor and this batch.
    pub(super) fn continues(&self, cursor: Seq) -> bool {
        self.after <= *cursor.stamp()
    }

    /// Returns whether no update of it lies behind the cursor.
    pub(super) fn is_behind(&self, cursor: Seq) -> bool {
        self.until <= *cursor.stamp()
    }

    pub(super) fn page_after(&self, cursor: Seq) -> DatabaseUpdatesPage {
        let begin = self.rows.partition_point(|row| row.seq <= cursor);
        let rows = self.rows.get(begin..).unwrap_or_default().to_vec();
        DatabaseUpdatesPage { rows, at_end: true, last_seq: cursor.max(update_seq(self.until)) }
    }
}

/// The place where followers wait. Its task runs while there are any.
#[derive(Debug, Default)]
pub struct UpdatesHub {
    // Locked by a new follower and by the task before it ends, so that no follower arrives between its last look and
    // its end.
    running: Mutex<Option<broadcast::Sender<Arc<Batch>>>>,
}

impl State<Inner> for UpdatesHub {
    fn new_of(_: &Inner) -> UpdatesHub {
        UpdatesHub::default()
    }
}

impl UpdatesHub {
    pub(super) fn subscribe(inner: &Arc<Inner>) -> broadcast::Receiver<Arc<Batch>> {
        let mut running = inner.state::<UpdatesHub>().running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*running {
            return sender.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BATCHES_WAITING_MAX);
        *running = Some(sender.clone());
        tokio::spawn(run(Arc::downgrade(inner), sender));
        receiver
    }
}

async fn run(inner: Weak<Inner>, sender: broadcast::Sender<Arc<Batch>>) {
    // The stamp up to which batches were sent.
    let mut told: Option<Stamp> = None;
    let mut watches = BucketWatches::default();
    loop {
        let Some(inner) = inner.upgrade() else { return };
        if sender.receiver_count() == 0 {
            let mut running = inner.state::<UpdatesHub>().running.lock().unwrap_or_else(PoisonError::into_inner);
            if sender.receiver_count() == 0 {
                *running = None;
                return;
            }
        }
        if let Err(error) = look(&inner, &sender, &mut told, &mut watches).await {
            tracing::debug!(%error, "a watch of _db_updates failed; the watches are set again");
            watches = BucketWatches::default();
            inner.clock.sleep(ERROR_PAUSE).await;
        }
        if inner.is_closing() {
            // Followers observe the shutdown by themselves.
            return;
        }
    }
}

/// A watch on the newest stamp of each bucket. Watches that have not fired stay set.
#[derive(Default)]
struct BucketWatches {
    set: FuturesUnordered<BoxFuture<'static, (u8, FdbResult<()>)>>,
    is_set: HashSet<u8>,
}

impl BucketWatches {
    /// Sets the missing watches, and reads the newest stamp of all in the same transaction: a later stamp fires a
    /// watch.
    async fn arm(&mut self, inner: &Inner) -> Result<Stamp> {
        while let Some(Some(fired)) = self.set.next().now_or_never() {
            self.note(fired)?;
        }
        let missing: Vec<u8> = (0..=u8::MAX).filter(|bucket| !self.is_set.contains(bucket)).collect();
        let keys: Vec<Vec<u8>> = missing.iter().map(|bucket| inner.keys.newest_update(*bucket)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let (newest, watches) = set_watches(inner, &keys, &mut NewestStamp { keys: &inner.keys }).await?;
        for (bucket, watch) in missing.into_iter().zip(watches) {
            self.set.push(watch.map(move |fired| (bucket, fired)).boxed());
            self.is_set.insert(bucket);
        }
        Ok(newest)
    }

    async fn fired(&mut self) -> Result<()> {
        match self.set.next().await {
            Some(fired) => self.note(fired),
            None => Ok(()),
        }
    }

    fn note(&mut self, (bucket, fired): (u8, FdbResult<()>)) -> Result<()> {
        self.is_set.remove(&bucket);
        Ok(fired?)
    }
}

struct NewestStamp<'a> {
    keys: &'a RootKeys,
}

impl Operation for NewestStamp<'_> {
    type Output = Stamp;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Stamp> {
        Ok(ReadNewest { keys: self.keys }.attempt(trx, attempt).await?.newest)
    }
}

/// Sends new updates, or waits for some.
async fn look(
    inner: &Inner,
    sender: &broadcast::Sender<Arc<Batch>>,
    told: &mut Option<Stamp>,
    watches: &mut BucketWatches,
) -> Result<()> {
    let mut closing = inner.closing.subscribe();
    let newest = bounded(watches.arm(inner)).await?;
    if told.is_none_or(|told| told != newest) {
        let started = inner.clock.now();
        tell(inner, sender, told).await?;
        let rest = (inner.clock.since(started) * REST_PER_LOOK).clamp(REST_MIN, REST_MAX);
        inner.clock.sleep(rest).await;
        return Ok(());
    }
    tokio::select! {
        fired = watches.fired() => {
            fired?;
            inner.metrics.watches_fired.add(1);
        }
        () = inner.clock.sleep(SAFETY_REREAD) => inner.metrics.safety_rereads.add(1),
        () = sender.closed() => {}
        _ = closing.wait_for(|closing| *closing) => {}
    }
    Ok(())
}

async fn tell(inner: &Inner, sender: &broadcast::Sender<Arc<Batch>>, told: &mut Option<Stamp>) -> Result<()> {
    loop {
        let UpdatePositions { newest, buckets, .. } =
            transaction::read(&inner.db, &inner.metrics, &mut ReadNewest { keys: &inner.keys }).await?;
        // Earlier updates are not this reader's; a follower sees the gap and reads by itself.
        let after = told.unwrap_or(newest);
        let (mut rows, mut until, mut at_end) = (Vec::new(), newest, true);
        if after < newest {
            let mut collect = Collect::new(after, newest, PAGE_UPDATES_MAX, false);
            collect.read(inner, &buckets).await?;
            let found;
            (found, at_end) = collect.finish();
            rows = found.into_iter().map(UpdateEntry::row).collect();
            if let (false, Some(last)) = (at_end, rows.last()) {
                until = *last.seq.stamp();
            }
        }
        *told = Some(until);
        // The next round checks whether there are receivers.
        let _ = sender.send(Arc::new(Batch { after, until, rows }));
        if at_end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_store::seq::STAMP_BYTES;

    use super::*;
    use crate::updates::DatabaseUpdateKind::Updated;

    fn stamp(n: u8) -> Stamp {
        let mut stamp = [0; STAMP_BYTES];
        stamp[STAMP_BYTES - 1] = n;
        stamp
    }

    #[test]
    fn a_follower_takes_what_continues_from_where_it_stands() {
        let seq = |n| update_seq(stamp(n));
        let rows = [5, 8].map(|n| DatabaseUpdate { seq: seq(n), name: "db".into(), kind: Updated }).to_vec();
        let batch = Batch { after: stamp(4), until: stamp(9), rows };
        assert!(!batch.continues(seq(3)), "between 3 and 4 something may be missing");
        for (cursor, rows) in [(4, 2), (5, 1), (7, 1), (8, 0), (9, 0), (12, 0)] {
            assert!(batch.continues(seq(cursor)), "{cursor}");
            let page = batch.page_after(seq(cursor));
            assert_eq!((page.rows.len(), page.last_seq), (rows, seq(cursor.max(9))), "{cursor}");
        }
        assert!(batch.is_behind(seq(9)) && !batch.is_behind(seq(8)));
        // The reader's first batch has no rows, and leaves a gap for a follower before it.
        let first = Batch { after: stamp(9), until: stamp(9), rows: Vec::new() };
        assert!(!first.continues(seq(8)) && !first.is_behind(seq(8)) && first.is_behind(seq(9)));
    }
}
