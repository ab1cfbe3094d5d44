//! The data directory itself: made so that a power cut does not take it back, and locked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::open_error::OpenError;

/// Makes the directory if there is none; its canonical path.
///
/// # Errors
/// [`OpenError`].
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

/// Writes a directory's entries to the disk: files made or renamed in it outlive a power cut from then on.
///
/// # Errors
/// The system's; file systems that cannot do it, and directories that may not be read, are let through.
pub(crate) fn sync_entries(dir: &Path) -> io::Result<()> {
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied) => Ok(()),
        done => done,
    }
}

/// Gives a file of LMDB's that is written through a memory map all its blocks. A write to a block that a full disk does
/// not have would end the process.
///
/// # Errors
/// The system's.
pub(crate) fn reserve(path: &Path, bytes: usize) -> io::Result<()> {
    const BLOCK_BYTES: u64 = 512;
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() >= bytes as u64 && metadata.blocks() * BLOCK_BYTES >= bytes as u64 {
        return Ok(());
    }
    file.write_all(&vec![0; bytes])
}

/// The lock on a directory; it ends with the process or when this is dropped.
pub(crate) struct DirectoryLock(File);

impl DirectoryLock {
    /// Locks a directory that is there.
    ///
    /// # Errors
    /// [`OpenError::InUse`] where another process has it, else that of the system.
    pub(crate) fn take(dir: &Path) -> Result<DirectoryLock, OpenError> {
        let path = dir.join("engine.lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| OpenError::io(&path, &error))?;
        // SAFETY: flock takes a descriptor, which `file` keeps open, and touches no memory.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.kind() {
                ErrorKind::WouldBlock => OpenError::InUse(dir.to_owned()),
                _ => OpenError::io(&path, &error),
            });
        }
        Ok(DirectoryLock(file))
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // SAFETY: as above. Closing the file would unlock it too, unless a child process inherited the descriptor.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}
