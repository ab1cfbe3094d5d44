//! Updates of all databases of the instance, for `_db_updates`: creations, deletions, and which have changed.
//!
//! Creations and deletions are a log by versionstamp. Changes are one key for each database, which every commit of
//! documents overwrites with its stamp. So they do not grow, also after crashes, and a commit need not read the old
//! value. They lie in buckets by hash of the name. Each bucket has a key with the newest stamp of its names, for the
//! watch, so that neither writers nor readers contend for one key. A database with shards has one stamp for each, in as
//! many buckets, and the newest counts. All are written without reads, in the transaction of their cause.
//!
//! A reader first takes the newest stamps of all buckets at one read version. The newest of them is its end: it shows
//! nothing beyond. Everything committed up to there lies in buckets whose stamp is beyond the reader's position, so it
//! reads no others. It may read them in several transactions. If a change disappears meanwhile, either a later stamp
//! overwrote it, which comes in the next round, or its database was deleted, which is in the log behind it.

pub mod follow;
pub mod sweep;

use std::collections::HashSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, RootKeys};
use flatbed_store::proto;
use flatbed_store::root::{Epochs, in_use};
use flatbed_store::seq::{STAMP_BYTES, Seq, Stamp, begin_of};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::updated::{newest_of, newest_stamps, stamp_of};
use follow::Batch;
use futures_util::future::try_join;
use prost::Message;
use tokio::sync::broadcast;

use crate::feed::changes::WaitOutcome;
use crate::feed::query::Since;
pub use follow::UpdatesHub;
pub use sweep::sweep;

/// Row limit of a first page and of a batch.
const PAGE_UPDATES_MAX: usize = 1_000;

/// Row limit of further pages, each of which reads the stamps of all databases.
const LATER_ROWS_MAX: usize = 10_000;

/// Keys of either kind that one transaction reads.
const KEYS_AT_ONCE: usize = 5_000;

/// Ranges of buckets that one transaction reads.
const RANGES_AT_ONCE: usize = 64;

/// The kind of a database update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseUpdateKind {
    /// The database was created.
    Created,
    /// Documents in it have changed; the sequence is that of the last change.
    Updated,
    /// The database was deleted.
    Deleted,
}

/// A row of `_db_updates`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseUpdate {
    /// The position among the updates of all databases. Not comparable with sequences of one database.
    pub seq: Seq,
    /// The name of the database.
    pub name: Arc<str>,
    /// The kind of the update.
    pub kind: DatabaseUpdateKind,
}

/// A query of updates.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabaseUpdatesQuery {
    /// The start.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed cannot wait.
    pub descending: bool,
    /// Row limit.
    pub limit: Option<u64>,
}

/// A page of updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseUpdatesPage {
    /// At most 10,000 rows, in the order of the query.
    pub rows: Vec<DatabaseUpdate>,
    /// True if everything was read, or the limit is reached.
    pub at_end: bool,
    /// The reader's position after this page.
    pub last_seq: Seq,
}

/// A feed of the updates of all databases.
pub struct DatabaseUpdates {
    inner: Arc<Inner>,
    query: DatabaseUpdatesQuery,
    /// The position up to which the feed has read; `None` at first.
    cursor: Option<Seq>,
    limit: usize,
    following: Option<broadcast::Receiver<Arc<Batch>>>,
    received: Option<Arc<Batch>>,
}

/// Performs `Layer::database_updates` of the layer.
pub fn database_updates(inner: &Arc<Inner>, query: DatabaseUpdatesQuery) -> DatabaseUpdates {
    DatabaseUpdates::new(Arc::clone(inner), query)
}

/// Performs `Layer::newest_database_update` of the layer.
#[boxed]
pub async fn newest_database_update(inner: &Arc<Inner>) -> Result<Seq> {
    let begin = transaction::read(&inner.db, &inner.metrics, &mut ReadNewest { keys: &inner.keys }).await?;
    Ok(update_seq(begin.newest))
}

impl DatabaseUpdates {
    fn new(inner: Arc<Inner>, query: DatabaseUpdatesQuery) -> Self {
        let limit = query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        DatabaseUpdates { inner, query, cursor: None, limit, following: None, received: None }
    }

    /// Returns the next rows: those that a wait received, or those behind the last page.
    ///
    /// # Errors
    /// [`Error::Storage`](flatbed_store::error::Error::Storage),
    /// [`Error::Corrupt`](flatbed_store::error::Error::Corrupt).
    #[boxed]
    pub async fn next_page(&mut self) -> Result<DatabaseUpdatesPage> {
        let received = self.received.take();
        let mut page = match (received, self.cursor) {
            (Some(batch), Some(cursor)) if batch.continues(cursor) => batch.page_after(cursor),
            _ => self.read().await?,
        };
        if page.rows.len() >= self.limit {
            page.rows.truncate(self.limit);
            page.at_end = true;
            page.last_seq = page.rows.last().map_or(page.last_seq, |row| row.seq);
        }
        self.limit -= page.rows.len();
        self.cursor = Some(page.last_seq);
        Ok(page)
    }

    async fn read(&self) -> Result<DatabaseUpdatesPage> {
        let begin =
            transaction::read(&self.inner.db, &self.inner.metrics, &mut ReadNewest { keys: &self.inner.keys }).await?;
        let UpdatePositions { epochs, newest, buckets } = begin;
        let of_this = |seq: Seq| {
            let is_known = seq.incarnation() == UPDATES && epochs.has(seq.epoch());
            if is_known { *seq.stamp() } else { [0; STAMP_BYTES] }
        };
        let since = match self.query.since {
            Since::Beginning => [0; STAMP_BYTES],
            Since::Now => newest,
            Since::After(place) => of_this(place.seq()),
        };
        let (after, until) = match (self.query.descending, self.cursor) {
            (false, cursor) => (cursor.map_or(since, of_this), newest),
            (true, None) => (since, newest),
            (true, Some(cursor)) => (since, before(of_this(cursor))),
        };
        if self.limit == 0 || after >= until {
            let stands =
                if self.query.descending { self.cursor.unwrap_or(update_seq(newest)) } else { update_seq(after) };
            return Ok(DatabaseUpdatesPage { rows: Vec::new(), at_end: true, last_seq: stands });
        }
        let most = if self.cursor.is_none() { PAGE_UPDATES_MAX } else { LATER_ROWS_MAX };
        let most = most.min(self.limit);
        let mut collect = Collect::new(after, until, most, self.query.descending);
        collect.read(&self.inner, &buckets).await?;
        let (found, at_end) = collect.finish();
        let rows: Vec<_> = found.into_iter().map(UpdateEntry::row).collect();
        let last = rows.last().map(|row| row.seq);
        let last_seq = match (at_end && !self.query.descending, last) {
            (false, Some(last)) => last,
            _ => update_seq(until),
        };
        Ok(DatabaseUpdatesPage { rows, at_end, last_seq })
    }

    /// Waits until there are updates behind the last page, on the watches and the reader that all followers of this
    /// process share. Safe to drop and call again at any time.
    #[boxed]
    pub async fn wait(&mut self) -> WaitOutcome {
        let mut closing = self.inner.closing.subscribe();
        if *closing.borrow_and_update() {
            return WaitOutcome::Shutdown;
        }
        let Some(following) = &mut self.following else {
            self.following = Some(UpdatesHub::subscribe(&self.inner));
            // Updates since the last page may have been sent before: read once more.
            return WaitOutcome::MayHaveChanged;
        };
        loop {
            let received = tokio::select! {
                received = following.recv() => received,
                _ = closing.wait_for(|closing| *closing) => return WaitOutcome::Shutdown,
            };
            match received {
                Ok(batch) => {
                    if self.cursor.is_some_and(|cursor| batch.is_behind(cursor)) {
                        continue;
                    }
                    self.received = Some(batch);
                }
                // Too slow for the shared reader: this one reads by itself.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => self.following = None,
            }
            return WaitOutcome::MayHaveChanged;
        }
    }

    /// Returns the reader's position; `None` before the first page.
    pub fn last_seq(&self) -> Option<Seq> {
        self.cursor
    }
}

/// Returns the preceding stamp in the order of bytes.
fn before(mut stamp: Stamp) -> Stamp {
    for byte in stamp.iter_mut().rev() {
        let (less, borrowed) = byte.overflowing_sub(1);
        *byte = less;
        if !borrowed {
            return stamp;
        }
    }
    [0; STAMP_BYTES]
}

/// The incarnation in all sequences of updates.
const UPDATES: u64 = 0;

fn update_seq(stamp: Stamp) -> Seq {
    Seq::new(UPDATES, stamp)
}

struct UpdatePositions {
    epochs: Epochs,
    /// The newest stamp of all, at least the beginning of the epoch.
    newest: Stamp,
    /// The newest stamp of each bucket.
    buckets: Vec<(u8, Stamp)>,
}

struct ReadNewest<'a> {
    keys: &'a RootKeys,
}

impl Operation for ReadNewest<'_> {
    type Output = UpdatePositions;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<UpdatePositions> {
        let instance_key = self.keys.instance();
        let instance = async { Ok(Epochs::of(&in_use(trx.get(&instance_key, true).await?.as_deref())?)) };
        let (epochs, buckets) = try_join(instance, newest_stamps(trx, self.keys)).await?;
        let newest = newest_of(&buckets).max(begin_of(epochs.now()));
        Ok(UpdatePositions { epochs, newest, buckets })
    }
}

struct UpdateEntry {
    stamp: Stamp,
    name: Arc<str>,
    kind: DatabaseUpdateKind,
}

impl UpdateEntry {
    fn row(self) -> DatabaseUpdate {
        DatabaseUpdate { seq: update_seq(self.stamp), name: self.name, kind: self.kind }
    }
}

/// Collects the first updates of a span of stamps, in either direction. It holds at most twice the wanted rows, however
/// many databases there are.
struct Collect {
    after: Stamp,
    /// Inclusive.
    until: Stamp,
    most: usize,
    descending: bool,
    found: Vec<UpdateEntry>,
    /// True if a database may occur more than once.
    has_shards: bool,
    is_cut: bool,
}

impl Collect {
    fn new(after: Stamp, until: Stamp, most: usize, descending: bool) -> Self {
        Collect { after, until, most: most.max(1), descending, found: Vec::new(), has_shards: false, is_cut: false }
    }

    /// `buckets`: the newest stamps of all, as of a read version that has all up to `until`.
    async fn read(&mut self, inner: &Inner, buckets: &[(u8, Stamp)]) -> Result<()> {
        let events = inner.keys.database_events_between(&self.after, &self.until);
        let mut look = ReadUpdates {
            keys: &inner.keys,
            events: Some(events),
            updated: moved(&inner.keys, buckets, &self.after),
            events_left: self.most + 1,
            descending: self.descending,
            after: self.after,
            until: self.until,
        };
        while look.events.is_some() || !look.updated.is_empty() {
            let looked = transaction::read(&inner.db, &inner.metrics, &mut look).await?;
            look.events_left -= looked.events.len();
            look.events = looked.next_events.filter(|_| look.events_left > 0);
            look.updated = looked.next_updated;
            self.found.extend(looked.events);
            self.found.extend(looked.updated);
            self.has_shards |= looked.has_shards;
            if self.found.len() > 2 * self.most {
                self.cut();
            }
        }
        Ok(())
    }

    fn cut(&mut self) {
        self.found.sort_unstable_by_key(|found| found.stamp);
        if self.has_shards {
            self.keep_newest();
        }
        if self.descending {
            self.found.reverse();
        }
        self.is_cut |= self.found.len() > self.most;
        self.found.truncate(self.most);
    }

    /// Keeps the newest change of each database; the rows are sorted.
    fn keep_newest(&mut self) {
        let mut names = HashSet::new();
        let found = self.found.drain(..).rev();
        let newest =
            found.filter(|found| found.kind != DatabaseUpdateKind::Updated || names.insert(found.name.clone()));
        self.found = newest.collect();
        self.found.reverse();
    }

    /// Returns the rows in order, and whether they are all.
    fn finish(mut self) -> (Vec<UpdateEntry>, bool) {
        self.cut();
        (self.found, !self.is_cut)
    }
}

/// Reads a part of both kinds in one transaction.
struct ReadUpdates<'a> {
    keys: &'a RootKeys,
    events: Option<KeyRange>,
    updated: Vec<KeyRange>,
    events_left: usize,
    descending: bool,
    after: Stamp,
    until: Stamp,
}

#[derive(Default)]
struct UpdatesRead {
    events: Vec<UpdateEntry>,
    next_events: Option<KeyRange>,
    updated: Vec<UpdateEntry>,
    has_shards: bool,
    next_updated: Vec<KeyRange>,
}

impl Operation for ReadUpdates<'_> {
    type Output = UpdatesRead;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<UpdatesRead> {
        let mut looked = UpdatesRead::default();
        let most = KEYS_AT_ONCE.min(self.events_left);
        let events = self.events.as_ref();
        let events = events.map(|range| trx.range(range, true).reverse(self.descending).page(most));
        let ranges = self.updated.get(..RANGES_AT_ONCE).unwrap_or(&self.updated);
        let keys_max = KEYS_AT_ONCE / ranges.len().max(1);
        let updated: Vec<_> = ranges.iter().map(|range| trx.range(range, true).page(keys_max)).collect();
        if let Some(page) = events {
            let page = page.await?;
            for row in &page {
                let event = proto::DatabaseEvent::decode(row.value())?;
                let kind = if event.deleted { DatabaseUpdateKind::Deleted } else { DatabaseUpdateKind::Created };
                let stamp = self.keys.database_event_stamp(row.key())?;
                looked.events.push(UpdateEntry { stamp, name: event.name.into(), kind });
            }
            looked.next_events = page.rest;
        }
        for page in updated {
            let page = page.await?;
            for row in &page {
                let stamp = stamp_of(row.value())?;
                if self.after < stamp && stamp <= self.until {
                    let (name, shard) = self.keys.database_updated_parse(row.key())?;
                    looked.has_shards |= shard > 0;
                    looked.updated.push(UpdateEntry { stamp, name: name.into(), kind: DatabaseUpdateKind::Updated });
                }
            }
            looked.next_updated.extend(page.rest);
        }
        looked.next_updated.extend(self.updated.iter().skip(ranges.len()).cloned());
        Ok(looked)
    }
}

/// Returns the ranges of changes behind a stamp, given the newest stamps of the buckets. Neighbouring ranges are
/// joined, also across empty buckets; if more than half of the buckets have moved, one range covers all.
fn moved(keys: &RootKeys, buckets: &[(u8, Stamp)], after: &Stamp) -> Vec<KeyRange> {
    let is_moved = |(_, stamp): &&(u8, Stamp)| stamp > after;
    let many = 2 * buckets.iter().filter(is_moved).count() > buckets.len();
    let mut spans: Vec<(u8, u8)> = Vec::new();
    let mut is_open = false;
    for (bucket, stamp) in buckets {
        match spans.last_mut() {
            _ if stamp <= after => is_open &= many,
            Some((_, last)) if is_open => *last = *bucket,
            _ => {
                spans.push((*bucket, *bucket));
                is_open = true;
            }
        }
    }
    spans.into_iter().map(|(first, last)| keys.databases_updated(first, last)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_database_with_shards_the_newest_change_is_shown() {
        let found = |n: u8, name: &str, kind| UpdateEntry { stamp: [n; STAMP_BYTES], name: name.into(), kind };
        let shown = |descending, most| {
            let mut collect = Collect::new([0; STAMP_BYTES], [9; STAMP_BYTES], most, descending);
            use DatabaseUpdateKind::{Created, Deleted, Updated};
            collect.has_shards = true;
            let stamps = [(7, "a"), (3, "a"), (5, "b"), (8, "c"), (4, "a")];
            collect.found.extend(stamps.map(|(n, name)| found(n, name, Updated)));
            collect.found.extend([(1, Created), (2, Deleted), (6, Created)].map(|(n, kind)| found(n, "a", kind)));
            let (found, is_all) = collect.finish();
            (found.iter().map(|found| found.stamp[0]).collect::<Vec<_>>(), is_all)
        };
        assert_eq!(shown(false, 9), (vec![1, 2, 5, 6, 7, 8], true));
        assert_eq!(shown(true, 9), (vec![8, 7, 6, 5, 2, 1], true));
        assert_eq!(shown(false, 4), (vec![1, 2, 5, 6], false));
        assert_eq!(shown(true, 6), (vec![8, 7, 6, 5, 2, 1], true));
    }

    #[test]
    fn only_buckets_that_moved_are_read() {
        let keys = RootKeys::new(b"r");
        let stamp = |n: u8| [n; STAMP_BYTES];
        let buckets: Vec<_> = [(0, 1), (3, 9), (4, 9), (7, 5), (9, 8), (11, 2), (255, 1)]
            .map(|(bucket, newest)| (bucket, stamp(newest)))
            .to_vec();
        let spans = |after: u8| -> Vec<KeyRange> { moved(&keys, &buckets, &stamp(after)) };
        let range = |first, last| keys.databases_updated(first, last);
        assert_eq!(spans(9), []);
        assert_eq!(spans(8), [range(3, 4)]);
        assert_eq!(spans(5), [range(3, 4), range(9, 9)]);
        assert_eq!(spans(2), [range(3, 9)], "more than half of those that there are");
        assert_eq!(spans(0), [range(0, 255)]);
        assert_eq!(moved(&keys, &[], &stamp(0)), []);
    }
}
