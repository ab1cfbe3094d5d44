//! What a process knows of groups of views: their definitions, which of them it follows or builds, and who waits for that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::error::ViewFailure;
use crate::field_maps::FieldMaps;
use crate::store::once::now_ms;
use crate::view_definition::{GroupDefinition, Signature};
use crate::view_functions::{GroupFunctions, ViewFunctions};

/// Definitions that are kept; with more of them any goes, and is read again.
const LOADED_MAX: usize = 500;

/// Queries of a process that wait for groups.
const WAITING_MAX: u64 = 10_000;

/// A group whose functions failed is not tried again so soon: who asks for its views gets the error at once.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// Which group: a database's namespace, and the index's number in it.
pub(crate) type GroupId = (u64, u64);

/// The state of a process.
#[derive(Default)]
pub(crate) struct ViewUpdates {
    functions: OnceLock<Arc<dyn ViewFunctions>>,
    /// Marks what this process is at.
    pub owner: [u8; 16],
    groups: Mutex<HashMap<GroupId, Arc<GroupState>>>,
    loaded: Mutex<HashMap<(u64, Signature), Arc<LoadedGroup>>>,
    waiting: AtomicU64,
}

/// A group's definition, and its functions if this process runs any.
pub(crate) struct LoadedGroup {
    pub definition: Arc<GroupDefinition>,
    pub functions: Option<Arc<dyn GroupFunctions>>,
}

/// What this process does for a group.
pub(crate) struct GroupState {
    /// A task follows it.
    pub is_running: AtomicBool,
    /// How often it was asked to be followed.
    pub asked: AtomicU64,
    /// Told when it is asked for again.
    pub wake: Notify,
    /// Told when the group may have come further, or failed: a read version as of which all is in it.
    pub moved: watch::Sender<i64>,
    /// Queries that wait for it.
    pub waiting: AtomicU64,
    failure: Mutex<Option<(Instant, ViewFailure)>>,
    shown: Mutex<Shown>,
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
    pub(crate) fn new(owner: [u8; 16]) -> ViewUpdates {
        ViewUpdates { owner, ..ViewUpdates::default() }
    }

    /// What runs functions. The first that is given stays.
    pub(crate) fn run_by(&self, functions: Arc<dyn ViewFunctions>) {
        let _ = self.functions.set(functions);
    }

    pub(crate) fn functions(&self) -> Option<&Arc<dyn ViewFunctions>> {
        self.functions.get()
    }

    pub(crate) fn group(&self, id: GroupId) -> Arc<GroupState> {
        Arc::clone(lock(&self.groups).entry(id).or_insert_with(|| Arc::new(GroupState::new())))
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

    pub(crate) fn loaded(&self, namespace: u64, signature: &Signature) -> Option<Arc<LoadedGroup>> {
        lock(&self.loaded).get(&(namespace, *signature)).cloned()
    }

    /// Keeps a definition; `database`: what tells its database from all others.
    pub(crate) fn load(&self, namespace: u64, database: &str, definition: GroupDefinition) -> Arc<LoadedGroup> {
        let functions: Option<Arc<dyn GroupFunctions>> = match definition.is_of_fields() {
            true => Some(Arc::new(FieldMaps::of(&definition))),
            false => self.functions().map(|functions| functions.load(database, &definition.source())),
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

    /// For how long the group that is furthest behind has been so.
    pub(crate) fn lag(&self) -> Duration {
        let groups = lock(&self.groups);
        let since = groups.values().filter_map(|group| lock(&group.shown).behind_since);
        since.map(|since| since.elapsed()).max().unwrap_or_default()
    }

    /// Queries that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl GroupState {
    fn new() -> GroupState {
        GroupState {
            is_running: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            wake: Notify::new(),
            moved: watch::Sender::new(0),
            waiting: AtomicU64::new(0),
            failure: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    /// The group has come further: all is in it as of a read version; 0: it is not known.
    pub(crate) fn moved_to(&self, version: i64) {
        *lock(&self.failure) = None;
        self.moved.send_modify(|known| *known = version.max(*known));
    }

    /// It cannot be followed.
    pub(crate) fn fail(&self, failure: ViewFailure) {
        *lock(&self.failure) = Some((Instant::now(), failure));
        self.moved.send_modify(|_| {});
    }

    /// Why it could not be followed a moment ago.
    pub(crate) fn failure(&self) -> Option<ViewFailure> {
        let failure = lock(&self.failure).clone();
        failure.filter(|(since, _)| since.elapsed() < FAILED_FOR).map(|(_, failure)| failure)
    }

    /// There is something to be done.
    pub(crate) fn is_behind(&self) {
        lock(&self.shown).behind_since.get_or_insert_with(Instant::now);
    }

    /// There is nothing to be done.
    pub(crate) fn is_through(&self) {
        *lock(&self.shown) = Shown::default();
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
            task.updated_at_ms = now_ms();
        }
    }

    fn task(&self) -> Option<ViewTask> {
        let task = lock(&self.shown).task.clone();
        task.map(|task| ViewTask { waiting: self.waiting.load(Ordering::Relaxed), ..task })
    }
}

/// A query that waits, until this is dropped.
pub(crate) struct Waiting<'a> {
    updates: &'a ViewUpdates,
    group: &'a GroupState,
}

impl<'a> Waiting<'a> {
    /// # Errors
    /// [`ViewFailure::TooManyWaiting`].
    pub(crate) fn begin(updates: &'a ViewUpdates, group: &'a GroupState) -> Result<Waiting<'a>, ViewFailure> {
        group.waiting.fetch_add(1, Ordering::Relaxed);
        let before = updates.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting { updates, group };
        if before < WAITING_MAX { Ok(waiting) } else { Err(ViewFailure::TooManyWaiting) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.group.waiting.fetch_sub(1, Ordering::Relaxed);
        self.updates.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
