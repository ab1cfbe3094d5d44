//! An open data directory: assembles the parts and starts the threads.

use std::path::Path;
use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::commit::committer::Committer;
use crate::disk::directory::{self, DirectoryLock};
use crate::disk::format;
use crate::disk::open_error::OpenError;
use crate::shared::connection::Connection;
use crate::shared::core::Core;
use crate::shared::open_options::{CHECKED_PAGES_MAX, OpenOptions};
use crate::shared::owner::{Handle, Owner};
use crate::shared::registry::{self, DirectoryClaim, Registration};
use crate::shared::stats::Stats;
use crate::shared::watch::WatchId;
use crate::shared::{checker, status, timer};
use crate::transaction::calls::Transaction;
use crate::transaction::options::{TransactionOptions, default_for};

/// An open data directory. Clones share it; it closes with the last clone and the last transaction.
#[derive(Clone)]
pub struct Engine {
    handle: Handle,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("dir", &self.core().dir).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens a directory, and creates it if it is missing.
    ///
    /// A process has one engine for each directory: opening it again returns the same one. A second process is
    /// refused.
    ///
    /// # Errors
    /// Each variant of [`OpenError`] says what to do about it.
    pub fn open(dir: &Path, options: OpenOptions) -> std::result::Result<Engine, OpenError> {
        let dir = directory::make(dir)?;
        let registration = match Registration::of(&dir) {
            DirectoryClaim::Open(owner) => return Ok(Engine { handle: Handle::new(owner) }),
            DirectoryClaim::New(registration) => registration,
        };
        let lock_file = DirectoryLock::take(&dir)?;
        let checked_pages_max = options.checked_pages_max.unwrap_or(CHECKED_PAGES_MAX);
        let mut opened = format::open(&dir, options.map_bytes, checked_pages_max)?;
        let unchecked_from = opened.unchecked_from.take();
        let clears = Arc::clone(&opened.clears);
        // Drop order: the lock is released before the directory can be opened again.
        let core = Core::new(dir.clone(), opened, options, Box::new((lock_file, registration)));
        core.load_lock().map_err(|error| {
            let reason = core.queue.failure.reason().unwrap_or_else(|| error.to_string());
            OpenError::Io { path: dir.clone(), reason }
        })?;
        let owner = Owner::new(Arc::clone(&core));
        let committer = Committer::new(Arc::clone(&core), clears);
        let threads = [
            std::thread::Builder::new().name("fdb-committer".into()).spawn(move || committer.run()),
            std::thread::Builder::new().name("fdb-timer".into()).spawn(move || {
                if core.simulation.is_some() {
                    timer::wake_exactly();
                }
                core.timer.run();
            }),
        ];
        for thread in threads {
            owner.add_thread(thread.map_err(|error| OpenError::io(&dir, &error))?);
        }
        if let Some(from) = unchecked_from {
            let core = Arc::clone(&owner.core);
            let thread =
                std::thread::Builder::new().name("fdb-checker".into()).spawn(move || checker::run(&core, from));
            owner.add_thread(thread.map_err(|error| OpenError::io(&dir, &error))?);
        }
        registry::complete(&owner);
        Ok(Engine { handle: Handle::new(owner) })
    }

    /// Creates a transaction with the default options.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.handle.clone())
    }

    /// Sets a database option by its FDBDatabaseOption number: the defaults of later transactions (500 to 506, 700 to
    /// 702, 26, 27), and `max_watches` (20).
    ///
    /// # Errors
    /// 2007 for another number, 2006 for a value of the wrong shape.
    pub fn set_default_option(&self, code: u32, value: Option<&[u8]>) -> Result<()> {
        let core = self.core();
        if code == 20 {
            let bytes = value.and_then(|value| value.try_into().ok()).ok_or(Error::INVALID_OPTION_VALUE)?;
            let max = usize::try_from(i64::from_le_bytes(bytes)).ok().filter(|&max| max <= 1_000_000);
            core.watches.set_max(max.ok_or(Error::INVALID_OPTION_VALUE)?);
            return Ok(());
        }
        let option = default_for(code)?;
        TransactionOptions::default().set(option, value)?;
        let mut defaults = lock(&core.defaults);
        defaults.retain(|(other, _)| *other != option);
        defaults.push((option, value.map(<[u8]>::to_vec)));
        Ok(())
    }

    /// Ends a watch with 1101, whether its transaction still exists or not.
    pub fn cancel_watch(&self, id: WatchId) {
        self.core().watches.cancel(id);
    }

    /// Calls `listener` with the reason and the advice when an I/O error or damage of the data file has stopped all
    /// commits; at once if that has already happened. The call comes once, on the commit thread, on that of a read or
    /// of the check, and must be short and not read. It does not keep the engine open.
    pub fn on_failure(&self, listener: impl FnOnce(&str) + Send + 'static) {
        self.core().queue.failure.listen(Box::new(listener));
    }

    /// The engine's counters.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// Returns the document of `\xff\xff/status/json`: the fields of FoundationDB's that are true of one process.
    pub fn status_json(&self) -> String {
        status::document(self.core(), &self.handle.connection)
    }

    /// Returns the same engine with another connection.
    pub fn with_connection(&self, connection: Connection) -> Engine {
        Engine { handle: Handle { owner: Arc::clone(&self.handle.owner), connection: Arc::new(connection) } }
    }

    /// The connection by which the program opened the engine.
    pub fn connection(&self) -> &Connection {
        &self.handle.connection
    }

    /// The canonical path of the data directory.
    pub fn directory(&self) -> &Path {
        &self.core().dir
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.handle.core()
    }
}
