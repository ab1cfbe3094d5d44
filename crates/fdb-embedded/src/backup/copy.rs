//! A consistent copy of a database into one file, by LMDB's own compacting copy, beside a process that serves it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use heed::{CompactionOption, Env, MdbError, WithoutTls};

use crate::backup::error::BackupError;
use crate::disk::directory::try_lock;
use crate::disk::failure::advice;
use crate::disk::format::{self, DATA_FILE, LOCK_FILE};
use crate::disk::open_error::OpenError;
use crate::disk::scan::{self, ScanCounts};
use crate::shared::registry::{DirectoryClaim, Registration};

const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Progress of a check is reported after this many pages.
const PAGES_A_REPORT: u64 = 256;

/// The progress of a copy, which begins with a check of its source, or of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Bytes checked and copied so far.
    pub done_bytes: u64,
    /// Bytes to check and to copy, estimated when it begins.
    pub total_bytes: u64,
}

pub(crate) struct Source {
    pub(crate) dir: PathBuf,
    env: Env<WithoutTls>,
    file: File,
    // Declared after the environment, so that LMDB closes the directory before this process may open it again.
    _registration: Registration,
}

impl Source {
    /// Opens the database in `dir`. `is_shared`: a server may be writing to it.
    pub(crate) fn open(dir: &Path, is_shared: bool) -> Result<Source, BackupError> {
        let no_database = |error: io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => BackupError::NoDatabase(dir.to_owned()),
            _ => OpenError::io(dir, &error).into(),
        };
        let dir = dir.canonicalize().map_err(no_database)?;
        if !dir.join(DATA_FILE).try_exists().map_err(no_database)? {
            return Err(BackupError::NoDatabase(dir));
        }
        let registration = match Registration::of(&dir) {
            DirectoryClaim::New(registration) => registration,
            DirectoryClaim::Open(_) => return Err(BackupError::OpenHere(dir)),
        };
        let lock_path = dir.join(LOCK_FILE);
        let (env, file) = format::open_to_read(&dir, is_shared).map_err(|error| match error {
            OpenError::Permission(path) | OpenError::ReadOnlyFileSystem(path) if path == lock_path => {
                BackupError::LockFile(path)
            }
            error => error.into(),
        })?;
        Ok(Source { dir, env, file, _registration: registration })
    }

    /// Checks all pages and records of the newest state. Calls `progress` on this thread.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] names the first damaged page.
    pub(crate) fn check(&self, progress: &mut dyn FnMut(CopyProgress)) -> Result<ScanCounts, OpenError> {
        format::look(&self.dir, &self.env, &self.file, |meta| {
            let total_bytes = (meta.last_page + 1).saturating_mul(meta.page_bytes);
            let mut report = |pages: u64| {
                if pages.is_multiple_of(PAGES_A_REPORT) {
                    progress(CopyProgress { done_bytes: pages.saturating_mul(meta.page_bytes), total_bytes });
                }
            };
            scan::all(&self.file, meta, &mut report)
        })
    }

    /// Checks the newest state, writes it or a newer one into `file`, the empty file at `path`, and syncs it. Calls
    /// `progress` on this thread about ten times a second. Returns the bytes written.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if a page or record of the source or of the copy is damaged.
    pub(crate) fn copy(
        &self,
        file: &File,
        path: &Path,
        progress: &mut dyn FnMut(CopyProgress),
    ) -> Result<u64, BackupError> {
        let stat = self.env.unnamed_database_stat();
        let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages + 2;
        let used_bytes = pages as u64 * u64::from(stat.page_size);
        let total_bytes = used_bytes.saturating_mul(2);
        // LMDB trusts its pages. A damaged one, or one past the file's end, could end the process during the copy.
        self.check(&mut |checked| {
            progress(CopyProgress { done_bytes: checked.done_bytes.min(used_bytes), total_bytes });
        })?;
        let failed = |reason: String| BackupError::Copy { path: path.to_owned(), reason };
        let io_failed = |error: io::Error| failed(format!("{error}; {}", advice(&error)));
        let mut written = file.try_clone().map_err(io_failed)?;
        let (sender, done) = channel();
        std::thread::scope(|scope| {
            let copy = move || {
                let copied = write_compact(&self.env, &mut written);
                // The receiver outlives this send.
                let _ = sender.send(copied.and_then(|()| Ok(written.sync_all()?)));
            };
            std::thread::Builder::new().name("fdb-copy".into()).spawn_scoped(scope, copy).map_err(io_failed)?;
            loop {
                match done.recv_timeout(REPORT_EVERY) {
                    Ok(Ok(())) => {
                        format::check_whole(&self.dir, file)?;
                        return Ok(file.metadata().map_err(io_failed)?.len());
                    }
                    Ok(Err(heed::Error::Io(error))) => return Err(io_failed(error)),
                    Ok(Err(error)) => return Err(failed(error.to_string())),
                    Err(RecvTimeoutError::Timeout) => {
                        // A failed size query only skips one report.
                        if let Ok(metadata) = file.metadata() {
                            let done_bytes = used_bytes.saturating_add(metadata.len());
                            progress(CopyProgress { done_bytes, total_bytes });
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => return Err(failed("the copying thread broke off".into())),
                }
            }
        })
    }
}

fn write_compact(env: &Env<WithoutTls>, file: &mut File) -> heed::Result<()> {
    match env.copy_to_file(file, CompactionOption::Enabled) {
        // LMDB refuses to compact a file with leaked pages. They do no harm but take space.
        Err(heed::Error::Mdb(MdbError::Incompatible)) => {
            file.set_len(0)?;
            file.rewind()?;
            env.copy_to_file(file, CompactionOption::Disabled)
        }
        done => done,
    }
}

/// Creates an empty file that only its owner may read, or reuses one that an interrupted copy left, and locks it until
/// it is closed. Returns `None` if another process is writing the file or has just renamed it to its final name.
pub(crate) fn take_file(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).read(true).create(true).truncate(false).mode(0o600).open(path)?;
    if !try_lock(&file)? {
        return Ok(None);
    }
    let inode = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path).map(inode) {
        Ok(found) if found == inode(file.metadata()?) => {}
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => return Ok(None),
    }
    file.set_len(0)?;
    Ok(Some(file))
}
