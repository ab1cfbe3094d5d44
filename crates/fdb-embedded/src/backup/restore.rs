//! Restores a copy: first into a staging directory inside of the new data directory, where the caller may change it,
//! then to its final place.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::backup::copy::{CopyProgress, Source, take_file};
use crate::backup::error::BackupError;
use crate::backup::target_dir::{LOST_AND_FOUND, MadeDirectories, only};
use crate::disk::directory::{DirectoryLock, sync_entries};
use crate::disk::format::DATA_FILE;
use crate::shared::registry::{DirectoryClaim, Registration};

/// The staging directory. It is inside of the data directory because that may be a mount point, and a rename cannot
/// cross file systems. The data directory's lock also keeps a server from creating an empty database meanwhile.
const STAGING_DIR: &str = "restoring";
const LOCK_FILE: &str = "engine.lock";
/// The entries that the target of a restore may hold: the file system's own, and leftovers of an interrupted restore.
const ALLOWED: [&str; 3] = [LOCK_FILE, STAGING_DIR, LOST_AND_FOUND];

/// A restore in progress. Dropping it before [`Restore::finish`] removes everything that it created. A kill leaves a
/// directory without a database, which the next restore reuses.
pub struct Restore {
    dir: PathBuf,
    staging: PathBuf,
    is_finished: bool,
    // Drop order: the directories are removed before the lock is released, so a process that opens the lock file
    // meanwhile is refused.
    made: MadeDirectories,
    _lock: DirectoryLock,
}

impl Restore {
    /// Checks that `backup` holds a complete database of a known format, locks `dir`, creating it if needed, and
    /// copies the database to [`Restore::staging`]. `backup` may also be the data directory of a running server.
    ///
    /// Calls `progress` as [`backup`](crate::backup()) does.
    ///
    /// # Errors
    /// [`BackupError`]; [`BackupError::NotEmpty`] if `dir` holds anything.
    pub fn begin(backup: &Path, dir: &Path, mut progress: impl FnMut(CopyProgress)) -> Result<Restore, BackupError> {
        // A data directory has a lock file; a backup has none, has no writer, and may be on a read-only disk.
        let source = Source::open(backup, backup.join(LOCK_FILE).exists())?;
        let (dir, made) = MadeDirectories::make(dir)?;
        // Checked before locking too, because the lock leaves a file.
        only(&dir, &ALLOWED)?;
        let lock = DirectoryLock::take(&dir)?;
        let staging = dir.join(STAGING_DIR);
        let restore = Restore { dir, staging, is_finished: false, made, _lock: lock };
        only(&restore.dir, &ALLOWED)?;
        let staging = &restore.staging;
        let failed = |error| BackupError::io(staging, &error);
        match fs::remove_dir_all(staging) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        fs::create_dir(staging).map_err(failed)?;
        let path = staging.join(DATA_FILE);
        let file = take_file(&path).map_err(|error| BackupError::io(&path, &error))?;
        let file = file.ok_or_else(|| BackupError::Busy(restore.dir.clone()))?;
        source.copy(&file, &path, &mut progress)?;
        drop(file);
        Ok(restore)
    }

    /// The staging directory, for [`Engine::open`](crate::Engine::open). Commits made there become part of the
    /// restored database.
    pub fn staging(&self) -> &Path {
        &self.staging
    }

    /// Moves the copy to its final place. The engine on [`Restore::staging`] must be closed.
    ///
    /// # Errors
    /// [`BackupError::StillOpen`], [`BackupError::Copy`].
    pub fn finish(mut self) -> Result<(), BackupError> {
        let DirectoryClaim::New(registration) = Registration::of(&self.staging) else {
            return Err(BackupError::StillOpen(self.staging.clone()));
        };
        let path = self.dir.join(DATA_FILE);
        let failed = |error| BackupError::io(&path, &error);
        let copy = self.staging.join(DATA_FILE);
        File::open(&copy).and_then(|file| file.sync_all()).map_err(failed)?;
        fs::rename(&copy, &path).map_err(failed)?;
        self.is_finished = true;
        drop(registration);
        sync_entries(&self.dir).and_then(|()| self.made.keep()).map_err(failed)?;
        // The database is in place; leftover staging files do no harm.
        let _ = fs::remove_dir_all(&self.staging);
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let _ = fs::remove_dir_all(&self.staging);
        if self.made.is_any() {
            let _ = fs::remove_file(self.dir.join(LOCK_FILE));
        }
    }
}
