//! FoundationDB's error codes in C, and those of the C API alone.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::Mutex;

use fdb_embedded::Error;

use crate::types::{fdb_bool_t, fdb_error_t};

/// The memory of the future's result was released.
pub(crate) const FUTURE_RELEASED: Error = Error(1102);
/// A file that an option names does not exist.
pub(crate) const FILE_NOT_FOUND: Error = Error(1511);
/// The named cluster file does not exist.
pub(crate) const NO_CLUSTER_FILE_FOUND: Error = Error(1515);
/// The cluster file is not readable.
pub(crate) const FILE_NOT_READABLE: Error = Error(1513);
/// The cluster file exceeds the size limit.
pub(crate) const FILE_TOO_LARGE: Error = Error(1516);
/// The future is not ready.
pub(crate) const FUTURE_NOT_SET: Error = Error(2002);
/// A call that needs `fdb_setup_network` first.
pub(crate) const NETWORK_NOT_SETUP: Error = Error(2008);
/// A second `fdb_setup_network`.
pub(crate) const NETWORK_ALREADY_SETUP: Error = Error(2009);
/// A variable of the environment has an invalid value.
pub(crate) const ENVIRONMENT_INVALID: Error = Error(2022);
/// A second `fdb_run_network`.
pub(crate) const NETWORK_CANNOT_BE_RESTARTED: Error = Error(2025);
/// A wait on the thread that has to end the wait.
pub(crate) const BLOCKED_FROM_NETWORK_THREAD: Error = Error(2026);
/// A connection string that this library does not open.
pub(crate) const CONNECTION_STRING_INVALID: Error = Error(2104);
/// The local client is disabled, and no other client is named.
pub(crate) const NO_EXTERNAL_CLIENT_PROVIDED: Error = Error(2123);
/// The local client is disabled, and the named clients are not loaded.
pub(crate) const ALL_EXTERNAL_CLIENTS_FAILED: Error = Error(2124);
/// The tenant does not exist.
pub(crate) const TENANT_NOT_FOUND: Error = Error(2131);
/// A call that needs `fdb_select_api_version` first.
pub(crate) const API_VERSION_UNSET: Error = Error(2200);
/// A second `fdb_select_api_version`.
pub(crate) const API_VERSION_ALREADY_SET: Error = Error(2201);
/// An API version above the header's.
pub(crate) const API_VERSION_INVALID: Error = Error(2202);
/// An API version that this library does not support.
pub(crate) const API_VERSION_NOT_SUPPORTED: Error = Error(2203);
/// The cluster allows no commands on its machines.
pub(crate) const SNAP_PATH_NOT_WHITELISTED: Error = Error(2505);
/// The id of a disk snapshot is not 32 hexadecimal digits.
pub(crate) const SNAP_INVALID_UID_STRING: Error = Error(2509);

pub(crate) fn code(result: fdb_embedded::Result<()>) -> fdb_error_t {
    result.map_or_else(|error| error.0, |()| 0)
}

/// Returns the text of an error code, valid until the process ends.
pub extern "C" fn fdb_get_error(code: fdb_error_t) -> *const c_char {
    /// The requested texts as C strings. Only codes with a text are kept, so the map stays small.
    static TEXTS: Mutex<BTreeMap<c_int, CString>> = Mutex::new(BTreeMap::new());
    const UNKNOWN: &std::ffi::CStr = c"UNKNOWN_ERROR";
    let text = fdb_embedded::error_message(code);
    if text.as_bytes() == UNKNOWN.to_bytes() {
        return UNKNOWN.as_ptr();
    }
    let mut texts = TEXTS.lock().unwrap_or_else(|broken| broken.into_inner());
    // The C string does not move on the heap, and an entry is never replaced.
    texts.entry(code).or_insert_with(|| CString::new(text).unwrap_or_default()).as_ptr()
}

/// Returns whether a predicate (50000 retryable, 50001 maybe committed, 50002 retryable and not committed) holds for a
/// code.
pub extern "C" fn fdb_error_predicate(predicate_test: c_int, code: fdb_error_t) -> fdb_bool_t {
    fdb_bool_t::from(fdb_embedded::error_predicate(predicate_test, code))
}
