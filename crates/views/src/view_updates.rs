//! A process's state of groups of views: their definitions, which of them it follows or builds, and the queries that
//! wait for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::{Clock, LinePacer};
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_operations::view_runtime::view_functions;
use flatbed_store::error::ViewFailure;
use flatbed_store::view_bounds::ViewBounds;
use flatbed_store::view_definition::{GroupDefinition, Signature};
use flatbed_store::view_functions::{FunctionFailure, GroupFunctions};
use memory::MemoryBudget;
use runaways::Runaways;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use crate::at_once::AdaptiveBatchSize;
use crate::field_maps::FieldMaps;

pub mod memory;
pub mod runaways;

/// The most cached definitions. Beyond it an arbitrary one is evicted, and read again when needed.
const LOADED_MAX: usize = 500;

/// The most unused groups that a process remembers. At twice this number the unused ones are dropped.
pub const IDLE_MAX: Limit<usize> = Limit::new(1_000, 10);

/// The most queries of a process that wait for groups; further ones fail.
const WAITING_MAX: u64 = 10_000;

/// The most groups of other processes whose progress is watched: FoundationDB allows a connection 10,000 watches, most
/// of which are for feeds.
const WATCHED_MAX: usize = 500;

/// The most waiting queries that are listed; the rest is counted.
const WAITS_SHOWN_MAX: usize = 500;

/// The time after which a group that cannot be followed despite retries fails its waiting queries.
pub const STUCK_MAX: Duration = Duration::from_secs(30);

/// The interval at which waiting queries wake the follower of their group.
const NUDGED_EACH: Duration = Duration::from_millis(250);

/// The time for which a group whose functions failed is not retried; queries of its views fail at once.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// The same time if they exceeded a bound on several documents in succession, which has kept a processor busy for long.
const BROKEN_FOR: Duration = Duration::from_secs(60);

/// The longest backoff for a group without room, or whose transactions always fail. The time doubles with each failure.
const STUCK_FOR_MAX: Duration = Duration::from_secs(30);

/// The most documents that a transaction enters. If it takes too long, the next one enters fewer: FoundationDB ends it
/// after 5 s.
pub const RUN_DOCUMENTS_MAX: usize = 500;
const ENTERED_IN: Duration = Duration::from_secs(2);

/// The most concurrent transactions of a process that write many rows, so that a client's write queues behind few of
/// them in the storage. One database may have half of them. Groups with JavaScript reduces have a separate, equal
/// limit.
const ROW_WRITES_MAX: usize = 4;

/// The most documents of a range of a first build. If a range takes too long, the next ones have fewer: a lease is lost
/// if it completes no range for a minute.
const RANGE_DOCUMENTS_MAX: Limit<usize> = Limit::new(300, 7);
const RANGE_IN: Limit<Duration> = Limit::new(Duration::from_secs(15), Duration::from_millis(150));

/// A database's namespace, and the index's number in it.
pub type GroupId = (u64, u64);

pub struct ViewUpdates {
    clock: Clock,
    bounds: ViewBounds,
    pub rows_memory: Arc<MemoryBudget>,
    /// Permits of one unit for transactions that read a large document's stored rows: one for a database, two for the
    /// process.
    pub large_reads: Arc<MemoryBudget>,
    /// Turns of one unit for transactions that write many rows: two for a database, four for the process.
    pub row_writes: Arc<MemoryBudget>,
    /// The same for groups with JavaScript reduces, on which such a transaction may wait.
    pub reduced_row_writes: Arc<MemoryBudget>,
    /// One permit, for the preparation of a document whose rows have large JSON trees.
    pub large_json: Arc<Semaphore>,
    /// The mark of this process.
    pub owner: [u8; 16],
    pub knowing: KnowingGroups,
    /// Each task of a group has a receiver. The channel is closed when all of them have ended.
    pub followers: watch::Sender<()>,
    pub groups: Mutex<HashMap<GroupId, Arc<GroupState>>>,
    loaded: Mutex<HashMap<(u64, Signature), Arc<LoadedGroup>>>,
    waiting: Arc<AtomicU64>,
    watched: Semaphore,
    /// True to fail every long key of a first build, for tests.
    #[cfg(feature = "test-hooks")]
    pub lacks_room: AtomicBool,
    /// Permits for transactions of groups.
    #[cfg(feature = "test-hooks")]
    pub steps: Semaphore,
}

/// The number of groups of a process with cached nodes.
#[derive(Debug, Clone, Default)]
pub struct KnowingGroups(pub Arc<AtomicUsize>);

pub struct LoadedGroup {
    pub definition: Arc<GroupDefinition>,
    pub functions: Option<Arc<dyn GroupFunctions>>,
}

pub struct GroupState {
    clock: Clock,
    pub is_running: AtomicBool,
    /// The number of requests to follow it.
    pub asked: AtomicU64,
    pub wake: Notify,
    /// Notified when a query begins to wait for it.
    pub waited_for: Notify,
    /// Its progress.
    pub moved: watch::Sender<GroupMoves>,
    pub waiting: AtomicU64,
    waits: Mutex<BTreeMap<WaitsFor, Waits>>,
    /// The failure, its time, and the time for which the group is not retried.
    pub failure: Mutex<Option<(Instant, Duration, ViewFailure)>>,
    /// The number of times it was given up since its last success.
    stuck: AtomicU32,
    failing_since: Mutex<Option<Instant>>,
    /// The database, if the last attempt to follow has failed.
    failed_in: Mutex<Option<Arc<str>>>,
    nudged: Mutex<Option<Instant>>,
    shown: Mutex<ShownProgress>,
    pub lines: LinePacer<LoggedFailure>,
    /// The number of documents that a transaction enters.
    pub entered: AdaptiveBatchSize,
    /// The number of documents in a range of a first build.
    pub range: AdaptiveBatchSize,
    /// The number of documents that the next call maps. Halved or less if their rows did not fit, doubled if they were
    /// few.
    pub mapped_at_once: AtomicUsize,
    /// Documents on which functions exceeded a bound.
    pub runaways: Runaways,
    /// The tasks of this process that wait for a shared resource, such as memory for rows.
    pub resource_waits: AtomicUsize,
    /// The most documents that a task has shown as done.
    #[cfg(feature = "test-hooks")]
    pub most_shown: AtomicU64,
}

/// A kind of failure of a group that is logged at most once a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoggedFailure {
    Map(usize),
    /// A document has too many rows, or too large ones.
    Refused,
    SetAside,
    Unbuilt,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupMoves {
    /// A read version up to which the group is complete.
    pub drained: i64,
    /// The number of times the group became complete or failed.
    pub ended: u64,
}

/// The design document and view that a query waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitsFor {
    pub database: Arc<str>,
    pub design: String,
    pub view: String,
    pub signature: Signature,
}

#[derive(Debug, Clone, Copy)]
struct Waits {
    count: u64,
    since_ms: u64,
}

/// Queries that wait until a view is up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewWait {
    /// The database.
    pub database: String,
    /// The design document's id.
    pub design_document: String,
    /// The view's name.
    pub view: String,
    /// The group's signature, in hexadecimal digits.
    pub signature: String,
    /// The number of waiting queries in this process.
    pub waiting: u64,
    /// The Unix time in milliseconds since when at least one query waits.
    pub since_ms: u64,
    /// The task of this process for the group, if any.
    pub task: Option<ViewTask>,
}

#[derive(Debug, Clone, Default)]
struct ShownProgress {
    behind_since: Option<Instant>,
    task: Option<ViewTask>,
}

/// A running task of a group of views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewTask {
    /// The database.
    pub database: String,
    /// A design document that defines the group.
    pub design_document: String,
    /// The group's signature, in hexadecimal digits.
    pub signature: String,
    /// True for the first build; false while catching up with changes.
    pub is_build: bool,
    /// The documents mapped since the task began or resumed.
    pub changes_done: u64,
    /// The approximate number of documents to map; at least `changes_done`.
    pub total_changes: u64,
    /// The number of queries in this process that wait for it.
    pub waiting: u64,
    /// Unix time, in milliseconds.
    pub started_at_ms: u64,
    /// Unix time, in milliseconds.
    pub updated_at_ms: u64,
}

impl State<Inner> for ViewUpdates {
    fn new_of(inner: &Inner) -> ViewUpdates {
        let options = &inner.options;
        ViewUpdates::new(inner.process, options.view_bounds, options.view_memory_bytes, &inner.clock)
    }

    fn enter_epoch(&self) {
        for group in lock(&self.groups).values() {
            group.moved.send_modify(|known| *known = GroupMoves { drained: 0, ended: known.ended + 1 });
        }
    }
}

/// Returns the state of a server's groups of views.
pub fn views(inner: &Inner) -> &ViewUpdates {
    inner.state()
}

impl ViewUpdates {
    /// `memory_bytes`: the memory budget of emitted rows.
    pub fn new(owner: [u8; 16], bounds: ViewBounds, memory_bytes: usize, clock: &Clock) -> ViewUpdates {
        ViewUpdates {
            rows_memory: MemoryBudget::new(memory_bytes),
            large_reads: MemoryBudget::new(2 * memory::UNIT_BYTES),
            row_writes: MemoryBudget::new(ROW_WRITES_MAX * memory::UNIT_BYTES),
            reduced_row_writes: MemoryBudget::new(ROW_WRITES_MAX * memory::UNIT_BYTES),
            large_json: Arc::new(Semaphore::new(1)),
            knowing: KnowingGroups::default(),
            followers: watch::Sender::new(()),
            clock: clock.clone(),
            bounds,
            owner,
            groups: Mutex::default(),
            loaded: Mutex::default(),
            waiting: Arc::default(),
            watched: Semaphore::new(WATCHED_MAX),
            #[cfg(feature = "test-hooks")]
            lacks_room: AtomicBool::new(false),
            #[cfg(feature = "test-hooks")]
            steps: Semaphore::new(Semaphore::MAX_PERMITS),
        }
    }

    pub fn group(&self, id: GroupId) -> Arc<GroupState> {
        let mut groups = lock(&self.groups);
        if let Some(known) = groups.get(&id) {
            return Arc::clone(known);
        }
        if groups.len() >= IDLE_MAX.get() && groups.len().is_multiple_of(IDLE_MAX.get()) {
            // Drops unused groups: no task follows them, and no query waits for them.
            groups.retain(|_, group| Arc::strong_count(group) > 1);
        }
        Arc::clone(groups.entry(id).or_insert_with(|| Arc::new(GroupState::new(&self.clock))))
    }

    pub fn known(&self, id: GroupId) -> Option<Arc<GroupState>> {
        lock(&self.groups).get(&id).cloned()
    }

    pub fn forget(&self, id: GroupId) {
        let mut groups = lock(&self.groups);
        if groups.get(&id).is_some_and(|group| group.waiting.load(Ordering::Relaxed) == 0) {
            groups.remove(&id);
        }
    }

    /// Resets read versions after a renewal of the storage, which may have moved to another cluster, and wakes waiting
    /// queries.
    pub fn loaded(&self, namespace: u64, signature: &Signature) -> Option<Arc<LoadedGroup>> {
        lock(&self.loaded).get(&(namespace, *signature)).cloned()
    }

    /// Caches a definition. `database` identifies the database, and distinguishes it from earlier ones of the same
    /// name.
    pub fn load(&self, inner: &Inner, namespace: u64, database: &str, definition: GroupDefinition) -> Arc<LoadedGroup> {
        let functions: Option<Arc<dyn GroupFunctions>> = match definition.is_of_fields() {
            true => Some(Arc::new(FieldMaps::of(&definition))),
            false => view_functions(inner).map(|functions| functions.load(database, &definition.source(), self.bounds)),
        };
        let key = (namespace, definition.signature);
        let group = Arc::new(LoadedGroup { definition: Arc::new(definition), functions });
        let mut loaded = lock(&self.loaded);
        if loaded.len() >= LOADED_MAX
            && let Some(any) = loaded.keys().next().copied()
        {
            loaded.remove(&any);
        }
        Arc::clone(loaded.entry(key).or_insert(group))
    }

    pub fn tasks(&self) -> Vec<ViewTask> {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        let mut tasks: Vec<ViewTask> = groups.iter().filter_map(|group| group.task()).collect();
        tasks.sort_by(|a, b| (&a.database, &a.signature).cmp(&(&b.database, &b.signature)));
        tasks
    }

    /// Returns the waiting queries, the longest first, and the number of queries beyond the limit.
    pub fn waits(&self) -> (Vec<ViewWait>, u64) {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        let mut waits = Vec::new();
        for group in groups {
            let of_group = lock(&group.waits).clone();
            let task = group.task();
            waits.extend(of_group.into_iter().map(|(waits_for, waits)| ViewWait {
                database: waits_for.database.to_string(),
                design_document: waits_for.design,
                view: waits_for.view,
                signature: hex(&waits_for.signature),
                waiting: waits.count,
                since_ms: waits.since_ms,
                task: task.clone(),
            }));
        }
        waits.sort_by(|a, b| (a.since_ms, &a.database, &a.view).cmp(&(b.since_ms, &b.database, &b.view)));
        let rest = waits.split_off(waits.len().min(WAITS_SHOWN_MAX));
        (waits, rest.iter().map(|wait| wait.waiting).sum())
    }

    /// Returns a permit for a watch on a group's progress; `None`: the limit is reached.
    pub fn may_watch(&self) -> Option<SemaphorePermit<'_>> {
        self.watched.try_acquire().ok()
    }

    pub fn lag(&self) -> Duration {
        let groups = lock(&self.groups);
        let since = groups.values().filter_map(|group| lock(&group.shown).behind_since);
        since.map(|since| self.clock.since(since)).max().unwrap_or_default()
    }

    /// Returns the groups whose last attempt to follow failed, by database.
    pub fn failing(&self) -> BTreeMap<Arc<str>, Vec<GroupId>> {
        let mut failing: BTreeMap<Arc<str>, Vec<GroupId>> = BTreeMap::new();
        for (id, group) in &*lock(&self.groups) {
            if let Some(database) = &*lock(&group.failed_in) {
                failing.entry(Arc::clone(database)).or_default().push(*id);
            }
        }
        failing
    }

    /// Returns the approximate number of documents that the running first builds have left.
    pub fn left(&self) -> u64 {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        let builds = groups.iter().filter_map(|group| group.task()).filter(|task| task.is_build);
        builds.map(|task| task.total_changes.saturating_sub(task.changes_done)).sum()
    }

    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

fn failed_for(failure: &ViewFailure) -> Duration {
    match failure {
        ViewFailure::Function(FunctionFailure::TimedOut(_) | FunctionFailure::OutOfResources(_)) => BROKEN_FOR,
        _ => FAILED_FOR,
    }
}

impl GroupState {
    fn new(clock: &Clock) -> GroupState {
        GroupState {
            clock: clock.clone(),
            is_running: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            wake: Notify::new(),
            waited_for: Notify::new(),
            moved: watch::Sender::new(GroupMoves::default()),
            waiting: AtomicU64::new(0),
            waits: Mutex::default(),
            failure: Mutex::default(),
            stuck: AtomicU32::new(0),
            failing_since: Mutex::default(),
            failed_in: Mutex::default(),
            nudged: Mutex::default(),
            shown: Mutex::default(),
            lines: LinePacer::new(clock),
            entered: AdaptiveBatchSize::new(RUN_DOCUMENTS_MAX, ENTERED_IN, clock),
            range: AdaptiveBatchSize::new(RANGE_DOCUMENTS_MAX.get(), RANGE_IN.get(), clock),
            mapped_at_once: AtomicUsize::new(RUN_DOCUMENTS_MAX),
            runaways: Runaways::new(clock),
            resource_waits: AtomicUsize::new(0),
            #[cfg(feature = "test-hooks")]
            most_shown: AtomicU64::new(0),
        }
    }

    /// Notes that the group is complete up to a read version; 0: unknown.
    pub fn moved_to(&self, version: i64) {
        *lock(&self.failure) = None;
        *lock(&self.failing_since) = None;
        *lock(&self.failed_in) = None;
        self.moved.send_if_modified(|known| {
            let is_further = version > known.drained;
            known.drained = version.max(known.drained);
            is_further
        });
    }

    /// Notes that it cannot be followed and is not retried on its own. It stays behind.
    pub fn give_up(&self, database: &str, failure: ViewFailure) {
        lock(&self.shown).task = None;
        self.has_failed(database);
        let mut pause = failed_for(&failure);
        if matches!(failure, ViewFailure::Stuck(_)) {
            let times = self.stuck.fetch_add(1, Ordering::Relaxed).min(STUCK_FOR_MAX.as_secs() as u32);
            pause = pause.saturating_mul(2_u32.saturating_pow(times)).min(STUCK_FOR_MAX);
        }
        self.fail_for(pause, failure);
    }

    fn has_failed(&self, database: &str) {
        self.is_behind();
        lock(&self.failed_in).get_or_insert_with(|| database.into());
    }

    pub fn fail(&self, failure: ViewFailure) {
        self.fail_for(failed_for(&failure), failure);
    }

    fn fail_for(&self, pause: Duration, failure: ViewFailure) {
        *lock(&self.failure) = Some((self.clock.now(), pause, failure));
        self.moved.send_modify(|known| known.ended += 1);
    }

    /// Notes that it cannot be followed now, and is retried. After [`STUCK_MAX`] its waiting queries get the failure.
    pub fn record_retried_failure(&self, database: &str, failure: ViewFailure) {
        self.has_failed(database);
        let since = *lock(&self.failing_since).get_or_insert_with(|| self.clock.now());
        if self.clock.since(since) >= STUCK_MAX {
            self.fail(failure);
        }
    }

    /// Returns whether it has failed since its last progress.
    #[cfg(feature = "test-hooks")]
    pub fn is_retrying(&self) -> bool {
        lock(&self.failing_since).is_some()
    }

    /// Moves its first failure since its last progress into the past.
    #[cfg(feature = "test-hooks")]
    pub fn age_failures(&self, by: Duration) {
        let mut since = lock(&self.failing_since);
        *since = since.and_then(|since| since.checked_sub(by));
    }

    /// Wakes the follower for the waiting queries, at a limited rate for all of them together.
    pub fn wake_follower(&self) {
        let mut nudged = lock(&self.nudged);
        if nudged.is_none_or(|at| self.clock.since(at) >= NUDGED_EACH) {
            *nudged = Some(self.clock.now());
            self.wake.notify_one();
        }
    }

    /// Returns the recent failure, while it is not to be retried.
    pub fn failure(&self) -> Option<ViewFailure> {
        let failure = lock(&self.failure).clone();
        failure.filter(|(since, pause, _)| self.clock.since(*since) < *pause).map(|(.., failure)| failure)
    }

    /// Returns the last failure since its last progress, however old.
    #[cfg(feature = "test-hooks")]
    pub fn last_failure(&self) -> Option<ViewFailure> {
        lock(&self.failure).clone().map(|(.., failure)| failure)
    }

    pub fn is_behind(&self) {
        lock(&self.shown).behind_since.get_or_insert_with(|| self.clock.now());
    }

    pub fn is_through(&self) {
        *lock(&self.shown) = ShownProgress::default();
        *lock(&self.failing_since) = None;
        *lock(&self.failed_in) = None;
        self.stuck.store(0, Ordering::Relaxed);
        self.moved.send_modify(|known| known.ended += 1);
    }

    pub fn show(&self, task: impl FnOnce() -> ViewTask) {
        lock(&self.shown).task.get_or_insert_with(task);
    }

    pub fn add_done(&self, documents: u64) {
        if let Some(task) = &mut lock(&self.shown).task {
            task.changes_done += documents;
            task.total_changes = task.total_changes.max(task.changes_done);
            task.updated_at_ms = self.clock.unix_ms();
            #[cfg(feature = "test-hooks")]
            self.most_shown.fetch_max(task.changes_done, Ordering::Relaxed);
        }
    }

    /// Sets the number of documents done, those of other processes included.
    pub fn set_done(&self, documents: u64) {
        let done = lock(&self.shown).task.as_ref().map(|task| task.changes_done);
        self.add_done(done.map_or(0, |done| documents.saturating_sub(done)));
    }

    fn task(&self) -> Option<ViewTask> {
        let task = lock(&self.shown).task.clone();
        task.map(|task| ViewTask { waiting: self.waiting.load(Ordering::Relaxed), ..task })
    }
}

pub struct WaitingReader {
    /// The count of the process.
    all: Arc<AtomicU64>,
    group: Arc<GroupState>,
    waits_for: WaitsFor,
}

impl WaitingReader {
    /// Registers a query that begins to wait.
    ///
    /// # Errors
    /// [`ViewFailure::TooManyWaiting`].
    pub fn begin(
        views: &ViewUpdates,
        group: &Arc<GroupState>,
        waits_for: WaitsFor,
    ) -> Result<WaitingReader, ViewFailure> {
        group.waiting.fetch_add(1, Ordering::Relaxed);
        let before = views.waiting.fetch_add(1, Ordering::Relaxed);
        let begins = || Waits { count: 0, since_ms: views.clock.unix_ms() };
        lock(&group.waits).entry(waits_for.clone()).or_insert_with(begins).count += 1;
        let waiting = WaitingReader { all: Arc::clone(&views.waiting), group: Arc::clone(group), waits_for };
        if before >= WAITING_MAX {
            return Err(ViewFailure::TooManyWaiting);
        }
        group.waited_for.notify_one();
        Ok(waiting)
    }
}

impl Drop for WaitingReader {
    fn drop(&mut self) {
        self.group.waiting.fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
        let mut waits = lock(&self.group.waits);
        if let Some(found) = waits.get_mut(&self.waits_for) {
            found.count = found.count.saturating_sub(1);
            if found.count == 0 {
                waits.remove(&self.waits_for);
            }
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
