//! The connection by which a program opened an engine.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The connection as shown in the special keys and the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The cluster file that named the engine, as given; `None` without one.
    pub cluster_file: Option<PathBuf>,
    /// The name of the database.
    pub name: String,
}

impl Default for Connection {
    /// The name of a database without a cluster file is `flatbed`.
    fn default() -> Self {
        Connection { cluster_file: None, name: "flatbed".to_owned() }
    }
}

impl Connection {
    /// Returns the connection string, which finds the same directory from anywhere.
    pub(crate) fn string(&self, dir: &Path) -> Vec<u8> {
        [b"embedded:", self.name.as_bytes(), b"@", dir.as_os_str().as_bytes()].concat()
    }
}
