//! The dependencies between the files of a crate, read from their paths; used by the tests that check the crate's
//! layers.
//!
//! `lib.rs` and `mod.rs` declare and re-export, and are not counted. Code compiled for tests alone is not counted
//! either: items, and files that begin with `#![cfg(test)]`. A path within the crate must name the file that defines
//! its item, not a re-export, so that nothing has to be resolved here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The files of a crate by path without `.rs`, each with the files that it names.
pub(crate) struct Layers(BTreeMap<String, BTreeSet<String>>);

impl Layers {
    /// Reads the crate whose `Cargo.toml` lies in `directory`.
    pub(crate) fn of(directory: &str) -> Layers {
        let mut texts = BTreeMap::new();
        read_folder(&Path::new(directory).join("src"), "", &mut texts);
        let files: BTreeSet<String> = texts.keys().cloned().collect();
        Layers(texts.iter().map(|(file, text)| (file.clone(), named(file, text, &files))).collect())
    }

    /// The files that depend on themselves through others, and those between them.
    pub(crate) fn circles(&self) -> Vec<String> {
        let mut left = self.0.clone();
        loop {
            let known: BTreeSet<String> = left.values().flatten().cloned().collect();
            let before = left.len();
            // A file that depends on none of the rest, or on which none of the rest depends, is on no cycle.
            left.retain(|file, knows| !knows.is_empty() && known.contains(file));
            let files: BTreeSet<String> = left.keys().cloned().collect();
            left.values_mut().for_each(|knows| knows.retain(|other| files.contains(other)));
            if left.len() == before {
                return left.into_iter().map(|(file, knows)| format!("{file} knows {knows:?}")).collect();
            }
        }
    }

    /// Returns the violations of `table`. The table lists each folder, the lowest first, with the folders that it may
    /// use, all of them above it. A file beside `lib.rs` counts as a folder.
    pub(crate) fn beyond(&self, table: &[(&str, &[&str])]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (at, (folder, allowed)) in table.iter().enumerate() {
            let lower = |name: &&str| table[..at].iter().any(|(lower, _)| lower == name);
            wrong.extend(allowed.iter().filter(|name| !lower(name)).map(|name| format!("{folder} before {name}")));
            if !self.0.keys().any(|file| folder_of(file) == *folder) {
                wrong.push(format!("{folder} has no files"));
            }
        }
        for (file, other) in self.0.iter().flat_map(|(file, knows)| knows.iter().map(move |other| (file, other))) {
            let (from, to) = (folder_of(file), folder_of(other));
            let is_allowed = |(folder, allowed): &(&str, &[&str])| *folder == from && allowed.contains(&to);
            if from != to && !table.iter().any(is_allowed) {
                wrong.push(format!("{file} knows {other}"));
            }
        }
        wrong
    }
}

fn folder_of(file: &str) -> &str {
    file.split('/').next().unwrap_or(file)
}

fn read_folder(folder: &Path, name: &str, texts: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let own = entry.file_name().into_string().unwrap();
        if path.is_dir() {
            read_folder(&path, &format!("{name}{own}/"), texts);
        } else if let Some(stem) = own.strip_suffix(".rs").filter(|stem| !["lib", "mod", "layers"].contains(stem)) {
            let code = code(&std::fs::read_to_string(&path).unwrap());
            if !code.trim_start().starts_with("#![cfg(test)]") {
                texts.insert(format!("{name}{stem}"), code);
            }
        }
    }
}

/// Removes comments, the content of strings, and test-only code.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_char = rest.starts_with('\'') && (rest.starts_with("'\\") || rest.chars().nth(2) == Some('\''));
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' || is_char {
            // Skips to the closing quote, past escaped characters.
            let mut is_escaped = false;
            let is_end = |&(_, sign): &(usize, char)| {
                let ends = sign == first && !is_escaped;
                is_escaped = sign == '\\' && !is_escaped;
                ends
            };
            rest.char_indices().skip(1).find(is_end).map_or(rest.len(), |(end, _)| end + 1)
        } else {
            0
        };
        if skipped == 0 {
            code.push(first);
        }
        rest = &rest[skipped.max(first.len_utf8()).min(rest.len())..];
    }
    without_tests(&code)
}

/// Removes each item after `#[cfg(test)]`: up to its `;`, or to the brace that closes its first one.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let Some((before, item)) = code.split_once(MARK) else { return code.to_owned() };
    let mut depth = 0;
    let is_end = |&(_, sign): &(usize, char)| {
        depth += i32::from(sign == '{') - i32::from(sign == '}');
        depth == 0 && (sign == ';' || sign == '}')
    };
    let end = item.char_indices().find(is_end).map_or(item.len(), |(end, _)| end + 1);
    format!("{before}{}", without_tests(&item[end..]))
}

/// The files that paths in `code` name; `code` is the content of `file`.
fn named(file: &str, code: &str, files: &BTreeSet<String>) -> BTreeSet<String> {
    assert!(!code.contains("super::"), "{file}: paths begin at the crate");
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // Skips the end of a longer name, and visibilities.
        let before = &code[..at];
        if !before.ends_with(|sign: char| sign.is_alphanumeric() || "_$:".contains(sign)) && !before.ends_with("(in ") {
            let mut paths = Vec::new();
            expand(String::new(), &code[at + "crate::".len()..], &mut paths);
            for path in paths {
                let mut found = path.match_indices('/').map(|(end, _)| &path[..end]).chain([path.as_str()]);
                let found = found.rfind(|start| files.contains(*start));
                named.insert(found.unwrap_or_else(|| panic!("{file}: crate/{path} names no file")).to_owned());
            }
        }
    }
    named.remove(file);
    named
}

/// Puts the paths at the start of `text`, each after `prefix`, into `paths`. Returns the rest of the text.
fn expand<'t>(prefix: String, text: &'t str, paths: &mut Vec<String>) -> &'t str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = match rest.strip_prefix(',') {
                Some(after) => after,
                None if rest.is_empty() => return rest,
                None => expand(prefix.clone(), rest, paths).trim_start(),
            };
            // A renamed import keeps its path.
            rest = rest.strip_prefix("as ").map_or(rest, |new| new.trim_start_matches(|sign| !",}".contains(sign)));
        }
    }
    let end = text.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(text.len()).max(1);
    let (name, rest) = text.split_at(end.min(text.len()));
    match rest.strip_prefix("::") {
        Some(more) if more.starts_with(|sign: char| sign.is_alphabetic() || "_{*".contains(sign)) => {
            expand(format!("{prefix}{name}/"), more, paths)
        }
        _ => {
            paths.push(format!("{prefix}{name}"));
            rest
        }
    }
}

#[test]
fn paths_are_read_from_code_alone() {
    let files: BTreeSet<String> = ["a/one", "a/two", "b", "c"].map(str::to_owned).into();
    let named = |text: &str| named("c", &code(text), &files).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(named("use crate::a::{one::{self, X as Y}, two as three};\nuse crate::c::Z;"), "a/one a/two");
    assert_eq!(named("fn f(x: &'static crate::b::B) { crate::a::one::<u8>() }"), "a/one b");
    assert_eq!(named("// crate::b::B\nlet x = (\"\\\"crate::b\", '\"', 'x'); /* crate::b */"), "");
    assert_eq!(named("#[cfg(test)]\nmod tests { fn f() { crate::b::B } }\nuse crate::a::two::T;"), "a/two");
    assert_eq!(named("#[cfg(test)]\nuse crate::b::B;\nmycrate::b::f();"), "");
    assert_eq!(named("pub(in crate::a) fn f() {}"), "");
}

#[test]
fn circles_and_wrong_folders_are_found() {
    let knows = |file: &str, others: &[&str]| (file.to_owned(), others.iter().map(|&other| other.to_owned()).collect());
    let layers = Layers([knows("a/x", &["a/y"]), knows("a/y", &["b/x", "a/x"]), knows("b/x", &[])].into());
    assert_eq!(layers.circles(), ["a/x knows {\"a/y\"}", "a/y knows {\"a/x\"}"]);
    assert!(layers.beyond(&[("b", &[]), ("a", &["b"])]).is_empty());
    assert_eq!(layers.beyond(&[("b", &[]), ("a", &[])]), ["a/y knows b/x"]);
    assert_eq!(layers.beyond(&[("a", &["b"]), ("b", &[]), ("c", &[])]), ["a before b", "c has no files"]);
}
