//! How an engine is opened.

use crate::shared::buggify::{Buggify, ClientBuggify};
use crate::shared::simulation::SimulatedCluster;

/// Most records that the clears of one batch of commits remove themselves, unless an option says otherwise.
pub(crate) const CLEAR_RECORDS_MAX: usize = 4_096;

/// How an engine is opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Faults to inject; `None` for none. Of two openings of one directory in one process the first decides.
    pub buggify: Option<Buggify>,
    /// FoundationDB's network options for faults, which hold instead of `buggify` while they are enabled.
    pub client_buggify: Option<&'static ClientBuggify>,
    /// Every how many reads [`Transaction::next_delivery`](crate::Transaction::next_delivery) tells to answer one from
    /// another thread, as all of a cluster's are; 0 for none. `None`: 257, and 4,099 once a
    /// thread has read 65,536 times.
    pub pending_read_every: Option<u32>,
    /// A cluster's latencies and the work of its server; `None` for none. Of two openings of one directory in one process the
    /// first decides.
    pub simulated: Option<SimulatedCluster>,
    /// Most records that the clears of one batch of commits remove at once, the rest in the background; `None`: 4,096.
    pub clear_records_max: Option<usize>,
    /// Address space to begin with, in bytes; it grows by itself. `None`: as much as the system gives, up to 1 TiB.
    pub map_bytes: Option<usize>,
    /// For tests: the background removal rests, so that what it would remove stays hidden by its pending clear.
    pub is_removal_paused: bool,
}
