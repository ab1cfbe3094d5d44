//! How a program came to an engine.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the special keys and the status tell of the way to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The cluster file that named the engine, as it was given; `None` where there was none.
    pub cluster_file: Option<PathBuf>,
    /// The name of the database.
    pub name: String,
}

impl Default for Connection {
    /// Without a cluster file a database is called `flatbed`.
    fn default() -> Self {
        Connection { cluster_file: None, name: "flatbed".to_owned() }
    }
}

impl Connection {
    /// The connection string, with which the same directory is found from anywhere.
    pub(crate) fn string(&self, dir: &Path) -> Vec<u8> {
        [b"embedded:", self.name.as_bytes(), b"@", dir.as_os_str().as_bytes()].concat()
    }
}
