//! Failures to open a directory, worded for the operator.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::disk::failure::{advice, damaged};
use crate::disk::store::StoreError;

/// A failure to open an engine. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory open.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// A process with the same process id, in another container, has the directory open.
    #[error("a process with the same process id has {} open: run this in that process's container", .0.display())]
    SameProcessId(PathBuf),
    /// The directory or a file in it may not be read or written.
    #[error("no permission to read and write {}: give it to the user that this process runs as", .0.display())]
    Permission(PathBuf),
    /// The file system of the directory is read-only.
    #[error("{} is on a read-only file system: mount it for writing, or give another directory", .0.display())]
    ReadOnlyFileSystem(PathBuf),
    /// The path is not a directory.
    #[error("{} is not a directory: give the path of one, or of a new one", .0.display())]
    NotADirectory(PathBuf),
    /// A newer program wrote the directory.
    #[error(
        "the data directory {} has format {found}, and this program knows formats up to {known}: use a newer program",
        .dir.display()
    )]
    NewerFormat {
        /// The directory.
        dir: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// An older program wrote the directory, in a format that this one does not read.
    #[error(
        "the data directory {} has format {found}, and this program reads only {known}: dump its databases with the program that \
         wrote it, and load them into a new directory",
        .dir.display()
    )]
    OlderFormat {
        /// The directory.
        dir: PathBuf,
        /// The format found.
        found: u32,
        /// The one known.
        known: u32,
    },
    /// The directory holds a database of another program.
    #[error("{} does not hold a database of this program ({reason}): give another directory", .dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// The difference found.
        reason: String,
    },
    /// The data file is inconsistent.
    #[error("{}", damaged(.dir, .reason))]
    Damaged {
        /// The directory.
        dir: PathBuf,
        /// The inconsistency found.
        reason: String,
    },
    /// The data file is shorter than its records say.
    #[error(
        "the data file in {} is cut off ({found_bytes} bytes, {expected_bytes} expected): restore a backup",
        .dir.display()
    )]
    Truncated {
        /// The directory.
        dir: PathBuf,
        /// The file's size.
        found_bytes: u64,
        /// The end of the last page that the records name, in bytes.
        expected_bytes: u64,
    },
    /// The process cannot reserve the address space of the memory map.
    #[error("no address space for the data file in {}: allow the process more (ulimit -v)", .0.display())]
    AddressSpace(PathBuf),
    /// Any other failure of the system or LMDB.
    #[error("cannot open {}: {reason}", .path.display())]
    Io {
        /// The directory, or a file in it.
        path: PathBuf,
        /// The system's or LMDB's message.
        reason: String,
    },
}

impl OpenError {
    /// The closest FoundationDB error code.
    pub fn code(&self) -> i32 {
        match self {
            OpenError::InUse(_) | OpenError::SameProcessId(_) => 1529,
            OpenError::Permission(_) | OpenError::ReadOnlyFileSystem(_) => 1514,
            OpenError::NotADirectory(_) => 1511,
            OpenError::NewerFormat { .. } | OpenError::OlderFormat { .. } => 2100,
            OpenError::NotOurs { .. } | OpenError::Damaged { .. } | OpenError::Truncated { .. } => 1522,
            OpenError::AddressSpace(_) | OpenError::Io { .. } => 1510,
        }
    }

    /// Wraps a system error on `path`: the directory, or a file in it.
    pub(crate) fn io(path: &Path, error: &io::Error) -> OpenError {
        match error.kind() {
            ErrorKind::PermissionDenied => OpenError::Permission(path.to_owned()),
            ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnlyFileSystem(path.to_owned()),
            ErrorKind::NotADirectory => OpenError::NotADirectory(path.to_owned()),
            _ => OpenError::Io { path: path.to_owned(), reason: format!("{error}; {}", advice(error)) },
        }
    }

    pub(crate) fn lmdb(dir: &Path, error: heed::Error) -> OpenError {
        match error {
            heed::Error::Io(error) => OpenError::io(dir, &error),
            heed::Error::Mdb(
                heed::MdbError::Invalid
                | heed::MdbError::VersionMismatch
                | heed::MdbError::Corrupted
                | heed::MdbError::PageNotFound,
            ) => OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() },
            error => OpenError::Io { path: dir.to_owned(), reason: error.to_string() },
        }
    }

    pub(crate) fn store(dir: &Path, error: StoreError) -> OpenError {
        match error {
            StoreError::Lmdb(error) => OpenError::lmdb(dir, error),
            error => OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() },
        }
    }
}
