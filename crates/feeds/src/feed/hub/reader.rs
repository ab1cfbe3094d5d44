//! The hub's reads, and how their rows reach followers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flatbed_channels::PrincipalKind;
use flatbed_databases::document::edit::Conflicts;
use flatbed_databases::document::latest::begin_latest;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::read::get::small_document;
use flatbed_store::by_seq;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, PrincipalPart, unpack_principal};
use flatbed_store::merge::Shares;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Transaction, note};
use foundationdb::FdbError;
use futures_util::future::try_join_all;

use crate::feed::armed::{LastSeq, WatchSet};
use crate::feed::hub::routes::PageRows;
use crate::feed::hub::table::{FollowerTable, PageKeys, Recipients};
use crate::feed::hub::{Hub, HubState, RunningHubs, hub_of};
use crate::feed::row::{ChangeRow, RowChannels, change_row_with_channels};
use crate::feed::tail::{Departure, Tail, TailDocument, TailRow};

/// Row limits of one transaction: in all, and with documents.
const SHARED_ROWS_MAX: usize = 500;
const SHARED_DOCUMENTS_MAX: usize = 64;

/// Users and roles that one transaction reads; if more have changed none is read.
const SHARED_PRINCIPALS_MAX: usize = 500;

/// Leaves of a document that are shared; followers read further ones themselves.
const SHARED_LEAVES_MAX: usize = 100;

/// Memory limits of one tail and of all tails of a process; each tail may keep `TAIL_BYTES_MIN`.
const TAIL_BYTES_MAX: usize = 4 * 1024 * 1024;
const TAILS_BYTES_MAX: usize = 64 * 1024 * 1024;
const TAIL_BYTES_MIN: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Reader {
    cursor: Option<Seq>,
    purges: Option<i64>,
    shares: Shares,
    pub(super) armed: WatchSet,
}

pub(super) struct PageEffect {
    pub(super) has_moved: bool,
    pub(super) woken: usize,
}

pub(super) struct HubPage {
    rows: Vec<TailRow>,
    pub(super) at_end: bool,
    /// The sequence up to which the page has read.
    drained: Seq,
    version: i64,
    purges: i64,
    last_seqs: Vec<LastSeq>,
    channels: u64,
    /// The database's users and roles that have changed since the last read; `None` if they are over the limit.
    principals: Option<Vec<(Seq, PrincipalKind, Arc<str>)>>,
    /// Channel departures that the rows do not show.
    departures: Vec<Departure>,
    shares: Shares,
}

impl Reader {
    /// Reads a bounded page behind the cursor. The last page sets the watches if `may_watch`.
    pub(super) async fn read(&mut self, inner: &Inner, hub: &Hub, may_watch: bool) -> Result<HubPage> {
        if !may_watch {
            self.armed.clear();
        }
        let mut trx = Transaction::begin(&inner.db, &inner.metrics)?;
        loop {
            inner.metrics.storage().transactions.add(1);
            let error = match self.page(&trx, inner, hub).await {
                Ok(page) if page.at_end && may_watch => {
                    let arming = self.armed.set_missing(&trx, hub.buckets.all(), &page.last_seqs);
                    if arming.len() == 0 {
                        return Ok(page);
                    }
                    match trx.commit().await {
                        Ok(_) => {
                            inner.metrics.watches_set.add(arming.len() as u64);
                            self.armed.enter(arming);
                            return Ok(page);
                        }
                        Err(failed) => {
                            note(inner.metrics.storage(), FdbError::from_code(failed.code()));
                            trx = failed.on_error().await?;
                            continue;
                        }
                    }
                }
                Ok(page) => return Ok(page),
                Err(Error::Storage(error)) => error,
                Err(other) => return Err(other),
            };
            note(inner.metrics.storage(), error);
            trx = trx.on_error(error).await?;
        }
    }

    async fn page(&self, trx: &Transaction, inner: &Inner, hub: &Hub) -> Result<HubPage> {
        let wants_documents = hub.documents_wanted.load(Ordering::Relaxed) > 0;
        let limit = if wants_documents { SHARED_DOCUMENTS_MAX } else { SHARED_ROWS_MAX };
        // All requests before the first await.
        let last_seqs: Vec<_> = hub.buckets.all().iter().map(|bucket| trx.get(&bucket.last_seq(), true)).collect();
        let purges = hub.buckets.begin_count(trx, Counter::Purges);
        let version = trx.get_read_version();
        let entries = self.cursor.map(|cursor| {
            let ranges: Vec<_> = hub.buckets.all().iter().map(|bucket| bucket.by_seq_after(&cursor)).collect();
            let extent = (limit, false);
            let row = |seq, value: &[u8]| change_row_with_channels(seq, value, trx.clock());
            by_seq::begin(trx, &inner.metrics, &hub.buckets, &ranges, extent, &self.shares, row)
        });
        let instance = inner.resolve(trx, &hub.name).await?;
        if !std::ptr::eq(&**hub_of(&instance), hub) {
            // Another database of this name; its followers are at its own hub.
            return Err(Error::DatabaseNotFound);
        }
        let (mut newest, mut found) = (hub.begin, Vec::with_capacity(last_seqs.len()));
        for last_seq in last_seqs {
            let last_seq = last_seq.await?.map(|stamp| stamp.to_vec());
            if let Some(stamp) = &last_seq {
                newest = newest.max(Seq::from_slice(hub.begin.incarnation(), stamp)?);
            }
            found.push(last_seq);
        }
        let mut page = HubPage {
            rows: Vec::new(),
            at_end: true,
            drained: newest,
            version: version.await?,
            purges: purges.await?,
            last_seqs: found,
            channels: instance.channels(),
            principals: Some(Vec::new()),
            departures: Vec::new(),
            shares: self.shares.clone(),
        };
        let Some(entries) = entries else { return Ok(page) };
        // In the same transaction, so it includes everything that committed with a row.
        page.principals = match self.cursor.filter(|_| instance.channels() > 0) {
            Some(cursor) => principals_after(trx, &instance, &cursor).await?,
            None => Some(Vec::new()),
        };
        let by_seq::BySeqPage { mut rows, is_all, shares } = entries.await?;
        page.shares = shares;
        if !is_all {
            page.at_end = false;
            page.drained = rows.last().map_or(newest, |(row, _)| row.seq);
        }
        if let Some(after) = self.cursor.filter(|_| instance.channels() > 0) {
            let (drained, at_end) = (page.drained, page.at_end);
            let has_followers = hub.lock().table.members() > 0;
            let mut of_page = PageRows { rows: &mut rows, after, drained, at_end, has_followers };
            page.departures = of_page.complete(trx, inner, &instance).await?;
        }
        let lacking = rows.iter_mut().map(|(row, _)| row);
        let lacking = lacking.filter(|row| row.lacks_leaves() && row.leaf_count <= SHARED_LEAVES_MAX);
        try_join_all(lacking.map(|row| row.read_leaves(trx, &instance))).await?;
        page.rows = if wants_documents {
            with_documents(trx, inner, &instance, rows).await?
        } else {
            let read_at = inner.clock.now();
            let row = |(row, channels)| TailRow::new(row, TailDocument::NotRead, read_at).with_channels(channels);
            rows.into_iter().map(row).collect()
        };
        Ok(page)
    }

    /// Makes a page available to followers, and wakes those that it may concern.
    pub(super) fn enter(&mut self, inner: &Inner, hub: &Hub, page: HubPage) -> PageEffect {
        let hubs = inner.state::<RunningHubs>().0.load(Ordering::Relaxed).max(1);
        let weight_max = (TAILS_BYTES_MAX / hubs).clamp(TAIL_BYTES_MIN, TAIL_BYTES_MAX);
        let (has_moved, count, woken) = {
            let mut state = hub.lock();
            let HubState { tail, table, followers, .. } = &mut *state;
            let is_first = tail.is_none();
            let tail = tail.get_or_insert_with(|| Tail::new(page.drained, &inner.clock));
            let has_moved = is_first || tail.drained() < page.drained;
            // Each row is looked up once for all followers.
            let told = (table.members() > 0).then(|| {
                inner.metrics.hub_rows.add(page.rows.len() as u64);
                page.told(table, tail)
            });
            let woken = told.map_or_else(Vec::new, |told| table.tell(told));
            let others = followers.len().saturating_sub(table.members());
            if self.purges.replace(page.purges).is_some_and(|before| before != page.purges) {
                // A purge removes documents from by-seq without leaving an entry.
                tail.clear(page.drained.min(self.cursor.unwrap_or(page.drained)));
            }
            tail.read_with(page.channels);
            match page.principals {
                Some(principals) => {
                    tail.push_principals(principals);
                    tail.push_departures(page.departures);
                    tail.push(page.rows, page.drained);
                }
                // Followers that have not read these rows read pages.
                None => tail.clear(page.drained),
            }
            if page.at_end {
                tail.complete_as_of(page.version);
            }
            tail.trim(weight_max, inner.clock.now());
            let count = woken.len() + if has_moved { others } else { 0 };
            // Counted before a follower can take the page, so that the metrics include the wake of each delivered
            // change.
            inner.metrics.hub_wakes.add(count as u64);
            (has_moved, count, woken)
        };
        (self.cursor, self.shares) = (Some(page.drained), page.shares);
        if has_moved {
            hub.wake();
        }
        woken.iter().for_each(|follower| follower.notify_one());
        if page.at_end {
            hub.versions.send_replace(page.version);
        }
        PageEffect { has_moved, woken: count }
    }
}

impl HubPage {
    /// Returns the followers in a table that the page concerns, given the tail so far.
    fn told(&self, table: &FollowerTable, tail: &Tail) -> Recipients {
        let mut news = PageKeys::new(table, tail.drained(), self.drained);
        if tail.channels() != self.channels {
            news.is_for_all();
        }
        match &self.principals {
            Some(principals) => principals.iter().for_each(|(at, kind, name)| news.principal(*at, *kind, name)),
            None => news.is_for_all(),
        }
        self.departures.iter().for_each(|departure| news.departure(departure.at, departure.channel.as_deref()));
        self.rows.iter().for_each(|row| news.row(row.row.seq, &row.channels));
        news.told()
    }
}

/// Returns the database's users and roles that have changed behind a sequence; `None` if they are over the limit.
async fn principals_after(
    trx: &Transaction,
    instance: &Instance,
    cursor: &Seq,
) -> Result<Option<Vec<(Seq, PrincipalKind, Arc<str>)>>> {
    let range = instance.keys.changed_principals_after(cursor);
    let rows = trx.range(&range, true).first(SHARED_PRINCIPALS_MAX).await?;
    if rows.len() == SHARED_PRINCIPALS_MAX {
        return Ok(None);
    }
    let mut found = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        let PrincipalPart::Changed(seq) = instance.keys.split_principals(row.key())? else { continue };
        let (kind, name) = unpack_principal(row.value())?;
        found.push((seq, kind, name.into()));
    }
    Ok(Some(found))
}

async fn with_documents(
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    rows: Vec<(ChangeRow, RowChannels)>,
) -> Result<Vec<TailRow>> {
    let with_conflicts = hub_of(instance).conflicts_wanted.load(Ordering::Relaxed) > 0;
    // Conflicts need the same read of the tree for one follower as for all.
    let conflicts = if with_conflicts { Conflicts::All } else { Conflicts::No };
    // All requests at once, including those for conflicts.
    let reads = rows.into_iter().map(|(row, channels)| {
        let read = begin_latest(trx, instance, &row.id);
        async move {
            let document = small_document(read, trx, inner, instance, &row.id, conflicts).await?;
            let document = document.map_or(TailDocument::NotRead, |document| {
                // The document's conflicts are its other leaves; complete only if they were read.
                TailDocument::Read { document: Box::new(document), with_conflicts }
            });
            Ok(TailRow::new(row, document, inner.clock.now()).with_channels(channels))
        }
    });
    try_join_all(reads.collect::<Vec<_>>()).await
}
