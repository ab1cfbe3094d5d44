//! The choice of the C API's implementation in this process.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use fdb_capi::FDBDatabase;
use fdb_capi::cluster_file::{self, ClusterFile};
use fdb_embedded::{OpenError, OpenOptions, VirtualClock};

use crate::table::Table;
use crate::versions::FDB_API_VERSION;

/// Directories searched for a `libfdb_c` beside the loader's own.
const DIRECTORIES: [&str; 4] = ["/usr/lib", "/usr/local/lib", "/usr/lib64", "/opt/foundationdb/lib"];

#[cfg(target_os = "macos")]
const LIBRARY_NAME: &str = "libfdb_c.dylib";
#[cfg(not(target_os = "macos"))]
const LIBRARY_NAME: &str = "libfdb_c.so";

/// An implementation of the C API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// The embedded engine.
    Embedded,
    /// An installed library: any library at this path, or one found by the loader, which must not be the embedded
    /// engine's own.
    Library(Option<PathBuf>),
}

/// The reason why an installed library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No library was found.
    #[error(
        "no {LIBRARY_NAME} found ({tried}): install FoundationDB's clients package (foundationdb-clients 7.3), or give \
         its path with --fdb-library"
    )]
    Missing {
        /// The places tried, each with the loader's message.
        tried: String,
    },
    /// The library found lacks one of FoundationDB's functions.
    #[error("{path} is not a libfdb_c of 7.3: the function {function} is missing")]
    Foreign {
        /// The file.
        path: String,
        /// The first missing function.
        function: &'static str,
    },
    /// The library found is older than 7.3.
    #[error("{path} supports API versions up to {found}, 730 is needed: install FoundationDB's clients package 7.3")]
    TooOld {
        /// The file.
        path: String,
        /// Its newest API version.
        found: i32,
    },
    /// Another backend is in use already.
    #[error("another backend of the FoundationDB API is in use in this process")]
    Chosen,
}

pub(crate) enum Active {
    Embedded,
    Library(Box<Table>),
}

static ACTIVE: OnceLock<Active> = OnceLock::new();
/// Held during the choice, so that two threads do not load two libraries.
static CHOOSING: Mutex<()> = Mutex::new(());

/// Chooses the backend for this process, before the network is set up. Choosing the same one again is allowed.
pub fn select(backend: Backend) -> Result<(), LoadError> {
    let _alone = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    match (ACTIVE.get(), &backend) {
        (None, _) => {}
        (Some(Active::Embedded), Backend::Embedded) | (Some(Active::Library(_)), Backend::Library(_)) => return Ok(()),
        _ => return Err(LoadError::Chosen),
    }
    let active = match backend {
        Backend::Embedded => Active::Embedded,
        Backend::Library(path) => Active::Library(Box::new(load(path.as_deref())?)),
    };
    ACTIVE.set(active).map_err(|_| LoadError::Chosen)
}

/// Access to the embedded engine beyond the C API. A value proves that the engine is this process's backend.
///
/// A database opened here is a pointer into this program, which an installed library would take for one of its own.
/// Only [`embedded`] therefore gives access to settings that no cluster file has: faults, a simulated cluster and its
/// clock.
#[derive(Debug, Clone, Copy)]
pub struct Embedded(());

impl Embedded {
    /// Opens the engine on a directory. The pointer is a database of the API, which the caller must destroy.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn open(self, directory: &Path, options: OpenOptions) -> Result<NonNull<FDBDatabase>, OpenError> {
        let database = fdb_capi::open_embedded(directory, options)?;
        // SAFETY: the pointer comes from a box.
        Ok(unsafe { NonNull::new_unchecked(database) })
    }

    /// Advances the clock of a simulated cluster to its next answer with a callback; false if none is pending.
    pub fn advance(self, clock: &VirtualClock) -> bool {
        fdb_capi::advance(clock)
    }
}

/// Returns the embedded engine if it is the backend; `None` for a library, even one that contains the same engine. If
/// no backend was chosen, the environment chooses one, as at the first call of the API.
#[must_use]
pub fn embedded() -> Option<Embedded> {
    match active() {
        Active::Embedded => Some(Embedded(())),
        Active::Library(_) => None,
    }
}

/// The backend of a program that selected none.
///
/// The engine reports an unreadable or invalid cluster file, because it has codes for it. The machine's own
/// `/etc/foundationdb/fdb.cluster` is ignored: a test without a setting must not write to a cluster.
fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Backend {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = variable("FLATBED_FDB_LIBRARY") {
        return Backend::Library(Some(path.into()));
    }
    let file = variable("FLATBED_CLUSTER_FILE").or_else(|| variable("FDB_CLUSTER_FILE"));
    match file.map(|path| cluster_file::read(Path::new(&path))) {
        Some(Ok(ClusterFile::Cluster)) => Backend::Library(None),
        _ => Backend::Embedded,
    }
}

/// Returns the backend, chosen from the environment if none was selected.
#[inline]
pub(crate) fn active() -> &'static Active {
    match ACTIVE.get() {
        Some(active) => active,
        None => choose(),
    }
}

#[cold]
fn choose() -> &'static Active {
    let chosen = select(from_environment(|name| std::env::var_os(name)));
    ACTIVE.get_or_init(|| {
        // A C function cannot return the reason; `select` can, if the program calls it before.
        if let Err(error) = chosen {
            // Not by `eprintln!`: a test harness would capture the line, and lose it with the process.
            let _ = writeln!(std::io::stderr(), "foundationdb: {error}");
            std::process::exit(1);
        }
        Active::Embedded
    })
}

fn load(path: Option<&Path>) -> Result<Table, LoadError> {
    let places: Vec<PathBuf> = match path {
        Some(path) => vec![path.to_owned()],
        None => {
            let directories = DIRECTORIES.iter().map(|directory| Path::new(directory).join(LIBRARY_NAME));
            std::iter::once(PathBuf::from(LIBRARY_NAME)).chain(directories).collect()
        }
    };
    let mut tried = String::new();
    let mut note = |text: &dyn std::fmt::Display| {
        let separator = if tried.is_empty() { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ = write!(tried, "{separator}{text}");
    };
    for place in places {
        // SAFETY: loading runs the library's initialisers; the operator named or installed the library.
        match unsafe { libloading::Library::new(AsRef::<OsStr>::as_ref(&place)) } {
            // A named library is taken as it is.
            Ok(library) if path.is_none() && is_ours(&library) => {
                note(&format_args!("{}: Flatbed's embedded engine, which reaches no cluster", place.display()));
            }
            Ok(library) => return check(library, &place.display().to_string()),
            // The loader's message begins with the path.
            Err(error) => note(&error),
        }
    }
    Err(LoadError::Missing { tried })
}

/// Returns whether the library is built from the embedded engine (crate `fdb-c`). The loader may find it first: beside
/// programs that cargo runs, or in the `LD_LIBRARY_PATH` of programs in other languages.
fn is_ours(library: &libloading::Library) -> bool {
    // SAFETY: the type of the function in every version of fdb_c.h.
    match unsafe { library.get::<unsafe extern "C" fn() -> *const c_char>(b"fdb_get_client_version\0") } {
        Ok(function) => {
            // SAFETY: may be called at any time.
            let version = unsafe { function() };
            // SAFETY: the text ends with a zero byte and lives as long as the library.
            !version.is_null() && unsafe { CStr::from_ptr(version) } == fdb_capi::CLIENT_VERSION
        }
        Err(_) => false,
    }
}

fn check(library: libloading::Library, path: &str) -> Result<Table, LoadError> {
    let path = path.to_owned();
    // SAFETY: the type of the function in every version of fdb_c.h.
    let max_version = match unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"fdb_get_max_api_version\0") } {
        // SAFETY: may be called at any time.
        Ok(function) => unsafe { function() },
        Err(_) => return Err(LoadError::Foreign { path, function: "fdb_get_max_api_version" }),
    };
    if max_version < FDB_API_VERSION as i32 {
        return Err(LoadError::TooOld { path, found: max_version });
    }
    let table = Table::load(&library).map_err(|function| LoadError::Foreign { path, function })?;
    // The library stays loaded, because its functions are called until the process ends.
    std::mem::forget(library);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_where_nobody_did() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.into_os_string()
        };
        let embedded = file("embedded.cluster", "# ours\nembedded:test@data\n");
        let cluster = file("cluster.cluster", "test:id@127.0.0.1:4500\n");
        let broken = file("broken.cluster", "embedded:nowhere\n");
        let missing = directory.path().join("missing.cluster").into_os_string();
        let library = OsString::from("/opt/libfdb_c.so");
        let empty = OsString::new();
        let chosen = |values: &[(&str, &OsString)]| {
            from_environment(|name| values.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).clone()))
        };
        let (ours, theirs) = ("FLATBED_CLUSTER_FILE", "FDB_CLUSTER_FILE");
        assert_eq!(chosen(&[]), Backend::Embedded);
        assert_eq!(chosen(&[(ours, &embedded)]), Backend::Embedded);
        assert_eq!(chosen(&[(ours, &broken)]), Backend::Embedded);
        assert_eq!(chosen(&[(ours, &missing)]), Backend::Embedded);
        assert_eq!(chosen(&[(ours, &cluster)]), Backend::Library(None));
        assert_eq!(chosen(&[(theirs, &cluster)]), Backend::Library(None));
        assert_eq!(chosen(&[(ours, &embedded), (theirs, &cluster)]), Backend::Embedded, "ours goes first");
        assert_eq!(chosen(&[(ours, &empty), (theirs, &cluster)]), Backend::Library(None), "empty is not set");
        let named = Backend::Library(Some("/opt/libfdb_c.so".into()));
        assert_eq!(chosen(&[("FLATBED_FDB_LIBRARY", &library), (ours, &embedded)]), named);
    }
}
