//! One FoundationDB watch a database and one reader of its newest changes, for all its followers in this process.
//!
//! A firing is a hint, its absence no proof. The order makes up for it: the hub sets the watch in the transaction that has
//! read by-seq to its end, so that a commit after its read version fires the watch, or is seen when the hub looks again.
//! What the hub reads it keeps for a while ([`Tail`]); a follower takes what lies behind its own place, and reads by-seq
//! itself where the hub has no longer, or not, what it needs. Both read the same rows in the same order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use flatbed_channels::Kind;
use foundationdb::{FdbError, FdbResult};
use futures_util::future::try_join_all;
use tokio::sync::{Notify, watch};

use crate::document::edit::Conflicts;
use crate::document::latest::begin_latest;
use crate::error::{Error, Result};
use crate::feed::armed::{Armed, LastSeq};
use crate::feed::query::{Documents, Extras};
use crate::feed::row::{ChangeRow, RowChannels, change_row_with_channels};
use crate::feed::tail::{Part, Tail, TailDocument, TailRow};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::metrics::Metrics;
use crate::store::buckets::Buckets;
use crate::store::by_seq;
use crate::store::keys::{Counter, PrincipalPart, unpack_principal};
use crate::store::merge::Shares;
use crate::store::seq::Seq;
use crate::store::transaction::{Transaction, bounded, note, page_of};

/// Without a firing the hub looks at `last_seq` this often: nothing else reads while a database is idle.
pub(crate) const SAFETY_REREAD: Duration = Duration::from_secs(45);

/// After an error of the storage.
pub(super) const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// A hub that has seen to be without followers ends after this long: one that only connects again finds it still there.
const LINGER: Duration = Duration::from_secs(10);

/// Rows read in one transaction, and with documents.
const SHARED_ROWS_MAX: usize = 500;
const SHARED_DOCUMENTS_MAX: usize = 64;

/// Users and roles that have changed are looked at in one transaction, if they are fewer.
const SHARED_PRINCIPALS_MAX: usize = 500;

/// A document's other leaves beyond this are left to those who want them.
const SHARED_LEAVES_MAX: usize = 100;

/// What one hub keeps, and all of a process together, if they are many (but each some rows).
const TAIL_BYTES_MAX: usize = 4 * 1024 * 1024;
const TAILS_BYTES_MAX: usize = 64 * 1024 * 1024;
const TAIL_BYTES_MIN: usize = 16 * 1024;

/// Between two reads the hub gives each follower this much time to take rows, but not more than [`PACE_MAX`] in all: what
/// is committed meanwhile comes together.
const PACE_OF_FOLLOWER: Duration = Duration::from_micros(10);
const PACE_MAX: Duration = Duration::from_millis(100);

/// A follower that reads by-seq itself has no place in the tail.
const NO_PLACE: u64 = u64::MAX;

/// Where followers of an instance wait. Its task runs while there are any, and a little longer.
#[derive(Debug)]
pub(crate) struct Hub {
    name: String,
    pub(crate) namespace: u64,
    incarnation: u64,
    pub(crate) buckets: Buckets,
    state: Mutex<State>,
    /// Counts what followers are woken for.
    rounds: watch::Sender<u64>,
    /// The read version as of which the tail is complete.
    versions: watch::Sender<i64>,
    look: Notify,
    documents_wanted: AtomicUsize,
    conflicts_wanted: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// `None` until it is read for the first time.
    tail: Option<Tail>,
    /// Where each follower stands: the commit version of its sequence.
    followers: HashMap<u64, Arc<AtomicU64>>,
    came: u64,
}

/// How followers that have come to the end of a feed once do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Followers {
    /// How many there are.
    pub followers: usize,
    /// Of these, those that read by-seq themselves again.
    pub behind: usize,
    /// For how long the oldest change has been waiting that one of the others has not taken.
    pub lag: Duration,
}

impl Hub {
    pub(crate) fn new(name: &str, namespace: u64, incarnation: u64, buckets: Buckets) -> Hub {
        Hub {
            name: name.to_owned(),
            namespace,
            incarnation,
            buckets,
            state: Mutex::default(),
            rounds: watch::Sender::new(0),
            versions: watch::Sender::new(0),
            look: Notify::new(),
            documents_wanted: AtomicUsize::new(0),
            conflicts_wanted: AtomicUsize::new(0),
        }
    }

    /// Whether it is that of an instance.
    pub(crate) fn is_of(&self, namespace: u64, incarnation: u64) -> bool {
        (self.namespace, self.incarnation) == (namespace, incarnation)
    }

    /// Lets the task read now.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Whether the newest sequence, as all buckets' `last_seq` say, is nothing new.
    pub(crate) fn is_drained_to(&self, newest: Seq) -> bool {
        let state = self.lock();
        state.tail.as_ref().is_some_and(|tail| tail.drained().stamp() == newest.stamp())
    }

    /// Asks for the newest sequence.
    pub(crate) fn begin_last_seq(&self, trx: &Transaction) -> impl Future<Output = Result<Seq>> + Send + use<> {
        self.buckets.begin_last_seq(trx, self.incarnation)
    }

    pub(crate) fn standing(&self) -> Followers {
        let state = self.lock();
        let mut standing = Followers { followers: state.followers.len(), ..Followers::default() };
        let mut slowest = None;
        for place in state.followers.values().map(|place| place.load(Ordering::Relaxed)) {
            if place == NO_PLACE {
                standing.behind += 1;
            } else {
                slowest = Some(slowest.unwrap_or(place).min(place));
            }
        }
        if let (Some(slowest), Some(tail)) = (slowest, &state.tail) {
            standing.lag = tail.age_behind(slowest, Instant::now());
        }
        standing
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.rounds.send_modify(|round| *round += 1);
    }

    /// The task ends, unless followers have come that it is to end without; whether it does. Followers find no tail any
    /// more, and come again: who comes afterwards starts another task, so all that is left of this one goes at once.
    fn end(&self, inner: Option<&Inner>, only_if_deserted: bool) -> bool {
        let mut state = self.lock();
        if only_if_deserted && !state.followers.is_empty() {
            return false;
        }
        state.is_running = false;
        state.tail = None;
        self.versions.send_replace(0);
        if let Some(inner) = inner {
            inner.watches.leave(self);
            inner.hubs_running.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        self.wake();
        true
    }
}

/// A follower's place at a hub.
pub(crate) struct Following {
    hub: Arc<Hub>,
    number: u64,
    place: Arc<AtomicU64>,
    rounds: watch::Receiver<u64>,
    wants_documents: bool,
    wants_conflicts: bool,
}

/// What the hub has for a follower.
pub(crate) enum Taken {
    /// Changes behind its place; perhaps none, but a place further on.
    Part(Part),
    /// What it needs is not here, or no longer here.
    ReadBySeq,
    /// The task has ended.
    Ended,
}

impl Following {
    /// Takes a place, and starts the hub's task if it does not run.
    pub(crate) fn new(inner: &Arc<Inner>, instance: &Instance, extras: Extras) -> Following {
        let hub = instance.hub.clone();
        let place = Arc::new(AtomicU64::new(NO_PLACE));
        let (wants_documents, wants_conflicts) = (extras.has_documents(), extras.documents >= Documents::WithConflicts);
        hub.documents_wanted.fetch_add(usize::from(wants_documents), Ordering::Relaxed);
        hub.conflicts_wanted.fetch_add(usize::from(wants_conflicts), Ordering::Relaxed);
        let mut state = hub.lock();
        state.came += 1;
        let number = state.came;
        state.followers.insert(number, place.clone());
        if !state.is_running {
            state.is_running = true;
            inner.hubs_running.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(run(Arc::downgrade(inner), hub.clone()));
        }
        drop(state);
        let rounds = hub.rounds.subscribe();
        Following { hub, number, place, rounds, wants_documents, wants_conflicts }
    }

    /// Takes a place where the task runs already and has read.
    pub(crate) fn at_running(inner: &Arc<Inner>, instance: &Instance, extras: Extras) -> Option<Following> {
        let has_tail = instance.hub.lock().tail.is_some();
        has_tail.then(|| Following::new(inner, instance, extras))
    }

    /// Up to where by-seq has been read.
    pub(crate) fn drained(&self) -> Option<Seq> {
        self.hub.lock().tail.as_ref().map(Tail::drained)
    }

    /// Whether the place is at this instance's hub.
    pub(crate) fn is_at(&self, instance: &Instance) -> bool {
        Arc::ptr_eq(&self.hub, &instance.hub)
    }

    /// What lies behind a sequence. What comes later is signalled by [`Following::changed`].
    pub(crate) fn take(&mut self, cursor: Seq) -> Option<Taken> {
        self.rounds.borrow_and_update();
        let state = self.hub.lock();
        if !state.is_running {
            return Some(Taken::Ended);
        }
        // Not read yet: the first reading wakes.
        let taken = state.tail.as_ref()?.after(cursor).map_or(Taken::ReadBySeq, Taken::Part);
        Some(taken)
    }

    /// Where the follower stands now; `None`: it reads by-seq.
    pub(crate) fn stands_at(&self, cursor: Option<Seq>) {
        self.place.store(cursor.map_or(NO_PLACE, |cursor| cursor.number()), Ordering::Relaxed);
    }

    /// Waits until there is something that was not there at the last [`Following::take`].
    pub(crate) async fn changed(&mut self) {
        // The hub, and with it the sender, is held by this place.
        let _ = self.rounds.changed().await;
    }

    /// Waits until the tail is complete as of a read version; false: the task has ended.
    pub(crate) async fn fresh(&self, version: i64) -> bool {
        let mut versions = self.hub.versions.subscribe();
        loop {
            let known = *versions.borrow_and_update();
            if known >= version || !self.hub.lock().is_running {
                return known >= version;
            }
            self.hub.look();
            if versions.changed().await.is_err() {
                return false;
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.hub.documents_wanted.fetch_sub(usize::from(self.wants_documents), Ordering::Relaxed);
        self.hub.conflicts_wanted.fetch_sub(usize::from(self.wants_conflicts), Ordering::Relaxed);
        self.hub.lock().followers.remove(&self.number);
    }
}

/// The task's own place.
#[derive(Default)]
struct Reader {
    cursor: Option<Seq>,
    purges: Option<i64>,
    shares: Shares,
    armed: Armed,
}

/// One reading.
struct Page {
    rows: Vec<TailRow>,
    at_end: bool,
    /// Read up to here.
    drained: Seq,
    version: i64,
    purges: i64,
    /// Of each bucket.
    last_seqs: Vec<LastSeq>,
    /// The number of the database's sync function.
    channels: u64,
    /// Users and roles of it that have changed since the last reading; `None`: more than are read at once.
    principals: Option<Vec<(Seq, Kind, Arc<str>)>>,
    /// For the next page.
    shares: Shares,
}

async fn run(weak: Weak<Inner>, hub: Arc<Hub>) {
    let Some(mut closing) = weak.upgrade().map(|inner| inner.closing.subscribe()) else {
        hub.end(None, false);
        return;
    };
    let (mut reader, mut has_changed, mut deserted) = (Reader::default(), false, None);
    loop {
        let Some(inner) = weak.upgrade() else {
            hub.end(None, false);
            return;
        };
        let followers = hub.lock().followers.len();
        deserted = if followers == 0 { deserted.or(Some(Instant::now())) } else { None };
        let is_over = deserted.is_some_and(|since| since.elapsed() >= LINGER);
        if (inner.is_closing() || is_over) && hub.end(Some(&inner), !inner.is_closing()) {
            return;
        }
        let begun = Instant::now();
        let may_watch = inner.watches.may_watch(&inner, &hub, has_changed);
        match bounded(reader.read(&inner, &hub, may_watch)).await {
            Ok(page) => {
                let at_end = page.at_end;
                has_changed = reader.enter(&inner, &hub, page);
                // One that has changed may have the watch of another: it is asked for at once.
                if !at_end || has_changed && !may_watch {
                    continue;
                }
            }
            Err(Error::DatabaseNotFound) => {
                hub.end(Some(&inner), false);
                return;
            }
            Err(error) => {
                tracing::debug!(database = hub.name, %error, "the changes could not be read, and are looked at again");
                drop(inner);
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        }
        // Nothing of the layer is held while nothing happens.
        drop(inner);
        let patience = if followers == 0 { LINGER } else { SAFETY_REREAD };
        let woken = tokio::select! {
            fired = reader.armed.fired() => Woken::Fired(fired),
            () = tokio::time::sleep(patience) => Woken::Unasked,
            () = hub.look.notified() => Woken::Asked,
            _ = closing.wait_for(|closing| *closing) => Woken::Asked,
        };
        let metrics = |count: fn(&Metrics)| weak.upgrade().inspect(|inner| count(&inner.metrics));
        match woken {
            Woken::Fired(Ok(())) => {
                metrics(|metrics| metrics.watches_fired.add(1));
                let pace = PACE_OF_FOLLOWER * u32::try_from(followers).unwrap_or(u32::MAX);
                let rest = pace.min(PACE_MAX).saturating_sub(begun.elapsed());
                let _ = tokio::time::timeout(rest, hub.look.notified()).await;
            }
            Woken::Fired(Err(error)) => {
                tracing::debug!(database = hub.name, %error, "a watch failed");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            Woken::Unasked => {
                // They have not fired for so long that they are not relied on.
                reader.armed.clear();
                metrics(|metrics| metrics.safety_rereads.add(1));
            }
            Woken::Asked => {}
        }
    }
}

enum Woken {
    Fired(FdbResult<()>),
    Asked,
    Unasked,
}

impl Reader {
    /// Reads what is behind the cursor, a bounded part of it; with the last part the watches are set, if they may be.
    async fn read(&mut self, inner: &Inner, hub: &Hub, may_watch: bool) -> Result<Page> {
        if !may_watch {
            self.armed.clear();
        }
        let mut trx = Transaction::begin(&inner.db, &inner.metrics)?;
        loop {
            inner.metrics.transactions.add(1);
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
                            note(&inner.metrics, FdbError::from_code(failed.code()));
                            trx = failed.on_error().await?;
                            continue;
                        }
                    }
                }
                Ok(page) => return Ok(page),
                Err(Error::Storage(error)) => error,
                Err(other) => return Err(other),
            };
            note(&inner.metrics, error);
            trx = trx.on_error(error).await?;
        }
    }

    async fn page(&self, trx: &Transaction, inner: &Inner, hub: &Hub) -> Result<Page> {
        let wants_documents = hub.documents_wanted.load(Ordering::Relaxed) > 0;
        let limit = if wants_documents { SHARED_DOCUMENTS_MAX } else { SHARED_ROWS_MAX };
        // All asked for before the first is awaited.
        let last_seqs: Vec<_> = hub.buckets.all().iter().map(|bucket| trx.get(&bucket.last_seq(), true)).collect();
        let purges = hub.buckets.begin_count(trx, Counter::Purges);
        let version = trx.get_read_version();
        let entries = self.cursor.map(|cursor| {
            let ranges: Vec<_> = hub.buckets.all().iter().map(|bucket| bucket.by_seq_after(&cursor)).collect();
            let extent = (limit, false);
            by_seq::begin(trx, &inner.metrics, &hub.buckets, &ranges, extent, &self.shares, change_row_with_channels)
        });
        let instance = inner.resolve(trx, &hub.name).await?;
        if !std::ptr::eq(&*instance.hub, hub) {
            // Another database of this name, whose followers are at its own hub.
            return Err(Error::DatabaseNotFound);
        }
        let (mut newest, mut found) = (Seq::zero(hub.incarnation), Vec::with_capacity(last_seqs.len()));
        for last_seq in last_seqs {
            let last_seq = last_seq.await?.map(|stamp| stamp.to_vec());
            if let Some(stamp) = &last_seq {
                newest = newest.max(Seq::from_slice(hub.incarnation, stamp)?);
            }
            found.push(last_seq);
        }
        let mut page = Page {
            rows: Vec::new(),
            at_end: true,
            drained: newest,
            version: version.await?,
            purges: purges.await?,
            last_seqs: found,
            channels: instance.channels(),
            principals: Some(Vec::new()),
            shares: self.shares.clone(),
        };
        let Some(entries) = entries else { return Ok(page) };
        // In the same transaction, and so whatever a row was committed with.
        page.principals = match self.cursor.filter(|_| instance.channels() > 0) {
            Some(cursor) => principals_after(trx, &instance, &cursor).await?,
            None => Some(Vec::new()),
        };
        let by_seq::Read { mut rows, is_all, shares } = entries.await?;
        page.shares = shares;
        if !is_all {
            page.at_end = false;
            page.drained = rows.last().map_or(newest, |(row, _)| row.seq);
        }
        let lacking = rows.iter_mut().map(|(row, _)| row);
        let lacking = lacking.filter(|row| row.lacks_leaves() && row.leaf_count <= SHARED_LEAVES_MAX);
        try_join_all(lacking.map(|row| row.read_leaves(trx, &instance))).await?;
        page.rows = if wants_documents {
            with_documents(trx, inner, &instance, rows).await?
        } else {
            let row = |(row, channels)| TailRow::new(row, TailDocument::NotRead).with_channels(channels);
            rows.into_iter().map(row).collect()
        };
        Ok(page)
    }

    /// Puts what was read where followers find it, and wakes them if there is something. Returns whether there is.
    fn enter(&mut self, inner: &Inner, hub: &Hub, page: Page) -> bool {
        let hubs = inner.hubs_running.load(Ordering::Relaxed).max(1);
        let weight_max = (TAILS_BYTES_MAX / hubs).clamp(TAIL_BYTES_MIN, TAIL_BYTES_MAX);
        let moved = {
            let mut state = hub.lock();
            let is_first = state.tail.is_none();
            let tail = state.tail.get_or_insert_with(|| Tail::new(page.drained));
            if self.purges.replace(page.purges).is_some_and(|before| before != page.purges) {
                // What was purged is gone from by-seq, and leaves nothing there that would say so.
                tail.clear(page.drained.min(self.cursor.unwrap_or(page.drained)));
            }
            tail.read_with(page.channels);
            let moved = is_first || tail.drained() < page.drained;
            match page.principals {
                Some(principals) => tail.push_principals(principals),
                None => tail.clear(page.drained.min(self.cursor.unwrap_or(page.drained))),
            }
            tail.push(page.rows, page.drained);
            if page.at_end {
                tail.complete_as_of(page.version);
            }
            tail.trim(weight_max, Instant::now());
            moved
        };
        (self.cursor, self.shares) = (Some(page.drained), page.shares);
        if moved {
            hub.wake();
        }
        if page.at_end {
            hub.versions.send_replace(page.version);
        }
        moved
    }
}

/// Users and roles of a database that have changed behind a sequence; `None`: many.
async fn principals_after(
    trx: &Transaction,
    instance: &Instance,
    cursor: &Seq,
) -> Result<Option<Vec<(Seq, Kind, Arc<str>)>>> {
    let range = instance.keys.changed_principals_after(cursor);
    let page = trx.get_range(&page_of(&range, SHARED_PRINCIPALS_MAX, false), 1, true).await?;
    if page.more() || page.len() == SHARED_PRINCIPALS_MAX {
        return Ok(None);
    }
    let mut found = Vec::with_capacity(page.len());
    for row in &page {
        let PrincipalPart::Changed(seq) = instance.keys.split_principals(row.key())? else { continue };
        let (kind, name) = unpack_principal(row.value())?;
        found.push((seq, kind, name.into()));
    }
    Ok(Some(found))
}

/// The documents of rows, those of them that are small.
async fn with_documents(
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    rows: Vec<(ChangeRow, RowChannels)>,
) -> Result<Vec<TailRow>> {
    let with_conflicts = instance.hub.conflicts_wanted.load(Ordering::Relaxed) > 0;
    // The tree is read for one as for all.
    let conflicts = if with_conflicts { Conflicts::All } else { Conflicts::No };
    // All at once, also what is read of those that have conflicts.
    let reads = rows.into_iter().map(|(row, channels)| {
        let read = begin_latest(trx, instance, &row.id);
        async move {
            let document = read.small_document(trx, inner, instance, &row.id, conflicts).await?;
            let document = document.map_or(TailDocument::NotRead, |document| {
                // Its conflicts are all other leaves: complete only if they were asked for.
                TailDocument::Read { document: Box::new(document), with_conflicts }
            });
            Ok(TailRow::new(row, document).with_channels(channels))
        }
    });
    try_join_all(reads.collect::<Vec<_>>()).await
}
