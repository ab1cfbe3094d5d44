//! The data file: creating, checking and opening it; its format.
//!
//! `DIR/data.mdb` and `DIR/lock.mdb` are LMDB's. `DIR/engine.lock` holds the lock of the process that has the
//! directory open. Every record ends with its checksum (`sealed`). The database has two records of the engine:
//! `format`, a version number (u32 little-endian), which had no checksum in formats 1 and 2, and `ceiling` (i64
//! little-endian), a version above all versions of commits, where the next run begins. The ceiling is written up to ten
//! seconds ahead of the clock, so most commits need not write it.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heed::types::Bytes;
use heed::{AnyTls, CommitOrAbort, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};

use crate::disk::clears::Clears;
use crate::disk::data_file::{self, BadFile, Meta, NO_PAGE};
use crate::disk::directory::{reserve, sync_entries};
use crate::disk::keys::LMDB_KEY_BYTES_MAX;
use crate::disk::open_error::OpenError;
use crate::disk::scan::{self, FORMAT_KEY};
use crate::disk::sealed::unseal;
use crate::disk::store::{Store, StoreError, StoreResult};

/// The format that this engine reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 3;
const FORMAT: &str = "format";
const CEILING: &str = "ceiling";
const CEILING_KEY: &[u8] = b"\0ceiling";
/// Sizes of the memory map, tried in this order. A map costs address space, but neither memory nor disk.
const MAP_BYTES: [usize; 6] = [1 << 40, 1 << 38, 1 << 36, 1 << 34, 1 << 32, 1 << 30];
/// Concurrent LMDB read transactions: one for each version being read.
const READERS_MAX: u32 = 16_384;
/// 64 bytes for each reader, and the table's header.
const LOCK_FILE_BYTES: usize = (READERS_MAX as usize + 64) * 64;
pub(crate) const DATA_FILE: &str = "data.mdb";
pub(crate) const LOCK_FILE: &str = "lock.mdb";
/// The directory in which a new data file is created; removed once the directory is open.
const NEW_DIR: &str = "data.new";
/// The map size of a new file, enough for its first records.
const NEW_MAP_BYTES: usize = 1 << 20;
/// The number of failed reads after which a page counts as damaged. A commit that replaces the meta pages meanwhile can
/// make one read of a sound page fail.
const LOOKS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionStart {
    /// Above every commit version and not below any read version of an earlier run.
    pub(crate) version: i64,
    /// The clock at the start, in microseconds.
    pub(crate) clock: i64,
}

pub(crate) struct OpenDataFile {
    pub(crate) env: Env<WithoutTls>,
    pub(crate) store: Store,
    pub(crate) start: VersionStart,
    pub(crate) clears: Arc<Clears>,
    /// The LMDB key from which on the file is not checked yet; `None`: all of it is.
    pub(crate) unchecked_from: Option<Vec<u8>>,
}

/// Opens the data file of a locked directory, or creates it. Checks about `pages_max` of its pages first.
///
/// # Errors
/// [`OpenError`]. A file that LMDB would read past its end, and one with a damaged page among these, is refused before
/// LMDB opens it.
pub(crate) fn open(dir: &Path, map_bytes: Option<usize>, pages_max: u64) -> Result<OpenDataFile, OpenError> {
    let path = dir.join(DATA_FILE);
    let new = dir.join(NEW_DIR);
    match std::fs::remove_dir_all(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(OpenError::io(&new, &error)),
        _ => {}
    }
    let mut unchecked_from = None;
    match OpenOptions::new().read(true).write(true).open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => create(dir, &new)?,
        Err(error) => return Err(OpenError::io(&path, &error)),
        Ok(file) => {
            data_file::check(&file).map_err(|error| bad_file(dir, error))?;
            unchecked_from = check_records_of(dir, &file, pages_max)?;
            data_file::rewrite_meta_pages(&file).map_err(|error| bad_file(dir, error))?;
        }
    }
    Ok(OpenDataFile { unchecked_from, ..open_env(dir, map_bytes)? })
}

/// Checks pages and records of a file of this format, to which no process writes. [`format_version`] refuses another
/// format. Returns the LMDB key from which on they are not checked.
fn check_records_of(dir: &Path, file: &File, pages_max: u64) -> Result<Option<Vec<u8>>, OpenError> {
    let failed = |error| bad_file(dir, error);
    let damaged = |reason: &str| OpenError::Damaged { dir: dir.to_owned(), reason: reason.to_owned() };
    let meta = data_file::newest(file).map_err(failed)?;
    match scan::find(file, meta, FORMAT_KEY).map_err(failed)?.as_deref().map(version_in) {
        Some(Some(FORMAT_VERSION)) => scan::start(file, pages_max).map_err(failed),
        Some(Some(_)) => Ok(None),
        Some(None) => Err(damaged("the record of its format does not match its checksum")),
        // A file of another program has no record of this engine.
        None => match scan::find(file, meta, CEILING_KEY).map_err(failed)? {
            Some(ceiling) if unseal(CEILING_KEY, &ceiling).is_some() => {
                Err(damaged("there is no record of its format"))
            }
            _ => Ok(None),
        },
    }
}

/// Checks all pages and records of a file to which no process writes.
pub(crate) fn check_whole(dir: &Path, file: &File) -> Result<(), OpenError> {
    data_file::check(file).map_err(|error| bad_file(dir, error))?;
    check_records_of(dir, file, u64::MAX).map(|_| ())
}

/// The version in a format record; `None` if that is damaged. Formats 1 and 2 had no checksum.
fn version_in(record: &[u8]) -> Option<u32> {
    let version: [u8; 4] = match record.try_into() {
        Ok(bare) => bare,
        Err(_) => unseal(FORMAT_KEY, record)?.try_into().ok()?,
    };
    Some(u32::from_le_bytes(version))
}

/// Creates the data file in a directory of its own and renames it when it is complete, so that a crash leaves all of
/// it or nothing.
fn create(dir: &Path, new: &Path) -> Result<(), OpenError> {
    let failed = |error: std::io::Error| OpenError::io(dir, &error);
    std::fs::create_dir(new).map_err(failed)?;
    let made = open_env(new, Some(NEW_MAP_BYTES))?;
    made.env.prepare_for_closing().wait();
    // LMDB synced the pages; this also syncs the file's size, which some file systems keep separately.
    File::open(new.join(DATA_FILE)).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(new.join(DATA_FILE), dir.join(DATA_FILE)).map_err(failed)?;
    sync_entries(dir).map_err(failed)?;
    if let Some(parent) = dir.parent() {
        sync_entries(parent).map_err(failed)?;
    }
    std::fs::remove_dir_all(new).map_err(failed)
}

/// Opens LMDB on a directory, and reads or writes the engine's records.
fn open_env(dir: &Path, map_bytes: Option<usize>) -> Result<OpenDataFile, OpenError> {
    let env = map(dir, map_bytes, EnvFlags::empty())?;
    if env.max_key_size() != LMDB_KEY_BYTES_MAX {
        let reason = format!("LMDB was built for keys of {} bytes", env.max_key_size());
        return Err(OpenError::Io { path: dir.to_owned(), reason });
    }
    let txn = env.write_txn().map_err(|error| OpenError::lmdb(dir, error))?;
    let created = env.create_databases_and_commit(txn, |opener, txn| {
        opener.create_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    });
    let db = created.map_err(|error: heed::Error| OpenError::lmdb(dir, error))?.commit();
    let no_database = || OpenError::Io { path: dir.to_owned(), reason: "LMDB made no database".into() };
    let store = Store::new(db.ok_or_else(no_database)?);
    let mut txn = env.write_txn().map_err(|error| OpenError::lmdb(dir, error))?;
    let start = check_records(dir, &store, &mut txn)?;
    let clears = store.clears(&txn).map_err(|error| OpenError::store(dir, error))?;
    txn.commit().map_err(|error| OpenError::lmdb(dir, error))?;
    Ok(OpenDataFile { env: env.clone(), store, start, clears: Arc::new(clears), unchecked_from: None })
}

/// Opens the data file read-only, beside a process that may be writing to it. LMDB reads none of its pages yet: a
/// damaged one may end the process, so the caller checks them by [`look`] first.
///
/// Without `is_shared` no process may write to it meanwhile; then nothing is written to the directory either.
///
/// # Errors
/// [`OpenError`]: as [`open`], and [`OpenError::NotOurs`] if nothing was ever written.
pub(crate) fn open_to_read(dir: &Path, is_shared: bool) -> Result<(Env<WithoutTls>, File), OpenError> {
    let path = dir.join(DATA_FILE);
    let file = File::open(&path).map_err(|error| OpenError::io(&path, &error))?;
    check_beside_a_writer(dir, &file)?;
    let flags = if is_shared { EnvFlags::READ_ONLY } else { EnvFlags::READ_ONLY | EnvFlags::NO_LOCK };
    let env = map(dir, None, flags)?;
    let (record, is_empty) =
        look(dir, &env, &file, |meta| Ok((scan::find(&file, meta, FORMAT_KEY)?, meta.main.root == NO_PAGE)))?;
    match known_format(dir, record.as_deref(), is_empty)? {
        Some(_) => Ok((env, file)),
        None => Err(OpenError::NotOurs { dir: dir.to_owned(), reason: "it is empty".to_owned() }),
    }
}

/// Calls `read` with the newest state of a file that another process may be writing to. An LMDB transaction keeps that
/// process from reusing the pages of the state meanwhile.
///
/// # Errors
/// [`OpenError::Damaged`] or [`OpenError::Truncated`] if `read` fails [`LOOKS`] times.
pub(crate) fn look<T>(
    dir: &Path,
    env: &Env<WithoutTls>,
    file: &File,
    mut read: impl FnMut(Meta) -> Result<T, BadFile>,
) -> Result<T, OpenError> {
    let mut looks = 1;
    loop {
        let txn = env.read_txn().map_err(|error| match error {
            // LMDB locks one byte for each process in its lock file, at the offset of the process id.
            heed::Error::Io(error) if error.kind() == ErrorKind::WouldBlock => OpenError::SameProcessId(dir.to_owned()),
            error => OpenError::lmdb(dir, error),
        })?;
        let found = data_file::of_transaction(file, txn.id() as u64).and_then(|meta| {
            let Some(meta) = meta else { return Ok(None) };
            meta.check()?;
            read(meta).map(Some)
        });
        drop(txn);
        match found {
            Ok(Some(found)) => return Ok(found),
            Err(error) if looks >= LOOKS => return Err(bad_file(dir, error)),
            Err(_) => looks += 1,
            // Newer commits replaced both meta pages between the two reads.
            Ok(None) => {}
        }
    }
}

/// Runs [`data_file::check`] with retries. A writer that replaces pages during the check can make a sound file seem
/// damaged once, but not repeatedly.
fn check_beside_a_writer(dir: &Path, file: &File) -> Result<(), OpenError> {
    const TRIES: u32 = 5;
    const PAUSE: Duration = Duration::from_millis(50);
    let mut tries = 1;
    loop {
        match data_file::check(file) {
            Ok(()) => return Ok(()),
            Err(BadFile::Damaged(_) | BadFile::Short { .. }) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(bad_file(dir, error)),
        }
    }
}

fn map(dir: &Path, map_bytes: Option<usize>, flags: EnvFlags) -> Result<Env<WithoutTls>, OpenError> {
    if !flags.contains(EnvFlags::NO_LOCK) {
        let lock_path = dir.join(LOCK_FILE);
        reserve(&lock_path, LOCK_FILE_BYTES).map_err(|error| OpenError::io(&lock_path, &error))?;
    }
    for map_bytes in map_bytes.into_iter().chain(MAP_BYTES) {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_readers(READERS_MAX);
        // SAFETY: either the directory is locked, so that no other process changes the file, or this process only
        // reads: with LMDB's lock file, which protects the pages being read, or without any writer.
        match unsafe { options.flags(flags).open(dir) } {
            Ok(env) => return Ok(env),
            // The address space is too small; the next map is smaller.
            Err(heed::Error::Io(error))
                if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EFBIG | libc::EINVAL)) => {}
            Err(error) => return Err(OpenError::lmdb(dir, error)),
        }
    }
    Err(OpenError::AddressSpace(dir.to_owned()))
}

/// Maps a file that LMDB must not open to an error.
pub(crate) fn bad_file(dir: &Path, error: BadFile) -> OpenError {
    let dir_owned = dir.to_owned();
    match error {
        BadFile::Io(error) => OpenError::io(&dir.join(DATA_FILE), &error),
        BadFile::Foreign => OpenError::NotOurs { dir: dir_owned, reason: error.to_string() },
        BadFile::Damaged(reason) => OpenError::Damaged { dir: dir_owned, reason: reason.to_owned() },
        BadFile::Page { .. } => OpenError::Damaged { dir: dir_owned, reason: error.to_string() },
        BadFile::Short { found_bytes, expected_bytes } => {
            OpenError::Truncated { dir: dir_owned, found_bytes, expected_bytes }
        }
    }
}

/// The format of a database if this program knows it; `None` for an empty database.
fn format_version(dir: &Path, store: &Store, txn: &RoTxn<'_, AnyTls>) -> Result<Option<u32>, OpenError> {
    let failed = |error| OpenError::store(dir, error);
    let record = store.sealed_meta(txn, FORMAT).map_err(failed)?;
    known_format(dir, record, store.is_empty(txn).map_err(failed)?)
}

/// The format in a format record, as [`format_version`]. `is_empty`: the database has no record at all.
fn known_format(dir: &Path, record: Option<&[u8]>, is_empty: bool) -> Result<Option<u32>, OpenError> {
    let not_ours = |reason: &str| OpenError::NotOurs { dir: dir.to_owned(), reason: reason.to_owned() };
    let damaged = || OpenError::store(dir, StoreError::Record);
    match record.map(|record| version_in(record).ok_or_else(damaged)).transpose()? {
        Some(0) => Err(not_ours("format 0")),
        Some(found) if found > FORMAT_VERSION => {
            Err(OpenError::NewerFormat { dir: dir.to_owned(), found, known: FORMAT_VERSION })
        }
        Some(found) if found < FORMAT_VERSION => {
            Err(OpenError::OlderFormat { dir: dir.to_owned(), found, known: FORMAT_VERSION })
        }
        None if !is_empty => Err(not_ours("there is no format record")),
        found => Ok(found),
    }
}

/// Reads or writes the engine's records. Returns the start of the versions.
fn check_records(dir: &Path, store: &Store, txn: &mut RwTxn<'_>) -> Result<VersionStart, OpenError> {
    let failed = |error| OpenError::store(dir, error);
    if format_version(dir, store, txn)?.is_none() {
        store.put_meta(txn, FORMAT, &FORMAT_VERSION.to_le_bytes()).map_err(failed)?;
    }
    let ceiling = number::<8>(store, txn, CEILING).map_err(failed)?.map_or(0, i64::from_le_bytes);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = i64::try_from(clock.as_micros()).unwrap_or(i64::MAX / 2);
    Ok(VersionStart { version: clock.max(ceiling.saturating_add(1)), clock })
}

fn number<const N: usize>(store: &Store, txn: &RoTxn<'_, AnyTls>, name: &str) -> StoreResult<Option<[u8; N]>> {
    Ok(store.meta(txn, name)?.and_then(|bytes| bytes.try_into().ok()))
}

/// Writes the version above which the next run begins.
pub(crate) fn put_ceiling(store: &Store, txn: &mut RwTxn<'_>, ceiling: i64) -> StoreResult<()> {
    store.put_meta(txn, CEILING, &ceiling.to_le_bytes())
}
