//! The counts of the work that an operation gives to a cluster: see [`flatbed_kit::waits`].

pub use flatbed_kit::waits::{OperationCounters, carry};
pub use flatbed_kit::waits::{Path, Waits, count};

/// Returns whether pages of ranges are full, so that tests can compare counts of reads. `FLATBED_FDB_BUGGIFY` cuts
/// pages short.
pub fn are_exact() -> bool {
    std::env::var_os("FLATBED_FDB_BUGGIFY").is_none()
}
