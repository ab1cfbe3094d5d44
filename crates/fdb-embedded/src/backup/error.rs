//! Failures of backup and restore.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::failure::advice;
use crate::disk::open_error::OpenError;

/// A failure of a backup or a restore. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// One of the directories cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// The directory holds no database.
    #[error("there is no database in {}", .0.display())]
    NoDatabase(PathBuf),
    /// This process has the database open, and a process cannot open one database twice.
    #[error("this process has the database in {} open: copy it from another process", .0.display())]
    OpenHere(PathBuf),
    /// The copy cannot register as an LMDB reader, which it must beside a writer.
    #[error(
        "no permission to write {}: a copy beside a running server registers itself there; \
         run it as the server's user",
        .0.display()
    )]
    LockFile(PathBuf),
    /// The target directory is not empty; existing files are never overwritten.
    #[error("{} is not empty: give a new or an empty directory", .0.display())]
    NotEmpty(PathBuf),
    /// Another process is making the same copy.
    #[error("another process is writing a backup into {}: wait for it, or give another directory", .0.display())]
    Busy(PathBuf),
    /// A read, write or sync of the copy failed.
    #[error("cannot write {}: {reason}", .path.display())]
    Copy {
        /// The file or directory that was being written.
        path: PathBuf,
        /// The system's or LMDB's message.
        reason: String,
    },
    /// The engine on [`Restore::staging`](crate::Restore::staging) was not closed.
    #[error("the copy in {} is still open in this process", .0.display())]
    StillOpen(PathBuf),
}

impl BackupError {
    pub(crate) fn io(path: &Path, error: &io::Error) -> BackupError {
        BackupError::Copy { path: path.to_owned(), reason: format!("{error}; {}", advice(error)) }
    }
}
