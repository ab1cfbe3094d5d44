//! A check of a data file, also while another process serves it.

use std::path::Path;

use crate::backup::copy::{CopyProgress, Source};
use crate::backup::error::BackupError;
use crate::disk::format::LOCK_FILE;

/// The amount of data that a check has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedFile {
    /// Pages in use, with those of the free list.
    pub pages: u64,
    /// Records, each of which matches its checksum.
    pub records: u64,
}

/// Checks all pages and records of the newest state of the database in `dir`, a data directory or a backup. Another
/// process may serve it meanwhile; its file grows as during a backup.
///
/// Calls `progress` on this thread.
///
/// # Errors
/// [`OpenError::Damaged`](crate::OpenError::Damaged) names the first damaged page; else as [`backup`](crate::backup()).
pub fn check_data_file(dir: &Path, mut progress: impl FnMut(CopyProgress)) -> Result<CheckedFile, BackupError> {
    // A data directory has a lock file; a backup has none, and no writer.
    let source = Source::open(dir, dir.join(LOCK_FILE).exists())?;
    let scanned = source.check(&mut progress)?;
    Ok(CheckedFile { pages: scanned.pages, records: scanned.records })
}
