//! The data directory: creating it durably, and locking it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::disk::open_error::OpenError;

/// The file whose lock tells that a process has the directory open.
pub(crate) const LOCK_FILE: &str = "engine.lock";

/// Creates the directory unless it exists. Returns its canonical path.
pub(crate) fn make(dir: &Path) -> Result<PathBuf, OpenError> {
    let failed = |error: io::Error| OpenError::io(dir, &error);
    if fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
        return Err(OpenError::NotADirectory(dir.to_owned()));
    }
    let missing = dir.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).count();
    fs::create_dir_all(dir).map_err(failed)?;
    let dir = dir.canonicalize().map_err(failed)?;
    for parent in dir.ancestors().skip(1).take(missing) {
        sync_entries(parent).map_err(failed)?;
    }
    Ok(dir)
}

/// Syncs a directory's entries, so that created and renamed files survive a power cut.
///
/// # Errors
/// The system's. File systems that cannot sync a directory, and unreadable directories, are ignored.
pub(crate) fn sync_entries(dir: &Path) -> io::Result<()> {
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied) => Ok(()),
        done => done,
    }
}

/// Allocates all blocks of an LMDB file that is written through a memory map. A write to a block that a full disk
/// cannot provide would end the process. The content stays, because a backup may be using the file.
pub(crate) fn reserve(path: &Path, bytes: usize) -> io::Result<()> {
    const BLOCK_BYTES: u64 = 512;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() >= bytes as u64 && metadata.blocks() * BLOCK_BYTES >= bytes as u64 {
        return Ok(());
    }
    allocate(&file, metadata.len(), bytes)
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, _: u64, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    loop {
        // SAFETY: the call takes a descriptor, which `file` keeps open, and touches no memory.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Without `posix_fallocate` only the part past the end gets its blocks.
#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, found_bytes: u64, bytes: usize) -> io::Result<()> {
    let missing = bytes.saturating_sub(usize::try_from(found_bytes).unwrap_or(usize::MAX));
    std::os::unix::fs::FileExt::write_all_at(file, &vec![0; missing], found_bytes)
}

/// Locks a file for this process until the file is closed. Returns false if another process holds the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes a descriptor, which `file` keeps open, and touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

/// The lock on a directory, released when this is dropped or the process ends.
pub(crate) struct DirectoryLock(File);

impl DirectoryLock {
    /// Locks an existing directory.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process holds the lock, else the system's.
    pub(crate) fn take(dir: &Path) -> Result<DirectoryLock, OpenError> {
        let path = dir.join(LOCK_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| OpenError::io(&path, &error))?;
        match try_lock(&file) {
            Ok(true) => Ok(DirectoryLock(file)),
            Ok(false) => Err(OpenError::InUse(dir.to_owned())),
            Err(error) => Err(OpenError::io(&path, &error)),
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // SAFETY: as in `try_lock`. Closing the file unlocks it too, unless a child process inherited the descriptor.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_reserved_file_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock.mdb");
        fs::write(&path, b"a reader").expect("a file");
        reserve(&path, 100_000).expect("room");
        let found = fs::read(&path).expect("the file");
        assert!(found.starts_with(b"a reader\0") && found.len() == 100_000);
        let blocks = fs::metadata(&path).expect("the file").blocks();
        assert!(blocks * 512 >= 100_000, "{blocks} blocks: a full disk could not take a write to each");
        reserve(&path, 50_000).expect("room");
        assert_eq!(fs::metadata(&path).expect("the file").len(), 100_000);
    }
}
