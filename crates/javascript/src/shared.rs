//! Memory shared by the server and its engine processes.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The state of one engine process. The process can write anything to it, so the server does not rely on it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ProcessPage {
    /// The deadline of the call, in microseconds of the monotonic clock.
    pub(crate) until_us: AtomicU64,
    pub(crate) stopped: AtomicU64,
    pub(crate) finished: AtomicUsize,
    pub(crate) counted: AtomicUsize,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Total {
    pub(crate) bytes: AtomicUsize,
}

/// A type that may be shared between processes: any bytes are valid, and all mutability is interior.
///
/// # Safety
/// The type consists of atomic integers.
pub(crate) unsafe trait Share: Sync {}

// SAFETY: they consist of atomic integers.
unsafe impl Share for ProcessPage {}
// SAFETY: as above.
unsafe impl Share for Total {}

#[derive(Debug)]
pub(crate) struct SharedMemory<T: Share> {
    place: NonNull<T>,
}

// SAFETY: it refers to atomic integers that live as long as it.
unsafe impl<T: Share> Send for SharedMemory<T> {}
// SAFETY: as above.
unsafe impl<T: Share> Sync for SharedMemory<T> {}

impl<T: Share> SharedMemory<T> {
    pub(crate) fn create() -> io::Result<(SharedMemory<T>, OwnedFd)> {
        let file = file()?;
        file.set_len(size_of::<T>() as u64)?;
        seal(&file);
        let file = OwnedFd::from(file);
        // SAFETY: the file has the size of a `T`.
        let shared = unsafe { SharedMemory::map(std::os::fd::AsFd::as_fd(&file)) }?;
        Ok((shared, file))
    }

    /// Maps a file of [`SharedMemory::create`].
    ///
    /// # Safety
    /// The file must have the size of a `T` while the mapping lives.
    pub(crate) unsafe fn map(file: BorrowedFd<'_>) -> io::Result<SharedMemory<T>> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: it makes a new mapping.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let place = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMemory { place })
    }
}

impl<T: Share> Deref for SharedMemory<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping lives until this is dropped and is page-aligned, and any bytes are a `T`.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Share> Drop for SharedMemory<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and no reference outlives this.
        unsafe { libc::munmap(self.place.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(target_os = "linux")]
fn file() -> io::Result<File> {
    use std::os::fd::FromRawFd;

    // SAFETY: the name ends with a zero byte.
    let file = unsafe { libc::memfd_create(c"flatbed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and no other code has it.
    Ok(unsafe { File::from_raw_fd(file) })
}

#[cfg(not(target_os = "linux"))]
fn file() -> io::Result<File> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("flatbed-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Seals the size of the file: a process that shortened it would crash the others.
#[cfg(target_os = "linux")]
fn seal(file: &File) {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: it takes numbers. If the kernel refuses, the filter of system calls still prevents a resize.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
}

#[cfg(not(target_os = "linux"))]
fn seal(_file: &File) {}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_one_mapping_stores_the_other_loads() {
        let (one, file) = SharedMemory::<ProcessPage>::create().unwrap();
        // SAFETY: the file was created for this type.
        let other = unsafe { SharedMemory::<ProcessPage>::map(file.as_fd()) }.unwrap();
        one.finished.store(7, Ordering::Relaxed);
        assert_eq!(other.finished.load(Ordering::Relaxed), 7);
        drop(one);
        assert_eq!(other.finished.load(Ordering::Relaxed), 7);
    }
}
