//! The data directory: whose it is, in which format, and who has it open.
//!
//! `DIR/data.mdb` and `DIR/lock.mdb` are LMDB's, `DIR/engine.lock` holds the lock of the process that has the directory
//! open. Two records of the engine stand in the database: `format`, a version number (u32 little-endian), and `ceiling`
//! (i64 little-endian), a version above all that were given to commits; the next run begins there. It is written ahead
//! every ten seconds, so most commits need not write it.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use heed::types::Bytes;
use heed::{AnyTls, CommitOrAbort, Env, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};

use crate::clears::Clears;
use crate::keys::LMDB_KEY_BYTES_MAX;
use crate::store::{Store, StoreError, StoreResult};

/// The format that this engine writes.
const FORMAT_VERSION: u32 = 2;
const FORMAT: &str = "format";
const CEILING: &str = "ceiling";
/// Address space reserved for the file, tried from the largest on; it costs neither memory nor disk.
const MAP_BYTES: [usize; 6] = [1 << 40, 1 << 38, 1 << 36, 1 << 34, 1 << 32, 1 << 30];
/// LMDB read transactions at a time: one a version that is being read.
const READERS_MAX: u32 = 16_384;

/// Why an engine could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory open.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The directory or a file in it may not be read or written.
    #[error("no permission to read and write the data directory {}", .0.display())]
    Permission(PathBuf),
    /// A newer program wrote the directory.
    #[error("the data directory {} has format {found}; this program knows formats up to {known}", .dir.display())]
    NewerFormat {
        /// The directory.
        dir: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// The directory holds a database of another program, or none that can be read.
    #[error("{} does not hold a database of this program: {reason}", .dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The data file is shorter than its own records say.
    #[error("the data file in {} is cut off: {found_bytes} bytes, {expected_bytes} expected", .dir.display())]
    Truncated {
        /// The directory.
        dir: PathBuf,
        /// The file's size.
        found_bytes: u64,
        /// The least size that the file must have.
        expected_bytes: u64,
    },
    /// Any other failure below.
    #[error("cannot open the data directory {}: {reason}", .dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's or LMDB's message.
        reason: String,
    },
}

impl OpenError {
    /// The FoundationDB error code that is nearest.
    pub fn code(&self) -> i32 {
        match self {
            OpenError::InUse(_) => 1529,
            OpenError::Permission(_) => 1514,
            OpenError::NewerFormat { .. } => 2100,
            OpenError::NotOurs { .. } | OpenError::Truncated { .. } => 1522,
            OpenError::Io { .. } => 1510,
        }
    }

    pub(crate) fn io(dir: &Path, error: &std::io::Error) -> OpenError {
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => OpenError::Permission(dir.to_owned()),
            _ => OpenError::Io { dir: dir.to_owned(), reason: error.to_string() },
        }
    }

    fn lmdb(dir: &Path, error: heed::Error) -> OpenError {
        match error {
            heed::Error::Io(error) => OpenError::io(dir, &error),
            heed::Error::Mdb(heed::MdbError::Invalid | heed::MdbError::VersionMismatch | heed::MdbError::Corrupted) => {
                OpenError::NotOurs { dir: dir.to_owned(), reason: error.to_string() }
            }
            error => OpenError::Io { dir: dir.to_owned(), reason: error.to_string() },
        }
    }

    fn store(dir: &Path, error: StoreError) -> OpenError {
        match error {
            StoreError::Lmdb(error) => OpenError::lmdb(dir, error),
            error @ (StoreError::Bucket | StoreError::Clear) => {
                OpenError::NotOurs { dir: dir.to_owned(), reason: error.to_string() }
            }
        }
    }
}

/// The lock on a directory; it ends with the process or when this is dropped.
pub(crate) struct DirectoryLock(File);

impl DirectoryLock {
    /// Creates the directory if there is none, and locks it.
    pub(crate) fn take(dir: &Path) -> Result<DirectoryLock, OpenError> {
        std::fs::create_dir_all(dir).map_err(|error| OpenError::io(dir, &error))?;
        let path = dir.join("engine.lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| OpenError::io(dir, &error))?;
        // SAFETY: flock takes a descriptor, which `file` keeps open, and touches no memory.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(match error.kind() {
                ErrorKind::WouldBlock => OpenError::InUse(dir.to_owned()),
                _ => OpenError::io(dir, &error),
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

/// An opened data file, and the version that this run begins at.
pub(crate) struct Opened {
    pub(crate) env: Env<WithoutTls>,
    pub(crate) store: Store,
    pub(crate) start_version: i64,
    pub(crate) clears: Clears,
}

/// Opens the data file of a locked directory, or makes it.
pub(crate) fn open(dir: &Path, map_bytes: Option<usize>) -> Result<Opened, OpenError> {
    check_header(dir)?;
    let env = open_env(dir, map_bytes)?;
    if env.max_key_size() != LMDB_KEY_BYTES_MAX {
        let reason = format!("LMDB was built for keys of {} bytes", env.max_key_size());
        return Err(OpenError::Io { dir: dir.to_owned(), reason });
    }
    check_length(dir, &env)?;
    let txn = env.write_txn().map_err(|error| OpenError::lmdb(dir, error))?;
    let created = env.create_databases_and_commit(txn, |opener, txn| {
        opener.create_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    });
    let db = created.map_err(|error: heed::Error| OpenError::lmdb(dir, error))?.commit();
    let no_database = || OpenError::Io { dir: dir.to_owned(), reason: "LMDB made no database".into() };
    let store = Store::new(db.ok_or_else(no_database)?);
    let mut txn = env.write_txn().map_err(|error| OpenError::lmdb(dir, error))?;
    let start_version = check_records(dir, &store, &mut txn)?;
    let clears = store.clears(&txn).map_err(|error| OpenError::store(dir, error))?;
    txn.commit().map_err(|error| OpenError::lmdb(dir, error))?;
    Ok(Opened { env: env.clone(), store, start_version, clears })
}

fn open_env(dir: &Path, map_bytes: Option<usize>) -> Result<Env<WithoutTls>, OpenError> {
    let mut last = None;
    for map_bytes in map_bytes.into_iter().chain(MAP_BYTES) {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_readers(READERS_MAX);
        // SAFETY: the directory is locked, so no other process changes the file, and LMDB's own lock file is used.
        match unsafe { options.open(dir) } {
            Ok(env) => return Ok(env),
            // Too little address space: try a smaller map.
            Err(heed::Error::Io(error))
                if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EFBIG | libc::EINVAL)) =>
            {
                last = Some(heed::Error::Io(error));
            }
            Err(error) => return Err(OpenError::lmdb(dir, error)),
        }
    }
    Err(last.map_or_else(
        || OpenError::Io { dir: dir.to_owned(), reason: "no map size fits".into() },
        |error| OpenError::lmdb(dir, error),
    ))
}

/// A data file that is not LMDB's must not reach LMDB.
fn check_header(dir: &Path) -> Result<(), OpenError> {
    let mut head = [0; 24];
    let mut file = match File::open(dir.join("data.mdb")) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OpenError::io(dir, &error)),
    };
    let len = file.metadata().map_err(|error| OpenError::io(dir, &error))?.len();
    if len == 0 {
        return Ok(());
    }
    let read = std::io::Read::read_exact(&mut file, &mut head);
    // LMDB's meta page: a page header of 16 bytes, then the magic number.
    if read.is_err() || head[16..20] != 0xBEEF_C0DE_u32.to_ne_bytes() {
        let reason = "data.mdb is not an LMDB file".to_owned();
        return Err(OpenError::NotOurs { dir: dir.to_owned(), reason });
    }
    Ok(())
}

/// LMDB reads through a memory map: a page past the file's end would end the process.
fn check_length(dir: &Path, env: &Env<WithoutTls>) -> Result<(), OpenError> {
    let page_bytes = u64::from(env.unnamed_database_stat().page_size);
    let expected_bytes = (env.info().last_page_number as u64 + 1) * page_bytes;
    let found_bytes = env.real_disk_size().map_err(|error| OpenError::lmdb(dir, error))?;
    if found_bytes < expected_bytes {
        return Err(OpenError::Truncated { dir: dir.to_owned(), found_bytes, expected_bytes });
    }
    Ok(())
}

/// Reads or writes the engine's records; returns the version to begin at.
fn check_records(dir: &Path, store: &Store, txn: &mut RwTxn<'_>) -> Result<i64, OpenError> {
    let failed = |error| OpenError::store(dir, error);
    let not_ours = |reason: &str| OpenError::NotOurs { dir: dir.to_owned(), reason: reason.to_owned() };
    match number::<4>(store, txn, FORMAT).map_err(failed)?.map(u32::from_le_bytes) {
        Some(0) => return Err(not_ours("format 0")),
        Some(found) if found > FORMAT_VERSION => {
            return Err(OpenError::NewerFormat { dir: dir.to_owned(), found, known: FORMAT_VERSION });
        }
        Some(FORMAT_VERSION) => {}
        // An older program would take what a pending clear hides as there.
        Some(_) => store.put_meta(txn, FORMAT, &FORMAT_VERSION.to_le_bytes()).map_err(failed)?,
        None if store.is_empty(txn).map_err(failed)? => {
            store.put_meta(txn, FORMAT, &FORMAT_VERSION.to_le_bytes()).map_err(failed)?;
        }
        None => return Err(not_ours("there is no format record")),
    }
    let ceiling = number::<8>(store, txn, CEILING).map_err(failed)?.map_or(0, i64::from_le_bytes);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = i64::try_from(clock.as_micros()).unwrap_or(i64::MAX / 2);
    Ok(clock.max(ceiling.saturating_add(1)))
}

fn number<const N: usize>(store: &Store, txn: &RoTxn<'_, AnyTls>, name: &str) -> StoreResult<Option<[u8; N]>> {
    Ok(store.meta(txn, name)?.and_then(|bytes| bytes.try_into().ok()))
}

/// Writes the version that the next run begins above.
pub(crate) fn put_ceiling(store: &Store, txn: &mut RwTxn<'_>, ceiling: i64) -> StoreResult<()> {
    store.put_meta(txn, CEILING, &ceiling.to_le_bytes())
}
