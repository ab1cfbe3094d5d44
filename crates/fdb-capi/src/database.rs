//! `FDBDatabase`: an opened engine.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fdb_embedded::{Connection, Engine, Error, OpenError, OpenOptions};

use crate::cluster_file::{self, ClusterFile, ClusterFileError};
use crate::defaults::Defaults;
use crate::delivery::busyness;
use crate::error::{
    CONNECTION_STRING_INVALID, ENVIRONMENT_INVALID, SNAP_INVALID_UID_STRING, SNAP_PATH_NOT_WHITELISTED, code,
};
use crate::future::FDBFuture;
use crate::network::{PROTOCOL_VERSION, RELEASE, check_set_up, open_options};
use crate::outcome::Outcome;
use crate::transaction::FDBTransaction;
use crate::types::{bytes, fdb_bool_t, fdb_error_t, option_value};

/// The default data directory.
pub const DEFAULT_DIRECTORY: &str = "flatbed-data";

/// `FDBDatabase` of the C API. Transactions and watches keep the engine open after it is destroyed.
#[derive(Debug)]
pub struct FDBDatabase {
    engine: Engine,
    defaults: Arc<Defaults>,
}

impl FDBDatabase {
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn defaults(&self) -> &Arc<Defaults> {
        &self.defaults
    }
}

/// Opens the embedded engine on a directory, with the engine's own error. `fdb_database_destroy` closes it. Needs
/// neither an API version nor a network.
///
/// # Errors
/// Those of [`Engine::open`].
pub fn open_embedded(dir: &Path, options: OpenOptions) -> Result<*mut FDBDatabase, OpenError> {
    Ok(database_of(Engine::open(dir, options)?))
}

fn database_of(engine: Engine) -> *mut FDBDatabase {
    Box::into_raw(Box::new(FDBDatabase { engine, defaults: Arc::default() }))
}

/// Returns the engine of a database, for its counters.
///
/// # Safety
/// `database` is a database of this library that is not destroyed during `'a`.
pub unsafe fn engine_of<'a>(database: *mut FDBDatabase) -> &'a Engine {
    // SAFETY: the caller's promise.
    unsafe { &*database }.engine()
}

struct DatabasePlace {
    directory: PathBuf,
    connection: Connection,
}

fn default_place() -> Result<DatabasePlace, ClusterFileError> {
    for variable in ["FLATBED_CLUSTER_FILE", "FDB_CLUSTER_FILE"] {
        if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            return place_of(Path::new(&path));
        }
    }
    Ok(DatabasePlace { directory: PathBuf::from(DEFAULT_DIRECTORY), connection: Connection::default() })
}

fn place_of(path: &Path) -> Result<DatabasePlace, ClusterFileError> {
    embedded(cluster_file::read(path)?, Some(path))
}

/// Returns the place that a cluster file, or a connection string without a file, names.
fn embedded(file: ClusterFile, path: Option<&Path>) -> Result<DatabasePlace, ClusterFileError> {
    match file {
        ClusterFile::Embedded { name, directory } => {
            Ok(DatabasePlace { directory, connection: Connection { cluster_file: path.map(Path::to_owned), name } })
        }
        ClusterFile::Cluster => Err(ClusterFileError::Invalid {
            path: path.unwrap_or(Path::new("")).to_owned(),
            reason: "it names a cluster, which needs FoundationDB's own library",
        }),
    }
}

/// # Safety
/// `out_database` is writable.
unsafe fn open(place: Result<DatabasePlace, ClusterFileError>, out_database: *mut *mut FDBDatabase) -> fdb_error_t {
    if let Err(error) = check_set_up() {
        return error.0;
    }
    let opened = open_options().map_err(|error| print_error(&error, ENVIRONMENT_INVALID.0)).and_then(|options| {
        let place = place.map_err(|error| print_error(&error, error.code()))?;
        let engine = Engine::open(&place.directory, options).map_err(|error| print_error(&error, error.code()))?;
        Ok(engine.with_connection(place.connection))
    });
    match opened {
        Ok(engine) => {
            // SAFETY: the caller's promise.
            unsafe { *out_database = database_of(engine) };
            0
        }
        Err(code) => code,
    }
}

/// Prints on stderr why no database could be opened: a code names neither the file nor a remedy.
fn print_error(error: &dyn std::error::Error, code: fdb_error_t) -> fdb_error_t {
    eprintln!("libfdb_c: {error}");
    code
}

/// Opens the database of a cluster file ([`crate::cluster_file`]). For a null or empty path it uses the file in
/// `FLATBED_CLUSTER_FILE` or `FDB_CLUSTER_FILE` of the environment, else the directory [`DEFAULT_DIRECTORY`].
///
/// Errors: 2008 before `fdb_setup_network`, 2022 if `FLATBED_FDB_BUGGIFY`, `FLATBED_FDB_PENDING_READS`,
/// `FLATBED_FDB_LATENCY_US` or `FLATBED_FDB_SERVER` of the environment is invalid, and the codes of
/// [`ClusterFileError`] and [`OpenError`]. One line on stderr gives the reason.
///
/// # Safety
/// The path is null or ends with a zero byte; `out_database` is writable.
pub unsafe extern "C" fn fdb_create_database(
    cluster_file_path: *const c_char,
    out_database: *mut *mut FDBDatabase,
) -> fdb_error_t {
    let path = match cluster_file_path.is_null() {
        true => c"",
        // SAFETY: the caller's promise.
        false => unsafe { CStr::from_ptr(cluster_file_path) },
    };
    let place = match path.is_empty() {
        true => default_place(),
        false => place_of(Path::new(OsStr::from_bytes(path.to_bytes()))),
    };
    // SAFETY: the caller's promise.
    unsafe { open(place, out_database) }
}

/// Opens the database of a connection string: the text of a cluster file, relative to the working directory.
///
/// # Safety
/// The string ends with a zero byte; `out_database` is writable.
pub unsafe extern "C" fn fdb_create_database_from_connection_string(
    connection_string: *const c_char,
    out_database: *mut *mut FDBDatabase,
) -> fdb_error_t {
    if connection_string.is_null() {
        return CONNECTION_STRING_INVALID.0;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(connection_string) };
    let Ok(text) = text.to_str() else { return CONNECTION_STRING_INVALID.0 };
    let place = cluster_file::parse(text, Path::new("")).and_then(|file| embedded(file, None));
    // SAFETY: the caller's promise.
    unsafe { open(place, out_database) }
}

/// Destroys a database. Its transactions and futures stay valid. Null is allowed.
///
/// # Safety
/// `d` is a database of this library, and is not used afterwards.
pub unsafe extern "C" fn fdb_database_destroy(d: *mut FDBDatabase) {
    if !d.is_null() {
        // SAFETY: by contract `d` is the box that was returned, and is destroyed once.
        drop(unsafe { Box::from_raw(d) });
    }
}

/// Sets a database option by its FDBDatabaseOption number. A default for transactions applies to those that this
/// database creates or that are reset afterwards. 2007 for a number that 7.3 does not have, 2006 for a value of the
/// wrong shape.
///
/// # Safety
/// `d` is a database of this library; `value` is null or points to `value_length` readable bytes.
pub unsafe extern "C" fn fdb_database_set_option(
    d: *mut FDBDatabase,
    option: c_int,
    value: *const u8,
    value_length: c_int,
) -> fdb_error_t {
    // SAFETY: the caller's promises.
    let (database, value) = unsafe { (&*d, option_value(value, value_length)) };
    let is_of_shape = match option {
        // Caches and localities of a cluster have no effect here.
        10 | 900 => value.is_some_and(|value| value.len() == 8),
        21 | 22 => true,
        800 => value.is_none_or(<[u8]>::is_empty),
        // The watch limit is the engine's.
        20 => return code(database.engine.set_default_option(20, value)),
        _ => {
            let Ok(option) = u32::try_from(option) else { return Error::INVALID_OPTION.0 };
            return code(database.defaults.set(option, value));
        }
    };
    if is_of_shape { 0 } else { Error::INVALID_OPTION_VALUE.0 }
}

/// Creates a transaction.
///
/// # Safety
/// `d` is a database of this library; `out_transaction` is writable.
pub unsafe extern "C" fn fdb_database_create_transaction(
    d: *mut FDBDatabase,
    out_transaction: *mut *mut FDBTransaction,
) -> fdb_error_t {
    // SAFETY: the caller's promises.
    unsafe { *out_transaction = FDBTransaction::into_raw((*d).engine(), (*d).defaults(), None) };
    0
}

/// Returns 0: no worker process has the address, and no request was sent.
///
/// # Safety
/// As every function of the C API; the arguments are ignored.
pub unsafe extern "C" fn fdb_database_reboot_worker(
    _db: *mut FDBDatabase,
    _address: *const u8,
    _address_length: c_int,
    _check: fdb_bool_t,
    _duration: c_int,
) -> *mut FDBFuture {
    FDBFuture::ready(Outcome::Int64(0))
}

/// Returns 2108: there is no other data center.
///
/// # Safety
/// As every function of the C API; the arguments are ignored.
pub unsafe extern "C" fn fdb_database_force_recovery_with_data_loss(
    _db: *mut FDBDatabase,
    _dcid: *const u8,
    _dcid_length: c_int,
) -> *mut FDBFuture {
    FDBFuture::failed(Error::UNSUPPORTED_OPERATION)
}

/// Returns 2505, as a cluster that allows no commands on its machines; 2509 for an id that is not 32 hexadecimal
/// digits.
///
/// # Safety
/// `uid` is null or points to `uid_length` readable bytes; the other arguments are ignored.
pub unsafe extern "C" fn fdb_database_create_snapshot(
    _db: *mut FDBDatabase,
    uid: *const u8,
    uid_length: c_int,
    _snap_command: *const u8,
    _snap_command_length: c_int,
) -> *mut FDBFuture {
    // SAFETY: the caller's promise.
    let uid = unsafe { bytes(uid, uid_length) };
    let is_uid = uid.len() == 32 && uid.iter().all(u8::is_ascii_hexdigit);
    FDBFuture::failed(if is_uid { SNAP_PATH_NOT_WHITELISTED } else { SNAP_INVALID_UID_STRING })
}

/// Returns the share of the last second that the network thread was busy: 0 to 1.
///
/// # Safety
/// As every function of the C API; the argument is ignored.
pub unsafe extern "C" fn fdb_database_get_main_thread_busyness(_db: *mut FDBDatabase) -> f64 {
    busyness()
}

/// Returns the protocol version of FoundationDB 7.3.
///
/// A program passes the version that it knows (0 for none) and waits for a different one. The version never changes
/// here: a program that waits for a change waits until it cancels or destroys the future.
///
/// # Safety
/// As every function of the C API; the database is ignored.
pub unsafe extern "C" fn fdb_database_get_server_protocol(
    _db: *mut FDBDatabase,
    expected_version: u64,
) -> *mut FDBFuture {
    match expected_version {
        PROTOCOL_VERSION => FDBFuture::into_raw(FDBFuture::pending()),
        _ => FDBFuture::ready(Outcome::UInt64(PROTOCOL_VERSION)),
    }
}

/// Returns a JSON document on the client's health, in the shape of FoundationDB's documentation.
///
/// # Safety
/// `db` is a database of this library.
pub unsafe extern "C" fn fdb_database_get_client_status(db: *mut FDBDatabase) -> *mut FDBFuture {
    // SAFETY: the caller's promise.
    let engine = &unsafe { &*db }.engine;
    let connection = engine.connection();
    let record = match &connection.cluster_file {
        Some(path) => path.display().to_string(),
        None => format!("embedded:{}@{}", connection.name, engine.directory().display()),
    };
    let status = format!(
        concat!(
            r#"{{"Healthy":{healthy},"InitializationState":"created","ProtocolVersion":"{protocol:x}","#,
            r#""ConnectionRecord":{record},"DatabaseStatus":{{"Healthy":{healthy},"Coordinators":[],"#,
            r#""CurrentCoordinator":"","GrvProxies":[],"CommitProxies":[],"StorageServers":[],"Connections":[],"#,
            r#""NumConnectionsFailed":0}},"AvailableClients":[{{"ProtocolVersion":"{protocol:x}","#,
            r#""ReleaseVersion":"{release}","ThreadIndex":0}}]}}"#
        ),
        healthy = !engine.stats().is_failed,
        protocol = PROTOCOL_VERSION,
        record = json_string(&record),
        release = RELEASE,
    );
    FDBFuture::ready(Outcome::Key(status.into_bytes()))
}

fn json_string(text: &str) -> String {
    let mut json = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\0'..='\x1f' => json.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => json.push(character),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::json_string;

    #[test]
    fn strings_are_escaped_as_json_wants_them() {
        assert_eq!(json_string("a/b"), r#""a/b""#);
        assert_eq!(json_string("\"\\\n\u{1f600}"), "\"\\\"\\\\\\u000a\u{1f600}\"");
    }
}
