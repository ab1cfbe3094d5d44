//! The permitted dependencies between crates: the table in ARCHITECTURE.md against the manifests.
//!
//! The column `uses` of a crate's row names exactly the workspace's crates that it depends on, and a crate's row stands
//! above theirs. Outside crates are named if their users matter: an outside crate in any row may be used only by crates
//! whose row names it. Dev-dependencies are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::tables::{code_spans, under};

/// A crate: its directory's name, and the names of its dependencies, those of the workspace by their directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crate {
    /// The name of its directory in `crates/`.
    pub name: String,
    /// The names in `[dependencies]` and `[build-dependencies]`.
    pub uses: BTreeSet<String>,
    /// True if it inherits the workspace's lints.
    pub is_linted: bool,
}

/// Returns all crates of the workspace by their manifests, sorted by name.
///
/// # Errors
/// The file system's.
pub fn of_workspace(root: &Path) -> io::Result<Vec<Crate>> {
    let mut manifests = BTreeMap::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let entry = entry?;
        let manifest = entry.path().join("Cargo.toml");
        if manifest.exists() {
            manifests.insert(entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(manifest)?);
        }
    }
    let directories: BTreeMap<String, &String> =
        manifests.iter().map(|(directory, manifest)| (package(manifest), directory)).collect();
    let by_directory = |name: String| match directories.get(&name) {
        Some(directory) => (*directory).clone(),
        None if manifests.contains_key(&name) => format!("{name} of crates.io"),
        None => name,
    };
    let crates = manifests.iter().map(|(directory, manifest)| Crate {
        name: directory.clone(),
        uses: dependencies(manifest).into_iter().map(by_directory).collect(),
        is_linted: entries(manifest).any(|(section, line)| section == "lints" && line == "workspace = true"),
    });
    Ok(crates.collect())
}

/// Returns the differences between the manifests and the table.
pub fn differences(crates: &[Crate], markdown: &str) -> Vec<String> {
    let rows: Vec<(&str, BTreeSet<&str>)> = under(markdown, "Crates")
        .iter()
        .filter_map(|cells| {
            let name = code_spans(cells.first()?).next()?;
            Some((name, code_spans(cells.get(2)?).collect()))
        })
        .collect();
    let place: BTreeMap<&str, usize> = rows.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
    let ours: BTreeSet<&str> = crates.iter().map(|of| of.name.as_str()).collect();
    let named: BTreeSet<&str> = rows.iter().flat_map(|(_, uses)| uses).copied().collect();
    let mut differences = Vec::new();
    for (name, _) in rows.iter().filter(|(name, _)| !ours.contains(name)) {
        differences.push(format!("`{name}` has a row, and there is no such crate"));
    }
    for Crate { name, uses, .. } in crates {
        let Some((at, (_, table))) = rows.iter().enumerate().find(|(_, (row, _))| row == name) else {
            differences.push(format!("`{name}` has no row"));
            continue;
        };
        let held: BTreeSet<&str> =
            uses.iter().map(String::as_str).filter(|u| ours.contains(u) || named.contains(u)).collect();
        for used in held.difference(table) {
            differences.push(format!("`{name}` depends on `{used}`, and its row does not say so"));
        }
        for used in table.difference(&held) {
            differences.push(format!("`{name}` does not depend on `{used}`, and its row says so"));
        }
        for used in held.iter().filter(|used| place.get(*used).is_some_and(|below| *below <= at)) {
            differences.push(format!("`{name}` depends upwards on `{used}`"));
        }
    }
    differences
}

fn package(manifest: &str) -> String {
    let (_, name) =
        entries(manifest).find(|(section, line)| section == "package" && key(line) == "name").unwrap_or_default();
    name.split('"').nth(1).unwrap_or_default().to_owned()
}

/// Returns the packages in `[dependencies]` and `[build-dependencies]`, including those of one target only.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (section, line) in entries(manifest) {
        let path: Vec<&str> = section.split('.').collect();
        match path.iter().position(|part| matches!(*part, "dependencies" | "build-dependencies")) {
            // A section `[dependencies.name]`.
            Some(at) if at + 1 < path.len() => found.extend(path.get(at + 1).map(|name| (*name).to_owned())),
            Some(_) => {
                let renamed = line.split("package = \"").nth(1).and_then(|rest| rest.split('"').next());
                found.push(renamed.unwrap_or(key(&line)).to_owned());
            }
            None => {}
        }
    }
    found
}

fn key(line: &str) -> &str {
    line.split(['=', '.', ' ']).next().unwrap_or_default().trim_matches('"')
}

/// Returns the lines `key = value` of a manifest with their sections. Lines inside a list begin with a quotation mark
/// or bracket.
fn entries(manifest: &str) -> impl Iterator<Item = (String, String)> {
    let mut section = String::new();
    let lines = manifest.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
            return None;
        }
        let begins = line.starts_with(|c: char| c.is_ascii_alphabetic());
        (begins && line.contains('=')).then(|| (section.clone(), line.to_owned()))
    });
    lines.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "\
[package]
name = \"flatbed-http\"
[features]
otel = [
    \"dep:gone\",
]
[dependencies]
bytes.workspace = true
flatbed-layer = { path = \"../layer\" } # why
short = { package = \"long\", version = \"1\" }
[target.'cfg(unix)'.dependencies]
libc = \"0.2\"
[build-dependencies]
cc = \"1\"
[dependencies.hyper]
version = \"1\"
[dev-dependencies]
tempfile = \"3\"
";

    #[test]
    fn manifests_are_read() {
        assert_eq!(package(MANIFEST), "flatbed-http");
        assert!(!entries(MANIFEST).any(|(section, _)| section == "lints"));
        assert_eq!(dependencies(MANIFEST), ["bytes", "flatbed-layer", "long", "libc", "cc", "hyper"]);
    }

    #[test]
    fn table_and_manifests_must_agree() {
        let of = |name: &str, uses: &[&str]| Crate {
            name: name.to_owned(),
            uses: uses.iter().map(|name| (*name).to_owned()).collect(),
            is_linted: true,
        };
        let table = "## Crates\n| crate | does | uses | must not know |\n|---|---|---|---|\n\
            | `http` | a | `layer` | `all` |\n| `layer` | b | `heed` | c |\n";
        let crates =
            |http: &[&str], layer: &[&str]| differences(&[of("http", http), of("layer", layer)], table).join("; ");
        assert_eq!(crates(&["layer", "bytes"], &["heed"]), "");
        assert_eq!(crates(&[], &["heed"]), "`http` does not depend on `layer`, and its row says so");
        assert_eq!(crates(&["layer", "heed"], &["heed"]), "`http` depends on `heed`, and its row does not say so");
        assert_eq!(
            crates(&["layer"], &["heed", "http"]),
            "`layer` depends on `http`, and its row does not say so; `layer` depends upwards on `http`"
        );
        assert_eq!(differences(&[of("http", &["layer"])], table), ["`layer` has a row, and there is no such crate",]);
        assert_eq!(
            differences(&[of("http", &["layer"]), of("layer", &["heed"]), of("new", &[])], table),
            ["`new` has no row"]
        );
    }
}
