//! Ensures that one job writes a file, across all processes of a machine, with a `flock` on a lock file beside it.
//! Symbolic links are resolved, names are compared without case, and the auxiliary files of SQLite share the lock of
//! their database.
//!
//! Several jobs may share an SQLite database, which serializes their transactions and keeps a checkpoint of each. All
//! other files have one writer. A run is no exception to an earlier run of its own job, whose thread may still write
//! after the run has ended.

use std::fs::{File, canonicalize, metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::connect::ConnectError;

/// The suffixes of the auxiliary files of an SQLite database.
const SIDES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The longest part of the holder's id that is read from a lock file, in bytes, for the error.
const ID_BYTES_MAX: u64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// Appends lines to it.
    Lines,
    /// Opens it as an SQLite database.
    Sqlite,
}

/// A job's right to write a file, released on drop. The target shares it with its threads, so that it lasts as long as
/// any of them writes.
#[derive(Debug)]
pub struct FileClaim {
    _lock: File,
}

impl FileClaim {
    /// Claims an existing file. Blocks on the disk, but never on other jobs.
    ///
    /// # Errors
    /// [`ConnectError::Taken`], with the id of the holder's job, which may be the same; [`ConnectError::Target`] if the lock file cannot be
    /// written.
    pub(crate) fn take(path: &Path, purpose: FileUse, job: &str) -> Result<FileClaim, ConnectError> {
        let failed = |error: io::Error| ConnectError::Target(error.to_string());
        let (place, is_side) = lock_of(path).map_err(failed)?;
        let opened = File::options().create(true).read(true).write(true).truncate(false).open(place);
        let mut file = opened.map_err(failed)?;
        let operation = match purpose {
            FileUse::Sqlite if !is_side => FlockOperation::NonBlockingLockShared,
            FileUse::Sqlite | FileUse::Lines => FlockOperation::NonBlockingLockExclusive,
        };
        match flock(&file, operation) {
            Ok(()) => {}
            Err(error) if error == Errno::WOULDBLOCK => {
                let mut holder = Vec::new();
                file.take(ID_BYTES_MAX).read_to_end(&mut holder).map_err(failed)?;
                return Err(ConnectError::Taken(String::from_utf8_lossy(&holder).into_owned()));
            }
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).and_then(|()| file.write_all(job.as_bytes())).map_err(failed)?;
        Ok(FileClaim { _lock: file })
    }
}

/// Returns the lock file of a file, in the same directory under a name that no job may use, and whether the file is an
/// auxiliary file of an SQLite database by its name. It then shares the lock of the database.
fn lock_of(path: &Path) -> io::Result<(PathBuf, bool)> {
    // A link to a device or a pipe is not resolved: no lock file may be created beside the target.
    let real = if metadata(path)?.is_file() { canonicalize(path)? } else { path.to_owned() };
    let name = real.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut base = name.as_str();
    while let Some(shorter) = SIDES.iter().find_map(|side| base.strip_suffix(side)).filter(|base| !base.is_empty()) {
        base = shorter;
    }
    Ok((real.with_file_name(format!(".{base}.lock")), base.len() < name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(directory: &Path, name: &str, purpose: FileUse, job: &str) -> Result<FileClaim, String> {
        let path = directory.join(name);
        File::options().create(true).append(true).open(&path).unwrap();
        FileClaim::take(&path, purpose, job).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_has_one_writer_by_whichever_name() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let first = claim(directory, "a.jsonl", FileUse::Lines, "first").unwrap();
        std::os::unix::fs::symlink("a.jsonl", directory.join("link")).unwrap();
        let others = [
            ("a.jsonl", FileUse::Lines),
            ("a.jsonl", FileUse::Sqlite),
            ("link", FileUse::Lines),
            ("A.JSONL", FileUse::Lines),
            ("a.jsonl-wal", FileUse::Lines),
        ];
        for (name, purpose) in others {
            let refused = claim(directory, name, purpose, "second").unwrap_err();
            assert_eq!(refused, "the job \"first\" writes the same file", "{name}");
        }
        let _other = claim(directory, "b.jsonl", FileUse::Lines, "second").unwrap();
        // An earlier run of the same job, or a job of the same id at another server, may still write.
        assert!(claim(directory, "a.jsonl", FileUse::Lines, "first").is_err());
        drop(first);
        assert!(claim(directory, "link", FileUse::Lines, "second").is_ok());
    }

    #[test]
    fn jobs_share_a_database_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let first = claim(directory, "x.sqlite", FileUse::Sqlite, "first").unwrap();
        for (name, purpose) in [
            ("x.sqlite", FileUse::Lines),
            ("x.sqlite-wal", FileUse::Lines),
            ("x.sqlite-shm", FileUse::Sqlite),
            ("x.sqlite-journal", FileUse::Sqlite),
            ("x.sqlite-wal-journal", FileUse::Lines),
        ] {
            let refused = claim(directory, name, purpose, "second").unwrap_err();
            assert_eq!(refused, "the job \"first\" writes the same file", "{name}");
        }
        let second = claim(directory, "x.sqlite", FileUse::Sqlite, "second").unwrap();
        // The lock file has the id of the latest claimant, which has no right to other uses either.
        assert!(claim(directory, "x.sqlite", FileUse::Lines, "second").is_err());
        drop((first, second));
        // A claim of an auxiliary file also excludes its database.
        let _side = claim(directory, "x.sqlite-wal", FileUse::Lines, "third").unwrap();
        let refused = claim(directory, "x.sqlite", FileUse::Sqlite, "first").unwrap_err();
        assert_eq!(refused, "the job \"third\" writes the same file");
    }
}
