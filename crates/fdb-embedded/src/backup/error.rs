//! Why a copy was not made, or not put back.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::failure::advice;
use crate::disk::open_error::OpenError;

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
