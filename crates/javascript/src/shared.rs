//! Memory shared by the server and its engine processes.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The state of one engine process. The process writes it as the server does: nothing in it may be relied on.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Page {
    /// The deadline of the call, in microseconds of the monotonic clock.
    pub(crate) until_us: AtomicU64,
    /// The last call that is to stop, by number.
    pub(crate) stopped: AtomicU64,
    /// Items of the call that are done: documents mapped, writes judged.
    pub(crate) finished: AtomicUsize,
    /// Bytes of the process's engines that are counted in [`Total`].
    pub(crate) counted: AtomicUsize,
}

/// Bytes of the engines of all processes.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Total {
    pub(crate) bytes: AtomicUsize,
}

/// A type that may be shared: any bytes are one, and it has interior mutability alone.
///
/// # Safety
/// It consists of atomic integers.
pub(crate) unsafe trait Share: Sync {}

// SAFETY: they consist of atomic integers.
unsafe impl Share for Page {}
// SAFETY: as above.
unsafe impl Share for Total {}

/// A shared mapping of one `T`.
#[derive(Debug)]
pub(crate) struct Shared<T: Share> {
    place: NonNull<T>,
}

// SAFETY: it is a reference to atomic integers that live as long as it.
unsafe impl<T: Share> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Share> Sync for Shared<T> {}

impl<T: Share> Shared<T> {
    /// Makes one of zeros, and the file by which a process maps it too.
    pub(crate) fn create() -> io::Result<(Shared<T>, OwnedFd)> {
        let file = file()?;
        file.set_len(size_of::<T>() as u64)?;
        seal(&file);
        let file = OwnedFd::from(file);
        // SAFETY: the file has the size of a `T`.
        let shared = unsafe { Shared::map(std::os::fd::AsFd::as_fd(&file)) }?;
        Ok((shared, file))
    }

    /// Maps what [`Shared::create`] has made.
    ///
    /// # Safety
    /// The file has the size of a `T` for as long as the mapping lives.
    pub(crate) unsafe fn map(file: BorrowedFd<'_>) -> io::Result<Shared<T>> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: it makes a mapping where there was none.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let place = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Shared { place })
    }
}

impl<T: Share> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is there until this is dropped, begins at a page, and any bytes are a `T`.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Share> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and no reference outlives this.
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
    // SAFETY: it was opened just now, and nothing else has it.
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

/// No process can shorten it: the others would die of looking at it.
#[cfg(target_os = "linux")]
fn seal(file: &File) {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: it takes numbers alone. Where the kernel refuses, the process cannot resize it either (its system calls are filtered).
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
        let (one, file) = Shared::<Page>::create().unwrap();
        // SAFETY: the file was made for it.
        let other = unsafe { Shared::<Page>::map(file.as_fd()) }.unwrap();
        one.finished.store(7, Ordering::Relaxed);
        assert_eq!(other.finished.load(Ordering::Relaxed), 7);
        drop(one);
        assert_eq!(other.finished.load(Ordering::Relaxed), 7);
    }
}
