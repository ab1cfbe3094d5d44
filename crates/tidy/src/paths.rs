//! The check of paths and links in documents.
//!
//! A code span is a path if its first segment is a directory of the repository (`crates/operations/src/read/get.rs`). A
//! short one (`read.rs`, `tests/waits.rs`, `handlers/`) is relative to the path before it on its line: to its directory
//! or one above it within the crate, or to the crate's `src`. A `*` matches any part of a file's name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tables::code_spans;

/// Endings that make a span without a known first segment a path.
const ENDINGS: [&str; 8] = [".rs", ".proto", ".js", ".mjs", ".py", ".md", ".toml", "/"];

/// The directory of tools' output, which need not exist.
const MADE_BY_TOOLS: &str = "target";

/// Returns the paths in a document that do not exist, each as `line: path`.
pub fn missing(root: &Path, markdown: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for (number, line) in markdown.lines().enumerate() {
        let mut before: Option<&str> = None;
        for span in code_spans(line).filter(|span| is_text_of_path(span)) {
            let first = span.split('/').next().unwrap_or_default();
            if first == MADE_BY_TOOLS {
                continue;
            }
            let whole = span.contains('/') && root.join(first).is_dir();
            let exists = if whole && there(&root.join(span)) {
                before = Some(span);
                true
            } else if ENDINGS.iter().any(|ending| span.ends_with(ending)) {
                match before {
                    Some(before) => beside(before).iter().any(|place| there(&root.join(place).join(span))),
                    // Rust files must be named with a path that exists. Other names may be the reader's own files.
                    None => !span.ends_with(".rs") && !whole,
                }
            } else {
                !whole
            };
            if !exists {
                missing.push(format!("{}: `{span}`", number + 1));
            }
        }
    }
    missing
}

/// Returns the local link targets of a document that do not exist, each as `line: target`. `directory` is the
/// document's.
pub fn missing_links(directory: &Path, markdown: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for (number, line) in markdown.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") || target.contains(' ') {
                continue;
            }
            let path = if file.is_empty() { None } else { Some(directory.join(file)) };
            let found = match &path {
                Some(path) if !path.exists() => false,
                Some(path) if !anchor.is_empty() => fs::read_to_string(path).is_ok_and(|text| anchors(&text, anchor)),
                None => anchors(markdown, anchor),
                Some(_) => true,
            };
            if !found {
                missing.push(format!("{}: {target}", number + 1));
            }
        }
    }
    missing
}

fn anchors(markdown: &str, anchor: &str) -> bool {
    markdown.lines().filter(|line| line.starts_with('#')).any(|line| slug(line.trim_start_matches('#')) == anchor)
}

/// Returns a heading's anchor, as GitHub forms it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns whether a text has only the characters of the repository's paths. A URL's path begins with a slash.
fn is_text_of_path(span: &str) -> bool {
    let made_of = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '*');
    !span.starts_with('/') && !span.starts_with('.') && span.len() > 1 && span.chars().all(made_of)
}

/// Returns the possible places of a short name behind `before`: beside it, in a directory above it up to its crate, in
/// the crate's `src`.
fn beside(before: &str) -> Vec<PathBuf> {
    let top = if before.starts_with("crates/") { 2 } else { 1 };
    let path = Path::new(before);
    let mut places: Vec<PathBuf> =
        path.ancestors().filter(|place| place.components().count() >= top).map(Path::to_owned).collect();
    if let Some(place) = places.last().filter(|_| top == 2) {
        places.push(place.join("src"));
    }
    places
}

fn there(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((front, back)) = name.split_once('*') else { return path.exists() };
    let entries = path.parent().and_then(|directory| fs::read_dir(directory).ok());
    entries.into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().strip_prefix(front).is_some_and(|rest| rest.ends_with(back))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::root;

    #[test]
    fn paths_of_the_repository_must_be_there() {
        for (line, expected) in [
            ("| x | `crates/tidy/src/paths.rs`, `tables.rs`; `tests/tidy.rs`, `src/` |", ""),
            ("| x | `crates/tidy/tests/tidy.rs`, `paths.rs` | `GET /_up`, `http/protobuf`, `libfdb_c.so`, `a.b` |", ""),
            ("`crates/tidy/src/ta*.rs`, `target/bench/results.md`, `/metrics`, `crates/*`", ""),
            ("the reader's own `sync.mjs`", ""),
            ("`crates/tidy/src/gone.rs`", "1: `crates/tidy/src/gone.rs`"),
            ("`crates/gone/`", "1: `crates/gone/`"),
            ("`crates/tidy/src/gone*.rs`", "1: `crates/tidy/src/gone*.rs`"),
            ("\n`crates/tidy/src/paths.rs`, `gone.rs`", "2: `gone.rs`"),
            ("`crates/tidy/src/paths.rs`, `gone/`", "1: `gone/`"),
            ("`paths.rs` without a path", "1: `paths.rs`"),
        ] {
            assert_eq!(missing(&root(), line).join(", "), expected, "{line}");
        }
    }

    #[test]
    fn links_must_lead_somewhere() {
        let text = "# A heading: `of` two_words\n[x](#a-heading-of-two_words) [x](Cargo.toml) [x](https://a.example/b)";
        assert!(missing_links(Path::new(env!("CARGO_MANIFEST_DIR")), text).is_empty());
        for (target, expected) in [("#b", "1: #b"), ("gone.md", "1: gone.md"), ("Cargo.toml#b", "1: Cargo.toml#b")] {
            let text = format!("[x]({target})");
            assert_eq!(missing_links(Path::new(env!("CARGO_MANIFEST_DIR")), &text), [expected]);
        }
    }
}
