//! A check of a data file, also while another process serves it.

use std::fs::File;
use std::path::Path;

use crate::backup::copy::{CopyProgress, Source};
use crate::backup::error::BackupError;
use crate::disk::data_file::of_transaction;
use crate::disk::directory::{self, DirectoryLock};
use crate::disk::format::{DATA_FILE, LOCK_FILE, bad_file};
use crate::disk::open_error::OpenError;
use crate::disk::scan;

/// Progress is reported after this many pages.
const PAGES_A_REPORT: u64 = 256;
/// A page is damaged if it looks so this often. A commit that replaces the meta pages while they are read may make a
/// sound one look so once.
const LOOKS: u32 = 3;

/// The amount of data that a check has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedFile {
    /// Pages in use, with those of the free list.
    pub pages: u64,
    /// Records, each of which matches its checksum.
    pub records: u64,
}

/// Returns whether a process has the data directory open. A backup never is.
///
/// # Errors
/// [`OpenError`].
pub fn is_in_use(dir: &Path) -> Result<bool, OpenError> {
    if !dir.join(directory::LOCK_FILE).exists() {
        return Ok(false);
    }
    match DirectoryLock::take(dir) {
        Ok(_) => Ok(false),
        Err(OpenError::InUse(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Checks all pages and records of the newest state of the database in `dir`, a data directory or a backup. Another
/// process may serve it meanwhile; its file grows as during a backup.
///
/// Calls `progress` on this thread.
///
/// # Errors
/// [`OpenError::Damaged`] names the first damaged page; else as
/// [`backup`](crate::backup()).
pub fn check_data_file(dir: &Path, mut progress: impl FnMut(CopyProgress)) -> Result<CheckedFile, BackupError> {
    // A data directory has a lock file; a backup has none, and no writer.
    let source = Source::open(dir, dir.join(LOCK_FILE).exists())?;
    let path = source.dir.join(DATA_FILE);
    let file = File::open(&path).map_err(|error| OpenError::io(&path, &error))?;
    let mut looks = 1;
    loop {
        // The transaction keeps the server from reusing the pages of its state.
        let txn = source.env.read_txn().map_err(|error| OpenError::lmdb(&source.dir, error))?;
        let found = of_transaction(&file, txn.id() as u64).and_then(|meta| {
            let Some(meta) = meta else { return Ok(None) };
            let total_bytes = (meta.last_page + 1).saturating_mul(meta.page_bytes);
            let mut report = |pages: u64| {
                if pages.is_multiple_of(PAGES_A_REPORT) {
                    progress(CopyProgress { done_bytes: pages.saturating_mul(meta.page_bytes), total_bytes });
                }
            };
            scan::all(&file, meta, &mut report).map(Some)
        });
        drop(txn);
        match found {
            Ok(Some(scanned)) => return Ok(CheckedFile { pages: scanned.pages, records: scanned.records }),
            Err(error) if looks >= LOOKS => return Err(bad_file(&source.dir, error).into()),
            Err(_) => looks += 1,
            // Newer commits replaced both meta pages between the two reads.
            Ok(None) => {}
        }
    }
}
