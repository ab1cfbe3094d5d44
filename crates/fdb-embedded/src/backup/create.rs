//! Copies of a database, made while another process serves it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::backup::copy::{CopyProgress, Source, take_file};
use crate::backup::error::BackupError;
use crate::backup::target_dir::{LOST_AND_FOUND, MadeDirectories, only};
use crate::disk::directory::sync_entries;
use crate::disk::format::DATA_FILE;
use crate::disk::open_error::OpenError;

const PARTIAL_FILE: &str = "data.mdb.partial";

/// Checks the database in `dir`, and copies it to `out/data.mdb`: the newest state at the beginning of the copy,
/// without free pages. Another process may serve the database meanwhile; the copy does not block it. Creates `out` if
/// it is missing. Returns the bytes written.
///
/// Calls `progress` on this thread: after each 256 pages of the check, then about ten times a second.
///
/// During the copy the server cannot reuse pages that it frees, so its file grows by the amount written meanwhile. If
/// this process is killed, `out` holds no `data.mdb`, and the next call may write into it. The server releases the
/// pages within five seconds of a commit.
///
/// # Errors
/// [`BackupError`]. A failed call removes the files and directories that it created.
pub fn backup(dir: &Path, out: &Path, mut progress: impl FnMut(CopyProgress)) -> Result<u64, BackupError> {
    let source = Source::open(dir, true)?;
    let target = Target::take(out)?;
    let bytes = source.copy(&target.file, &target.partial, &mut progress)?;
    target.finish()?;
    Ok(bytes)
}

/// The directory of a backup and its incomplete file. Dropping it before completion removes both.
struct Target {
    out: PathBuf,
    partial: PathBuf,
    /// Holds the lock while open.
    file: File,
    is_finished: bool,
    made: MadeDirectories,
}

impl Target {
    fn take(out: &Path) -> Result<Target, BackupError> {
        let (out, made) = MadeDirectories::make(out)?;
        only(&out, &[PARTIAL_FILE, LOST_AND_FOUND])?;
        let partial = out.join(PARTIAL_FILE);
        let file = take_file(&partial).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => OpenError::io(&out, &error).into(),
            _ => BackupError::io(&partial, &error),
        })?;
        let file = file.ok_or_else(|| BackupError::Busy(out.clone()))?;
        // The previous owner of the lock may have completed a copy.
        only(&out, &[PARTIAL_FILE, LOST_AND_FOUND])?;
        Ok(Target { out, partial, file, is_finished: false, made })
    }

    fn finish(mut self) -> Result<(), BackupError> {
        let path = self.out.join(DATA_FILE);
        fs::rename(&self.partial, &path).map_err(|error| BackupError::io(&path, &error))?;
        self.is_finished = true;
        sync_entries(&self.out).map_err(|error| BackupError::io(&self.out, &error))?;
        self.made.keep().map_err(|error| BackupError::io(&self.out, &error))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_finished {
            // A file that cannot be removed is treated like one left by a kill: the next backup reuses it.
            let _ = fs::remove_file(&self.partial);
        }
    }
}
