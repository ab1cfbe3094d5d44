//! Which job writes a file of one machine: a lock of the system beside the file says so, to all processes. A file is what a path leads to, so
//! links to it are the same; names that differ in case alone are, and what SQLite keeps beside a database belongs to it.
//!
//! Several jobs may write to one SQLite database, which lets one after the other write and keeps a checkpoint of each. Nothing else has
//! two writers.

use std::fs::{File, canonicalize, metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::connect::ConnectError;

/// What SQLite keeps beside a database, by the ends of the names.
const SIDES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Of a job's id in a lock file: it is shown.
const ID_BYTES_MAX: u64 = 1_000;

/// What a job does with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// Appends lines to it.
    Lines,
    /// Opens it as an SQLite database.
    Sqlite,
}

/// A job's right to write a file, as long as this is there.
#[derive(Debug)]
pub struct FileClaim {
    /// `None`: an earlier run of the same job has it, which its lease ends.
    _lock: Option<File>,
}

impl FileClaim {
    /// Claims a file that exists. It waits for the disk, and not for other jobs.
    ///
    /// # Errors
    /// [`ConnectError::Taken`], with the other job's id; [`ConnectError::Target`] if the lock file cannot be written.
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
                let holder = String::from_utf8_lossy(&holder).into_owned();
                let is_ours = holder == job;
                return if is_ours { Ok(FileClaim { _lock: None }) } else { Err(ConnectError::Taken(holder)) };
            }
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).and_then(|()| file.write_all(job.as_bytes())).map_err(failed)?;
        Ok(FileClaim { _lock: Some(file) })
    }
}

/// The lock file of a file, in the same directory under a name that no job can give; and whether the file is by its name one that SQLite
/// keeps beside a database, whose lock that is then.
fn lock_of(path: &Path) -> io::Result<(PathBuf, bool)> {
    // Beside a device or a pipe nothing is written.
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
        // An earlier run of its own is ended by its lease.
        assert!(claim(directory, "a.jsonl", FileUse::Lines, "first").is_ok());
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
        drop((first, second));
        // The other way round, too.
        let _side = claim(directory, "x.sqlite-wal", FileUse::Lines, "third").unwrap();
        let refused = claim(directory, "x.sqlite", FileUse::Sqlite, "first").unwrap_err();
        assert_eq!(refused, "the job \"third\" writes the same file");
    }
}
