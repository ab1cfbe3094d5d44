//! Who is asked to run functions: pools of threads for those that somebody waits for at once, for those of indexes, and for
//! lists, which wait for rows and for who takes what they make of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ask::{Answer, Ask};
use crate::error::Result;
use crate::figures::FunctionFigures;
use crate::machine::{Code, Part};
use crate::nursery::Nursery;
use crate::pool::{Pool, PoolOptions, Task};
use crate::report::KillReport;
use crate::room::Rooms;
use crate::{Caller, Design, RunnerOptions};

/// How much less of the processor those threads get that map and reduce, as `nice` counts it, where others want it too.
const MAP_NICENESS: i32 = 5;

/// Calls that go on beside the usual threads, of each pool.
const ASIDE_MAX: usize = 4;

/// How many times as long as others they wait for a thread: hundreds of databases may build indexes at once.
const MAP_PATIENCE: u32 = 12;

/// Groups that a thread keeps loaded.
const GROUPS_LOADED_MAX: usize = 8;

/// Lists that are under way at once; of one database half as many. As many go on beside them where others wait.
const LISTS: usize = 8;

/// One that is longer, and one that waits for its client, may be stopped where others wait for their beginning.
const LIST_SPARED_FOR: Duration = Duration::from_secs(30);

/// Runs functions of design documents in processes of its own, which end with it. Cheap to clone.
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

/// Ends the threads and their processes when it is dropped.
struct Handle {
    nursery: Arc<Nursery>,
    calls: Arc<Pool>,
    maps: Arc<Pool>,
    lists: Arc<Pool>,
    callers: AtomicU64,
    rooms: Rooms,
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
    /// Starts the threads; processes start with the first call, or [`Runner::prepare`].
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn new(options: RunnerOptions) -> std::io::Result<Runner> {
        crate::child::link();
        let code = Code::compile(options.memory_max).map_err(std::io::Error::other)?;
        let (nursery, report) = (Nursery::start(&code, options.memory_all_max)?, Arc::<KillReport>::default());
        let (threads, maps) = (options.threads.max(1), options.map_threads.max(1));
        let (slice, wait_max) = (options.slice, options.wait_max);
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
        };
        // They wait more than they run.
        let lists = PoolOptions {
            name: "lists",
            threads: LISTS,
            of_one_max: LISTS / 2,
            aside_max: LISTS,
            spared_for: LIST_SPARED_FOR,
            ..calls.clone()
        };
        // What comes in batches lets others have their turn: a database that is alone has all.
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
        };
        Ok(Runner { handle: Arc::new(handle), options })
    }

    /// Starts processes now, as a server does: where none can start (no `/proc`, no right to run its program), the log says so each minute,
    /// whether functions are called or not.
    pub fn prepare(&self) {
        self.handle.nursery.prepare();
    }

    /// What is counted of calls and processes, for `/metrics`.
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

    /// A caller that there was not yet, of no client.
    pub fn caller(&self) -> Caller {
        Caller { number: self.handle.callers.fetch_add(1, Ordering::Relaxed), client: None }
    }

    /// The answer comes within `wait_max`, `time_max` and half a second, or six where others have the processor.
    pub(crate) async fn run(&self, design: &Design, caller: Caller, ask: Ask, time_max: Duration) -> Result<Answer> {
        let task = Task { design: design.clone(), caller, ask, time_max, step_max: time_max };
        self.pool(&task.ask).run(task).await
    }

    /// Who runs it.
    pub(crate) fn pool(&self, ask: &Ask) -> Arc<Pool> {
        let Handle { calls, maps, lists, .. } = &*self.handle;
        match ask.part() {
            // Nobody waits for it at once.
            Part::Sync if matches!(ask, Ask::Transform { .. }) => maps.clone(),
            Part::Calls | Part::Render | Part::Sync => calls.clone(),
            Part::Maps | Part::Reduces => maps.clone(),
            Part::List => lists.clone(),
        }
    }
}
