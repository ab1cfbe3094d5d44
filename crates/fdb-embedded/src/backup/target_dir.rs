//! The directory that a copy is written into.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::backup::error::BackupError;
use crate::disk::directory::sync_entries;
use crate::disk::open_error::OpenError;

/// The directory that a new file system has at its root.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

/// Directories created for one path, the innermost first. Dropping this removes those that are empty.
pub(crate) struct MadeDirectories(Vec<PathBuf>);

impl MadeDirectories {
    /// Creates a directory that only its owner may enter, unless it exists. Returns its canonical path.
    pub(crate) fn make(dir: &Path) -> Result<(PathBuf, MadeDirectories), OpenError> {
        let failed = |error: io::Error| OpenError::io(dir, &error);
        if fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
            return Err(OpenError::NotADirectory(dir.to_owned()));
        }
        let missing = dir.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let made = MadeDirectories(missing.map(Path::to_owned).collect());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        Ok((dir.canonicalize().map_err(failed)?, made))
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Keeps the directories and syncs their entries.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        for dir in std::mem::take(&mut self.0) {
            match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => sync_entries(parent)?,
                _ => sync_entries(Path::new("."))?,
            }
        }
        Ok(())
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        // A directory that is not empty is in use by others, and so are its parents.
        let _ = self.0.iter().try_for_each(fs::remove_dir);
    }
}

/// Refuses a directory that holds entries other than `allowed`.
pub(crate) fn only(dir: &Path, allowed: &[&str]) -> Result<(), BackupError> {
    for entry in fs::read_dir(dir).map_err(|error| OpenError::io(dir, &error))? {
        let name = entry.map_err(|error| OpenError::io(dir, &error))?.file_name();
        if !allowed.iter().any(|allowed| name == *allowed) {
            return Err(BackupError::NotEmpty(dir.to_owned()));
        }
    }
    Ok(())
}
