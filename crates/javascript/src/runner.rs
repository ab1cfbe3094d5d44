//! The runner and its pools of threads: for calls with a waiting client, for indexes, and for lists, which wait for
//! rows and readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine_request::{Answer, EngineRequest};
use crate::error::Result;
use crate::figures::FunctionFigures;
use crate::machine::{Code, MachineKind};
use crate::nursery::Nursery;
use crate::owners::DatabaseOwners;
use crate::pool::{Pool, PoolOptions, Task};
use crate::report::KillReport;
use crate::room::Rooms;
use crate::{Caller, Design, RunnerOptions};

/// The niceness of the threads for maps and reduces.
const MAP_NICENESS: i32 = 5;

const ASIDE_MAX: usize = 4;

/// Maps and reduces wait this many times longer for a thread: hundreds of databases may build indexes at once.
const MAP_PATIENCE: u32 = 12;

const GROUPS_LOADED_MAX: usize = 8;

/// The most lists at once; half as many for one database. The same number may be put aside.
const LISTS: usize = 8;

/// The time after which a list may be stopped while others wait to begin.
const LIST_SPARED_FOR: Duration = Duration::from_secs(30);

/// Runs functions of design documents in its own processes, which end with it. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    handle: Arc<Handle>,
    pub(crate) options: RunnerOptions,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("options", &self.options).finish_non_exhaustive()
    }
}

struct Handle {
    nursery: Arc<Nursery>,
    calls: Arc<Pool>,
    maps: Arc<Pool>,
    lists: Arc<Pool>,
    callers: AtomicU64,
    rooms: Rooms,
    owners: Arc<DatabaseOwners>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.calls.close();
        self.maps.close();
        self.lists.close();
        self.nursery.close();
    }
}

impl Runner {
    /// Starts the threads. Processes start with the first call or [`Runner::prepare`].
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn new(options: RunnerOptions) -> std::io::Result<Runner> {
        crate::child::link();
        let code = Code::compile(options.memory_max).map_err(std::io::Error::other)?;
        let (nursery, report) = (Nursery::start(&code, options.memory_all_max)?, Arc::<KillReport>::default());
        let (threads, maps) = (options.threads.max(1), options.map_threads.max(1));
        let (slice, wait_max, owners) = (options.slice, options.wait_max, Arc::<DatabaseOwners>::default());
        let calls = PoolOptions {
            name: "javascript",
            threads,
            of_one_max: threads.saturating_sub(1).max(1),
            aside_max: ASIDE_MAX,
            niceness: 0,
            slice,
            wait_max,
            spared_for: Duration::ZERO,
            loaded_max: 2,
            lends: false,
            owners: owners.clone(),
        };
        // Lists wait more than they run.
        let lists = PoolOptions {
            name: "lists",
            threads: LISTS,
            of_one_max: LISTS / 2,
            aside_max: LISTS,
            spared_for: LIST_SPARED_FOR,
            ..calls.clone()
        };
        // Batches yield to other databases, so one database alone may use all threads.
        let maps = PoolOptions {
            name: "views",
            threads: maps,
            of_one_max: maps,
            niceness: MAP_NICENESS,
            wait_max: wait_max * MAP_PATIENCE,
            loaded_max: GROUPS_LOADED_MAX,
            lends: true,
            ..calls.clone()
        };
        let pool = |options| Pool::start(options, nursery.clone(), report.clone());
        let handle = Handle {
            calls: pool(calls)?,
            maps: pool(maps)?,
            lists: pool(lists)?,
            nursery,
            callers: AtomicU64::new(0),
            rooms: Rooms::new(),
            owners,
        };
        Ok(Runner { handle: Arc::new(handle), options })
    }

    /// Starts processes now, as a server does. If none can start (no `/proc`, no right to run the program), the log
    /// says so each minute, even without calls.
    pub fn prepare(&self) {
        self.handle.nursery.prepare();
    }

    /// Returns the metrics of calls and processes.
    pub fn figures(&self) -> &FunctionFigures {
        &self.handle.nursery.figures
    }

    #[cfg(test)]
    pub(crate) fn nursery(&self) -> &Nursery {
        &self.handle.nursery
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.handle.rooms
    }

    /// Sets the owner of a database by a number. Calls take turns by owner, so many databases of one owner have no
    /// more turns than one. `database`: as of [`Design::new`]. `None`: the database is its own owner, as it is at
    /// first. The owners of the last 131,072 databases are kept, at least.
    pub fn set_owner(&self, database: &str, owner: Option<u64>) {
        self.handle.owners.set(database, owner);
    }

    /// Returns a new caller without a client.
    pub fn caller(&self) -> Caller {
        Caller { number: self.handle.callers.fetch_add(1, Ordering::Relaxed), client: None }
    }

    pub(crate) async fn run(
        &self,
        design: &Design,
        caller: Caller,
        ask: EngineRequest,
        time_max: Duration,
    ) -> Result<Answer> {
        let task = Task { design: design.clone(), caller, ask, time_max, step_max: time_max };
        self.pool(&task.ask).run(task).await
    }

    pub(crate) fn pool(&self, ask: &EngineRequest) -> Arc<Pool> {
        let Handle { calls, maps, lists, .. } = &*self.handle;
        match ask.part() {
            // No client waits for it.
            MachineKind::Sync if matches!(ask, EngineRequest::Transform { .. }) => maps.clone(),
            MachineKind::Calls | MachineKind::Render | MachineKind::Sync => calls.clone(),
            MachineKind::Maps | MachineKind::Reduces => maps.clone(),
            MachineKind::List => lists.clone(),
        }
    }
}
