//! Cluster files: `embedded:NAME@DIRECTORY` opens the embedded engine, any other text is a FoundationDB cluster's.
//!
//! As in FoundationDB's own cluster files, `#` starts a comment up to the end of the line; blank lines, and white
//! space at both ends of a line, are ignored. White space within DIRECTORY is part of it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use fdb_embedded::Error;

use crate::error::{CONNECTION_STRING_INVALID, FILE_NOT_READABLE, FILE_TOO_LARGE, NO_CLUSTER_FILE_FOUND};

/// The largest cluster file, in bytes. A larger file is an error.
pub const CLUSTER_FILE_BYTES_MAX: u64 = 60_000;
/// The prefix of the embedded engine's connection string.
const EMBEDDED: &str = "embedded:";

/// The database that a cluster file names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterFile {
    /// The embedded engine.
    Embedded {
        /// The database's name: letters, digits and `_`, at least one.
        name: String,
        /// The data directory; a relative one in the file is relative to the file.
        directory: PathBuf,
    },
    /// A FoundationDB cluster; FoundationDB's own library parses its string.
    Cluster,
}

/// The reason why a cluster file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClusterFileError {
    /// The file does not exist.
    #[error("no cluster file {}", .0.display())]
    NotFound(PathBuf),
    /// The file cannot be read.
    #[error("cannot read the cluster file {}: {reason}", .path.display())]
    NotReadable {
        /// The file.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// The file is longer than [`CLUSTER_FILE_BYTES_MAX`].
    #[error("the cluster file {} is larger than {CLUSTER_FILE_BYTES_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// The file does not hold exactly one connection string.
    #[error("the cluster file {} is not valid: {reason}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The mistake.
        reason: &'static str,
    },
}

impl ClusterFileError {
    /// Returns the FoundationDB error code.
    pub fn code(&self) -> i32 {
        let error: Error = match self {
            ClusterFileError::NotFound(_) => NO_CLUSTER_FILE_FOUND,
            ClusterFileError::NotReadable { .. } => FILE_NOT_READABLE,
            ClusterFileError::TooLarge(_) => FILE_TOO_LARGE,
            ClusterFileError::Invalid { .. } => CONNECTION_STRING_INVALID,
        };
        error.0
    }
}

/// Parses the text of the cluster file at `path`.
///
/// # Errors
/// [`ClusterFileError::Invalid`] for a text without a connection string, and for one of the embedded engine without a
/// valid name, without a directory, or with other text beside it.
pub fn parse(text: &str, path: &Path) -> Result<ClusterFile, ClusterFileError> {
    let invalid = |reason| ClusterFileError::Invalid { path: path.to_owned(), reason };
    let mut lines = text
        .split(['\n', '\r'])
        .map(|line| line.split_once('#').map_or(line, |(before, _)| before).trim())
        .filter(|line| !line.is_empty());
    let first = lines.next().ok_or_else(|| invalid("it is empty"))?;
    let Some(rest) = first.strip_prefix(EMBEDDED) else { return Ok(ClusterFile::Cluster) };
    if lines.next().is_some() {
        return Err(invalid("it has more than one connection string"));
    }
    let (name, directory) = rest.split_once('@').ok_or_else(|| invalid("it lacks an @ before the directory"))?;
    let (name, directory) = (name.trim(), directory.trim());
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(invalid("the name must be letters, digits and _"));
    }
    if directory.is_empty() || directory.contains('\0') {
        return Err(invalid("the directory is missing"));
    }
    // `join` keeps an absolute directory as it is.
    let directory = path.parent().unwrap_or(Path::new("")).join(directory);
    Ok(ClusterFile::Embedded { name: name.to_owned(), directory })
}

/// Reads a cluster file.
///
/// # Errors
/// Each variant of [`ClusterFileError`].
pub fn read(path: &Path) -> Result<ClusterFile, ClusterFileError> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => ClusterFileError::NotFound(path.to_owned()),
        _ => ClusterFileError::NotReadable { path: path.to_owned(), reason: error.to_string() },
    };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(CLUSTER_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > CLUSTER_FILE_BYTES_MAX {
        return Err(ClusterFileError::TooLarge(path.to_owned()));
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| ClusterFileError::Invalid { path: path.to_owned(), reason: "it is not UTF-8" })?;
    parse(text, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<ClusterFile> {
        parse(text, Path::new("etc/fdb.cluster")).ok()
    }

    fn embedded(directory: &str) -> Option<ClusterFile> {
        Some(ClusterFile::Embedded { name: "main_1".into(), directory: directory.into() })
    }

    #[test]
    fn a_directory_is_relative_to_the_file() {
        assert_eq!(parsed("embedded:main_1@data"), embedded("etc/data"));
        assert_eq!(parsed("embedded:main_1@/var/data"), embedded("/var/data"));
    }

    #[test]
    fn comments_and_white_space_are_skipped() {
        assert_eq!(parsed("# ours\r\n\r\n  embedded:main_1@my data\t# here\n\n"), embedded("etc/my data"));
    }

    #[test]
    fn a_cluster_is_left_to_foundationdb() {
        assert_eq!(parsed("desc:id@10.0.0.1:4500,\n10.0.0.2:4500"), Some(ClusterFile::Cluster));
    }

    #[test]
    fn what_is_not_valid_is_refused() {
        for text in [
            "",
            "# only a comment",
            "embedded:main_1",
            "embedded:@data",
            "embedded:ma in@data",
            "embedded:main_1@",
            "embedded:main_1@a\nembedded:main_1@b",
            "embedded:main_1@a\0b",
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_file_is_read_and_its_faults_have_codes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fdb.cluster");
        assert_eq!(read(&path).unwrap_err().code(), 1515);
        assert_eq!(read(dir.path()).unwrap_err().code(), 1513);
        std::fs::write(&path, b"\xff\xfe").unwrap();
        assert_eq!(read(&path).unwrap_err().code(), 2104);
        std::fs::write(&path, vec![b'#'; 60_001]).unwrap();
        assert_eq!(read(&path).unwrap_err().code(), 1516);
        std::fs::write(&path, "embedded:main_1@data").unwrap();
        let directory = dir.path().join("data");
        assert_eq!(read(&path).ok(), Some(ClusterFile::Embedded { name: "main_1".into(), directory }));
    }
}
