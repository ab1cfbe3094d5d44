//! Copies of a database: made beside the process that serves it, and put back into a new directory.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::backup::copy::{CopyProgress, Source, take_file};
use crate::disk::directory::sync_entries;
use crate::disk::failure::advice;
use crate::disk::format::DATA_FILE;
use crate::disk::open_error::OpenError;

/// What the copy is called until it is complete.
const PARTIAL_FILE: &str = "data.mdb.partial";
/// What a new file system has at its root.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

/// Why a copy was not made, or not put back. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// One of the directories cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// Nothing to copy.
    #[error("there is no database in {}", .0.display())]
    NoDatabase(PathBuf),
    /// A process cannot have one database open twice.
    #[error("this process has the database in {} open: copy it from another process", .0.display())]
    OpenHere(PathBuf),
    /// A reader beside a writer must be able to register.
    #[error(
        "no permission to write {}: a copy beside a running server registers itself there; \
         run it as the server's user",
        .0.display()
    )]
    LockFile(PathBuf),
    /// The directory to write into holds something; nothing is ever overwritten.
    #[error("{} is not empty: give a new or an empty directory", .0.display())]
    NotEmpty(PathBuf),
    /// The same copy is being made by another process.
    #[error("another process is writing a backup into {}: wait for it, or give another directory", .0.display())]
    Busy(PathBuf),
    /// Reading, writing or syncing failed on the way.
    #[error("cannot write {}: {reason}", .path.display())]
    Copy {
        /// The file or directory that was being written.
        path: PathBuf,
        /// The system's or LMDB's message.
        reason: String,
    },
    /// The engine on a copy that is being put back was not closed.
    #[error("the copy in {} is still open in this process", .0.display())]
    StillOpen(PathBuf),
}

impl BackupError {
    pub(crate) fn io(path: &Path, error: &io::Error) -> BackupError {
        BackupError::Copy { path: path.to_owned(), reason: format!("{error}; {}", advice(error)) }
    }
}

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

/// Directories that were made on the way to one, the innermost first. Removed when dropped, as far as they are empty.
pub(crate) struct MadeDirectories(Vec<PathBuf>);

impl MadeDirectories {
    /// Makes a directory that only its owner may enter, unless it is there; its canonical path.
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

    /// Lets them stay, and makes their entries durable.
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
        // One that is not empty belongs to others by now, and so do those around it.
        let _ = self.0.iter().try_for_each(fs::remove_dir);
    }
}

/// Refuses a directory that holds anything but `allowed`.
pub(crate) fn only(dir: &Path, allowed: &[&str]) -> Result<(), BackupError> {
    for entry in fs::read_dir(dir).map_err(|error| OpenError::io(dir, &error))? {
        let name = entry.map_err(|error| OpenError::io(dir, &error))?.file_name();
        if !allowed.iter().any(|allowed| name == *allowed) {
            return Err(BackupError::NotEmpty(dir.to_owned()));
        }
    }
    Ok(())
}
