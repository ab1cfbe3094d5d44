//! The due work of one slice, as a job under the slice's lease.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_databases::actor::ServerActor;
use flatbed_jobs::{Failure, Job, Next, Run, Status};
use flatbed_operations::write::batch::resolved;
use flatbed_store::due;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::DueKey;
use flatbed_store::waits;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::background::kinds::{self, Outcome};
use crate::background::list::{self, DueEntry};
use crate::background::seats::{Seat, Seats, WaitingWork};
use crate::background::{BackgroundOptions, Worker, drawn};
use crate::handle::Layer;

/// The most concurrent tasks of a slice, with those that wait without a seat.
const TASKS_MAX: usize = 100;

/// The number of turns after which a slice is left to other processes; after one turn it is left to waiting slices of
/// this process.
const TURNS: u32 = 5;

pub(super) struct Slice {
    layer: Layer,
    actor: ServerActor,
    options: BackgroundOptions,
    stop: tokio::sync::watch::Receiver<bool>,
    id: String,
    status: Status,
    begun: Instant,
    /// True if other slices wait for this process.
    are_others_waiting: Arc<AtomicBool>,
    queue: Mutex<Queue>,
    more: Notify,
    seats: Arc<Seats>,
    done: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: WaitingWork,
    known: HashMap<(u64, String), QueuedWork>,
    /// True if no more work is taken from it.
    is_closed: bool,
    /// True if work was added after it was closed.
    came_late: bool,
}

struct QueuedWork {
    entry: DueEntry,
    /// A newer entry for the same work: the work may predate it, or have been skipped for the older entry.
    newer: Option<DueEntry>,
}

impl Queue {
    fn add(&mut self, entries: Vec<DueEntry>) {
        if self.is_closed {
            self.came_late |= !entries.is_empty();
            return;
        }
        for entry in entries {
            let (kind, name) = (entry.key.kind, entry.key.name.clone());
            match self.known.entry((kind, name)) {
                MapEntry::Vacant(place) => {
                    place.insert(QueuedWork { entry: entry.clone(), newer: None });
                    self.waiting.push(entry);
                }
                MapEntry::Occupied(mut known) if known.get().entry != entry => known.get_mut().newer = Some(entry),
                MapEntry::Occupied(_) => {}
            }
        }
    }

    fn remove(&mut self, entry: &DueEntry) {
        let known = self.known.remove(&(entry.key.kind, entry.key.name.clone()));
        self.add(known.and_then(|known| known.newer).into_iter().collect());
    }
}

impl Slice {
    pub(super) fn new(worker: &Worker, slice: u8, entries: Vec<DueEntry>) -> Slice {
        let mut queue = Queue::default();
        queue.add(entries);
        // The start is random, so that with more work than time the same work does not always come first.
        queue.waiting.rotate(drawn());
        Slice {
            layer: worker.layer.clone(),
            actor: worker.actor.clone(),
            options: worker.options.clone(),
            stop: worker.status.stopping(),
            id: slice.to_string(),
            status: Status::new(worker.layer.clock()),
            begun: worker.layer.clock().now(),
            are_others_waiting: Arc::clone(&worker.are_some_waiting),
            queue: Mutex::new(queue),
            more: Notify::new(),
            seats: Arc::default(),
            done: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, entries: Vec<DueEntry>) {
        if !self.is_over() {
            self.queue().add(entries);
            self.more.notify_one();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether unfinished work waits for the slice's next turn.
    fn is_over(&self) -> bool {
        let turns = if self.are_others_waiting.load(Ordering::Relaxed) { 1 } else { TURNS };
        self.layer.inner.is_closing() || self.layer.clock().since(self.begun) >= self.options.turn * turns
    }

    /// Returns whether work was added while the slice was ending, and is still due.
    pub(super) fn has_late_work(&self) -> bool {
        self.queue().came_late
    }

    /// Returns the kinds of the slice's unfinished work.
    pub(super) fn kinds(&self) -> HashSet<u64> {
        self.queue().known.keys().map(|(kind, _)| *kind).collect()
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Job for Slice {
    fn kind(&self) -> &'static str {
        "slice"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> std::result::Result<Next, Failure> {
        self.status.begin();
        let operation = waits::OperationCounters::current();
        let mut stop = self.stop.clone();
        // Each in a task of its own: a panic counts as a failure. They end with this.
        let mut tasks = JoinSet::new();
        let mut under_way = HashMap::new();
        let mut is_over = false;
        loop {
            while tasks.len() < TASKS_MAX
                && !is_over
                && let Some(entry) = { self.queue().waiting.take(|kind| self.seats.has_room(kind)) }
            {
                let seat = self.seats.take(entry.key.kind);
                let (layer, actor) = (self.layer.clone(), self.actor.clone());
                let BackgroundOptions { turn, ahead, .. } = self.options;
                let work = waits::carry(operation.clone(), {
                    let entry = entry.clone();
                    async move { work(&layer, &actor, entry, turn, ahead, seat).await }
                });
                under_way.insert(tasks.spawn(work).id(), entry);
            }
            is_over = self.is_over();
            let ended = tokio::select! {
                ended = tasks.join_next_with_id() => ended,
                () = self.more.notified(), if !tasks.is_empty() => continue,
                () = self.seats.freed.notified(), if !tasks.is_empty() => continue,
                _ = stop.wait_for(|stop| *stop) => return Ok(Next::Done),
            };
            match ended {
                None => {
                    let mut queue = self.queue();
                    queue.is_closed = is_over || queue.waiting.is_empty();
                    if queue.is_closed {
                        break;
                    }
                }
                Some(Ok((id, worked))) => {
                    let entry = under_way.remove(&id);
                    self.done.fetch_add(u64::from(worked.got_on), Ordering::Relaxed);
                    let left = worked.left.filter(|_| !self.is_over());
                    let (is_left, mut queue) = (left.is_some(), self.queue());
                    left.into_iter().for_each(|entry| queue.waiting.push(entry));
                    entry.iter().filter(|_| !is_left).for_each(|entry| queue.remove(entry));
                }
                Some(Err(error)) => {
                    if let Some(entry) = under_way.remove(&error.id()) {
                        fail(&self.layer, &entry, &error.to_string()).await;
                        self.queue().remove(&entry);
                    }
                }
            }
        }
        self.status.succeed();
        Ok(Next::Done)
    }
}

struct TaskOutcome {
    got_on: bool,
    /// The entry of unfinished work: the others have their turn first.
    left: Option<DueEntry>,
}

/// Does a task for some time. It gives up its seat while it only waits for others.
async fn work(
    layer: &Layer,
    actor: &ServerActor,
    entry: DueEntry,
    turn: Duration,
    ahead: Duration,
    seat: Seat,
) -> TaskOutcome {
    let mut seat = Some(seat);
    let (nothing, inner) = (TaskOutcome { got_on: false, left: None }, &layer.inner);
    // The previous holder of the lease may have done it since it was read.
    if !list::is_due(inner, &entry).await.unwrap_or(false) {
        return nothing;
    }
    let done = kinds::work(layer, actor, &entry, turn, ahead, &mut seat).await;
    after(layer, entry, done).await
}

/// Writes the outcome of a task into the list of due work.
async fn after(layer: &Layer, entry: DueEntry, done: Result<Outcome>) -> TaskOutcome {
    let (nothing, inner) = (TaskOutcome { got_on: false, left: None }, &layer.inner);
    let next = match done {
        Ok(Outcome::Done) => None,
        Ok(Outcome::Due(next)) => Some((next, 0)),
        Ok(Outcome::Unfinished) => return TaskOutcome { got_on: true, left: Some(entry) },
        Ok(Outcome::Elsewhere) => return nothing,
        Err(Error::DatabaseNotFound) => match resolved(inner, &entry.key.name).await {
            // The database is deleted, and its due work with it.
            Err(Error::DatabaseNotFound) => None,
            // The database was renewed or created again meanwhile: the due work now concerns the new instance.
            _ => return nothing,
        },
        // Or only a newer or an older program can do it.
        Err(Error::FeatureUnknown { .. } | Error::FormatTooNew { .. } | Error::FormatTooOld { .. }) => return nothing,
        Err(error) => {
            fail(layer, &entry, &error.to_string()).await;
            return nothing;
        }
    };
    match list::settle(inner, &entry, next).await {
        Ok(()) => {
            inner.metrics.background_work.add(1);
            TaskOutcome { got_on: true, left: None }
        }
        Err(error) => {
            tracing::debug!(%error, "finished work could not be removed from the list of due work");
            nothing
        }
    }
}

/// Defers failed work with a backoff, so that it does not block the work behind it.
async fn fail(layer: &Layer, entry: &DueEntry, reason: &str) {
    let inner = &layer.inner;
    inner.metrics.background_failures.add(1);
    let kind = due::DueKind::of(entry.key.kind);
    tracing::warn!(database = entry.key.name, ?kind, error = reason, "background work failed");
    let failures = entry.due.failures.saturating_add(1);
    let pause = u64::try_from(kinds::backoff_of(entry.key.kind).pause(failures).as_millis()).unwrap_or(u64::MAX);
    // Rounded up, so that repeated failures share a few entries.
    let at_ms = due::rounded_to(inner.clock.unix_ms().saturating_add(pause), pause / 4);
    let next = DueKey { at_ms, ..entry.key.clone() };
    if let Err(error) = list::settle(inner, entry, Some((next, failures))).await {
        tracing::debug!(%error, "failed work could not be deferred");
    }
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;
    use flatbed_flatten::json::{Limits, parse};
    use flatbed_store::due::{DueKind, key_of, slice_of};
    use flatbed_store::features::collation;
    use flatbed_store::proto;
    use flatbed_store::record_log::note_change;
    use flatbed_store::transaction::Transaction;
    use flatbed_testkit::until;
    use prost::Message;

    use super::*;
    use crate::background::Background;
    use crate::tests::fenced::{layer, layer_at};
    use crate::{Authority, CreateOptions, Database, Edit};
    use flatbed_databases::server::Inner;
    use flatbed_operations::compactions::Compactions;
    use flatbed_operations::index::definitions::reordering;

    fn hasty() -> BackgroundOptions {
        BackgroundOptions {
            look_every: Duration::from_millis(50),
            silence_max: Duration::from_millis(600),
            ..BackgroundOptions::default()
        }
    }

    fn background(layer: &Layer, authority: &Authority, options: BackgroundOptions) -> Background {
        Background::new(layer, authority.for_job("background"), options).unwrap()
    }

    async fn supersede(db: &Database, id: &str) {
        for path in [&["1-a"][..], &["2-b", "1-a"]] {
            let history = Some(path.iter().map(|rev| rev.parse().unwrap()).collect());
            let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
            let edit = Edit {
                expiry: None,
                id: id.into(),
                parent: None,
                history,
                deleted: false,
                attachments: Vec::new(),
                body,
            };
            db.update(&edit).await.unwrap();
        }
    }

    async fn change_record(db: &Database, change: impl Fn(&[u8]) -> Vec<u8>) {
        let (inner, key) = (&db.inner, db.inner.keys.database(&db.name));
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let record = trx.get(&key, false).await.unwrap().expect("a record");
        trx.set(&key, &change(&record));
        note_change(&trx, &inner.keys, &db.name).unwrap();
        trx.commit().await.unwrap();
    }

    /// Returns the failure counts of all compactions in the list.
    async fn compactions_due(inner: &Inner) -> Vec<u32> {
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let range = inner.keys.due_all();
        let rows = trx.range(&range, true).all(1_000).await.unwrap();
        let entries = rows.iter().map(|row| (inner.keys.split_due(row.key()).unwrap(), row));
        let compactions = entries.filter(|(key, _)| key.kind == DueKind::Compaction as u64);
        compactions.map(|(_, row)| proto::Due::decode(row.value()).unwrap().failures).collect()
    }

    #[tokio::test]
    async fn what_takes_long_holds_up_neither_its_slice_nor_others() {
        let (layer, authority, _storage) = layer().await;
        let name = |is_same| {
            let mut names = (0..).map(|number| format!("small{number}"));
            names.find(|name| (slice_of(name) == slice_of("db")) == is_same).expect("one of them")
        };
        let names = ["db".to_owned(), name(false), name(true)];
        let databases = names.each_ref().map(|name| layer.database(name, authority.for_job("test")));
        for small in &databases[1..] {
            small.create(&CreateOptions::default()).await.unwrap();
        }
        for db in &databases {
            supersede(db, "d").await;
        }
        let [long, small @ ..] = &databases;
        long.compact().await.unwrap();
        // Writers wait until indexes of an older collation are replaced, which this test controls.
        change_record(long, |record| {
            let mut record = proto::DatabaseRecord::decode(record).unwrap();
            record.features.push(collation("icu_collator 2.3.0 1 0000000000000000"));
            record.encode_to_vec()
        })
        .await;
        long.exists().await.unwrap();
        let instance = long.inner.cached("db").expect("an instance");
        let _held = reordering(&instance).lock().await;
        let background = background(&layer, &authority, hasty());
        background.start();
        let is_compacting = || layer.compactions().iter().any(|running| running.database == "db");
        until("the compaction has begun", async || is_compacting()).await;
        for db in small {
            db.compact().await.unwrap();
            until("it is compacted", async || db.info().await.unwrap().superseded_size_bytes == 0).await;
        }
        assert!(is_compacting());
        drop(background);
    }

    /// Compactions that wait for another task take all slices of this process. Work of another kind begins nevertheless.
    #[tokio::test]
    async fn slow_work_of_one_kind_in_all_slices_leaves_room_for_another_kind() {
        let (layer, authority, _storage) = layer().await;
        let mut slices = HashSet::new();
        let mut names = (0..).map(|number| format!("slow{number}")).filter(|name| slices.insert(slice_of(name)));
        let mut databases = Vec::new();
        for name in names.by_ref().take(hasty().slices_max + 1) {
            let db = layer.database(&name, authority.for_job("test"));
            db.create(&CreateOptions::default()).await.unwrap();
            supersede(&db, "d").await;
            databases.push(db);
        }
        let other = databases.pop().expect("a database");
        let mut instances = Vec::new();
        for slow in &databases {
            slow.compact().await.unwrap();
            change_record(slow, |record| {
                let mut record = proto::DatabaseRecord::decode(record).unwrap();
                record.features.push(collation("icu_collator 2.3.0 1 0000000000000000"));
                record.encode_to_vec()
            })
            .await;
            slow.exists().await.unwrap();
            instances.push(layer.inner.cached(&slow.name).expect("an instance"));
        }
        let mut held = Vec::new();
        for instance in &instances {
            held.push(reordering(instance).lock().await);
        }
        let background = background(&layer, &authority, hasty());
        background.start();
        until("all slices are taken", async || layer.compactions().len() == databases.len()).await;
        let inner = &layer.inner;
        list::write(inner, &[key_of(DueKind::Superseded, &other.name, 0)]).await.unwrap();
        until("the other work is done", async || {
            let found = list::read_due(inner, Duration::ZERO, 0).await.unwrap();
            found.slices.values().flatten().all(|entry| entry.key.kind != DueKind::Superseded as u64)
        })
        .await;
        assert_eq!(layer.compactions().len(), databases.len());
        drop(background);
    }

    #[test]
    fn what_is_noted_anew_before_it_is_done_is_done_again() {
        let entry = |token| DueEntry {
            key: key_of(DueKind::Indexes, "db", 0),
            due: proto::Due { token, failures: 0, at_ms: 0 },
        };
        let mut queue = Queue::default();
        // Each read of the list sees the entry until the work is done.
        queue.add(vec![entry(1), entry(1)]);
        let first = queue.waiting.take(|_| true).unwrap();
        queue.add(vec![entry(1)]);
        queue.add(vec![entry(2)]);
        assert_eq!((queue.waiting.len(), queue.known.len()), (0, 1));
        queue.remove(&first);
        let second = queue.waiting.take(|_| true).unwrap();
        assert_eq!(second, entry(2));
        queue.remove(&second);
        assert!(queue.waiting.is_empty() && queue.known.is_empty());
        queue.is_closed = true;
        queue.add(vec![entry(3)]);
        assert!(queue.came_late && queue.waiting.is_empty());
    }

    #[tokio::test]
    async fn what_fails_again_and_again_is_a_few_entries() {
        let manual = ManualClock::new();
        let (layer, authority, _storage) = layer_at(&manual).await;
        let db = layer.database("db", authority.for_job("test"));
        change_record(&db, |_| vec![255]).await;
        let once = background(&layer, &authority, hasty());
        for _ in 0..12 {
            list::write(&layer.inner, &[key_of(DueKind::Compaction, "db", 0)]).await.unwrap();
            assert_eq!(once.round().await.unwrap(), 0);
        }
        let due = compactions_due(&layer.inner).await;
        assert!(due.len() <= 2 && due.iter().all(|failures| *failures == 1), "{due:?}");
        // The work fails for the second time, and the newer entry for the first.
        let options = BackgroundOptions { ahead: Duration::from_secs(80), ..hasty() };
        background(&layer, &authority, options).round().await.unwrap();
        let due = compactions_due(&layer.inner).await;
        assert!(due.len() <= 2 && due.iter().all(|failures| *failures == 2), "{due:?}");
    }

    /// Work that finds another instance of its database fails with `DatabaseNotFound`.
    #[tokio::test]
    async fn what_is_due_stays_with_the_database_that_took_the_place_of_another() {
        let (layer, authority, _storage) = layer().await;
        let (db, inner) = (layer.database("db", authority.for_job("test")), &layer.inner);
        db.compact().await.unwrap();
        let entry = async || {
            let found = list::read_due(inner, Duration::ZERO, 0).await.unwrap();
            let mut entries = found.slices.into_values().flatten();
            entries.find(|entry| entry.key.kind == DueKind::Compaction as u64).expect("it is due")
        };
        let met = after(&layer, entry().await, Err(Error::DatabaseNotFound)).await;
        assert!(!met.got_on && met.left.is_none());
        assert_eq!(compactions_due(inner).await, vec![0]);
        db.delete().await.unwrap();
        assert!(after(&layer, entry().await, Err(Error::DatabaseNotFound)).await.got_on);
        assert_eq!(compactions_due(inner).await, Vec::<u32>::new());
    }

    #[tokio::test]
    async fn work_of_another_program_stays_due_and_is_no_failure() {
        let (layer, authority, _storage) = layer().await;
        let (db, inner) = (layer.database("db", authority.for_job("test")), &layer.inner);
        db.compact().await.unwrap();
        let (what, known) = ("the database".to_owned(), 4);
        let too_old = Error::FormatTooOld { what: what.clone(), found: 3, known };
        let too_new = Error::FormatTooNew { what, found: 5, known };
        for error in [too_old, too_new] {
            let found = list::read_due(inner, Duration::ZERO, 0).await.unwrap();
            let mut entries = found.slices.into_values().flatten();
            let entry = entries.find(|entry| entry.key.kind == DueKind::Compaction as u64).expect("it is due");
            let met = after(&layer, entry, Err(error)).await;
            assert!(!met.got_on && met.left.is_none());
            assert_eq!(compactions_due(inner).await, vec![0]);
        }
    }

    #[tokio::test]
    async fn what_this_process_is_at_is_not_taken_for_done() {
        let (layer, authority, _storage) = layer().await;
        let db = layer.database("db", authority.for_job("test"));
        supersede(&db, "d").await;
        db.compact().await.unwrap();
        let namespace = layer.inner.cached("db").expect("an instance").record.namespace;
        // Work that has lost its lease, and has not ended yet.
        let running = layer.inner.state::<Compactions>().begin(namespace, "db").expect("the first");
        let background = background(&layer, &authority, hasty());
        assert_eq!((background.round().await.unwrap(), compactions_due(&layer.inner).await), (0, vec![0]));
        drop(running);
        assert_eq!((background.round().await.unwrap(), compactions_due(&layer.inner).await), (1, Vec::new()));
        assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    }
}
