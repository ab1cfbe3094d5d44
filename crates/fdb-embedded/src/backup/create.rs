//! Copies of a database: made beside the process that serves it, and put back into a new directory.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::backup::copy::{CopyProgress, Source, take_file};
use crate::backup::error::BackupError;
use crate::backup::target_dir::{LOST_AND_FOUND, MadeDirectories, only};
use crate::disk::directory::sync_entries;
use crate::disk::format::DATA_FILE;
use crate::disk::open_error::OpenError;

/// What the copy is called until it is complete.
const PARTIAL_FILE: &str = "data.mdb.partial";
/// Copies the database in `dir` to `out/data.mdb`: its newest state when the copy begins, without free pages. Another
/// process may be serving the database, and is not held up. `out` is made if there is none. Returns the bytes written.
///
/// `progress` is called on this thread, some ten times a second while the copy takes longer than that.
///
/// While the copy goes on, pages that the server frees cannot be used again, so its file grows by what is written
/// meanwhile. If this process is killed, `out` holds no `data.mdb`, and the next call may write into it; the server notices
/// within five seconds of a commit.
///
/// # Errors
/// [`BackupError`]. What this call made is removed again.
pub fn backup(dir: &Path, out: &Path, mut progress: impl FnMut(CopyProgress)) -> Result<u64, BackupError> {
    let source = Source::open(dir, true)?;
    let target = Target::take(out)?;
    let bytes = source.copy(&target.file, &target.partial, &mut progress)?;
    target.finish()?;
    Ok(bytes)
}

/// The directory that a backup is written into, and its unfinished file. Removed when dropped unfinished.
struct Target {
    out: PathBuf,
    partial: PathBuf,
    /// Locked as long as it is open.
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
        // Who held the lock before may have finished a copy.
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
            // What cannot be removed lies there as after a kill, and the next backup takes it.
            let _ = fs::remove_file(&self.partial);
        }
    }
}
