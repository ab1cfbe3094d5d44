//! What a server does of one kind at once, for all who ask: each has its own, as several run in one process in the tests.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Permits of one server.
pub(crate) struct Turns {
    /// The turn of writes that take much.
    pub heavy_writes: Semaphore,
    /// Pages that all walks over documents have read ahead and not taken yet: beside what is held for those who are sent an
    /// answer. A walk that finds no room reads its pages when they are asked for.
    pub walks_ahead: Arc<Semaphore>,
    /// The same of queries.
    pub queries_ahead: Arc<Semaphore>,
    /// Old revisions that are read for who judges, in all: their size is known when they are there.
    pub judged_reads: Semaphore,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            heavy_writes: Semaphore::new(1),
            walks_ahead: Arc::new(Semaphore::new(16)),
            queries_ahead: Arc::new(Semaphore::new(16)),
            judged_reads: Semaphore::new(12),
        }
    }
}
