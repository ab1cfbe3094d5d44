//! The failure that ends all commits, of a write or of damage that a read finds: its cause, its listeners, and the
//! advice to the operator.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use heed::MdbError;

use crate::base::lock::lock;
use crate::disk::store::StoreError;

type Listener = Box<dyn FnOnce(&str) + Send>;

#[derive(Default)]
struct FailureState {
    reason: Option<String>,
    listeners: Vec<Listener>,
}

/// The first failure of the disk; reopening the directory clears it.
pub(crate) struct DiskFailure {
    dir: PathBuf,
    is_failed: AtomicBool,
    state: Mutex<FailureState>,
}

impl DiskFailure {
    pub(crate) fn new(dir: PathBuf) -> DiskFailure {
        DiskFailure { dir, is_failed: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Records a read's error if the data file is damaged. Commits to a file that must be replaced would be lost.
    pub(crate) fn note_read(&self, error: &StoreError) {
        if error.is_damage() {
            self.fail(describe(error, &self.dir));
        }
    }

    /// Records damage that a check of the data file has found.
    pub(crate) fn note_damage(&self, reason: &str) {
        self.fail(damaged(&self.dir, reason));
    }

    /// Records the error of a write.
    pub(crate) fn note_write(&self, error: &StoreError) {
        self.fail(describe(error, &self.dir));
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
    }

    pub(crate) fn reason(&self) -> Option<String> {
        lock(&self.state).reason.clone()
    }

    /// Calls every listener on this thread. Later failures are ignored.
    pub(crate) fn fail(&self, reason: String) {
        let mut state = lock(&self.state);
        if state.reason.is_some() {
            return;
        }
        state.reason = Some(reason.clone());
        self.is_failed.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        listeners.into_iter().for_each(|listener| listener(&reason));
    }

    /// Calls `listener` with the reason: at once if the disk has failed, else on failure.
    pub(crate) fn listen(&self, listener: Listener) {
        let mut state = lock(&self.state);
        match state.reason.clone() {
            None => state.listeners.push(listener),
            Some(reason) => {
                drop(state);
                listener(&reason);
            }
        }
    }
}

/// Describes what happened to the data file in `dir`, and what to do before reopening the directory.
fn describe(error: &StoreError, dir: &Path) -> String {
    if error.is_damage() {
        return damaged(dir, &error.to_string());
    }
    let (what, advice) = match error {
        StoreError::Lmdb(heed::Error::Io(error)) => {
            let cause = cause(error, dir);
            (cause.as_ref().unwrap_or(error).to_string(), advice(cause.as_ref().unwrap_or(error)))
        }
        StoreError::Lmdb(heed::Error::Mdb(error @ MdbError::MapFull)) => (
            error.to_string(),
            "the data file fills the address space that was reserved for it: allow the process more (ulimit -v)",
        ),
        error => (error.to_string(), "the data file may be damaged: keep a copy of it"),
    };
    format!("writing to the data file failed: {what}; {advice}")
}

/// Names the damaged data file of a directory, and says what to do.
pub(crate) fn damaged(dir: &Path, reason: &str) -> String {
    format!("{} is damaged ({reason}): keep a copy of it, and restore a backup", dir.join("data.mdb").display())
}

/// Finds the cause that the system did not report: a write that fits in part is written in part without an error, and
/// LMDB turns that into an I/O error.
fn cause(error: &io::Error, dir: &Path) -> Option<io::Error> {
    /// Less free space than this counts as none.
    const LEAST_BYTES: u64 = 1 << 20;
    if error.raw_os_error() != Some(libc::EIO) {
        return None;
    }
    let file_bytes = dir.join("data.mdb").metadata().map_or(0, |data| data.len());
    if file_size_limit().is_some_and(|limit| file_bytes.saturating_add(LEAST_BYTES) > limit) {
        return Some(io::Error::from_raw_os_error(libc::EFBIG));
    }
    free_bytes(dir).is_some_and(|free| free < LEAST_BYTES).then(|| io::Error::from_raw_os_error(libc::ENOSPC))
}

fn file_size_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes into the struct that it is given.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The bytes that this user may still write on the directory's file system.
fn free_bytes(dir: &Path) -> Option<u64> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the call fills the struct if it returns 0.
    let found = unsafe { (libc::statvfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init()) }?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => "make room on the disk",
        Some(libc::EDQUOT) => "raise the quota of this user, or make room",
        Some(libc::EFBIG) => "raise the limit on the size of files (ulimit -f)",
        Some(libc::ENOMEM) => "allow the process more memory or address space (ulimit -v)",
        Some(libc::EMFILE | libc::ENFILE) => "allow the process more open files (ulimit -n)",
        Some(libc::EIO) => "look at the system's log: the disk may be failing",
        _ => "look at the system's log",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_reason_stays_and_everyone_hears_of_it_once() {
        let (failure, heard) = (DiskFailure::new(PathBuf::new()), Arc::new(Mutex::new(Vec::new())));
        let listener = |heard: &Arc<Mutex<Vec<String>>>| -> Listener {
            let heard = Arc::clone(heard);
            Box::new(move |reason| lock(&heard).push(reason.to_owned()))
        };
        failure.listen(listener(&heard));
        assert!(!failure.is_failed() && lock(&heard).is_empty());
        failure.fail("first".into());
        failure.fail("second".into());
        assert!(failure.is_failed());
        failure.listen(listener(&heard));
        assert_eq!((failure.reason().as_deref(), lock(&heard).clone()), (Some("first"), vec!["first".to_owned(); 2]));
    }

    #[test]
    fn reasons_say_what_to_do() {
        let of =
            |code| describe(&StoreError::Lmdb(heed::Error::Io(io::Error::from_raw_os_error(code))), Path::new("."));
        assert!(of(libc::ENOSPC).contains("No space left on device") && of(libc::ENOSPC).contains("make room"));
        assert!(of(libc::EFBIG).contains("ulimit -f"));
        assert!(describe(&StoreError::Lmdb(heed::Error::Mdb(MdbError::MapFull)), Path::new(".")).contains("ulimit -v"));
        for damage in
            [StoreError::Bucket, StoreError::Record, StoreError::Lmdb(heed::Error::Mdb(MdbError::PageNotFound))]
        {
            let text = describe(&damage, Path::new("/data"));
            assert!(text.contains("/data/data.mdb is damaged") && text.contains("restore a backup"), "{text}");
        }
        let failure = DiskFailure::new(PathBuf::from("/data"));
        failure.note_read(&StoreError::Lmdb(heed::Error::Io(io::Error::from_raw_os_error(libc::ENOMEM))));
        assert!(!failure.is_failed(), "a read without memory is no damage");
        failure.note_read(&StoreError::Record);
        assert!(failure.reason().is_some_and(|reason| reason.contains("does not match its checksum")));
    }
}
