//! The repository's files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names of directories that tools create. They are not searched.
const MADE_BY_TOOLS: [&str; 3] = ["target", "node_modules", "flatbed-data"];

/// Returns the repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/")).to_owned()
}

/// Returns all files below `directory` whose names end with `ending`, sorted. Directories of tools and hidden ones are
/// skipped.
///
/// # Errors
/// The file system's.
pub fn with_ending(directory: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !MADE_BY_TOOLS.contains(&&*name) {
                found.extend(with_ending(&entry.path(), ending)?);
            }
        } else if name.ends_with(ending) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The part of the repository under which the findings in a file are counted: its crate by name, else its directory in the
/// root; `.` for files in the root. `path` begins at the root.
pub fn part(path: &Path) -> String {
    let names: Vec<String> = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    match names.as_slice() {
        [crates, name, _, ..] if crates == "crates" => name.clone(),
        [directory, _, ..] => directory.clone(),
        _ => ".".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_a_crate_or_a_directory() {
        for (path, expected) in [
            ("crates/layer/src/read/get.rs", "layer"),
            ("crates/layer/README.md", "layer"),
            ("docs/functions.md", "docs"),
            ("README.md", "."),
        ] {
            assert_eq!(part(Path::new(path)), expected, "{path}");
        }
    }
}
