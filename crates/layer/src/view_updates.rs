//! What a process knows of groups of views: their definitions, which of them it follows or builds, and who waits for that.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use crate::at_once::AtOnce;
use crate::error::ViewFailure;
use crate::field_maps::FieldMaps;
use crate::line_pacer::LinePacer;
use crate::view_bounds::ViewBounds;
use crate::view_definition::{GroupDefinition, Signature};
use crate::view_functions::{FunctionFailure, GroupFunctions, ViewFunctions};
use memory::MemoryBudget;
use runaways::Runaways;

pub(crate) mod memory;
pub(crate) mod runaways;

/// Definitions that are kept; with more of them any goes, and is read again.
const LOADED_MAX: usize = 500;

/// Groups that a process may remember without a use for it; then, and with as many again, those go.
const IDLE_MAX: usize = if cfg!(test) { 10 } else { 1_000 };

/// Queries of a process that wait for groups.
const WAITING_MAX: u64 = 10_000;

/// Groups of other processes whose progress is watched at once: FoundationDB allows a connection 10,000 watches, most of
/// which are for feeds.
const WATCHED_MAX: usize = 500;

/// Entries that are shown of queries that wait; the rest is counted.
const WAITS_SHOWN_MAX: usize = 500;

/// A group that cannot be followed for so long, although it is tried again and again, fails those who wait for it.
pub(crate) const STUCK_MAX: Duration = Duration::from_secs(30);

/// Between two times that those who wait for a group have it looked after.
const NUDGED_EACH: Duration = Duration::from_millis(250);

/// A group whose functions failed is not tried again so soon: who asks for its views gets the error at once.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// The same where they broke a bound on one document after the other: finding that out has kept a processor busy for long.
const BROKEN_FOR: Duration = Duration::from_secs(60);

/// The same where the group has no room, or storage never takes what it has: twice as long each time, up to this.
const STUCK_FOR_MAX: Duration = Duration::from_secs(30);

/// Documents that a transaction enters at most, and how long it may take until the next one enters fewer: FoundationDB ends it after 5 s.
pub(crate) const RUN_DOCUMENTS_MAX: usize = 500;
const ENTERED_IN: Duration = Duration::from_secs(2);

/// Transactions of a process that write many rows at once, so that a client's write waits in the storage behind few of them. One
/// database may have half of these turns. Groups with written reduces have as many turns of their own.
const ROW_WRITES_MAX: usize = 4;

/// Documents of a range of a first build at most, and how long one may take until the next ones have fewer: a lease of which none ends
/// for a minute goes to others.
const RANGE_DOCUMENTS_MAX: usize = if cfg!(test) { 7 } else { 300 };
const RANGE_IN: Duration = if cfg!(test) { Duration::from_millis(150) } else { Duration::from_secs(15) };

/// Which group: a database's namespace, and the index's number in it.
pub(crate) type GroupId = (u64, u64);

/// The state of a process.
pub(crate) struct ViewUpdates {
    functions: OnceLock<Arc<dyn ViewFunctions>>,
    clock: Clock,
    bounds: ViewBounds,
    /// The memory budget of emitted rows.
    pub rows_memory: Arc<MemoryBudget>,
    /// Permits of one unit for transactions that read a large document's stored rows: one for a database, two for the process.
    pub large_reads: Arc<MemoryBudget>,
    /// Turns of one unit for transactions that write many rows: two for a database, four for the process.
    pub row_writes: Arc<MemoryBudget>,
    /// The same of groups with written reduces, which such a transaction may wait for.
    pub reduced_row_writes: Arc<MemoryBudget>,
    /// One permit, for the preparation of a document whose rows have large JSON trees.
    pub large_json: Arc<Semaphore>,
    /// Marks what this process is at.
    pub owner: [u8; 16],
    pub knowing: KnowingGroups,
    groups: Mutex<HashMap<GroupId, Arc<GroupState>>>,
    loaded: Mutex<HashMap<(u64, Signature), Arc<LoadedGroup>>>,
    waiting: Arc<AtomicU64>,
    watched: Semaphore,
    /// No long key has room in a first build.
    #[cfg(test)]
    pub lacks_room: AtomicBool,
    /// Transactions that may be made for groups.
    #[cfg(test)]
    pub steps: Semaphore,
}

/// How many groups of a process know nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnowingGroups(pub Arc<AtomicUsize>);

/// A group's definition, and its functions if this process runs any.
pub(crate) struct LoadedGroup {
    pub definition: Arc<GroupDefinition>,
    pub functions: Option<Arc<dyn GroupFunctions>>,
}

/// What this process does for a group.
pub(crate) struct GroupState {
    clock: Clock,
    /// A task follows it.
    pub is_running: AtomicBool,
    /// How often it was asked to be followed.
    pub asked: AtomicU64,
    /// Told when it is asked for again.
    pub wake: Notify,
    /// Told when somebody begins to wait for it.
    pub waited_for: Notify,
    /// How far it has come.
    pub moved: watch::Sender<Moved>,
    /// Queries that wait for it.
    pub waiting: AtomicU64,
    /// They, by design document and view.
    waits: Mutex<BTreeMap<WaitsFor, Waits>>,
    /// Since when, for how long it is not tried again, and why.
    failure: Mutex<Option<(Instant, Duration, ViewFailure)>>,
    /// How often it was given up, stuck, since it last went through.
    stuck: AtomicU32,
    failing_since: Mutex<Option<Instant>>,
    /// The database, while the last attempt to follow has failed.
    failed_in: Mutex<Option<Arc<str>>>,
    nudged: Mutex<Option<Instant>>,
    shown: Mutex<Shown>,
    /// Limits the log lines about its failures.
    pub lines: LinePacer<LoggedFailure>,
    /// Documents that a transaction enters.
    pub entered: AtOnce,
    /// Documents of a range of a first build.
    pub range: AtOnce,
    /// How many documents the next call maps. Halved or less if their rows did not fit, doubled if they were few.
    pub mapped_at_once: AtomicUsize,
    /// Documents on which functions broke a bound.
    pub runaways: Runaways,
    /// The tasks of this process that wait for a shared resource, such as memory for rows.
    pub resource_waits: AtomicUsize,
    /// The most documents that a task has shown as done.
    #[cfg(test)]
    pub most_shown: AtomicU64,
}

/// A kind of failure of a group that is logged at most once a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LoggedFailure {
    /// The map of this tree failed on a document.
    Map(usize),
    /// A document has too many rows, or too large ones.
    Refused,
    /// Functions broke a bound on a document.
    SetAside,
    /// The group cannot be built.
    Unbuilt,
}

/// How far a group has come, as far as this process knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// A read version as of which all is in it.
    pub drained: i64,
    /// How often there was nothing to be done for it any longer, or it failed.
    pub ended: u64,
}

/// What a query waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitsFor {
    pub database: Arc<str>,
    pub design: String,
    pub view: String,
    pub signature: Signature,
}

/// Queries that wait for the same.
#[derive(Debug, Clone, Copy)]
struct Waits {
    count: u64,
    since_ms: u64,
}

/// Queries that wait for a view until it is up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewWait {
    /// The database.
    pub database: String,
    /// The design document's id.
    pub design_document: String,
    /// The view's name.
    pub view: String,
    /// What the view's group is named by, in hexadecimal digits.
    pub signature: String,
    /// How many queries of this process wait.
    pub waiting: u64,
    /// Unix time since when there is always one.
    pub since_ms: u64,
    /// What this process does for the group, if it is a task.
    pub task: Option<ViewTask>,
}

/// How far it is.
#[derive(Debug, Clone, Default)]
struct Shown {
    /// Since when there is something to be done that is not done yet.
    behind_since: Option<Instant>,
    task: Option<ViewTask>,
}

/// Something that is under way for a group of views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewTask {
    /// The database.
    pub database: String,
    /// A design document that defines the group.
    pub design_document: String,
    /// What the group is named by, in hexadecimal digits.
    pub signature: String,
    /// Whether it is built for the first time; else it catches up with changes.
    pub is_build: bool,
    /// Documents that have been mapped since the task began, or goes on.
    pub changes_done: u64,
    /// How many there are, about; at least `changes_done`.
    pub total_changes: u64,
    /// Queries of this process that wait for it.
    pub waiting: u64,
    /// Unix time.
    pub started_at_ms: u64,
    /// Unix time.
    pub updated_at_ms: u64,
}

impl ViewUpdates {
    /// `memory_bytes`: the memory budget of emitted rows.
    pub(crate) fn new(owner: [u8; 16], bounds: ViewBounds, memory_bytes: usize, clock: &Clock) -> ViewUpdates {
        ViewUpdates {
            rows_memory: MemoryBudget::new(memory_bytes),
            large_reads: MemoryBudget::new(2 * memory::UNIT_BYTES),
            row_writes: MemoryBudget::new(ROW_WRITES_MAX * memory::UNIT_BYTES),
            reduced_row_writes: MemoryBudget::new(ROW_WRITES_MAX * memory::UNIT_BYTES),
            large_json: Arc::new(Semaphore::new(1)),
            knowing: KnowingGroups::default(),
            functions: OnceLock::new(),
            clock: clock.clone(),
            bounds,
            owner,
            groups: Mutex::default(),
            loaded: Mutex::default(),
            waiting: Arc::default(),
            watched: Semaphore::new(WATCHED_MAX),
            #[cfg(test)]
            lacks_room: AtomicBool::new(false),
            #[cfg(test)]
            steps: Semaphore::new(Semaphore::MAX_PERMITS),
        }
    }

    /// What runs functions. The first that is given stays.
    pub(crate) fn run_by(&self, functions: Arc<dyn ViewFunctions>) {
        let _ = self.functions.set(functions);
    }

    pub(crate) fn functions(&self) -> Option<&Arc<dyn ViewFunctions>> {
        self.functions.get()
    }

    pub(crate) fn group(&self, id: GroupId) -> Arc<GroupState> {
        let mut groups = lock(&self.groups);
        if let Some(known) = groups.get(&id) {
            return Arc::clone(known);
        }
        if groups.len() >= IDLE_MAX && groups.len().is_multiple_of(IDLE_MAX) {
            // Those that nobody has: they are followed by nobody, and nobody waits for them.
            groups.retain(|_, group| Arc::strong_count(group) > 1);
        }
        Arc::clone(groups.entry(id).or_insert_with(|| Arc::new(GroupState::new(&self.clock))))
    }

    /// The group if this process has had anything to do with it.
    pub(crate) fn known(&self, id: GroupId) -> Option<Arc<GroupState>> {
        lock(&self.groups).get(&id).cloned()
    }

    /// The group is gone, or nobody names it.
    pub(crate) fn forget(&self, id: GroupId) {
        let mut groups = lock(&self.groups);
        if groups.get(&id).is_some_and(|group| group.waiting.load(Ordering::Relaxed) == 0) {
            groups.remove(&id);
        }
    }

    /// Resets read versions after a renewal of the storage, which may have moved to another cluster, and wakes waiting queries.
    pub(crate) fn enter_epoch(&self) {
        for group in lock(&self.groups).values() {
            group.moved.send_modify(|known| *known = Moved { drained: 0, ended: known.ended + 1 });
        }
    }

    pub(crate) fn loaded(&self, namespace: u64, signature: &Signature) -> Option<Arc<LoadedGroup>> {
        lock(&self.loaded).get(&(namespace, *signature)).cloned()
    }

    /// Keeps a definition; `database`: what tells its database from all others.
    pub(crate) fn load(&self, namespace: u64, database: &str, definition: GroupDefinition) -> Arc<LoadedGroup> {
        let functions: Option<Arc<dyn GroupFunctions>> = match definition.is_of_fields() {
            true => Some(Arc::new(FieldMaps::of(&definition))),
            false => self.functions().map(|functions| functions.load(database, &definition.source(), self.bounds)),
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

    /// What is under way, and groups that queries wait for.
    pub(crate) fn tasks(&self) -> Vec<ViewTask> {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        let mut tasks: Vec<ViewTask> = groups.iter().filter_map(|group| group.task()).collect();
        tasks.sort_by(|a, b| (&a.database, &a.signature).cmp(&(&b.database, &b.signature)));
        tasks
    }

    /// Queries that wait, those that have waited the longest first; and how many more wait than these.
    pub(crate) fn waits(&self) -> (Vec<ViewWait>, u64) {
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

    /// Room for a watch on a group's progress; `None`: there are too many.
    pub(crate) fn may_watch(&self) -> Option<SemaphorePermit<'_>> {
        self.watched.try_acquire().ok()
    }

    /// For how long the group that is furthest behind has been so.
    pub(crate) fn lag(&self) -> Duration {
        let groups = lock(&self.groups);
        let since = groups.values().filter_map(|group| lock(&group.shown).behind_since);
        since.map(|since| self.clock.since(since)).max().unwrap_or_default()
    }

    /// Groups that failed when they were to be followed last, by their databases.
    pub(crate) fn failing(&self) -> BTreeMap<Arc<str>, Vec<GroupId>> {
        let mut failing: BTreeMap<Arc<str>, Vec<GroupId>> = BTreeMap::new();
        for (id, group) in &*lock(&self.groups) {
            if let Some(database) = &*lock(&group.failed_in) {
                failing.entry(Arc::clone(database)).or_default().push(*id);
            }
        }
        failing
    }

    /// Documents that the first builds under way have left, about.
    pub(crate) fn left(&self) -> u64 {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        let builds = groups.iter().filter_map(|group| group.task()).filter(|task| task.is_build);
        builds.map(|task| task.total_changes.saturating_sub(task.changes_done)).sum()
    }

    /// Queries that wait.
    pub(crate) fn waiting(&self) -> u64 {
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
            moved: watch::Sender::new(Moved::default()),
            waiting: AtomicU64::new(0),
            waits: Mutex::default(),
            failure: Mutex::default(),
            stuck: AtomicU32::new(0),
            failing_since: Mutex::default(),
            failed_in: Mutex::default(),
            nudged: Mutex::default(),
            shown: Mutex::default(),
            lines: LinePacer::new(clock),
            entered: AtOnce::new(RUN_DOCUMENTS_MAX, ENTERED_IN, clock),
            range: AtOnce::new(RANGE_DOCUMENTS_MAX, RANGE_IN, clock),
            mapped_at_once: AtomicUsize::new(RUN_DOCUMENTS_MAX),
            runaways: Runaways::new(clock),
            resource_waits: AtomicUsize::new(0),
            #[cfg(test)]
            most_shown: AtomicU64::new(0),
        }
    }

    /// The group has come further: all is in it as of a read version; 0: it is not known.
    pub(crate) fn moved_to(&self, version: i64) {
        *lock(&self.failure) = None;
        *lock(&self.failing_since) = None;
        *lock(&self.failed_in) = None;
        self.moved.send_if_modified(|known| {
            let is_further = version > known.drained;
            known.drained = version.max(known.drained);
            is_further
        });
    }

    /// It cannot be followed, and is not tried again by itself. It stays behind.
    pub(crate) fn give_up(&self, database: &str, failure: ViewFailure) {
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

    /// It cannot be followed.
    pub(crate) fn fail(&self, failure: ViewFailure) {
        self.fail_for(failed_for(&failure), failure);
    }

    fn fail_for(&self, pause: Duration, failure: ViewFailure) {
        *lock(&self.failure) = Some((self.clock.now(), pause, failure));
        self.moved.send_modify(|known| known.ended += 1);
    }

    /// It cannot be followed now, and is tried again. Where that goes on for long, those who wait for it get the failure.
    pub(crate) fn stumble(&self, database: &str, failure: ViewFailure) {
        self.has_failed(database);
        let since = *lock(&self.failing_since).get_or_insert_with(|| self.clock.now());
        if self.clock.since(since) >= STUCK_MAX {
            self.fail(failure);
        }
    }

    /// Whether it failed since it last went on.
    #[cfg(test)]
    pub(crate) fn is_stumbling(&self) -> bool {
        lock(&self.failing_since).is_some()
    }

    /// Moves its first failure since it last went on into the past.
    #[cfg(test)]
    pub(crate) fn age_failures(&self, by: Duration) {
        let mut since = lock(&self.failing_since);
        *since = since.and_then(|since| since.checked_sub(by));
    }

    /// Has who follows look again, for those who wait: of all of them together not all the time.
    pub(crate) fn nudge(&self) {
        let mut nudged = lock(&self.nudged);
        if nudged.is_none_or(|at| self.clock.since(at) >= NUDGED_EACH) {
            *nudged = Some(self.clock.now());
            self.wake.notify_one();
        }
    }

    /// Why it could not be followed a moment ago.
    pub(crate) fn failure(&self) -> Option<ViewFailure> {
        let failure = lock(&self.failure).clone();
        failure.filter(|(since, pause, _)| self.clock.since(*since) < *pause).map(|(.., failure)| failure)
    }

    /// The last failure since it moved, however long ago.
    #[cfg(test)]
    pub(crate) fn last_failure(&self) -> Option<ViewFailure> {
        lock(&self.failure).clone().map(|(.., failure)| failure)
    }

    /// There is something to be done.
    pub(crate) fn is_behind(&self) {
        lock(&self.shown).behind_since.get_or_insert_with(|| self.clock.now());
    }

    /// There is nothing to be done.
    pub(crate) fn is_through(&self) {
        *lock(&self.shown) = Shown::default();
        *lock(&self.failing_since) = None;
        *lock(&self.failed_in) = None;
        self.stuck.store(0, Ordering::Relaxed);
        self.moved.send_modify(|known| known.ended += 1);
    }

    /// Shows what is done.
    pub(crate) fn show(&self, task: impl FnOnce() -> ViewTask) {
        lock(&self.shown).task.get_or_insert_with(task);
    }

    /// So many documents more are done.
    pub(crate) fn get_on(&self, documents: u64) {
        if let Some(task) = &mut lock(&self.shown).task {
            task.changes_done += documents;
            task.total_changes = task.total_changes.max(task.changes_done);
            task.updated_at_ms = self.clock.unix_ms();
            #[cfg(test)]
            self.most_shown.fetch_max(task.changes_done, Ordering::Relaxed);
        }
    }

    /// So many documents are done in all, by others too.
    pub(crate) fn get_to(&self, documents: u64) {
        let done = lock(&self.shown).task.as_ref().map(|task| task.changes_done);
        self.get_on(done.map_or(0, |done| documents.saturating_sub(done)));
    }

    fn task(&self) -> Option<ViewTask> {
        let task = lock(&self.shown).task.clone();
        task.map(|task| ViewTask { waiting: self.waiting.load(Ordering::Relaxed), ..task })
    }
}

/// A query that waits, until this is dropped.
pub(crate) struct Waiting {
    /// Those of the process.
    all: Arc<AtomicU64>,
    group: Arc<GroupState>,
    waits_for: WaitsFor,
}

impl Waiting {
    /// # Errors
    /// [`ViewFailure::TooManyWaiting`].
    pub(crate) fn begin(
        views: &ViewUpdates,
        group: &Arc<GroupState>,
        waits_for: WaitsFor,
    ) -> Result<Waiting, ViewFailure> {
        group.waiting.fetch_add(1, Ordering::Relaxed);
        let before = views.waiting.fetch_add(1, Ordering::Relaxed);
        let begins = || Waits { count: 0, since_ms: views.clock.unix_ms() };
        lock(&group.waits).entry(waits_for.clone()).or_insert_with(begins).count += 1;
        let waiting = Waiting { all: Arc::clone(&views.waiting), group: Arc::clone(group), waits_for };
        if before >= WAITING_MAX {
            return Err(ViewFailure::TooManyWaiting);
        }
        group.waited_for.notify_one();
        Ok(waiting)
    }
}

impl Drop for Waiting {
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

/// As hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_is_tried_again_less_and_less_often() {
        let views = ViewUpdates::new([0; 16], ViewBounds::default(), memory::bytes_by_default(), &Clock::system());
        let state = views.group((0, 0));
        let pause = |failure: &ViewFailure| {
            state.give_up("db", failure.clone());
            let failed = lock(&state.failure).clone();
            failed.map(|(_, pause, _)| pause.as_secs())
        };
        let stuck = ViewFailure::Stuck("no room".to_owned());
        let pauses: Vec<_> = (0..40).filter_map(|_| pause(&stuck)).collect();
        assert_eq!((&pauses[..7], pauses[39]), (&[1, 2, 4, 8, 16, 30, 30][..], 30));
        assert_eq!(state.failure(), Some(stuck.clone()));
        assert_eq!(pause(&ViewFailure::Changed), Some(1));
        // It is built from the beginning, and moves, each time.
        state.moved_to(7);
        assert_eq!((state.failure(), pause(&stuck)), (None, Some(30)));
        state.is_through();
        assert_eq!(pause(&stuck), Some(1));
    }

    #[test]
    fn a_group_that_is_tried_in_vain_for_long_fails() {
        let manual = flatbed_clock::ManualClock::new();
        let views = ViewUpdates::new([0; 16], ViewBounds::default(), memory::bytes_by_default(), &manual.clock());
        let state = views.group((0, 0));
        for failure in [None, None, Some(ViewFailure::Changed)] {
            state.stumble("db", ViewFailure::Changed);
            assert_eq!(state.failure(), failure);
            manual.advance(STUCK_MAX / 2);
        }
    }

    #[tokio::test]
    async fn a_renewal_takes_the_versions_of_before_with_it() {
        let (db, _storage) = crate::fenced::database().await;
        let state = db.inner.views.group((1, 1));
        // A version from before the renewal, whose state was restored into another cluster.
        state.moved_to(i64::MAX);
        let before = *state.moved.borrow();
        crate::renew::renew(&db.inner.db, &db.inner.options.root, false, |_| {}).await.unwrap();
        db.exists().await.unwrap();
        // Waiting queries are woken, and see the versions that follow.
        assert_eq!(*state.moved.borrow(), Moved { drained: 0, ended: before.ended + 1 });
        state.moved_to(7);
        assert_eq!(state.moved.borrow().drained, 7);
    }

    #[test]
    fn groups_that_nobody_uses_are_forgotten() {
        let views = ViewUpdates::new([0; 16], ViewBounds::default(), memory::bytes_by_default(), &Clock::system());
        let used = views.group((0, 0));
        (1..10 * IDLE_MAX as u64).for_each(|number| drop(views.group((0, number))));
        assert!(lock(&views.groups).len() <= 2 * IDLE_MAX);
        assert!(Arc::ptr_eq(&used, &views.group((0, 0))));
    }
}
