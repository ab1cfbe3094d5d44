//! Putting a copy back: into a directory of its own within the new data directory, where it can be worked on, then to its
//! place.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::backup::copy::{CopyProgress, Source, take_file};
use crate::backup::error::BackupError;
use crate::backup::target_dir::{LOST_AND_FOUND, MadeDirectories, only};
use crate::disk::directory::{DirectoryLock, sync_entries};
use crate::disk::format::DATA_FILE;
use crate::shared::registry::{Registered, Registration};

/// Where the copy lies until it is complete. Within the data directory, since that may be a mount point, whose neighbours
/// lie on another file system, and since its lock keeps a server from beginning an empty database meanwhile.
const STAGING_DIR: &str = "restoring";
const LOCK_FILE: &str = "engine.lock";
/// What a directory may hold that is restored into: a file system's own, and what an interrupted restore left.
const ALLOWED: [&str; 3] = [LOCK_FILE, STAGING_DIR, LOST_AND_FOUND];

/// A copy that is being put back. Dropped before [`Restore::finish`], it is removed with everything that was made for it;
/// killed, it leaves a directory that holds no database, which the next restore takes.
pub struct Restore {
    dir: PathBuf,
    staging: PathBuf,
    is_finished: bool,
    // Dropped in this order: who opens the lock's file meanwhile is refused.
    made: MadeDirectories,
    _lock: DirectoryLock,
}

impl Restore {
    /// Checks that `backup` holds a whole database of a known format, locks `dir`, which is made if there is none, and
    /// copies the database to [`Restore::staging`]. A directory that a server has open may be given as `backup` too.
    ///
    /// `progress` is called as by [`backup`](crate::backup()).
    ///
    /// # Errors
    /// [`BackupError`]; [`BackupError::NotEmpty`] where `dir` holds anything.
    pub fn begin(backup: &Path, dir: &Path, mut progress: impl FnMut(CopyProgress)) -> Result<Restore, BackupError> {
        // A data directory has a lock, a backup does not: nobody writes to that, and it may lie on a read-only disk.
        let source = Source::open(backup, backup.join(LOCK_FILE).exists())?;
        let (dir, made) = MadeDirectories::make(dir)?;
        // Before the lock too, which leaves a file.
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

    /// The directory of the copy, for [`Engine::open`](crate::Engine::open): what is committed there is part of what is put
    /// back.
    pub fn staging(&self) -> &Path {
        &self.staging
    }

    /// Puts the copy to its place. The engine on [`Restore::staging`] must be closed.
    ///
    /// # Errors
    /// [`BackupError::StillOpen`], [`BackupError::Copy`].
    pub fn finish(mut self) -> Result<(), BackupError> {
        let Registered::New(registration) = Registration::of(&self.staging) else {
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
        // The database is in its place: what is left of the way there does no harm.
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
