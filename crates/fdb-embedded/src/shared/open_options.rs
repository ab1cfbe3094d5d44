//! The options of an engine.

use crate::shared::buggify::{Buggify, ClientBuggify};
use crate::shared::observer::KeyObserver;
use crate::shared::simulation::SimulatedCluster;

/// The default limit on records that the clears of one batch remove themselves.
pub(crate) const CLEAR_RECORDS_MAX: usize = 4_096;

/// The default of [`OpenOptions::checked_pages_max`]: 128 MB.
pub(crate) const CHECKED_PAGES_MAX: u64 = 32_768;

/// The options of an engine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Faults to inject; `None` for none. If a process opens one directory twice, the first call decides.
    pub buggify: Option<Buggify>,
    /// FoundationDB's network options for faults; they replace `buggify` while they are enabled.
    pub client_buggify: Option<&'static ClientBuggify>,
    /// The interval, in reads, at which [`Transaction::next_delivery`](crate::Transaction::next_delivery) requests an
    /// answer from another thread, as a cluster answers all reads; 0 for never. `None`: 257, and 4,099 once a thread
    /// has read 65,536 times.
    pub pending_read_every: Option<u32>,
    /// The latencies and the server work of a simulated cluster; `None` for none. If a process opens one directory
    /// twice, the first call decides.
    pub simulated: Option<SimulatedCluster>,
    /// Most records that the clears of one batch remove at once; the rest are removed in the background. `None`:
    /// 4,096.
    pub clear_records_max: Option<usize>,
    /// The initial address space in bytes; it grows on demand. `None`: as much as the system allows, up to 1 TiB.
    pub map_bytes: Option<usize>,
    /// About the most pages of the data file that opening checks; the rest is checked in the background. `None`:
    /// 32,768.
    pub checked_pages_max: Option<u64>,
    /// For tests: sees each key that transactions read and commits write. If a process opens one directory twice, the
    /// first call decides.
    pub observer: Option<KeyObserver>,
    /// For tests: pauses the background removal, so that its records stay hidden by their pending clear.
    pub is_removal_paused: bool,
}
